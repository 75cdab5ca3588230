import errno
import os
import stat

import pytest

from tfpolicy.files import atomic_file, hidden_sibling, publish_folder, staged_folder


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_file_appears_with_its_content(tmp_path):
    target = tmp_path / "a" / "b.bin"
    with atomic_file(target) as staged:
        staged.write_bytes(b"new")
        assert staged.parent.parent == target.parent and staged.suffix == ".bin"
        assert staged.parent.name.startswith(".") and not target.exists()
    assert target.read_bytes() == b"new"
    assert everything(tmp_path) == ["a", "a/b.bin"]


def test_a_block_that_raises_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "b.bin"
    target.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), atomic_file(target) as staged:
        staged.write_bytes(b"half")
        raise KeyboardInterrupt
    assert target.read_bytes() == b"old"
    assert everything(tmp_path) == ["b.bin"]


def test_a_block_that_raises_leaves_no_folder_that_was_made_for_it(tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(RuntimeError), atomic_file(tmp_path / "there" / "a" / "b" / "c.bin"):
        raise RuntimeError
    assert everything(tmp_path) == ["there"]


def test_a_block_that_writes_nothing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_file(tmp_path / "b.bin"):
        pass
    assert everything(tmp_path) == []


@pytest.mark.parametrize("old", [None, b"old"])
@pytest.mark.parametrize("forever", [False, True])
def test_a_failing_disk_leaves_the_old_file_or_the_new_one(tmp_path, failing_disk, old, forever):
    target = tmp_path / "folder" / "b.bin"
    for n, failure in enumerate(failing_disk.each_failure(forever)):
        work = tmp_path / str(n)
        target = work / "b.bin"
        if old is not None:
            work.mkdir()
            target.write_bytes(old)
        raised = False
        try:
            with failure, atomic_file(target) as staged:
                staged.write_bytes(b"new")
        except OSError:
            raised = True
        found = target.read_bytes() if target.exists() else None
        assert found in ((old, b"new") if raised else (b"new",))
        if not forever:
            assert all(name == "b.bin" for name in (everything(work) if work.exists() else []))
            assert work.exists() == (found is not None)
    assert n >= 6


def test_a_full_disk_leaves_the_old_file(tmp_path, file_size_limit):
    target = tmp_path / "b.bin"
    target.write_bytes(b"old")
    with pytest.raises(OSError), file_size_limit(1000), atomic_file(target) as staged:
        staged.write_bytes(bytes(2000))
    assert target.read_bytes() == b"old"
    assert everything(tmp_path) == ["b.bin"]


def test_a_folder_is_published_whole_with_the_permissions_of_the_umask(tmp_path):
    old_umask = os.umask(0o022)
    try:
        with staged_folder(tmp_path / "x" / "1") as staged:
            (staged / "sub").mkdir()
            (staged / "sub" / "file").write_text("content")
            assert staged.name.startswith(".") and staged.parent == tmp_path / "x"
            publish_folder(staged, tmp_path / "x" / "1")
    finally:
        os.umask(old_umask)
    assert everything(tmp_path) == ["x", "x/1", "x/1/sub", "x/1/sub/file"]
    assert stat.S_IMODE((tmp_path / "x" / "1").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "x" / "1" / "sub" / "file").stat().st_mode) == 0o644


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_folder_is_not_published_over_something_else(tmp_path, kind):
    target = tmp_path / "1"
    if kind == "file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "mine").write_text("mine")
    with pytest.raises(FileExistsError, match="1`"), staged_folder(target) as staged:
        (staged / "new").write_text("new")
        publish_folder(staged, target)
    assert everything(tmp_path) == (["1"] if kind == "file" else ["1", "1/mine"])


def test_a_place_below_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    below = tmp_path / "file" / "below"
    message = f"{below}` must be a folder, but `{tmp_path / 'file'}` is a file"
    with pytest.raises(NotADirectoryError, match=message), atomic_file(below / "weights.h5"):
        raise AssertionError("nothing is to be written")
    assert everything(tmp_path) == ["file"]


NAMES = ["plain.h5", "[odd]*.h5"]


@pytest.mark.parametrize("name", NAMES)
def test_what_a_killed_process_left_is_cleared_by_the_next_success(tmp_path, name):
    child = os.fork()
    if not child:
        try:
            with atomic_file(tmp_path / name) as staged:
                staged.write_bytes(b"half")
                os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    (left,) = everything(tmp_path)[1:]
    assert left.startswith(".tmp-") and left.endswith(f"/{name}")
    with atomic_file(tmp_path / "another.h5") as staged:
        staged.write_text("new")
    assert everything(tmp_path) == ["another.h5"]


def test_what_is_still_being_written_is_left_alone(tmp_path):
    with atomic_file(tmp_path / "x.h5") as slow:
        slow.write_text("slow")
        with atomic_file(tmp_path / "x.h5") as quick:
            quick.write_text("quick")
        assert (tmp_path / "x.h5").read_text() == "quick"
    assert (tmp_path / "x.h5").read_text() == "slow"
    assert everything(tmp_path) == ["x.h5"]


@pytest.mark.parametrize("name", NAMES)
def test_what_another_machine_began_is_cleared_when_it_is_a_day_old(tmp_path, name):
    old, young = (tmp_path / f".tmp-fedcba98-0123abc{digit}-{name}" for digit in "de")
    of_others = tmp_path / ".tmp-notes"
    for folder in (old, young, of_others):
        folder.mkdir()
        (folder / name).write_text("left")
    os.utime(old, (0, 0))
    os.utime(of_others, (0, 0))
    with atomic_file(tmp_path / name) as staged:
        staged.write_text("new")
    assert set(os.listdir(tmp_path)) == {name, young.name, of_others.name}


def test_without_locks_age_alone_tells_what_was_abandoned(tmp_path, monkeypatch):
    def no_locks(descriptor, operation):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    for age in (0, 1):
        folder = hidden_sibling(tmp_path / "x.h5")
        folder.mkdir()
        if age:
            os.utime(folder, (0, 0))
    with atomic_file(tmp_path / "x.h5") as staged:
        staged.write_text("new")
    assert len(everything(tmp_path)) == 2
