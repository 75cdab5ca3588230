"""What a pickle names is never looked up, let alone run; plain containers and arrays are read."""

import collections
import contextlib
import copyreg
import os
import pickle
import pickletools
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tfpolicy.export.plain_pickle import PickledArray, describe, read_plain_pickle

STATE = Path(__file__).parents[1] / "data/rllib/ray-2.9.3/scoped/ckpt/policy_state.pkl"
ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.asfortranarray(np.arange(6).reshape(2, 3)),
    np.arange(10.0)[::2],
    np.arange(4, dtype=">f4"),
    np.arange(4, dtype=np.float16),
    np.array([True, False]),
    np.zeros((0, 3)),
    np.array(5, np.uint8),
    np.float32(3.5),
    np.int64(-1),
]


class Running:
    """Pickles as a call of whatever it is given."""

    def __init__(self, function, *arguments, state=None):
        self.call = (function, arguments, state)

    def __reduce__(self):
        return self.call


class Named:
    """An ordinary object."""

    def __init__(self):
        self.attribute = [1]


class Listed(list):
    """A list of a class of its own."""


class Keyed(dict):
    """A dict of a class of its own."""


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_arrays_and_scalars_of_numbers_come_back(array, protocol):
    found = read_plain_pickle(pickle.dumps({"a": array}, protocol))["a"].array()
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype.newbyteorder("=") and found.shape == array.shape
    assert found.flags.owndata or found.base.flags.owndata


def test_arrays_of_older_numpy_come_back_under_its_names():
    new = pickle.dumps(ARRAYS[0], 4)
    old = new.replace(b"\x16numpy._core.multiarray", b"\x15numpy.core.multiarray")
    assert old != new
    # The frame's length counts the byte that is gone.
    size = int.from_bytes(old[3:11], "little") - 1
    old = old[:3] + size.to_bytes(8, "little") + old[11:]
    np.testing.assert_array_equal(read_plain_pickle(old).array(), ARRAYS[0])


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_and_containers_are_themselves(protocol):
    value = {
        "a": [1, 2.5, None, True, "text", (1, 2)],
        "b": collections.OrderedDict(c={"d": 10**30}),
    }
    found = read_plain_pickle(pickle.dumps(value, protocol))
    assert found == value
    assert type(found["b"]) is (collections.OrderedDict if protocol >= 3 else type(found["b"]))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Running(os.system, "touch ran"), f"{os.name}.system"),
        (Running(eval, "open('ran', 'w')"), "builtins.eval"),
        (Running(Path("ran").touch), "builtins.getattr"),
        (Running(subprocess.run, (["touch", "ran"],)), "subprocess.run"),
        (subprocess.run, "subprocess.run"),
        (Named(), "test_plain_pickle.Named"),
        (Listed([1, 2]), "test_plain_pickle.Listed"),
        (Keyed(a=1), "test_plain_pickle.Keyed"),
        (collections.deque([1]), "collections.deque"),
        (np.random.default_rng(0), "numpy.random._pickle.__generator_ctor"),
    ],
)
def test_whatever_is_named_does_nothing(value, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps({"before": 1, "x": value, "after": [2]})
    found = read_plain_pickle(data)
    assert describe(found["x"]) == f"is made by `{named}`"
    assert found["before"] == 1 and found["after"] == [2]
    assert list(tmp_path.iterdir()) == []


def test_what_a_pickle_does_with_the_result_of_a_call_does_nothing_either():
    made = Running(os.getcwd, state={"attribute": 1})
    chain = b"\x80\x04cos\ngetcwd\n)R)\x81}(X\x01\x00\x00\x00aK\x01ub)R."  # Calls, makes, fills.
    assert describe(read_plain_pickle(chain)) == "is made by `os.getcwd`"
    assert describe(read_plain_pickle(pickle.dumps(made))) == f"is made by `{os.name}.getcwd`"


def test_a_pickle_cannot_change_the_classes_that_read_it():
    for name in ("numpy dtype", "numpy.core.multiarray _reconstruct", "collections OrderedDict"):
        named = f"c{name.replace(' ', chr(10))}\n".encode()
        # The class itself is given the state (None, {"array": None}), which sets attributes.
        program = b"\x80\x04" + named + b"N}X\x05\x00\x00\x00arrayNs\x86b."
        with pytest.raises(ValueError):
            read_plain_pickle(program)
    for array in ARRAYS:
        np.testing.assert_array_equal(read_plain_pickle(pickle.dumps(array)).array(), array)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([{}, 1], object), "its data is of type list"),
        (np.array(["text"]), "dtype 'U4' is none of numbers"),
        (np.zeros(2, [("a", "f4")]), "dtype 'V4' is none of numbers"),
        (np.array([1 + 2j]), "dtype 'c16' is none of numbers"),
        (np.array(["2020"], "M8[D]"), "dtype 'M8' is none of numbers"),
    ],
)
def test_arrays_of_anything_but_numbers_are_refused(value, message):
    found = read_plain_pickle(pickle.dumps(value))
    assert isinstance(found, PickledArray)
    with pytest.raises(ValueError, match=message):
        found.array()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (b"C\x04abcdh\x00(K\x02tX\x01\x00\x00\x00C", r"4 bytes are no array \(2,\) of float32"),
        (b"C\x04abcdh\x00(K\x01tX\x01\x00\x00\x00X", r"4 bytes are no array"),
        (b"C\x04abcdh\x00(J\xff\xff\xff\xfftX\x01\x00\x00\x00C", "its shape .* holds no sizes"),
        (b"C\x04abcdh\x00K\x01X\x01\x00\x00\x00C", "its shape is of type int"),
        (b"Nh\x00(K\x01tX\x01\x00\x00\x00C", "its data is of type NoneType"),
        (b"cos\nurandom\nh\x00(K\x01tX\x01\x00\x00\x00C", "its data is made by `os.urandom`"),
        (b"C\x04abcdcos\nsystem\n(K\x01tX\x01\x00\x00\x00C", "its dtype is made by `os.system`"),
    ],
)
def test_arrays_that_make_no_sense_are_refused(arguments, message):
    dtype = b"cnumpy\ndtype\nX\x02\x00\x00\x00f4\x85R\x94"
    program = b"\x80\x04" + dtype + b"0cnumpy.core.numeric\n_frombuffer\n(" + arguments + b"tR."
    with pytest.raises(ValueError, match=message):
        read_plain_pickle(program).array()


def test_registered_extensions_are_refused():
    copyreg.add_extension("os", "system", 240)
    try:
        assert pickle.loads(b"\x80\x02\x82\xf0.") is os.system  # Now the process remembers it.
        with pytest.raises(ValueError, match="EXT1"):
            read_plain_pickle(b"\x80\x02\x82\xf0.")
    finally:
        copyreg.remove_extension("os", "system", 240)
        copyreg.clear_extension_cache()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"text",
        b"\x80\x04K\x01",
        b"\x80\x04K\x01r\xff\xff\xff\x7f.",  # Makes room for two billion objects.
        b"\x80\x05\x8e\xff\xff\xff\xff\xff\xff\xff\x0f",  # Has an exabyte of bytes.
        b"\x80\x04X\x01\x00\x00\x00aQ.",  # Names something outside of the pickle.
        b"\x80\x05\x97.",
        pickle.dumps({"a": 1}).replace(b"a", b"\xff"),
    ],
)
def test_what_is_no_pickle_is_named_so(data):
    with pytest.raises(ValueError, match="It is no pickle, or a damaged one"):
        read_plain_pickle(data)


def test_deep_nesting_does_no_harm():
    found = read_plain_pickle(b"\x80\x04" + b"]" * 50_000 + b"a" * 49_999 + b".")
    assert isinstance(found, list)


def test_damaged_pickles_are_read_or_refused():
    data = STATE.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(1000):
        mutated = bytearray(data)
        kind, place = rng.integers(3), rng.integers(len(data))
        if kind == 0:
            del mutated[place:]
        elif kind == 1:
            # Most of it is numbers; the program is at the beginning and between them.
            for index in rng.integers(min(len(data), 2000), size=rng.integers(1, 6)):
                mutated[index] = rng.integers(256)
        else:
            other = rng.integers(len(data))
            mutated[place : place + 40] = mutated[other : other + 40]
        with contextlib.suppress(ValueError):
            state = read_plain_pickle(bytes(mutated))
            weights = state.get("weights") if isinstance(state, dict) else None
            for value in weights.values() if isinstance(weights, dict) else ():
                if isinstance(value, PickledArray):
                    value.array()


def test_real_states_name_classes_that_need_not_be_there():
    arguments = [argument for _, argument, _ in pickletools.genops(STATE.read_bytes())]
    assert "ray.rllib.algorithms.callbacks" in arguments
    state = read_plain_pickle(STATE.read_bytes())
    config = state["policy_spec"]["config"]
    assert describe(state["checkpoint_version"]) == "is made by `packaging.version.Version`"
    assert describe(config["callbacks"]).endswith("callbacks.DefaultCallbacks`")
    assert config["lr"] == 5e-05 and config["model"]["fcnet_hiddens"] == [16]
