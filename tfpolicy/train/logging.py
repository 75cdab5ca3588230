"""What a training run leaves behind: a CSV file, TensorBoard events, a picture, a console line."""

from __future__ import annotations

import csv
import math
import numbers
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import tqdm

from tfpolicy.files import atomic_file

PROGRESS_FILE = "progress.csv"

ITERATION = "training_iteration"
TIMESTEPS = "timesteps_total"

# Statistics of learning that are worth a place on the console, besides the losses.
_SHOWN_STATS = ("entropy", "kl")


def flatten_result(result: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers of a nested result by path, for example "learner_stats/vf_loss"; drops the rest."""
    flat: dict[str, float] = {}
    for key, value in result.items():
        if isinstance(value, Mapping):
            flat.update(flatten_result(value, f"{prefix}{key}/"))
        elif isinstance(value, numbers.Integral) and not isinstance(value, bool):
            flat[f"{prefix}{key}"] = int(value)
        elif isinstance(value, numbers.Real) and not isinstance(value, bool):
            flat[f"{prefix}{key}"] = float(value)
    return flat


class CsvLog:
    """Writes one row per iteration to `progress.csv`.

    Args:
        path: The file.
        last_iteration: What a resumed run goes on from: later rows of an existing file, written
            after the checkpoint, are dropped. `None` begins a new file.
    """

    def __init__(self, path: Path, last_iteration: int | None = None):
        self.path = path
        self.rows: list[dict[str, Any]] = []
        if last_iteration is not None and path.exists():
            with path.open(newline="") as file:
                rows = list(csv.DictReader(file))
            self.rows = [row for row in rows if int(row[ITERATION]) <= last_iteration]
        self._columns: list[str] = list(self.rows[0]) if self.rows else []
        self._rewrite()

    def write(self, row: Mapping[str, float]) -> None:
        """Appends a row; a column never seen before makes the file be written anew."""
        self.rows.append(dict(row))
        new = [name for name in row if name not in self._columns]
        if new:
            self._columns += new
            self._file.close()
            self._rewrite()
        else:
            self._writer.writerow(row)
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _rewrite(self) -> None:
        with atomic_file(self.path) as staged, staged.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            if self._columns:
                writer.writeheader()
                writer.writerows(self.rows)
        self._file = self.path.open("a", newline="")
        self._writer = csv.DictWriter(self._file, self._columns)


class EventLog:
    """Writes scalars for TensorBoard, over timesteps.

    Args:
        directory: Where the event file goes.
        timesteps: Where a run goes on; TensorBoard forgets later points of earlier files. 0 if new.
    """

    def __init__(self, directory: Path, timesteps: int = 0):
        import tensorflow as tf  # Seconds; only a run that logs needs it.

        self._v1 = tf.compat.v1
        # The summary writer of TF 2 needs the tensorboard package; that of TF 1 a graph around it.
        with tf.Graph().as_default():
            self._writer = self._v1.summary.FileWriter(str(directory))
        if timesteps:
            start = self._v1.SessionLog(status=self._v1.SessionLog.START)
            self._writer.add_session_log(start, timesteps + 1)

    def write(self, row: Mapping[str, float]) -> None:
        """Appends all scalars of one iteration."""
        make = self._v1.Summary.Value
        values = [make(tag=name, simple_value=float(value)) for name, value in row.items()]
        self._writer.add_summary(self._v1.Summary(value=values), int(row[TIMESTEPS]))
        self._writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        self._writer.close()


class Console:
    """Tells how training goes: a progress bar on a terminal, else a line per iteration.

    Args:
        total: Timesteps at which training ends.
        timesteps: Where it begins.
        stream: Where to write; the standard error by default.
    """

    def __init__(self, total: int, timesteps: int = 0, stream: TextIO | None = None):
        self._stream = stream or sys.stderr
        self._bar = None
        if self._stream.isatty():
            self._bar = tqdm.tqdm(
                total=total, initial=timesteps, unit="step", file=self._stream, dynamic_ncols=True
            )

    def write(self, result: Mapping[str, Any]) -> None:
        """Shows the result of an iteration."""
        if self._bar is None:
            self._stream.write(_line(result) + "\n")
            self._stream.flush()
            return
        # The last train batch may lead beyond the total, where a bar would give up its shape.
        self._bar.total = max(self._bar.total, result[TIMESTEPS])
        self._bar.set_postfix_str(", ".join(_highlights(result)), refresh=False)
        self._bar.update(result[TIMESTEPS] - self._bar.n)

    def say(self, text: str) -> None:
        """Writes a line of its own, above the bar if there is one."""
        if self._bar is None:
            self._stream.write(text + "\n")
            self._stream.flush()
        else:
            self._bar.write(text, file=self._stream)

    def close(self) -> None:
        """Ends the bar."""
        if self._bar is not None:
            self._bar.close()


def plot_learning_curve(rows: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draws mean, lowest and highest episode return over timesteps into a PNG file."""
    from matplotlib.figure import Figure

    def column(name: str) -> list[float]:
        return [float(row[name]) for row in rows]

    steps = column(TIMESTEPS)
    # A figure of its own: no pyplot, no display, no global state.
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    low, high = column("episode_return_min"), column("episode_return_max")
    axes.fill_between(steps, low, high, alpha=0.2, label="lowest to highest")
    axes.plot(steps, column("episode_return_mean"), label="mean of the last 100 episodes")
    axes.set(title=title, xlabel="environment steps", ylabel="episode return")
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    figure.savefig(path)


class RunLog:
    """All logs of one run in one directory.

    Args:
        directory: The run's directory, made if missing.
        total: Timesteps at which training ends.
        title: What the picture is called.
        resumed: The iteration and the timesteps that the run goes on from; `None` for a new run.
        stream: Where the console writes.
    """

    def __init__(
        self,
        directory: Path,
        total: int,
        title: str,
        resumed: tuple[int, int] | None = None,
        stream: TextIO | None = None,
    ):
        directory.mkdir(parents=True, exist_ok=True)
        iteration, timesteps = resumed or (None, 0)
        self._plot_path, self._title = directory / "learning_curve.png", title
        self._csv = CsvLog(directory / PROGRESS_FILE, iteration)
        self._events = EventLog(directory, timesteps)
        self.console = Console(total, timesteps, stream)

    def write(self, result: Mapping[str, Any]) -> None:
        """Logs the result of one iteration everywhere."""
        row = flatten_result(result)
        self._csv.write(row)
        self._events.write(row)
        self.console.write(result)

    def plot(self) -> None:
        """Draws the learning curve so far."""
        if self._csv.rows:
            plot_learning_curve(self._csv.rows, self._plot_path, self._title)

    def close(self) -> None:
        """Draws the last curve and closes all files."""
        self.plot()
        self.console.close()
        self._events.close()
        self._csv.close()


def _highlights(result: Mapping[str, Any]) -> Iterator[str]:
    mean = result["episode_return_mean"]
    yield "return -" if math.isnan(mean) else f"return {mean:.4g}"
    for name, value in result["learner_stats"].items():
        if name.endswith("loss") or name in _SHOWN_STATS:
            yield f"{name} {value:.3g}"


def _line(result: Mapping[str, Any]) -> str:
    return (
        f"iteration {result[ITERATION]} | {result[TIMESTEPS]:,} steps | "
        f"{result['env_steps_per_second']:,.0f} steps/s | " + " | ".join(_highlights(result))
    )
