"""Writes the artifacts of this folder anew: a SavedModel, an .h5, an .onnx file and a checkpoint.

    python savedmodels/golden/rewrite.py

Only for when a format changes on purpose and files of before need not be read any more; the tests
load what is here and never run this. Afterwards `git diff --stat` should show all of it.
"""

import shutil
from pathlib import Path

import gymnasium as gym
import numpy as np

import tfpolicy

FOLDER = Path(__file__).parent
STEPS, ROWS = 3, 4
OBSERVATIONS = gym.spaces.Dict(
    image=gym.spaces.Box(0, 255, (3, 3), np.uint8),
    speed=gym.spaces.Box(-1, 1, (2,), np.float32),
    gear=gym.spaces.Discrete(3),
)
ACTIONS = gym.spaces.Dict(
    go=gym.spaces.Discrete(3, start=1),
    where=gym.spaces.Box(np.float32([-2, 0]), np.float32([6, 1])),
)
CONFIG = {
    "seed": 1,
    "lr_schedule": [[0, 1e-3], [1000, 1e-4]],
    "model": {"fcnet_hiddens": [5], "use_lstm": True, "lstm_cell_size": 3, "max_seq_len": 4},
}


def golden_policy():
    """A policy with weights that differ, and with a step of its optimizer behind it."""
    policy = tfpolicy.PPOPolicy(OBSERVATIONS, ACTIONS, CONFIG)
    rng = np.random.default_rng(7)
    policy.set_weights({k: rng.normal(0, 1.5, v.shape) for k, v in policy.get_weights().items()})
    steps = observations(rng, 8)
    actions, states, extras = policy.compute_actions(steps)
    policy.learn_on_batch(
        {
            "obs": steps,
            "actions": actions,
            "action_logp": extras["action_logp"],
            "action_dist_inputs": extras["action_dist_inputs"],
            "advantages": rng.normal(0, 1, 8).astype(np.float32),
            "value_targets": rng.normal(0, 1, 8).astype(np.float32),
            **{f"state_in_{index}": state for index, state in enumerate(states)},
            "seq_lens": np.int32([4, 4]),
        }
    )
    return policy


def observations(rng, rows):
    """Rows of observations."""
    return {
        "image": rng.integers(0, 256, (rows, 3, 3), np.uint8),
        "speed": rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "gear": rng.integers(0, 3, rows),
    }


def played(policy):
    """What the policy does greedily on a few steps of a few episodes, [T, B, ...] by name."""
    rng = np.random.default_rng(4)
    states = [policy.get_initial_state()] * ROWS
    steps = []
    for _ in range(STEPS):
        obs, rows = observations(rng, ROWS), []
        for row in range(ROWS):
            single = {name: column[row] for name, column in obs.items()}
            action, states[row], extras = policy.compute_single_action(
                single, states[row], explore=False
            )
            named = {f"actions_{name}": value for name, value in action.items()}
            named.update({name: extras[name] for name in ("action_dist_inputs", "vf_preds")})
            named.update({f"state_out_{i}": state for i, state in enumerate(states[row])})
            rows.append(named)
        outputs = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        steps.append({**{f"obs_{name}": column for name, column in obs.items()}, **outputs})
    return {name: np.stack([step[name] for step in steps]) for name in steps[0]}


def main():
    """Removes all artifacts and writes them again."""
    for path in FOLDER.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != Path(__file__).name:
            path.unlink()
    with golden_policy() as policy:
        version = policy.export_model(FOLDER / "policy", onnx=17)
        shutil.copy(version / "model.onnx", FOLDER / "policy.onnx")
        policy.export_model_to_h5(FOLDER / "policy.h5")
        policy.save(FOLDER / "checkpoint")
        np.savez(FOLDER / "played.npz", **played(policy))


if __name__ == "__main__":
    main()
