"""Speaks the protocol buffers of TensorFlow Serving over gRPC."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    model_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from tfpolicy.serving.errors import (
    ModelNotFoundError,
    ServerError,
    ServerUnavailableError,
    SignatureError,
)
from tfpolicy.serving.transport import Endpoint, ModelMetadata, Transport, Version

_SIGNATURES = "signature_def"
_OPTIONS = [
    # A batch of images is larger than the 4 MiB at which a client stops reading.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A channel waits up to two minutes before it connects anew; those who retry wait themselves.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_KINDS: dict[grpc.StatusCode, type[Exception]] = {
    grpc.StatusCode.UNAVAILABLE: ServerUnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: ServerUnavailableError,
    grpc.StatusCode.NOT_FOUND: ModelNotFoundError,
    grpc.StatusCode.INVALID_ARGUMENT: SignatureError,
    # What TensorFlow Serving says of a signature that it does not have.
    grpc.StatusCode.FAILED_PRECONDITION: SignatureError,
}


class GrpcTransport(Transport):
    """Asks by gRPC.

    Args:
        address: "host:port", or anything else that gRPC resolves.
        model: The name under which the server has the model.
        timeout: Seconds after which a question is given up.
        credentials: For TLS; without them the channel is not encrypted.
        headers: Metadata of every call.
    """

    def __init__(
        self,
        address: str,
        model: str,
        timeout: float,
        credentials: grpc.ChannelCredentials | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(address, model)
        if address.startswith(("http://", "https://")):
            raise ValueError(f'`address`: expected "host:port" for gRPC, got {address!r}.')
        # gRPC knows only lower case.
        metadata = [(key.lower(), value) for key, value in (headers or {}).items()]
        self._arguments = {"timeout": timeout, "metadata": metadata}
        if credentials is None:
            self._channel = grpc.insecure_channel(address, _OPTIONS)
        else:
            self._channel = grpc.secure_channel(address, credentials, _OPTIONS)
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def metadata(self, version: Version) -> ModelMetadata:
        """Asks GetModelMetadata."""
        request = get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=self._model_spec(version), metadata_field=[_SIGNATURES]
        )
        response = self._ask(self._stub.GetModelMetadata, request, version)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        if not response.metadata[_SIGNATURES].Unpack(signatures):
            raise ServerError(f"`{self.address}` answered GetModelMetadata without signatures.")
        return ModelMetadata(response.model_spec.version.value, dict(signatures.signature_def))

    def predict(
        self, endpoint: Endpoint, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Asks Predict."""
        request = predict_pb2.PredictRequest(
            model_spec=self._model_spec(endpoint.version, endpoint.name),
            inputs={name: tf.make_tensor_proto(value) for name, value in inputs.items()},
        )
        response = self._ask(self._stub.Predict, request, endpoint.version)
        outputs = {name: tf.make_ndarray(value) for name, value in response.outputs.items()}
        return self.checked(endpoint, inputs, outputs)

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def _model_spec(self, version: Version, signature: str = "") -> model_pb2.ModelSpec:
        spec = model_pb2.ModelSpec(name=self.model, signature_name=signature)
        if isinstance(version, int):
            spec.version.value = version
        elif version is not None:
            spec.version_label = version
        return spec

    def _ask(self, method: Callable[..., Any], request: Any, version: Version) -> Any:
        try:
            return method(request, **self._arguments)
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            kind = _KINDS.get(code, ServerError)
            raise self.failure(kind, version, f"{details} ({code.name})") from error
