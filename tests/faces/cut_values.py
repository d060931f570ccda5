"""Tensors whose storage was cut, given to everything that no optimizer's step does.

Rows for `cut_memory`: a name, and what makes an act, and a tensor that must stay as it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import thalweg.tf as tf
from thalweg import IndexedSlices, Variable, checkpoint, keras, optim, v1
from thalweg.checkpoint import tensorflow
from thalweg.distribute import Strategy, get_replica_context
from thalweg.v1 import train, training_ops
from thalweg.v1.train.experimental.loss_scale_optimizer import MixedPrecisionLossScaleOptimizer

SIZE = 33
SHARE_LEFT = [0.0]  # how much of a tensor's memory is left
Build = Callable[[], list[Any]]
tf1: Any = tf.compat.v1


def cut(tensor: Tensor) -> None:
    size = int(tensor.nbytes * SHARE_LEFT[0])
    start = tensor.storage_offset() * tensor.itemsize
    tensor.untyped_storage().resize_(start + size if size else 0)


def pair() -> list[Variable]:
    return [Variable(torch.ones(SIZE), name=name) for name in "pq"]


def of_value(act: Callable[..., Any], shape: tuple[int, ...] = (SIZE,)) -> Build:
    def build() -> list[Any]:
        value = torch.ones(shape)
        cut(value)
        return [lambda: act(value), torch.ones(1)]

    return build


def of_variable(act: Callable[..., Any]) -> Build:
    def build() -> list[Any]:
        p, q = pair()
        cut(p)
        return [lambda: act(p, q), q]

    return build


def of_scatter(act: Callable[..., Any], victim: str) -> Build:
    def build() -> list[Any]:
        q, indices, updates = pair()[1], torch.arange(4), torch.ones(4)
        cut({"indices": indices, "updates": updates}[victim])
        return [lambda: act(q, indices, updates), q]

    return build


def of_kernel(victim: str, rows: bool) -> Build:
    def build() -> list[Any]:
        p, q = pair()
        slot, rate = torch.ones(SIZE), torch.tensor(0.1)
        grad, indices = torch.ones(4 if rows else SIZE), torch.arange(4)
        cut({"p": p, "slot": slot, "rate": rate, "gradient": grad, "indices": indices}[victim])
        if rows:
            call = training_ops.resource_sparse_apply_momentum
            return [lambda: call(p, slot, rate, grad, indices, 0.9), q]
        return [lambda: training_ops.resource_apply_momentum(p, slot, rate, grad, 0.9), q]

    return build


def of_average(victim: str, debiased: bool) -> Build:
    def build() -> list[Any]:
        p, q = pair()
        value = torch.zeros(SIZE)
        cut({"p": p, "value": value}[victim])
        return [lambda: train.assign_moving_average(p, value, 0.5, zero_debias=debiased), q]

    return build


def of_first(make: Callable[..., Any]) -> Build:
    """Build a first step of an optimizer or an average."""

    def build() -> list[Any]:
        p, q = pair()
        opt = make()
        cut(p)
        if isinstance(opt, train.ExponentialMovingAverage):
            return [lambda: opt.apply([p, q]), q]
        return [lambda: opt.apply_gradients([(torch.ones(SIZE), p), (torch.ones(SIZE), q)]), q]

    return build


def of_scaled(part: str) -> Build:
    def build() -> list[Any]:
        p, q = (Variable(torch.ones(SIZE, 2), name=name) for name in "pq")
        opt = MixedPrecisionLossScaleOptimizer(train.AdamOptimizer(0.1), "dynamic")
        grad: Any = torch.ones(SIZE, 2)
        victim = grad
        if part in ("values", "indices"):
            grad = IndexedSlices(torch.ones(4, 2), torch.arange(4), (SIZE, 2))
            victim = getattr(grad, part)
        elif part in ("_values", "_indices"):
            rows = torch.arange(4)[None]
            grad = torch.sparse_coo_tensor(
                rows, torch.ones(4, 2), (SIZE, 2), check_invariants=False
            )
            victim = getattr(grad, part)()
        cut(victim)
        return [lambda: opt.apply_gradients([(grad, p), (torch.ones(SIZE, 2), q)]), q]

    return build


def of_rate(make: Callable[..., Any], kind: Callable[..., Any] = Variable) -> Build:
    """Return a hyperparameter that is a variable, or a tensor."""

    def build() -> list[Any]:
        rate = kind(0.1)
        p, q = pair()
        opt = make(rate)
        opt.apply_gradients([(torch.ones(SIZE), p), (torch.ones(SIZE), q)])
        cut(rate)
        return [lambda: opt.apply_gradients([(torch.ones(SIZE), p), (torch.ones(SIZE), q)]), q]

    return build


def of_decay() -> list[Any]:
    decay = torch.tensor(0.5)
    p, q = pair()
    averages = train.ExponentialMovingAverage(decay)
    cut(decay)
    return [lambda: averages.apply([p, q]), q]


def of_lr(make: Callable[..., Any]) -> Build:
    """Build a case of a torch-style optimizer whose learning rate was cut."""

    def build() -> list[Any]:
        p, q = (torch.nn.Parameter(torch.ones(SIZE)) for _ in "pq")
        opt = make([p, q], lr=torch.tensor(0.1))
        for _ in range(2):
            p.grad, q.grad = torch.ones(SIZE), torch.ones(SIZE)
            opt.step()
        cut(opt.param_groups[0]["lr"])
        return [opt.step, q]

    return build


def of_state(make: Callable[..., Any], key: str) -> Build:
    """Build a case of `load_state_dict` whose state was cut."""

    def build() -> list[Any]:
        p, q = (torch.nn.Parameter(torch.ones(SIZE)) for _ in "pq")
        opt = make([p, q])
        p.grad, q.grad = torch.ones(SIZE), torch.ones(SIZE)
        opt.step()
        state_read = opt.state_dict()
        state_read["state"] = {
            place: {name: slot.clone() for name, slot in slots.items()}
            for place, slots in state_read["state"].items()
        }
        cut(state_read["state"][0][key])
        return [lambda: opt.load_state_dict(state_read), opt.state[q][key]]

    return build


def of_files(act: Callable[..., Any], victim: str) -> Build:
    def build() -> list[Any]:
        p, q = pair()
        opt = keras.optimizers.Adam(0.1)
        opt.apply_gradients([(torch.ones(SIZE), p), (torch.ones(SIZE), q)])
        folder = tempfile.mkdtemp()
        checkpoint.save(f"{folder}/own", optimizer=opt, variables=[p, q])
        objects = train.Checkpoint(own=opt, p=p, q=q)
        path = objects.save(f"{folder}/objects")
        q.assign(torch.zeros(SIZE))
        cut(p if victim == "p" else opt.get_slot(p, "m"))
        return [lambda: act(opt, [p, q], folder, objects, path), q]

    return build


def of_graph(victim: str, act: Callable[..., Any]) -> Build:
    """Build a run of a session in which a variable or a fed tensor was cut."""

    def build() -> list[Any]:
        graph = v1.Graph()
        with graph.as_default():
            p, q = (v1.Variable(torch.ones(SIZE), name=name) for name in "pq")
            feed = v1.placeholder(torch.float32, (SIZE,), name="p")
            opt, averages = train.AdamOptimizer(0.1), train.ExponentialMovingAverage(0.5)
            ops: dict[str, Any] = {
                "step": opt.apply_gradients([(torch.ones(SIZE), p), (torch.ones(SIZE), q)]),
                "step, fed": train.GradientDescentOptimizer(0.1).apply_gradients([(feed, q)]),
                "average": averages.apply([p, q]),
                "histogram": v1.summary.histogram("p", p),
                "histogram, fed": v1.summary.histogram("p", feed),
                "scatter": v1.scatter_add(p, [1], [1.0]),
                "assign": q.assign(p),
                "clip": tf.clip_by_norm(p, 1.0),
                "add": p + 1,
                "read": p,
                "fed": feed + 1,
            }
            saver = train.Saver()
            session = v1.Session(graph=graph)
            session.run(v1.global_variables_initializer())
        path = saver.save(session, f"{tempfile.mkdtemp()}/model")
        victims = {"p": p, "slot": opt.get_slot(p, "m"), "average": averages.average(p)}
        fed_tensor = torch.ones(SIZE)
        cut(fed_tensor if victim == "fed" else session.leaf(victims[victim]))
        feeds = {feed: fed_tensor}
        return [lambda: act(session, ops, saver, path, feeds), session.leaf(q)]

    return build


def in_graph(make: Callable[..., Any]) -> Callable[[Tensor], Any]:
    """Return a function that runs an operation on a constant in a session."""

    def act(value: Tensor) -> Any:
        with v1.Graph().as_default(), v1.Session() as session:
            return session.run(make(value))

    return act


def replicated(act: Callable[..., Any]) -> Build:
    return of_value(lambda value: act(Strategy(), value))


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "clip_by_norm": lambda x: tf.clip_by_norm(x, 1.0),
    "clip_by_value": lambda x: tf.clip_by_value(x, -1.0, 1.0),
    "clip_by_average_norm": lambda x: tf1.clip_by_average_norm(x, 1.0),
    "clip_by_global_norm": lambda x: tf.clip_by_global_norm([x], 1.0),
    "clip_by_global_norm, known": lambda x: tf.clip_by_global_norm([x], 1.0, use_norm=2.0),
    "global_norm": lambda x: tf.linalg.global_norm([x]),
    "reduce_sum": tf.reduce_sum,
    "cast": lambda x: tf.cast(x, tf.float64),
    "gather": lambda x: tf.gather(x, [1]),
    "constant": tf.constant,
    "convert_to_tensor": lambda x: v1.convert_to_tensor(x, torch.float64),
    "Variable": lambda x: Variable(x, name="p"),
    "tf.Variable": lambda x: tf.Variable(x, name="p"),
    "is_finite": tf.math.is_finite,
    "check_numerics": lambda x: tf.debugging.check_numerics(x, "p"),
}
VARIABLES: dict[str, Callable[[Variable, Variable], Any]] = {
    "assign from it": lambda p, q: q.assign(p),
    "v1.assign": lambda p, q: v1.assign(p, torch.zeros(SIZE)),
    "v1.assign_add": lambda p, q: v1.assign_add(p, torch.ones(SIZE)),
    "sparse_read": lambda p, q: p.sparse_read([1]),  # pyright: ignore
    "tf.norm": lambda p, q: tf.norm(p),
    **{
        f"scatter_{name}": lambda p, q, name=name: getattr(v1, f"scatter_{name}")(p, [1], [2.0])
        for name in ("add", "div", "max", "min", "mul", "sub", "update")
    },
}
SCATTERS: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    "v1": lambda q, indices, updates: v1.scatter_add(q, indices, updates),
    "method": lambda q, indices, updates: q.scatter_max(IndexedSlices(updates, indices)),
}
FILES: dict[str, Callable[..., Any]] = {
    "restore": lambda opt, variables, folder, objects, path: checkpoint.restore(
        f"{folder}/own", optimizer=opt, variables=variables
    ),
    "for TensorFlow": lambda opt, variables, folder, objects, path: tensorflow.save(
        f"{folder}/theirs", opt, variables
    ),
    "objects": lambda opt, variables, folder, objects, path: objects.save(f"{folder}/next"),
    "objects back": lambda opt, variables, folder, objects, path: objects.restore(path),
}
RUNS = [
    ("p", "step"), ("slot", "step"), ("p", "average"), ("average", "average"), ("p", "histogram"),
    ("p", "scatter"), ("p", "assign"), ("p", "clip"), ("p", "add"), ("p", "read"),
    ("fed", "fed"), ("fed", "step, fed"), ("fed", "histogram, fed"),
]  # fmt: skip
CONSTANTS: dict[str, Callable[[Tensor], Any]] = {
    "itself": v1.constant,
    "variable": lambda x: v1.Variable(x).initializer,
    "clip": lambda x: tf.clip_by_norm(x, 1.0),
    "scalar": lambda x: v1.summary.scalar("p", x),
    "histogram": lambda x: v1.summary.histogram("p", x),
}
REPLICATED: dict[str, Callable[[Strategy, Tensor], Any]] = {
    "reduce": lambda strategy, x: strategy.reduce("sum", x),
    "reduce, axis": lambda strategy, x: strategy.reduce("mean", x, axis=0),
    "all_reduce": lambda strategy, x: strategy.run(
        lambda: get_replica_context().all_reduce("sum", x)  # pyright: ignore
    ),
}
VALUES: dict[str, Build] = {
    **{f"function {name}": of_value(act) for name, act in FUNCTIONS.items()},
    **{f"function, p, {name}": of_variable(act) for name, act in VARIABLES.items()},
    **{
        f"scatter by {name}, {victim}": of_scatter(act, victim)
        for name, act in SCATTERS.items()
        for victim in ("indices", "updates")
    },
    **{f"kernel, {name}": of_kernel(name, False) for name in ("p", "slot", "rate", "gradient")},
    **{
        f"kernel of rows, {name}": of_kernel(name, True)
        for name in ("p", "slot", "rate", "gradient", "indices")
    },
    **{
        f"assign_moving_average, {victim}, {debiased}": of_average(victim, debiased)
        for victim in ("p", "value")
        for debiased in (True, False)
    },
    "average, first": of_first(lambda: train.ExponentialMovingAverage(0.5)),
    "average of an optimizer, first": of_first(
        lambda: v1.contrib.opt.MovingAverageOptimizer(train.AdamOptimizer(0.1))
    ),
    **{
        f"loss scale, {part}": of_scaled(part)
        for part in ("gradient", "values", "indices", "_values", "_indices")
    },
    "keras, rate": of_rate(lambda rate: keras.optimizers.Adam(rate)),
    "v1, rate": of_rate(lambda rate: train.AdamOptimizer(rate)),
    "keras, rate, tensor": of_rate(lambda rate: keras.optimizers.Adam(rate), torch.tensor),
    "keras, called": of_rate(lambda rate: keras.optimizers.Adam(lambda: rate), torch.tensor),
    "keras, momentum": of_rate(lambda rate: keras.optimizers.SGD(0.1, momentum=rate), torch.tensor),
    "v1, rate, tensor": of_rate(lambda rate: train.AdamOptimizer(rate), torch.tensor),
    "v1, called": of_rate(lambda rate: train.AdamOptimizer(lambda: rate), torch.tensor),
    "average, decay": of_decay,
    "optim, lr": of_lr(optim.Adam),
    "optim.tensorflow, lr": of_lr(optim.tensorflow.Adam),
    "optim, loaded number": of_state(optim.Adam, "step"),
    "optim, loaded slot": of_state(optim.Adam, "exp_avg"),
    "optim, loaded sum": of_state(
        lambda params: optim.SGD(params, 0.1, accumulate=2), "gradient_sum"
    ),
    "optim.tensorflow, loaded number": of_state(optim.tensorflow.Adam, "step"),
    **{
        f"file {name}, {victim}": of_files(act, victim)
        for name, act in FILES.items()
        for victim in ("p", "slot")
    },
    **{
        f"graph {name}, {victim}": of_graph(
            victim, lambda session, ops, *args, name=name: session.run(ops[name], args[-1])
        )
        for victim, name in RUNS
    },
    **{
        f"graph {name}, {victim}": of_graph(victim, act)
        for victim in ("p", "slot", "average")
        for name, act in {
            "save": lambda session, ops, saver, path, feed: saver.save(session, path, 2),
            "restore": lambda session, ops, saver, path, feed: saver.restore(session, path),
        }.items()
    },
    **{f"constant {name}": of_value(in_graph(make)) for name, make in CONSTANTS.items()},
    **{f"strategy {name}": replicated(act) for name, act in REPLICATED.items()},
}
