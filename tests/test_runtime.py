"""The promises of the run-time services: nothing lost, nothing overwritten, errors that help."""

import io
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purejax_merl.runtime.describe import (
    compile_line,
    device_line,
    human_bytes,
    memory_line,
    memory_plan,
)
from purejax_merl.runtime.modelfile import ModelFileError, load_header, load_model, save_model
from purejax_merl.runtime.progress import ProgressReporter, rate, summary
from purejax_merl.runtime.rundir import (
    HistoryWriter,
    RunDirError,
    create_run_dir,
    read_history,
    write_json,
)
from purejax_merl.runtime.statistics import (
    bootstrap_interval,
    iqm,
    paired_bootstrap,
    seed_bootstrap,
    stratified_bootstrap,
)

# --- run directory, JSON, history


def test_run_dir_is_made_with_its_parents(tmp_path):
    made = create_run_dir(tmp_path / "a" / "b")
    assert made.is_dir() and not list(made.iterdir())


def test_existing_run_dir_is_refused_and_left_alone(tmp_path):
    (tmp_path / "kept.txt").write_text("kept")
    with pytest.raises(RunDirError, match=r"--run-dir .* exists already"):
        create_run_dir(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]
    assert (tmp_path / "kept.txt").read_text() == "kept"


def test_unwritable_run_dir_is_refused(tmp_path):
    # A file where a folder should be stops root as well, unlike permission bits.
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match=r"--run-dir .* cannot be made"):
        create_run_dir(tmp_path / "file" / "run")
    with pytest.raises(RunDirError, match=r"--run-dir .* cannot be made"):
        create_run_dir(None, root=tmp_path / "file", name_hint="run")


def test_named_run_dirs_never_meet(tmp_path):
    made = {create_run_dir(None, root=tmp_path, name_hint="16x16/4 team") for _ in range(5)}
    assert len(made) == 5
    assert all(path.parent == tmp_path and path.name.startswith("16x16-4-team-") for path in made)


def test_write_json_writes_null_for_numbers_that_are_not_finite(tmp_path):
    record = {
        "nan": float("nan"),
        "inf": np.float32(np.inf),
        "x": np.float32(0.5),
        "n": np.int64(3),
        "b": np.bool_(True),
        "array": jnp.array([1.0, jnp.nan]),
        "half": jnp.asarray(1.5, jnp.bfloat16),
        "path": Path("a/b"),
        "pair": (1, None),
    }
    write_json(tmp_path / "x.json", record)
    assert json.loads((tmp_path / "x.json").read_text()) == {
        "nan": None,
        "inf": None,
        "x": 0.5,
        "n": 3,
        "b": True,
        "array": [1.0, None],
        "half": 1.5,
        "path": "a/b",
        "pair": [1, None],
    }


def test_write_json_overwrites_only_when_told(tmp_path):
    path = write_json(tmp_path / "x.json", {"a": 1})
    with pytest.raises(RunDirError, match="exists already"):
        write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    write_json(path, {"a": 2}, overwrite=True)
    assert json.loads(path.read_text()) == {"a": 2}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]
    with pytest.raises(RunDirError, match="cannot be written"):
        write_json(tmp_path / "nowhere" / "x.json", {})
    with pytest.raises(TypeError, match="object"):
        write_json(tmp_path / "y.json", {"a": object()})


def test_history_can_be_read_while_it_grows(tmp_path):
    path = tmp_path / "history.jsonl"
    with HistoryWriter(path) as history:
        history.append({"outer": 0, "best": np.float32(1.5)})
        assert read_history(path) == [{"outer": 0, "best": 1.5}]
        history.append({"outer": 1, "best": float("nan")})
        history.flush()
    history.close()
    assert read_history(path) == [{"outer": 0, "best": 1.5}, {"outer": 1, "best": None}]
    with pytest.raises(RunDirError, match="exists already"):
        HistoryWriter(path)


@pytest.mark.parametrize("torn", ['{"outer": 1, "be', '{"outer": 1}', "\x80"])
def test_torn_last_line_is_left_out_and_mended(tmp_path, torn):
    path = tmp_path / "history.jsonl"
    path.write_bytes(b'{"outer": 0}\n' + torn.encode("latin-1"))
    whole = [{"outer": 0}] + ([{"outer": 1}] if torn.endswith("}") else [])
    assert read_history(path) == whole
    with HistoryWriter(path, append=True) as history:
        history.append({"outer": 2})
    assert read_history(path) == [*whole, {"outer": 2}]


def test_damage_inside_a_history_is_an_error(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text('{"outer": 0}\n{"out\n{"outer": 2}\n')
    with pytest.raises(RunDirError, match="line 2"):
        read_history(path)
    with pytest.raises(RunDirError, match="cannot be read"):
        read_history(tmp_path / "none.jsonl")


# --- model file


class Net(eqx.Module):
    weight: jax.Array
    half: jax.Array
    steps: jax.Array
    inner: dict[str, jax.Array]
    name: str = eqx.field(static=True)
    rate: float = 0.1


def _net(width: int = 3, fill: float = 1.0) -> Net:
    return Net(
        weight=jnp.full((2, width), fill).at[0, 0].set(7.0),
        half=jnp.full(4, fill, jnp.bfloat16),
        steps=jnp.asarray(5, jnp.int32),
        inner={"empty": jnp.zeros((0, 2)), "flag": jnp.array([True, False])},
        name="net",
    )


@pytest.fixture
def model_path(tmp_path) -> Path:
    return save_model(tmp_path / "model.eqx", _net(fill=0.25), {"config": {"grid": 16}})


def test_model_round_trip(model_path):
    loaded = load_model(model_path, _net(fill=9.0))
    assert eqx.tree_equal(loaded, _net(fill=0.25), typematch=True)
    abstract = eqx.filter_eval_shape(_net)
    assert eqx.tree_equal(load_model(model_path, abstract), _net(fill=0.25), typematch=True)


def test_model_leaves_numpy_where_the_template_has_it(tmp_path):
    tree = {"a": np.arange(6.0).reshape(2, 3).T, "b": np.array([1, 2], ">i4")}
    path = save_model(tmp_path / "model.eqx", tree, {})
    loaded = load_model(path, {"a": np.zeros((3, 2)), "b": np.zeros(2, np.int32)})
    assert isinstance(loaded["a"], np.ndarray) and loaded["a"].dtype == np.float64
    np.testing.assert_array_equal(loaded["a"], tree["a"])
    np.testing.assert_array_equal(loaded["b"], [1, 2])


def test_header_describes_the_file(model_path):
    header = load_header(model_path)
    assert header["config"] == {"grid": 16}
    assert header["format"] == 1 and header["packages"]["jax"] == jax.__version__
    assert {"path": ".weight", "shape": [2, 3], "dtype": "float32"} in header["leaves"]
    assert {"path": ".half", "shape": [4], "dtype": "bfloat16"} in header["leaves"]
    assert model_path.read_bytes().startswith(b"purejax_merl model, format 1\n")


def test_truncated_model_is_refused_at_every_length(model_path):
    data = model_path.read_bytes()
    for length in range(len(data)):
        model_path.write_bytes(data[:length])
        with pytest.raises(ModelFileError, match=r"model\.eqx"):
            load_model(model_path, _net())
    model_path.write_bytes(data + b"\0")
    with pytest.raises(ModelFileError, match="damaged"):
        load_header(model_path)


def test_any_flipped_byte_is_noticed(model_path):
    data = model_path.read_bytes()
    for place in range(len(data)):
        model_path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(ModelFileError):
            load_model(model_path, _net())


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\n\n\n", b"\x80\x04pickle"])
def test_foreign_model_is_refused(tmp_path, data):
    path = tmp_path / "model.eqx"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="not a purejax_merl model file"):
        load_header(path)


def test_missing_and_newer_models_are_refused(tmp_path, model_path):
    with pytest.raises(ModelFileError, match="cannot be read"):
        load_header(tmp_path / "none.eqx")
    with pytest.raises(ModelFileError, match="cannot be read"):
        load_header(tmp_path)
    model_path.write_bytes(model_path.read_bytes().replace(b"format 1\n", b"format 2\n", 1))
    with pytest.raises(ModelFileError, match=r"format 2.*upgrade"):
        load_header(model_path)


def test_other_architecture_names_the_leaf(model_path):
    with pytest.raises(ModelFileError, match=r"`\.weight` .*float32\(2, 3\).*float32\(2, 5\)"):
        load_model(model_path, _net(width=5))
    other = eqx.tree_at(lambda net: net.steps, _net(), jnp.asarray(5.0))
    with pytest.raises(ModelFileError, match=r"`\.steps` .*int32\(\).*float32\(\).*config"):
        load_model(model_path, other)
    more = eqx.tree_at(
        lambda net: net.inner, _net(), {"flag": jnp.zeros(2, bool), "gru": jnp.ones(1)}
    )
    with pytest.raises(ModelFileError) as caught:
        load_model(model_path, more)
    assert "`.inner['gru']` is missing" in str(caught.value)
    assert "`.inner['empty']` is in the file only" in str(caught.value)


def test_model_is_overwritten_only_when_told(model_path):
    before = model_path.read_bytes()
    with pytest.raises(ModelFileError, match="exists already"):
        save_model(model_path, _net(fill=2.0), {})
    assert model_path.read_bytes() == before
    save_model(model_path, _net(fill=2.0), {}, overwrite=True)
    assert eqx.tree_equal(load_model(model_path, _net()), _net(fill=2.0))
    assert [entry.name for entry in model_path.parent.iterdir()] == ["model.eqx"]


def test_failed_save_leaves_the_old_file_and_no_rest(model_path, monkeypatch):
    before = model_path.read_bytes()

    def broken(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(ModelFileError, match="No space left"):
        save_model(model_path, _net(fill=2.0), {}, overwrite=True)
    assert [entry.name for entry in model_path.parent.iterdir()] == ["model.eqx"]
    assert model_path.read_bytes() == before


def test_what_cannot_be_saved_is_named(tmp_path):
    path = tmp_path / "model.eqx"
    with pytest.raises(ModelFileError, match=r"\['key'\].*random key"):
        save_model(path, {"key": jax.random.key(0)}, {})
    with pytest.raises(ModelFileError, match="only a shape"):
        save_model(path, eqx.filter_eval_shape(_net), {})
    with pytest.raises(ModelFileError, match="plain JSON"):
        save_model(path, _net(), {"config": {"lr": float("nan")}})
    with pytest.raises(ModelFileError, match="`leaves`"):
        save_model(path, _net(), {"leaves": []})
    with pytest.raises(ModelFileError, match="cannot be written"):
        save_model(tmp_path / "nowhere" / "model.eqx", _net(), {})
    assert not list(tmp_path.iterdir())


# --- statistics


def test_bootstrap_covers_the_mean_about_as_often_as_it_says():
    generator = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        low, high = bootstrap_interval(generator.normal(3.0, 2.0, 64), resamples=300, seed=trial)
        hits += low <= 3.0 <= high
    assert 178 <= hits <= 199  # 95 % of 200, give or take three standard errors and the small E


def test_bootstrap_is_a_function_of_its_seed():
    values = np.random.default_rng(1).random(50)
    assert bootstrap_interval(values) == bootstrap_interval(values)
    assert bootstrap_interval(values) != bootstrap_interval(values, seed=1)
    low, high = bootstrap_interval(values)
    wide_low, wide_high = bootstrap_interval(values, level=0.99)
    assert wide_low < low < values.mean() < high < wide_high


def test_constant_data_give_a_point_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bootstrap_interval([0.5] * 10) == (0.5, 0.5)
        assert bootstrap_interval([2.0]) == (2.0, 2.0)
        assert paired_bootstrap([1.0, 2.0], [0.0, 1.0]) == (1.0, 1.0)
        assert stratified_bootstrap(np.ones((3, 4))) == (1.0, 1.0)
        assert seed_bootstrap(np.ones((3, 4))) == (1.0, 1.0)


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [[1.0, 2.0]]])
def test_bad_scores_are_refused(values):
    with pytest.raises(ValueError, match="scores"):
        bootstrap_interval(values)


def test_bad_bootstrap_settings_are_refused():
    with pytest.raises(ValueError, match="level"):
        bootstrap_interval([1.0, 2.0], level=95.0)
    with pytest.raises(ValueError, match="resamples"):
        seed_bootstrap(np.ones((2, 2)), resamples=0)
    with pytest.raises(ValueError, match="one pair a world"):
        paired_bootstrap([1.0, 2.0], [1.0])


def test_iqm_is_the_mean_of_the_middle_half():
    assert iqm([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1000.0]) == 3.5
    assert iqm(np.array([[0.0, 1.0], [3.0, 100.0]])) == 2.0


def test_pairing_finds_a_difference_that_worlds_hide():
    generator = np.random.default_rng(2)
    worlds = generator.normal(0.0, 10.0, 100)
    a, b = worlds + 0.5, worlds + generator.normal(0.0, 0.5, 100)
    low, high = paired_bootstrap(a, b)
    assert 0 < low < 0.5 < high


def test_seed_intervals_hold_the_iqm_and_see_the_spread_between_seeds():
    generator = np.random.default_rng(3)
    scores = generator.normal(0.0, 1.0, (8, 1)) + generator.normal(0.0, 0.1, (8, 50))
    low, high = seed_bootstrap(scores, resamples=500)
    assert low < iqm(scores.mean(axis=1)) < high
    task_low, task_high = stratified_bootstrap(scores, resamples=500)
    assert task_low < iqm(scores) < task_high
    # Taken as tasks, 50 episodes of a seed look like independent evidence; they are not.
    assert high - low > 2 * (task_high - task_low)


# --- compilation cache

_CACHE_CODE = """
import sys, jax, jax.numpy as jnp
jax.jit(lambda x: x + 1)(jnp.ones(3))  # the cache may be asked for late
from purejax_merl.runtime.cache import enable_compilation_cache
print(enable_compilation_cache(*sys.argv[1:]))
print(jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones(3)))
"""


def _run_with_cache(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if "CACHE" not in k}
    return subprocess.run(
        [sys.executable, "-c", _CACHE_CODE, *args],
        capture_output=True,
        text=True,
        timeout=120,
        env=inherited | {"JAX_PLATFORMS": "cpu"} | environment,
        cwd=Path(__file__).parent.parent,
    )


def test_cache_lies_in_the_users_cache_folder(tmp_path):
    done = _run_with_cache(XDG_CACHE_HOME=str(tmp_path))
    folder = Path(done.stdout.splitlines()[0])
    assert folder.is_relative_to(tmp_path / "purejax_merl" / "xla"), done.stderr
    assert list(folder.iterdir()), "a short compilation was not kept"


def test_cache_respects_the_users_own_folder(tmp_path):
    done = _run_with_cache(JAX_COMPILATION_CACHE_DIR=str(tmp_path / "mine"))
    assert done.stdout.splitlines()[0] == str(tmp_path / "mine"), done.stderr
    assert list((tmp_path / "mine").iterdir())


def test_unwritable_cache_costs_one_line_of_warning(tmp_path):
    (tmp_path / "file").write_text("")
    for done in (
        _run_with_cache(str(tmp_path / "file" / "cache")),
        _run_with_cache(JAX_COMPILATION_CACHE_DIR=str(tmp_path / "file" / "cache")),
    ):
        assert done.returncode == 0 and done.stdout.splitlines()[0] == "None", done.stderr
        ours = [line for line in done.stderr.splitlines() if line.startswith("warning:")]
        assert len(ours) == 1 and "without a cache" in ours[0]


# --- progress and description


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


_RECORD = {
    "outer": 3,
    "mean": 0.8123,
    "train_coverage": 0.8944,
    "train_conn_05": np.float32(0.92),
    "score_coverage": 0.5,
}


def test_progress_prints_a_line_an_update_where_there_is_no_terminal():
    out = io.StringIO()
    with ProgressReporter(20, stream=out) as progress:
        progress.update(5, _RECORD)
        progress.update(15, {"mean": None})
    first, last = out.getvalue().splitlines()
    assert first.startswith("round 5/20  fitness 0.812, coverage 89.4%, connected 92.0%  ")
    assert "ETA 00:0" in first
    assert last.startswith("round 20/20  ") and "ETA" not in last


def test_progress_shows_the_judged_policy_where_nothing_else_was_rolled_out():
    out = io.StringIO()
    with ProgressReporter(2, stream=out) as progress:
        progress.update(1, {"mean": 0.3, "grad_cov": 0.0, "score_coverage": 0.41})
    assert "fitness 0.300, coverage 41.0%" in out.getvalue()
    assert "connected" not in out.getvalue()


def test_progress_draws_a_bar_on_a_terminal():
    out = _Terminal()
    with ProgressReporter(20, initial=10, stream=out) as progress:
        progress.update(10, _RECORD)
    assert "20/20" in out.getvalue() and "coverage 89.4%" in out.getvalue()


def test_the_clock_starts_when_the_reporter_is_entered():
    out = io.StringIO()
    reporter = ProgressReporter(100, stream=out)
    with pytest.raises(RuntimeError, match="entered"):
        reporter.update(1, {})
    time.sleep(0.3)  # stands for compilation
    with reporter as progress:
        progress.update(50, {})
    assert "ETA 00:00" in out.getvalue()
    speed = float(out.getvalue().split("  ")[1].split()[0])
    assert speed > 50 / 0.3


def test_summary_and_rate_are_readable():
    assert summary({"other": 1}) == ""
    assert rate(0.25) == "4.0 s/round" and rate(3.21) == "3.2 rounds/s"


def test_memory_plan_of_a_program():
    compiled = jax.jit(lambda x: x @ x).lower(jnp.ones((64, 64))).compile()
    plan = memory_plan(compiled)
    if plan:  # a backend may keep it to itself
        assert plan["arguments"] == plan["outputs"] == 64 * 64 * 4
        assert plan["planned"] >= plan["arguments"] + plan["outputs"]


def test_the_first_lines_of_a_run_in_words():
    assert device_line().startswith("device: ") and jax.__version__ in device_line()
    assert compile_line(12.34) == "compiled in 12.3 s"
    assert memory_line({}) == "memory planned: not told by this backend"
    plan = {"arguments": 10, "temporaries": 2048, "planned": 3 * 1024**2}
    assert memory_line(plan) == "memory planned: 3.0 MiB (arguments 10 B, temporaries 2.0 KiB)"
    assert human_bytes(0) == "0 B" and human_bytes(5 * 1024**4) == "5.0 TiB"
