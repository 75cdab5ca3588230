"""Returns, advantages and value targets of trajectories, in NumPy.

Everything is time-major: `[T]` for one fragment, `[T, N]` for N of them side by side, with V(s) the
value of a state, s_t the state acted in at step t, and s'_t the one the environment went to. At the
end of an episode s'_t is its final observation, not the first one of the next episode.

The two ways in which an episode ends do different things. After a termination nothing follows, so
the value of s'_t is zero. After a truncation (a time limit) the episode would have gone on, so
V(s'_t) stands for the rest. Neither lets anything of the next episode leak back. The end of a
fragment is no end of an episode: it bootstraps like a truncation.

Sums run in float64; arguments may have any float dtype, results are float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def discounted_returns(
    rewards: Any,
    terminateds: Any,
    truncateds: Any,
    gamma: float,
    next_values: Any = None,
) -> np.ndarray:
    """Computes the discounted sum of the rewards from each step to the end of its episode.

        G_t = r_t + γ G_{t+1}            within an episode
        G_t = r_t + γ V(s'_t)            at a truncation and at the end of the fragment
        G_t = r_t                        at a termination

    Args:
        rewards: `[T]` or `[T, N]` float.
        terminateds: Bool of the same shape.
        truncateds: Bool of the same shape.
        gamma: Discount γ in [0, 1].
        next_values: V(s'_t), float of the same shape; None for zeros, that is the rewards alone.

    Returns:
        G, float32 of the same shape.
    """
    if next_values is None:
        next_values = np.zeros(np.shape(rewards))
    r, v_next, terminated, ended = _checked(rewards, next_values, terminateds, truncateds)
    _check_fraction("gamma", gamma)
    last = _is_last(ended)
    bootstrap = np.where(last & ~terminated, v_next, 0.0)
    return _discounted_sums(r + gamma * bootstrap, gamma * ~last).astype(np.float32)


def gae(
    rewards: Any,
    values: Any,
    next_values: Any,
    terminateds: Any,
    truncateds: Any,
    gamma: float,
    lambda_: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Computes generalised advantage estimates and the value targets that go with them.

        δ_t = r_t + γ V(s'_t) − V(s_t)       V(s'_t) = 0 at a termination
        Â_t = δ_t + γ λ Â_{t+1}              Â_{t+1} = 0 at any end and at that of the fragment

    Schulman et al., 2016, equation 16, https://arxiv.org/abs/1506.02438.

    Args:
        rewards: r, `[T]` or `[T, N]` float.
        values: V(s_t), float of the same shape.
        next_values: V(s'_t), float of the same shape; see `next_values_from`.
        terminateds: Bool of the same shape.
        truncateds: Bool of the same shape.
        gamma: Discount γ in [0, 1].
        lambda_: λ in [0, 1]; 0 gives the TD error, 1 the return minus the value.

    Returns:
        Advantages Â and value targets Â + V, each float32 of the same shape.
    """
    r, v_next, terminated, ended = _checked(rewards, next_values, terminateds, truncateds)
    v = _checked_float("values", values, r.shape)
    _check_fraction("gamma", gamma)
    _check_fraction("lambda_", lambda_)
    delta = r + gamma * np.where(terminated, 0.0, v_next) - v
    advantages = _discounted_sums(delta, gamma * lambda_ * ~ended)
    return advantages.astype(np.float32), (advantages + v).astype(np.float32)


def n_step_targets(
    rewards: Any,
    next_values: Any,
    terminateds: Any,
    truncateds: Any,
    gamma: float,
    n: int,
) -> np.ndarray:
    """Computes n-step value targets.

        G_t = Σ_{k<m} γ^k r_{t+k} + γ^m V(s'_{t+m−1})

    where m is n, or the number of steps to the end of the episode or of the fragment if that is
    less. V is zero at a termination. Sutton and Barto, 2018, equation 7.1.

    Args:
        rewards: `[T]` or `[T, N]` float.
        next_values: V(s'_t), float of the same shape; see `next_values_from`.
        terminateds: Bool of the same shape.
        truncateds: Bool of the same shape.
        gamma: Discount γ in [0, 1].
        n: The number of rewards before the bootstrap, at least 1.

    Returns:
        G, float32 of the same shape.
    """
    r, v_next, terminated, ended = _checked(rewards, next_values, terminateds, truncateds)
    _check_fraction("gamma", gamma)
    if n < 1:
        raise ValueError(f"`n` must be positive, got {n}.")
    last = _is_last(ended)
    one_step = r + gamma * np.where(terminated, 0.0, v_next)
    targets = one_step
    for _ in range(min(n, len(r)) - 1):
        # The target of k + 1 steps is a reward and the target of k steps, one step later.
        targets = np.where(last, one_step, r + gamma * np.roll(targets, -1, axis=0))
    return targets.astype(np.float32)


def next_values_from(
    values: Any, bootstrap: Any, truncateds: Any = None, final_values: Any = None
) -> np.ndarray:
    """Returns V(s'_t) of consecutive steps: the value of the state acted in next.

    Where an episode was truncated within the fragment the state acted in next belongs to another
    episode; there the value of the final observation is read from `final_values`. (Where it was
    terminated, any value does, since none is used.)

    Args:
        values: V(s_t), `[T]` or `[T, N]` float.
        bootstrap: V(s'_{T-1}), scalar or `[N]` float.
        truncateds: Bool of the shape of `values`; may be left out if no step is truncated.
        final_values: Float of the shape of `values`, read at truncations only.

    Returns:
        V(s'_t), float32 of the shape of `values`.

    Raises:
        ValueError: If only one of `truncateds` and `final_values` is given, or a shape is wrong.
    """
    v = np.asarray(values, dtype=np.float32)
    _check_time_major("values", v)
    last = _checked_float("bootstrap", bootstrap, v.shape[1:])
    v_next = np.concatenate([v[1:], last[None].astype(np.float32)])[: len(v)]
    if (truncateds is None) != (final_values is None):
        raise ValueError("`truncateds` and `final_values` go together, got only one of them.")
    if truncateds is None:
        return v_next
    truncated = _checked_bool("truncateds", truncateds, v.shape)
    final = _checked_float("final_values", final_values, v.shape).astype(np.float32)
    return np.where(truncated, final, v_next)


def _discounted_sums(x: np.ndarray, discounts: np.ndarray) -> np.ndarray:
    """Returns y with y_t = x_t + discounts_t · y_{t+1}, and y_T = 0."""
    sums = np.empty_like(x)
    total = np.zeros(x.shape[1:])
    for t in reversed(range(len(x))):
        total = x[t] + discounts[t] * total
        sums[t] = total
    return sums


def _is_last(ended: np.ndarray) -> np.ndarray:
    """Marks the last step of each episode, and that of the fragment."""
    last = ended.copy()
    last[-1:] = True
    return last


def _checked(
    rewards: Any, next_values: Any, terminateds: Any, truncateds: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns rewards and next values in float64, where it terminated, and where it ended."""
    r = np.asarray(rewards, dtype=np.float64)
    _check_time_major("rewards", r)
    v_next = _checked_float("next_values", next_values, r.shape)
    terminated = _checked_bool("terminateds", terminateds, r.shape)
    return r, v_next, terminated, terminated | _checked_bool("truncateds", truncateds, r.shape)


def _checked_float(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(value, dtype=np.float64)
    _check_shape(name, array, shape)
    return array


def _checked_bool(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(value, dtype=bool)
    _check_shape(name, array, shape)
    return array


def _check_time_major(name: str, array: np.ndarray) -> None:
    if array.ndim not in (1, 2):
        raise ValueError(f"`{name}`: expected shape [T] or [T, N], got {array.shape}.")


def _check_shape(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    # Broadcasting [T, 1] against [T] would give [T, T] without a word.
    if array.shape != shape:
        raise ValueError(f"`{name}`: expected shape {shape}, got {array.shape}.")


def _check_fraction(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"`{name}` must be in [0, 1], got {value}.")
