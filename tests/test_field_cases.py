"""What went wrong for users of such packages elsewhere; the letter and number name the case."""

import timeit

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from small_policies import OBS, THREE, Recurrent, ppo_batch, small_policy

from tfpolicy import LossOutput, ModelOutput, TFPolicy
from tfpolicy.models import Model
from tfpolicy.preprocessing import flatten_observation


class Normalized(Model):
    """A network with a variable that is not trained, as normalisers have."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        get = tf.compat.v1.get_variable
        self.mean = get("mean", initializer=np.zeros(4, np.float32), trainable=False)
        self.kernel = get("kernel", initializer=np.ones((4, self.num_outputs), np.float32))

    def __call__(self, columns):
        features = flatten_observation(self.observation_space, columns["obs"]) - self.mean
        return ModelOutput(features @ self.kernel, tf.reduce_sum(features, axis=1))


class Cloning(TFPolicy):
    """The least that a policy can be: a loss."""

    def loss(self, model, dist_class, train_batch):
        """Minus the mean log-likelihood."""
        dist = dist_class(model(train_batch).dist_inputs)
        nll = -train_batch.mean(dist.log_prob(train_batch["actions"]))
        return LossOutput(nll, {"nll": nll})


@pytest.fixture(scope="module")
def policy():
    with small_policy() as built:
        yield built


@pytest.fixture(scope="module")
def loaded(policy, tmp_path_factory):
    version = policy.export_model(tmp_path_factory.mktemp("export"))
    return tf.saved_model.load(str(version))


@pytest.mark.parametrize("name", ["serving_default", "sample"])
def test_a9_a19_a21_a_signature_takes_rows_of_observations_and_no_switches(loaded, name):
    arguments = loaded.signatures[name].structured_input_signature[1]
    assert list(arguments) == ["obs"]
    assert arguments["obs"].shape.as_list() == [None, 4]


def test_a27_a30_j15_signatures_give_actions_and_what_belongs_to_them(loaded):
    outputs = loaded.signatures["serving_default"].structured_outputs
    assert {"actions", "action_logp", "action_dist_inputs", "vf_preds"} == set(outputs)


def test_b4_exporting_h5_leaves_a_file(policy, tmp_path):
    policy.export_model_to_h5(tmp_path / "weights.h5")
    assert (tmp_path / "weights.h5").stat().st_size > 0


def test_b6_single_layers_are_replaced_by_plain_arrays(policy):
    weights = policy.get_weights()
    changed = {**weights, "fc_out/kernel": weights["fc_out/kernel"] + 1}
    policy.set_weights(changed)
    np.testing.assert_array_equal(policy.get_weights()["fc_out/kernel"], changed["fc_out/kernel"])
    policy.set_weights(weights)


@pytest.mark.parametrize("num_gpus", [1, 2])
def test_c1_c8_the_plainest_policy_learns_on_towers_and_reports_alike(num_gpus):
    config = {"seed": 1, "num_gpus": num_gpus, "fake_gpus": True, "model": {"fcnet_hiddens": [4]}}
    with Cloning(OBS, THREE, config) as cloning:
        assert cloning.load_batch_into_buffer(ppo_batch(8)) == 8 // num_gpus
        result = cloning.learn_on_loaded_batch()
    assert set(result["learner_stats"]) == {"total_loss", "nll", "grad_gnorm", "lr"}


def test_c16_towers_have_no_weights_of_their_own():
    with small_policy(num_gpus=2, fake_gpus=True) as two, small_policy() as one:
        assert two.get_weights().keys() == one.get_weights().keys()
        trainable = tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES
        graphs = [policy.get_session().graph for policy in (one, two)]
        counts = [len(graph.get_collection(trainable)) for graph in graphs]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("num_gpus", [1, 2])
def test_c20_minibatches_of_a_loaded_batch_take_nothing_from_the_host(num_gpus):
    batches = [ppo_batch(8), ppo_batch(8)]
    stats = []
    for batch in batches:
        with small_policy(num_gpus=num_gpus, fake_gpus=True, sgd_minibatch_size=4) as towers:
            towers.load_batch_into_buffer(batch)
            if batch is batches[1]:
                for column in batch.values():
                    column[...] = 0
            stats.append(towers.learn_on_loaded_batch(offset=2)["learner_stats"])
    assert stats[0] == stats[1]


def test_d9_d11_states_reach_the_model_and_the_loss_of_a_custom_network():
    with small_policy(model={"fcnet_hiddens": [4], "custom_model": Recurrent}) as recurrent:
        assert {"state_in_0"} <= set(recurrent.view_requirements)
        actions, states, _ = recurrent.compute_actions(np.zeros((3, 4), np.float32))
    assert len(actions) == 3 and states[0].shape == (3, 4)


def test_e19_parts_of_different_dtypes_join_in_one_network():
    space = gym.spaces.Dict(id=gym.spaces.Discrete(3), pose=gym.spaces.Box(-1, 1, (2,), np.float64))
    with small_policy(obs_space=space) as mixed:
        action, _, _ = mixed.compute_single_action(space.sample())
    assert THREE.contains(action)


def test_f20_acting_step_by_step_prepares_nothing_anew_and_costs_no_more_than_a_session_run(policy):
    obs, actor, session = np.zeros(4, np.float32), policy._actor, policy.get_session()
    feeds = dict(zip(actor.feeds, [obs[None]], strict=True))

    def fastest(act):
        act()
        operations = session.graph.version
        times = [timeit.timeit(act, number=1) for _ in range(300)]
        assert session.graph.version == operations
        return min(times)

    single = fastest(lambda: policy.compute_single_action(obs, explore=False))
    run = fastest(lambda: session.run(actor.greedy_fetches, feeds))
    # About a fifth of it, where nobody else is computing.
    assert single < run


def test_g9_variables_that_are_not_trained_are_part_of_weights_and_state():
    # Several compiled towers refuse such a model, and the suite may be run so.
    with small_policy(model={"custom_model": Normalized}, jit_compile=False) as normalized:
        weights = normalized.get_weights()
        assert set(weights) == {"mean", "kernel"}
        normalized.set_weights({**weights, "mean": np.full(4, 0.5, np.float32)})
        state = normalized.get_state()
        assert state["weights"]["mean"].tolist() == [0.5] * 4
        assert normalized.trainable_names == ("kernel",)


def test_g3_g6_g22_a_state_of_another_version_or_of_other_names_is_refused(policy):
    state = policy.get_state()
    with pytest.raises(ValueError, match="version"):
        policy.set_state({**state, "format_version": 99})
    renamed = {f"old/{name}": value for name, value in state["weights"].items()}
    with pytest.raises(ValueError, match=r"missing: fc_1/kernel.*unexpected: old/fc_1/kernel"):
        policy.set_state({**state, "weights": renamed})


def test_f19_a_second_session_may_not_take_all_memory_of_a_gpu(policy):
    assert policy.get_session()._config.gpu_options.allow_growth
