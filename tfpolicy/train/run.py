"""A training run in a directory: built from a few settings, checkpointed, interrupted, resumed."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import gymnasium as gym
from gymnasium.vector import VectorEnv

from tfpolicy.graph.devices import num_gpus_present
from tfpolicy.models.encoders import convolves
from tfpolicy.policies import policy_class
from tfpolicy.tf_policy import TFPolicy
from tfpolicy.train.checkpoints import (
    checkpoint_folder,
    checkpoints,
    find_checkpoint,
)
from tfpolicy.train.environments import make_vector_env
from tfpolicy.train.episodes import WINDOW
from tfpolicy.train.logging import PROGRESS_FILE, RunLog
from tfpolicy.train.loop import Trainer, read_metadata

# Older checkpoints of a run are removed.
CHECKPOINTS_KEPT = 3
# An iteration takes from a few hundredths of a second to minutes, a checkpoint about a tenth.
SECONDS_PER_CHECKPOINT = 60.0


@dataclasses.dataclass(frozen=True)
class RunSpec:
    """What fixes a run: with the same spec, it can be resumed bit for bit.

    Where the vector environment cannot be seeded episode by episode (a vector entry point of its
    own, envpool), all but the running episodes can.

    Attributes:
        env: Id of an environment of gymnasium, or of envpool.
        algo: Name of an algorithm.
        num_envs: Sub-environments.
        vectorization: "sync", "async", "vector_entry_point" or "envpool".
        seed: Of the policy and of all episodes.
        config: The policy's config where it differs from the defaults; plain values.
    """

    env: str
    algo: str = "ppo"
    num_envs: int = 8
    vectorization: str = "sync"
    seed: int = 0
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def make_env(self) -> VectorEnv:
        """Makes the vector environment.

        Raises:
            gymnasium.error.Error: There is no such environment.
            TypeError: It does not take `config["env_config"]`.
        """
        env_config = self.config.get("env_config")
        return make_vector_env(self.env, self.num_envs, self.vectorization, env_config)

    def policy_config(self, observation_space: gym.Space) -> dict[str, Any]:
        """The policy's config: updates are jit-compiled unless `config` says otherwise.

        Convolutions on the CPU are not, since XLA makes them several times slower there.
        """
        model = policy_class(self.algo).config_class.from_dict(self.config).model
        slow = convolves(observation_space, model) and not num_gpus_present()
        return {"jit_compile": not slow, "seed": self.seed, **self.config}

    def make_policy(self, env: VectorEnv) -> TFPolicy:
        """Makes the policy.

        Raises:
            KeyError, TypeError, ValueError: The config does not fit the algorithm.
        """
        observation_space = env.single_observation_space
        return policy_class(self.algo)(
            observation_space, env.single_action_space, self.policy_config(observation_space)
        )

    def make_trainer(self) -> Trainer:
        """Makes environment, policy and trainer; raises what making them raises."""
        # The worker processes of async environments fork, which is safe only before a session runs.
        env = self.make_env()
        try:
            return Trainer(self.make_policy(env), env, self.seed)
        except BaseException:
            env.close()
            raise


@dataclasses.dataclass(frozen=True)
class Stop:
    """When a run ends.

    Attributes:
        timesteps: At that many transitions.
        episode_return: When the mean return of the last 100 episodes reaches this; `None`: never.
    """

    timesteps: int
    episode_return: float | None = None

    def reason(self, trainer: Trainer) -> str | None:
        """Why the run ends now, or `None` if it goes on."""
        if self.episode_return is not None and trainer.statistics.total >= WINDOW:
            mean = trainer.statistics.summary()["episode_return_mean"]
            if mean >= self.episode_return:
                return f"mean return {mean:.4g} of the last {WINDOW} episodes"
        if trainer.timesteps_total >= self.timesteps:
            return f"{trainer.timesteps_total:,} steps"
        return None


class Run:
    """A trainer at work in a directory.

    Args:
        trainer: New, or restored from a checkpoint.
        spec: What it was made from; kept in the checkpoints.
        directory: Where logs and checkpoints go.
        stop: When to end.
        resumed: Whether the logs that are in the directory go on.
    """

    def __init__(
        self, trainer: Trainer, spec: RunSpec, directory: Path, stop: Stop, resumed: bool = False
    ):
        self.trainer = trainer
        self.spec = spec
        self.directory = directory
        self.stop = stop
        self._resumed = resumed
        self._saved_at = time.monotonic()

    @classmethod
    def start(cls, spec: RunSpec, directory: Path, stop: Stop) -> Run:
        """Begins a run.

        Raises:
            FileExistsError: There is a run in the directory.
        """
        _check_unused(directory)
        return cls(spec.make_trainer(), spec, directory, stop)

    @classmethod
    def resume(
        cls,
        path: Path,
        directory: Path | None = None,
        timesteps: int | None = None,
        episode_return: float | None = None,
    ) -> Run:
        """Goes on with a run.

        Args:
            path: The run's directory, or one checkpoint in it.
            directory: Where it goes on, if not where it was.
            timesteps: When to end, if not when the run was told to.
            episode_return: The same.

        Raises:
            FileNotFoundError: There is no checkpoint in `path`.
            ValueError: The checkpoint is not the run's newest, and `directory` is not given.
        """
        checkpoint = find_checkpoint(path.resolve())
        home = checkpoint.parent.parent
        newest = checkpoints(home)[-1:] == [checkpoint]
        directory = home if directory is None and newest else directory
        if directory is None or (directory.resolve() == home and not newest):
            raise ValueError(
                f"`{checkpoint}` is not the newest checkpoint of a run: "
                "say with another log directory where to go on from it."
            )
        metadata = read_metadata(checkpoint)
        spec, stop = RunSpec(**metadata["run"]), Stop(**metadata["stop"])
        stop = Stop(
            stop.timesteps if timesteps is None else timesteps,
            stop.episode_return if episode_return is None else episode_return,
        )
        trainer = spec.make_trainer()
        try:
            trainer.restore(checkpoint)
            if directory.resolve() != home:
                _copy_progress(home, directory)
        except BaseException:
            trainer.close()
            raise
        return cls(trainer, spec, directory, stop, resumed=True)

    def train(self, checkpoint_freq: int | None = None, stream: TextIO | None = None) -> str | None:
        """Trains until it is time to end, with logs and checkpoints.

        Args:
            checkpoint_freq: Iterations between checkpoints; by default there is one a minute. The
                last iteration makes one, too.
            stream: Where the console writes; the standard error by default.

        Returns:
            Why it ended, or `None` if Ctrl-C ended it; a second Ctrl-C is a `KeyboardInterrupt`.
        """
        trainer, spec = self.trainer, self.spec
        begun = (trainer.iteration, trainer.timesteps_total) if self._resumed else None
        title = f"{spec.env}, {spec.algo}, seed {spec.seed}"
        log = RunLog(self.directory, self.stop.timesteps, title, begun, stream)
        try:
            with StopRequest(log.console.say) as interrupt:
                reason = self.stop.reason(trainer)
                compiles = trainer.policy.config["jit_compile"]
                while reason is None and not interrupt.requested:
                    result = trainer.train_iteration()
                    log.write(result)
                    if compiles:
                        seconds = result["learn_time_s"]
                        log.console.say(f"The first update was compiled: it took {seconds:.1f} s.")
                        compiles = False
                    reason = self.stop.reason(trainer)
                    ends = reason is not None or interrupt.requested
                    if ends or self._is_due(checkpoint_freq):
                        self._save()
                        log.plot()
                return reason
        finally:
            log.close()

    def close(self) -> None:
        """Closes environments and policy."""
        self.trainer.close()

    def _is_due(self, checkpoint_freq: int | None) -> bool:
        if checkpoint_freq is None:
            return time.monotonic() - self._saved_at >= SECONDS_PER_CHECKPOINT
        return self.trainer.iteration % checkpoint_freq == 0

    def _save(self) -> None:
        folder = checkpoint_folder(self.directory, self.trainer.iteration)
        metadata = {"run": dataclasses.asdict(self.spec), "stop": dataclasses.asdict(self.stop)}
        self.trainer.save(folder, metadata)
        for old in checkpoints(self.directory)[:-CHECKPOINTS_KEPT]:
            shutil.rmtree(old)
        self._saved_at = time.monotonic()


def read_spec(path: Path) -> RunSpec:
    """What the run in `path`, or the run of the checkpoint `path`, was made from.

    Raises:
        FileNotFoundError: There is no checkpoint in `path`.
        ValueError: The checkpoint was not written by a run.
    """
    metadata = read_metadata(find_checkpoint(path))
    if "run" not in metadata:
        raise ValueError(f"{path} is no checkpoint of `tfpolicy train`: it names no environment.")
    return RunSpec(**metadata["run"])


class StopRequest:
    """Turns the first Ctrl-C into a request to end; the second ends at once.

    Args:
        notify: Told when the request comes in.
    """

    def __init__(self, notify: Callable[[str], None]):
        self.requested = False
        self._notify = notify
        # Python lets no other thread handle signals; there Ctrl-C is somebody else's matter.
        self._handles = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> StopRequest:
        if self._handles:
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._handles:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self._notify("Interrupted: saving after this iteration. Ctrl-C again ends at once.")


def _copy_progress(home: Path, directory: Path) -> None:
    """Takes the rows of a run along to where it goes on."""
    _check_unused(directory)
    directory.mkdir(parents=True, exist_ok=True)
    if (home / PROGRESS_FILE).exists():
        shutil.copy(home / PROGRESS_FILE, directory / PROGRESS_FILE)


def _check_unused(directory: Path) -> None:
    if (directory / PROGRESS_FILE).exists() or checkpoints(directory):
        raise FileExistsError(f"`{directory}` holds a run already: resume it, or use another.")
