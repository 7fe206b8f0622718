"""Bad input: exit code 2 and one message that names the field and the cure, before anything is
compiled or written."""

import dataclasses
import json

import pytest

from purejax_merl import config as configs
from purejax_merl import evaluate, train

BAD_FLAGS = [
    (["--no-such-flag", "1"], "no-such-flag"),
    (["--grid", "many"], "grid"),
    (["--es-kind", "nse"], "--es-kind nse"),
    (["--preset", "huge"], "--preset huge"),
    (["--terrain", "swamp"], "terrain"),
    (["--pop", "7"], "--pop 8"),
    (["--pop", "0"], "--pop 2"),
    (["--sigma", "nan"], "--sigma"),
    (["--sigma", "0"], "--sigma"),
    (["--es-lr", "inf"], "--es-lr"),
    (["--lr", "-1"], "--lr"),
    (["--elite-frac", "0"], "--elite-frac"),
    (["--rollouts", "3", "--minibatches", "7"], "--minibatches"),
    (["--grid", "4"], "--spawn-radius"),
    (["--grid", "257"], "--grid"),
    (["--preset", "reference", "--views", "relative"], "--views"),
    (["--n-agents", "1"], "--n-agents"),
    (["--n-agents", "200"], "--n-agents"),
    (["--n-obstacles", "9"], "--terrain open"),
    (["--terrain", "clutter", "--n-obstacles", "400"], "--n-obstacles"),
    (["--terrain", "pillars", "--pillar-size", "4"], "--pillar-spacing"),
    (["--outer", "0"], "--outer"),
    (["--chunk", "0"], "--chunk"),
    (["--eval-worlds", "0"], "--eval-worlds"),
    (["--seed", "-1"], "--seed"),
    (["--gamma", "1.5"], "--gamma"),
    (["--selector", "off"], "--arm gradient"),
    (["--arm", "gradient", "--grad-steps", "0"], "--grad-steps"),
    (["--init-from", "nowhere/model.eqx"], "nowhere/model.eqx"),
]


@pytest.mark.parametrize(("flags", "named"), BAD_FLAGS, ids=lambda x: str(x))
def test_bad_flags_are_refused(flags, named, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        train.main(flags)
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert named in printed
    assert "Traceback" not in printed
    assert not list(tmp_path.iterdir()), "nothing may be written before the input is checked"


def test_an_existing_run_directory_is_left_alone(capsys, tmp_path):
    (tmp_path / "model.eqx").write_text("precious")
    with pytest.raises(SystemExit) as stop:
        train.main(["--run-dir", str(tmp_path)])
    assert stop.value.code == 2
    assert "--run-dir" in capsys.readouterr().err
    assert (tmp_path / "model.eqx").read_text() == "precious"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x80\x04pickle"])
def test_foreign_models_are_refused(content, capsys, tmp_path):
    path = tmp_path / "model.eqx"
    path.write_bytes(content)
    for command, flags in (
        (evaluate.main, [str(path)]),
        (train.main, ["--init-from", str(path), "--run-dir", str(tmp_path / "new")]),
    ):
        with pytest.raises(SystemExit) as stop:
            command(flags)
        assert stop.value.code == 2
        assert "model.eqx" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_config_round_trips_through_json():
    config = dataclasses.replace(
        configs.preset("compact"),
        env=configs.EnvConfig(grid=24, terrain="clutter", n_obstacles=86),
        seed=7,
    )
    assert configs.RunConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_a_config_of_an_older_version_takes_the_defaults_of_new_fields():
    data = configs.preset("compact").to_dict()
    del data["es"]["reuse"]
    assert configs.RunConfig.from_dict(data).es.reuse == "off"


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda d: d.update(extra=1), "extra"),
        (lambda d: d["env"].update(grid="16"), "config.env.grid"),
        (lambda d: d["env"].update(grid=True), "config.env.grid"),
        (lambda d: d["env"].update(terrain="swamp"), "config.env.terrain"),
        (lambda d: d["es"].update(pop=3), "--pop"),
        (lambda d: d.update(ppo=None), "config.ppo"),
    ],
)
def test_an_edited_config_names_the_field(edit, named):
    data = configs.preset("compact").to_dict()
    edit(data)
    with pytest.raises(configs.ConfigError, match=named):
        configs.RunConfig.from_dict(data)


def test_every_published_flag_is_there(capsys):
    with pytest.raises(SystemExit) as stop:
        train.main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    flags = """
    grid n-agents comm-r horizon flock congestion outer grad-steps rollouts pop sigma es-lr
    es-kind seed run-dir init-from preset terrain mechanism fitness arm elite-frac weight-decay
    eval-worlds chunk"""
    missing = [name for name in flags.split() if f"--{name}" not in text]
    assert not missing
