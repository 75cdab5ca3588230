"""What a client asks a server for, whatever protocol they speak."""

from __future__ import annotations

import abc
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from tensorflow.core.protobuf import meta_graph_pb2

from tfpolicy.export.inference import Signature
from tfpolicy.serving.errors import (
    ModelNotFoundError,
    ServerError,
    ServerUnavailableError,
    SignatureError,
)

# A number, a label that the server's config gives to a number, or `None`: the newest.
Version = int | str | None


class Endpoint:
    """One signature, as it is asked for.

    Attributes:
        version: Which version is to answer.
        name: The name of the signature.
        answers: Dtype and shape of one row of each output.

    Args:
        version: Which version is to answer.
        name: The name of the signature.
        signature: Specs [B, ...] of its inputs and outputs.
    """

    def __init__(self, version: Version, name: str, signature: Signature):
        self.version = version
        self.name = name
        self.answers = {
            key: (np.dtype(spec.dtype.as_numpy_dtype), tuple(spec.shape[1:]))
            for key, spec in signature.outputs.items()
        }


class ModelMetadata(NamedTuple):
    """Which version answered, and its signatures by name."""

    version: int
    signatures: dict[str, meta_graph_pb2.SignatureDef]


class Transport(abc.ABC):
    """Speaks with a server about one model; from any number of threads.

    Both questions raise the errors of `tfpolicy.serving.errors`.

    Args:
        address: Where the server is.
        model: The name under which the server has the model.
    """

    def __init__(self, address: str, model: str):
        self.address = address
        self.model = model

    @abc.abstractmethod
    def metadata(self, version: Version) -> ModelMetadata:
        """Asks which version that is, and what it takes and gives."""

    @abc.abstractmethod
    def predict(
        self, endpoint: Endpoint, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Runs a signature.

        Args:
            endpoint: The signature.
            inputs: Arrays [B, ...] by name.

        Returns:
            Its outputs [B, ...] by name.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Closes all connections."""

    def failure(self, kind: type[Exception], version: Version, details: str) -> Exception:
        """Makes the error that says what came of a question, in the server's own words too."""
        # TensorFlow Serving says of a label that it does not have, or that its flags do not allow
        # ("Unrecognized servable version label"), that the argument is invalid.
        if isinstance(version, str) and re.search("version.label", details):
            kind = ModelNotFoundError
        texts: dict[type[Exception], str] = {
            ServerUnavailableError: "is unavailable",
            ModelNotFoundError: f"does not have {_described(self.model, version)}",
            SignatureError: "refused what it was sent",
            ServerError: "failed",
        }
        return kind(f"`{self.address}` {texts[kind]}: {details}")

    def checked(
        self,
        endpoint: Endpoint,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """Returns the outputs that the signature has, in its order.

        Raises:
            SignatureError: One is missing, or has another shape or dtype.
        """
        num_rows = len(next(iter(inputs.values())))
        for name, (dtype, shape) in endpoint.answers.items():
            value = outputs.get(name)
            if value is None or value.dtype != dtype or value.shape != (num_rows, *shape):
                came = "nothing" if value is None else f"{value.dtype} {[*value.shape]}"
                raise SignatureError(
                    f"`{self.address}` must answer {name} as {dtype} {[num_rows, *shape]}, "
                    f"got {came}."
                )
        return {name: outputs[name] for name in endpoint.answers}


def _described(model: str, version: Version) -> str:
    if version is None:
        return f"model {model!r}"
    kind = "version" if isinstance(version, int) else "label"
    return f"model {model!r}, {kind} {version!r}"
