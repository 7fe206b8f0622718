"""Small trainings on eight pretended devices; `test_devices.py` starts this and reads the result.

The number of devices is fixed when JAX starts, so it takes a process of its own.
"""

import json
import os
import re
import sys
from pathlib import Path

DEVICES = 8
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from purejax_merl import loop, mesh, train  # noqa: E402

FLAGS = (
    "--grid 8 --n-agents 2 --horizon 8 --rollouts 8 --minibatches 2 --pop 16 --eval-worlds 8 "
    "--width 16 --depth 1 --grad-steps 1 --chunk 1 --checkpoint-every 1 --episodes 4 --outer 3"
).split()


def main(out: Path) -> None:
    found = {
        "one": trained(out / "one", "--devices", "1"),
        "eight": trained(out / "eight", "--devices", "8"),
        "seeds_one": trained(out / "seeds_one", "--seeds", "8", "--devices", "1"),
        "seeds_eight": trained(out / "seeds_eight", "--seeds", "8", "--devices", "8"),
        "rows": mapped_rows(),
    }
    go_on_with_fewer(out / "resumed")
    (out / "found.json").write_text(json.dumps(found))


def trained(folder: Path, *flags: str) -> dict:
    """Trains into `folder`; what the program looked like and where its results lay."""
    traces, last = [], {}
    whole_rounds, whole_train = loop.run_rounds, loop.train

    def counted(*args, **kwargs):
        traces.append(1)
        return whole_rounds(*args, **kwargs)

    def watched(program, *args, **kwargs):
        for chunk in whole_train(program, *args, **kwargs):
            last.update(program=program, state=chunk.state)
            yield chunk

    loop.run_rounds, loop.train = counted, watched
    try:
        train.main([*FLAGS, *flags, "--run-dir", str(folder)])
    finally:
        loop.run_rounds, loop.train = whole_rounds, whole_train
    leaf = last["state"].learner.critic.trunk.layers[0].weight
    text = last["program"].compiled.as_text()
    return {
        "traces": len(traces),
        "shape": leaf.shape,
        "on_each": leaf.sharding.shard_shape(leaf.shape),
        "devices": len(leaf.sharding.device_set),
        # Arrays of all members in all worlds, and of the members that one of 8 devices has.
        "16_members": len(re.findall(r"\[16,8,", text)),
        "2_members": len(re.findall(r"\[2,8,", text)),
    }


def go_on_with_fewer(folder: Path) -> None:
    """Two rounds on eight devices, a crash, the third on one."""
    whole = loop.train

    def cut(*args, **kwargs):
        for number, chunk in enumerate(whole(*args, **kwargs), start=1):
            if number == 3:
                raise RuntimeError("the machine went away")
            yield chunk

    loop.train = cut
    try:
        train.main([*FLAGS, "--devices", "8", "--run-dir", str(folder)])
    except RuntimeError:
        loop.train = whole
        train.main(["--resume", str(folder), "--devices", "1"])


def mapped_rows() -> dict:
    """`map_rows` over 16 rows on 8 devices: the result, and rows that a device computes at once."""
    devices, rows = mesh.make_mesh(DEVICES), jnp.arange(16.0)
    found = {}
    for at_once in (None, 1, 2):

        def mapped(x, at_once=at_once):
            return mesh.map_rows(lambda row: row**2, x, devices, at_once=at_once)

        done = jax.jit(mapped)(jax.device_put(rows, mesh.copies(devices)))
        found[str(at_once)] = [done.tolist(), done.sharding.shard_shape(done.shape)]
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
