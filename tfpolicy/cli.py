"""The command `tfpolicy`, from training to converting files. Starts without TensorFlow."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tfpolicy.train.run import Run

DEFAULT_TIMESTEPS = 1_000_000

# Exit codes of an artifact that does otherwise than recorded, of a mistake on the command line and
# of Ctrl-C.
MISMATCH = 1
USER_ERROR = 2
INTERRUPTED = 130

_PATH = click.Path(path_type=Path)
_EXISTING = click.Path(path_type=Path, exists=True)
_EXISTING_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_NEW_FILE = click.Path(path_type=Path, dir_okay=False)
_VECTORIZATIONS = click.Choice(["sync", "async", "vector_entry_point", "envpool"])


class UserError(click.ClickException):
    """A mistake of the user's, told in one line."""

    exit_code = USER_ERROR


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and exits; errors are one line each."""
    # What TensorFlow says about instruction sets and missing GPUs at every start is no news.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        code = cli.main(arguments, prog_name="tfpolicy", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = error.exit_code
    except click.ClickException as error:
        click.echo(f"Error: {error.format_message()}", err=True)
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    sys.exit(code)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tfpolicy")
def cli() -> None:
    """Trains, evaluates, exports and inspects static-graph TensorFlow policies."""


@cli.command(
    epilog="""\b
Examples:
  tfpolicy train CartPole-v1 --stop-return 475 --export savedmodels/cartpole
  tfpolicy train Pendulum-v1 --set lr=1e-3 --set model.fcnet_hiddens=[64,64]
  tfpolicy train CartPole-v1 --resume runs/CartPole-v1-ppo-20250131-120000
"""
)
@click.argument("env", required=False)
@click.option("--algo", help="ppo, a2c or pg.  [default: ppo]")
@click.option("--config", "config_file", type=_EXISTING_FILE, help="YAML or JSON file of settings.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting; repeatable."
)
@click.option("--num-envs", type=click.IntRange(1), help="Sub-environments.  [default: 8]")
@click.option("--vectorization", type=_VECTORIZATIONS, help="How they step.  [default: sync]")
@click.option("--stop-return", type=float, help="End at this mean return of the last 100 episodes.")
@click.option(
    "--stop-timesteps",
    type=click.IntRange(1),
    help=f"End at this many steps.  [default: {DEFAULT_TIMESTEPS:,}]",
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Drawn if not given.")
@click.option("--logdir", type=_PATH, help="Logs, checkpoints.  [default: runs/ENV-ALGO-TIME]")
@click.option(
    "--checkpoint-freq",
    type=click.IntRange(1),
    help="Iterations between checkpoints.  [default: one a minute]",
)
@click.option("--export", "export_dir", type=_PATH, help="Write a SavedModel here at the end.")
@click.option("--resume", type=_EXISTING, help="Go on with a run: its directory or a checkpoint.")
@click.pass_context
def train(context: click.Context, resume: Path | None, **options: Any) -> None:
    """Trains a policy in ENV, an environment of gymnasium or, with that vectorization, of envpool.

    Settings are those of the policy's config; --set wins over --config. The first Ctrl-C saves a
    checkpoint and ends, the second ends at once. A resumed run goes on as if it had never stopped;
    if environments cannot be brought back, as those of envpool, it says so and begins new episodes.
    """
    export_dir = options["export_dir"]
    with _user_errors():
        if export_dir:
            _check_base(export_dir)
        run = _resumed_run(resume, options) if resume else _new_run(options)
    click.echo(f"Logs and checkpoints in {run.directory}, seed {run.spec.seed}.", err=True)
    if run.trainer.policy.config["jit_compile"]:
        click.echo("The first iteration compiles the update, which takes some seconds.", err=True)
    try:
        try:
            reason = run.train(options["checkpoint_freq"])
        except (FloatingPointError, OSError) as error:
            raise click.ClickException(str(error)) from error
        if reason is None:
            export = f" --export {export_dir}" if export_dir else ""
            click.echo(f"Go on with: tfpolicy train --resume {run.directory}{export}", err=True)
            context.exit(INTERRUPTED)
        click.echo(f"Ended after {run.trainer.iteration} iterations: {reason}.", err=True)
        if export_dir:
            with _user_errors():
                click.echo(f"Exported to {run.trainer.policy.export_model(export_dir)}")
    finally:
        run.close()


@cli.command(
    epilog="""\b
Examples:
  tfpolicy evaluate savedmodels/cartpole CartPole-v1 --episodes 20
  tfpolicy evaluate runs/pendulum Pendulum-v1 --explore --render-video pendulum.gif
"""
)
@click.argument("path", type=_EXISTING)
@click.argument("env")
@click.option("--episodes", type=click.IntRange(1), default=10, show_default=True)
@click.option("--explore/--no-explore", default=False, help="Sample actions, or take the mode.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--env-config",
    multiple=True,
    metavar="KEY=VALUE",
    help="For the environment, beside what the policy was trained with; repeatable.",
)
@click.option("--render-video", type=_PATH, help="Film the first episode: .gif, or .mp4.")
def evaluate(path: Path, env: str, env_config: tuple[str, ...], **options: Any) -> None:
    """Runs whole episodes of ENV with the policy in PATH.

    PATH is a SavedModel (its base or one version), a policy's checkpoint, a run or its checkpoint.
    """
    import gymnasium as gym

    from tfpolicy import inspection, load_policy
    from tfpolicy.train.checkpoints import find_policy
    from tfpolicy.train.evaluation import evaluate as evaluate_policy
    from tfpolicy.train.settings import with_settings

    video = options.pop("render_video")
    with _user_errors(), contextlib.ExitStack() as stack:
        acting = stack.enter_context(load_policy(find_policy(path)))
        settings = with_settings(inspection.env_config(path), env_config)
        made = gym.make(env, render_mode="rgb_array" if video else None, **settings)
        stack.enter_context(contextlib.closing(made))
        click.echo(evaluate_policy(acting, made, video=video, **options))


@cli.command(
    epilog="""\b
Example:
  tfpolicy export runs/cartpole savedmodels/cartpole --h5 cartpole.h5 --onnx 17 --keep 3
"""
)
@click.argument("checkpoint", type=_EXISTING)
@click.argument("directory", type=_PATH)
@click.option("--h5", type=_NEW_FILE, help="Write the weights to this .h5 file, too.")
@click.option("--onnx", type=click.IntRange(1), help="Write ONNX of this opset, too.")
@click.option("--version", type=click.IntRange(0), help="Its number.  [default: the next]")
@click.option("--keep", type=click.IntRange(1), help="Remove versions older than the newest KEEP.")
def export(checkpoint: Path, directory: Path, h5: Path | None, **options: int | None) -> None:
    """Writes the policy of CHECKPOINT as the next version of a SavedModel under DIRECTORY.

    CHECKPOINT is a policy's checkpoint, a run or its checkpoint.
    """
    from tfpolicy.export.h5 import check_suffix
    from tfpolicy.tf_policy import TFPolicy
    from tfpolicy.train.checkpoints import find_policy

    with _user_errors():
        _check_base(directory)
        if h5:
            check_suffix(h5)
    with _user_errors(), TFPolicy.from_checkpoint(find_policy(checkpoint)) as policy:
        click.echo(f"Exported to {policy.export_model(directory, **options)}")
        if h5:
            policy.export_model_to_h5(h5)
            click.echo(f"Weights written to {h5}")


@cli.command(
    epilog="""\b
Examples:
  tfpolicy inspect savedmodels/cartpole
  tfpolicy inspect cartpole.h5
"""
)
@click.argument("path", type=_EXISTING)
def inspect(path: Path) -> None:
    """Shows what is in PATH: signatures, spaces, weights, versions.

    PATH is a SavedModel, a checkpoint, a run, an .h5 or an .onnx file.
    """
    from tfpolicy.inspection import describe

    with _user_errors():
        click.echo(describe(path))


@cli.command(
    epilog="""\b
Examples:
  tfpolicy verify savedmodels/cartpole
  tfpolicy verify cartpole.h5
"""
)
@click.argument("path", type=_EXISTING)
@click.pass_context
def verify(context: click.Context, path: Path) -> None:
    """Loads PATH and compares what it does with what was recorded when it was written.

    PATH is a SavedModel (its base or one version), a policy's checkpoint, a run or its checkpoint,
    an .h5 or an .onnx file. The exit code is 1 if an output differs, 2 if PATH is damaged.
    """
    from tfpolicy import verification

    with _user_errors():
        comparisons = verification.verify(path)
    click.echo(verification.table(comparisons))
    if not all(line.same for line in comparisons):
        context.exit(MISMATCH)


@cli.command(
    epilog="""\b
Examples:
  tfpolicy convert cartpole.h5 savedmodels/cartpole --to savedmodel
  tfpolicy convert keras.h5 savedmodels/cartpole --to savedmodel --like runs/cartpole
"""
)
@click.argument("h5", type=_EXISTING_FILE)
@click.argument("target", type=_PATH)
@click.option(
    "--to",
    "kind",
    type=click.Choice(["savedmodel", "checkpoint"]),
    default="savedmodel",
    show_default=True,
)
@click.option("--like", type=_EXISTING, help="What has spaces and config, if H5 has not.")
@click.option("--onnx", type=click.IntRange(1), help="Write ONNX of this opset, too.")
def convert(h5: Path, target: Path, **options: Any) -> None:
    """Writes the weights in H5 as a SavedModel or a checkpoint to TARGET.

    Spaces and config are those of the policy that wrote H5, or of LIKE: a run, a checkpoint, a
    SavedModel, another .h5 file of a policy, or a .json file with `observation_space`,
    `action_space` and maybe `config` and `policy_class`.
    """
    from tfpolicy import conversion

    with _user_errors():
        click.echo(f"Written to {conversion.convert(h5, target, **options)}")


def _check_base(export_dir: Path) -> None:
    """Refuses before the training what an export would refuse after it."""
    from tfpolicy.export.publish import check_base
    from tfpolicy.export.saved_model import MODEL_FILE

    check_base(export_dir, MODEL_FILE)


def _new_run(options: dict[str, Any]) -> Run:
    from tfpolicy.train.run import Run, RunSpec, Stop

    given = _given_spec(options)
    if "env" not in given:
        raise UserError("Which environment? Give its id, for example CartPole-v1, or --resume.")
    spec = RunSpec(**{"seed": secrets.randbelow(2**31), **given})
    stop = Stop(options["stop_timesteps"] or DEFAULT_TIMESTEPS, options["stop_return"])
    return Run.start(spec, options["logdir"] or _default_directory(spec.env, spec.algo), stop)


def _resumed_run(path: Path, options: dict[str, Any]) -> Run:
    from tfpolicy.train.run import Run, read_spec

    spec = read_spec(path)
    for name, value in _given_spec(options).items():
        if vars(spec)[name] != value:
            raise UserError(
                "A resumed run keeps what it was made with: "
                f"{name} is {vars(spec)[name]!r}, got {value!r}."
            )
    return Run.resume(path, options["logdir"], options["stop_timesteps"], options["stop_return"])


def _given_spec(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `RunSpec` that the command line says something about."""
    from tfpolicy.train.settings import read_config, with_settings

    given = {name: options[name] for name in ("env", "algo", "num_envs", "vectorization", "seed")}
    if options["config_file"] or options["settings"]:
        config = read_config(options["config_file"]) if options["config_file"] else {}
        config = with_settings(config, options["settings"])
        # One seed for policy and environments.
        seed = config.pop("seed", None)
        given["config"] = config
        given["seed"] = seed if given["seed"] is None else given["seed"]
    return {name: value for name, value in given.items() if value is not None}


def _default_directory(env: str, algo: str) -> Path:
    name = re.sub(r"[^0-9A-Za-z_.-]", "_", env)
    return Path("runs", f"{name}-{algo}-{datetime.datetime.now():%Y%m%d-%H%M%S}")


@contextlib.contextmanager
def _user_errors() -> Iterator[None]:
    """Turns what bad input raises into one line; anything else keeps its traceback."""
    from gymnasium.error import Error as GymnasiumError

    try:
        yield
    except (GymnasiumError, ImportError, KeyError, OSError, TypeError, ValueError) as error:
        # A KeyError quotes its message when it is made a string.
        text = error.args[0] if isinstance(error, KeyError) else error
        raise UserError(" ".join(str(text).split())) from error
