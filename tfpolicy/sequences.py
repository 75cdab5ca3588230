"""Sequences: cutting rows at episode ends and padding the pieces to one length."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from tfpolicy.columns import Column, as_column, blank, map_column, row_count, select


def sequence_ends(batch: Mapping[str, Any]) -> np.ndarray:
    """Returns `[B]` bool: after which rows the next row is no continuation.

    That is where an episode ends, and where `eps_id` or `unroll_id` change: a batch is put together
    from fragments of several episodes, most of which go on after it.

    Args:
        batch: `terminateds` and `truncateds`, and `eps_id` and `unroll_id` where it has them.
    """
    ends = np.array(batch["terminateds"], dtype=bool) | np.asarray(batch["truncateds"], dtype=bool)
    for name in ("eps_id", "unroll_id"):
        if name in batch:
            column = np.asarray(batch[name])
            ends[:-1] |= column[1:] != column[:-1]
    return ends


def sequence_lengths(ends: Any, max_seq_len: int) -> np.ndarray:
    """Returns the lengths of the sequences that consecutive rows are cut into.

    A sequence ends with an episode, after `max_seq_len` rows, and with the last row.

    Args:
        ends: `[B]` bool, whether the row is the last of its episode (terminated or truncated).
        max_seq_len: The most rows a sequence may have.

    Returns:
        `[S]` int32, positive, with the sum `B`.
    """
    _check_max_seq_len(max_seq_len)
    ends = np.asarray(ends, dtype=bool)
    if ends.ndim != 1:
        raise ValueError(f"`ends`: expected shape [B], got {ends.shape}.")
    boundaries = np.flatnonzero(ends) + 1
    if ends.size and not ends[-1]:
        boundaries = np.append(boundaries, ends.size)
    episodes = np.diff(boundaries, prepend=0)
    # Every piece of an episode is full but its last, which holds what the others leave over.
    pieces = -(-episodes // max_seq_len)
    lengths = np.full(pieces.sum(), max_seq_len, dtype=np.int32)
    lengths[np.cumsum(pieces) - 1] = episodes - (pieces - 1) * max_seq_len
    return lengths


def overlapping_sequences(
    ends: Any, max_seq_len: int, burn_in: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cuts rows into sequences that begin with rows which only warm up a recurrent state.

    The first sequence of an episode begins with its first row, any other with the last `burn_in`
    rows of the one before: each row is learned from once (Kapturowski et al. 2019, R2D2,
    https://openreview.net/forum?id=r1lyTjAqYX).

    Args:
        ends: `[B]` bool, whether the row is the last of its episode (terminated or truncated).
        max_seq_len: The most rows a sequence may have, those for warming up included.
        burn_in: How many rows warm up, less than `max_seq_len`.

    Returns:
        For each row of the sequences its index, `[B']`; the lengths of the sequences, `[S]` int32;
        whether the row only warms up, `[B']` bool.
    """
    episodes = sequence_lengths(ends, max(np.size(ends), 1))
    step = max_seq_len - burn_in
    # A first sequence has `burn_in` rows to learn from that the others have not.
    pieces = np.maximum(-(-(episodes - burn_in) // step), 1)
    piece = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    lengths = np.minimum(max_seq_len, np.repeat(episodes, pieces) - piece * step).astype(np.int32)
    first_rows = np.repeat(np.cumsum(episodes) - episodes, pieces) + piece * step
    offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    warms_up = (offsets < burn_in) & np.repeat(piece > 0, lengths)
    return np.repeat(first_rows, lengths) + offsets, lengths, warms_up


def as_seq_lens(value: Any) -> np.ndarray:
    """Returns `value` as lengths of sequences, `[S]` int32.

    Raises:
        ValueError: If it is not one-dimensional, not of integers, or a length is not positive.
    """
    lengths = np.asarray(value)
    # An empty list becomes an array of floats.
    if lengths.ndim != 1 or (lengths.size and lengths.dtype.kind not in "iu"):
        raise ValueError(
            f"`seq_lens`: expected integers [S], got {lengths.dtype} of shape {lengths.shape}."
        )
    if lengths.size and lengths.min() < 1:
        raise ValueError(f"`seq_lens`: expected positive lengths, got {lengths.tolist()}.")
    return lengths.astype(np.int32, copy=False)


def lengths_within(seq_lens: np.ndarray, start: int, end: int) -> np.ndarray:
    """Returns the lengths `[S']` of what rows `start` to `end` leave of sequences `[S]`."""
    ends = np.cumsum(seq_lens)
    within = np.minimum(ends, end) - np.maximum(ends - seq_lens, start)
    return within[within > 0].astype(np.int32)


def rows_in_order(seq_lens: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Returns the indices `[B]` of the rows when whole sequences are put into `order` `[S]`."""
    old_starts = np.cumsum(seq_lens) - seq_lens
    lengths = seq_lens[order]
    new_starts = np.cumsum(lengths) - lengths
    # A row lies as far behind the start of its sequence as before.
    return np.arange(lengths.sum()) + np.repeat(old_starts[order] - new_starts, lengths)


def mask(seq_lens: Any, max_seq_len: int) -> np.ndarray:
    """Returns `[S * T]` bool, false on padding, for sequences of lengths `seq_lens` `[S]`."""
    seq_lens = _checked_lengths(seq_lens, max_seq_len)
    return (np.arange(max_seq_len) < seq_lens[:, None]).reshape(-1)


def pad(column: Column, seq_lens: Any, max_seq_len: int) -> Column:
    """Pads every sequence on the right with zeros to `max_seq_len` rows.

    Args:
        column: `[B, ...]` array or nested column; objects (`infos`) are padded with empty dicts.
        seq_lens: `[S]` int, with the sum `B`.
        max_seq_len: `T`, the length of every padded sequence.

    Returns:
        `[S * T, ...]`, row `s * T + t` being step `t` of sequence `s`.
    """
    valid = mask(seq_lens, max_seq_len)
    return map_column(lambda rows: _scatter(rows, valid), column)


def padded_sequences(
    batch: Mapping[str, Any],
    max_seq_len: int,
    burn_in: int = 0,
    per_sequence: Collection[str] = (),
) -> dict[str, Column]:
    """Cuts a batch into sequences and pads them for a recurrent model.

    Args:
        batch: Columns `[B, ...]`. If there are `seq_lens` `[S]`, the sequences stay as they are;
            with `burn_in`, a column `burn_in` `[B]` bool then says which rows only warm up the
            state, none if it is missing.
        max_seq_len: `T`, the length of every padded sequence.
        burn_in: How many rows of a sequence warm up the state, if others of its episode precede.
        per_sequence: As in `pad_batch`.

    Returns:
        As `pad_batch`; with `burn_in` also the column `burn_in` `[S * T]` bool.
    """
    columns = dict(batch)
    if "seq_lens" in columns:
        if burn_in and "burn_in" not in columns:
            columns["burn_in"] = np.zeros(int(np.sum(columns["seq_lens"])), bool)
    elif burn_in:
        sequences = overlapping_sequences(sequence_ends(batch), max_seq_len, burn_in)
        rows, seq_lens, warms_up = sequences
        columns = {
            name: select(as_column(name, value, objects=name == "infos"), rows)
            for name, value in columns.items()
        }
        columns.update(seq_lens=seq_lens, burn_in=warms_up)
    else:
        columns["seq_lens"] = sequence_lengths(sequence_ends(batch), max_seq_len)
    return pad_batch(columns, max_seq_len, per_sequence)


def pad_batch(
    batch: Mapping[str, Any], max_seq_len: int, per_sequence: Collection[str] = ()
) -> dict[str, Column]:
    """Pads a batch that has `seq_lens` for a recurrent model.

    Args:
        batch: Columns `[B, ...]` and `seq_lens` `[S]`; a plain dict will do.
        max_seq_len: `T`, the length of every padded sequence.
        per_sequence: Columns of which a sequence has one value, as it has of states.

    Returns:
        Padded columns `[S * T, ...]`; `seq_lens` `[S]` int32; and of every `state_in_i` and column
        in `per_sequence` the first row of each sequence, `[S, ...]`: where the model starts.

    Raises:
        KeyError: If there is no `seq_lens`.
        ValueError: If a sequence is longer than `max_seq_len`, or `seq_lens` do not sum to `B`.
    """
    if "seq_lens" not in batch:
        raise KeyError(f"No column `seq_lens` to pad by; present: {sorted(batch)}.")
    seq_lens = _checked_lengths(batch["seq_lens"], max_seq_len)
    valid = mask(seq_lens, max_seq_len)
    starts = np.cumsum(seq_lens) - seq_lens
    padded: dict[str, Column] = {"seq_lens": seq_lens}
    for name, value in batch.items():
        if name == "seq_lens":
            continue
        column = as_column(name, value, objects=name == "infos")
        rows = row_count(name, column)
        if rows != seq_lens.sum():
            raise ValueError(
                f"Column `{name}`: expected {seq_lens.sum()} rows, the sum of `seq_lens`, "
                f"got {rows}."
            )
        if name.startswith("state_in_") or name in per_sequence:
            padded[name] = select(column, starts)
        else:
            padded[name] = map_column(lambda leaf: _scatter(leaf, valid), column)
    return padded


def _scatter(rows: np.ndarray, valid: np.ndarray) -> np.ndarray:
    if len(rows) != np.count_nonzero(valid):
        raise ValueError(
            f"Expected {np.count_nonzero(valid)} rows, the sum of `seq_lens`, got {len(rows)}."
        )
    padded = blank((len(valid), *rows.shape[1:]), rows.dtype)
    padded[valid] = rows
    return padded


def _checked_lengths(seq_lens: Any, max_seq_len: int) -> np.ndarray:
    _check_max_seq_len(max_seq_len)
    seq_lens = as_seq_lens(seq_lens)
    if seq_lens.max(initial=0) > max_seq_len:
        raise ValueError(
            f"`seq_lens`: expected at most `max_seq_len` = {max_seq_len}, got {seq_lens.max()}."
        )
    return seq_lens


def _check_max_seq_len(max_seq_len: int) -> None:
    if max_seq_len < 1:
        raise ValueError(f"`max_seq_len` must be positive, got {max_seq_len}.")
