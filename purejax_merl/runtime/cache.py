"""JAX's persistent compilation cache, on by default.

In: a folder, or the user's own settings. Out: the folder in use; a second run compiles faster.
Axis: none. May import: nothing of this package.
"""

import hashlib
import os
import platform
import sys
import tempfile
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

_MIN_TIME_VARIABLE = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


def enable_compilation_cache(path: str | Path | None = None) -> Path | None:
    """Turns the cache on for this process; a cache that cannot be had is no reason to stop.

    **Arguments**: `path`: the folder; None takes `JAX_COMPILATION_CACHE_DIR` or what
    `jax_compilation_cache_dir` was set to, else one for this machine in the user's cache folder.
    **Returns**: the folder in use, or None with one line of warning on stderr.
    """
    configured = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    try:
        folder = Path(path or configured or default_cache_dir()).expanduser()
        _check_writable(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder to expand `~` to
        print(f"warning: compiling without a cache: {error}", file=sys.stderr)
        if configured:
            # JAX would warn again at each compilation that it cannot write there.
            _use(None)
        return None
    _use(folder)
    return folder


def default_cache_dir() -> Path:
    """`~/.cache/purejax_merl/xla/<machine>`, or the same under `XDG_CACHE_HOME`."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return base / "purejax_merl" / "xla" / _machine_tag()


def _machine_tag() -> str:
    """Names the kind of processor: code compiled for one may not run on another.

    A home folder is often shared between machines, and JAX's own cache key leaves this out.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        features = platform.processor()
    return f"{platform.machine()}-{hashlib.sha256(features.encode()).hexdigest()[:8]}"


def _check_writable(folder: Path) -> None:
    """Only an attempt tells: permission bits mean nothing to root or on a read-only disk."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def _use(folder: Path | None) -> None:
    if os.environ.get(_MIN_TIME_VARIABLE) is None:
        # JAX keeps only what took a second; a cold start is made of many shorter ones.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_compilation_cache_dir", None if folder is None else str(folder))
    # JAX decides once, at its first compilation, whether there is a cache; ask it to look again.
    compilation_cache.reset_cache()
