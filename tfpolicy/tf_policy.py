"""TFPolicy: a static graph that acts and learns, wired from a loss and a config."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tfpolicy.callbacks import DefaultCallbacks
from tfpolicy.checkpoint import read_checkpoint, write_checkpoint
from tfpolicy.columns import map_column
from tfpolicy.config import PolicyConfig
from tfpolicy.description import PolicyDescription, class_name
from tfpolicy.exploration import exploration_for
from tfpolicy.export.columns import environment_space
from tfpolicy.export.example import Example, example_to_arrays, tolerance
from tfpolicy.export.inference import build_inference
from tfpolicy.export.keras_weights import export_weights, import_weights
from tfpolicy.export.report import ImportReport
from tfpolicy.export.rllib import import_rllib
from tfpolicy.export.saved_model import export_saved_model
from tfpolicy.graph.acting import Actor
from tfpolicy.graph.devices import num_gpus_present, tower_devices
from tfpolicy.graph.discovery import recording_batch, sample_rows
from tfpolicy.graph.network import build_network
from tfpolicy.graph.placeholders import unknown_column
from tfpolicy.graph.seeds import SeedStream, check_seed_states, is_count
from tfpolicy.graph.session import GraphSession
from tfpolicy.graph.views import (
    acting_specs,
    blank_rows,
    drawn_rows,
    dummy_trajectory,
    offered_views,
    trained_specs,
    used_views,
)
from tfpolicy.hooks import PolicyHooks
from tfpolicy.learning import Learning
from tfpolicy.policy import Policy, Weights
from tfpolicy.sample_batch import SampleBatch
from tfpolicy.spaces import (
    batch_observations,
    blank_action,
    check_supported,
    environment_transform,
    first_action,
    flatten,
    leaf_spaces,
    normalize_action,
    unflatten,
)
from tfpolicy.view_requirement import ViewRequirement


class TFPolicy(PolicyHooks, Policy):
    """Base of all policies: subclasses say the loss, and the rest is built from it.

    Everything is made in the constructor, in a graph and a session of the policy's own; afterwards
    the graph is closed. `compute_actions` and its relatives may be called from several threads at
    once, also while another thread learns; learning, loading and restoring are for one thread.

    A subclass defines `config_class` and `loss`, and if needed `postprocess_trajectory`,
    `coefficient_sources`, `optimizer`, `gradients`, `stats`, `trajectory_views` and
    `prepare_train_batch`. All of them are pure: they read their arguments and `self.config`.

    Args:
        observation_space: The environment's own; preprocessing is part of the graph.
        action_space: The environment's own.
        config: A dict, an instance of `config_class`, or `None` for the defaults.
    """

    config_class: ClassVar[type[PolicyConfig]] = PolicyConfig
    config: PolicyConfig

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        config: Mapping[str, Any] | None = None,
    ):
        check_supported(observation_space, "observation_space")
        check_supported(action_space, "action_space")
        self.observation_space = observation_space
        self.action_space = self.action_space_struct = action_space
        self.config = self.config_class.from_dict(config)
        self._to_environment = {
            (unsquash, clip): environment_transform(action_space, unsquash=unsquash, clip=clip)
            for unsquash in (False, True)
            for clip in (False, True)
        }
        self.callbacks = (self.config.callbacks or DefaultCallbacks)()
        self._devices = tower_devices(self.config.num_gpus, self.config.fake_gpus)
        seed = self.config.seed
        # An unseeded policy still has one seed, so that its state can be saved and continued.
        self._seed = np.random.SeedSequence().generate_state(1)[0] // 2 if seed is None else seed
        self._acting_seeds = SeedStream(int(self._seed), "acting")
        self._shuffle_seeds = SeedStream(int(self._seed), "shuffling")
        self._timestep_lock = threading.Lock()
        self._graph_session = GraphSession(
            len(self._devices),
            self.config.intra_op_parallelism_threads,
            self.config.inter_op_parallelism_threads,
        )
        self._build_acting()
        self._build_learning()
        self._graph_session.finalize()
        self.callbacks.on_create_policy(policy=self)

    # Acting.

    def compute_actions(
        self,
        obs_batch: Any,
        state_batches: Sequence[Any] | None = None,
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        info_batch: Any = None,
        episodes: Any = None,
        explore: bool | None = None,
        timestep: int | None = None,
        extra_fetches: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, list[np.ndarray], dict[str, np.ndarray]]:
        """Acts on a batch of observations.

        Args:
            obs_batch: Array or list [B, ...], for nested spaces also a structure of arrays or a
                list of structures.
            state_batches: Recurrent state, arrays [B, S]; missing means the initial one.
            prev_action_batch: The policy's previous actions [B, ...], if the model reads them.
            prev_reward_batch: Previous rewards [B], if the model reads them.
            info_batch: Ignored; here for callers that have it.
            episodes: Ignored; here for callers that have them.
            explore: Whether to explore; `None` means `config["explore"]`. Without exploration the
                mode is taken, and the result is the same bit for bit at every call.
            timestep: What exploration schedules go by; `None` means `global_timestep`.
            extra_fetches: Which of the columns in the returned dict to compute; `None` means all.
                What is not asked for costs nothing: without `vf_preds` no value network is run.
            **kwargs: Further columns that the model reads, by name.

        Returns:
            The policy's own (normalized) actions [B, ...]; the states after them [B, S]; a dict
            with `action_dist_inputs`, `action_logp`, `action_prob` and, with a value head,
            `vf_preds`.

        Raises:
            KeyError: The model reads a column that is missing, none has a name in `kwargs`, or
                acting gives no column of a name in `extra_fetches`.
            ValueError: An observation has the wrong shape or dtype.
            FloatingPointError: The network's output is not finite.
        """
        if kwargs:
            self._check_known(kwargs)
        feeds = self._actor.inputs.feeds(
            obs_batch, state_batches, prev_action_batch, prev_reward_batch, kwargs
        )
        return self._act(feeds, explore, timestep, extra_fetches)

    def compute_actions_from_input_dict(
        self,
        input_dict: Mapping[str, Any],
        explore: bool | None = None,
        timestep: int | None = None,
        episodes: Any = None,
    ) -> tuple[Any, list[np.ndarray], dict[str, np.ndarray]]:
        """Like `compute_actions`, with columns by name as in `view_requirements`.

        Raises:
            KeyError: A column is unknown or missing.
        """
        self._check_known(input_dict)
        return self._act(self._actor.inputs.arrays(input_dict), explore, timestep)

    def compute_single_action(
        self,
        obs: Any,
        state: Sequence[Any] | None = None,
        prev_action: Any = None,
        prev_reward: Any = None,
        info: Any = None,
        episode: Any = None,
        explore: bool | None = None,
        timestep: int | None = None,
        clip_actions: bool | None = None,
        unsquash_actions: bool | None = None,
        extra_fetches: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, list[np.ndarray], dict[str, np.ndarray]]:
        """Acts on one observation and returns what the environment's `step` takes.

        Args:
            obs: One observation.
            state: Recurrent state [S] each; missing means the initial one.
            prev_action: The policy's previous action, if the model reads it.
            prev_reward: The previous reward, if the model reads it.
            info: Ignored.
            episode: Ignored.
            explore: As in `compute_actions`.
            timestep: As in `compute_actions`.
            clip_actions: Whether to clip to the space's bounds; `None` means the config's.
            unsquash_actions: Whether to map [-1, 1] onto the space's bounds, which wins over
                clipping; `None` means `config["normalize_actions"]`.
            extra_fetches: As in `compute_actions`.
            **kwargs: Further columns that the model reads, without the batch dimension.

        Returns:
            An action in the dtype of the action space; the state after it; the columns of
            `compute_actions` without the batch dimension.
        """
        if kwargs:
            self._check_known(kwargs)
        feeds = self._actor.inputs.single_feeds(obs, state, prev_action, prev_reward, kwargs)
        actions, states, extras = self._act(feeds, explore, timestep, extra_fetches)
        env_actions = self._environment_actions(actions, clip_actions, unsquash_actions)
        return (
            first_action(self.action_space, env_actions),
            [state[0] for state in states],
            {name: value[0] for name, value in extras.items()},
        )

    def compute_log_likelihoods(
        self,
        actions: Any,
        obs_batch: Any,
        state_batches: Sequence[Any] | None = None,
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        actions_normalized: bool = True,
        **kwargs: Any,
    ) -> np.ndarray:
        """Log-probabilities [B] float32 of `actions` [B, ...].

        Args:
            actions: The policy's own actions or, without `actions_normalized`, the environment's;
                for nested spaces a structure of arrays or a list of structures.
            obs_batch: As in `compute_actions`.
            state_batches: As in `compute_actions`.
            prev_action_batch: As in `compute_actions`.
            prev_reward_batch: As in `compute_actions`.
            actions_normalized: See `actions`.
            **kwargs: As in `compute_actions`.

        Raises:
            ValueError: `actions` have the wrong shape, dtype or number of rows, or one is outside
                of the space.
        """
        if not actions_normalized and self.config.normalize_actions:
            leaves = batch_observations(self.action_space, actions, "actions")
            actions = normalize_action(unflatten(self.action_space, leaves), self.action_space)
        self._check_known(kwargs)
        feeds = self._actor.inputs.feeds(
            obs_batch, state_batches, prev_action_batch, prev_reward_batch, kwargs
        )
        self.model.check_observations(feeds)
        leaves = batch_observations(self.dist_class.space, actions, "actions")
        if len(leaves[0]) != len(feeds[0]):
            raise ValueError(
                f"`actions`: expected {len(feeds[0])} rows as in `obs_batch`, got {len(leaves[0])}."
            )
        self.dist_class.check_actions(unflatten(self.dist_class.space, leaves), "actions")
        return self._actor.log_probs(feeds, leaves)

    def compute_values(self, input_dict: Mapping[str, Any]) -> np.ndarray:
        """State values [B] float32, for bootstrapping.

        Args:
            input_dict: Columns by name, of which those are read that acting reads.

        Raises:
            ValueError: The model has no value head.
        """
        self._check_open()
        if not self._actor.has_values:
            raise ValueError("This policy's model has no value head, so there are no values.")
        return self._actor.values(self._actor.inputs.arrays(input_dict))

    @property
    def values_apart(self) -> bool:
        """Whether the value network has no trained layer in common with what acts.

        Then values cost less when they are computed for many rows at once, with `compute_values`.
        """
        return self._actor.values_apart

    @property
    def acting_columns(self) -> tuple[str, ...]:
        """Names of the columns that acting reads."""
        return ("obs", *self._actor.inputs.specs)

    @property
    def acting_views(self) -> dict[str, ViewRequirement]:
        """The views that acting reads, by name; known to `postprocess_trajectory` as well."""
        return {name: self._views[name] for name in self.acting_columns}

    @property
    def trainable_names(self) -> tuple[str, ...]:
        """Names of the weights that gradients are aligned with."""
        return self._learning.trainable_names

    def get_initial_state(self) -> list[np.ndarray]:
        """The recurrent state before the first step, [S] each."""
        return [np.array(state) for state in self.model.initial_state()]

    # Learning.

    def learn_on_batch(self, samples: Mapping[str, Any]) -> dict[str, Any]:
        """Takes one optimizer step on all rows of `samples`, which is not changed.

        Args:
            samples: Columns [B, ...], with whatever the loss reads.

        Returns:
            `"learner_stats"`: the loss's statistics and `grad_gnorm`, the norm before clipping.
            `"custom_metrics"`: what `on_learn_on_batch` put into its result.
            `"num_rows"` learned from and `"num_rows_dropped"`. With an observation filter
            `"num_rows_not_finite"`, which its statistics leave out.

        Raises:
            KeyError: A column is missing.
            ValueError: A column has the wrong shape or dtype.
            FloatingPointError: The loss or a gradient is not finite; nothing was applied.
        """
        batch, metrics = self._announced(samples)
        self._learning.follow_schedules(self.global_timestep)
        return self._learning.learn_on_batch(batch, metrics)

    def compute_gradients(
        self, postprocessed_batch: Mapping[str, Any]
    ) -> tuple[list[np.ndarray | None], dict[str, Any]]:
        """The gradients that `learn_on_batch` would apply, aligned with the trainable variables.

        They are averaged over the towers and clipped; `None` where the loss does not depend on a
        variable.
        """
        batch, metrics = self._announced(postprocessed_batch)
        self._learning.follow_schedules(self.global_timestep)
        return self._learning.compute_gradients(batch, metrics)

    def apply_gradients(self, gradients: Sequence[np.ndarray | None]) -> None:
        """Applies what `compute_gradients` gave, as it is."""
        self._check_open()
        self._learning.follow_schedules(self.global_timestep)
        self._learning.apply_gradients(gradients)

    def load_batch_into_buffer(self, batch: Mapping[str, Any], buffer_index: int = 0) -> int:
        """Copies what learning reads onto the devices, dealt evenly to the towers.

        Args:
            batch: As in `learn_on_batch`; not changed.
            buffer_index: Which of `config["num_multi_gpu_tower_stacks"]` buffers.

        Returns:
            Rows per device, whatever the number of towers. Of a recurrent policy every sequence
            counts `max_seq_len` rows here and in offsets, though only real rows are learned from.

        Raises:
            KeyError: A column is missing.
            ValueError: A column has the wrong shape or dtype, or there are fewer rows (sequences)
                than towers.
        """
        self._check_open()
        self._learning.num_loaded(buffer_index)  # Refuses a wrong index before anyone is told.
        announced, metrics = self._announced(batch)
        self._learning.load(announced, metrics, buffer_index)
        return self._learning.num_loaded(buffer_index)

    def get_num_samples_loaded_into_buffer(self, buffer_index: int = 0) -> int:
        """Rows per device; 0 before the first load."""
        self._check_open()
        return self._learning.num_loaded(buffer_index)

    def learn_on_loaded_batch(self, offset: int = 0, buffer_index: int = 0) -> dict[str, Any]:
        """Takes one SGD step on one minibatch of a loaded batch.

        Args:
            offset: First row on every device; `sgd_minibatch_size / towers` rows are taken.
            buffer_index: Which buffer.

        Returns:
            As `learn_on_batch`.

        Raises:
            ValueError: Nothing is loaded, or there is no such row.
            FloatingPointError: As in `learn_on_batch`.
        """
        self._check_open()
        self._learning.check_offset(offset, buffer_index)
        self._learning.follow_schedules(self.global_timestep)
        return self._learning.learn_on_loaded(offset, buffer_index)

    def learn_on_buffer(
        self, num_sgd_iter: int | None = None, shuffle: bool = True, buffer_index: int = 0
    ) -> dict[str, Any]:
        """Runs all epochs of minibatch SGD on a loaded batch in one session call.

        It does what a loop over `learn_on_loaded_batch` does on a batch in that order.

        Args:
            num_sgd_iter: Epochs; `None` means the config's. With `jit_compile` and one tower each
                number of epochs, and of rows that are loaded, is compiled once.
            shuffle: Whether each epoch takes the rows in a new random order.
            buffer_index: Which buffer.

        Returns:
            As `learn_on_batch`; statistics are means over the minibatches of the last epoch, and
            `"num_rows"` and `"num_rows_dropped"` are its rows.

        Raises:
            ValueError: Nothing is loaded, or `num_sgd_iter` is not positive.
            FloatingPointError: A minibatch was not finite: neither it nor any later one was
                applied.
        """
        self._check_open()
        self._learning.check_loaded(buffer_index)
        num_epochs = self.config.num_sgd_iter if num_sgd_iter is None else num_sgd_iter
        if num_epochs < 1 or num_epochs != int(num_epochs):
            raise ValueError(f"`num_sgd_iter` must be a positive integer, got {num_epochs}.")
        self._learning.follow_schedules(self.global_timestep)
        seed = self._shuffle_seeds.next()
        return self._learning.learn_on_buffer(int(num_epochs), seed, shuffle, buffer_index)

    def update_observation_filter(self, samples: Mapping[str, Any]) -> None:
        """Enters observations into the statistics of the filter without learning from them.

        `load_batch_into_buffer` and `learn_on_batch` do so by themselves, `compute_gradients` and
        `apply_gradients` do not.

        Args:
            samples: Columns [B, ...], of which `obs` is read.

        Raises:
            KeyError: There is no such column.
            ValueError: The policy has no filter, or the observations are of another shape or dtype.
        """
        self._check_open()
        self._learning.update_filter(SampleBatch(samples))

    # State.

    def get_weights(self) -> Weights:
        """All variables of the model by name, as arrays: all that acting depends on.

        So who acts with the weights of another policy has the moments of its observation filter.
        """
        self._check_open()
        return self._state.get_weights()

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Assigns all weights, or none.

        Raises:
            ValueError: Names or shapes differ, or with `check_numerics` a weight is not finite;
                all of them are listed.
        """
        self._check_open()
        self._state.set_weights(weights)

    def get_state(self) -> dict[str, Any]:
        """Everything that the next update depends on: arrays and plain values only."""
        self._check_open()
        return {
            **self._state.get_state(),
            "global_timestep": self.global_timestep,
            "exploration_state": self.get_exploration_state(),
            "random": {
                "acting": self._acting_seeds.get_state(),
                "shuffling": self._shuffle_seeds.get_state(),
            },
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from another policy's state, or raises and changes nothing.

        Weights that are not finite are taken: one may want to look into what has gone wrong.

        Raises:
            ValueError: The state does not fit, or is of a later format version.
        """
        self._check_open()
        self._state.check(state, ("global_timestep", "exploration_state", "random"))
        timestep, random = state["global_timestep"], state["random"]
        if not is_count(timestep):
            raise ValueError(f"The state's `global_timestep` must be >= 0, got {timestep!r}.")
        if not isinstance(state["exploration_state"], Mapping):
            raise ValueError(
                "The state's `exploration_state` must be what `get_exploration_state` gives, "
                f"got {state['exploration_state']!r}."
            )
        streams = {"acting": self._acting_seeds, "shuffling": self._shuffle_seeds}
        check_seed_states(random, streams)
        self.exploration.set_state(dict(state["exploration_state"]))
        self._state.set_state(state)
        self.global_timestep = int(timestep)
        for name, stream in streams.items():
            stream.set_state(random[name])

    def get_exploration_state(self) -> dict[str, Any]:
        """Where the exploration's schedules stand."""
        return self.exploration.get_state(self.global_timestep)

    def get_exploration_info(self) -> dict[str, Any]:
        """Deprecated alias of `get_exploration_state`."""
        _warn_deprecated("get_exploration_info", "get_exploration_state")
        return self.get_exploration_state()

    def set_coefficient(self, name: str, value: float) -> None:
        """Assigns an adaptive coefficient.

        Raises:
            KeyError: There is no such coefficient.
            ValueError: It follows a schedule, or the value is not finite.
        """
        self._check_open()
        if name in self.coefficients and name not in self.coefficients.adaptive:
            adaptive = ", ".join(self.coefficients.adaptive) or "none"
            raise ValueError(f"Coefficient {name!r} follows a schedule; adaptive are: {adaptive}.")
        self._state.set_coefficients({name: value})

    # Files.

    def save(self, checkpoint_dir: str | os.PathLike[str]) -> None:
        """Writes a checkpoint: the whole state, and what is needed to build the policy again.

        Args:
            checkpoint_dir: The checkpoint's folder; one that is there is replaced, whole.

        Raises:
            TypeError: `env_config` or another free dict of the config holds a value that is
                neither plain nor an array.
        """
        example = self._finite_example()
        description = {
            **self._description().to_json(),
            "example": example._asdict() if example else None,
        }
        write_checkpoint(checkpoint_dir, description, self.get_state())

    def restore(self, checkpoint_dir: str | os.PathLike[str]) -> None:
        """Continues from the state in a checkpoint, or raises and changes nothing.

        Raises:
            FileNotFoundError: There is no such folder.
            ValueError: It holds no checkpoint, a damaged one, or one of another kind of policy.
        """
        self.set_state(read_checkpoint(checkpoint_dir)[1])

    @classmethod
    def from_checkpoint(
        cls, checkpoint_dir: str | os.PathLike[str], config: Mapping[str, Any] | None = None
    ) -> TFPolicy:
        """Builds the policy of a checkpoint, which goes on as if it had never stopped.

        Args:
            checkpoint_dir: What `save` wrote.
            config: Settings in place of the stored ones. Classes that the config names, such as a
                custom model, are never loaded from a file: they have to be given here.

        Returns:
            A policy of the class that was saved, which must be this class or one derived from it,
            or of this class, if it is derived from that.

        Raises:
            FileNotFoundError: There is no such folder.
            ValueError: It holds no checkpoint or a damaged one, or a class is missing.
        """
        stored, state = read_checkpoint(checkpoint_dir)
        policy = cls.from_description(PolicyDescription.from_json(stored, checkpoint_dir), config)
        try:
            policy.set_state(state)
        except BaseException:
            policy.close()
            raise
        return policy

    @classmethod
    def from_description(
        cls, description: PolicyDescription, config: Mapping[str, Any] | None = None
    ) -> TFPolicy:
        """Builds a new policy like one that was described; as `from_checkpoint`, but untrained."""
        policy_class = description.find_class(cls)
        return policy_class(
            description.observation_space,
            description.action_space,
            _portable(policy_class.config_class, description.config, config or {}),
        )

    def export_model(
        self,
        export_dir: str | os.PathLike[str],
        onnx: int | None = None,
        *,
        version: int | None = None,
        keep: int | None = None,
    ) -> Path:
        """Publishes a SavedModel as the next numbered version under a folder.

        It takes raw observations and gives the environment's actions; its signatures are
        `serving_default`, which takes the mode, `sample`, and `initial_state` if there is a
        recurrent state. Before it is published it is loaded and compared with this policy.

        Args:
            export_dir: Folder of all versions; made if missing.
            onnx: Writes `model.onnx` of this opset beside it, too.
            version: The version's number; `None` means one above the highest there.
            keep: How many versions up to this one may stay; older ones are removed then. A server
                that polls the folder should find two at least.

        Returns:
            The path of the version.

        Raises:
            FileExistsError: `version` is there already.
            ValueError: There is no such opset, or `version` or `keep` is no such number.
            ImportError: A package for ONNX is missing.
            OSError: It cannot be written; nothing was published.
            RuntimeError: What was written does not act as this policy; nothing was published.
        """
        weights = self.get_weights()
        spaces = self.observation_space, self.action_space
        with build_inference(*spaces, self.config, weights) as graph:
            example = self._example()
            return export_saved_model(
                export_dir,
                graph,
                self._description(),
                example,
                onnx,
                version,
                keep,
                global_timestep=self.global_timestep,
            )

    def export_model_to_h5(self, path: str | os.PathLike[str]) -> None:
        """Writes the weights to an `.h5` file that Keras opens; replaces it atomically.

        Weights only, and for the built-in models the architecture: what training needs besides
        them is in a checkpoint. The moments of an observation filter are in the file, too, but not
        in the Keras model, which takes observations that are normalized.

        Args:
            path: The file, `.h5` or `.hdf5`; missing parent folders are made.

        Raises:
            ValueError: The suffix is another.
        """
        weights = self.get_weights()
        example = self._finite_example()
        own: dict[str, np.ndarray | str] = {"description": self._description().to_text()}
        if example:
            own.update(example_to_arrays(example))
        spaces = self.observation_space, self.action_space
        export_weights(path, *spaces, self.config, weights, own)

    def import_model_from_h5(
        self,
        path: str | os.PathLike[str],
        strict: bool = True,
        layers: Sequence[str] | None = None,
        network: str | None = None,
    ) -> ImportReport:
        """Assigns weights from an `.h5` file of ours, of tf_keras or of Keras 3.

        They are matched by name or, if the file has other names, by order. Weights only: the
        optimizer keeps its slots, and coefficients and counters stay as they are. The moments of an
        observation filter come with all the weights, not with some layers of them.

        Args:
            path: What `export_model_to_h5`, `save_weights` or `save` wrote. With `layers` or
                `network` it may hold the weights of the whole policy or just those.
            strict: Whether all weights that are asked for must be there, and without `layers` and
                `network` no others; else whatever fits is assigned.
            layers: Names of the only layers to assign ("fc_1"); `None` for all.
            network: The only network to assign: "policy" or "value" for built-in models, of which
                shared layers belong to both, the name of an attribute for a model of your own.

        Returns:
            What was assigned from where, and what was not.

        Raises:
            FileNotFoundError: There is no such file.
            KeyError: There is no such layer or network.
            ValueError: It holds no weights, or others, or the moments of another observation
                filter; nothing was assigned.
        """
        self._check_open()
        weights, report = import_weights(
            path,
            self.observation_space,
            self.action_space,
            self.config,
            self._state.weight_shapes,
            strict=strict,
            layers=layers,
            network=network,
        )
        self._state.import_weights(weights)
        return report

    def import_rllib_weights(
        self,
        source: str | os.PathLike[str] | Mapping[str, Any],
        strict: bool = True,
        policy_id: str | None = None,
    ) -> ImportReport:
        """Assigns the weights of a TensorFlow policy of RLlib, Ray 1.x or 2.x.

        Fully connected, convolutional and LSTM networks are mapped (an LSTM of RLlib needs
        `vf_share_layers`), custom models by their names. Nothing in a pickle is run.

        Args:
            source: `policy_state.pkl`, the folder of a policy or an algorithm, the `checkpoint-<n>`
                of a trainer, an npz or h5 file, a dict of weights, or what `get_state` gave there.
            strict: Whether all weights must be there, and no others; else what fits is assigned.
            policy_id: Which policy, if there are several.

        Returns:
            What was assigned from where and how it was changed, and what was not.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: It is damaged, holds something else than arrays where weights should be, or
                the weights of another network; nothing was assigned.
        """
        self._check_open()
        weights, report = import_rllib(
            source,
            self.observation_space,
            self.action_space,
            self.config,
            self._state.weight_shapes,
            strict=strict,
            policy_id=policy_id,
        )
        self._state.import_weights(weights)
        return report

    def export_checkpoint(self, export_dir: str | os.PathLike[str]) -> None:
        """Deprecated alias of `save`."""
        _warn_deprecated("export_checkpoint", "save")
        self.save(export_dir)

    def get_session(self) -> tf.compat.v1.Session:
        """The session, for looking around; the graph is closed."""
        return self._graph_session.session

    def close(self) -> None:
        """Frees session, graph and buffers; every later call raises."""
        if self._graph_session.usable:
            self._learning.release()
        self._graph_session.close()

    def __enter__(self) -> TFPolicy:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.observation_space, self.action_space, self.config)
        return _rebuild, (type(self), arguments, self.get_state())

    # Building.

    def _build_acting(self) -> None:
        with self._graph_session.building():
            network = build_network(
                self.observation_space, self.action_space, self.config, int(self._seed)
            )
        self.model, self.dist_class = network.model, network.dist_class
        self._observation_filter = network.observation_filter
        self.exploration = exploration_for(
            self.config.exploration_config, network.own_space, self.dist_class
        )
        self._views = offered_views({**network.views, **self.trajectory_views()})
        self._actor = Actor(
            self._graph_session,
            self.observation_space,
            self.model,
            self.dist_class,
            self.exploration,
            acting_specs(network.views),
            check_numerics=self.config.check_numerics,
        )
        variables = self._graph_session.graph.get_collection(
            tf.compat.v1.GraphKeys.GLOBAL_VARIABLES
        )
        self._graph_session.initialize(variables)

    def _build_learning(self) -> None:
        batch, postprocessing_reads = self._try_postprocessing()
        self._learning = Learning(
            self._graph_session,
            self,
            self.model,
            self.dist_class,
            self._devices,
            trained_specs(self._views, batch),
            {k: v.batch_repeat_value for k, v in self._views.items() if v.batch_repeat_value > 1},
            self._observation_filter,
        )
        self._state, self.coefficients = self._learning.state, self._learning.coefficients
        self.view_requirements = used_views(
            self._views, self.acting_columns, {*self._learning.reads, *postprocessing_reads}
        )
        self.batch_divisibility_req = len(self._devices) * self._learning.rows_per_unit

    def _try_postprocessing(self) -> tuple[SampleBatch, set[str]]:
        """Postprocesses a short made-up trajectory; gives it and the names that were read."""
        num_rows = min(2, self.config.train_batch_size)
        obs = sample_rows(self.observation_space, num_rows, int(self._seed))
        blank = blank_rows(self._actor.inputs.specs, num_rows)
        actions, states, extras = self._actor.act(
            self._actor.inputs.arrays({"obs": obs, **blank}), None, timestep=0
        )
        acted = {"obs": obs, "actions": actions, **extras}
        for index, (state, initial) in enumerate(
            zip(states, self.model.initial_state(), strict=True)
        ):
            acted[f"state_in_{index}"] = np.repeat(initial[None], num_rows, axis=0)
            acted[f"state_out_{index}"] = state
        trajectory = dummy_trajectory(self._views, acted, num_rows, int(self._seed))
        batch, reads = recording_batch(trajectory)
        postprocessed = self.postprocess_trajectory(batch)
        return SampleBatch(postprocessed), set(reads)

    def _example(self, num_rows: int = 8) -> Example:
        """What this policy does on drawn observations, by the names of its exports."""
        inputs = self._actor.inputs
        columns = {
            "obs": sample_rows(self.observation_space, num_rows, int(self._seed)),
            **drawn_rows(self._views, inputs.specs, num_rows, int(self._seed)),
        }
        _, states, _ = self._actor.act(inputs.arrays(columns), None, timestep=0)
        # States that are not all zero say more.
        columns.update((f"state_in_{index}", state) for index, state in enumerate(states))
        actions, states, extras = self._actor.act(inputs.arrays(columns), None, timestep=0)
        outputs = _named_leaves("actions", self.action_space, self._environment_actions(actions))
        outputs.update({name: value for name, value in extras.items() if name != "action_prob"})
        outputs.update({f"state_out_{index}": state for index, state in enumerate(states)})
        named = _named_leaves("obs", self.observation_space, columns.pop("obs"))
        for name, column in columns.items():
            if self._views[name].data_col == "actions" and not self._views[name].as_mask:
                blank = blank_action(self.action_space, self.config.normalize_actions)
                column = map_column(lambda a, rows: np.broadcast_to(a, rows.shape), blank, column)
            space = environment_space(name, self._views, self.action_space)
            named.update(_named_leaves(name, space, column))
        return Example(named, outputs, tolerance())

    def _finite_example(self) -> Example | None:
        """The same; none of a policy that has diverged, which can be saved for looking into."""
        try:
            return self._example()
        except FloatingPointError:
            return None

    def _description(self) -> PolicyDescription:
        return PolicyDescription(
            class_name(type(self)),
            self.observation_space,
            self.action_space,
            self.config.to_json(),
        )

    # Arguments and results.

    def _check_open(self) -> None:
        self._graph_session.check_usable()

    def _check_known(self, columns: Mapping[str, Any]) -> None:
        for name in columns:
            if name not in self._views:
                raise KeyError(unknown_column(name, list(self._views)))

    def _act(
        self,
        feeds: list[np.ndarray],
        explore: bool | None,
        timestep: int | None,
        extra_fetches: Sequence[str] | None = None,
    ) -> tuple[Any, list[np.ndarray], dict[str, np.ndarray]]:
        self.model.check_observations(feeds)
        wanted = None if extra_fetches is None else self._actor.known_extras(extra_fetches)
        now = self.global_timestep if timestep is None else timestep
        if not (self.config.explore if explore is None else explore):
            return self._actor.act(feeds, None, now, wanted)
        seed = self._acting_seeds.next()
        try:
            result = self._actor.act(feeds, seed, now, wanted)
        except (FloatingPointError, tf.errors.InvalidArgumentError):
            self._acting_seeds.give_back(seed)
            # Some draws refuse NaN in words of their own; acting greedily finds it.
            self._actor.act(feeds, None, now)
            raise
        # Acting greedily is evaluation, which must not move the schedules on.
        with self._timestep_lock:
            self.global_timestep += len(feeds[0])
        return result

    def _environment_actions(
        self, actions: Any, clip: bool | None = None, unsquash: bool | None = None
    ) -> Any:
        key = (
            self.config.normalize_actions if unsquash is None else bool(unsquash),
            self.config.clip_actions if clip is None else bool(clip),
        )
        return self._to_environment[key](actions)

    def _announced(self, samples: Mapping[str, Any]) -> tuple[SampleBatch, dict[str, Any]]:
        """The batch that the callback has seen and may have changed, and what it has to say."""
        self._check_open()
        batch = SampleBatch(samples)
        metrics: dict[str, Any] = {}
        if type(self.callbacks).on_learn_on_batch is not DefaultCallbacks.on_learn_on_batch:
            batch = batch.copy()
            self.callbacks.on_learn_on_batch(policy=self, train_batch=batch, result=metrics)
        return batch, metrics


def _named_leaves(name: str, space: gym.Space, column: Any) -> dict[str, np.ndarray]:
    return dict(zip(leaf_spaces(space, name), flatten(space, column), strict=True))


def _rebuild(policy_class: type[TFPolicy], arguments: tuple, state: dict[str, Any]) -> TFPolicy:
    policy = policy_class(*arguments)
    policy.set_state(state)
    return policy


def _portable(
    config_class: type[PolicyConfig], stored: Mapping[str, Any], changes: Mapping[str, Any]
) -> PolicyConfig:
    """The stored config with changes, and with no more towers than this machine has GPUs."""
    config = config_class.from_json(stored, **changes)
    present = num_gpus_present()
    if "num_gpus" in changes or config.fake_gpus or config.num_gpus <= present:
        return config
    warnings.warn(
        f"The policy was saved with `num_gpus` {config.num_gpus}; this machine has {present}.",
        stacklevel=4,
    )
    return config.replace(num_gpus=present)


def _warn_deprecated(old: str, new: str) -> None:
    warnings.warn(f"`{old}` is now `{new}`.", DeprecationWarning, stacklevel=3)
