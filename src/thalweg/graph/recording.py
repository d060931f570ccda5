"""Recording: what is called on symbolic tensors becomes a node, and nothing is computed."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.graph.arguments import Dense, Reference, inputs_of, whole
from thalweg.graph.nest import leaves_of, mapped, packed
from thalweg.graph.running import get_default_graph
from thalweg.graph.shapes import Output, inferred
from thalweg.graph.slices import SymbolicSlices
from thalweg.graph.tensor import SymbolicTensor
from thalweg.graph.variables import GraphVariable
from thalweg.variable import to_tensor

if TYPE_CHECKING:
    from thalweg.graph.graph import Graph

# What torch.Tensor has, but no symbolic tensor: it depends on memory, or on torch's autograd.
_REFUSED = {"data", "grad", "grad_fn", "requires_grad", "is_leaf", "retain_grad", "register_hook"}
_REFUSED |= {"storage", "untyped_storage", "data_ptr", "stride", "storage_offset", "is_contiguous"}
_REFUSED |= {"layout", "is_meta", "is_cuda", "is_cpu"}
_REFLECTED = {"radd", "rsub", "rmul", "rdiv", "rtruediv", "rpow", "rmatmul", "rfloordiv", "rmod"}


def record(
    graph: Graph,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    name: str,
    sparse_flows: frozenset[SymbolicTensor] = frozenset(),
    stateful: bool = False,
) -> Any:
    """Add a node that calls `function`, and return its outputs in the structure it returns.

    What the function returns besides tensors, such as a number of dimensions, is returned at once
    if static shapes tell it; no node is added then if there are no tensors.

    Raises:
        InvalidArgumentError: Shapes do not fit together, or a tensor is of another graph.
        InvalidTypeError: The result is no tensor and only a run knows it.
    """
    arguments, keywords = prepared(graph, tuple(args)), prepared(graph, dict(kwargs))
    if keywords and inputs_of(keywords, graph):
        call, arguments = functools.partial(_spread, function), (arguments, keywords)
    else:
        call = functools.partial(function, **keywords) if keywords else function
    arguments = mapped(whole, arguments)
    inputs_of(arguments, graph)  # refuses what is of another graph before it is tried
    known = inferred(call, mapped(_bare, arguments), name)
    outputs = [leaf for leaf in leaves_of(known) if isinstance(leaf, Output)]
    if not outputs:
        return known
    is_single = isinstance(known, Output)
    picks = tuple(i for i, leaf in enumerate(leaves_of(known)) if isinstance(leaf, Output))
    op = graph.add(
        name, call, arguments, outputs=outputs, picks=None if is_single else picks, kind="pure"
    )
    op.sparse_flows, op.stateful = sparse_flows, stateful
    tensors = iter(op.outputs)
    return packed(
        known, (next(tensors) if isinstance(leaf, Output) else leaf for leaf in leaves_of(known))
    )


def torch_call(
    graph: Graph, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Record one of torch's functions, as `SymbolicTensor.__torch_function__` meets it."""
    title = getattr(function, "__name__", type(function).__name__)
    is_inplace = title.startswith("__i") and title not in ("__invert__", "__index__")
    if is_inplace or title in ("__setitem__", "__set__") or title.rstrip("_") + "_" == title:
        raise InvalidTypeError(f"{title} writes in place, which no node does. {_INSTEAD}")
    if kwargs.get("inplace"):
        kwargs = {**kwargs, "inplace": False}  # the result is the same
    name = title.strip("_")
    sparse: frozenset[SymbolicTensor] = frozenset()
    if function is torch.nn.functional.embedding and kwargs.get("sparse"):
        weight = prepared(graph, args[1] if len(args) > 1 else kwargs["weight"])
        sparse = frozenset({weight} if isinstance(weight, SymbolicTensor) else ())
    return record(graph, function, args, kwargs, name[1:] if name in _REFLECTED else name, sparse)


_INSTEAD = "Use assign, assign_add or assign_sub on a variable."


def attribute(tensor: SymbolicTensor, name: str) -> Any:
    """What `tensor.name` is: a method that records, or a node for an attribute such as `T`.

    Raises:
        AttributeError: `torch.Tensor` has no such attribute, or no node can stand for it.
    """
    if name in _REFUSED:
        _no_attribute(tensor, name, "Only a run knows it.")
    if name.endswith("_"):
        _no_attribute(tensor, name, f"No node writes in place. {_INSTEAD}")
    found = getattr(torch.Tensor, name, None)
    if found is None:
        _no_attribute(tensor, name, "Nor has torch.Tensor.")
    if not callable(found):
        return record(tensor.graph, operator.attrgetter(name), (tensor,), {}, name)

    def method(*args: Any, **kwargs: Any) -> Any:
        return record(tensor.graph, found, (tensor, *args), kwargs, name)

    return method


def _no_attribute(tensor: SymbolicTensor, name: str, reason: str) -> NoReturn:
    raise AttributeError(f"Tensor '{tensor.name}' has no attribute {name!r}. {reason}")


def operand(value: Any, dtype: torch.dtype | None) -> Any:
    """The other operand of an operator on a tensor of `dtype`."""
    is_typed = isinstance(value, (torch.Tensor, SymbolicTensor))
    if is_typed or not isinstance(value, (np.ndarray, np.generic, list)):
        return value
    return to_tensor(value, dtype)


def prepared(graph: Graph, nest: Any) -> Any:
    """The nest as a node keeps it: slices and parameters are symbols, arrays are copies."""
    return mapped(functools.partial(_prepared, graph), nest)


def _prepared(graph: Graph, leaf: Any) -> Any:
    if isinstance(leaf, SymbolicSlices):
        leaf = leaf.source
    if isinstance(leaf, torch.nn.Parameter):
        return graph.variable_of(leaf)
    if isinstance(leaf, np.ndarray):
        return to_tensor(leaf)
    return leaf


def _bare(leaf: Any) -> Any:
    return leaf.symbol if isinstance(leaf, Dense) else leaf


def _spread(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return function(*args, **kwargs)


def operation(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    name: str,
    *,
    kind: str = "update",
    outputs: Any = None,
    control_inputs: Sequence[Any] = (),
) -> Any:
    """Add an operation that calls `function` with the values of `inputs` when it runs.

    Args:
        function: Any Python function.
        inputs: Nested lists, tuples and dicts. A variable wrapped in `by_reference` arrives as
            the session's own leaf tensor, any other symbolic input as its value: a tensor,
            `IndexedSlices`, or None for a gradient that the run does not find. Plain objects
            arrive as they are.
        name: Made unique, below the current name scope.
        kind: "pure" if it has no effect but its value, "update" if it writes to variables,
            "blocking" if it waits for other threads. In one run all that is pure comes first,
            unless it needs the others or control dependencies say otherwise.
        outputs: None if the function returns nothing of use; otherwise what is known of its
            result, as an `Output` or anything else with `dtype` and `shape`, or a list of these
            for a function that returns as many.
        control_inputs: Operations, or what comes from them, that run before it.

    Returns:
        The `Operation`, or its output or list of outputs if there are `outputs`.

    Raises:
        InvalidArgumentError: An input is of another graph, or the kind or name is not valid.
        FailedPreconditionError: The graph is finalized.
    """
    if kind not in ("pure", "update", "blocking"):
        raise InvalidArgumentError(f'kind must be "pure", "update" or "blocking", not {kind!r}.')
    symbols = (_symbol(leaf) for leaf in leaves_of(list(inputs)))
    graph = next((x.graph for x in symbols if x is not None), None) or get_default_graph()
    arguments = prepared(graph, tuple(inputs))
    if kind != "pure":
        arguments = mapped(_snapshot, arguments)
    is_several = isinstance(outputs, (list, tuple))
    wanted = list(outputs) if is_several else [outputs] if outputs is not None else []
    op = graph.add(
        name,
        function,
        arguments,
        outputs=[Output(x.dtype, x.shape, getattr(x, "flows", None)) for x in wanted],
        picks=tuple(range(len(wanted))) if is_several else None,
        kind=kind,
        control_inputs=[graph.as_operation(item) for item in control_inputs],
    )
    if outputs is None:
        return op
    return list(op.outputs) if is_several else op.outputs[0]


def _symbol(leaf: Any) -> Any:
    """The symbolic tensor that tells the graph, or None."""
    leaf = leaf.symbol if isinstance(leaf, Reference) else leaf
    return leaf if isinstance(leaf, (SymbolicTensor, SymbolicSlices)) else None


def _snapshot(leaf: Any) -> Any:
    """Variables are read before the updates of a run, not when one of those takes its inputs."""
    return leaf.read_value() if isinstance(leaf, GraphVariable) else leaf
