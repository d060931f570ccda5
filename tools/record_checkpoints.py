"""Record checkpoints of TensorFlow, with the gradients and the numbers that training goes on with.

    python tools/record_checkpoints.py tests/goldens/checkpoints_with_gradients

needs tensorflow and tf_keras; 2.21 recorded what is there. A case is trained five steps and saved,
trained five more and saved again: `cases.npz` has both, and the gradients in between.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf
import tf_keras

v1 = tf.compat.v1
STEPS = 5
Case = dict[str, Any]
Arrays = dict[str, np.ndarray]
SHAPES = {
    "layer1/kernel": (4, 6),
    "layer1/bias": (6,),
    "layer2/kernel": (6, 3),
    "layer2/bias": (3,),
}

# id: class, arguments, slots
SAVER: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "adam": ("AdamOptimizer", {"learning_rate": 0.01, "beta1": 0.8}, ("m", "v")),
    "momentum": (
        "MomentumOptimizer",
        {"learning_rate": 0.1, "momentum": 0.9, "use_nesterov": True},
        ("momentum",),
    ),
    "rmsprop_centered": (
        "RMSPropOptimizer",
        {"learning_rate": 0.01, "momentum": 0.5, "centered": True},
        ("rms", "mg", "momentum"),
    ),
    "adagrad": ("AdagradOptimizer", {"learning_rate": 0.1}, ("accumulator",)),
    "ftrl": (
        "FtrlOptimizer",
        {"learning_rate": 0.1, "l1_regularization_strength": 0.01},
        ("accum", "linear"),
    ),
    "adadelta": ("AdadeltaOptimizer", {"learning_rate": 1.0}, ("accum", "accum_update")),
}
# id: class of tf.keras.optimizers, or of tf.train, and arguments
OBJECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "adam": ("Adam", {"learning_rate": 0.01, "beta_1": 0.8}),
    "adam_amsgrad": ("Adam", {"learning_rate": 0.01, "amsgrad": True}),
    "sgd_nesterov": ("SGD", {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True}),
    "rmsprop_centered": ("RMSprop", {"learning_rate": 0.01, "momentum": 0.5, "centered": True}),
    "adam_v1": ("AdamOptimizer", {"learning_rate": 0.01, "beta1": 0.8}),
}
# id: optimizer, its arguments, algorithm of the loss scaler, its parameters
OPENSEQ2SEQ: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "momentum_backoff": (
        "Momentum", {"momentum": 0.9}, "Backoff", {"scale_max": 1024.0, "step_window": 3},
    ),
    "novograd_backoff": (
        "NovoGrad", {"beta1": 0.95, "epsilon": 1e-8, "weight_decay": 0.01}, "Backoff",
        {"scale_max": 1024.0, "step_window": 3},
    ),
    "adam_logmax": ("Adam", {"beta1": 0.8, "beta2": 0.99, "epsilon": 1e-6}, "LogMax", {}),
}  # fmt: skip
LEARNING_RATE = 0.125  # of the cases above
OVERFLOWS = (2, 6)  # steps in which a gradient of theirs overflows float16


def values(prefix: str, case: Case, arrays: Arrays, kind: str) -> None:
    """Read the values of a checkpoint with TensorFlow."""
    reader = tf.train.load_checkpoint(prefix)
    for name, dtype in reader.get_variable_to_dtype_map().items():
        if dtype != tf.string:
            arrays[f"{case['id']}|{kind}|{name}"] = reader.get_tensor(name)


def drawn(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """Return initial values, and a gradient for each of ten steps, in front of each other."""
    random = np.random.default_rng(seed)
    return {
        name: random.normal(size=(1 + 2 * STEPS, *shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def record(
    case: Case,
    arrays: Arrays,
    gradients: dict[str, np.ndarray],
    step: Callable[[int], None],
    save: Callable[[str], str],
    folder: Path,
) -> None:
    """Record five steps, a checkpoint that is kept, five steps, and one that is not."""
    for number in range(STEPS):
        step(number)
    (folder / case["id"]).mkdir(parents=True, exist_ok=True)
    prefix = save(str(folder / case["id"] / "model.ckpt"))
    case["prefix"] = str(Path(prefix).relative_to(folder))
    values(prefix, case, arrays, "value")
    for number in range(STEPS, 2 * STEPS):
        step(number)
    with tempfile.TemporaryDirectory() as temporary_folder:
        values(save(temporary_folder + "/model.ckpt"), case, arrays, "value_after")
    for name, gradient in gradients.items():
        arrays[f"{case['id']}|gradient|{name}"] = gradient[1 + STEPS :]


def saver(name: str, arrays: Arrays, folder: Path) -> Case:
    """Return a session and its `Saver`."""
    kind, options, slots = SAVER[name]
    case = {
        "id": f"saver/{name}",
        "kind": "tf.train.Saver",
        "optimizer": kind,
        "arguments": options,
    }
    numbers = drawn(SHAPES, 1)
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.train.get_or_create_global_step()
        variables = [v1.get_variable(title, initializer=numbers[title][0]) for title in SHAPES]
        placeholders = [v1.placeholder(tf.float32, shape) for shape in SHAPES.values()]
        opt = getattr(v1.train, kind)(**options)
        train = opt.apply_gradients(zip(placeholders, variables), global_step=step)
        case["variables"] = list(SHAPES)
        case["slots"] = {
            opt.get_slot(var, slot).op.name: [var.op.name, slot]
            for var in variables
            for slot in slots
        }
        keeper = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        record(
            case,
            arrays,
            numbers,
            lambda number: session.run(
                train,
                {
                    placeholder: numbers[title][1 + number]
                    for placeholder, title in zip(placeholders, SHAPES)
                },
            ),
            lambda path: keeper.save(
                session, path, step, write_meta_graph=False, write_state=False
            ),
            folder,
        )
    return case


def objects(name: str, arrays: Arrays, folder: Path) -> Case:
    """Return `tf.train.Checkpoint` of a model and an optimizer, in eager mode."""
    kind, options = OBJECTS[name]
    case = {"id": f"object/{name}", "kind": "tf.train.Checkpoint", "optimizer": kind}
    numbers = drawn(SHAPES, 2)
    layers = [tf_keras.layers.Dense(6, name="layer1"), tf_keras.layers.Dense(3, name="layer2")]
    model = tf_keras.Sequential([tf_keras.layers.Input((4,)), *layers])
    variables = [var_ for layer in layers for var_ in (layer.kernel, layer.bias)]
    for var, title in zip(variables, SHAPES):
        var.assign(numbers[title][0])
    module = v1.train if kind.endswith("Optimizer") else tf_keras.optimizers.legacy
    opt = getattr(module, kind)(**options)
    keeper = tf.train.Checkpoint(model=model, optimizer=opt)

    def step(number: int) -> None:
        gradients = [tf.constant(numbers[title][1 + number]) for title in SHAPES]
        opt.apply_gradients(zip(gradients, variables))

    record(case, arrays, numbers, step, keeper.write, folder)
    case |= {"arguments": options, "variables": list(SHAPES)}
    return case


def scaler_variables(algorithm: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the state of OpenSeq2Seq's loss scalers, whose variables have no names."""
    scale = params.get("scale_max", 2.0**14) if algorithm == "Backoff" else 1.0
    initial: dict[str, tuple[float, Any]] = {"iteration": (0, tf.int64)}
    if algorithm == "Backoff":
        initial |= {"last_overflow_iteration": (-1, tf.int64), "scale": (scale, tf.float32)}
    else:
        initial |= {"scale": (scale, tf.float32)}
        initial |= dict.fromkeys(("x_hat", "slow_x_hat", "xsquared_hat"), (0.0, tf.float32))
        initial |= dict.fromkeys(("b1_correction", "b2_correction"), (1.0, tf.float32))
    return {
        name: v1.Variable(value, trainable=False, dtype=dtype)
        for name, (value, dtype) in initial.items()
    }


def backoff(state: dict[str, Any], overflow: Any, params: dict[str, Any]) -> Any:
    """Return half the scale after an overflow, twice the scale after so many steps without one."""
    i, last_overflow, scale = state["iteration"], state["last_overflow_iteration"], state["scale"]
    highest, window = params["scale_max"], params["step_window"]

    def lower() -> Any:
        halved = v1.assign(scale, tf.clip_by_value(scale / 2.0, 1.0, highest))
        with tf.control_dependencies([halved, v1.assign(last_overflow, i)]):
            return tf.identity(scale)

    def higher() -> Any:
        return v1.assign(scale, tf.clip_by_value(scale * 2.0, 1.0, highest))

    scale_update = v1.cond(
        overflow,
        lower,
        lambda: v1.cond(
            tf.equal((i - last_overflow) % window, 0), higher, lambda: tf.identity(scale)
        ),
    )
    with tf.control_dependencies([scale_update]):
        return v1.assign_add(i, 1)


def log_max(state: dict[str, Any], overflow: Any, amax: Any) -> Any:
    """Return a scale from the average of the gradients' logarithms and how much they vary."""
    beta1, beta2 = 0.99, 0.999
    x = v1.cond(overflow, lambda: tf.constant(2.0**16), lambda: tf.math.log(amax) / np.log(2.0))

    def moved(name: str, beta: float, target: Any) -> Any:
        return v1.assign(state[name], beta * state[name] + (1 - beta) * target)

    average, slow = moved("x_hat", beta1, x), moved("slow_x_hat", beta2, x)
    squares = moved("xsquared_hat", beta2, x * x)
    first = v1.assign(state["b1_correction"], state["b1_correction"] * beta1)
    second = v1.assign(state["b2_correction"], state["b2_correction"] * beta2)
    variance = squares / (1 - second) - tf.square(slow / (1 - second))
    middle = average / (1 - first) + 3.09 * tf.sqrt(tf.maximum(variance, 0.0))
    scale = v1.assign(state["scale"], tf.clip_by_value(2.0 ** (16 - middle), 1.0, 2.0**14))
    with tf.control_dependencies([scale]):
        return v1.assign_add(state["iteration"], 1)


def openseq2seq(name: str, arrays: Arrays, folder: Path) -> Case:
    """Return mixed precision as a session of OpenSeq2Seq has it, with its names."""
    kind, options, algorithm, params = OPENSEQ2SEQ[name]
    case = {"id": f"openseq2seq/{name}", "kind": "tf.train.Saver", "optimizer": kind}
    case |= {"arguments": {"learning_rate": LEARNING_RATE, **options}}
    case |= {"scaler": algorithm, "scaler_params": params, "overflows": OVERFLOWS}
    shapes = {
        "ForwardPass/fc/kernel": (4, 3),
        "ForwardPass/fc/bias": (3,),
        "ForwardPass/bn/gamma": (3,),
    }
    numbers = drawn(shapes, 3)
    for number in OVERFLOWS:
        numbers["ForwardPass/fc/kernel"][1 + number, 1, 1] = 1e6
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [
            v1.get_variable(
                title,
                initializer=numbers[title][0].astype("float32" if "bn" in title else "float16"),
            )
            for title in shapes
        ]
        placeholders = [v1.placeholder(tf.float32, shape) for shape in shapes.values()]
        products = [
            tf.reduce_sum(c * tf.cast(var, tf.float32)) for c, var in zip(placeholders, variables)
        ]
        step = v1.train.get_or_create_global_step()
        with v1.variable_scope("Loss_Optimization"):
            train, roles = mixed(case, tf.add_n(products), variables, step)
        case["roles"] = roles
        keeper = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        record(
            case,
            arrays,
            numbers,
            lambda number: session.run(
                train,
                {
                    placeholder: numbers[title][1 + number]
                    for placeholder, title in zip(placeholders, shapes)
                },
            ),
            lambda path: keeper.save(
                session, path, step, write_meta_graph=False, write_state=False
            ),
            folder,
        )
    return case


def mixed(case: Case, loss: Any, variables: list[Any], step: Any) -> tuple[Any, dict[str, Any]]:
    """Take the step on float32 masters, left out if a gradient is not finite; return who is who."""
    kind, options = case["optimizer"], dict(case["arguments"])
    decay, epsilon = options.pop("weight_decay", 0.0), options.get("epsilon")
    if kind == "NovoGrad":
        options = {"learning_rate": LEARNING_RATE, "momentum": options["beta1"]}
    inner = v1.train.AdamOptimizer if kind == "Adam" else v1.train.MomentumOptimizer
    opt = inner(name=kind, **options)
    state = scaler_variables(case["scaler"], case["scaler_params"])
    roles: dict[str, Any] = {var_.op.name: ["scaler", key] for key, var_ in state.items()}
    pairs = []
    scaled_gradients = tf.gradients(loss * state["scale"], variables)
    with v1.variable_scope("FP32-master-copy"):
        for gradient, var in zip(scaled_gradients, variables):
            master = var
            if var.dtype.base_dtype == tf.float16:
                master = v1.Variable(
                    tf.cast(var.initialized_value(), tf.float32), name=var.op.name, trainable=False
                )
                roles[master.op.name] = ["master", var.op.name]
            pairs.append((tf.cast(gradient, tf.float32) * (1.0 / state["scale"]), master))
    amax = tf.reduce_max([tf.reduce_max(tf.abs(gradient)) for gradient, _ in pairs])
    nan = tf.reduce_any([tf.reduce_any(tf.math.is_nan(gradient)) for gradient, _ in pairs])
    overflow = tf.logical_or(nan, tf.math.is_inf(amax))
    if case["scaler"] == "Backoff":
        update = backoff(state, overflow, case["scaler_params"])
    else:
        update = log_max(state, overflow, amax)

    def apply() -> Any:
        options = pairs
        if kind == "NovoGrad":
            options = []
            for number, (gradient, master) in enumerate(pairs):
                average = v1.get_variable(
                    f"nvgrad2_ema{number}", (), tf.float32, v1.zeros_initializer(), trainable=False
                )
                roles[average.op.name] = ["average", master.op.name]
                # It is made and saved, and what is computed is never stored in it.
                square = tf.reduce_sum(tf.square(gradient))
                gradient = gradient * (1.0 / tf.sqrt(square + epsilon)) + decay * master
                options.append((gradient, master))
        applied = opt.apply_gradients(options, global_step=step)
        with tf.control_dependencies([applied]):
            copies = [
                v1.assign(var, tf.saturate_cast(master.read_value(), tf.float16))
                for var, (_, master) in zip(variables, pairs)
                if var is not master
            ]
        return tf.group(*copies)

    with tf.control_dependencies([update]):
        train = v1.cond(overflow, tf.no_op, apply)
    for _, master in pairs:
        for slot in opt.get_slot_names():
            roles[opt.get_slot(master, slot).op.name] = ["slot", master.op.name, slot]
    if kind == "Adam":
        for key, power in zip(("beta1_power", "beta2_power"), opt._get_beta_accumulators()):
            roles[power.op.name] = ["power", key]
    return train, roles


def main(out: str) -> None:
    folder = Path(out)
    arrays: Arrays = {}
    cases = [objects(name, arrays, folder) for name in OBJECTS]
    v1.disable_control_flow_v2()
    v1.disable_resource_variables()
    cases += [saver(name, arrays, folder) for name in SAVER]
    cases += [openseq2seq(name, arrays, folder) for name in OPENSEQ2SEQ]
    description = [
        "Checkpoints of TensorFlow 2.21.0 (CPU) after five steps, and what five more steps made.",
        "Keys of cases.npz are '<id>|<what>|<name>'.",
        " value, value_after  what the checkpoint holds, and what one made after ten steps would",
        " gradient            (5, *shape), fed in the five more steps",
        "openseq2seq/*: a session's names for mixed precision of OpenSeq2Seq, by graphs made after",
        "what is known of it. Gradients are those of the loss before it is scaled; for float16",
        "variables they become float16 times the scale. `roles` tells who is who.",
    ]
    (folder / "cases.json").write_text(
        json.dumps({"about": description, "cases": cases}, indent=1) + "\n"
    )
    np.savez_compressed(folder / "cases.npz", **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
