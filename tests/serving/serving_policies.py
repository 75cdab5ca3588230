"""Policies that are worth serving."""

import numpy as np

LSTM = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 4}


def lively(policy, seed=7):
    """Draws weights that are large enough for the actions to differ."""
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(0, 0.6, w.shape) for name, w in policy.get_weights().items()}
    policy.set_weights(weights)
    return policy
