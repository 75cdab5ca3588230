import io
import zipfile

import numpy as np
import pytest

from tfpolicy.npz import read_npz, write_npz

ARRAYS = {
    "a/b c": np.arange(6, dtype=np.float32).reshape(2, 3),
    "file": np.float64(1.5),
    "empty": np.zeros((0, 2), np.int8),
}


@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_come_back_under_any_name(tmp_path, compressed):
    write_npz(tmp_path / "x.npz", ARRAYS, compressed)
    found = read_npz(tmp_path / "x.npz")
    np.testing.assert_equal(found, ARRAYS)
    assert [array.dtype for array in found.values()] == [a.dtype for a in ARRAYS.values()]
    with np.load(tmp_path / "x.npz", allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["a/b c"], ARRAYS["a/b c"])


def test_an_open_file_will_do():
    file = io.BytesIO()
    write_npz(file, ARRAYS)
    np.testing.assert_equal(read_npz(file), ARRAYS)


class Malicious:
    def __reduce__(self):
        return pytest.fail, ("It ran.",)


@pytest.mark.parametrize("kind", ["pickled", "text", "short", "twice compressed", "no array"])
def test_what_is_not_sound_is_a_value_error_and_nothing_is_run(tmp_path, kind):
    path = tmp_path / "x.npz"
    write_npz(path, ARRAYS, compressed=True)
    if kind == "pickled":
        np.savez(path, a=np.array([Malicious()], object))
    elif kind == "text":
        path.write_text("hello")
    elif kind == "short":
        path.write_bytes(path.read_bytes()[:-30])
    elif kind == "twice compressed":
        content = bytearray(path.read_bytes())
        content[60:70] = bytes(10)
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", b"no array")
    with pytest.raises(ValueError):
        read_npz(path)
