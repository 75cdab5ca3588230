"""Every pair of spaces that has a policy has one that can do all."""

import pytest
import space_contract
from space_pairs import PAIRS


@pytest.fixture(scope="module", params=PAIRS)
def policy(request):
    with space_contract.build(*PAIRS[request.param]) as built:
        built.start = built.get_state()
        yield built


@pytest.fixture(autouse=True)
def _start_again(policy):
    policy.set_state(policy.start)


@pytest.fixture(scope="module")
def batch(policy):
    return space_contract.sample(policy)


def test_acting_gives_actions_of_the_space_and_greedily_the_same_ones(policy, batch):
    space_contract.check_acting(policy, batch)


def test_a_single_action_is_contained_in_the_space(policy, batch):  # e3, e10
    space_contract.check_single_actions(policy, batch)


def test_log_likelihoods_are_those_of_acting(policy, batch):  # e9, j10, j11
    space_contract.check_log_likelihoods(policy, batch)


def test_a_batch_is_learned_from(policy, batch):
    space_contract.check_learning(policy, batch)


def test_two_towers_learn_as_one(policy, batch):
    space_contract.check_towers(policy, batch)


def test_a_restored_policy_goes_on_bit_for_bit(policy, batch, tmp_path):
    space_contract.check_state(policy, batch, tmp_path / "checkpoint")


def test_a_saved_model_acts_as_the_policy(policy, batch, tmp_path):
    space_contract.check_saved_model(policy, batch, tmp_path)


def test_weights_go_to_h5_and_back(policy, tmp_path):
    space_contract.check_h5(policy, tmp_path / "weights.h5")
