"""What a policy does on single observations, step by step, by the names of its exports."""

import numpy as np

from tfpolicy.spaces import flatten, leaf_spaces, unflatten


def acted_singly(policy, observations, prev_rewards=None):
    """What `compute_single_action` gives row by row, each going on from its own state.

    Args:
        policy: Acts.
        observations: For each step the leaves of the observation, [B, ...] each.
        prev_rewards: [T, B] for a policy that reads them and its previous action, a choice.

    Returns:
        Arrays [T, B, ...] by name, all that it gives.
    """
    num_rows = len(observations[0][0])
    states = [policy.get_initial_state()] * num_rows
    before = [{}] * num_rows if prev_rewards is None else [{"prev_action": 0}] * num_rows
    steps = []
    for step, obs in enumerate(observations):
        rows = []
        for row in range(num_rows):
            single = unflatten(policy.observation_space, [leaf[row] for leaf in obs])
            if prev_rewards is not None:
                before[row] = {**before[row], "prev_reward": prev_rewards[step, row]}
            action, states[row], extras = policy.compute_single_action(
                single, states[row], explore=False, **before[row]
            )
            assert policy.action_space.contains(action)
            before[row] = {key: action for key in before[row]}
            leaves = flatten(policy.action_space, action)
            named = dict(zip(leaf_spaces(policy.action_space, "actions"), leaves, strict=True))
            outs = {f"state_out_{index}": state for index, state in enumerate(states[row])}
            rows.append({**named, **extras, **outs})
        steps.append({key: np.stack([row[key] for row in rows]) for key in rows[0]})
    return {key: np.stack([step[key] for step in steps]) for key in steps[0]}
