"""What a policy does on single observations, step by step, by the names of its exports."""

import numpy as np

from tfpolicy.spaces import flatten, leaf_spaces, unflatten


def acted_singly(policy, observations):
    """What `compute_single_action` gives row by row, each going on from its own state.

    Args:
        policy: Acts.
        observations: For each step the leaves of the observation, [B, ...] each.

    Returns:
        Arrays [T, B, ...] by name, all that it gives.
    """
    num_rows = len(observations[0][0])
    states = [policy.get_initial_state()] * num_rows
    steps = []
    for obs in observations:
        rows = []
        for row in range(num_rows):
            single = unflatten(policy.observation_space, [leaf[row] for leaf in obs])
            action, states[row], extras = policy.compute_single_action(
                single, states[row], explore=False
            )
            assert policy.action_space.contains(action)
            leaves = flatten(policy.action_space, action)
            named = dict(zip(leaf_spaces(policy.action_space, "actions"), leaves, strict=True))
            outs = {f"state_out_{index}": state for index, state in enumerate(states[row])}
            rows.append({**named, **extras, **outs})
        steps.append({key: np.stack([row[key] for row in rows]) for key in rows[0]})
    return {key: np.stack([step[key] for step in steps]) for key in steps[0]}
