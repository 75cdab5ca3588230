import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfpolicy.view_requirement import History, ViewRequirement

COLUMN = np.array([1, 2, 3, 4])


def slow_view(column, offsets):
    """What is seen at each step, one step and one offset at a time: [T, K]."""
    view = np.zeros((len(column), len(offsets)), column.dtype)
    for t in range(len(column)):
        for k, offset in enumerate(offsets):
            if 0 <= t + offset < len(column):
                view[t, k] = column[t + offset]
    return view


@pytest.mark.parametrize(
    ("shift", "offsets", "is_window"),
    [
        (0, (0,), False),
        (-1, (-1,), False),
        (np.int64(2), (2,), False),
        ([0], (0,), True),
        ([-3, 0, 2], (-3, 0, 2), True),
        ((1, -1), (1, -1), True),
        (np.array([-1, 0]), (-1, 0), True),
        ("0:0", (0,), True),
        ("0:2", (0, 1, 2), True),
        ("-3:0", (-3, -2, -1, 0), True),
        ("-2:1", (-2, -1, 0, 1), True),
        ("1:3", (1, 2, 3), True),
        ("-6:-1:2", (-6, -4, -2), True),
        ("-5:-1:2", (-5, -3, -1), True),
        ("-2:0:5", (-2,), True),
    ],
)
def test_shift_is_read_as(shift, offsets, is_window):
    view = ViewRequirement(shift=shift)
    assert view.offsets == offsets
    assert view.is_window is is_window


@pytest.mark.parametrize(
    ("shift", "error", "message"),
    [
        ("", ValueError, 'expected "from:to" or "from:to:step", got ""'),
        ("-1", ValueError, 'expected "from:to"'),
        ("a:b", ValueError, 'expected "from:to"'),
        ("1:2:3:4", ValueError, 'expected "from:to"'),
        ("0.5:1", ValueError, 'expected "from:to"'),
        ("0:2:-1", ValueError, 'expected "from:to"'),
        (" 0:2", ValueError, 'expected "from:to"'),
        ("0:-3", ValueError, 'expected from <= to and a positive step, got "0:-3"'),
        ("-3:0:0", ValueError, "a positive step"),
        ([], ValueError, "at least one offset"),
        (True, TypeError, "expected int offsets, got True"),
        ([0.5], TypeError, "expected int offsets, got 0.5"),
        (["0"], TypeError, "expected int offsets, got '0'"),
    ],
)
def test_shift_is_refused(shift, error, message):
    with pytest.raises(error, match=message):
        ViewRequirement(shift=shift)


def test_batch_repeat_value_must_be_positive():
    with pytest.raises(ValueError, match="`batch_repeat_value` must be positive, got 0"):
        ViewRequirement(batch_repeat_value=0)


@pytest.mark.parametrize(
    ("shift", "expected"),
    [
        (0, [1, 2, 3, 4]),
        (-1, [0, 1, 2, 3]),
        (-9, [0, 0, 0, 0]),
        # Case d2: the future of any column, not only of observations.
        (1, [2, 3, 4, 0]),
        (9, [0, 0, 0, 0]),
        ([0], [[1], [2], [3], [4]]),
        ("-2:0", [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]),
        ("0:1", [[1, 2], [2, 3], [3, 4], [4, 0]]),
        ("-1:1", [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 0]]),
        ("-4:-1:3", [[0, 0], [0, 1], [0, 2], [0, 3]]),
        ([1, -1], [[2, 0], [3, 1], [4, 2], [0, 3]]),
    ],
)
def test_view_of_a_trajectory_by_hand(shift, expected):
    np.testing.assert_array_equal(ViewRequirement(shift=shift).apply(COLUMN), expected)


@settings(deadline=None)
@given(
    length=st.integers(0, 8),
    offsets=st.lists(st.integers(-10, 10), min_size=1, max_size=5),
    repeat=st.integers(1, 4),
)
def test_view_equals_looking_step_by_step(length, offsets, repeat):
    column = np.arange(1, length + 1)
    view = ViewRequirement(shift=offsets, batch_repeat_value=repeat)
    expected = slow_view(column, offsets)[::repeat]
    np.testing.assert_array_equal(view.apply(column), expected)
    # Data is never zero here, so the mask is where the view is not.
    np.testing.assert_array_equal(view.valid(length), expected != 0)


@pytest.mark.parametrize("name", ["obs", "actions", "rewards", "terminateds", "infos"])
def test_next_value_of_every_column_is_padded_at_the_end(name):
    # Case d2.
    columns = {
        "obs": np.ones((3, 2), np.float32),
        "actions": np.array([5, 6, 7]),
        "rewards": np.array([0.5, 1.0, 2.0]),
        "terminateds": np.array([True, True, True]),
        "infos": np.array([{"i": 0}, {"i": 1}, {"i": 2}]),
    }
    column = columns[name]
    seen = ViewRequirement(data_col=name, shift=1).apply(column)
    assert seen.dtype == column.dtype
    np.testing.assert_array_equal(seen[:2], column[1:])
    assert not np.any(seen[2])


def test_first_step_sees_zeros_and_not_copies_of_the_first_value():
    # Case d5.
    previous = ViewRequirement(data_col="actions", shift="-2:-1").apply(np.array([[7.0], [8.0]]))
    np.testing.assert_array_equal(previous, [[[0.0], [0.0]], [[0.0], [7.0]]])


def test_padding_can_be_told_from_a_real_zero():
    # Case d3: action 0 was taken at step 0.
    view = ViewRequirement(data_col="actions", shift=-1)
    np.testing.assert_array_equal(view.apply(np.array([0, 3])), [0, 0])
    np.testing.assert_array_equal(view.valid(2), [False, True])


def test_mask_of_a_view_is_seen_instead_of_its_values_whatever_these_are():  # d3
    column = {"a": np.zeros((3, 2)), "b": (np.array([{}, {}, {}], object),)}
    view = ViewRequirement("actions", shift="-1:1", as_mask=True)
    expected = [[False, True, True], [True, True, True], [True, True, False]]
    assert view.apply(column).tolist() == expected
    assert ViewRequirement(shift=-2, as_mask=True).apply(COLUMN).tolist() == [0, 0, 1, 1]
    assert ViewRequirement(shift=-2, as_mask=True).apply(COLUMN).dtype == bool


def test_repeated_value_is_that_of_the_first_of_its_rows():
    view = ViewRequirement(shift="-1:0", batch_repeat_value=3)
    np.testing.assert_array_equal(view.apply(COLUMN), [[0, 1], [3, 4]])
    assert ViewRequirement(batch_repeat_value=2).apply(COLUMN).tolist() == [1, 3]


def test_nested_columns_are_seen_array_by_array():
    seen = ViewRequirement(shift=-1).apply({"a": COLUMN, "b": (COLUMN * 10.0,)})
    np.testing.assert_array_equal(seen["a"], [0, 1, 2, 3])
    np.testing.assert_array_equal(seen["b"][0], [0.0, 10.0, 20.0, 30.0])


def test_unshifted_view_is_the_column_itself():
    assert ViewRequirement().apply(COLUMN) is COLUMN


def test_shifted_view_shares_no_memory_with_the_column():
    assert not np.shares_memory(ViewRequirement(shift=[0]).apply(COLUMN), COLUMN)
    assert not np.shares_memory(ViewRequirement(shift=1).apply(COLUMN), COLUMN)


@pytest.mark.parametrize(
    ("name", "view", "is_past"),
    [
        ("obs", ViewRequirement(), True),
        ("frames", ViewRequirement("obs", shift="-3:0"), True),
        ("frames", ViewRequirement("obs", shift="-3:1"), False),
        ("last", ViewRequirement("actions", shift=-1), True),
        ("last", ViewRequirement("actions", shift="-1:0"), False),
        ("rewards", ViewRequirement(shift=[-2, -1]), True),
        ("rewards", ViewRequirement(), False),
    ],
)
def test_before_a_step_is_acted_on_its_observation_is_known_and_nothing_else(name, view, is_past):
    assert view.is_past(name) is is_past


def test_equal_requirements_compare_equal():
    assert ViewRequirement("obs", shift="-3:0") == ViewRequirement("obs", shift="-3:0")
    assert ViewRequirement("obs", shift="-3:0") != ViewRequirement("obs", shift="-2:0")


VIEWS = {
    "obs": ViewRequirement(),
    "last_obs": ViewRequirement("obs", shift="-2:0"),
    "prev_actions": ViewRequirement("actions", gym.spaces.Discrete(9), shift=-1),
    "prev_rewards": ViewRequirement("rewards", shift=[-2, -1]),
    "actions": ViewRequirement(used_for_compute_actions=False),
    "new_obs": ViewRequirement("obs", shift=1),
}


def step(history, obs, actions=None, rewards=None):
    """Shows `obs`, returns what is seen, then acts."""
    history.append({"obs": np.float32(obs)})
    seen = history.views()
    if actions is not None:
        history.append({"actions": np.int64(actions), "rewards": np.float32(rewards)})
    return seen


def test_history_has_the_views_that_are_acted_on_and_look_back():
    history = History(VIEWS, num_envs=2)
    assert history.views().keys() == {"obs", "last_obs", "prev_actions", "prev_rewards"}


def test_history_of_two_environments_by_hand():
    history = History(VIEWS, num_envs=2)
    seen = step(history, [10, 20], actions=[1, 2], rewards=[0.1, 0.2])
    np.testing.assert_array_equal(seen["obs"], [10, 20])
    np.testing.assert_array_equal(seen["last_obs"], [[0, 0, 10], [0, 0, 20]])
    np.testing.assert_array_equal(seen["prev_actions"], [0, 0])
    np.testing.assert_array_equal(seen["prev_rewards"], np.zeros((2, 2)))

    seen = step(history, [11, 21], actions=[3, 4], rewards=[0.3, 0.4])
    np.testing.assert_array_equal(seen["last_obs"], [[0, 10, 11], [0, 20, 21]])
    np.testing.assert_array_equal(seen["prev_actions"], [1, 2])
    np.testing.assert_array_equal(seen["prev_rewards"], np.float32([[0, 0.1], [0, 0.2]]))
    history.reset([True, False])

    seen = step(history, [12, 22], actions=[5, 6], rewards=[0.5, 0.6])
    np.testing.assert_array_equal(seen["obs"], [12, 22])
    np.testing.assert_array_equal(seen["last_obs"], [[0, 0, 12], [20, 21, 22]])
    np.testing.assert_array_equal(seen["prev_actions"], [0, 4])
    np.testing.assert_array_equal(seen["prev_rewards"], np.float32([[0, 0], [0.2, 0.4]]))
    np.testing.assert_array_equal(
        history.valid("last_obs"), [[False, False, True], [True, True, True]]
    )
    np.testing.assert_array_equal(history.valid("prev_actions"), [False, True])

    seen = step(history, [13, 23])
    np.testing.assert_array_equal(seen["last_obs"], [[0, 12, 13], [21, 22, 23]])
    np.testing.assert_array_equal(seen["prev_actions"], [5, 6])
    np.testing.assert_array_equal(seen["prev_rewards"], np.float32([[0, 0.5], [0.4, 0.6]]))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    offsets=st.lists(st.integers(-5, 0), min_size=1, max_size=4),
    data_col=st.sampled_from(["obs", "actions"]),
)
def test_acting_sees_what_the_trajectory_shows_later(seed, offsets, data_col):
    # An action is unknown when it is chosen.
    offsets = [min(offset, -1) if data_col == "actions" else offset for offset in offsets]
    view = ViewRequirement(data_col, gym.spaces.Box(-9, 9, (2,)), shift=offsets)
    rng = np.random.default_rng(seed)
    columns = {name: rng.normal(size=(20, 3, 2)).astype(np.float32) for name in ("obs", "actions")}
    ended = rng.random((20, 3)) < 0.2
    history, seen = History({"view": view}, num_envs=3), []
    for t in range(20):
        history.append({"obs": columns["obs"][t]})
        seen.append(history.views()["view"])
        history.append({"actions": columns["actions"][t]})
        history.reset(ended[t])
    for env in range(3):
        starts = [0, *(np.flatnonzero(ended[:, env]) + 1), 20]
        for a, b in zip(starts, starts[1:], strict=False):
            expected = view.apply(columns[data_col][a:b, env])
            np.testing.assert_array_equal(np.array(seen)[a:b, env], expected)


def test_history_shows_masks_beside_values_or_alone():  # d3
    views = {
        "frames": ViewRequirement("obs", shift="-2:0"),
        "frames_valid": ViewRequirement("obs", shift="-2:0", as_mask=True),
        "acted": ViewRequirement("actions", shift=-1, as_mask=True),
    }
    history = History(views, num_envs=2)
    for step in range(3):
        history.append({"obs": np.zeros((2, 4))})
        seen = history.views()
        assert seen["frames"].shape == (2, 3, 4)
        expected = [step > 1, step > 0, True]
        assert seen["frames_valid"].tolist() == [expected, expected]
        assert seen["acted"].tolist() == [step > 0] * 2
        history.append({"actions": np.zeros((2, 1))})
    history.reset(np.array([True, False]))
    history.append({"obs": np.zeros((2, 4))})
    assert history.views()["frames_valid"].tolist() == [[False, False, True], [True] * 3]
    assert history.views()["acted"].tolist() == [False, True]


def test_without_observations_the_present_is_the_step_after_the_latest_action():
    history = History({"prev_actions": VIEWS["prev_actions"]}, num_envs=1)
    for action in (4, 5):
        history.append({"actions": np.array([action])})
        np.testing.assert_array_equal(history.views()["prev_actions"], [action])
    history.reset([True])
    np.testing.assert_array_equal(history.views()["prev_actions"], [0])
    history.append({"actions": np.array([6])})
    np.testing.assert_array_equal(history.views()["prev_actions"], [6])


def test_value_that_is_not_known_yet_is_zero():
    history = History({"actions": ViewRequirement(shift="-1:0")}, num_envs=1)
    for t in range(4):
        history.append({"obs": np.zeros(1)})
        np.testing.assert_array_equal(history.views()["actions"], [[t, 0]])
        history.append({"actions": np.array([t + 1.0])})


def test_what_is_seen_in_place_of_zeros_can_be_given():
    views = {
        "last": ViewRequirement("actions", shift="-2:-1"),
        "last_valid": ViewRequirement("actions", shift="-2:-1", as_mask=True),
        "rewards_before": ViewRequirement("rewards", shift=-1),
    }
    history = History(views, 2, blanks={"actions": {"a": np.float32(7), "b": np.array([1, 2])}})
    history.append({"obs": np.zeros(2)})
    history.append({"actions": {"a": np.float32([3, 4]), "b": np.zeros((2, 2), int)}})
    history.append({"obs": np.zeros(2), "rewards": np.ones(2)})
    seen = history.views()
    assert seen["last"]["a"].tolist() == [[7, 3], [7, 4]]
    assert seen["last"]["b"][0].tolist() == [[1, 2], [0, 0]]
    assert seen["last_valid"].tolist() == [[False, True]] * 2
    history.reset(np.array([True, False]))
    history.append({"obs": np.zeros(2)})
    assert history.views()["rewards_before"].tolist() == [0, 0]


def test_views_before_the_first_value_have_the_shape_and_dtype_of_the_space():
    space = gym.spaces.Dict(
        {
            "a": gym.spaces.Box(0, 255, (2, 2), np.uint8),
            "b": gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.MultiBinary(4)]),
        }
    )
    seen = History({"x": ViewRequirement(space=space, shift="-1:0")}, num_envs=3).views()["x"]
    assert (seen["a"].shape, seen["a"].dtype) == ((3, 2, 2, 2), np.uint8)
    assert (seen["b"][0].shape, seen["b"][0].dtype) == ((3, 2), np.int64)
    assert (seen["b"][1].shape, seen["b"][1].dtype) == ((3, 2, 4), np.int8)


def test_nested_values_are_remembered():
    history = History({"prev": ViewRequirement("obs", shift=-1)}, num_envs=2)
    for t in range(3):
        history.append({"obs": {"a": np.full((2, 3), t), "b": (np.full(2, 10 * t),)}})
    np.testing.assert_array_equal(history.views()["prev"]["a"], np.full((2, 3), 1))
    np.testing.assert_array_equal(history.views()["prev"]["b"][0], [10, 10])


def test_views_do_not_change_when_time_goes_on():
    history = History(VIEWS, num_envs=1)
    seen = step(history, [1], actions=[1], rewards=[1])
    for t in range(2, 6):
        step(history, [t], actions=[t], rewards=[t])
    np.testing.assert_array_equal(seen["obs"], [1])
    np.testing.assert_array_equal(seen["last_obs"], [[0, 0, 1]])


def test_values_take_the_dtype_of_the_space():
    view = ViewRequirement("rewards", gym.spaces.Box(-1, 1, (), np.float32), shift=-1)
    history = History({"prev_rewards": view}, num_envs=1)
    history.append({"rewards": np.array([0.5], np.float64)})
    assert history.views()["prev_rewards"].dtype == np.float32


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"obs": np.zeros(3)}, ValueError, "`obs`: expected 2 rows, one an environment, got 3"),
        ({"obs": 1.0}, ValueError, "`obs`: .*scalar"),
        (
            {"actions": np.zeros((2, 1), int)},
            ValueError,
            r"`actions`: expected \(2,\), got \(2, 1\)",
        ),
        ({"actions": np.zeros(2)}, TypeError, "`actions`: expected int64, got float64"),
    ],
)
def test_append_refuses(columns, error, message):
    with pytest.raises(error, match=message):
        History(VIEWS, num_envs=2).append(columns)


def test_history_refuses_what_does_not_fit_its_environments():
    with pytest.raises(ValueError, match="`num_envs` must be positive, got 0"):
        History(VIEWS, num_envs=0)
    history = History(VIEWS, num_envs=2)
    with pytest.raises(ValueError, match=r"`env_mask`: expected \(2,\), got \(1,\)"):
        history.reset([True])
    with pytest.raises(KeyError, match="No view `new_obs` while acting; known"):
        history.valid("new_obs")
