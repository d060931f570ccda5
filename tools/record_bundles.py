"""Record checkpoints of TensorFlow's own, and try whether TensorFlow restores those of Thalweg.

Needs `tensorflow` (2.21 recorded the files in `tests/goldens/checkpoints/bundles`), which the
library and its tests do not:

    python tools/record_bundles.py --out DIR
        one folder for each of `RECORDED`, and DIR/values.json with what TensorFlow reads from them
    python tools/record_bundles.py --restore DIR
        restores DIR/ours and DIR/ours_object, which `tests/support/bundle_examples.py` writes, in
        all the ways there are, and says how many tensors have the bits of their values.json

A value is [dtype, shape, bytes in hexadecimal, row by row, the lowest byte first]; strings are
["string", shape, [bytes in hexadecimal]].
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

tf: Any = None  # imported by `main`
v1: Any = None

DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8",
    "uint16", "uint32", "uint64", "bool", "complex64", "complex128", "float8_e4m3fn",
    "float8_e5m2",
)  # fmt: skip
SHAPES = ((), (1,), (3,), (0,), (2, 0, 3), (2, 3, 1, 2))
BY_SESSION: dict[str, Any] = {}  # values that a session gives, by name


def values(name: str, shape: tuple[int, ...], dtype: str = "float32") -> Any:
    """Return values drawn by a name, of all kinds that a dtype has."""
    dice = np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"))
    if dtype == "bool":
        return tf.constant(dice.integers(0, 2, shape).astype(bool))
    if dtype.startswith(("int", "uint")):
        info = np.iinfo(dtype)
        return tf.constant(dice.integers(info.min, info.max, shape, dtype, endpoint=True))
    numbers = dice.normal(size=shape) * 10.0 ** dice.integers(-3, 4, shape)
    if dtype.startswith("complex"):
        return tf.constant((numbers + 1j * dice.normal(size=shape)).astype(dtype))
    return tf.cast(tf.constant(numbers), getattr(tf, dtype, None) or dtype)


def raw(prefix: str, tensors_by_name: dict[str, Any], slices: dict[str, str] | None = None) -> None:
    """Save tensors by the operation itself."""
    names = list(tensors_by_name)
    shape_specs = [(slices or {}).get(name, "") for name in names]
    names = [name.split("#")[0] for name in names]
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=names,
        shape_and_slices=shape_specs,
        tensors=list(tensors_by_name.values()),
    )


def dtypes(prefix: str) -> str:
    raw(prefix, {
        f"{dtype}/{'x'.join(map(str, shape)) or 'scalar'}": values(f"{dtype}{shape}", shape, dtype)
        for dtype in DTYPES for shape in SHAPES
    })  # fmt: skip
    return "SaveV2 of tensors of all dtypes and several shapes"


def strings(prefix: str) -> str:
    raw(prefix, {
        "w": values("w", (2,)),
        "one": tf.constant("text"),
        "none": tf.constant([], tf.string),
        "several": tf.constant([["", "é", "a\0b"], ["x" * 300, "\n", ""]]),
    })  # fmt: skip
    return "SaveV2 of tensors of strings"


def boxes(prefix: str) -> str:
    tensor = values("boxes", (4, 6))
    raw(
        prefix,
        {"w#0": tensor[:1, :], "w#1": tensor[1:, :2], "w#2": tensor[1:, 2:], "plain": tensor},
        {"w#0": "4 6 0,1:-", "w#1": "4 6 1,3:0,2", "w#2": "4 6 1,3:2,4"},
    )
    return "SaveV2 of one tensor in three slices that are cut along both axes"


def names(prefix: str) -> str:
    raw(prefix, {
        "..": values("a", (2,)), "../../x": values("b", (2,)), "/etc/passwd": values("c", (2,)),
        "CON": values("d", (2,)), "é": values("e", (2,)), "x" * 5000: values("f", (2,)),
        "a:0": values("g", (2,)), " ": values("h", (2,)), "~": values("i", (2,)),
    })  # fmt: skip
    return "SaveV2 under strange names"


def many(prefix: str) -> str:
    kinds = ("kernel", "bias", "kernel/Adam", "kernel/Adam_1", "bias/Adam", "bias/Adam_1")
    names = [f"model/{place}/{kind}" for place in range(500) for kind in kinds]
    # Where names begin with a number they share nothing, and blocks are full soon.
    names += [f"{place}/{'attention/' * 18}{kinds[place % 6]}" for place in range(1000, 4000)]
    raw(prefix, {name: tf.constant(place, tf.int32) for place, name in enumerate(sorted(names))})
    return "SaveV2 of many scalars, given in the order of their names; each tells its place"


def partitioned(prefix: str) -> str:
    """Return variables and slots of Adam in slices, after two steps."""
    with tf.Graph().as_default(), v1.Session() as session:
        rows = v1.fixed_size_partitioner(3)
        columns = v1.fixed_size_partitioner(2, axis=1)
        variables: list[Any] = []
        for name, shape, dtype, partitioner in (
            ("rows", (7, 3), tf.float32, rows),
            ("columns", (4, 5), tf.float32, columns),
            ("half", (4, 4), tf.float16, columns),
            ("plain", (2,), tf.float32, None),
        ):
            start = v1.random_normal_initializer(seed=len(variables))
            variables.append(v1.get_variable(name, shape, dtype, start, partitioner=partitioner))
        full_tensors = [tf.cast(tf.convert_to_tensor(var), tf.float32) for var in variables]
        loss = tf.add_n([tf.reduce_sum(tensor * tensor) for tensor in full_tensors])
        step = v1.train.get_or_create_global_step()
        train = v1.train.AdamOptimizer(0.1).minimize(loss, step)
        session.run(v1.global_variables_initializer())
        for _ in range(2):
            session.run(train)
        v1.train.Saver().save(session, prefix, write_meta_graph=False, write_state=False)
        for name in ("half", "half/Adam", "half/Adam_1"):  # which TensorFlow's reader does not read
            parts = [
                var
                for var in v1.global_variables()
                if var.name.split("/part_")[0] == "half"
                and var.name.partition(":")[0].partition("/part_")[2][1:] == name[4:]
            ]
            BY_SESSION[name] = np.concatenate(session.run(parts), 1)
    return "tf.train.Saver of partitioned variables with slots of Adam, after two steps"


def sharded(prefix: str) -> str:
    """Return a file of data for each of two servers."""
    ports = [_port() for _ in range(2)]
    cluster = tf.train.ClusterSpec({"ps": [f"localhost:{port}" for port in ports]})
    servers = [tf.distribute.Server(cluster, "ps", task) for task in range(2)]
    with tf.Graph().as_default(), v1.Session(servers[0].target) as session:
        for task in range(2):
            with tf.device(f"/job:ps/task:{task}"):
                for name, shape in (("kernel", (3, 2)), ("bias", (2,))):
                    start = values(f"{task}/{name}", shape)
                    v1.get_variable(f"task{task}/{name}", initializer=start)
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver(sharded=True)
        saver.save(session, prefix, write_meta_graph=False, write_state=False)
    return "tf.train.Saver(sharded=True) of variables on two servers"


def sharded_object(prefix: str) -> str:
    """Return files of data of a limited size; the large variable lies in several."""
    model = tf.Module()
    model.large = tf.Variable(values("large", (16, 8)))
    model.small = tf.Variable(values("small", (4,)))
    policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=200)
    options = tf.train.CheckpointOptions(experimental_sharding_callback=policy)
    tf.train.Checkpoint(model=model).write(prefix, options)
    return "tf.train.Checkpoint with files of 200 bytes at most"


def variant(prefix: str) -> str:
    data = iter(tf.data.Dataset.range(5).shuffle(3, seed=1))
    next(data)
    tf.train.Checkpoint(data=data, w=tf.Variable(values("w", (2,)))).write(prefix)
    return "tf.train.Checkpoint of a variable and an iterator over data"


def version_1(prefix: str) -> str:
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [
            v1.get_variable(f"v{place}", initializer=tf.constant(initial))
            for place, initial in enumerate((
                np.float32([[1.5, -2], [3, 4e-40]]), np.float64([0.1]), np.int32([-1, 2**31 - 1]),
                np.int64(-(2**40)), np.array([True, False]), np.float16([0.5, 65504]),
                np.uint8([0, 255]), np.int8([-128]), np.int16([-5]), np.zeros((0, 2), np.float32),
                np.complex64([1 + 2j]), np.uint16([0, 65535]),
            ))
        ]  # fmt: skip
        start, part = v1.random_normal_initializer(seed=1), v1.fixed_size_partitioner(2)
        variables.append(v1.get_variable("part", (5, 2), initializer=start, partitioner=part))
        session.run(v1.global_variables_initializer())
        for var in variables:
            BY_SESSION[var.name.split(":")[0]] = session.run(tf.convert_to_tensor(var))
        saver = v1.train.Saver(write_version=v1.train.SaverDef.V1)
        saver.save(session, prefix, write_meta_graph=False, write_state=False)
    return "tf.train.Saver(write_version=V1), one file without an index"


RECORDERS: dict[str, Callable[[str], str]] = {
    "dtypes": dtypes,
    "strings": strings,
    "boxes": boxes,
    "names": names,
    "many": many,
    "partitioned": partitioned,
    "sharded": sharded,
    "sharded_object": sharded_object,
    "variant": variant,
    "version_1": version_1,
}


def _port() -> int:
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return server.getsockname()[1]


def kept(value: Any) -> list[Any]:
    """Return a value as the JSON has it."""
    array = np.asarray(value)
    if array.dtype == object or array.dtype.kind == "S":
        return ["string", list(array.shape), [text.hex() for text in array.ravel().tolist()]]
    return [array.dtype.name, list(array.shape), array.tobytes().hex()]


def read(prefix: str) -> dict[str, list[Any]]:
    """Return the values that TensorFlow reads from a checkpoint, those of a session, or errors."""
    reader = tf.train.load_checkpoint(prefix)
    values_by_name: dict[str, list[Any]] = {}
    for name in sorted(reader.get_variable_to_shape_map()):
        try:
            values_by_name[name] = kept(reader.get_tensor(name))
        except (tf.errors.OpError, ValueError) as error:
            is_known = name in BY_SESSION
            values_by_name[name] = (
                kept(BY_SESSION[name]) if is_known else [f"not read: {type(error).__name__}"]
            )
    return values_by_name


def record(out: Path) -> None:
    """Write all checkpoints and their values."""
    report: dict[str, Any] = {}
    for name, make in RECORDERS.items():
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        prefix = str(folder / "model.ckpt")
        BY_SESSION.clear()
        description = make(prefix)
        values_by_name = read(prefix)
        if name == "many":
            for path in sorted(folder.iterdir()):
                (folder / f"{path.name}.xz").write_bytes(lzma.compress(path.read_bytes()))
                path.unlink()
            lines = [f"{key} {value[2]}\n" for key, value in sorted(values_by_name.items())]
            digest = hashlib.sha256("".join(lines).encode()).hexdigest()
            report[name] = {
                "how": description,
                "count": len(lines),
                "sha256 of 'name hex' in lines": digest,
            }
            continue
        report[name] = {"how": description, "tensors": values_by_name}
        sys.stdout.write(f"{name}: {len(values_by_name)} tensors\n")
    document = {"tensorflow": tf.__version__, "recorded": report}
    lines = json.dumps(document).replace('"], "', '"],\n"').replace("}, ", "},\n")
    (out / "values.json").write_text(f"{lines}\n")


def restore(home: Path) -> int:
    """Restore what Thalweg wrote; how many tensors differ."""
    expected_reports = {
        name: json.loads((home / name / "values.json").read_text()) for name in RESTORERS
    }
    wrong = 0
    for name, make in RESTORERS.items():
        prefix = str(home / name / "model.ckpt")
        for method, values_by_name in {"load_checkpoint": read(prefix), **make(prefix)}.items():
            expected = {
                key: value
                for key, value in expected_reports[name]["tensors"].items()
                if key in values_by_name
            }
            differences = [key for key, value in expected.items() if values_by_name[key] != value]
            sys.stdout.write(
                f"{name}: {method}: {len(expected)} tensors, {len(differences)} differ\n"
            )
            wrong += len(differences) + (not expected)
    return wrong


def restored_by_saver(prefix: str) -> dict[str, dict[str, list[Any]]]:
    """Return the values of variables of all dtypes after `Saver.restore`."""
    with tf.Graph().as_default(), v1.Session() as session:
        reader = tf.train.load_checkpoint(prefix)
        kinds = reader.get_variable_to_dtype_map()
        variables = {
            name: v1.get_variable(name, shape, kinds[name], v1.zeros_initializer(),
                                  use_resource=True)
            for name, shape in reader.get_variable_to_shape_map().items()
        }  # fmt: skip
        v1.train.Saver(variables).restore(session, prefix)
        return {"Saver.restore": {name: kept(session.run(var)) for name, var in variables.items()}}


def restored_as_objects(prefix: str) -> dict[str, dict[str, list[Any]]]:
    """Return the values of objects after `Checkpoint.restore`, before and after slots exist."""
    values_by_method: dict[str, dict[str, list[Any]]] = {}
    for method in ("before slots are made", "after a step"):
        model = tf.Module()
        model.w, model.b = tf.Variable(tf.ones((3, 2)), name="w"), tf.Variable([7.0], name="b")
        optimizer, step = v1.train.AdamOptimizer(0.1), tf.Variable(0, dtype=tf.int64, name="step")
        gradients = [(tf.ones_like(model.w), model.w), (tf.ones_like(model.b), model.b)]
        if method == "after a step":
            optimizer.apply_gradients(gradients)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step)
        status = checkpoint.restore(prefix)
        if method == "before slots are made":
            optimizer._create_slots([model.w, model.b])
        status.assert_consumed()
        value = "/.ATTRIBUTES/VARIABLE_VALUE"
        powers = dict(zip(("beta1_power", "beta2_power"), optimizer._get_beta_accumulators()))
        tensors = {"model/w": model.w, "model/b": model.b, "step": step}
        tensors["save_counter"] = checkpoint.save_counter
        tensors |= {f"optimizer/{name}": power for name, power in powers.items()}
        for name, var in (("w", model.w), ("b", model.b)):
            for slot in ("m", "v"):
                key = f"model/{name}/.OPTIMIZER_SLOT/optimizer/{slot}"
                tensors[key] = optimizer.get_slot(var, slot)
        values_by_method[f"Checkpoint.restore {method}"] = {
            f"{k}{value}": kept(v) for k, v in tensors.items()
        }
    return values_by_method


RESTORERS = {"ours": restored_by_saver, "ours_object": restored_as_objects}


def main() -> int:
    global tf, v1
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="the folder that is written")
    parser.add_argument("--restore", type=Path, help="the folder of what Thalweg wrote")
    arguments = parser.parse_args()
    import tensorflow

    tf, v1 = tensorflow, tensorflow.compat.v1
    if arguments.out:
        record(arguments.out)
    return int(bool(arguments.restore and restore(arguments.restore)))


if __name__ == "__main__":
    sys.exit(main())
