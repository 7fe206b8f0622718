"""One HTML page that holds everything it needs: data, style, script.

In: the name of a page under `pages/`, texts, JSON-ready data. Out: HTML text, or a file.
Axis: none. May import: runtime's files only.
"""

import html
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

from purejax_merl.runtime.files import atomic_write, plain


class OutputError(ValueError):
    """A picture or page cannot be written as asked."""


def fill(name: str, data: Any, *, markup: dict[str, str] | None = None, **texts: str) -> str:
    """The page `name` with its blanks filled.

    **Arguments:** `data`: what the page's script reads. `markup`: blank → HTML, taken as it is.
    `texts`: blank → plain text, escaped.
    """
    blanks = {blank: html.escape(text) for blank, text in texts.items()} | (markup or {})
    blanks |= {"style": _part("style.css"), "chart": _part("chart.js"), "data": _embedded(data)}
    blanks["script"] = _part(f"{name}.js")
    # One pass: text that was filled in is not searched again.
    return re.sub(r"@@(\w+)@@", lambda match: blanks[match[1]], _part(f"{name}.html"))


def refuse_existing(path: Path, overwrite: bool) -> None:
    """**Raises**: `OutputError` if `path` is there and may not be replaced."""
    if path.exists() and not overwrite:
        raise OutputError(
            f"`--out {path}` exists already and was left as it is; name another file or pass "
            "`--overwrite`."
        )


def write(path: Path, data: bytes, *, overwrite: bool) -> Path:
    """Writes the file, whole or not at all, and the folder above it if there is none."""
    refuse_existing(path, overwrite)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, data, overwrite=overwrite)
    except OSError as error:
        raise OutputError(f"`--out {path}` cannot be written ({error.strerror}).") from error
    return path


def _part(name: str) -> str:
    return resources.files("purejax_merl.runtime").joinpath("pages", name).read_text("utf-8")


def _embedded(data: Any) -> str:
    """JSON that cannot end the script element that holds it."""
    text = json.dumps(plain(data), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")
