"""What holds for listed pairs of spaces holds for drawn ones, too."""

import tempfile
from collections import OrderedDict
from pathlib import Path

import gymnasium as gym
import numpy as np
import space_contract
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

S = gym.spaces
FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
SHAPES = st.sampled_from([(), (1,), (2,), (3,), (1, 2), (2, 2), (2, 1, 2)])


@st.composite
def float_boxes(draw):
    """Boxes with two bounds, one or none in each dimension, or no room between them."""
    dtype, shape = draw(st.sampled_from(FLOATS)), draw(SHAPES)
    ends = draw(hnp.arrays("float16", (2, *shape), elements=st.floats(-100, 100, width=16)))
    open_ends = draw(hnp.arrays(bool, (2, *shape)))
    low = np.where(open_ends[0], -np.inf, ends.min(axis=0)).astype(dtype)
    high = np.where(open_ends[1], np.inf, ends.max(axis=0)).astype(dtype)
    return S.Box(low, high, dtype=np.dtype(dtype).type)


@st.composite
def integer_boxes(draw):
    """Boxes of few values, for as actions each of them has a logit."""
    dtype, shape = draw(st.sampled_from((*INTEGERS, "bool"))), draw(SHAPES)
    lowest, highest = (0, 1) if dtype == "bool" else (0, 12) if dtype[0] == "u" else (-12, 12)
    ends = draw(hnp.arrays("int64", (2, *shape), elements=st.integers(lowest, highest)))
    bounds = ends.min(axis=0).astype(dtype), ends.max(axis=0).astype(dtype)
    return S.Box(*bounds, dtype=np.dtype(dtype).type)


@st.composite
def multi_discretes(draw):
    shape = draw(st.sampled_from([(1,), (3,), (2, 2)]))
    nvec = draw(hnp.arrays("int64", shape, elements=st.integers(1, 4)))
    start = draw(hnp.arrays("int64", shape, elements=st.integers(-9, 9)))
    dtype = draw(st.sampled_from([np.int8, np.int32, np.int64]))
    return S.MultiDiscrete(nvec, dtype, start=start.astype(dtype))


LEAVES = st.one_of(
    float_boxes(),
    integer_boxes(),
    multi_discretes(),
    st.builds(S.Discrete, st.integers(1, 5), start=st.integers(-9, 9)),
    st.builds(S.MultiBinary, st.sampled_from([1, 3, (2, 2)])),
)


def nested(children, min_size=1):
    keys = st.text(max_size=3) | st.sampled_from(["obs", "actions", "0", "a/b", "a b", "a_b"])
    items = st.lists(
        st.tuples(keys, children), min_size=min_size, max_size=3, unique_by=lambda item: item[0]
    )
    dicts = items.map(lambda children: S.Dict(OrderedDict(children)))
    return dicts | st.lists(children, min_size=min_size, max_size=3).map(S.Tuple)


# What a single leaf is like, the listed pairs say.
SPACES = nested(st.recursive(LEAVES, nested, max_leaves=3), min_size=2)


# The same examples in every run, as they are: each takes seconds.
@settings(
    max_examples=5,
    derandomize=True,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(SPACES, SPACES)
def test_a_policy_of_any_spaces_can_do_all(observation_space, action_space):
    with (
        space_contract.build(observation_space, action_space) as policy,
        tempfile.TemporaryDirectory() as folder,
    ):
        batch, path = space_contract.sample(policy), Path(folder)
        space_contract.check_acting(policy, batch)
        space_contract.check_single_actions(policy, batch)
        space_contract.check_log_likelihoods(policy, batch)
        space_contract.check_learning(policy, batch)
        space_contract.check_towers(policy, batch)
        space_contract.check_state(policy, batch, path / "checkpoint")
        space_contract.check_saved_model(policy, batch, path / "saved_model")
        space_contract.check_h5(policy, path / "weights.h5")
