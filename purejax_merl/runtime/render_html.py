"""An episode as one HTML page that plays, pauses and scrubs.

In: a `Scene`. Out: HTML text without any reference outside itself.
Axis: frames, on the host. May import: types, runtime.
"""

import numpy as np

from purejax_merl.runtime import page
from purejax_merl.types import Scene


def episode_page(scene: Scene, title: str, subtitle: str) -> str:
    """The page; `title` and `subtitle` are plain text."""
    pairs = [np.argwhere(np.triu(linked)).tolist() for linked in scene.linked]
    data = {
        "wall": scene.wall.astype(int),
        "covered_at": scene.covered_at,
        "position": scene.position,
        "links": pairs,
        "skill": scene.skill,
        "coverage": np.round(scene.coverage.astype(float), 4),
        "lambda2": np.round(scene.lambda2.astype(float), 4),
        "skill_names": list(scene.skill_names),
        "bar": scene.bar,
    }
    return page.fill("episode", data, title=title, subtitle=subtitle, bar=f"{scene.bar:g}")
