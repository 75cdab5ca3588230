import csv
import io
import math

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tfpolicy.train.logging import Console, CsvLog, EventLog, RunLog, flatten_result


def _result(iteration, mean=float(10), **stats):
    return {
        "training_iteration": iteration,
        "timesteps_total": iteration * 100,
        "env_steps_per_second": 1234.5,
        "episode_return_mean": mean,
        "episode_return_min": mean - 1,
        "episode_return_max": mean + 1,
        "learner_stats": {"policy_loss": 0.25, "kl": 0.5, "lr": 1.0, **stats},
        "custom_metrics": {},
    }


def _rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _events(directory):
    """(step, tag, value) of all files in a directory, in the order in which they were written."""
    found = []
    for path in sorted(directory.glob("events.out.tfevents*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            found += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
            if event.HasField("session_log"):
                found.append((event.step, "session_log", event.session_log.status))
    return found


def test_results_are_flattened_to_numbers_by_path():
    result = {"a": 1, "b": {"c": np.float32(0.5), "d": {"e": np.int64(3)}}, "f": "text", "g": True}
    flat = flatten_result(result)
    assert flat == {"a": 1, "b/c": 0.5, "b/d/e": 3}
    assert {type(value) for value in flat.values()} == {int, float}


def test_csv_rows_are_on_disk_at_once_and_exact(tmp_path):
    log = CsvLog(tmp_path / "progress.csv")
    log.write({"training_iteration": 1, "x": 0.1 + 0.2})
    assert [float(row["x"]) for row in _rows(log.path)] == [0.1 + 0.2]
    log.write({"training_iteration": 2, "x": math.nan})
    assert _rows(log.path)[1] == {"training_iteration": "2", "x": "nan"}
    log.close()


def test_a_column_that_comes_later_gets_its_place(tmp_path):
    log = CsvLog(tmp_path / "progress.csv")
    log.write({"training_iteration": 1, "x": 1})
    log.write({"training_iteration": 2, "y": 2})
    log.close()
    assert _rows(log.path) == [
        {"training_iteration": "1", "x": "1", "y": ""},
        {"training_iteration": "2", "x": "", "y": "2"},
    ]


def test_a_resumed_csv_drops_what_came_after_the_checkpoint(tmp_path):
    path = tmp_path / "progress.csv"
    log = CsvLog(path)
    for iteration in range(1, 6):
        log.write({"training_iteration": iteration, "x": iteration / 7})
    log.close()
    before = path.read_text().splitlines()
    resumed = CsvLog(path, last_iteration=3)
    assert path.read_text().splitlines() == before[:4]
    for iteration in range(4, 6):
        resumed.write({"training_iteration": iteration, "x": iteration / 7})
    resumed.close()
    assert path.read_text().splitlines() == before


def test_tensorboard_events_hold_every_scalar_over_timesteps(tmp_path):
    log = EventLog(tmp_path)
    log.write({"timesteps_total": 100, "loss": 0.5})
    log.write({"timesteps_total": 200, "loss": 0.25})
    log.close()
    assert [e for e in _events(tmp_path) if e[1] == "loss"] == [
        (100, "loss", 0.5),
        (200, "loss", 0.25),
    ]


def test_resumed_events_tell_tensorboard_to_forget_later_ones(tmp_path):
    log = EventLog(tmp_path, timesteps=300)
    log.write({"timesteps_total": 400, "loss": 0.5})
    log.close()
    start = tf.compat.v1.SessionLog.START
    assert (301, "session_log", start) in _events(tmp_path)


def test_without_a_terminal_there_is_one_line_per_iteration():
    stream = io.StringIO()
    console = Console(1000, stream=stream)
    console.write(_result(1))
    console.write(_result(2, mean=math.nan))
    console.say("Something else.")
    console.close()
    assert stream.getvalue().splitlines() == [
        "iteration 1 | 100 steps | 1,234 steps/s | return 10 | policy_loss 0.25 | kl 0.5",
        "iteration 2 | 200 steps | 1,234 steps/s | return - | policy_loss 0.25 | kl 0.5",
        "Something else.",
    ]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_there_is_a_bar_with_return_and_losses():
    stream = Terminal()
    console = Console(1000, timesteps=50, stream=stream)
    console.write(_result(1))
    console.write(_result(5))
    console.say("Something else.")
    console.close()
    last = stream.getvalue().split("\r")[-1]
    assert "500/1000" in last and "step/s" in last
    assert "return 10, policy_loss 0.25, kl 0.5" in last
    assert "Something else.\n" in stream.getvalue()


@pytest.mark.parametrize("means", [[], [1.0], [math.nan, 2.0, 3.0]])
def test_a_run_leaves_csv_events_and_a_picture(tmp_path, means):
    log = RunLog(tmp_path / "run", 1000, "a title", stream=io.StringIO())
    for iteration, mean in enumerate(means, 1):
        log.write(_result(iteration, mean))
    log.close()
    assert len(_rows(tmp_path / "run" / "progress.csv")) == len(means)
    assert len([e for e in _events(tmp_path / "run") if e[1] == "learner_stats/kl"]) == len(means)
    picture = tmp_path / "run" / "learning_curve.png"
    assert picture.exists() == bool(means)
    if means:
        assert Image.open(picture).size == (800, 500)


def test_a_resumed_run_draws_the_whole_curve(tmp_path):
    log = RunLog(tmp_path, 1000, "a title", stream=io.StringIO())
    for iteration in (1, 2, 3):
        log.write(_result(iteration))
    log.close()
    resumed = RunLog(tmp_path, 1000, "a title", resumed=(2, 200), stream=io.StringIO())
    resumed.write(_result(3))
    resumed.close()
    assert [row["training_iteration"] for row in _rows(tmp_path / "progress.csv")] == list("123")
