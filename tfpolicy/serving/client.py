"""Acting through a server of a SavedModel as the policy itself would."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np

from tfpolicy.graph.inputs import ActingInputs
from tfpolicy.graph.placeholders import unknown_column
from tfpolicy.serving.connection import check_version, connect
from tfpolicy.serving.errors import ModelNotFoundError, SessionLostError
from tfpolicy.serving.joining import JoinedRequests, Predict
from tfpolicy.serving.remote_model import RemoteModel
from tfpolicy.serving.rows import Acted, merged, rows_of
from tfpolicy.serving.sessions import Sessions, SessionState
from tfpolicy.serving.transport import Version
from tfpolicy.serving.versions import Versions
from tfpolicy.spaces import check_supported, first_action

# Makes arrays for a version of the model out of what the caller gave.
_Feeds = Callable[[ActingInputs], list[np.ndarray]]


class PolicyClient:
    """Acts by asking TensorFlow Serving, or whatever speaks like it, from any number of threads.

    Actions are those of the environment: unsquashed, clipped, in the dtype of its space. What does
    not fit is refused before it is sent. While the server is unavailable, it is asked again with
    exponential backoff, which does no harm: the server keeps nothing.

    The state of a recurrent policy is kept here, under a key for each episode that runs: a
    *session*. A session begins when its key is first seen, with the version that the user asked for
    as it is then, and stays with that version: to another one its state means nothing. It ends with
    `end_session`.

    Args:
        address: "host:port"; with `protocol="rest"` also a URL such as "https://host/path".
        model: The name under which the server has the model.
        version: A number, or a label that the server's config gives to one; `None` is the newest.
        protocol: "grpc" or "rest".
        observation_space: The environment's own. Without it the observation is what the inputs are
            called: an array for `obs`, `{"position": ..}` for `obs_position`. Needed for a `Tuple`,
            and for a `Dict` in a `Dict`, to be given as the environment gives it.
        action_space: The environment's own, likewise.
        timeout: Seconds that one try may take.
        retry_for: Seconds for which an unavailable server is asked again.
        max_batch_size: Joins what several threads ask at the same time into requests of so many
            rows at most, and splits what has more. `None`: each call is one request.
        credentials: With gRPC, `grpc.ChannelCredentials` for TLS.
        headers: Of every request, such as an authorization.

    Raises:
        ImportError: The extra "serving" is not installed.
        ServerUnavailableError: There was no answer for `retry_for` seconds.
        ModelNotFoundError: The server does not have the model, or not this version.
        SignatureError: It is no policy's, or the spaces are not those of the policy.
    """

    def __init__(
        self,
        address: str,
        model: str,
        version: Version = None,
        protocol: str = "grpc",
        *,
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
        timeout: float = 5.0,
        retry_for: float = 30.0,
        max_batch_size: int | None = None,
        credentials: Any = None,
        headers: Mapping[str, str] | None = None,
    ):
        check_version(version)
        for name, space in (
            ("observation_space", observation_space),
            ("action_space", action_space),
        ):
            if space is not None:
                check_supported(space, name)
        if max_batch_size is not None and max_batch_size < 1:
            raise ValueError(f"`max_batch_size` must be at least 1, got {max_batch_size}.")
        self._sessions = Sessions()
        self._transport = connect(
            protocol,
            address,
            model,
            timeout=timeout,
            retry_for=retry_for,
            credentials=credentials,
            headers=headers,
        )
        self._predict: Predict = self._transport.predict
        if max_batch_size is not None:
            self._predict = JoinedRequests(self._transport.predict, max_batch_size)
        try:
            self._versions = Versions(self._transport, version, observation_space, action_space)
        except BaseException:
            self.close()
            raise

    @property
    def version(self) -> int:
        """The number of the version that was last found under what the user asked for."""
        return self._versions.newest.version

    @property
    def observation_space(self) -> gym.Space:
        """The environment's own, or what the inputs tell of it."""
        return self._versions.newest.observation_space

    @property
    def action_space(self) -> gym.Space:
        """The environment's own, or what the outputs tell of it."""
        return self._versions.newest.action_space

    def compute_actions(
        self,
        obs_batch: Any,
        state_batches: Sequence[Any] | None = None,
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        info_batch: Any = None,
        episodes: Any = None,
        explore: bool | None = False,
        timestep: int | None = None,
        *,
        sessions: Sequence[Hashable] | None = None,
        **kwargs: Any,
    ) -> Acted:
        """Acts on a batch of observations.

        Args:
            obs_batch: Array or list [B, ...], for nested spaces also a structure of arrays or a
                list of structures.
            state_batches: Recurrent state, arrays [B, S]; missing means the initial one.
            prev_action_batch: The environment's previous actions [B, ...], if the model reads them.
            prev_reward_batch: Previous rewards [B], if the model reads them.
            info_batch: Ignored.
            episodes: Ignored.
            explore: Whether actions are drawn from the distribution; otherwise they are its mode.
            timestep: Ignored: schedules of exploration are a matter of training.
            sessions: In place of states the keys of sessions, one a row. If anything raises, no
                session has made a step.
            **kwargs: Further columns that the model reads, by name.

        Returns:
            The environment's actions [B, ...]; the states after them [B, S], none where sessions
            have versions whose states differ in shape; a dict with `action_dist_inputs`,
            `action_logp`, `action_prob` and, with a value head, `vf_preds`.

        Raises:
            KeyError: The model reads a column that is missing, or none has a name in `kwargs`.
            ValueError: A column has the wrong shape or dtype.
            SignatureError: The server has another signature than it said.
            SessionLostError: The version of a session is served no more.
            ServerUnavailableError: There was no answer for `retry_for` seconds.
        """

        def feeds(inputs: ActingInputs) -> list[np.ndarray]:
            arrays = inputs.feeds(
                obs_batch, state_batches, prev_action_batch, prev_reward_batch, kwargs
            )
            if sessions is not None and len(sessions) != len(arrays[0]):
                raise ValueError(
                    f"`sessions`: expected one for each of {len(arrays[0])} rows, "
                    f"got {len(sessions)}."
                )
            return arrays

        self._check_known(kwargs)
        if sessions is None or not len(sessions):
            return self._act(feeds, explore)
        _check_no_state(state_batches)
        return self._step(list(sessions), feeds, explore)

    def compute_actions_from_input_dict(
        self,
        input_dict: Mapping[str, Any],
        explore: bool | None = False,
        timestep: int | None = None,
        episodes: Any = None,
        *,
        sessions: Sequence[Hashable] | None = None,
    ) -> Acted:
        """Like `compute_actions`, with columns by name, such as a `History` gives."""
        further = {name: value for name, value in input_dict.items() if name != "obs"}
        if "obs" not in input_dict:
            raise KeyError(f"Acting needs the column 'obs', got: {', '.join(input_dict)}.")
        return self.compute_actions(
            input_dict["obs"], explore=explore, sessions=sessions, **further
        )

    def compute_single_action(
        self,
        obs: Any,
        state: Sequence[Any] | None = None,
        prev_action: Any = None,
        prev_reward: Any = None,
        info: Any = None,
        episode: Any = None,
        explore: bool | None = False,
        timestep: int | None = None,
        *,
        session: Hashable = None,
        **kwargs: Any,
    ) -> Acted:
        """Like `compute_actions` for one observation; nothing has a batch dimension."""

        def feeds(inputs: ActingInputs) -> list[np.ndarray]:
            return inputs.single_feeds(obs, state, prev_action, prev_reward, kwargs)

        self._check_known(kwargs)
        if session is None:
            acted = self._act(feeds, explore)
        else:
            _check_no_state(state)
            acted = self._step([session], feeds, explore)
        actions, states, extras = acted
        return (
            first_action(self.action_space, actions),
            [array[0] for array in states],
            {name: value[0] for name, value in extras.items()},
        )

    def get_initial_state(self) -> list[np.ndarray]:
        """The recurrent state before the first step, [S] each."""
        return [np.array(state) for state in self._versions.newest.inputs.initial_state]

    def is_recurrent(self) -> bool:
        """Whether there is a state to carry from step to step."""
        return bool(self._versions.newest.inputs.initial_state)

    @property
    def sessions(self) -> list[Hashable]:
        """The keys of all sessions that have begun and not ended."""
        return self._sessions.keys()

    def end_session(self, session: Hashable) -> None:
        """Forgets the state of a session, if there is one; its key may be used for a new one."""
        self._sessions.drop(session)

    def close(self) -> None:
        """Closes all connections; later calls raise."""
        self._transport.close()

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _act(self, feeds: _Feeds, explore: bool | None) -> Acted:
        """Acts by whatever version the server has now under what the user asked for."""
        model = self._versions.newest
        try:
            return model.unpack(self._ask(model, feeds, explore))
        except ValueError:
            # The server may have got a newer version, which takes something else.
            newest = self._versions.ask()
            if newest is model:
                raise
        return newest.unpack(self._ask(newest, feeds, explore))

    def _ask(
        self, model: RemoteModel, feeds: _Feeds, explore: bool | None
    ) -> dict[str, np.ndarray]:
        inputs = model.named(feeds(model.inputs))
        return self._predict(model.endpoint(bool(explore), pinned=False), inputs)

    def _step(self, keys: list[Hashable], feeds: _Feeds, explore: bool | None) -> Acted:
        """Acts for sessions, each by its own version, and keeps their states."""
        with self._sessions.stepping(keys) as held:
            states = self._begun(held)
            acted: list[tuple[list[int], Acted]] = []
            for version in sorted({state.version for state in states}):
                rows = [row for row, state in enumerate(states) if state.version == version]
                model = self._versions[version]
                inputs = rows_of(model.named(feeds(model.inputs)), rows, states)
                endpoint = model.endpoint(bool(explore), pinned=True)
                try:
                    acted.append((rows, model.unpack(self._predict(endpoint, inputs))))
                except ModelNotFoundError as error:
                    self._lose([keys[row] for row in rows if held[row] is not None], error)
            for rows, (_, states_out, _) in acted:
                for index, row in enumerate(rows):
                    arrays = tuple(array[index].copy() for array in states_out)
                    self._sessions.keep(keys[row], SessionState(states[row].version, arrays))
        return merged(acted)

    def _begun(self, held: Sequence[SessionState | None]) -> list[SessionState]:
        """The states, for new sessions the initial one of what the user asks for."""
        if all(held):
            return [state for state in held if state]
        model = self._versions.ask()
        initial = SessionState(model.version, tuple(model.inputs.initial_state))
        return [state or initial for state in held]

    def _lose(self, keys: Sequence[Hashable], error: ModelNotFoundError) -> NoReturn:
        for key in keys:
            self._sessions.drop(key)
        if not keys:
            raise error
        raise SessionLostError(
            f"{error} The state of {', '.join(map(repr, keys))} was its own and is dropped; the "
            "next step begins anew, with the version that is served then."
        ) from error

    def _check_known(self, columns: Mapping[str, Any]) -> None:
        known = ["obs", *self._versions.newest.inputs.specs]
        for name in columns:
            if name not in known:
                raise KeyError(unknown_column(name, known))


def _check_no_state(state: Sequence[Any] | None) -> None:
    if state is not None:
        raise ValueError("Give either a state or a session, which has its own, not both.")
