"""Arrays by name in NumPy's npz format, written and read without pickle."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

# What the standard library and NumPy raise over an archive or an array that is not sound.
_DAMAGE = (EOFError, KeyError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error)


def write_npz(
    file: Path | BinaryIO, arrays: Mapping[str, np.ndarray], compressed: bool = False
) -> None:
    """Writes arrays under their names, which may be any.

    Args:
        file: A path, or an open binary file.
        arrays: Arrays of dtypes that need no pickle.
        compressed: Whether to take longer and make it smaller.
    """
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    # `np.savez` would take some names ("file") for its own arguments.
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def read_npz(file: Path | BinaryIO) -> dict[str, np.ndarray]:
    """Reads all arrays by name.

    Raises:
        ValueError: It is no npz file, is damaged, or holds what only pickle could read.
    """
    arrays = {}
    try:
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                with archive.open(name) as entry:
                    array = np.lib.format.read_array(entry, allow_pickle=False)
                arrays[name.removesuffix(".npy")] = array
    except _DAMAGE as error:
        raise ValueError(f"This is no sound npz file: {error}") from error
    return arrays
