"""How long acting takes, against plain NumPy and against `Session.run` with a feed dict.

NumPy computes the same forward pass, and nothing of what makes an action out of it: what no
framework can be faster than.

    python -m benchmarks.acting
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from benchmarks.interleave import medians, print_table
from benchmarks.networks import NETWORKS
from tfpolicy import PPOPolicy

LSTM = {"fcnet_hiddens": [64], "use_lstm": True, "lstm_cell_size": 64, "vf_share_layers": True}
Arrays = Mapping[str, np.ndarray]
Forward = Callable[[], object]


def forward_pass(weights: Arrays, obs: np.ndarray) -> Forward:
    """Policy and value network as matrix products."""

    def layers(prefix: str, head: str) -> list[tuple[np.ndarray, np.ndarray]]:
        names = [f"{prefix}_1", f"{prefix}_2", head]
        return [(weights[f"{name}/kernel"], weights[f"{name}/bias"]) for name in names]

    networks = [layers("fc", "fc_out"), layers("fc_value", "value_out")]

    def forward() -> list[np.ndarray]:
        outputs = []
        for (w1, b1), (w2, b2), (w3, b3) in networks:
            outputs.append(np.tanh(np.tanh(obs @ w1 + b1) @ w2 + b2) @ w3 + b3)
        return outputs

    return forward


def lstm_pass(weights: Arrays, obs: np.ndarray, h: np.ndarray, c: np.ndarray) -> Forward:
    """One step of the LSTM network."""
    w1, b1 = weights["fc_1/kernel"], weights["fc_1/bias"]
    cell = "lstm/lstm_cell"
    w, u, b = (weights[f"{cell}/{name}"] for name in ("kernel", "recurrent_kernel", "bias"))
    heads = [(weights[f"{head}/kernel"], weights[f"{head}/bias"]) for head in ("logits", "values")]

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1.0 / (1.0 + np.exp(-x))

    def forward() -> list[np.ndarray]:
        gates = np.tanh(obs @ w1 + b1) @ w + h @ u + b
        i, f, g, o = np.split(gates, 4, axis=1)
        after = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        out = sigmoid(o) * np.tanh(after)
        return [*(out @ kernel + bias for kernel, bias in heads), out, after]

    return forward


def session_run(policy: PPOPolicy, feeds: list[np.ndarray]) -> Forward:
    """The fetches of greedy acting, the way most code does it."""
    actor, session = policy._actor, policy.get_session()
    return lambda: session.run(actor.greedy_fetches, dict(zip(actor.feeds, feeds, strict=True)))


def measure(name: str, batch_size: int, repeats: int) -> list[str]:
    observation_space, action_space, hiddens = NETWORKS["small" if name == "LSTM" else name]
    model = LSTM if name == "LSTM" else {"fcnet_hiddens": hiddens}
    with PPOPolicy(observation_space, action_space, {"seed": 0, "model": model}) as policy:
        rng = np.random.default_rng(0)
        obs = rng.standard_normal((batch_size, *observation_space.shape), np.float32)
        states = [
            rng.standard_normal((batch_size, *s.shape), np.float32)
            for s in policy.get_initial_state()
        ]
        forward = lstm_pass if states else forward_pass
        functions = {
            "numpy": forward(policy.get_weights(), obs, *states),
            "greedy": lambda: policy.compute_actions(obs, states, explore=False),
            "explore": lambda: policy.compute_actions(obs, states, explore=True),
            "alone": lambda: policy.compute_actions(obs, states, explore=False, extra_fetches=()),
            "session": session_run(policy, [obs, *states]),
        }
        if batch_size == 1:
            one = obs[0], [state[0] for state in states]
            functions["single"] = lambda: policy.compute_single_action(*one, explore=False)
        times = medians(functions, repeats=repeats)
    floor = times["numpy"]
    single = f"{times['single'] / times['greedy']:.2f}" if "single" in times else ""
    return [
        name,
        str(batch_size),
        f"{floor * 1e6:.0f} µs",
        *(f"{times[way] / floor:.2f}" for way in ("greedy", "explore", "alone")),
        f"{times['session'] / times['greedy']:.1f}",
        single,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=40)
    repeats = parser.parse_args().repeats
    cases = [(name, size) for name in NETWORKS for size in (1, 8, 32, 256)]
    print_table(
        f"Acting (TensorFlow {tf.__version__}), ratios to NumPy",
        [
            "network",
            "rows",
            "NumPy",
            "greedy",
            "exploring",
            "greedy, actions only",
            "Session.run / greedy",
            "single / greedy",
        ],
        [measure(*case, repeats) for case in [*cases, ("LSTM", 1), ("LSTM", 32)]],
    )


if __name__ == "__main__":
    main()
