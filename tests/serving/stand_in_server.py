"""A stand-in for TensorFlow Serving: its protocol buffers over gRPC, its REST form over HTTP.

It loads SavedModels with TensorFlow, in this process or, run as a program, in one of its own. What
it serves is what lies in the folder at the moment of a request: every numeric folder is a version,
the highest is the newest, and `labels.json` gives labels to versions.
"""

import collections
import contextlib
import http.server
import json
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

PATH = re.compile(r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?(:predict|/metadata)?")
HTTP_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.INTERNAL: 500,
}


class Failure(Exception):
    """What a client is told."""

    def __init__(self, code, details):
        super().__init__(details)
        self.code, self.details = code, details


class Models:
    """The versions of one model in a folder."""

    def __init__(self, base, name):
        self.base, self.name = Path(base), name
        self.requests = []  # (signature, rows) of each.
        self.headers = {}  # Of the last request.
        # What becomes of the next requests, one each: a status code, or seconds of waiting.
        self.faults = collections.deque()
        self._loaded = {}
        self._lock = threading.Lock()

    def receive(self, headers):
        """Notes a request, and does to it what was planned."""
        self.headers = {key.lower(): value for key, value in headers}
        fault = self.faults.popleft() if self.faults else 0
        if isinstance(fault, grpc.StatusCode):
            raise Failure(fault, "planned")
        time.sleep(fault)

    def find(self, name, version=None, label=None):
        """The number of a version and what was loaded of it."""
        if label:
            labels = self.base / "labels.json"
            version = json.loads(labels.read_text()).get(label) if labels.exists() else None
            if version is None:
                raise Failure(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"Unrecognized servable version label: {label}",
                )
        versions = [int(path.name) for path in self.base.iterdir() if path.name.isdigit()]
        if version is None and versions:
            version = max(versions)
        if name != self.name or version not in versions:
            raise Failure(
                grpc.StatusCode.NOT_FOUND, f"Servable not found for request: {name} {version}"
            )
        with self._lock:
            if version not in self._loaded:
                self._loaded[version] = tf.saved_model.load(str(self.base / str(version)))
        return version, self._loaded[version]

    def signature_defs(self, version):
        saved_model = saved_model_pb2.SavedModel.FromString(
            (self.base / str(version) / "saved_model.pb").read_bytes()
        )
        return saved_model.meta_graphs[0].signature_def

    def run(self, loaded, name, inputs):
        """What a signature gives for arrays by name, refused as TensorFlow Serving refuses it."""
        if (name or "serving_default") not in loaded.signatures:
            raise Failure(
                grpc.StatusCode.FAILED_PRECONDITION, f'Serving signature key "{name}" not found.'
            )
        signature = loaded.signatures[name or "serving_default"]
        specs = signature.structured_input_signature[1]
        if inputs.keys() != specs.keys():
            raise Failure(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"input size does not match signature: {sorted(inputs)} != {sorted(specs)}",
            )
        for key, value in inputs.items():
            if not specs[key].shape.is_compatible_with(value.shape):
                raise Failure(
                    grpc.StatusCode.INVALID_ARGUMENT, f"{key} has the shape {value.shape}"
                )
            if value.dtype != specs[key].dtype.as_numpy_dtype:
                raise Failure(grpc.StatusCode.INVALID_ARGUMENT, f"{key} is {value.dtype}")
        self.requests.append((name, len(next(iter(inputs.values())))))
        try:
            outputs = signature(**{key: tf.constant(value) for key, value in inputs.items()})
        except tf.errors.InvalidArgumentError as error:
            raise Failure(grpc.StatusCode.INVALID_ARGUMENT, error.message) from error
        return {key: value.numpy() for key, value in outputs.items()}


class GrpcService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Predict and GetModelMetadata."""

    def __init__(self, models):
        self.models = models

    def Predict(self, request, context):
        with told(context):
            self.models.receive(context.invocation_metadata())
            version, loaded = self._find(request.model_spec)
            inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
            outputs = self.models.run(loaded, request.model_spec.signature_name, inputs)
            response = predict_pb2.PredictResponse(
                outputs={name: tf.make_tensor_proto(value) for name, value in outputs.items()}
            )
            response.model_spec.CopyFrom(request.model_spec)
            response.model_spec.version.value = version
            return response

    def GetModelMetadata(self, request, context):
        with told(context):
            self.models.receive(context.invocation_metadata())
            if list(request.metadata_field) != ["signature_def"]:
                raise Failure(grpc.StatusCode.INVALID_ARGUMENT, "must specify a metadata_field")
            version, _ = self._find(request.model_spec)
            response = get_model_metadata_pb2.GetModelMetadataResponse()
            response.model_spec.name = self.models.name
            response.model_spec.version.value = version
            signatures = get_model_metadata_pb2.SignatureDefMap(
                signature_def=self.models.signature_defs(version)
            )
            response.metadata["signature_def"].Pack(signatures)
            return response

    def _find(self, spec):
        version = spec.version.value if spec.HasField("version") else None
        return self.models.find(spec.name, version, spec.version_label)


@contextlib.contextmanager
def told(context):
    try:
        yield
    except Failure as failure:
        context.abort(failure.code, failure.details)


class RestHandler(http.server.BaseHTTPRequestHandler):
    """`/v1/models/NAME[/versions/V|/labels/L]` with `:predict` or `/metadata`."""

    protocol_version = "HTTP/1.1"
    # The answer's head and body are two writes, which Nagle's algorithm would keep apart.
    disable_nagle_algorithm = True
    models = None

    def do_GET(self):
        self._answer("/metadata", self._metadata)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(":predict", lambda version, loaded: self._predict(loaded, body))

    def log_message(self, *args):
        pass

    def _answer(self, verb, answer):
        status = 200
        try:
            self.models.receive(self.headers.items())
            path = PATH.fullmatch(self.path)
            if not path or path[4] != verb:
                raise Failure(grpc.StatusCode.NOT_FOUND, f"Malformed request: {self.path}")
            number = int(path[2]) if path[2] else None
            result = answer(*self.models.find(path[1], number, path[3]))
        except Failure as failure:
            status, result = HTTP_STATUS[failure.code], {"error": failure.details}
        # Whoever gave up waiting is gone.
        with contextlib.suppress(ConnectionError):
            self._write(status, json.dumps(result).encode())

    def _write(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _metadata(self, version, loaded):
        signatures = get_model_metadata_pb2.SignatureDefMap(
            signature_def=self.models.signature_defs(version)
        )
        written = json_format.MessageToDict(
            signatures,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        spec = {"name": self.models.name, "signature_name": "", "version": str(version)}
        return {"model_spec": spec, "metadata": {"signature_def": written}}

    def _predict(self, loaded, body):
        request = json.loads(body)
        name = request.get("signature_name", "serving_default")
        if name not in loaded.signatures:
            raise Failure(
                grpc.StatusCode.INVALID_ARGUMENT, f'Serving signature name: "{name}" not found'
            )
        specs = loaded.signatures[name].structured_input_signature[1]
        rows = request.get("instances")
        if rows is not None:
            named = [row if isinstance(row, dict) else {next(iter(specs)): row} for row in rows]
            columns = {key: [row[key] for row in named] for key in named[0]}
        else:
            columns = request["inputs"]
            if not isinstance(columns, dict):
                columns = {next(iter(specs)): columns}
        inputs = {key: self._tensor(key, value, specs) for key, value in columns.items()}
        outputs = {k: v.tolist() for k, v in self.models.run(loaded, name, inputs).items()}
        if rows is None:
            # An only output stands without its name, as an only input may.
            return {"outputs": outputs if len(outputs) > 1 else next(iter(outputs.values()))}
        predictions = [
            dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)
        ]
        return {"predictions": predictions}

    def _tensor(self, key, value, specs):
        if key not in specs:
            raise Failure(
                grpc.StatusCode.INVALID_ARGUMENT, f"JSON object: does not have named input: {key}"
            )
        dtype = np.dtype(specs[key].dtype.as_numpy_dtype)
        array = np.asarray(value)
        if array.dtype.kind not in {"f": "if", "b": "b"}.get(dtype.kind, "i"):
            raise Failure(
                grpc.StatusCode.INVALID_ARGUMENT, f"JSON Value: {value} is not of type {dtype}"
            )
        return array.astype(dtype)


class StandInServer:
    """Serves one model over both protocols on ports of the loopback device.

    Args:
        base: The folder of versions.
        name: The model's.
        grpc_port: 0 takes any that is free.
        rest_port: 0 takes any that is free.
    """

    def __init__(self, base, name="model", grpc_port=0, rest_port=0):
        self.models = Models(base, name)
        # As TensorFlow Serving, it can be reached once it has loaded what there is.
        with contextlib.suppress(Failure):
            self.models.find(name)
        # Two servers on one port would share what comes in.
        self._grpc = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            GrpcService(self.models), self._grpc
        )
        self.grpc_port = self._grpc.add_insecure_port(f"127.0.0.1:{grpc_port}")
        self.secure_port = self._grpc.add_secure_port(
            "127.0.0.1:0", grpc.local_server_credentials()
        )
        handler = type("Handler", (RestHandler,), {"models": self.models})
        self._rest = http.server.ThreadingHTTPServer(("127.0.0.1", rest_port), handler)
        self.rest_port = self._rest.server_port
        self._grpc.start()
        threading.Thread(target=self._rest.serve_forever, daemon=True).start()

    def address(self, protocol):
        return f"127.0.0.1:{self.grpc_port if protocol == 'grpc' else self.rest_port}"

    def close(self):
        self._grpc.stop(None).wait()
        self._rest.shutdown()
        self._rest.server_close()


if __name__ == "__main__":
    server = StandInServer(sys.argv[1], "model", *map(int, sys.argv[2:]))
    print(server.grpc_port, server.rest_port, flush=True)
    sys.stdin.read()  # Until whoever started it closes its end.
