"""Ways in which an artifact can be damaged: its bytes, its files, and the entries in them."""

import contextlib
import json
import shutil
import zipfile
from pathlib import Path

import h5py


def truncate(rng, content):
    return content[: rng.integers(len(content))]


def flip_a_bit(rng, content):
    changed = bytearray(content)
    changed[rng.integers(len(changed))] ^= 1 << rng.integers(8)
    return bytes(changed)


def flip_bytes(rng, content):
    changed = bytearray(content)
    for position in rng.integers(len(changed), size=rng.integers(1, 30)):
        changed[position] = rng.integers(256)
    return bytes(changed)


def block(rng, content):
    start, stop = sorted(rng.integers(len(content) + 1, size=2))
    return start, min(stop, start + 1 + rng.integers(200))


def zero_a_block(rng, content):
    start, stop = block(rng, content)
    return content[:start] + bytes(stop - start) + content[stop:]


def remove_a_block(rng, content):
    start, stop = block(rng, content)
    return content[:start] + content[stop:]


def repeat_a_block(rng, content):
    start, stop = block(rng, content)
    return content[:stop] + content[start:]


def insert_bytes(rng, content):
    position = rng.integers(len(content) + 1)
    return content[:position] + rng.bytes(rng.integers(1, 50)) + content[position:]


def swap_halves(rng, content):
    position = rng.integers(len(content) + 1)
    return content[position:] + content[:position]


def append_bytes(rng, content):
    return content + rng.bytes(rng.integers(1, 50))


def empty(rng, content):
    return b""


def nonsense(rng, content):
    return rng.bytes(rng.integers(1, 500))


OF_BYTES = [
    truncate, flip_a_bit, flip_a_bit, flip_bytes, flip_bytes, zero_a_block, remove_a_block,
    repeat_a_block, insert_bytes, swap_halves, append_bytes, empty, nonsense,
]  # fmt: skip


def change_json(rng, path):
    """Removes a key somewhere, or changes a value."""
    data = json.loads(path.read_text())
    inside = data
    while True:
        key = list(inside)[rng.integers(len(inside))]
        if not (isinstance(inside[key], dict) and inside[key]) or rng.integers(3) == 0:
            break
        inside = inside[key]
    if rng.integers(2):
        del inside[key]
    else:
        inside[key] = [None, 7, "x", [], {}][rng.integers(5)]
    path.write_text(json.dumps(data))


def change_zip(rng, path):
    """Removes an entry, or swaps two of them."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    first, second = rng.choice(list(entries), 2, replace=False)
    if rng.integers(2):
        del entries[first]
    else:
        entries[first], entries[second] = entries[second], entries[first]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def change_h5(rng, path):
    """Removes an array, changes it, or swaps it with another; or removes what stands before all."""
    if rng.integers(6) == 0:
        path.write_bytes(path.read_bytes()[512:])
        return
    with h5py.File(path, "r+") as file:
        names = []
        file.visititems(lambda n, node: names.append(n) if isinstance(node, h5py.Dataset) else None)
        first, second = rng.choice(names, 2, replace=False)
        if rng.integers(2):
            file.move(first, "aside")
            file.move(second, first)
            file.move("aside", second)
        elif rng.integers(2):
            del file[first]
        elif file[first].dtype.kind == "f":
            file[first][...] = file[first][()] + 1


def change_onnx(rng, path):
    """Removes or swaps weights, nodes or metadata."""
    import onnx

    model = onnx.ModelProto.FromString(path.read_bytes())
    fields = model.graph.initializer, model.graph.node, model.metadata_props
    field = fields[rng.integers(len(fields))]
    first, second = rng.choice(len(field), 2, replace=False)
    if rng.integers(2):
        del field[first]
    elif field is model.graph.initializer:
        field[first].name, field[second].name = field[second].name, field[first].name
    else:
        field[first].CopyFrom(field[second])
    path.write_bytes(model.SerializeToString())


def change_saved_model(rng, path):
    """Removes a node or a signature, or swaps the names of two tensors of a signature."""
    from tensorflow.core.protobuf import saved_model_pb2

    model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    graph = model.meta_graphs[0]
    if rng.integers(3) == 0:
        del graph.graph_def.node[rng.integers(len(graph.graph_def.node))]
    elif rng.integers(2):
        del graph.signature_def[rng.choice(sorted(graph.signature_def))]
    else:
        outputs = graph.signature_def["serving_default"].outputs
        first, second = rng.choice(sorted(outputs), 2, replace=False)
        outputs[first].name = outputs[second].name
    path.write_bytes(model.SerializeToString())


OF_ENTRIES = {
    ".json": change_json,
    ".npz": change_zip,
    ".h5": change_h5,
    ".onnx": change_onnx,
    ".pb": change_saved_model,
}


def files(artifact):
    if artifact.is_file():
        return [artifact]
    return sorted(path for path in artifact.rglob("*") if path.is_file())


def change_files(rng, artifact, other):
    """Removes a file, swaps two, or takes one from another artifact of the kind."""
    path, second = rng.choice(files(artifact), 2, replace=False)
    choice = rng.integers(4)
    if choice == 0:
        path.unlink()
    elif choice == 1:
        content = path.read_bytes()
        path.write_bytes(second.read_bytes())
        second.write_bytes(content)
    elif choice == 2:
        path.rename(path.with_name(f"{path.name}.old"))
    else:
        matching = other / path.relative_to(artifact)
        source = matching if matching.exists() else rng.choice(files(other))
        shutil.copy(source, path)


def mutate(rng, artifact, other):
    """Damages an artifact in one of these ways, or in two.

    Args:
        rng: What decides.
        artifact: A file or a folder; changed.
        other: A sound one of the same kind.

    Returns:
        What was done, in words.
    """
    done = []
    for _ in range(1 + (rng.integers(5) == 0)):
        path = Path(rng.choice(files(artifact)))
        choice = rng.integers(4)
        change = OF_ENTRIES.get(path.suffix)
        # The second damage may not find what it looks for.
        with contextlib.suppress(Exception) if done else contextlib.nullcontext():
            if choice == 0 and artifact.is_dir():
                change_files(rng, artifact, other)
                done.append("files")
            elif choice == 1 and change:
                change(rng, path)
                done.append(f"{change.__name__} of {path.name}")
            elif path.stat().st_size:
                way = OF_BYTES[rng.integers(len(OF_BYTES))]
                path.write_bytes(way(rng, path.read_bytes()))
                done.append(f"{way.__name__} of {path.name}")
    return ", ".join(done)
