"""Whoever loads an export acts as the policy does: a C program, a command, other runtimes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from acted_singly import acted_singly
from small_policies import OBS, small_policy

from tfpolicy.graph.discovery import sample_rows
from tfpolicy.spaces import flatten, leaf_spaces

S = gym.spaces
ROWS, STEPS = 4, 3
SEVERAL = S.Dict(
    pose=S.Tuple([S.Box(-1, 1, (2,), np.float64), S.Discrete(3, start=1)]),
    image=S.Box(0, 255, (3, 3, 1), np.uint8),
)
CASES = {
    "discrete": (OBS, S.Discrete(3, start=2), {}),
    "continuous": (OBS, S.Box(np.float32([-2, 0]), np.float32([6, 1])), {}),
    "nested": (SEVERAL, S.Dict(go=S.MultiDiscrete([2, 3]), by=S.Tuple([S.Box(-2, 5, (2,))])), {}),
    "recurrent": (OBS, S.Discrete(3), {"use_lstm": True, "lstm_cell_size": 5}),
}


def drawn_policy(case):
    """A policy whose weights are large enough for its actions to differ."""
    obs_space, action_space, model = CASES[case]
    policy = small_policy("pg", obs_space, action_space, model={"fcnet_hiddens": [6], **model})
    rng = np.random.default_rng(7)
    policy.set_weights({k: rng.normal(0, 0.6, v.shape) for k, v in policy.get_weights().items()})
    return policy


def can_write_onnx():
    try:
        import onnxruntime  # noqa: F401
        import tf2onnx  # noqa: F401
    except ImportError:
        return False
    return True


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """For every case a version, inputs [T, B, ...] by name, and what the policy does on them."""
    root = tmp_path_factory.mktemp("exported")
    found = {}
    for case in CASES:
        with drawn_policy(case) as policy:
            version = policy.export_model(root / case, onnx=17 if can_write_onnx() else None)
            space = policy.observation_space
            steps = [flatten(space, sample_rows(space, ROWS, seed)) for seed in range(STEPS)]
            inputs = {
                name: np.stack([leaves[index] for leaves in steps])
                for index, name in enumerate(leaf_spaces(space, "obs"))
            }
            expected = acted_singly(policy, steps)
            del expected["action_prob"]
            start = {f"state_in_{i}": s for i, s in enumerate(policy.get_initial_state())}
            found[case] = version, inputs, start, expected
    return found


def assert_same(found, expected, tolerance=1e-6):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        if value.dtype.kind == "f":
            np.testing.assert_allclose(found[name], value, tolerance, tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def play(act, inputs, start):
    """Acts step by step with a function of inputs by name, which goes on from its own states."""
    states = {name: np.repeat(state[None], ROWS, axis=0) for name, state in start.items()}
    steps = []
    for step in range(STEPS):
        outputs = act({**{name: array[step] for name, array in inputs.items()}, **states})
        states = {name: outputs[name.replace("_in_", "_out_")] for name in states}
        steps.append(outputs)
    return {name: np.stack([outputs[name] for outputs in steps]) for name in steps[0]}


# C.


def write_tensors(path, tensors):
    with path.open("wb") as file:
        for name, array in tensors.items():
            kind = tf.as_dtype(array.dtype).as_datatype_enum
            sizes = " ".join(map(str, array.shape))
            file.write(f"{name} {kind} {array.ndim} {sizes}\n".encode() + array.tobytes())


def read_tensors(path):
    tensors = {}
    with path.open("rb") as file:
        while line := file.readline():
            name, kind, rank, *sizes = line.split()
            assert len(sizes) == int(rank)
            dtype = tf.as_dtype(int(kind)).as_numpy_dtype
            shape = tuple(map(int, sizes))
            content = file.read(int(np.prod(shape)) * np.dtype(dtype).itemsize)
            tensors[name.decode()] = np.frombuffer(content, dtype).reshape(shape)
    return tensors


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The C program, built with the headers and libraries that the TensorFlow wheel has."""
    compiler = next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = Path(tf.sysconfig.get_lib())
    libraries = [next(library.glob(f"libtensorflow_{name}*.so*")) for name in ("cc", "framework")]
    path = tmp_path_factory.mktemp("program") / "act_in_c"
    command = [compiler, "-O1", "-Wall", "-Werror", f"-I{tf.sysconfig.get_include()}"]
    if shutil.which("ld.gold"):  # The other one takes half a minute over so large a library.
        command.append("-fuse-ld=gold")
    source = Path(__file__).with_name("act_in_c.c")
    command += [source, *libraries, f"-Wl,-rpath,{library}", "-o", path]
    subprocess.run(command, check=True)
    return path


@pytest.mark.parametrize("case", CASES)
def test_a_c_program_acts_as_the_policy_does(exported, program, case, tmp_path):
    version, inputs, _, expected = exported[case]
    write_tensors(tmp_path / "request", inputs)
    done = subprocess.run(
        [program, version, tmp_path / "request", tmp_path / "response"],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert_same(read_tensors(tmp_path / "response"), expected)


# The command that comes with TensorFlow.

COMMANDS = """
import shlex, sys
from tensorflow.python.tools.saved_model_cli import main

for line in sys.stdin:
    sys.argv = shlex.split(line)
    try:
        main()
    except SystemExit as end:
        assert not end.code, line
assert "tfpolicy" not in sys.modules
"""


def test_the_command_of_tensorflow_runs_every_export(exported, tmp_path):
    # One process for all, since TensorFlow takes seconds to start.
    lines = []
    for case, (version, inputs, start, _) in exported.items():
        folder = tmp_path / case
        folder.mkdir()
        states = {name: np.repeat(state[None], ROWS, axis=0) for name, state in start.items()}
        for name, array in {**{k: v[0] for k, v in inputs.items()}, **states}.items():
            np.save(folder / f"{name}.npy", array)
        given = ";".join(f"{path.stem}={path}" for path in folder.glob("*.npy"))
        lines.append(
            f"saved_model_cli run --dir {version} --tag_set serve --signature_def serving_default"
            f" --inputs '{given}' --outdir {folder / 'out'}"
        )
    done = subprocess.run(
        [sys.executable, "-I", "-c", COMMANDS],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for case, (*_, expected) in exported.items():
        found = {path.stem: np.load(path) for path in (tmp_path / case / "out").iterdir()}
        assert_same(found, {name: array[0] for name, array in expected.items()})


# Other runtimes.


@pytest.mark.parametrize("case", CASES)
def test_the_onnx_runtime_acts_as_the_policy_does(exported, case):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    version, inputs, start, expected = exported[case]
    runtime = onnxruntime.InferenceSession(version / "model.onnx")
    names = [output.name for output in runtime.get_outputs()]

    def act(given):
        return dict(zip(names, runtime.run(names, given), strict=True))

    assert_same(play(act, inputs, start), expected, 1e-5)


@pytest.mark.parametrize("form", ["saved_model", "onnx"])
@pytest.mark.parametrize("case", CASES)
def test_openvino_acts_as_the_policy_does(exported, case, form):
    openvino = pytest.importorskip("openvino")
    version, inputs, start, expected = exported[case]
    if form == "onnx":
        pytest.importorskip("tf2onnx")
        model = openvino.Core().read_model(version / "model.onnx")
    else:
        # It has no operation for the log-probability of a choice in a SavedModel.
        expected = {name: array for name, array in expected.items() if name != "action_logp"}
        model = openvino.convert_model(version, output=list(expected))
    # Without the hint it may compute in bfloat16.
    hints = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(model, "CPU", hints)

    def act(given):
        found = compiled(given)
        return {
            name: found[output].copy()
            for output in compiled.outputs
            for name in output.get_names() & expected.keys()
        }

    assert_same(play(act, inputs, start), expected, 1e-5)
