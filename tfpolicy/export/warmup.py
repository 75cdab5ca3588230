"""Warm-up records: requests that TensorFlow Serving makes of a version before anyone else may."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfpolicy.export.inference import INITIAL_STATE, Signature

# Where TensorFlow Serving looks, below the folder of a version.
WARMUP_FILE = Path("assets.extra", "tf_serving_warmup_requests")


def write_warmup_records(
    folder: Path, signatures: Mapping[str, Signature], inputs: Mapping[str, np.ndarray]
) -> None:
    """Writes a request of one row for each signature, so that no caller waits for the first run.

    The file is a TFRecord of `PredictionLog` messages. They name no model: what they are for is
    what they lie beside, under whatever name it is served. Without the extra "serving" there are no
    such messages, and nothing is written.

    Args:
        folder: Of the version; has `assets.extra` already.
        signatures: What can be asked for.
        inputs: Arrays [B, ...] by the names of the inputs of those that act.
    """
    try:
        from tensorflow_serving.apis import prediction_log_pb2
    except ImportError:
        return
    with tf.io.TFRecordWriter(str(folder / WARMUP_FILE)) as writer:
        for name, signature in signatures.items():
            record = prediction_log_pb2.PredictionLog()
            request = record.predict_log.request
            request.model_spec.signature_name = name
            for key in signature.inputs:
                row = np.zeros(1, np.int32) if name == INITIAL_STATE else inputs[key][:1]
                request.inputs[key].CopyFrom(tf.make_tensor_proto(row))
            writer.write(record.SerializeToString(deterministic=True))
