"""Keras optimizers in graph mode: what they do at once in eager mode becomes an operation.

The operation calls the optimizer as it is, with the running session's tensors. `iterations`,
hyperparameters and slots are variables of the graph. What the optimizer has as hyperparameters when
the operation is made is what all of its runs read: of variables and tensors of the graph their
values, before the updates of the run; of callables what they gave then; schedules are asked in each
run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.core.hyperparameters import as_step_scalar
from thalweg.core.pairs import distinct
from thalweg.engines import compute_dtype
from thalweg.errors import FailedPreconditionError, InvalidTypeError
from thalweg.graph import (
    GraphVariable,
    Operation,
    Output,
    Session,
    SymbolicTensor,
    by_reference,
    check_updates,
    current_session,
    executing_eagerly,
    get_default_graph,
    gradients,
    graph_variable_of,
    is_symbolic,
    no_op,
    operation,
)
from thalweg.graph.nest import leaves_of
from thalweg.keras import backend
from thalweg.schedules import LearningRateSchedule
from thalweg.variable import as_dtype, is_frozen

GradsAndVars = list[tuple[Any, Any]]
Step = Callable[[list[Any], list[Tensor]], None]
_NUMBERS = {torch.float32: float, torch.float64: np.float64, torch.int32: int}  # as when given


def is_deferred(*parts: Any) -> bool:
    """Whether a call with these arguments belongs in a graph."""
    if current_session() is not None:
        return False
    return not executing_eagerly() or any(map(is_symbolic, parts))


def scoped(name: str) -> str:
    """The whole name that something called `name` has in the current name scope."""
    return f"{get_default_graph().scope}{name}"


def check_graph(variables: Iterable[Any], name: str) -> None:
    """Refuse variables of an optimizer that are of another graph than the one in use.

    Raises:
        FailedPreconditionError: One is.
    """
    session = current_session()
    own: Any = None if executing_eagerly() else get_default_graph()
    own = own if session is None else session.graph
    for var in variables:
        if is_symbolic(var) and var.graph is not own:
            raise FailedPreconditionError(
                f"'{var.name}' of the optimizer {name!r} is a variable of another graph. Make an"
                " optimizer for each graph, and for eager mode."
            )


def computed(loss: Any, variables: Sequence[Any], grad_loss: Any) -> GradsAndVars:
    """Symbolic gradients of a loss, paired with the variables; these may be other tensors, too."""
    own = [graph_variable_of(var) for var in variables]
    for var in own:
        if not isinstance(var, SymbolicTensor):
            raise InvalidTypeError(f"{var!r} is no variable of the graph.")
    found = gradients(loss, own, grad_loss)
    frozen = map(is_frozen, variables)
    return [
        (None if still else grad, var) for grad, var, still in zip(found, own, frozen, strict=True)
    ]


def applied(optimizer: Any, step: Step, given: GradsAndVars, name: str) -> Operation:
    """The operation that takes a step.

    Args:
        optimizer: Makes `iterations`, hyperparameters and slots in the graph, below its name.
        step: Takes the step, with the gradients and the variables of a session.
        given: Gradients and variables.
        name: Name of the step; the operation is named as in TensorFlow, after what it ends with.
    """
    graph = next((var.graph for _, var in given if is_symbolic(var)), None)
    inside = contextlib.nullcontext() if graph is None else graph.as_default()
    with inside, get_default_graph().name_scope(optimizer._name):
        pairs = [(grad, graph_variable_of(var)) for grad, var in given]
        check_updates(pairs)
        called = optimizer._hyper.called()
        variables = distinct([var for _, var in pairs])
        optimizer._create_all_weights(variables)
        read = captured(optimizer, called, [var.dtype for var in variables])

        def run(grads: list[Any], leaves: list[Tensor], *values: Any) -> None:
            with optimizer._lock, optimizer._hyper.knowing(read.known(*values)):
                step(grads, leaves)

        grads, leaves = [grad for grad, _ in pairs], [by_reference(var) for _, var in pairs]
        with get_default_graph().name_scope(name):
            op = operation(run, [grads, leaves, *read.inputs], "AssignAddVariableOp")
        op.written += tuple(kept_in_graph(optimizer, variables))
        return op


def kept_in_graph(optimizer: Any, variables: Sequence[Any]) -> list[GraphVariable]:
    """The variables of the graph that a step of these variables writes to beside them."""
    found: list[Any] = []
    for each in optimizer._with_inner():
        found += [slot for var in variables for slot in each._slots.all_of(var).values()]
        found += [*each._own_children().values(), *each._added]
    return [var for var in found if isinstance(var, GraphVariable)]


def nothing(optimizer: Any) -> Operation:
    """The operation of a step over no variables, which does not count."""
    with get_default_graph().name_scope(optimizer._name):
        _ = optimizer.iterations
        optimizer._create_hypers()
        return no_op()


def rate(optimizer: Any, dtype: torch.dtype) -> Any:
    """The learning rate that a step would have, as a tensor of the graph."""
    optimizer._create_hypers()
    step = optimizer.iterations
    read = captured(optimizer, optimizer._hyper.called(), [dtype])

    def run(_: Any, *values: Any) -> Tensor:
        with optimizer._lock, optimizer._hyper.knowing(read.known(*values)):
            return torch.tensor(optimizer._learning_rate(compute_dtype(dtype)), dtype=dtype)

    output = Output(dtype, (), ())
    return operation(run, [step, *read.inputs], "decayed_lr", kind="pure", outputs=output)


def written(symbol: Any) -> Any:
    """The value of a hyperparameter for a configuration: where no session is known, its first."""
    if isinstance(symbol, GraphVariable) and not backend.has_session(symbol.graph):
        return Session(graph=symbol.graph).run(symbol.initial_value)
    return backend.get_value(symbol)


@dataclass
class Captured:
    """The hyperparameters of an operation.

    Attributes:
        fixed: Those that are of no graph, by name.
        numbers: The names of those that arrive as numbers.
        inputs: What the operation takes, which arrives as the arguments of `known`: the numbers,
            and tensors by name, or by name and dtype where they are of a schedule.
    """

    fixed: dict[Any, Any]
    numbers: list[str]
    inputs: list[Any]

    def known(self, numbers: Sequence[Any], tensors: dict[Any, Any]) -> dict[Any, Any]:
        """All values of a run, as `Hyperparameters.knowing` takes them."""
        found = {**self.fixed, **dict(zip(self.numbers, numbers, strict=True)), **tensors}
        for key, value in tensors.items():
            if isinstance(key, tuple):
                found[key] = as_step_scalar(key[0], value, key[1])
        return found


def captured(optimizer: Any, called: dict[str, Any], dtypes: Iterable[torch.dtype]) -> Captured:
    """What an operation that an optimizer takes part in has of hyperparameters."""
    fixed = optimizer._hyper.all_of(called)
    symbols = {name: value for name, value in fixed.items() if is_symbolic(value)}
    numbers = [name for name, value in symbols.items() if _is_number(value)]
    tensors: dict[Any, Any] = {name: symbols[name] for name in symbols if name not in numbers}
    for name, value in fixed.items():
        if isinstance(value, LearningRateSchedule) and any(map(is_symbolic, _parts(value))):
            for kind in {compute_dtype(dtype) for dtype in dtypes}:
                tensors[name, kind] = value(optimizer.iterations.to(as_dtype(kind)))
    # One operation, which reads all of them before anything is written in the run.
    variables, output = [symbols[name] for name in numbers], Output(None, None, ())
    read: Any = ()
    if variables:
        read = operation(_read, variables, "ReadVariableOp", kind="pure", outputs=output)
    return Captured(fixed, numbers, [read, tensors])


def _is_number(value: Any) -> bool:
    return isinstance(value, GraphVariable) and value.shape == () and value.dtype in _NUMBERS


def _read(*leaves: Tensor) -> list[Any]:
    return [_NUMBERS[leaf.dtype](leaf.item()) for leaf in leaves]


def _parts(schedule: LearningRateSchedule) -> Iterator[Any]:
    """What a schedule, and schedules in it, are made of."""
    for part in leaves_of(list(vars(schedule).values())):
        yield from _parts(part) if isinstance(part, LearningRateSchedule) else (part,)
