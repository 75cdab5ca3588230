"""The choice of an exploration by a config."""

import inspect

import pytest
from gymnasium.spaces import Box, Discrete

from tfpolicy.distributions import distribution_for
from tfpolicy.exploration import (
    EpsilonGreedy,
    Exploration,
    GaussianNoise,
    Random,
    StochasticSampling,
    exploration_for,
)

CHOICES = Discrete(3)
BOX = Box(-1, 1, (2,))


def make(config, space=CHOICES):
    return exploration_for(config, space, distribution_for(space))


@pytest.mark.parametrize(
    ("config", "space", "kind"),
    [
        ({"type": "StochasticSampling"}, CHOICES, StochasticSampling),
        ({"type": "Random"}, BOX, Random),
        ({"type": "EpsilonGreedy", "final_epsilon": 0.1}, CHOICES, EpsilonGreedy),
        ({"type": "GaussianNoise", "stddev": 0.5}, BOX, GaussianNoise),
        ({"type": Random}, CHOICES, Random),
    ],
)
def test_a_config_names_a_class_and_its_options(config, space, kind):
    exploration = make(config, space)
    assert type(exploration) is kind
    assert exploration.action_space is space


class Fixed(Exploration):
    def __init__(self, action_space, action_dist, action):
        super().__init__(action_space, action_dist)
        self.action = action

    def actions(self, distribution, scalars, seed):
        raise NotImplementedError


def test_a_class_of_ones_own_takes_its_own_options():
    assert make({"type": Fixed, "action": 2}).action == 2


def test_the_config_is_left_as_it_is():
    config = {"type": "Random"}
    make(config)
    assert config == {"type": "Random"}


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"type": "EpsilonGredy"}, ValueError, "'EpsilonGredy'; did you mean 'EpsilonGreedy'"),
        ({}, ValueError, "type None.* Known: EpsilonGreedy, GaussianNoise, Random, Stoch"),
        ({"type": 5}, TypeError, "a name or a subclass of Exploration, got 5"),
        ({"type": dict}, TypeError, "a name or a subclass of Exploration, got <class 'dict'>"),
        (
            {"type": "EpsilonGreedy", "final_epsilom": 0.1},
            ValueError,
            "'final_epsilom' of EpsilonGreedy; did you mean 'final_epsilon'",
        ),
        ({"type": "Random", "x": 1}, ValueError, "'x' of Random. Known: none"),
    ],
)
def test_what_is_unknown_is_refused_with_the_nearest_known(config, error, message):
    with pytest.raises(error, match=message):
        make(config)


@pytest.mark.parametrize("kind", [EpsilonGreedy, GaussianNoise, Random, StochasticSampling])
def test_every_option_has_a_default(kind):
    parameters = list(inspect.signature(kind).parameters.values())[2:]
    assert all(p.default is not p.empty for p in parameters)


@pytest.mark.parametrize(
    ("config", "space"),
    [
        ({"type": "StochasticSampling", "random_timesteps": 5}, CHOICES),
        ({"type": "Random"}, CHOICES),
        ({"type": "EpsilonGreedy"}, CHOICES),
        ({"type": "GaussianNoise", "random_timesteps": 5}, BOX),
    ],
)
def test_a_restored_exploration_goes_on_where_it_was(config, space):  # e30
    before, after = make(config, space), make(config, space)
    state = before.get_state(timestep=700)
    after.set_state(state)
    assert after.get_state(700) == state
    assert after.scalars(700) == before.scalars(700)
    assert all(type(value) in (int, float) for value in state.values())
