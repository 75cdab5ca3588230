"""How long minibatch SGD takes, against a loop of `Session.run` and against plain NumPy.

A loaded batch of 4,096 rows is learned from for 4 epochs in minibatches of 128 rows a tower. The
loop feeds the same minibatches to the same graph, the way most code does it. NumPy computes the
matrix products of one forward and backward pass and nothing else: what no framework can be much
faster than.

    python -m benchmarks.learning
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from benchmarks.interleave import medians, print_table
from benchmarks.networks import NETWORKS, train_batch
from tfpolicy import PPOPolicy

ROWS, MINIBATCH, EPOCHS = 4096, 128, 4


def numpy_products(weights: dict[str, np.ndarray], rows: int) -> Callable[[], object]:
    """The matrix products of a forward and a backward pass through both networks."""
    rng = np.random.default_rng(0)
    networks = []
    for prefix, head in (("fc", "fc_out"), ("fc_value", "value_out")):
        kernels = [weights[f"{name}/kernel"] for name in (f"{prefix}_1", f"{prefix}_2", head)]
        inputs = [rng.normal(size=(rows, len(kernel))).astype(np.float32) for kernel in kernels]
        errors = [rng.normal(size=(rows, kernel.shape[1])).astype(np.float32) for kernel in kernels]
        networks.append(list(zip(kernels, inputs, errors, strict=True)))

    def products() -> None:
        for network in networks:
            for index, (kernel, inputs, errors) in enumerate(network):
                inputs @ kernel
                inputs.T @ errors
                if index:
                    errors @ kernel.T

    return products


def fed_loop(policy: PPOPolicy, batch: dict[str, np.ndarray]) -> Callable[[], object]:
    """All epochs with a feed dict and a `Session.run` for each minibatch."""
    learner, session = policy._learning.learner, policy.get_session()
    leaves = policy._learning.layout.leaves(batch)
    minibatches = [
        [*(leaf[begin : begin + MINIBATCH] for leaf in leaves), np.int32(MINIBATCH)]
        for begin in range(0, ROWS, MINIBATCH)
    ]

    def loop() -> None:
        for minibatch in minibatches * EPOCHS:
            session.run(learner.fed_results, dict(zip(learner.fed_inputs, minibatch, strict=True)))

    return loop


def make_policy(network: str, towers: int, compiled: bool) -> PPOPolicy:
    observation_space, action_space, hiddens = NETWORKS[network]
    config = {
        "seed": 0,
        "num_gpus": towers if towers > 1 else 0,
        "fake_gpus": True,
        "sgd_minibatch_size": MINIBATCH * towers,
        "train_batch_size": ROWS,
        "jit_compile": compiled,
        # Learning in earnest would end in a policy that differs from run to run.
        "lr": 0.0,
        "model": {"fcnet_hiddens": hiddens},
    }
    return PPOPolicy(observation_space, action_space, config)


def measure(network: str, repeats: int) -> tuple[list[list[str]], list[list[str]]]:
    """Rows of the table of ways to learn, and of the table of towers."""
    batch = train_batch(*NETWORKS[network][:2], ROWS)
    steps = EPOCHS * ROWS // MINIBATCH
    policies = {
        (towers, compiled): make_policy(network, towers, compiled)
        for towers in (1, 2, 4)
        for compiled in (False, True)
    }
    functions = {}
    compile_seconds = {}
    for key, policy in policies.items():
        policy.load_batch_into_buffer(batch)
        begin = time.perf_counter()
        policy.learn_on_buffer(EPOCHS)
        compile_seconds[key] = time.perf_counter() - begin
        functions[str(key)] = lambda policy=policy: policy.learn_on_buffer(EPOCHS)
    one = policies[1, False]
    functions["fed"] = fed_loop(one, batch)
    products = numpy_products(one.get_weights(), MINIBATCH)
    functions["numpy"] = lambda: [products() for _ in range(steps)]
    # With n towers there are a n-th of the steps, each on n times as many rows.
    times = medians(functions, repeats=repeats, calls=1)
    for policy in policies.values():
        policy.close()
    fed, floor = times["fed"] / steps, times["numpy"] / steps
    ways, towers_rows = [], []
    for compiled in (False, True):
        seconds = times[str((1, compiled))] / steps
        ways.append(
            [
                network,
                "compiled" if compiled else "plain",
                f"{seconds * 1e3:.2f} ms",
                f"{fed / seconds:.1f}",
                f"{seconds / floor:.2f}",
                f"{compile_seconds[1, compiled]:.1f} s",
            ]
        )
        for towers in (2, 4):
            ratio = times[str((towers, compiled))] / times[str((1, compiled))]
            towers_rows.append(
                [network, "compiled" if compiled else "plain", str(towers), f"{ratio:.2f}"]
            )
    return ways, towers_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    ways, towers = [], []
    for network in NETWORKS:
        of_network = measure(network, arguments.repeats)
        ways += of_network[0]
        towers += of_network[1]
    print_table(
        f"One minibatch of {MINIBATCH} rows (TensorFlow {tf.__version__})",
        ["network", "learn_on_buffer", "time", "faster than fed", "/ NumPy", "first call"],
        ways,
    )
    print_table(
        f"n towers on the same cores, {MINIBATCH} rows each, against n steps of one",
        ["network", "learn_on_buffer", "towers", "ratio"],
        towers,
    )


if __name__ == "__main__":
    main()
