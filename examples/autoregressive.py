"""Auto-regressive actions: the second part of an action depends on the first one.

Independent leaves cannot say "whatever I do first, then the same again". A distribution over the
whole of the nested space can. It holds no variables: for every first choice the model puts out the
logits of the second one, so that sampling, log-probabilities, entropy and KL are exact, and the
distribution that acted can be rebuilt from the stored `action_dist_inputs` alone.

Run it to compare both in a game that punishes a predictable first choice:

    python examples/autoregressive.py
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import SyncVectorEnv

from tfpolicy.distributions import Categorical, Family, split_seed
from tfpolicy.policies.ppo import PPOPolicy
from tfpolicy.train.loop import Trainer


class FirstThenSecond(Family[Dict]):
    """π(a, b) = π(a) π(b | a) over Dict(first=Discrete(n), second=Discrete(m)).

    Inputs are the n logits of a, and then for each value of a the m logits of b: [B, n + n·m].
    """

    def __init__(self, inputs: tf.Tensor, space: Dict) -> None:
        super().__init__(inputs, space)
        n, m = _counts(space)
        first_logits, second_logits = tf.split(self.inputs, [n, n * m], axis=1)
        self._first = Categorical(first_logits, space["first"])
        self._table = tf.reshape(second_logits, [-1, n, m])

    @classmethod
    def check_space(cls, space: gym.Space) -> None:
        """Accepts a Dict of two Discrete actions, `first` and `second`."""
        is_pair = isinstance(space, Dict) and set(space.spaces) == {"first", "second"}
        if not is_pair or not all(isinstance(leaf, Discrete) for leaf in space.values()):
            raise ValueError(f"{cls.__name__} expects Dict(first=Discrete, second=Discrete).")

    @staticmethod
    def num_inputs(space: Dict) -> int:
        """Logits of the first choice, and of the second for each first."""
        n, m = _counts(space)
        return n + n * m

    def sample(self, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """The first choice, then the second one given the first."""
        seeds = split_seed(seed, 2)
        first = self._first.sample(seeds[0])
        return {"first": first, "second": self._second_given(first).sample(seeds[1])}

    def mode(self) -> dict[str, tf.Tensor]:
        """The most likely pair, which need not begin with the most likely first choice."""
        n, m = _counts(self.space)
        log_first = tf.nn.log_softmax(self._first.logits)
        log_pairs = log_first[:, :, None] + tf.nn.log_softmax(self._table)
        best = tf.argmax(tf.reshape(log_pairs, [-1, n * m]), axis=1)
        first, second = self.space["first"], self.space["second"]
        return {"first": best // m + first.start, "second": best % m + second.start}

    def log_prob(self, actions: Any) -> tf.Tensor:
        """Log π(a) + log π(b | a)."""
        first, second = actions["first"], actions["second"]
        return self._first.log_prob(first) + self._second_given(first).log_prob(second)

    def entropy(self) -> tf.Tensor:
        """H(a) + Σ_a π(a) H(b | a)."""
        return self._first.entropy() + self._mean(self._each_second().entropy())

    def _kl(self, other: FirstThenSecond) -> tf.Tensor:
        # KL(a) + Σ_a π(a) KL(b | a)
        return self._first.kl(other._first) + self._mean(
            self._each_second().kl(other._each_second())
        )

    def _second_given(self, first: tf.Tensor) -> Categorical:
        rows = tf.cast(first, tf.int64) - int(self.space["first"].start)
        return Categorical(tf.gather(self._table, rows, batch_dims=1), self.space["second"])

    def _each_second(self) -> Categorical:
        """π(b | a) for all a, one row each: [B·n, m]."""
        _, m = _counts(self.space)
        return Categorical(tf.reshape(self._table, [-1, m]), self.space["second"])

    def _mean(self, values: tf.Tensor) -> tf.Tensor:
        """Σ_a π(a) v(a) [B], of values [B·n]."""
        n, _ = _counts(self.space)
        probabilities = tf.nn.softmax(self._first.logits)
        return tf.reduce_sum(probabilities * tf.reshape(values, [-1, n]), axis=1)


class TwiceTheSame(gym.Env):
    """Pays for choosing the same twice, unless an opponent foresaw the first choice.

    The opponent expects what came first most often of late. So the first choice has to be random,
    and the second one has to follow it: independent choices earn at most about 1/4 per step, others
    up to 2/3. An episode has 10 steps.
    """

    observation_space = Box(-1, 1, (1,))
    action_space = Dict(first=Discrete(3), second=Discrete(3))

    def __init__(self) -> None:
        self._counts = np.zeros(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        """Starts an episode; the opponent remembers the ones before."""
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: dict[str, Any]) -> tuple[Any, float, bool, bool, dict]:
        """Plays one round."""
        foreseen = int(np.argmax(self._counts + 1e-3 * self.np_random.random(3)))
        self._counts = 0.9 * self._counts + np.eye(3)[action["first"]]
        paid = action["first"] == action["second"] and action["first"] != foreseen
        self._steps += 1
        return np.zeros(1, np.float32), float(paid), self._steps == 10, False, {}


def train(custom_action_dist: type[Family] | None, iterations: int, seed: int = 0) -> list[float]:
    """Trains PPO and returns the mean reward per step after each iteration."""
    config = {
        "seed": seed,
        "gamma": 0.0,
        "lr": 3e-3,
        "train_batch_size": 640,
        "sgd_minibatch_size": 160,
        "num_sgd_iter": 4,
        "entropy_coeff": 0.02,
        "model": {"fcnet_hiddens": [16], "custom_action_dist": custom_action_dist},
    }
    env = SyncVectorEnv([TwiceTheSame] * 4, autoreset_mode="Disabled")
    policy = PPOPolicy(TwiceTheSame.observation_space, TwiceTheSame.action_space, config)
    trainer = Trainer(policy, env, seed)
    try:
        return [trainer.train_iteration()["episode_return_mean"] / 10 for _ in range(iterations)]
    finally:
        trainer.close()


def main() -> None:
    """Prints how both kinds of actions do."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=60)
    iterations = parser.parse_args().iterations
    for name, custom in (("independent", None), ("auto-regressive", FirstThenSecond)):
        rewards = train(custom, iterations)
        print(f"{name:16} first {rewards[0]:.2f}, last {rewards[-1]:.2f} per step")


def _counts(space: Dict) -> tuple[int, int]:
    return int(space["first"].n), int(space["second"].n)


if __name__ == "__main__":
    main()
