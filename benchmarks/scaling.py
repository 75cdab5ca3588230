"""How cost grows with rows, with the width of observations, and with towers.

python -m benchmarks.scaling
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path

import gymnasium as gym
import numpy as np

from benchmarks.interleave import medians, print_table
from benchmarks.networks import train_batch
from tfpolicy import PPOPolicy

DISCRETE = gym.spaces.Discrete(2)
PAGE = 4096


def box(width: int) -> gym.spaces.Box:
    return gym.spaces.Box(-1, 1, (width,), np.float32)


def make_policy(width: int, rows: int, towers: int = 1) -> PPOPolicy:
    config = {
        "seed": 0,
        "num_gpus": towers if towers > 1 else 0,
        "fake_gpus": True,
        "train_batch_size": rows,
        "sgd_minibatch_size": min(1024, rows),
        "lr": 0.0,
        "model": {"fcnet_hiddens": [64, 64]},
    }
    return PPOPolicy(box(width), DISCRETE, config)


def resident() -> int:
    """Bytes of memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def memory_per_row(policy: PPOPolicy, batch: dict[str, np.ndarray], rows: int) -> float:
    """Bytes that loading leaves behind."""
    gc.collect()
    before = resident()
    policy.load_batch_into_buffer(batch)
    gc.collect()
    return (resident() - before) / rows


def costs(width: int, rows: int, towers: int, repeats: int) -> list[str]:
    """Nanoseconds a row of copying, loading and one epoch, and bytes a row on the device."""
    batch = train_batch(box(width), DISCRETE, rows)
    with make_policy(width, rows, towers) as policy:
        held = memory_per_row(policy, batch, rows)
        functions = {
            "copy": lambda: [column.copy() for column in batch.values()],
            "load": lambda: policy.load_batch_into_buffer(batch),
            "epoch": lambda: policy.learn_on_buffer(1),
        }
        times = medians(functions, repeats=repeats, calls=1)
    size = sum(column.nbytes for column in batch.values()) / rows
    return [
        f"{times['epoch'] / rows * 1e9:,.0f} ns",
        f"{times['load'] / rows * 1e9:,.0f} ns",
        f"{times['load'] / times['copy']:.1f}",
        f"{held:,.0f}",
        f"{size:,.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    header = ["epoch, a row", "loading, a row", "loading / copying", "bytes held", "bytes of a row"]
    print_table(
        "Rows, 17 numbers an observation",
        ["rows", *header],
        [[f"{n:,}", *costs(17, n, 1, repeats)] for n in (10**3, 10**4, 10**5, 10**6)],
    )
    print_table(
        "Width of observations, 8,192 rows",
        ["numbers", *header],
        [[f"{width:,}", *costs(width, 8192, 1, repeats)] for width in (4, 64, 1024, 4096)],
    )
    print_table(
        "Towers on the same cores, 8,192 rows of 17 numbers",
        ["towers", *header],
        [[str(n), *costs(17, 8192, n, repeats)] for n in (1, 2, 4, 8)],
    )


if __name__ == "__main__":
    main()
