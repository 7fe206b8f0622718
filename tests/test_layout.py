"""Which room may import which, held by reading the source; and what a plain import drags in."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = "purejax_merl"
ROOT = Path(__file__).parent.parent / PACKAGE

_WORLD = {"types", "envs", "agents"}
_BELOW_ROUNDS = _WORLD | {"evolve", "learn", "rollout"}

# A room is a top-level module or folder. A room may always import itself.
MAY_IMPORT = {
    "types": set(),
    "config": set(),
    "envs": {"types"},
    "agents": {"types"},
    "evolve": {"types"},
    "learn": {"types", "agents"},
    "mesh": set(),
    "rollout": _WORLD,
    "rounds": _BELOW_ROUNDS | {"mesh"},
    "coexist": {"types", "evolve"},
    "build": _BELOW_ROUNDS | {"rounds", "config", "mesh"},
    "loop": _BELOW_ROUNDS | {"rounds", "config", "build", "mesh"},
    "evaluation": _WORLD | {"rollout", "runtime"},
    "model": _BELOW_ROUNDS | {"rounds", "config", "build", "runtime"},
    "deploy": _BELOW_ROUNDS | {"rounds", "config", "build", "runtime", "model"},
    "flags": {"config"},
    "compare": {"config", "flags", "runtime"},
    "report": {"config", "flags", "runtime"},
    "sweep": {"config"},
    "runtime": {"types", "config"},
}
# The doors of the package may use every room, by the package's own names too.
FREE = {"__init__", "api", "train", "evaluate", "render"}

OPTIONAL = ("matplotlib", "imageio", "tensorboardX", "wandb", "evosax", "orbax", "flax")

FILES = sorted(ROOT.rglob("*.py"))


def _room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _imported(path: Path) -> list[tuple[int, str]]:
    """Line and dotted name of everything imported anywhere in the file, lazily or not."""
    package = [PACKAGE, *path.relative_to(ROOT).parent.parts]
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            found += [(node.lineno, f"{start}.{alias.name}") for alias in node.names]
    return found


def _own_rooms(path: Path) -> list[tuple[int, str]]:
    """Line and room of each import of this package; a name of the package itself is `__init__`."""
    rooms = []
    for line, name in _imported(path):
        first, *rest = name.split(".")
        if first == PACKAGE:
            known = bool(rest) and (rest[0] in MAY_IMPORT or rest[0] in FREE)
            rooms.append((line, rest[0] if known else "__init__"))
    return rooms


def test_every_room_is_known():
    unknown = {_room(path) for path in FILES} - MAY_IMPORT.keys() - FREE
    assert not unknown, f"new rooms {sorted(unknown)}: say in MAY_IMPORT what they may import"


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_room_imports_only_what_the_layout_allows(room):
    files = [path for path in FILES if _room(path) == room]
    if not files:
        pytest.skip(f"room {room} does not exist")
    allowed = MAY_IMPORT[room] | {room}
    faults = [
        f"{path.relative_to(ROOT.parent)}:{line} imports {target}"
        for path in files
        for line, target in _own_rooms(path)
        if target not in allowed
    ]
    assert not faults, f"{room} may import {sorted(allowed)}:\n" + "\n".join(faults)


def test_config_is_free_of_jax():
    path = ROOT / "config.py"
    if not path.exists():
        pytest.skip("room config does not exist")
    roots = {name.split(".")[0] for _, name in _imported(path)}
    assert not roots & {"jax", "jaxlib", "equinox", "optax", "chex", "evosax"}


def test_the_reader_sees_every_form_of_import(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "envs").mkdir()
    file = tmp_path / "envs" / "base.py"
    file.write_text(
        "import purejax_merl.agents.base\n"
        "from purejax_merl import learn, merl_train\n"
        "from ..evolve.base import ask\n"
        "from . import wrappers\n"
        "def lazy():\n"
        "    from purejax_merl.types import TimeStep\n"
    )
    rooms = [room for _, room in sorted(_own_rooms(file))]
    assert rooms == ["agents", "__init__", "learn", "evolve", "envs", "types"]


@pytest.mark.skipif(not (ROOT / "__init__.py").exists(), reason="no package to import yet")
def test_plain_import_needs_no_optional_package():
    code = (
        f"import sys, {PACKAGE}\n"
        f"print(sorted(set({OPTIONAL!r}) & {{name.split('.')[0] for name in sys.modules}}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
