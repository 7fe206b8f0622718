"""Full-state checkpoints of a run: the whole round state, so that a resumed run is the straight
one.

In: a state pytree and its round. Out: `checkpoints/round-00000025.eqx`, and the state again.
Axis: none. May import: runtime's files only.
"""

from pathlib import Path
from typing import Any

from purejax_merl.runtime.modelfile import ModelFileError, load_model, save_model

_NAME = "round-{:08d}.eqx"


def save(folder: str | Path, state: Any, round_: int, *, keep: int = 3) -> Path:
    """Writes one checkpoint, whole or not at all, then removes all but the newest `keep`.

    **Arguments**: `state`: any pytree of arrays without typed keys; it is copied to the host here,
    so it may be donated as soon as this returns.
    **Returns**: the file. **Raises**: `ModelFileError` if it cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    path = folder / _NAME.format(round_)
    # The same round of the same run holds the same bits: writing it again loses nothing.
    save_model(path, state, {"round": round_}, overwrite=True)
    for old in found(folder)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def found(folder: str | Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(Path(folder).glob("round-*.eqx"))


def restore(folder: str | Path, template: Any) -> tuple[Any, int, list[str]]:
    """The newest checkpoint that is sound.

    **Arguments**: `template`: a state of the same structure.
    **Returns**: the state, its round, and one line for each newer file that had to be passed over.
    **Raises**: `ModelFileError` if there is no sound checkpoint.
    """
    passed_over = []
    for path in reversed(found(folder)):
        try:
            state = load_model(path, template)
        except ModelFileError as error:
            passed_over.append(f"passed over a checkpoint: {error}")
            continue
        return state, int(path.stem.removeprefix("round-")), passed_over
    raise ModelFileError("\n".join([f"`{folder}` holds no sound checkpoint.", *passed_over]))
