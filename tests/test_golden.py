"""What earlier versions of this package wrote still loads and acts alike.

The artifacts in `savedmodels/golden` are never rewritten here; their script is for people.
"""

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf

import tfpolicy
from tfpolicy import PPOPolicy, TFPolicy, load_policy
from tfpolicy.export.saved_model import METADATA_FILE
from tfpolicy.verification import verify

FOLDER = Path(tfpolicy.__file__).parents[1] / "savedmodels" / "golden"
PLACES = {
    "saved_model": FOLDER / "policy",
    "h5": FOLDER / "policy.h5",
    "onnx": FOLDER / "policy.onnx",
    "checkpoint": FOLDER / "checkpoint",
}
TOLERANCE = 1e-6
WEIGHTS = {
    "fc_1/kernel", "fc_1/bias", "fc_value_1/kernel", "fc_value_1/bias",
    "lstm/lstm_cell/kernel", "lstm/lstm_cell/recurrent_kernel", "lstm/lstm_cell/bias",
    "lstm_value/lstm_cell/kernel", "lstm_value/lstm_cell/recurrent_kernel",
    "lstm_value/lstm_cell/bias", "logits/kernel", "logits/bias", "values/kernel", "values/bias",
}  # fmt: skip


@pytest.fixture(scope="module")
def played():
    """Observations and what was done on them, [T, B, ...] by name."""
    with np.load(FOLDER / "played.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def description():
    return json.loads((FOLDER / "policy" / "1" / METADATA_FILE).read_text())


def assert_plays(act, states, played):
    """Plays the recorded steps with a function of observations and states."""
    for step in range(len(played["vf_preds"])):
        obs = {k.removeprefix("obs_"): v[step] for k, v in played.items() if k.startswith("obs_")}
        outputs, states = act(obs, states)
        outputs |= {f"state_out_{index}": state for index, state in enumerate(states)}
        recorded = {name: array[step] for name, array in played.items() if name[:4] != "obs_"}
        assert recorded.keys() <= outputs.keys()
        for name, value in recorded.items():
            np.testing.assert_allclose(
                outputs[name], value, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name
            )


def batched(policy, rows):
    return [np.repeat(state[None], rows, axis=0) for state in policy.get_initial_state()]


@pytest.mark.parametrize("kind", ["saved_model", "checkpoint"])
def test_what_was_written_acts_as_it_did(played, kind):
    with load_policy(PLACES[kind]) as served:

        def act(obs, states):
            actions, states, extras = served.compute_actions(obs, states)
            return {**{f"actions_{k}": v for k, v in actions.items()}, **extras}, states

        assert_plays(act, batched(served, 4), played)


def act_with(policy):
    def act(obs, states):
        _, states, extras = policy.compute_actions(obs, states, explore=False)
        return extras, states

    return act


def without_actions(played):
    """A policy that learns gives its own actions, not those of the environment."""
    return {name: array for name, array in played.items() if not name.startswith("actions_")}


def test_the_checkpoint_goes_on_learning(played):  # g3, g4
    with TFPolicy.from_checkpoint(PLACES["checkpoint"]) as policy:
        assert isinstance(policy, PPOPolicy)
        assert set(policy.get_weights()) == WEIGHTS
        assert policy.global_timestep == 8
        assert_plays(act_with(policy), batched(policy, 4), without_actions(played))
        slots = policy.get_state()["optimizer_variables"]
        assert any(np.any(slot) for name, slot in slots.items() if name.endswith("Adam_1"))
        obs = {k: np.concatenate([played[f"obs_{k}"][0]] * 2) for k in ("image", "speed", "gear")}
        actions, states, extras = policy.compute_actions(obs)
        batch = {
            "obs": obs, "actions": actions, "seq_lens": np.int32([4, 4]), **extras,
            "advantages": np.ones(8, np.float32), "value_targets": np.ones(8, np.float32),
            **{f"state_in_{index}": state for index, state in enumerate(states)},
        }  # fmt: skip
        before = policy.get_weights()
        policy.learn_on_batch(batch)
        assert any(np.any(value != before[name]) for name, value in policy.get_weights().items())


def test_the_weights_are_imported(played, description):
    spaces = [
        tfpolicy.spaces.space_from_json(description[f"{side}_space"])
        for side in ("observation", "action")
    ]
    assert isinstance(spaces[0], gym.spaces.Dict)
    with PPOPolicy(*spaces, description["config"]) as policy:
        policy.import_model_from_h5(PLACES["h5"])
        assert_plays(act_with(policy), batched(policy, 4), without_actions(played))


def test_the_onnx_file_runs(played):
    onnxruntime = pytest.importorskip("onnxruntime")
    runtime = onnxruntime.InferenceSession(PLACES["onnx"])
    names = [output.name for output in runtime.get_outputs()]

    def act(obs, states):
        given = {f"obs_{name}": column for name, column in obs.items()}
        given |= {f"state_in_{index}": state for index, state in enumerate(states)}
        outputs = dict(zip(names, runtime.run(None, given), strict=True))
        return outputs, [outputs[f"state_out_{index}"] for index in range(len(states))]

    assert_plays(act, [np.zeros((4, 3), np.float32)] * 4, played)


def test_tensorflow_alone_loads_the_saved_model(played):
    act = tf.saved_model.load(str(PLACES["saved_model"] / "1")).signatures["serving_default"]
    step = {k: tf.constant(v[0]) for k, v in played.items() if k.startswith("obs_")}
    states = {f"state_in_{index}": tf.zeros([4, 3]) for index in range(4)}
    found = act(**step, **states)
    np.testing.assert_array_equal(found["actions_go"], played["actions_go"][0])
    np.testing.assert_allclose(found["actions_where"], played["actions_where"][0], atol=TOLERANCE)


@pytest.mark.parametrize("kind", PLACES)
def test_what_was_recorded_in_them_is_still_so(kind):
    if kind == "onnx":
        pytest.importorskip("onnxruntime")
    lines = verify(PLACES[kind])
    assert lines and all(line.same for line in lines)


def test_they_are_small():
    sizes = [path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(sizes) < 300_000
