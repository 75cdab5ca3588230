import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner

from tfpolicy.cli import INTERRUPTED, MISMATCH, USER_ERROR, cli

TINY = [
    "--num-envs=2",
    "--set=train_batch_size=32",
    "--set=sgd_minibatch_size=16",
    "--set=num_sgd_iter=1",
    "--set=model.fcnet_hiddens=[4]",
    "--set=jit_compile=false",
    "--set=intra_op_parallelism_threads=1",
    "--set=inter_op_parallelism_threads=1",
]


def _run(*arguments, exit_code=0):
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    if result.exit_code != exit_code:
        raise AssertionError(
            f"exit code {result.exit_code}:\n{result.output}"
        ) from result.exception
    return result


def _train(directory, *arguments, exit_code=0):
    return _run(
        "train", "CartPole-v1", *TINY, f"--logdir={directory}", *arguments, exit_code=exit_code
    )


def _error(*arguments):
    """The error message of a command that a user got wrong."""
    result = _run(*arguments, exit_code=USER_ERROR)
    line = result.stderr.splitlines()[-1]
    assert line.startswith("Error: ")
    return line.removeprefix("Error: ")


def _rows(directory):
    with (directory / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _timeless(rows):
    timed = {"env_steps_per_second", "sample_time_s", "learn_time_s", "time_total_s"}
    return [{name: row[name] for name in row if name not in timed} for row in rows]


@pytest.fixture(name="run", scope="module")
def _one_run(tmp_path_factory):
    """A run of 4 iterations with a checkpoint every second."""
    home = tmp_path_factory.mktemp("cli")
    _train(
        home / "run",
        "--stop-timesteps=128",
        "--checkpoint-freq=2",
        "--seed=3",
    )
    return home / "run"


@pytest.fixture(name="exported", scope="module")
def _one_export(run):
    """The SavedModel of that run."""
    directory = run.parent / "exported"
    stdout = _run("train", f"--resume={run}", f"--export={directory}").stdout
    assert stdout == f"Exported to {directory / '1'}\n"
    return directory


@pytest.mark.parametrize("command", ["train", "evaluate", "export", "inspect", "verify", "convert"])
def test_every_command_has_help_with_an_example(command):
    text = _run(command, "--help").output
    assert f"tfpolicy {command} " in text.split("Example", 1)[1]


def test_help_loads_no_tensorflow_and_is_there_at_once():
    code = (
        "import sys\n"
        "from tfpolicy.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'tensorflow', 'numpy', 'gymnasium'} & set(sys.modules)\n"
    )
    times = []
    for command in ([], ["train"], ["evaluate"]):
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", code, *command, "--help"], check=True, capture_output=True
        )
        times.append(time.perf_counter() - begin)
    # The quickest, since the machine may be busy with other tests.
    assert min(times) < 0.5


def test_a_run_leaves_logs_checkpoints_and_a_picture(run):
    assert [row["timesteps_total"] for row in _rows(run)] == ["32", "64", "96", "128"]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["000002", "000004"]
    assert (run / "learning_curve.png").stat().st_size > 0
    assert list(run.glob("events.out.tfevents*"))


def test_without_a_terminal_there_is_a_line_per_iteration(tmp_path):
    stderr = _train(tmp_path / "run", "--stop-timesteps=64", "--seed=3").stderr
    assert re.search(r"^iteration 1 \| 32 steps \| .* steps/s \| return .*_loss", stderr, re.M)
    assert "Ended after 2 iterations: 64 steps." in stderr


def test_a_resumed_run_is_the_run_that_never_stopped(run, tmp_path):
    _train(tmp_path / "run", "--stop-timesteps=64", "--seed=3")
    _run("train", "CartPole-v1", f"--resume={tmp_path / 'run'}", "--stop-timesteps=128")
    assert str(_timeless(_rows(tmp_path / "run"))) == str(_timeless(_rows(run)))
    _assert_same_arrays(run, tmp_path / "run")


def test_an_older_checkpoint_goes_on_elsewhere(run, tmp_path):
    checkpoint = run / "checkpoints" / "000002"
    assert "not the newest" in _error("train", f"--resume={checkpoint}")
    _run("train", f"--resume={checkpoint}", f"--logdir={tmp_path / 'branch'}")
    assert str(_timeless(_rows(tmp_path / "branch"))) == str(_timeless(_rows(run)))
    _assert_same_arrays(run, tmp_path / "branch")


def test_a_run_that_has_ended_does_not_go_on(run):
    stderr = _run("train", f"--resume={run}").stderr
    assert "Ended after 4 iterations: 128 steps." in stderr
    assert len(_rows(run)) == 4


def _assert_same_arrays(left, right):
    from tfpolicy.checkpoint import read_checkpoint

    states = [
        read_checkpoint(run / "checkpoints" / "000004" / "policy")[1] for run in (left, right)
    ]
    np.testing.assert_equal(*states)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["train"], "Which environment"),
        (["train", "CartPol-v1"], "CartPol"),
        (["train", "CartPole-v1", "--algo=pp"], "there are pg, a2c, ppo"),
        (["train", "CartPole-v1", "--set=lrr=1"], "no key 'lrr'. Did you mean 'lr'?"),
        (["train", "CartPole-v1", "--set=lr=fast"], "`lr` must be float, got 'fast'"),
        (["train", "CartPole-v1", "--set=lr"], "must look like key=value"),
        (["train", "CartPole-v1", "--set=gamma=2"], "`gamma` must be at most 1"),
        (["train", "CartPole-v1", "--config=nowhere.yaml"], "nowhere.yaml"),
        (["train", "CartPole-v1", "--set=env_config={mass: 3}"], "mass"),
        (["train", "CartPole-v1", "--num-envs=0"], "0 is not in the range"),
        (["train", "CartPole-v1", "--resume=nowhere"], "nowhere"),
        (["train", "CartPole-v1", "--resume=."], "neither a run with checkpoints"),
        (["evaluate", "nowhere", "CartPole-v1"], "nowhere"),
        (["inspect", "nowhere"], "nowhere"),
        (["verify", "nowhere"], "nowhere"),
        (["export", "nowhere", "somewhere"], "nowhere"),
        (["trian"], "No such command 'trian'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in _error(*arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--seed=4"], "seed is 3, got 4"),
        (["--algo=pg"], "algo is 'ppo', got 'pg'"),
        (["--num-envs=3"], "num_envs is 2, got 3"),
        (["--set=lr=1"], "config is"),
    ],
)
def test_a_resumed_run_keeps_what_it_was_made_with(run, arguments, message):
    assert message in _error("train", f"--resume={run}", *arguments)


def test_a_directory_with_a_run_is_not_used_again(run):
    before = (run / "progress.csv").read_bytes()
    assert "holds a run already" in _error("train", "CartPole-v1", f"--logdir={run}")
    assert (run / "progress.csv").read_bytes() == before


def test_settings_of_a_file_give_way_to_those_of_the_command_line(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("lr: 1e-4\nseed: 7\ngamma: 0.9\n")
    stderr = _train(
        tmp_path / "run", f"--config={path}", "--set=gamma=0.8", "--stop-timesteps=32"
    ).stderr
    assert "seed 7" in stderr
    from tfpolicy.train.run import read_spec

    spec = read_spec(tmp_path / "run")
    assert spec.seed == 7
    assert (spec.config["lr"], spec.config["gamma"]) == (1e-4, 0.8)
    assert _rows(tmp_path / "run")[0]["learner_stats/lr"] == "0.0001"


def test_it_ends_at_the_return_that_is_asked_for(tmp_path):
    stderr = _train(tmp_path / "run", "--stop-return=5", "--seed=3").stderr
    assert re.search(r"Ended after \d+ iterations: mean return .* of the last 100 episodes", stderr)
    assert int(_rows(tmp_path / "run")[-1]["episodes_total"]) >= 100


def test_what_was_exported_acts_like_the_checkpoint_it_came_from(run, exported):  # g24
    printed = [
        _run("evaluate", path, "CartPole-v1", "--episodes=3").stdout
        for path in (
            exported,
            exported / "1",
            run,
            run / "checkpoints" / "000004",
            run / "checkpoints" / "000004" / "policy",
        )
    ]
    assert len(set(printed)) == 1
    assert re.match(r"mean return \d+\.\d\d over 3 episodes", printed[0])


def test_evaluation_explores_and_films_if_asked(run, tmp_path):
    film = tmp_path / "film.gif"
    arguments = ["evaluate", run, "CartPole-v1", "--episodes=2", "--explore"]
    assert "over 2 episodes" in _run(*arguments, f"--render-video={film}").stdout
    assert film.stat().st_size > 0


def test_evaluation_in_another_environment_names_the_spaces(run):
    assert "`observation_space` is Box" in _error("evaluate", run, "Acrobot-v1")


def test_a_checkpoint_is_exported_with_weights(run, tmp_path):
    output = _run("export", run, tmp_path / "saved", f"--h5={tmp_path / 'weights.h5'}").stdout
    assert str(tmp_path / "saved" / "1") in output
    assert (tmp_path / "weights.h5").exists()
    evaluated = _run("evaluate", tmp_path / "saved", "CartPole-v1", "--episodes=2").stdout
    assert evaluated == _run("evaluate", run, "CartPole-v1", "--episodes=2").stdout


def test_a_version_can_be_numbered_and_old_ones_are_removed(run, tmp_path):
    saved = tmp_path / "saved"
    for version in (3, 5):
        assert (
            str(saved / str(version)) in _run("export", run, saved, f"--version={version}").stdout
        )
    assert str(saved / "6") in _run("export", run, saved, "--keep=2").stdout
    assert sorted(path.name for path in saved.iterdir()) == ["5", "6"]
    assert "`version` must be new" in _error("export", run, saved, "--version=5")


@pytest.mark.parametrize("place", ["1", "2"])
def test_the_place_of_a_version_is_refused_as_the_folder_of_versions(run, exported, place):
    before = sorted(exported.rglob("*"))
    assert f"give `{exported}`" in _error("export", run, exported / place)
    assert f"give `{exported}`" in _error("train", "CartPole-v1", "--export", exported / place)
    assert sorted(exported.rglob("*")) == before


def test_a_folder_for_the_weights_is_refused_before_anything_is_exported(run, tmp_path):
    assert "is a directory" in _error("export", run, tmp_path / "saved", f"--h5={tmp_path}")
    assert not (tmp_path / "saved").exists()


def test_weights_get_a_name_by_which_they_are_known_again(run, tmp_path):
    said = _error("export", run, tmp_path / "saved", f"--h5={tmp_path / 'weights.txt'}")
    assert said == f"`{tmp_path / 'weights.txt'}` must end in .h5 or .hdf5."
    assert not list(tmp_path.iterdir())
    _run("export", run, tmp_path / "saved", f"--h5={tmp_path / 'weights.HDF5'}")
    _run("verify", tmp_path / "weights.HDF5")


@pytest.mark.parametrize("below", ["", "saved"])
def test_a_file_is_no_folder_to_export_to(run, tmp_path, below):
    file = tmp_path / "some_file"
    file.write_text("mine")
    expected = f"`{file / below}` must be a folder, but `{file}` is a file."
    assert _error("export", run, file / below) == expected
    assert _error("train", "CartPole-v1", f"--export={file / below}") == expected
    weights = tmp_path / "weights.h5"
    _run("export", run, tmp_path / "saved", f"--h5={weights}")
    assert _error("convert", weights, file / below) == expected
    assert _error("convert", weights, file / below, "--to=checkpoint") == expected
    assert file.read_text() == "mine"


def test_artifacts_are_verified(run, exported, tmp_path):
    _run("export", run, tmp_path / "saved", f"--h5={tmp_path / 'weights.h5'}")
    for path in (run, run / "checkpoints" / "000004", exported, tmp_path / "weights.h5"):
        rows = _run("verify", path).stdout.splitlines()
        assert rows[0].split() == ["output", "recorded", "found", "difference", "allowed"]
        assert {row.split()[0] for row in rows} >= {"actions", "vf_preds"}
        assert all(row.endswith(" same") for row in rows[1:])


def test_what_acts_otherwise_ends_with_code_1_and_what_is_damaged_with_2(exported, tmp_path):
    from tfpolicy.checksums import write_list
    from tfpolicy.export.saved_model import EXAMPLE_FILE
    from tfpolicy.npz import read_npz, write_npz

    version = shutil.copytree(exported / "1", tmp_path / "1")
    arrays = read_npz(version / EXAMPLE_FILE)
    arrays["outputs/actions"][0] += 1
    write_npz(version / EXAMPLE_FILE, arrays)
    assert "tfpolicy_example.npz` is damaged" in _error("verify", version)
    write_list(version)
    rows = _run("verify", version, exit_code=MISMATCH).stdout.splitlines()
    assert [row.split()[0] for row in rows if row.endswith("DIFFERS")] == ["actions"]


def test_weights_become_a_saved_model_with_or_without_a_checkpoint(run, tmp_path):
    h5, target = tmp_path / "weights.h5", tmp_path / "converted"
    _run("export", run, tmp_path / "saved", f"--h5={h5}")
    for arguments in ([], [f"--like={run}"]):
        _run("convert", h5, target, "--to=savedmodel", *arguments)
    assert sorted(path.name for path in target.iterdir()) == ["1", "2"]
    evaluated = _run("evaluate", target, "CartPole-v1", "--episodes=2").stdout
    assert evaluated == _run("evaluate", run, "CartPole-v1", "--episodes=2").stdout


def test_envpool_that_is_not_installed_is_said_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "envpool", None)
    said = _error("train", "CartPole-v1", "--vectorization=envpool", f"--logdir={tmp_path / 'run'}")
    assert "needs the package envpool" in said and "pip install tfpolicy[envpool]" in said
    assert not (tmp_path / "run").exists()


SLOW_TRAINING = """
import sys, time
import gymnasium as gym
from tfpolicy.cli import main

class Slow(gym.Wrapper):
    def step(self, action):
        time.sleep(0.002)
        return self.env.step(action)

gym.register("Slow-v0", entry_point=lambda: Slow(gym.make("CartPole-v1")))
main(sys.argv[1:])
"""


def _interrupted(directory, times, mode="sync"):
    """Trains in a new process, sends Ctrl-C `times` after two iterations; (exit code, stderr)."""
    command = [sys.executable, "-c", SLOW_TRAINING, "train", "Slow-v0", *TINY, "--seed=3"]
    command += [f"--logdir={directory}", f"--vectorization={mode}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("iteration 2"):
            # As a terminal does it: to the whole group, worker processes among it.
            os.killpg(process.pid, signal.SIGINT)
        if times > 1 and line.startswith("Interrupted"):
            os.killpg(process.pid, signal.SIGINT)
    return process.wait(timeout=60), "".join(lines)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_ctrl_c_saves_and_ends_and_the_run_can_be_resumed(tmp_path, mode):
    code, stderr = _interrupted(tmp_path / "run", 1, mode)
    assert code == INTERRUPTED, stderr
    assert "Traceback" not in stderr
    assert f"tfpolicy train --resume {tmp_path / 'run'}" in stderr
    done = len(_rows(tmp_path / "run"))
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == [f"{done:06d}"]


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    code, stderr = _interrupted(tmp_path / "run", 2)
    assert code == INTERRUPTED, stderr
    assert "Traceback" not in stderr
    assert not (tmp_path / "run" / "checkpoints").exists()
