"""Networks with a memory learn what those without cannot."""

import gymnasium as gym
import pytest

from tfpolicy.train.run import RunSpec

LENGTH, DELAY, SYMBOLS = 20, 2, 2
STATEFUL = {"fcnet_hiddens": [32], "max_seq_len": 10, "lstm_cell_size": 32}


class Echo(gym.Env):
    """Pays 1 for each step at which the action is the symbol that was shown two steps ago."""

    observation_space = gym.spaces.Discrete(SYMBOLS)
    action_space = gym.spaces.Discrete(SYMBOLS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.symbols = self.np_random.integers(SYMBOLS, size=LENGTH + 1)
        self.t = 0
        return self.symbols[0], {}

    def step(self, action):
        asked = self.t - DELAY
        reward = float(asked >= 0 and action == self.symbols[asked])
        self.t += 1
        return self.symbols[self.t], reward, self.t == LENGTH, False, {}


gym.register("Echo-v0", Echo)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model, solves",
    [
        ({**STATEFUL, "use_lstm": True}, True),
        ({**STATEFUL, "use_gru": True, "burn_in": 2}, True),
        (
            {
                **STATEFUL,
                "use_attention": True,
                "attention_dim": 16,
                "attention_memory_inference": 5,
                "attention_init_gru_gate_bias": 0.0,
            },
            True,
        ),
        ({"fcnet_hiddens": [32]}, False),
    ],
    ids=["lstm", "gru with burn-in", "attention", "fully connected"],
)
def test_only_who_remembers_names_the_symbol_of_two_steps_ago(model, solves):
    config = {
        "train_batch_size": 1280,
        "rollout_fragment_length": 80,
        "sgd_minibatch_size": 160,
        "num_sgd_iter": 6,
        "lr": 2e-3,
        "gamma": 0.5,
        "lambda": 0.5,
        "model": model,
    }
    trainer = RunSpec("Echo-v0", num_envs=16, config=config).make_trainer()
    best, mean = LENGTH - DELAY, 0.0
    try:
        for _ in range(40):
            mean = trainer.train_iteration()["episode_return_mean"]
            if mean >= 0.9 * best:
                break
    finally:
        trainer.close()
    # Guessing is right half of the time.
    assert (mean >= 0.9 * best) if solves else (mean <= 0.6 * best)
