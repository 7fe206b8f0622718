"""Shared set-up: platform, compile cache and type hook come before the package is imported."""

import hashlib
import os
import platform
import time
from pathlib import Path

import pytest

_MAX_CACHE_AGE_S = 7 * 24 * 3600


def _machine_tag() -> str:
    """Names this kind of processor: compiled CPU code must not travel to another one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        features = platform.processor()
    return hashlib.sha256(f"{platform.machine()} {features}".encode()).hexdigest()[:12]


def _cache_folder() -> Path | None:
    """A private, stable folder for compiled tests; None where there is nowhere to put one."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        folder = Path(base).expanduser() / "purejax_merl" / f"tests-{_machine_tag()}"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        oldest = time.time() - _MAX_CACHE_AGE_S
        for entry in folder.iterdir():
            if entry.stat().st_mtime < oldest:
                entry.unlink(missing_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if os.access(folder, os.W_OK) else None


# JAX reads these at import, and subprocess tests inherit them. An unreadable entry only costs a
# recompilation (JAX warns and carries on), so parallel workers may share the folder.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The tests' programs are tiny: compiling them is most of the time, and unoptimised code is as
# right.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
if (_folder := _cache_folder()) is not None:
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_folder))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

# Annotated shapes and types are checked at every call, unless one wants to time without it.
if not os.environ.get("PUREJAX_MERL_NO_TYPECHECK"):
    from jaxtyping import install_import_hook

    install_import_hook("purejax_merl", "beartype.beartype")


def golden_folder() -> Path:
    """The folder of exact reference data: `PUREJAX_MERL_GOLDEN`, or `tests/golden`."""
    return Path(os.environ.get("PUREJAX_MERL_GOLDEN") or Path(__file__).parent / "golden")


@pytest.fixture(scope="session")
def golden() -> Path:
    """`golden_folder()`, which must exist."""
    folder = golden_folder()
    if not folder.is_dir():
        pytest.fail(f"no golden data in {folder}; set PUREJAX_MERL_GOLDEN to its folder")
    return folder
