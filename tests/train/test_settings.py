import pytest

from tfpolicy.train.settings import read_config, with_settings


def test_yaml_is_read_as_yaml_1_2(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("lr: 1e-4\nmodel:\n  fcnet_hiddens: [32, 32]\nenv_config: {mode: no}\n")
    assert read_config(path) == {
        "lr": 0.0001,
        "model": {"fcnet_hiddens": [32, 32]},
        "env_config": {"mode": "no"},
    }


def test_json_is_read_as_json(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"lr": 1e-4, "grad_clip": null}')
    assert read_config(path) == {"lr": 0.0001, "grad_clip": None}


def test_an_empty_file_sets_nothing(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("# nothing yet\n")
    assert read_config(path) == {}


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("a.yaml", "lr: [1,", r"a.yaml` cannot be parsed: .*line 1"),
        ("a.json", "{lr: 1}", r"a.json` cannot be parsed: .*line 1"),
        ("a.yaml", "- lr", "must hold a mapping of settings, got list"),
    ],
)
def test_a_bad_file_is_named_in_one_line(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_config(path)
    assert "\n" not in str(caught.value)


def test_settings_are_yaml_under_dotted_keys():
    config = {"lr": 1.0, "model": {"fcnet_activation": "relu"}}
    settings = ["lr=1e-4", "model.fcnet_hiddens=[32,32]", "a.b.c=true", "lr=2e-4", "note=x=y"]
    assert with_settings(config, settings) == {
        "lr": 0.0002,
        "model": {"fcnet_activation": "relu", "fcnet_hiddens": [32, 32]},
        "a": {"b": {"c": True}},
        "note": "x=y",
    }
    assert config == {"lr": 1.0, "model": {"fcnet_activation": "relu"}}


@pytest.mark.parametrize(
    "setting, message",
    [
        ("lr", "must look like key=value"),
        ("=1", "must look like key=value"),
        ("model.=1", "must look like key=value"),
        ("lr.deep=1", "`lr` is 1.0 and has no keys"),
        ("model.fcnet_hiddens=[32", "cannot be parsed"),
    ],
)
def test_a_bad_setting_is_quoted(setting, message):
    with pytest.raises(ValueError, match=message):
        with_settings({"lr": 1.0}, [setting])
