"""Checksums that travel with what is written, compared before any library parses the rest.

TensorFlow, HDF5 and ONNX are made for files as they were written; what a damaged one makes of them
ranges from other numbers to the end of the process. So damage is found first, by SHA-256:

- of a folder in a list like that of `sha256sum`, which can check it as well;
- of an HDF5 file in the user block, the 512 bytes that come before HDF5's own and are anyone's;
- of an ONNX file in an entry of its metadata that stands at the very end.

Checksums tell accidents, not attacks: who can write a file can write its checksum.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath
from typing import BinaryIO

FOLDER_LIST = Path("assets.extra", "tfpolicy.sha256")
H5_BLOCK = 512
_HDF5 = b"\x89HDF\r\n\x1a\n"
# Files of a SavedModel that somebody reads; others may lie beside them.
_READ = ("saved_model.pb", "fingerprint.pb", "variables/", "assets/", "assets.extra/tfpolicy")
_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")
# Field 14 of a `ModelProto` is metadata: an entry with a key (field 1) and a value (field 2).
_ONNX_KEY = b"tfpolicy_sha256"
_ONNX_ENTRY = b"\x72\x53\x0a\x0f" + _ONNX_KEY + b"\x12\x40"
_ONNX_SEAL = len(_ONNX_ENTRY) + 64


def digest(file: BinaryIO) -> str:
    """SHA-256 of what is left in an open file, in hexadecimal."""
    found = hashlib.sha256()
    while block := file.read(1 << 20):
        found.update(block)
    return found.hexdigest()


def write_list(folder: Path) -> None:
    """Lists the checksums of all files below `folder` in `FOLDER_LIST`."""
    lines = [f"{_file_digest(folder / name)}  {name}\n" for name in _files(folder)]
    (folder / FOLDER_LIST).write_bytes("".join(lines).encode("ascii"))


def check_folder(folder: Path) -> None:
    """Compares the files below `folder` with its list.

    Raises:
        ValueError: There is no list, or a file is missing, unlisted or damaged.
    """
    path = folder / FOLDER_LIST
    try:
        lines = path.read_bytes().decode("ascii").splitlines()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(
            f"`{folder}` must list its checksums in `{FOLDER_LIST}`, but has no such file: it was "
            "copied in part, or not written by tfpolicy."
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"`{path}` is damaged: {error}.") from error
    listed = {}
    for line in lines:
        match = _LINE.fullmatch(line)
        # A name from outside must not lead out of the folder.
        if not match or ".." in PurePosixPath(match[2]).parts or match[2].startswith("/"):
            raise ValueError(
                f"`{path}` is damaged: it must hold checksums and names, got {line!r}."
            )
        listed[match[2]] = match[1]
    unlisted = [name for name in _files(folder) if name.startswith(_READ) and name not in listed]
    if unlisted:
        raise ValueError(f"`{folder / unlisted[0]}` must be listed in `{path}`, but it is not.")
    for name, expected in listed.items():
        if not (folder / name).is_file():
            raise ValueError(f"`{folder / name}` is missing: `{folder}` was copied in part.")
        if _file_digest(folder / name) != expected:
            raise ValueError(
                f"`{folder / name}` is damaged: its content does not fit the checksum in `{path}`."
            )


def seal_h5(content: bytes) -> bytes:
    """Puts the checksum of an HDF5 file into its user block, which has `H5_BLOCK` bytes."""
    return _h5_block(hashlib.sha256(content[H5_BLOCK:]).hexdigest()) + content[H5_BLOCK:]


def check_h5(path: Path) -> bool:
    """Whether an HDF5 file has a checksum, which then fits.

    Raises:
        ValueError: It does not fit, or something else comes before the content.
    """
    with path.open("rb") as file:
        block = file.read(H5_BLOCK)
        if block.startswith(_HDF5):
            return False
        if block != _h5_block(digest(file)):
            raise ValueError(
                f"`{path}` is damaged or was changed: its content does not fit the checksum in its "
                f"first {H5_BLOCK} bytes."
            )
    return True


def seal_onnx(content: bytes) -> bytes:
    """Appends the checksum of an ONNX file to it, as metadata."""
    return content + _ONNX_ENTRY + hashlib.sha256(content).hexdigest().encode()


def check_onnx(content: bytes, path: Path) -> bool:
    """Whether an ONNX file has a checksum, which then fits.

    Args:
        content: Of the file.
        path: Where it is, for the message.

    Raises:
        ValueError: It does not fit.
    """
    if content == seal_onnx(content[:-_ONNX_SEAL]):
        return True
    if _ONNX_KEY in content:
        raise ValueError(
            f"`{path}` is damaged or was changed: its content does not fit its checksum."
        )
    return False


def _files(folder: Path) -> list[str]:
    """Names of all files below `folder` except for the list."""
    names = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(name.as_posix() for name in names if name != FOLDER_LIST)


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return digest(file)


def _h5_block(checksum: str) -> bytes:
    return f"tfpolicy sha256 {checksum}\n".encode().ljust(H5_BLOCK, b"\0")
