import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import tfpolicy
from tfpolicy.checkpoint import write_checkpoint
from tfpolicy.export.publish import (
    MAX_VERSION,
    check_base,
    check_keep,
    publish_version,
    remove_older_versions,
)


def write_model(folder):
    (folder / "variables").mkdir()
    (folder / "variables" / "data").write_bytes(bytes(100))
    (folder / "saved_model.pb").write_bytes(b"graph")


def is_whole(version):
    return (version / "saved_model.pb").exists() and (version / "variables" / "data").exists()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_versions_count_up_from_one(tmp_path):
    export_dir = tmp_path / "deep" / "model"
    assert publish_version(export_dir, write_model) == export_dir / "1"
    assert publish_version(str(export_dir), write_model) == export_dir / "2"
    assert names(export_dir) == ["1", "2"]
    assert is_whole(export_dir / "2")


def test_the_next_version_is_above_the_highest_whatever_else_is_there(tmp_path):
    for name in ("3", "00012", "notes", "v99", "7.old"):
        (tmp_path / name).mkdir()
    assert publish_version(tmp_path, write_model) == tmp_path / "13"


def test_a_version_can_be_chosen(tmp_path):
    assert publish_version(tmp_path, write_model, version=0) == tmp_path / "0"
    assert publish_version(tmp_path, write_model, version=20260101) == tmp_path / "20260101"
    assert publish_version(tmp_path, write_model) == tmp_path / "20260102"


def test_a_number_that_no_server_can_read_is_no_version(tmp_path):
    (tmp_path / str(MAX_VERSION + 1)).mkdir()
    assert publish_version(tmp_path, write_model) == tmp_path / "1"


@pytest.mark.parametrize("path", [".", "../1", "../2"])
def test_the_place_of_a_version_is_no_folder_for_versions(tmp_path, monkeypatch, path):
    monkeypatch.chdir(publish_version(tmp_path, write_model))
    with pytest.raises(ValueError, match=f"the folder of all versions.*give `{tmp_path}`"):
        check_base(path, "saved_model.pb")


@pytest.mark.parametrize("path", ["file", "file/below", "file/far/below"])
def test_a_file_is_no_folder_for_versions(tmp_path, path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match=f"must be a folder, but `{tmp_path}/file` is a f"):
        check_base(tmp_path / path, "saved_model.pb")


def test_folders_of_versions_may_have_numbers_for_names(tmp_path):
    for name in ("2024", "2025"):
        check_base(tmp_path / name, "saved_model.pb")
        publish_version(tmp_path / name, write_model)
    check_base(tmp_path / "2024", "saved_model.pb")
    check_base(tmp_path / "missing" / "2026", "saved_model.pb")


@pytest.mark.parametrize("there", [True, False])
def test_a_chosen_version_is_never_replaced(tmp_path, there):
    (tmp_path / "4").mkdir()
    if there:
        (tmp_path / "4" / "mine").write_text("mine")
    with pytest.raises(FileExistsError, match="4.*next free one is 5"):
        publish_version(tmp_path, write_model, version=4)
    assert names(tmp_path) == ["4"]


@pytest.mark.parametrize("version", [-1, 1.0, "1", True, MAX_VERSION + 1])
def test_a_version_that_is_no_number_is_refused(tmp_path, version):
    with pytest.raises(ValueError, match="`version` must be an integer of 0 to"):
        publish_version(tmp_path, write_model, version=version)


def test_an_export_that_raises_leaves_nothing(tmp_path):  # j16
    def write(folder):
        write_model(folder)
        raise RuntimeError("cannot export")

    with pytest.raises(RuntimeError, match="cannot export"):
        publish_version(tmp_path / "new" / "model", write)
    assert names(tmp_path) == []
    publish_version(tmp_path, write_model)
    with pytest.raises(RuntimeError):
        publish_version(tmp_path, write)
    assert names(tmp_path) == ["1"]


def test_an_export_that_writes_nothing_is_an_error(tmp_path):  # a6
    with pytest.raises(ValueError, match="must write at least one file"):
        publish_version(tmp_path, lambda folder: None)
    assert names(tmp_path) == []


@pytest.mark.parametrize("forever", [False, True])
def test_a_failing_disk_publishes_a_whole_version_or_none(tmp_path, failing_disk, forever):
    for n, failure in enumerate(failing_disk.each_failure(forever)):
        export_dir = tmp_path / str(n)
        publish_version(export_dir, write_model)
        raised = False
        try:
            with failure:
                publish_version(export_dir, write_model)
        except OSError:
            raised = True
        versions = [version for version in export_dir.iterdir() if version.name.isdigit()]
        assert len(versions) in ((1, 2) if raised else (2,))
        assert all(is_whole(version) for version in versions)
        if not forever:
            assert set(names(export_dir)) <= {"1", "2"}
    assert n >= 10


def test_a_full_disk_leaves_nothing(tmp_path, file_size_limit):
    with pytest.raises(OSError), file_size_limit(50):
        publish_version(tmp_path / "model", write_model)
    assert names(tmp_path) == []


def test_two_publishers_of_one_version_get_one_success_and_one_clear_error(tmp_path):
    barrier = threading.Barrier(2)
    results = []

    def write(folder):
        write_model(folder)
        barrier.wait(timeout=30)  # Both have found the version free.

    def publish():
        try:
            results.append(publish_version(tmp_path, write, version=1))
        except FileExistsError as error:
            results.append(str(error))

    threads = [threading.Thread(target=publish) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tmp_path / "1" in results
    assert any("must not exist yet" in str(result) for result in results)
    assert names(tmp_path) == ["1"] and is_whole(tmp_path / "1")


_PUBLISHER = """
import sys, pathlib
from tfpolicy.export.publish import check_keep, publish_version, remove_older_versions

def write(folder):
    for i in range(10):
        (folder / f"part_{i}").write_text(sys.argv[2])

for _ in range(20):
    print(publish_version(sys.argv[1], write).name)
"""


def test_processes_at_once_get_versions_of_their_own_and_readers_see_only_whole_ones(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(tfpolicy.__file__).parents[1])}
    publishers = [
        subprocess.Popen(
            [sys.executable, "-c", _PUBLISHER, str(tmp_path), name],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("first", "second")
    ]
    running = True
    while running:  # Looks once more after both have ended.
        running = any(publisher.poll() is None for publisher in publishers)
        for version in [path for path in tmp_path.iterdir() if not path.name.startswith(".")]:
            parts = [part.read_text() for part in version.iterdir()]
            assert len(parts) == 10 and len(set(parts)) == 1
    got = [publisher.communicate()[0].split() for publisher in publishers]
    assert [publisher.returncode for publisher in publishers] == [0, 0]
    assert sorted(map(int, got[0] + got[1])) == list(range(1, 41))
    assert len(names(tmp_path)) == 40


# Old versions.


def publish(folder, version, keep):
    published = publish_version(folder, write_model, version)
    remove_older_versions(published, keep, "saved_model.pb")
    return published


@pytest.mark.parametrize(
    ("keep", "left"), [(1, ["7", "9"]), (2, ["5", "7", "9"]), (9, ["3", "4", "5", "7", "9"])]
)
def test_the_newest_stay_and_what_is_newer_than_the_one_just_written(tmp_path, keep, left):
    for version in (9, 3, 5, 4):
        publish_version(tmp_path, write_model, version)
    publish(tmp_path, 7, keep)
    assert names(tmp_path) == left
    assert all(is_whole(tmp_path / name) for name in left)


def test_what_is_no_version_stays(tmp_path):
    for name in ("1", "notes", "2.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("mine")
    (tmp_path / "2").write_text("mine")
    publish_version(tmp_path / "elsewhere", write_model)
    (tmp_path / "3").symlink_to(tmp_path / "elsewhere" / "1")
    publish(tmp_path, 4, keep=1)
    assert names(tmp_path) == ["1", "2", "2.old", "3", "4", "elsewhere", "notes"]
    assert is_whole(tmp_path / "3")


def test_versions_with_leading_zeros_are_versions(tmp_path):
    for name in ("008", "9"):
        publish_version(tmp_path, write_model, int(name)).rename(tmp_path / name)
    publish(tmp_path, 10, keep=2)
    assert names(tmp_path) == ["10", "9"]


def test_a_version_that_cannot_be_removed_is_left_for_the_next_time(tmp_path, failing_disk):
    publish(tmp_path, 1, keep=1)
    publish_version(tmp_path, write_model, 2)
    with failing_disk.failing_at(1, forever=True):
        remove_older_versions(tmp_path / "2", 1, "saved_model.pb")
    assert "1" in names(tmp_path) and is_whole(tmp_path / "1")
    publish(tmp_path, 3, keep=1)
    assert names(tmp_path) == ["3"]


def test_a_removal_that_is_cut_short_is_finished_by_the_next_success(tmp_path, monkeypatch):
    publish(tmp_path, 1, keep=1)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *arguments, **options: None)
        publish(tmp_path, 2, keep=1)
    assert names(tmp_path)[-1] == "2" and len(names(tmp_path)) == 2
    publish_version(tmp_path, write_model)
    assert names(tmp_path) == ["2", "3"]


@pytest.mark.parametrize("keep", [0, -1, 1.0, True, "2"])
def test_a_limit_that_is_none_is_refused(keep):
    with pytest.raises(ValueError, match="`keep` must be an integer of at least 1"):
        check_keep(keep)


def test_a_reader_never_sees_half_of_a_version_come_or_go(tmp_path):
    done = threading.Event()
    halves, looks = [], []

    def look():
        while not done.is_set():
            time.sleep(0.001)
            for version in [path for path in tmp_path.iterdir() if path.name.isdigit()]:
                looks.append(version.name)
                if not is_whole(version) and version.exists():
                    halves.append(version.name)

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(200):
        remove_older_versions(publish_version(tmp_path, write_model), 2, "saved_model.pb")
    done.set()
    reader.join()
    assert halves == [] and len(set(looks)) > 20
    assert names(tmp_path) == ["199", "200"]


def test_a_checkpoint_is_no_folder_of_versions(tmp_path):
    write_checkpoint(tmp_path / "kept", {}, {})
    with pytest.raises(ValueError, match="`export_dir` must not be a checkpoint, but .*kept"):
        check_base(tmp_path / "kept", "saved_model.pb")
