"""Steps of torch.optim and of installed libraries (peers) over the shapes of a measurement.

Steps of torch use the variables and gradients of the problem, steps of other libraries copies. Each
peer runs as usual: optax compiled with donated arguments, Keras and TensorFlow compiled by
`tf.function`, Keras on other backends eagerly.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import torch

from thalweg._cli.bench.registry import BenchmarkedRule
from thalweg._cli.bench.timing import Contender
from thalweg._cli.bench.workload import RATE, Workload
from thalweg.v1 import train

Step = Callable[[], object]
TORCH_FORMS: dict[str, dict[str, bool]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "forloop": {"foreach": False},
}
PEERS = ("torch-fused", "torch-foreach", "torch-forloop", "optax", "keras", "tensorflow")


def torch_step(entry: BenchmarkedRule, problem: Workload, form: str) -> Step | None:
    """Return a step of `torch.optim`; None if torch lacks the rule or its `form`."""
    if entry.torch is None or (form == "fused" and not entry.fused):
        return None
    make = getattr(torch.optim, entry.torch)
    options = {**entry.torch_options, **TORCH_FORMS[form]}
    return make(problem.variables, lr=RATE, **options).step


def _convert(
    problem: Workload, make_variable: Callable[[Any], Any], make_tensor: Callable[[Any], Any]
) -> tuple[list[Any], list[Any]]:
    """Return another library's variables and gradients, made from float32 NumPy arrays."""
    variables = [make_variable(var.detach().float().numpy()) for var in problem.variables]
    return variables, [make_tensor(grad.float().numpy()) for grad in problem.gradients]


def optax_step(entry: BenchmarkedRule, problem: Workload) -> Step | None:
    """Return a compiled step of optax, or None if optax lacks the rule."""
    if entry.optax is None:
        return None
    jax, optax = importlib.import_module("jax"), importlib.import_module("optax")
    transform = getattr(optax, entry.optax)(RATE, **entry.optax_options)
    params, grads = _convert(problem, jax.numpy.asarray, jax.numpy.asarray)
    params_and_state = (params, transform.init(params))

    def update(params: object, state: object, grads: object) -> object:
        updates, state = transform.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    compiled = jax.jit(update, donate_argnums=(0, 1))

    def step() -> None:
        nonlocal params_and_state
        params_and_state = jax.block_until_ready(compiled(*params_and_state, grads))

    return step


def keras_step(entry: BenchmarkedRule, problem: Workload) -> Step | None:
    """Return a Keras 3 step on the configured backend; None on jax, or if Keras lacks the rule."""
    if entry.registry_entry is None or entry.keras is None:
        return None
    if "KERAS_BACKEND" not in os.environ and find_spec("tensorflow") is None:
        os.environ["KERAS_BACKEND"] = "torch"
    keras = importlib.import_module("keras")
    optimizer = getattr(keras.optimizers, entry.keras)(RATE, **entry.registry_entry.options)
    variables, grads = _convert(problem, keras.Variable, keras.ops.convert_to_tensor)
    optimizer.build(variables)

    def step() -> None:
        optimizer.apply(grads, variables)

    if keras.backend.backend() == "tensorflow":
        return importlib.import_module("tensorflow").function(step)
    if keras.backend.backend() == "jax":
        # Keras on jax needs stateless calls; optax represents jax here.
        return None
    return step


def tensorflow_step(entry: BenchmarkedRule, problem: Workload) -> Step | None:
    """Return a compiled step of `tf.compat.v1.train`, or None if TensorFlow lacks the rule."""
    names = {
        "Adam": "AdamOptimizer", "Adagrad": "AdagradOptimizer", "Adadelta": "AdadeltaOptimizer",
        "Ftrl": "FtrlOptimizer", "RMSprop": "RMSPropOptimizer",
    }  # fmt: skip
    name = names.get(entry.keras or "")
    registered = entry.registry_entry
    options: Mapping[str, Any] = {} if registered is None else registered.options
    if entry.v1 is not None and hasattr(train, entry.v1):
        name = entry.v1
    elif options:
        return None
    # AdagradDAOptimizer accepts only variables of a graph.
    if name is None or name == "AdagradDAOptimizer":
        return None
    tf = importlib.import_module("tensorflow")
    optimizer = getattr(tf.compat.v1.train, name)(RATE, **options)
    variables, grads = _convert(problem, tf.Variable, tf.constant)
    return tf.function(lambda: optimizer.apply_gradients(list(zip(grads, variables))))


_LIBRARIES: dict[str, Callable[[BenchmarkedRule, Workload], Step | None]] = {
    "optax": optax_step, "keras": keras_step, "tensorflow": tensorflow_step,
}  # fmt: skip


def installed_peers() -> tuple[str, ...]:
    """Return the peers that can be imported here, without importing them."""
    return tuple(name for name in PEERS if name not in _LIBRARIES or find_spec(name) is not None)


def make_contenders(
    entry: BenchmarkedRule, problem: Workload, peer_names: tuple[str, ...]
) -> Iterator[Contender]:
    """Yield a contender for each peer in `peer_names` that has the rule."""
    for name in peer_names:
        if name.startswith("torch-"):
            step = torch_step(entry, problem, name.removeprefix("torch-"))
        else:
            step = _LIBRARIES[name](entry, problem)
        if step is not None:
            yield Contender(name, step)
