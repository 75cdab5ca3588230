"""Steps per second and wall time to a return of 475 on CartPole-v1, learning included.

Random stepping of the same vector environment runs beside it, for what the machine gives. With
`--peer-python`, an interpreter that has `stable-baselines3`, its PPO runs too, at the same settings
and in turn with ours; each run has a process of its own.

    python -m benchmarks.training
    python -m benchmarks.training --peer-python ~/peer/bin/python --seeds 0 1 2 3 4
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks.interleave import print_table

ENV, NUM_ENVS, TARGET, LIMIT = "CartPole-v1", 8, 475.0, 300_000
CONFIG = {"model": {"fcnet_hiddens": [64, 64]}}

# Runs in the other interpreter, which knows nothing of this package. Like `RunSpec` it takes the
# mean over the last 100 episodes, looked at after each train batch.
PEER = """
import json, sys, time
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

env_id, num_envs, seed, target, limit = json.loads(sys.argv[1])
torch.set_num_threads(2)
env = make_vec_env(env_id, n_envs=num_envs, seed=seed)

class Stop(BaseCallback):
    mean = 0.0
    def _on_step(self):
        return self.mean < target
    def _on_rollout_end(self):
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        self.mean = sum(returns) / max(len(returns), 1)

model = PPO(
    "MlpPolicy", env, seed=seed, learning_rate=%(lr)r, n_steps=%(fragment)d,
    batch_size=%(minibatch)d, n_epochs=%(epochs)d, gamma=%(gamma)r, gae_lambda=%(lambda)r,
    clip_range=%(clip)r, ent_coef=%(entropy)r, vf_coef=%(vf)r,
    max_grad_norm=%(grad_clip)r, device="cpu",
    policy_kwargs={"net_arch": %(hiddens)r},
)
stop = Stop()
begin = time.perf_counter()
model.learn(limit, callback=stop)
print(json.dumps({
    "timesteps": model.num_timesteps, "seconds": time.perf_counter() - begin, "mean": stop.mean,
}))
"""


def train(seed: int) -> dict[str, Any]:
    """One run of ours, from nothing to the target."""
    from tfpolicy.train.run import RunSpec

    trainer = RunSpec(ENV, num_envs=NUM_ENVS, seed=seed, config=CONFIG).make_trainer()
    begin = time.perf_counter()
    mean, compiling = 0.0, 0.0
    while trainer.timesteps_total < LIMIT and not mean >= TARGET:
        result = trainer.train_iteration()
        mean = result["episode_return_mean"]
        # The first update is compiled.
        compiling = compiling or result["learn_time_s"]
    seconds = time.perf_counter() - begin
    trainer.close()
    return {
        "timesteps": trainer.timesteps_total,
        "seconds": seconds,
        "mean": mean,
        "compiling": compiling,
    }


def step_randomly(steps: int = 20_000) -> float:
    """Steps per second with random actions."""
    from tfpolicy.train.environments import Environments, make_vector_env

    env = make_vector_env(ENV, NUM_ENVS)
    stepped = Environments(env, 0)
    stepped.reset()
    begin = time.perf_counter()
    for _ in range(steps // NUM_ENVS):
        stepped.step(env.action_space.sample())
    seconds = time.perf_counter() - begin
    env.close()
    return steps / seconds


def settings() -> dict[str, Any]:
    """Our settings by the names that the peer's script has for them."""
    from tfpolicy.policies.ppo import PPOConfig

    config = PPOConfig.from_dict(CONFIG)
    return {
        "lr": config.lr,
        "fragment": config.train_batch_size // NUM_ENVS,
        "minibatch": config.minibatch_size,
        "epochs": config.num_sgd_iter,
        "gamma": config.gamma,
        "lambda": config.lambda_,
        "clip": config.clip_param,
        "entropy": config.entropy_coeff,
        "vf": config.vf_loss_coeff,
        "grad_clip": config.grad_clip,
        "hiddens": list(config.model.fcnet_hiddens),
    }


def in_process(*command: str) -> dict[str, Any]:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--peer-python", help="an interpreter that has stable-baselines3")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        before = step_randomly()
        result = train(arguments.one)
        print(json.dumps({**result, "random": (before + step_randomly()) / 2}))
        return
    ours, theirs = [], []
    rows = []
    for seed in arguments.seeds:
        run = in_process(sys.executable, "-m", "benchmarks.training", "--one", str(seed))
        ours.append(run)
        rows.append(_row("tfpolicy", seed, run))
        if arguments.peer_python:
            spec = json.dumps([ENV, NUM_ENVS, seed, TARGET, LIMIT])
            peer = in_process(arguments.peer_python, "-c", PEER % settings(), spec)
            theirs.append(peer)
            rows.append(_row("stable-baselines3", seed, peer))
    header = ["", "seed", "steps", "time", "steps/s", "without compiling", "of random stepping"]
    print_table(f"PPO on {ENV} to {TARGET:g}, {NUM_ENVS} sub-environments", header, rows)
    if theirs:
        pairs = zip(ours, theirs, strict=True)
        faster = [_speed(us) / _speed(them) for us, them in pairs]
        steps = [statistics.median(r["timesteps"] for r in runs) for runs in (ours, theirs)]
        print(f"\nSteps per second: {statistics.median(faster):.1f} times the peer's (median).")
        print(f"Steps to the target, medians: {steps[0]:,.0f} against {steps[1]:,.0f}.")


def _speed(run: dict[str, Any]) -> float:
    return run["timesteps"] / run["seconds"]


def _row(name: str, seed: int, run: dict[str, Any]) -> list[str]:
    row = [
        name,
        str(seed),
        f"{run['timesteps']:,}",
        f"{run['seconds']:.1f} s",
        f"{_speed(run):,.0f}",
    ]
    if "random" not in run:
        return [*row, "", ""]
    running = run["timesteps"] / (run["seconds"] - run["compiling"])
    return [*row, f"{running:,.0f}", f"{_speed(run) / run['random']:.2f}"]


if __name__ == "__main__":
    main()
