import math

import counting  # noqa: F401  (registers the environments)
import numpy as np
import pytest

from tfpolicy.callbacks import DefaultCallbacks
from tfpolicy.policies import policy_class
from tfpolicy.train.environments import make_vector_env
from tfpolicy.train.loop import Trainer, read_metadata

TINY = {
    "train_batch_size": 48,
    "sgd_minibatch_size": 16,
    "num_sgd_iter": 2,
    "model": {"fcnet_hiddens": [4]},
    "seed": 1,
    "intra_op_parallelism_threads": 1,
    "inter_op_parallelism_threads": 1,
}


def _trainer(
    env="CartPole-v1", num_envs=3, algo="ppo", seed=5, mode="sync", env_config=None, **config
):
    env = make_vector_env(env, num_envs, mode, env_config)
    spaces = env.single_observation_space, env.single_action_space
    return Trainer(policy_class(algo)(*spaces, {**TINY, **config}), env, seed)


@pytest.fixture(name="trainer")
def _one_trainer():
    trainer = _trainer()
    yield trainer
    trainer.close()


def _state(trainer):
    """Everything of a policy's state as one flat list of arrays."""

    def leaves(value):
        if isinstance(value, dict):
            return [leaf for key in sorted(value) for leaf in leaves(value[key])]
        if isinstance(value, (list, tuple)):
            return [leaf for item in value for leaf in leaves(item)]
        return [np.asarray(value)]

    return leaves(trainer.policy.get_state())


def _assert_same_state(left, right):
    for a, b in zip(_state(left), _state(right), strict=True):
        np.testing.assert_array_equal(a, b)


def _timeless(result):
    timed = {"env_steps_per_second", "sample_time_s", "learn_time_s", "time_total_s"}
    return {name: value for name, value in result.items() if name not in timed}


def test_the_result_tells_how_it_went(trainer):
    before = trainer.policy.get_weights()
    first, second = trainer.train_iteration(), trainer.train_iteration()
    assert (first["training_iteration"], second["training_iteration"]) == (1, 2)
    assert (first["timesteps_total"], second["timesteps_total"]) == (48, 96)
    assert trainer.policy.global_timestep == 96
    assert second["episodes_total"] == first["episodes_this_iter"] + second["episodes_this_iter"]
    assert second["episodes_total"] > 0
    assert second["episode_return_min"] <= second["episode_return_mean"]
    assert second["episode_return_mean"] <= second["episode_return_max"]
    # A CartPole episode gives 1 a step.
    assert second["episode_len_mean"] == second["episode_return_mean"]
    assert second["env_steps_per_second"] > 0
    assert second["time_total_s"] > first["time_total_s"] > 0
    assert {"total_loss", "policy_loss", "vf_loss"} <= set(first["learner_stats"])
    assert first["num_rows"] == 48 and first["num_rows_dropped"] == 0
    after = trainer.policy.get_weights()
    assert all(not np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("algo", ["pg", "a2c"])
def test_one_step_algorithms_take_the_same_path(algo):
    trainer = _trainer(algo=algo, sgd_minibatch_size=None, num_sgd_iter=1)
    result = trainer.train_iteration()
    assert result["timesteps_total"] == 48
    assert all(map(math.isfinite, result["learner_stats"].values()))
    trainer.close()


@pytest.mark.parametrize(
    "fragment, steps, surplus",
    [(None, [16], 0), (5, [5, 5, 5, 1], 0), (16, [16], 0), (7, [7, 7, 2], 0)],
)
def test_a_train_batch_is_exactly_as_large_as_asked(fragment, steps, surplus):
    trainer = _trainer(rollout_fragment_length=fragment)
    asked = []
    sample = trainer._rollout.sample
    trainer._rollout.sample = lambda n: asked.append(n) or sample(n)
    assert trainer.train_iteration()["num_rows_dropped"] == surplus
    assert asked == steps
    trainer.close()


def test_rows_beyond_the_train_batch_are_counted():
    trainer = _trainer(num_envs=5)
    result = trainer.train_iteration()
    # 48 rows of 5 environments take 10 steps.
    assert (result["num_rows"], result["num_rows_dropped"]) == (48, 2)
    assert result["timesteps_total"] == 50
    trainer.close()


def test_resets_that_cost_a_step_do_not_make_the_batch_smaller():
    trainer = _trainer("Counting-v0", mode="vector_entry_point")
    loaded = []
    load = trainer.policy.load_batch_into_buffer
    trainer.policy.load_batch_into_buffer = lambda batch: loaded.append(batch) or load(batch)
    for _ in range(3):
        result = trainer.train_iteration()
    assert [batch.count for batch in loaded] == [48] * 3
    assert result["timesteps_total"] >= 144
    trainer.close()


class Diary(DefaultCallbacks):
    def on_episode_end(self, *, episode, env_index, **kwargs):
        self.ended = vars(self).get("ended", 0) + 1

    def on_train_result(self, *, policy, result, **kwargs):
        result["custom_metrics"]["ended"] = self.ended


def test_callbacks_see_episodes_and_results():
    trainer = _trainer(callbacks=Diary)
    result = trainer.train_iteration()
    assert result["custom_metrics"] == {"ended": result["episodes_this_iter"]}
    trainer.close()


def test_statistics_are_nan_before_the_first_episode_has_ended():
    trainer = _trainer("Pendulum-v1")
    result = trainer.train_iteration()
    assert result["episodes_total"] == 0
    assert math.isnan(result["episode_return_mean"]) and math.isnan(result["episode_len_mean"])
    trainer.close()


def test_the_same_seeds_train_the_same_policy():
    left, right, other = _trainer(), _trainer(), _trainer(seed=6)
    results = [[_timeless(t.train_iteration()) for _ in range(2)] for t in (left, right, other)]
    assert results[0] == results[1] != results[2]
    _assert_same_state(left, right)
    for trainer in (left, right, other):
        trainer.close()


@pytest.mark.parametrize(
    "env, mode", [("CartPole-v1", "sync"), ("CartPole-v1", "async"), ("Pendulum-v1", "sync")]
)
def test_a_restored_trainer_goes_on_bit_for_bit(tmp_path, env, mode):
    going = _trainer(env, mode=mode)
    for _ in range(2):
        going.train_iteration()
    going.save(tmp_path / "checkpoint", {"note": "two iterations"})
    resumed = _trainer(env, mode=mode)
    resumed.train_iteration()
    assert resumed.restore(tmp_path / "checkpoint")
    assert read_metadata(tmp_path / "checkpoint") == {"note": "two iterations"}
    for _ in range(3):
        assert str(_timeless(going.train_iteration())) == str(_timeless(resumed.train_iteration()))
    _assert_same_state(going, resumed)
    for trainer in (going, resumed):
        trainer.close()


def test_where_environments_start_afresh_training_goes_on_all_the_same(tmp_path):
    trainer = _trainer("Counting-v0", mode="vector_entry_point")
    trainer.train_iteration()
    trainer.save(tmp_path / "checkpoint")
    with pytest.warns(UserWarning, match="Environments start afresh"):
        assert not trainer.restore(tmp_path / "checkpoint")
    assert trainer.train_iteration()["training_iteration"] == 2
    trainer.close()


def test_a_checkpoint_is_never_overwritten(tmp_path, trainer):
    trainer.save(tmp_path / "checkpoint")
    with pytest.raises(FileExistsError):
        trainer.save(tmp_path / "checkpoint")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize(
    "options, message", [({"seed": 6}, "seed=5, got 6"), ({"num_envs": 2}, "num_envs=3, got 2")]
)
def test_a_checkpoint_of_another_run_is_refused_and_nothing_changes(
    tmp_path, trainer, options, message
):
    trainer.save(tmp_path / "checkpoint")
    other = _trainer(**options)
    before = _state(other)
    with pytest.raises(ValueError, match=message):
        other.restore(tmp_path / "checkpoint")
    for a, b in zip(before, _state(other), strict=True):
        np.testing.assert_array_equal(a, b)
    other.close()


def test_a_missing_checkpoint_is_named(tmp_path, trainer):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        trainer.restore(tmp_path / "nowhere")


def test_dict_observations_and_box_actions_are_trained_on():
    nested = _trainer("Nested-v0")
    assert all(map(math.isfinite, nested.train_iteration()["learner_stats"].values()))
    nested.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_assigned_weights_act_in_every_environment_at_once(mode):  # g21
    trainer = _trainer(env="Counting-v0", mode=mode, algo="pg")
    try:
        weights = trainer.policy.get_weights()
        for action in (1, 3):
            certain = {name: np.zeros_like(value) for name, value in weights.items()}
            certain["fc_out/bias"][action] = 100.0
            trainer.policy.set_weights(certain)
            batch, _ = trainer._sample_train_batch()
            assert set(batch["actions"]) == {action}
    finally:
        trainer.close()
