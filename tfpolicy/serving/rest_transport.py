"""Speaks the REST form of TensorFlow Serving, columns of JSON, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import numpy as np
import urllib3
from google.protobuf import json_format
from tensorflow.core.protobuf import meta_graph_pb2
from urllib3.exceptions import HTTPError, NewConnectionError, ProtocolError, TimeoutError

from tfpolicy.serving.errors import (
    ModelNotFoundError,
    ServerError,
    ServerUnavailableError,
    SignatureError,
)
from tfpolicy.serving.transport import Endpoint, ModelMetadata, Transport, Version

_KINDS: dict[int, type[Exception]] = {
    400: SignatureError,
    404: ModelNotFoundError,
    # Among them what proxies say while the server behind them is away or has too much to do.
    **dict.fromkeys((429, 502, 503, 504), ServerUnavailableError),
}
# As many connections are kept as threads may ask at once; more are opened as needed.
_KEPT_CONNECTIONS = 64


class RestTransport(Transport):
    """Asks by HTTP.

    Args:
        address: "host:port", or a URL that may begin with "https://" and end in a path.
        model: The name under which the server has the model.
        timeout: Seconds after which a question is given up.
        headers: Of every request.
    """

    def __init__(
        self, address: str, model: str, timeout: float, headers: Mapping[str, str] | None = None
    ):
        super().__init__(address, model)
        base = address if "://" in address else f"http://{address}"
        if not urllib3.util.parse_url(base).host:
            raise ValueError(f'`address`: expected "host:port" or a URL, got {address!r}.')
        self._url = f"{base.rstrip('/')}/v1/models/{quote(model, safe='')}"
        self._pool = urllib3.PoolManager(
            headers=dict(headers or {}),
            timeout=urllib3.Timeout(total=timeout),
            # Those who retry do it for both protocols alike.
            retries=False,
            maxsize=_KEPT_CONNECTIONS,
        )

    def metadata(self, version: Version) -> ModelMetadata:
        """Gets `/metadata`."""
        answer = self._ask("GET", f"{self._version_url(version)}/metadata", version)
        try:
            number = int(answer["model_spec"]["version"])
            written = answer["metadata"]["signature_def"]["signature_def"]
            signatures = {
                name: json_format.ParseDict(
                    definition, meta_graph_pb2.SignatureDef(), ignore_unknown_fields=True
                )
                for name, definition in written.items()
            }
        except (AttributeError, KeyError, TypeError, ValueError, json_format.ParseError) as error:
            raise ServerError(
                f"`{self.address}` answered metadata that are none: {error!r}."
            ) from error
        return ModelMetadata(number, signatures)

    def predict(
        self, endpoint: Endpoint, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Posts to `:predict`."""
        body = {
            "signature_name": endpoint.name,
            "inputs": {name: value.tolist() for name, value in inputs.items()},
        }
        url = f"{self._version_url(endpoint.version)}:predict"
        answer = self._ask("POST", url, endpoint.version, json=body)
        if "outputs" not in answer:
            raise ServerError(f"`{self.address}` answered no `outputs`, but {list(answer)}.")
        outputs, answers = answer["outputs"], endpoint.answers
        # The only output has no name.
        if not isinstance(outputs, dict):
            outputs = dict.fromkeys(list(answers)[:1], outputs)
        arrays = {
            name: self._array(name, value, answers[name][0])
            for name, value in outputs.items()
            if name in answers
        }
        return self.checked(endpoint, inputs, arrays)

    def close(self) -> None:
        """Closes all connections."""
        self._pool.clear()

    def _version_url(self, version: Version) -> str:
        if version is None:
            return self._url
        if isinstance(version, int):
            return f"{self._url}/versions/{version}"
        return f"{self._url}/labels/{quote(version, safe='')}"

    def _ask(self, method: str, url: str, version: Version, **kwargs: Any) -> dict[str, Any]:
        try:
            response = self._pool.request(method, url, **kwargs)
        except (NewConnectionError, ProtocolError, TimeoutError) as error:
            raise self.failure(ServerUnavailableError, version, str(error)) from error
        except HTTPError as error:
            raise self.failure(ServerError, version, str(error)) from error
        if response.status != 200:
            kind = _KINDS.get(response.status, ServerError)
            details = f"{_details(response.data)} ({response.status})"
            raise self.failure(kind, version, details)
        try:
            answer = response.json()
        except ValueError as error:
            raise ServerError(f"`{self.address}` answered no JSON: {error}.") from error
        if not isinstance(answer, dict):
            raise ServerError(f"`{self.address}` answered no JSON object: {answer!r:.200}.")
        return answer

    def _array(self, name: str, value: Any, dtype: np.dtype) -> np.ndarray:
        try:
            array = np.asarray(value)
            # Of what has no fraction there is no rounding.
            if array.size and array.dtype.kind == "f" and dtype.kind != "f":
                raise ValueError("it has fractions")
            return array.astype(dtype, copy=False)
        except (OverflowError, TypeError, ValueError) as error:
            raise ServerError(
                f"`{self.address}` answered {name} as no array of {dtype}: {error}."
            ) from error


def _details(body: bytes) -> str:
    """What the server says went wrong; a proxy may say it in words of its own."""
    try:
        return json.loads(body)["error"]
    except (KeyError, TypeError, ValueError):
        return repr(body[:200])
