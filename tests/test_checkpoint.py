import errno
import hashlib
import json
import os
import re
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tfpolicy.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from tfpolicy.locks import locked

DESCRIPTION = {"class": "PPOPolicy", "config": {"lr": 5e-5}, "bound": float("inf")}


def sequential_state(start=0):
    """A state whose every number differs, so that no two entries can be swapped unseen."""
    shapes = {"fc_1/kernel": (4, 3), "fc_1/bias": (3,), "fc_2/kernel": (3, 3), "fc_2/bias": (3,)}
    weights = {}
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        weights[name] = np.arange(start, start + size, dtype=np.float32).reshape(shape)
        start += size
    return {
        "weights": weights,
        "optimizer": {"beta1_power": np.float32(0.9), "step": np.int64(2**53 + start)},
        "global_timestep": 2**53 + start,
        "kl_coeff": 0.1 + start,
        "exploration": {"seeds": [start, (start, 1.0)], "last": None, "explore": True},
    }


def assert_holds(folder, state, description=None):
    found_description, found = read_checkpoint(folder)
    assert found_description == (DESCRIPTION if description is None else description)
    np.testing.assert_equal(found, state)
    assert [type(found[key]) for key in state] == [type(state[key]) for key in state]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def arrays_file(folder):
    (path,) = folder.glob("*.npz")
    return path


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    folder = tmp_path / "deep" / "checkpoint"
    write_checkpoint(str(folder), DESCRIPTION, sequential_state())
    assert_holds(folder, sequential_state())
    assert len(names(folder)) == 2 and "policy.json" in names(folder)
    assert names(tmp_path / "deep") == ["checkpoint"]


def test_arrays_can_be_read_by_numpy_alone_under_readable_names(tmp_path):
    write_checkpoint(tmp_path, DESCRIPTION, sequential_state())
    with np.load(arrays_file(tmp_path), allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["state/weights/fc_1/bias"], [12, 13, 14])


def test_a_checkpoint_without_arrays_works(tmp_path):
    write_checkpoint(tmp_path, {}, {})
    assert read_checkpoint(tmp_path) == ({}, {})


def test_a_checkpoint_replaces_another_and_leaves_foreign_files_alone(tmp_path):
    for name in ("notes.txt", "state-mine.npz"):
        (tmp_path / name).write_text("mine")
    for start in (0, 100, 200):
        write_checkpoint(tmp_path, {"start": start}, sequential_state(start))
        assert_holds(tmp_path, sequential_state(start), {"start": start})
        assert len(names(tmp_path)) == 4 and len(list(tmp_path.glob("state-????????.npz"))) == 1


def test_a_folder_of_versions_is_no_place_for_a_checkpoint(tmp_path):
    (tmp_path / "17").mkdir()
    (tmp_path / "17" / "saved_model.pb").touch()
    with pytest.raises(ValueError, match="needs a folder of its own, but .* holds versions"):
        write_checkpoint(tmp_path, DESCRIPTION, sequential_state())
    assert [entry.name for entry in tmp_path.iterdir()] == ["17"]


def test_a_copied_or_renamed_checkpoint_is_read(tmp_path):  # g16
    write_checkpoint(tmp_path / "a", DESCRIPTION, sequential_state())
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "c")
    assert_holds(tmp_path / "b", sequential_state())
    assert_holds(tmp_path / "c", sequential_state())


def test_a_state_that_cannot_be_kept_changes_nothing(tmp_path):
    with pytest.raises(TypeError, match="`state/callback`"):
        write_checkpoint(tmp_path / "new", DESCRIPTION, {"callback": print})
    assert names(tmp_path) == []
    write_checkpoint(tmp_path, DESCRIPTION, sequential_state())
    with pytest.raises(TypeError, match="`description/class`"):
        write_checkpoint(tmp_path, {"class": dict}, sequential_state(100))
    assert_holds(tmp_path, sequential_state())


@pytest.mark.parametrize("forever", [False, True])
def test_an_interrupted_replacement_leaves_the_old_checkpoint_or_the_new(
    tmp_path, failing_disk, forever
):
    kept_old = 0
    for n, failure in enumerate(failing_disk.each_failure(forever)):
        folder = tmp_path / str(n)
        write_checkpoint(folder, DESCRIPTION, sequential_state())
        raised = False
        try:
            with failure:
                write_checkpoint(folder, DESCRIPTION, sequential_state(100))
        except OSError:
            raised = True
        start = read_checkpoint(folder)[1]["weights"]["fc_1/kernel"][0, 0]
        assert start in ((0, 100) if raised else (100,))
        assert_holds(folder, sequential_state(int(start)))
        kept_old += start == 0
        if raised and start == 0 and not forever:
            assert len(names(folder)) == 2
        write_checkpoint(folder, DESCRIPTION, sequential_state(200))
        assert_holds(folder, sequential_state(200))
    assert kept_old >= 8


@pytest.mark.parametrize("forever", [False, True])
def test_an_interrupted_first_write_leaves_a_whole_checkpoint_or_none(
    tmp_path, failing_disk, forever
):
    for n, failure in enumerate(failing_disk.each_failure(forever)):
        parent = tmp_path / str(n)
        parent.mkdir()
        try:
            with failure:
                write_checkpoint(parent / "checkpoint", DESCRIPTION, sequential_state())
        except OSError:
            if not forever:
                assert set(names(parent)) <= {"checkpoint"}
        if (parent / "checkpoint").exists():
            assert_holds(parent / "checkpoint", sequential_state())
    assert n >= 12


@pytest.mark.parametrize("limit", [10, 1000])
def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, file_size_limit, limit):
    write_checkpoint(tmp_path, DESCRIPTION, sequential_state())
    before = names(tmp_path)
    with pytest.raises(OSError), file_size_limit(limit):
        write_checkpoint(tmp_path, DESCRIPTION, sequential_state(100))
    assert_holds(tmp_path, sequential_state())
    assert names(tmp_path) == before


def test_arrays_that_a_killed_writer_left_are_cleared_by_the_next(tmp_path):
    write_checkpoint(tmp_path, DESCRIPTION, sequential_state())
    left, young = tmp_path / "state-00000000.npz", tmp_path / "state-00000001.npz"
    left.write_bytes(b"half")
    young.write_bytes(b"whole, but not named yet")
    with locked(young):
        write_checkpoint(tmp_path, DESCRIPTION, sequential_state(100))
    assert not left.exists() and young.exists()
    assert_holds(tmp_path, sequential_state(100))


def test_without_locks_they_are_cleared_when_they_are_old(tmp_path, monkeypatch):
    def no_locks(descriptor, operation):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    old, young = tmp_path / "state-00000000.npz", tmp_path / "state-00000001.npz"
    old.write_bytes(b"half")
    young.write_bytes(b"half")
    os.utime(old, (0, 0))
    for start in (0, 100):
        write_checkpoint(tmp_path, DESCRIPTION, sequential_state(start))
        assert_holds(tmp_path, sequential_state(start))
        assert not old.exists() and len(names(tmp_path)) == 3


def test_writers_and_readers_at_once_see_whole_checkpoints(tmp_path):
    folder = tmp_path / "checkpoint"

    def write(k):
        for i in range(k, k + 10):
            write_checkpoint(folder, {"i": i}, {"a": np.full(50, i), "b": [i] * 10})

    with ThreadPoolExecutor() as pool:
        writers = [pool.submit(write, k) for k in (100, 200, 300)]
        while not all(writer.done() for writer in writers):
            try:
                description, state = read_checkpoint(folder)
            except FileNotFoundError:
                continue  # Before the first of them is done.
            assert set(state["a"]) == set(state["b"]) == {description["i"]}
    for writer in writers:
        writer.result()
    assert read_checkpoint(folder)[0]["i"] in (109, 209, 309)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_checkpoint(tmp_path / "nowhere")


def damage_header(change):
    def damage(folder):
        path = folder / "policy.json"
        path.write_bytes(change(path.read_bytes()))

    return damage


def damage_arrays(change):
    def damage(folder):
        path = arrays_file(folder)
        path.write_bytes(change(path.read_bytes()))

    return damage


def swap_two_arrays(folder):
    path = arrays_file(folder)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    a, b = "state/weights/fc_1/bias.npy", "state/weights/fc_2/bias.npy"
    entries[a], entries[b] = entries[b], entries[a]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def remove_an_array(folder):
    path = arrays_file(folder)
    with np.load(path) as arrays:
        kept = dict(list(arrays.items())[1:])
    np.savez(path, **kept)


def change_header(**changes):
    def change(raw):
        return json.dumps({**json.loads(raw), **changes}).encode()

    return damage_header(change)


def swap_two_names(raw):
    text = raw.decode().replace('"state/weights/fc_1/bias"', '"?"')
    text = text.replace('"state/weights/fc_2/bias"', '"state/weights/fc_1/bias"')
    return text.replace('"?"', '"state/weights/fc_2/bias"').encode()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "policy.json").unlink(), "has no `policy.json`"),
        (lambda folder: arrays_file(folder).unlink(), r"state-\w+.npz` is missing"),
        (damage_header(lambda raw: b""), "policy.json` is damaged or truncated"),
        (damage_header(lambda raw: raw[:-1]), "policy.json` is damaged or truncated"),
        (damage_header(lambda raw: b"\xff\xfe\x00" + raw), "policy.json` is damaged"),
        (damage_header(lambda raw: b"[1, 2]"), "policy.json` is not the header of a checkpoint"),
        (damage_header(lambda raw: b'{"a": 1}'), "policy.json` is not the header of a checkpoint"),
        (damage_header(lambda raw: raw.replace(b"0.1", b"0.2")), "policy.json` is damaged"),
        (damage_header(swap_two_names), "policy.json` is damaged"),
        (change_header(state={}), "policy.json` is damaged"),
        (change_header(checksum=None), "policy.json` is damaged"),
        (damage_arrays(lambda raw: b""), r"state-\w+.npz` is damaged or truncated"),
        (damage_arrays(lambda raw: raw[: len(raw) // 2]), r"npz` is damaged or truncated"),
        (damage_arrays(lambda raw: raw[:-1]), r"npz` is damaged or truncated"),
        (damage_arrays(lambda raw: raw + b"\0"), r"npz` is damaged or truncated"),
        (swap_two_arrays, r"npz` is damaged"),
        (remove_an_array, r"npz` is damaged"),
    ],
)
def test_a_damaged_checkpoint_names_the_damaged_file(tmp_path, damage, message):
    write_checkpoint(tmp_path, DESCRIPTION, {**sequential_state(), "kl_coeff": 0.1})
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_checkpoint(tmp_path)
    assert str(tmp_path) in str(caught.value)
    write_checkpoint(tmp_path, DESCRIPTION, sequential_state(100))
    assert_holds(tmp_path, sequential_state(100))


def test_any_flipped_bit_is_found(tmp_path):
    write_checkpoint(tmp_path, DESCRIPTION, {"a": np.arange(4.0), "b": [1, 2.5, "text"]})
    for path in (tmp_path / "policy.json", arrays_file(tmp_path)):
        whole = path.read_bytes()
        for position in range(len(whole)):
            flipped = bytearray(whole)
            flipped[position] ^= 1
            path.write_bytes(flipped)
            with pytest.raises(CheckpointError):
                read_checkpoint(tmp_path)
        path.write_bytes(whole)
    read_checkpoint(tmp_path)


def test_a_newer_format_says_who_wrote_it_and_what_reads(tmp_path):  # g6
    write_checkpoint(tmp_path, DESCRIPTION, sequential_state())
    change_header(format_version=2, tfpolicy_version="9.1")(tmp_path)
    with pytest.raises(CheckpointError, match=r"format 2, written by tfpolicy 9\.1.*up to 1"):
        read_checkpoint(tmp_path)


def test_a_header_cannot_lead_out_of_the_folder(tmp_path):
    write_checkpoint(tmp_path / "a", DESCRIPTION, sequential_state())
    write_checkpoint(tmp_path / "b", DESCRIPTION, sequential_state(100))
    header = json.loads((tmp_path / "a" / "policy.json").read_text())
    header.pop("checksum")
    header["arrays"]["file"] = f"../b/{arrays_file(tmp_path / 'b').name}"
    header["checksum"] = hashlib.sha256(json.dumps(header).encode()).hexdigest()
    (tmp_path / "a" / "policy.json").write_text(json.dumps(header))
    with pytest.raises(CheckpointError, match=re.escape("names `../b/state-")):
        read_checkpoint(tmp_path / "a")


@pytest.mark.parametrize("content", [None, b"x"])
def test_what_is_no_checkpoint_is_refused(tmp_path, content):
    path = tmp_path / "thing"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(CheckpointError, match="thing` must be the folder of a checkpoint"):
        read_checkpoint(path)
