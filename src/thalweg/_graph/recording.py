"""Recording: a call with symbolic tensors adds a node to the graph, and computes nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from thalweg._core.nest import leaves_of, mapped
from thalweg._graph.add_operation import add
from thalweg._graph.arguments import DenseGradient, Reference, densify, inputs_of
from thalweg._graph.nodes import Nodes, SymbolicTensor
from thalweg._graph.shapes import Output, infer_outputs
from thalweg._graph.symbolic_slices import SymbolicSlices
from thalweg._graph.variables import variable_of
from thalweg.variable import to_tensor

# Functions whose result may share memory with their first argument.
_VIEWS = {"T", "H", "mT", "mH", "alias", "as_strided", "contiguous", "detach", "diagonal", "item"}
_VIEWS |= {"expand", "expand_as", "flatten", "ravel", "reshape", "reshape_as", "view", "view_as"}
_VIEWS |= {"moveaxis", "movedim", "permute", "swapaxes", "swapdims", "t", "transpose", "narrow"}
_VIEWS |= {"chunk", "select", "split", "strided_slice", "tensor_split", "unbind", "unfold"}
_VIEWS |= {"squeeze", "unsqueeze", "unflatten", "real", "imag"}
_VIEWS |= {"double", "float", "half", "bfloat16", "to", "type", "type_as"}


def record(
    graph: Nodes,
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    name: str,
    sparse_flows: frozenset[SymbolicTensor] = frozenset(),
    stateful: bool = False,
) -> Any:
    """Add an operation that calls `function`; return symbolic outputs in the result's structure.

    A result that is not a tensor, such as a number of dimensions, is returned unchanged. If no
    result is a tensor, no operation is added. `sparse_flows` are inputs whose gradients are
    `IndexedSlices`. `stateful` is True for a module that updates buffers.

    Raises:
        InvalidArgumentError: Shapes do not fit together, or a tensor is of another graph.
        InvalidTypeError: A result that is not a tensor depends on unknown sizes.
    """
    arguments, keywords = prepare_nest(graph, tuple(args)), prepare_nest(graph, dict(kwargs))
    looked_up_tables = _find_sparse_table(function, arguments, keywords)
    # Symbols among the keywords must be arguments, so that a run replaces them by values.
    if keywords and inputs_of(keywords, graph):
        call, arguments = functools.partial(_call_with, function), (arguments, keywords)
    else:
        call = functools.partial(function, **keywords) if keywords else function
    arguments = mapped(densify, arguments)
    # Raises for a tensor of another graph, before the function is called on meta tensors.
    inputs_of(arguments, graph)
    nest = infer_outputs(call, mapped(unwrap_gradient, arguments), name)
    leaves = list(leaves_of(nest))
    picks = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, Output))
    if not picks:
        return nest
    outputs = [leaves[index] for index in picks]
    picks = None if isinstance(nest, Output) else picks
    op = add(graph, name, call, arguments, outputs=outputs, picks=picks)
    op.sparse_flows, op.stateful = sparse_flows | looked_up_tables, stateful
    if graph.unit is not None and not _VIEWS.isdisjoint((name, getattr(function, "__name__", ""))):
        graph.unit.note_views(leaves_of(arguments), op.outputs)
    tensors = iter(op.outputs)
    return mapped(lambda leaf: next(tensors) if isinstance(leaf, Output) else leaf, nest)


def write(variable: Any, name: str, args: Sequence[object], kwargs: Mapping[str, Any]) -> None:
    """In an optimizer's hook, add the operation that calls an in-place method of a variable.

    In-place operations run in order, before all operations that are added later. So an optimizer's
    hook reads the values that the hook has written, as in eager mode.

    Args:
        variable: A variable. Call `write` inside of `variable.graph.as_one()`.
        name: The method's name, one of `nodes.IN_PLACE`.
        args, kwargs: Arguments of the method.

    Raises:
        InvalidArgumentError: Shapes do not fit together.
    """
    graph, unit = variable.graph, variable.graph.unit
    arguments = prepare_nest(graph, ((Reference(variable), *args), dict(kwargs)))
    arguments = mapped(densify, arguments)
    call = functools.partial(_call_with, getattr(torch.Tensor, name))
    # Called for its errors: shapes that do not fit raise now, not in a run.
    infer_outputs(call, mapped(unwrap_gradient, arguments), name)
    op = add(graph, name.rstrip("_"), call, arguments, kind="update")
    unit.note_write(variable, op)


def _find_sparse_table(
    function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> frozenset[SymbolicTensor]:
    """Return {table} for an embedding lookup with sparse gradients; otherwise an empty set."""
    if function is not torch.nn.functional.embedding or not kwargs.get("sparse"):
        return frozenset()
    # The signature is embedding(input, weight, ...).
    table = args[1] if len(args) > 1 else kwargs["weight"]
    return frozenset({table} if isinstance(table, SymbolicTensor) else ())


def prepare_nest(graph: Nodes, nest: object) -> Any:
    """Return a nest for a node: slices and parameters replaced by symbols, arrays by tensors."""
    return mapped(functools.partial(_prepare_leaf, graph), nest)


def _prepare_leaf(graph: Nodes, leaf: object) -> Any:
    """Return a leaf for a node; see `prepare_nest`."""
    if isinstance(leaf, SymbolicSlices):
        leaf = leaf.source
    if isinstance(leaf, torch.nn.Parameter):
        return variable_of(graph, leaf)
    if isinstance(leaf, np.ndarray):
        return to_tensor(leaf)
    return graph.symbol_of(leaf)


def unwrap_gradient(leaf: object) -> Any:
    """Return the symbol inside a `DenseGradient`; other leaves unchanged."""
    return leaf.symbol if isinstance(leaf, DenseGradient) else leaf


def _call_with(
    function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    """Return `function(*args, **kwargs)`."""
    return function(*args, **kwargs)
