"""What looks back is evaluated as it was trained: a policy, and what one left behind."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf

from tfpolicy import load_policy
from tfpolicy.models import Model, ModelOutput
from tfpolicy.policies import policy_class
from tfpolicy.spaces import unsquash_action
from tfpolicy.train.environments import Environments, make_vector_env
from tfpolicy.train.evaluation import evaluate
from tfpolicy.train.rollout import Rollout
from tfpolicy.view_requirement import History, ViewRequirement

EPISODES = 3


class Drifting(gym.Env):
    """Eight steps; where one is follows from all actions so far, and so does the return."""

    observation_space = gym.spaces.Box(-9, 9, (2,))
    # Its centre is not 0, and one dimension is half-infinite.
    action_space = gym.spaces.Dict(
        push=gym.spaces.Box(np.float32([1, 0.5]), np.float32([3, np.inf])),
        way=gym.spaces.Discrete(2, start=1),
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self._steps = 0
        return self._place.copy(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        assert type(action["way"]) is np.int64
        self._steps += 1
        change = np.tanh(action["push"]) * (-1) ** action["way"]
        self._place = np.float32(0.8 * self._place + 0.3 * change)
        return self._place.copy(), float(self._place.sum()), False, self._steps == 8, {}


gym.register("Drifting-v0", entry_point=Drifting)


class Reading(Model):
    """A linear map of whatever it is told to read."""

    views = {
        "frames": ViewRequirement("obs", shift="-2:0"),
        "acts": ViewRequirement("actions", shift="-3:-1:2"),
        "got": ViewRequirement("rewards", shift=[-2, -1]),
        "said": ViewRequirement("vf_preds", gym.spaces.Box(-9, 9, ()), -1),
    }
    read = (*views, "frames_valid", "acts_valid", "prev_actions", "prev_rewards", "obs")

    def __init__(self, *arguments):
        super().__init__(*arguments)
        values = np.random.default_rng(0).normal(0, 0.4, (60, self.num_outputs + 1))
        self.kernel = tf.compat.v1.get_variable(
            "kernel", initializer=values.astype(np.float32), use_resource=True
        )

    def view_requirements(self):
        return self.views

    def __call__(self, columns):
        leaves = [tf.cast(leaf, tf.float32) for leaf in tf.nest.flatten(self._read(columns))]
        rows = [tf.reshape(leaf, [-1, int(np.prod(leaf.shape[1:]))]) for leaf in leaves]
        features = tf.tanh(tf.concat(rows, axis=1))
        outputs = features @ self.kernel[: features.shape[1]]
        return ModelOutput(outputs[:, :-1], outputs[:, -1])

    def _read(self, columns):
        read = {name: columns[name] for name in self.read}
        for name in ("acts", "prev_actions"):
            # As the built-in networks do: the environment has seen no other.
            push = tf.clip_by_value(read[name]["push"], [-1.0, 0.5], [1.0, np.inf])
            read[name] = {**read[name], "push": push}
        return read


MODELS = {
    "views and masks": {"custom_model": Reading},
    "lstm": {
        "use_lstm": True,
        "lstm_cell_size": 4,
        "lstm_use_prev_action": True,
        "lstm_use_prev_reward": True,
    },
    "attention": {
        "use_attention": True,
        "attention_dim": 4,
        "attention_head_dim": 4,
        "attention_memory_inference": 3,
        "attention_use_n_prev_actions": 2,
        "attention_use_n_prev_rewards": 3,
    },
}


@pytest.fixture(scope="module", params=MODELS)
def trained(request):
    """A policy whose actions depend on what was done before, and how to load it."""
    model = {"fcnet_hiddens": [8], **MODELS[request.param]}
    config = {"seed": 3, "model": model, "train_batch_size": 32, "sgd_minibatch_size": 32}
    with policy_class("ppo")(Drifting.observation_space, Drifting.action_space, config) as policy:
        rng = np.random.default_rng(7)
        weights = policy.get_weights().items()
        policy.set_weights({name: w + rng.normal(0, 0.5, w.shape) for name, w in weights})
        yield policy, {"model": model} if "custom_model" in model else None


def test_a_policy_a_saved_model_and_a_checkpoint_play_the_same_episodes(trained, tmp_path):
    policy, config = trained
    env = Drifting()
    expected = evaluate(policy, env, EPISODES)
    assert len(set(expected.returns)) == EPISODES
    policy.export_model(tmp_path / "saved")
    policy.save(tmp_path / "checkpoint")
    for path, given in ((tmp_path / "saved", None), (tmp_path / "checkpoint", config)):
        with load_policy(path, given) as served:
            found = evaluate(served, env, EPISODES)
        np.testing.assert_allclose(found.returns, expected.returns, atol=1e-4)


def test_evaluation_acts_as_sampling_does(trained):
    policy, _ = trained
    env = make_vector_env("Drifting-v0", 1)
    rollout = Rollout(policy, Environments(env, seed=0))
    before = policy.get_state()
    sampled = rollout.sample(8 * EPISODES)["rewards"].reshape(EPISODES, 8).sum(axis=1)
    env.close()
    policy.set_state(before)
    # The same episodes and the same draws.
    found = evaluate(policy, Drifting(), EPISODES, explore=True, seed=0)
    np.testing.assert_allclose(found.returns, sampled, atol=1e-4)


def play(acting, to_env, blanks=None):
    """One episode as somebody would play it who has a `History`."""
    env = Drifting()
    history = History(acting.view_requirements, 1, blanks)
    states = {f"state_in_{i}": s[None] for i, s in enumerate(acting.get_initial_state())}
    obs, _ = env.reset(seed=11)
    total, ended = 0.0, False
    while not ended:
        history.append({"obs": obs[None]})
        actions, after, extras = acting.compute_actions_from_input_dict(
            {**history.views(), **states}, explore=False
        )
        states = dict(zip(states, after, strict=True))
        action = {name: column[0] for name, column in actions.items()}
        obs, reward, _, ended, _ = env.step(to_env(action))
        history.append({"actions": actions, "rewards": [reward], **extras})
        total += reward
    return total


def test_a_history_of_ones_own_gives_what_evaluation_gives(trained, tmp_path):
    policy, _ = trained

    class Fixed(Drifting):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=11)

    expected = pytest.approx(evaluate(policy, Fixed(), 1).returns[0], abs=1e-4)
    assert play(policy, lambda action: unsquash_action(action, Drifting.action_space)) == expected
    with load_policy(policy.export_model(tmp_path)) as served:
        assert play(served, lambda action: action, served.blanks) == expected
        with pytest.raises(KeyError, match="Acting needs the column .* kept by .*History"):
            served.compute_actions(np.zeros((1, 2), np.float32))
        with pytest.raises(KeyError, match="no column 'frame'"):
            served.compute_actions_from_input_dict({"obs": np.zeros((1, 2)), "frame": 1})
