"""Loads damaged artifacts: each gives exactly the right policy or a documented error.

    mutated_artifacts.py ARTIFACT FOLDER COUNT SEED

Run by test_mutated_artifacts in a process of its own, which says what it is about to load, so that
a process that dies tells of what.
"""

import collections
import shutil
import sys
from pathlib import Path

import numpy as np
from mutations import mutate
from small_policies import ppo_batch, small_policy

from tfpolicy import load_policy
from tfpolicy.export.onnx import read_described, run_onnx

OBS = ppo_batch(6)["obs"]
# What the methods say that they raise of a damaged file.
DOCUMENTED = (FileNotFoundError, ValueError)
# What running code out of a file, or running a program, cannot do without. Compiling can be no more
# than parsing: NumPy reads the head of an array as a literal.
FORBIDDEN = {
    "code.__new__", "ctypes.dlopen", "exec", "import", "marshal.loads", "os.exec",
    "os.fork", "os.posix_spawn", "os.system", "pickle.find_class", "socket.connect",
    "subprocess.Popen",
}  # fmt: skip


def drawn_policy(seed):
    policy = small_policy("pg")
    rng = np.random.default_rng(seed)
    policy.set_weights({k: rng.normal(0, 0.6, v.shape) for k, v in policy.get_weights().items()})
    return policy


def same(first, second):
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name]) for name in first
    )


def load_served(policy, path):
    with load_policy(path) as served:
        return served.compute_actions(OBS)[2]["action_dist_inputs"]


def load_into(method):
    """Loads into a policy of other weights, which must not change when it fails."""

    def load(policy, path):
        before = policy.get_weights()
        try:
            method(policy, path)
        except DOCUMENTED:
            assert same(policy.get_weights(), before)
            raise
        outputs = policy.compute_actions(OBS, explore=False)[2]["action_dist_inputs"]
        policy.set_weights(before)
        return outputs

    return load


def load_onnx(policy, path):
    read_described(path)
    return run_onnx(path.read_bytes(), {"obs": OBS})["action_dist_inputs"]


def write_onnx(policy, path):
    version = policy.export_model(path.with_name(f"{path.name}.model"), onnx=17)
    shutil.move(version / "model.onnx", path)


# For each kind the name, how it is written, and the ways in which it is loaded.
KINDS = {
    "saved_model": ("model", lambda policy, path: policy.export_model(path), [load_served]),
    "checkpoint": (
        "checkpoint",
        lambda policy, path: policy.save(path),
        [load_served, load_into(lambda policy, path: policy.restore(path))],
    ),
    "h5": (
        "weights.h5",
        lambda policy, path: policy.export_model_to_h5(path),
        [load_into(lambda policy, path: policy.import_model_from_h5(path))],
    ),
    "onnx": ("model.onnx", write_onnx, [load_onnx]),
}


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def call(load, policy, path):
    return load(policy, path)


def run(kind, folder, count, seed, tell=lambda text: None, watch=call):
    """Loads `count` mutations of one artifact.

    Args:
        kind: One of `KINDS`.
        folder: Where to work.
        count: How many mutations.
        seed: What they are drawn by.
        tell: Is told of each one before it is loaded.
        watch: Calls a loader with its arguments and returns its result.

    Returns:
        How often it was loaded, and how often each error came.
    """
    name, write, loads = KINDS[kind]
    sound, other, work = (folder / part for part in ("sound", "other", "work"))
    for path in (sound, other, work):
        path.mkdir()
    with drawn_policy(2) as policy:
        write(policy, other / name)
        with drawn_policy(1) as right:
            write(right, sound / name)
            expected = right.compute_actions(OBS, explore=False)[2]["action_dist_inputs"]
        counts = collections.Counter()
        for load in loads:
            np.testing.assert_allclose(load(policy, sound / name), expected, atol=1e-6)
        for index in range(count):
            copy = work / name
            if (sound / name).is_dir():
                shutil.copytree(sound / name, copy)
            else:
                shutil.copy(sound / name, copy)
            rng = np.random.default_rng([seed, index])
            what = mutate(rng, copy, other / name)
            tell(f"{index}: {what}")
            for load in loads:
                try:
                    found = watch(load, policy, copy)
                except DOCUMENTED as error:
                    assert str(error), what
                    counts[type(error).__name__] += 1
                else:
                    np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=what)
                    counts["loaded"] += 1
            if copy.exists():
                remove(copy)
    return counts


def main(kind, folder, count, seed):
    events = []
    watching = []
    sys.addaudithook(lambda event, arguments: watching and events.append((event, arguments)))

    def watch(load, policy, path):
        events.clear()
        watching.append(True)
        try:
            return load(policy, path)
        finally:
            watching.clear()
            suspicious = [event for event in events if event[0] in FORBIDDEN]
            assert not suspicious, str(suspicious[:3])[:1000]

    def tell(text):
        print(text, flush=True)

    print(dict(run(kind, Path(folder), int(count), int(seed), tell, watch)))


if __name__ == "__main__":
    main(*sys.argv[1:])
