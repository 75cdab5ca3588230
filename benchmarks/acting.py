"""How long acting takes, against plain NumPy and against `Session.run` with a feed dict.

python -m benchmarks.acting
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from benchmarks.interleave import medians, print_table
from benchmarks.networks import NETWORKS
from tfpolicy import PPOPolicy


def numpy_forward(weights: dict[str, np.ndarray], obs: np.ndarray) -> Callable[[], object]:
    """Both networks as matrix products: what no framework can be faster than."""

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


def session_run(policy: PPOPolicy, obs: np.ndarray) -> Callable[[], object]:
    """The fetches of greedy acting, the way most code does it."""
    actor, session = policy._actor, policy.get_session()
    return lambda: session.run(actor.greedy_fetches, {actor.feeds[0]: obs})


def measure(name: str, batch_size: int, repeats: int) -> list[str]:
    observation_space, action_space, hiddens = NETWORKS[name]
    config = {"seed": 0, "model": {"fcnet_hiddens": hiddens}}
    with PPOPolicy(observation_space, action_space, config) as policy:
        rng = np.random.default_rng(0)
        obs = rng.normal(size=(batch_size, *observation_space.shape)).astype(np.float32)
        functions = {
            "numpy": numpy_forward(policy.get_weights(), obs),
            "greedy": lambda: policy.compute_actions(obs, explore=False),
            "explore": lambda: policy.compute_actions(obs, explore=True),
            "session": session_run(policy, obs),
        }
        if batch_size == 1:
            functions["single"] = lambda: policy.compute_single_action(obs[0], explore=False)
        times = medians(functions, repeats=repeats)
    floor = times["numpy"]
    single = f"{times['single'] / times['greedy']:.2f}" if "single" in times else ""
    return [
        name,
        str(batch_size),
        f"{floor * 1e6:.0f} µs",
        f"{times['greedy'] / floor:.2f}",
        f"{times['explore'] / floor:.2f}",
        f"{times['session'] / times['greedy']:.1f}",
        single,
    ]


def main() -> None:
    header = [
        "network", "rows", "NumPy", "greedy / NumPy", "exploring / NumPy", "Session.run / greedy",
        "single / greedy",
    ]  # fmt: skip
    rows = [measure(name, size, 40) for name in NETWORKS for size in (1, 8, 32, 256)]
    print_table(f"Acting (TensorFlow {tf.__version__})", header, rows)


if __name__ == "__main__":
    main()
