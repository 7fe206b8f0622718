"""An episode as an animated GIF.

In: a `Scene`. Out: the bytes of a GIF.
Axis: frames, on the host. May import: types, runtime. Needs the extra `render`.
"""

import importlib
import io
from typing import Any

import numpy as np

from purejax_merl.runtime.page import OutputError
from purejax_merl.types import Scene

# Okabe & Ito's colours, legible under every common colour blindness; each skill has a shape too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "p", "h")
_WALL, _FRESH, _OLD, _OPEN = "#3d444d", "#96bad6", "#d4e0ea", "#ffffff"
_FADE = 30
"""Steps over which a covered cell pales."""


def need_packages() -> None:
    """**Raises**: `OutputError` that names the extra if it is not installed."""
    for name in ("matplotlib", "PIL"):
        try:
            importlib.import_module(name)
        except ImportError:
            raise OutputError(
                'a GIF needs matplotlib and Pillow: pip install "purejax-merl[render]"; a page '
                "(`--out episode.html`) needs neither."
            ) from None


def episode_gif(scene: Scene, title: str, *, fps: int = 10) -> bytes:
    """Every frame once, the last one for two seconds; then from the start again."""
    need_packages()
    picture = _Picture(scene, title)
    frames = [picture.frame(t) for t in range(len(scene.position))]
    # One palette for all frames: per-frame palettes flicker.
    palette = frames[-1].quantize(64)
    frames = [frame.quantize(palette=palette, dither=0) for frame in frames]
    duration = [round(1000 / fps)] * (len(frames) - 1) + [2000]
    buffer = io.BytesIO()
    frames[0].save(
        buffer, "GIF", save_all=True, append_images=frames[1:], duration=duration, loop=0
    )
    return buffer.getvalue()


class _Picture:
    """The figure, drawn once; a frame changes only what moves."""

    def __init__(self, scene: Scene, title: str):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self._scene = scene
        figure = Figure(figsize=(8.8, 5.0), dpi=90, layout="constrained")
        self._canvas = FigureCanvasAgg(figure)
        figure.suptitle(title, fontsize=11)
        axes: Any = figure.subplot_mosaic("wc;wl", width_ratios=(1.25, 1))
        self._draw_world(axes["w"])
        self._cursors = [
            _series(axes["c"], 100 * scene.coverage, COLOURS[0], "coverage (% of free cells)"),
            _series(axes["l"], scene.lambda2, COLOURS[2], "connectivity λ₂"),
        ]
        axes["c"].set_ylim(0, 102)
        axes["l"].axhline(scene.bar, color="#57606a", linestyle="--", linewidth=1)
        axes["l"].set_ylim(bottom=0)
        axes["l"].set_xlabel("step")

    def _draw_world(self, axis: Any) -> None:
        from matplotlib.lines import Line2D

        rows, cols = self._scene.wall.shape
        self._cells = axis.imshow(np.ones((rows, cols, 3)))
        axis.set_xticks(np.arange(-0.5, cols), labels=[])
        axis.set_yticks(np.arange(-0.5, rows), labels=[])
        axis.tick_params(length=0)
        axis.grid(color="#1b1f24", alpha=0.1, linewidth=0.6)
        self._axis, self._moving = axis, []
        self._text = axis.set_title("", fontsize=10)
        key = [
            Line2D([], [], linestyle="", marker=_marker(k), color=_colour(k), label=name)
            for k, name in enumerate(self._scene.skill_names)
        ]
        axis.legend(
            handles=key, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=5, frameon=False
        )

    def frame(self, t: int) -> Any:
        """Frame `t` as a Pillow image."""
        from PIL import Image

        scene = self._scene
        self._cells.set_data(_shades(scene, t))
        for artist in self._moving:
            artist.remove()
        self._moving = [*self._links(t), *self._agents(t)]
        whole = "connected" if scene.lambda2[t] > scene.bar else "apart"
        self._text.set_text(
            f"step {t} of {len(scene.position) - 1}   covered {scene.coverage[t]:.0%}   "
            f"λ₂ {scene.lambda2[t]:.2f} ({whole})"
        )
        for cursor in self._cursors:
            cursor.set_xdata([t, t])
        self._canvas.draw()
        return Image.fromarray(np.asarray(self._canvas.buffer_rgba())).convert("RGB")

    def _links(self, t: int) -> list[Any]:
        """Lines between agents in range: dashed and vermillion while the team is apart."""
        scene = self._scene
        whole = scene.lambda2[t] > scene.bar
        colour, style = ("#1b1f24", "-") if whole else (COLOURS[1], "--")
        drawn = []
        for i, j in np.argwhere(np.triu(scene.linked[t])):
            rows, cols = scene.position[t, [i, j]].T
            drawn += self._axis.plot(cols, rows, color=colour, linestyle=style, linewidth=1.4)
        return drawn

    def _agents(self, t: int) -> list[Any]:
        """A marker per agent, its number inside."""
        cell = 280 / max(self._scene.wall.shape)
        drawn = []
        for i, (row, col) in enumerate(self._scene.position[t]):
            k = int(self._scene.skill[t, i])
            drawn += self._axis.plot(
                col,
                row,
                linestyle="",
                marker=_marker(k),
                markersize=max(6.0, 0.75 * cell),
                color=_colour(k),
                markeredgecolor="white",
                zorder=3,
            )
            text = {"ha": "center", "va": "center_baseline", "weight": "bold", "zorder": 4}
            ink = "black" if k % len(COLOURS) in (4, 5) else "white"
            low = 0.08 if _marker(k) == "^" else 0.0  # a triangle is wide at its foot
            size = max(4.5, (0.32 if low else 0.4) * cell)
            drawn.append(
                self._axis.text(col, row + low, str(i + 1), color=ink, fontsize=size, **text)
            )
        return drawn


def _colour(skill: int) -> str:
    return COLOURS[skill % len(COLOURS)]


def _marker(skill: int) -> str:
    return MARKERS[skill % len(MARKERS)]


def _series(axis: Any, values: np.ndarray, colour: str, title: str) -> Any:
    """A curve over the steps; returns the line that marks now."""
    axis.plot(values, color=colour, linewidth=1.6)
    axis.set_title(title, fontsize=10)
    axis.grid(color="#e6eaee")
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)
    return axis.axvline(0, color="#1b1f24", linewidth=1)


def _shades(scene: Scene, t: int) -> np.ndarray:
    """Cell colours: fresh cells are darker and pale with age."""
    wall, fresh, old, white = (_rgb(colour) for colour in (_WALL, _FRESH, _OLD, _OPEN))
    age = np.clip((t - scene.covered_at) / _FADE, 0, 1)[..., None]
    covered = (scene.covered_at >= 0) & (scene.covered_at <= t)
    cells = np.where(covered[..., None], fresh + age * (old - fresh), white)
    return np.where(scene.wall[..., None], wall, cells)


def _rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
