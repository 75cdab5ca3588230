"""Scalars that follow a schedule or are adapted."""

import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.coefficient import Coefficients
from tfpolicy.schedules import make_schedule

SOURCES = {
    "lr": make_schedule([[0, 0.5], [10, 0.1]]),
    "kl_coeff": 0.2,
    "entropy_coeff": make_schedule(0.01),
    "count": 3,
}


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        graph.session = session
        yield graph


def test_each_is_a_scalar_variable_that_starts_at_timestep_0(graph):
    coefficients = Coefficients(SOURCES)
    assert list(coefficients) == list(SOURCES) and len(coefficients) == 4
    assert coefficients.current == {"lr": 0.5, "kl_coeff": 0.2, "entropy_coeff": 0.01, "count": 3.0}
    graph.session.run([variable.initializer for variable in coefficients.variables])
    values = graph.session.run({name: coefficients[name] for name in coefficients})
    assert values == {name: np.float32(value) for name, value in coefficients.current.items()}
    assert [variable.name for variable in coefficients.variables] == [
        f"coefficients/{name}:0" for name in SOURCES
    ]
    assert graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES) == []


def test_the_timestep_decides_those_with_a_schedule_and_no_others(graph):
    coefficients = Coefficients(SOURCES)
    for timestep, lr in ((0, 0.5), (5, 0.3), (10, 0.1), (99, 0.1)):
        found = coefficients.scheduled(timestep)
        assert found == pytest.approx({"lr": lr, "entropy_coeff": 0.01})
    assert coefficients.adaptive == ["kl_coeff", "count"]


def test_none_at_all_are_fine(graph):
    coefficients = Coefficients({})
    assert (dict(coefficients), coefficients.variables, coefficients.scheduled(3)) == ({}, [], {})
