"""Whatever is changed in a file is found before anything else reads it."""

import hashlib
import shutil
import subprocess

import h5py
import numpy as np
import pytest

from tfpolicy import checksums

FILES = {
    "saved_model.pb": b"graph",
    "variables/variables.index": b"index",
    "assets.extra/tfpolicy.json": b"{}",
    "notes.txt": b"notes",
}


@pytest.fixture
def folder(tmp_path):
    for name, content in FILES.items():
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    checksums.write_list(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.skipif(not shutil.which("sha256sum"), reason="needs sha256sum")
def test_the_list_is_one_of_sha256sum(folder):
    checksums.check_folder(folder)
    command = ["sha256sum", "--check", "--strict", checksums.FOLDER_LIST]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{name}: OK" for name in sorted(FILES)]


def test_files_that_nobody_reads_may_be_added(folder):
    (folder / "more.txt").write_text("more")
    (folder / "assets.extra" / "of_another").write_text("more")
    checksums.check_folder(folder)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["truncated", "removed", "flipped", "a folder"])
def test_a_changed_file_is_named(folder, name, change):
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    if change == "a folder":
        path.mkdir()
    elif change != "removed":
        path.write_bytes(content[:-1] if change == "truncated" else b"?" + content[1:])
    with pytest.raises(ValueError, match=f"{name}` is (damaged|missing)"):
        checksums.check_folder(folder)


@pytest.mark.parametrize("name", ["variables/variables.data", "fingerprint.pb"])
def test_a_file_that_is_read_must_be_listed(folder, name):
    (folder / name).write_text("more")
    with pytest.raises(ValueError, match=f"{name}` must be listed"):
        checksums.check_folder(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "must list its checksums .* copied in part"),
        (b"", "assets.extra/tfpolicy.json` must be listed"),
        (b"\xff", "tfpolicy.sha256` is damaged"),
        (b"hello\n", "it must hold checksums and names, got 'hello'"),
        (f"{hashlib.sha256(b'').hexdigest()}  ../x\n".encode(), "it must hold checksums and names"),
        (f"{hashlib.sha256(b'').hexdigest()}  /dev/null\n".encode(), "it must hold checksums"),
    ],
)
def test_a_changed_list_is_named(folder, content, message):
    path = folder / checksums.FOLDER_LIST
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        checksums.check_folder(folder)


@pytest.fixture
def h5(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", userblock_size=checksums.H5_BLOCK) as file:
        file["a"] = np.arange(3)
    path.write_bytes(checksums.seal_h5(path.read_bytes()))
    return path


def test_a_sealed_h5_file_is_still_one(h5):
    assert checksums.check_h5(h5)
    with h5py.File(h5) as file:
        np.testing.assert_array_equal(file["a"], [0, 1, 2])


def test_an_h5_file_of_others_has_no_checksum(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = np.arange(3)
    assert not checksums.check_h5(tmp_path / "x.h5")


def test_any_changed_byte_of_an_h5_file_is_found(h5):
    whole = h5.read_bytes()
    for position in range(0, len(whole), 13):
        h5.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(ValueError, match="is damaged or was changed"):
            checksums.check_h5(h5)
        h5.write_bytes(whole[:position])
        with pytest.raises(ValueError, match="is damaged or was changed"):
            checksums.check_h5(h5)


def test_an_h5_file_that_was_edited_is_found(h5):
    with h5py.File(h5, "r+") as file:
        file["a"][0] = 7
    with pytest.raises(ValueError, match="was changed"):
        checksums.check_h5(h5)


def test_the_checksum_of_an_onnx_file_is_metadata(tmp_path):
    onnx = pytest.importorskip("onnx")
    model = onnx.ModelProto(ir_version=8, producer_name="test")
    sealed = checksums.seal_onnx(model.SerializeToString())
    assert checksums.check_onnx(sealed, tmp_path)
    found = onnx.ModelProto.FromString(sealed)
    assert (found.ir_version, found.producer_name) == (8, "test")
    (entry,) = found.metadata_props
    digest = hashlib.sha256(model.SerializeToString()).hexdigest()
    assert (entry.key, entry.value) == ("tfpolicy_sha256", digest)


def test_any_changed_byte_of_an_onnx_file_is_found(tmp_path):
    content = bytes(range(200))
    assert not checksums.check_onnx(content, tmp_path)
    sealed = checksums.seal_onnx(content)
    for position in range(len(sealed)):
        changed = sealed[:position] + bytes([sealed[position] ^ 1]) + sealed[position + 1 :]
        try:
            # Without the key it is a file of others.
            assert not checksums.check_onnx(changed, tmp_path)
        except ValueError as error:
            assert "is damaged or was changed" in str(error)
        else:
            assert b"tfpolicy_sha256" not in changed
