"""What a picture of the coverage world shows.

In: an episode of a coverage world. Out: a `Scene`, host data for any renderer.
Axes: time T and agents N, in NumPy; never inside jit.
May import: types and the world's own files.
"""

import jax
import numpy as np

from purejax_merl.envs.coverage import bits
from purejax_merl.envs.coverage.env import CoverageEnv
from purejax_merl.envs.coverage.goals import GoalCoverageEnv
from purejax_merl.types import Episode, Scene


def scene(
    env: CoverageEnv | GoalCoverageEnv, episode: Episode, skill_names: tuple[str, ...]
) -> Scene:
    """Every frame of the episode until its end.

    **Arguments:** `skill_names`: of the actor that played it, in the order of its selector.
    """
    world = env.inner if isinstance(env, GoalCoverageEnv) else env
    steps = int(np.sum(episode.alive))
    states = jax.tree.map(lambda leaf: leaf[: steps + 1], episode.states)
    position, lambda2 = np.asarray(states.position), np.asarray(states.lambda2)
    wall = np.asarray(bits.unpack(states.wall[0], world.grid))
    covered = np.any(np.asarray(bits.unpack(states.seen, world.grid)), axis=1) & ~wall
    skill = np.asarray(episode.action.skill)[:steps]
    return Scene(
        wall=wall,
        covered_at=np.where(covered[-1], np.argmax(covered, axis=0), -1),
        position=position,
        linked=_linked(position, world.comm_r),
        skill=np.concatenate([skill, skill[-1:]]),
        coverage=np.sum(covered, axis=(1, 2)) / np.sum(~wall),
        lambda2=lambda2,
        skill_names=skill_names,
        bar=0.5,
    )


def _linked(position: np.ndarray, comm_r: int) -> np.ndarray:
    """`comms.adjacency` of every frame, without the agents themselves."""
    distance = np.max(np.abs(position[:, :, None] - position[:, None]), axis=-1)
    return (distance <= comm_r) & ~np.eye(position.shape[1], dtype=bool)
