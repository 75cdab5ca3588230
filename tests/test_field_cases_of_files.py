"""What went wrong elsewhere when policies were written and read; the comment names the case."""

import inspect

import numpy as np
import pytest
import tensorflow as tf
from small_policies import OBS, ppo_batch, small_policy

from tfpolicy import ModelOutput, build_tf_policy, load_policy, policy_class
from tfpolicy.models import Model
from tfpolicy.preprocessing import flatten_observation
from tfpolicy.tf_policy import TFPolicy


class WithTarget(Model):
    """A network and a copy that follows it, which acting does not read."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        get = tf.compat.v1.get_variable
        size = (4, self.num_outputs)
        self.kernel = get("kernel", initializer=np.ones(size, np.float32))
        self.target = get("target", initializer=np.zeros(size, np.float32), trainable=False)

    def __call__(self, columns):
        features = flatten_observation(self.observation_space, columns["obs"])
        return ModelOutput(features @ self.kernel, None)


@pytest.fixture(scope="module")
def with_target():
    with small_policy("pg", model={"custom_model": WithTarget}) as policy:
        weights = policy.get_weights()
        policy.set_weights({**weights, "target": np.full_like(weights["target"], 0.25)})
        yield policy


def test_a_target_network_is_in_a_checkpoint(with_target, tmp_path):  # g12
    with_target.save(tmp_path / "saved")
    config = {"model": {"custom_model": WithTarget}}
    with TFPolicy.from_checkpoint(tmp_path / "saved", config) as again:
        np.testing.assert_array_equal(again.get_weights()["target"], 0.25)


def test_a_target_network_is_in_a_file_of_weights(with_target, tmp_path):  # b13, g12
    with_target.export_model_to_h5(tmp_path / "weights.h5")
    with small_policy("pg", model={"custom_model": WithTarget}) as again:
        report = again.import_model_from_h5(tmp_path / "weights.h5")
        assert set(report.loaded) == {"kernel", "target"}
        np.testing.assert_array_equal(again.get_weights()["target"], 0.25)


def own_loss(policy, model, dist_class, train_batch):
    return tf.constant(0.0)


@pytest.mark.parametrize("algo", ["pg", "a2c", "ppo", "built"])
def test_all_policies_are_written_with_the_same_arguments(algo):  # a6, h9
    cls = policy_class(algo) if algo != "built" else build_tf_policy("Own", loss_fn=own_loss)
    for method in ("export_model", "export_model_to_h5", "import_model_from_h5", "save", "restore"):
        assert inspect.signature(getattr(cls, method)) == inspect.signature(
            getattr(TFPolicy, method)
        )


def test_a_checkpoint_alone_is_a_model_that_acts(tmp_path):  # g24
    obs = ppo_batch(5)["obs"]
    with small_policy() as policy:
        policy.save(tmp_path / "saved")
        expected = policy.compute_actions(obs, explore=False)[0]
    with load_policy(tmp_path / "saved") as served:
        np.testing.assert_array_equal(served.compute_actions(obs)[0], expected)
        assert served.observation_space == OBS


def test_names_of_weights_do_not_depend_on_what_was_built_before(tmp_path):  # b10, g4
    with small_policy("pg") as first:
        first.save(tmp_path / "first")
        names = list(first.get_weights())
    for algo in ("ppo", "pg"):
        with small_policy(algo) as policy:
            assert list(policy.get_weights()) == names
    with small_policy("pg") as third:
        third.restore(tmp_path / "first")
