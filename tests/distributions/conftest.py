"""One table of action spaces and families, used by every test of the whole contract."""

import dataclasses

import gymnasium as gym
import numpy as np
import pytest
from graph_evaluation import Evaluator

from tfpolicy.distributions import distribution_for

S = gym.spaces


@dataclasses.dataclass(frozen=True)
class Case:
    """A family bound to a space, and inputs for it."""

    space: gym.Space
    custom_action_dist: str | None = None
    options: dict = dataclasses.field(default_factory=dict)

    @property
    def distribution(self):
        return distribution_for(self.space, self.custom_action_dist, self.options)

    def inputs(self, rows, seed=0, scale=1.0):
        """Random [rows, num_inputs] float32."""
        shape = (rows, self.distribution.num_inputs)
        return np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32)


CASES = {
    "discrete": Case(S.Discrete(5)),
    "discrete_start": Case(S.Discrete(3, start=-1)),
    "multi_discrete": Case(S.MultiDiscrete([2, 2])),
    "multi_discrete_ragged": Case(S.MultiDiscrete([2, 5, 3], start=[0, -2, 7])),
    "multi_discrete_2d": Case(S.MultiDiscrete([[2, 3], [4, 2]], dtype=np.int32)),
    "int_box": Case(S.Box(np.int8([-1, 0]), np.int8([1, 4]), dtype=np.int8)),
    "uint_box_2d": Case(S.Box(3, 5, (2, 2), np.uint8)),
    "multi_binary": Case(S.MultiBinary(4)),
    "multi_binary_2d": Case(S.MultiBinary([2, 2])),
    "gaussian": Case(S.Box(-1, 1, (3,))),
    "gaussian_scalar": Case(S.Box(-np.inf, np.inf, ())),
    "gaussian_2d_float64": Case(S.Box(-1, 1, (2, 2), np.float64)),
    "squashed": Case(S.Box(-1, 1, (3,)), "squashed_gaussian"),
    "squashed_2d": Case(S.Box(np.float32([[-2, 0]]), np.float32([[5, 0.1]])), "squashed_gaussian"),
    "beta": Case(S.Box(-1, 1, (3,)), "beta"),
    "beta_scalar": Case(S.Box(-2, 5, ()), "beta"),
    "deterministic": Case(S.Box(-1, 1, (2, 2)), "deterministic"),
    "dirichlet": Case(S.Box(-1, 1, (4,)), "dirichlet"),
    "gumbel_softmax": Case(S.Box(0, 1, (3,)), "gumbel_softmax", {"temperature": 0.8}),
    "discrete_cool": Case(S.Discrete(4), None, {"temperature": 0.5}),
}
# One of each family, for tests that take seconds.
FAMILIES = [
    *("discrete_start", "multi_discrete_ragged", "multi_binary_2d", "gaussian_2d_float64"),
    *("squashed_2d", "beta_scalar", "deterministic", "dirichlet", "gumbel_softmax"),
]
RANDOM = [name for name in CASES if name != "deterministic"]


@pytest.fixture
def evaluate():
    """Runs a function of tensors on arrays, plain."""
    return Evaluator(jit_compile=False)


@pytest.fixture
def evaluate_compiled():
    """Runs a function of tensors on arrays, jit-compiled."""
    return Evaluator(jit_compile=True)


@pytest.fixture(params=CASES)
def case(request):
    """Every family and kind of space."""
    return CASES[request.param]


@pytest.fixture(params=FAMILIES)
def family_case(request):
    """Every family once."""
    return CASES[request.param]


@pytest.fixture(params=RANDOM)
def random_case(request):
    """Every family but Deterministic."""
    return CASES[request.param]
