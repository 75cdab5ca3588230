"""Which columns a policy deals with, and of what shape and dtype they are."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf

from tfpolicy.graph.views import (
    KEPT_COLUMNS,
    acting_specs,
    blank_rows,
    drawn_rows,
    dummy_trajectory,
    leaves_out_steps,
    offered_views,
    standard_views,
    trained_specs,
    used_views,
)
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.view_requirement import ViewRequirement

S = gym.spaces
OBS = S.Dict({"x": S.Box(-1, 1, (2,), np.float64), "image": S.Box(0, 255, (3,), np.uint8)})
ACTIONS = S.Box(-1, 1, (2,), np.float64)
F, F64, I64, U8 = tf.float32, tf.float64, tf.int64, tf.uint8


@pytest.fixture
def views():
    return standard_views(OBS, ACTIONS, [np.zeros(5, np.float32), np.zeros((2, 3), np.float32)])


def acted(rows):
    rng = np.random.default_rng(0)
    return {
        "obs": {"x": rng.normal(size=(rows, 2)), "image": np.ones((rows, 3), np.uint8)},
        "actions": rng.normal(size=(rows, 2)).astype(np.float32),
        "vf_preds": np.zeros(rows, np.float32),
        "state_in_0": np.zeros((rows, 5), np.float32),
    }


def test_previous_steps_and_states_may_be_read_while_acting_and_nothing_ahead(views):
    views["ahead"] = ViewRequirement("obs", OBS, "-1:1")
    views["behind"] = ViewRequirement("actions", None, "-3:-1")
    # The action at hand is what acting is to find out.
    views["with_the_present"] = ViewRequirement("actions", None, "-3:0")
    views["not_yet"] = ViewRequirement("rewards", None, 0)
    specs = acting_specs(views)
    assert specs == {
        "obs": {"x": tf.TensorSpec([2], F64), "image": tf.TensorSpec([3], U8)},
        # What the policy makes itself is float32.
        "prev_actions": tf.TensorSpec([2], F),
        "prev_rewards": tf.TensorSpec([], F),
        "state_in_0": tf.TensorSpec([5], F),
        "state_in_1": tf.TensorSpec([2, 3], F),
        "behind": tf.TensorSpec([3, 2], F),
    }


def test_every_view_of_other_steps_is_offered_with_its_mask(views):  # d3
    views["frames"] = ViewRequirement("obs", None, "-3:0")
    views["goal"] = ViewRequirement(None, OBS)
    offered = offered_views(views)
    masks = {"prev_actions_valid", "prev_rewards_valid", "frames_valid"}
    assert set(offered) - set(views) == masks
    specs = acting_specs(offered)
    assert specs["frames_valid"] == tf.TensorSpec([4], tf.bool)
    assert specs["prev_actions_valid"] == tf.TensorSpec([], tf.bool)
    rows = {name: blank_rows(specs, 2)[name] for name in specs}
    assert rows["frames_valid"].tolist() == [[False] * 4] * 2
    batch = SampleBatch(dummy_trajectory(offered, acted(2), 2, seed=0))
    assert batch["frames_valid"].tolist() == [[0, 0, 0, 1], [0, 0, 1, 1]]
    assert trained_specs(offered, batch)["frames_valid"] == tf.TensorSpec([4], tf.bool)


def test_a_view_of_ones_own_is_not_replaced_by_a_mask(views):
    views["prev_actions_valid"] = ViewRequirement("rewards", None, -1)
    assert offered_views(views)["prev_actions_valid"] is views["prev_actions_valid"]


@pytest.mark.parametrize(
    ("shift", "after"),
    [
        ("-3:0", None),
        ("-3:-1", None),
        (-1, None),
        ([-2, -1], None),
        (-2, [-1]),
        ("-5:-1:2", [-4, -2]),
        ([0, -4, -3], [-3, -2]),
    ],
)
def test_views_that_leave_out_steps_are_offered_as_they_will_be_a_step_later(shift, after):
    view = ViewRequirement("actions", ACTIONS, shift)
    offered = offered_views({"view": view})
    assert leaves_out_steps(view) == (after is not None)
    assert set(offered) == {"view", "view_valid"} | (
        {"view_after", "view_valid_after"} if after else set()
    )
    if after:
        assert offered["view_after"] == ViewRequirement(
            "actions", ACTIONS, after, used_for_compute_actions=False
        )


def test_a_view_for_acting_needs_a_space(views):
    views["mystery"] = ViewRequirement("infos", shift=-1)
    with pytest.raises(ValueError, match="must have a space, got ViewRequirement"):
        acting_specs(views)


def test_before_the_first_step_everything_is_zero_of_its_dtype(views):
    rows = blank_rows(acting_specs(views), 4)
    assert rows["obs"]["image"].dtype == np.uint8 and rows["obs"]["image"].shape == (4, 3)
    assert rows["state_in_1"].shape == (4, 2, 3)
    assert not any(leaf.any() for leaf in tf.nest.flatten(rows))


def test_rows_to_try_an_export_on_tell_steps_apart_but_actions_are_zeros(views):
    views["window"] = ViewRequirement("obs", None, "-2:0")
    views["behind"] = ViewRequirement("actions", None, "-3:-1")
    offered = offered_views(views)
    specs = acting_specs(offered)
    rows = drawn_rows(offered, specs, 50, seed=0)
    assert rows.keys() == specs.keys()
    for name, spec in specs.items():
        leaves = zip(tf.nest.flatten(spec), tf.nest.flatten(rows[name]), strict=True)
        for leaf_spec, leaf in leaves:
            assert leaf.shape == (50, *leaf_spec.shape), name
            assert leaf.dtype == leaf_spec.dtype.as_numpy_dtype, name
    image = rows["window"]["image"]
    assert (image[:, 0] != image[:, 1]).any() and (image[0] != image[1]).any()
    assert 0 < rows["window_valid"].mean() < 1
    assert not rows["behind"].any() and not rows["prev_actions"].any()
    assert rows["prev_rewards"].any()


def test_the_made_up_trajectory_is_one_episode_that_goes_on(views):  # d8, d14
    views["window"] = ViewRequirement("rewards", None, "-1:0")
    columns = dummy_trajectory(views, acted(2), 2, seed=0)
    batch = SampleBatch(columns)
    assert batch.count == 2 and not batch["dones"].any()
    assert len(set(batch["eps_id"])) == 1 and batch["t"].tolist() == [0, 1]
    assert list(batch["infos"]) == [{}, {}]
    # Drawn, for some networks cannot take an observation of zeros.
    assert np.abs(batch["new_obs"]["x"]).min() > 0
    np.testing.assert_array_equal(batch["prev_actions"][1], batch["actions"][0])
    np.testing.assert_array_equal(batch["prev_rewards"], [0, 1])
    np.testing.assert_array_equal(batch["window"], [[0, 1], [1, 1]])


def test_a_loss_reads_what_the_batch_has_in_float32_but_observations_as_they_are(views):
    columns = dummy_trajectory(views, acted(2), 2, seed=0)
    columns["advantages"] = np.zeros(2, np.float64)
    specs = trained_specs(views, SampleBatch(columns))
    assert specs["obs"] == specs["new_obs"] == acting_specs(views)["obs"]
    assert specs["advantages"] == specs["rewards"] == tf.TensorSpec([], F)
    assert specs["eps_id"] == tf.TensorSpec([], I64)
    assert specs["terminateds"] == tf.TensorSpec([], tf.bool)
    assert specs["seq_lens"] == tf.TensorSpec([], tf.int32)
    assert "infos" not in specs


def test_what_nothing_reads_is_dropped_and_what_writers_need_is_kept(views):  # d6
    used = used_views(views, {"obs", "prev_actions"}, {"obs", "actions", "vf_preds", "advantages"})
    assert set(used) == {*KEPT_COLUMNS, "prev_actions", "vf_preds"}
    flags = {
        name: (view.used_for_compute_actions, view.used_for_training) for name, view in used.items()
    }
    assert flags["obs"] == (True, True)
    assert flags["prev_actions"] == (True, False)
    assert flags["vf_preds"] == flags["actions"] == (False, True)
    assert flags["rewards"] == flags["infos"] == (False, False)
    assert used["prev_actions"].shift == -1 and used["prev_actions"].data_col == "actions"
