import os
import signal

import pytest

from tfpolicy.locks import locked


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_one_alone_holds_a_lock_and_a_new_name_does_not_change_that(tmp_path, kind):
    path = tmp_path / "thing"
    path.mkdir() if kind == "folder" else path.write_text("content")
    with locked(path) as is_locked:
        assert is_locked
        renamed = path.rename(tmp_path / "renamed")
        with pytest.raises(BlockingIOError), locked(renamed):
            pass
    with locked(renamed) as is_locked:
        assert is_locked


def test_what_does_not_exist_has_no_lock(tmp_path):
    with pytest.raises(FileNotFoundError), locked(tmp_path / "nothing"):
        pass


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    reading, writing = os.pipe()

    holder = os.fork()
    if not holder:
        try:
            with locked(tmp_path):
                os.write(writing, b"held")
                signal.pause()
        finally:
            os._exit(1)
    os.read(reading, 4)
    with pytest.raises(BlockingIOError), locked(tmp_path):
        pass
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    with locked(tmp_path) as is_locked:
        assert is_locked
