"""The first lines of a run: what trains, where, how long it compiled, how much memory it plans.

In: words, seconds, a compiled program. Out: short lines for people.
Axis: none. May import: nothing of this package.
"""

import os
from typing import Any

import jax

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

# What a line says: our word, and the attribute of XLA's own report.
_MEMORY = {
    "arguments": "argument_size_in_bytes",
    "outputs": "output_size_in_bytes",
    "aliased": "alias_size_in_bytes",
    "temporaries": "temp_size_in_bytes",
    "code": "generated_code_size_in_bytes",
}


def device_line(used: int = 1) -> str:
    """How many devices of the default backend train: `device: cpu (1 of 8 × cpu), jax 0.10.2`."""
    devices = jax.devices()
    number = f"{used}" if used == len(devices) else f"{used} of {len(devices)}"
    kind = devices[0].device_kind
    return f"device: {devices[0].platform} ({number} × {kind}), jax {jax.__version__}"


def memory_plan(compiled: jax.stages.Compiled) -> dict[str, int]:
    """Bytes that the compiled program takes on one device.

    **Returns**: `arguments`, `outputs`, `aliased` (outputs that reuse donated arguments),
    `temporaries`, `code` and `planned` (their sum, aliased ones counted once); empty where the
    backend does not tell.
    """
    try:
        analysis: Any = compiled.memory_analysis()
    except (NotImplementedError, RuntimeError):
        return {}
    if analysis is None:
        return {}
    plan = {word: int(getattr(analysis, attribute)) for word, attribute in _MEMORY.items()}
    return plan | {"planned": sum(plan.values()) - 2 * plan["aliased"]}


def device_memory() -> int:
    """Bytes of memory of the first device; 0 where nobody tells."""
    stats = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def memory_line(plan: dict[str, int]) -> str:
    """A `memory_plan` in words."""
    if not plan:
        return "memory planned: not told by this backend"
    parts = ", ".join(f"{word} {human_bytes(plan[word])}" for word in ("arguments", "temporaries"))
    return f"memory planned: {human_bytes(plan['planned'])} ({parts})"


def compile_line(seconds: float) -> str:
    """How long tracing and compiling took."""
    return f"compiled in {seconds:.1f} s"


def human_bytes(count: int) -> str:
    """A byte count in the largest unit that leaves at least 1: `1.5 MiB`."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{count / 1024**power:.1f} {_UNITS[power]}"
