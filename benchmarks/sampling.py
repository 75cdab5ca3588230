"""How fast a policy samples, against the same vector environment stepped with random actions.

python -m benchmarks.sampling
python -m benchmarks.sampling --envs CartPole-v1 --num-envs 8
"""

from __future__ import annotations

import argparse

from benchmarks.interleave import medians, print_table
from tfpolicy import PPOPolicy
from tfpolicy.train.environments import Environments, make_vector_env
from tfpolicy.train.rollout import Rollout

STEPS = 128


def measure(env_id: str, num_envs: int, repeats: int) -> list[str]:
    env, randomly = make_vector_env(env_id, num_envs), make_vector_env(env_id, num_envs)
    config = {"seed": 0, "model": {"fcnet_hiddens": [64, 64]}}
    spaces = env.single_observation_space, env.single_action_space
    with PPOPolicy(*spaces, config) as policy:
        rollout = Rollout(policy, Environments(env, 0))
        # Resets are the same on both sides.
        stepped = Environments(randomly, 0)
        stepped.reset()
        randomly.action_space.seed(0)
        block = rollout.sample_block(STEPS)

        def step_randomly() -> None:
            for _ in range(STEPS):
                stepped.step(randomly.action_space.sample())

        def build() -> None:
            added = policy.postprocess_block(block.columns)
            type(block)({**block.columns, **added}, block.valid).rows(0)

        functions = {
            "random": step_randomly,
            "sample": lambda: rollout.sample(STEPS),
            "build": build,
        }
        times = medians(functions, repeats=repeats, calls=1)
    env.close()
    randomly.close()
    steps = STEPS * num_envs
    return [
        env_id,
        str(num_envs),
        f"{steps / times['random']:,.0f}",
        f"{steps / times['sample']:,.0f}",
        f"{times['random'] / times['sample']:.2f}",
        f"{100 * times['build'] / times['sample']:.1f} %",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--envs", nargs="+", default=["CartPole-v1", "Pendulum-v1"])
    parser.add_argument("--num-envs", nargs="+", type=int, default=[8, 64])
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    print_table(
        f"Sampling, {STEPS} steps in each sub-environment",
        [
            "environment",
            "sub-environments",
            "random, steps/s",
            "policy, steps/s",
            "policy / random",
            "advantages and batch",
        ],
        [
            measure(env_id, num_envs, arguments.repeats)
            for env_id in arguments.envs
            for num_envs in arguments.num_envs
        ],
    )


if __name__ == "__main__":
    main()
