"""Timing several ways to do one thing so that their ratios hold on a noisy machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence


def medians(
    functions: Mapping[str, Callable[[], object]], *, repeats: int = 30, calls: int = 50
) -> dict[str, float]:
    """Seconds per call of each function: the median over rounds in which all of them take turns.

    A machine that slows down slows all of them, so that ratios of the results stay.

    Args:
        functions: What to time, by name; each is called twice before anything is timed.
        repeats: Rounds.
        calls: Calls of each function in a round.
    """
    for function in functions.values():
        function()
        function()
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            begin = time.perf_counter()
            for _ in range(calls):
                function()
            seconds[name].append((time.perf_counter() - begin) / calls)
    return {name: statistics.median(values) for name, values in seconds.items()}


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a Markdown table under a heading."""
    print(f"\n## {title}\n")
    print(f"| {' | '.join(header)} |")
    print(f"| {' | '.join('---' for _ in header)} |")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
