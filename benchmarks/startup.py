"""How long it takes to get going, and how much memory: each figure from processes of their own.

python -m benchmarks.startup
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

from benchmarks.interleave import print_table

# Each is run in a new process and prints its seconds and its peak memory as JSON.
MEASURE = """
import json, resource, sys, time
def report(**seconds):
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({**seconds, "peak": kib / 1024}))
begin = time.perf_counter()
"""
IMPORTS = "import tensorflow, tf_keras, tensorflow_probability\n"
IMPORT_ALONE = MEASURE + IMPORTS + "report(imports=time.perf_counter() - begin)"
BUILD = """
import gymnasium as gym
import numpy as np
import tempfile
from tfpolicy import PPOPolicy
imported = time.perf_counter()
towers = int(sys.argv[1])
policy = PPOPolicy(
    gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2),
    {"num_gpus": towers if towers > 1 else 0, "fake_gpus": True,
     "model": {"fcnet_hiddens": [64, 64]}},
)
built = time.perf_counter()
policy.compute_single_action(np.zeros(4, np.float32))
acted = time.perf_counter()
with tempfile.TemporaryDirectory() as folder:
    policy.export_model(folder)
    exported = time.perf_counter()
report(build=built - imported, act=acted - built, export=exported - acted)
"""
TRAIN = """
from tfpolicy.train.run import RunSpec
trainer = RunSpec(
    "CartPole-v1", num_envs=8, config={"model": {"fcnet_hiddens": [64, 64]}}
).make_trainer()
for _ in range(5):
    trainer.train_iteration()
trainer.close()
report()
"""


def in_process(code: str, *arguments: str) -> dict[str, float]:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def command_seconds(*command: str) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begin


def medians_of(code: str, repeats: int, *arguments: str) -> dict[str, float]:
    results = [in_process(code, *arguments) for _ in range(repeats)]
    return {name: statistics.median(r[name] for r in results) for name in results[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    module = (sys.executable, "-m", "tfpolicy", "--help")
    shown = statistics.median(command_seconds(*module) for _ in range(repeats))
    alone = medians_of(IMPORT_ALONE, repeats)
    print_table(
        "Starting",
        ["what", "time", "peak memory"],
        [
            ["`tfpolicy --help`", f"{shown:.2f} s", ""],
            [
                "importing TensorFlow, tf_keras, tensorflow-probability",
                f"{alone['imports']:.1f} s",
                f"{alone['peak']:.0f} MiB",
            ],
        ],
    )
    rows = []
    for towers in (1, 2, 4):
        found = medians_of(MEASURE + IMPORTS + BUILD, repeats, str(towers))
        rows.append(
            [
                str(towers),
                *(f"{found[name]:.2f} s" for name in ("build", "act", "export")),
                f"{found['peak'] - alone['peak']:.0f} MiB",
            ]
        )
    print_table(
        "A small policy, after the imports",
        ["towers", "build", "first action", "export", "memory above imports"],
        rows,
    )
    trained = medians_of(MEASURE + TRAIN, repeats)
    print_table(
        "Training on CartPole-v1 for 5 iterations, compiled",
        ["peak memory above imports"],
        [[f"{trained['peak'] - alone['peak']:.0f} MiB"]],
    )


if __name__ == "__main__":
    main()
