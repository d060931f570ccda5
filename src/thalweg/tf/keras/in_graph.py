"""Keras' layers and models in graphs of TensorFlow 1.

A layer or model that is called on symbolic tensors becomes one operation, whose runs call it with
the session's values of its variables. The outputs of a functional model, which Keras keeps as
`KerasTensor`s, are tensors of the graph as well, and its inputs are placeholders. Keras' classes
get what they lack for that, once, when `tf.keras` is first used: graphs ask an object for its
symbol by `_as_graph_element`, as TensorFlow's do.

Why `keras.Layer.__call__` is replaced: it converts what it is given and builds the layer before
torch's modules are asked, and knows no tensors but torch's and its own. In eager mode, and while
Keras computes shapes, a call goes straight on to what was there before.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from keras.src.backend.common.stateless_scope import in_stateless_scope

from thalweg._base.context_managers import no_grad
from thalweg._base.execution_context import eagerly
from thalweg._base.static_shape import UNKNOWN
from thalweg._core.nest import leaves_of, mapped
from thalweg._graph import (
    GraphVariable,
    Output,
    SymbolicTensor,
    by_reference,
    convert_to_tensor,
    executing_eagerly,
    graph_variable_of,
    is_symbolic,
    operation,
    placeholder,
)
from thalweg._graph.keras.variables import track
from thalweg._graph.unique_names import node_name_from
from thalweg.errors import InvalidTypeError
from thalweg.variable import as_dtype, dtype_name, tensor_of

keras: Any = importlib.import_module("keras")

_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
_COMPARISONS = ("lt", "le", "gt", "ge")
_TENSORS = ("y_true", "y_pred")  # of a loss, also where they are arrays


def lend() -> None:
    """Give Keras' classes what graphs need; again, it does nothing."""
    layer, tensor = keras.Layer, keras.KerasTensor
    if hasattr(tensor, "_as_graph_element"):
        return
    tensor._as_graph_element = _symbol_of
    keras.Variable._as_graph_element = _variable_of
    for name in (*_OPERATORS, *_COMPARISONS):
        _widen_operator(tensor, f"__{name}__", getattr(operator, name))
    layer.__call__ = _catching_call(layer.__call__)


def recording(function: Callable[..., object]) -> Callable[..., Any]:
    """Return a function of Keras, such as a loss, that takes tensors of a graph, too."""

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> Any:
        if not any(isinstance(leaf, SymbolicTensor) for leaf in leaves_of((args, kwargs))):
            return function(*args, **kwargs)
        bound = inspect.signature(function).bind(*args, **kwargs).arguments
        tensors = {name: x for name, x in bound.items() if name in _TENSORS or is_symbolic(x)}
        rest = {name: x for name, x in bound.items() if name not in tensors}
        return keras.layers.Lambda(
            lambda given: function(**dict(zip(tensors, given, strict=True)), **rest),
            name=function.__name__,
            autocast=False,
        )(list(tensors.values()))

    return call


def _symbol_of(tensor: Any) -> SymbolicTensor:
    """The symbol of a `KerasTensor` in the default graph.

    Raises:
        InvalidTypeError: No layer has it as its output.
    """
    maker = getattr(getattr(tensor, "_keras_history", None), "operation", None)
    if maker is None:
        raise InvalidTypeError(
            f"A graph cannot compute {tensor!r}: it is the output of no layer. Make inputs with"
            " tf.keras.Input."
        )
    inputs = keras.utils.get_source_inputs(tensor)
    if any(each is tensor for each in inputs):
        return placeholder(tensor.dtype, tensor.shape, node_name_from(maker.name))
    return keras.Model(inputs, tensor, name=maker.name)([graph_variable_of(x) for x in inputs])


def _variable_of(variable: object) -> GraphVariable:
    """The graph's variable of a variable of Keras, in the default graph; `get_session` initializes
    it.

    Raises:
        InvalidTypeError: It has no value yet.
    """
    parameter = tensor_of(variable)
    if not isinstance(parameter, torch.nn.Parameter):
        raise InvalidTypeError(f"{variable!r} has no value yet. Build its layer first.")
    return track(graph_variable_of(parameter))


def _catching_call(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def call(layer: object, *args: object, **kwargs: object) -> Any:
        if not executing_eagerly() and _is_recorded(list(leaves_of((args, kwargs)))):
            return _record_call(original, layer, args, kwargs)
        return original(layer, *args, **kwargs)

    return call


def _is_recorded(leaves: list[object]) -> bool:
    """Return whether a call on these is of the graph; while Keras computes shapes, only one on
    symbols.
    """
    if any(isinstance(leaf, SymbolicTensor) for leaf in leaves):
        return True
    if in_stateless_scope() or any(isinstance(leaf, keras.KerasTensor) for leaf in leaves):
        return False
    return any(isinstance(leaf, np.ndarray | torch.Tensor) for leaf in leaves)


def _record_call(
    original: Callable[..., object], layer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> object:
    """Add an operation that calls `layer`, and return its outputs as the layer does.

    The layer is built, if it was not. Variables that are not trained are those of the graph, too,
    and the run writes to them as the layer does.

    Raises:
        InvalidTypeError: The dtype of an input is not known, or its number of dimensions; or the
            layer returns something besides tensors.
    """
    args, kwargs = mapped(_in_graph, (tuple(args), dict(kwargs)))
    with eagerly():
        found = original(layer, *mapped(_describe_leaf, args), **mapped(_describe_leaf, kwargs))
    leaves = list(leaves_of(found))
    if not all(isinstance(leaf, keras.KerasTensor) for leaf in leaves):
        raise InvalidTypeError(f"The layer {layer.name!r} returns {found!r}, which is no tensor.")
    trained = [each for each in layer.variables if each.trainable]
    others = [each for each in layer.variables if not each.trainable]

    def run(weights: Any, states: Any, args: Any, kwargs: Any) -> list[object]:
        values = [*zip(trained, weights, strict=True), *zip(others, states, strict=True)]
        with keras.StatelessScope(values, initialize_variables=False) as scope:
            results = list(leaves_of(original(layer, *args, **kwargs)))
        with no_grad():
            for variable, leaf in zip(others, states, strict=True):
                value = scope.get_current_value(variable)
                if value is not leaf:
                    leaf.copy_(value)
        return results

    weights, states = ([graph_variable_of(each) for each in kind] for kind in (trained, others))
    outputs = operation(
        run,
        [weights, [by_reference(each) for each in states], args, kwargs],
        node_name_from(layer.name),
        kind="pure",
        outputs=[Output(as_dtype(leaf.dtype), leaf.shape) for leaf in leaves],
    )
    outputs[0].op.stateful = bool(states)
    symbols = iter(outputs)
    return mapped(lambda _: next(symbols), found)


def _in_graph(leaf: object) -> object:
    """An array as a constant of the graph; what stands for a symbol as that symbol."""
    is_array = isinstance(leaf, np.ndarray | torch.Tensor)
    return convert_to_tensor(leaf) if is_array else graph_variable_of(leaf)


def _describe_leaf(leaf: object) -> object:
    """A tensor of a graph as Keras knows one that has no value yet."""
    if not isinstance(leaf, SymbolicTensor):
        return leaf
    if leaf.dtype is None or leaf.shape is UNKNOWN:
        raise InvalidTypeError(
            f"A layer of Keras needs the dtype and the number of dimensions of '{leaf.name}', of"
            f" which is known: {leaf!r}. Tell it with set_shape, or cast it."
        )
    return keras.KerasTensor(tuple(leaf.shape), dtype_name(leaf.dtype))


def _widen_operator(tensor: object, name: str, function: Callable[..., object]) -> None:
    """Let an operator of `KerasTensor` take symbolic tensors, too."""
    original = getattr(tensor, name)

    @functools.wraps(original)
    def apply(self: object, other: object) -> object:
        if is_symbolic(other) and not executing_eagerly():
            return function(graph_variable_of(self), other)
        return original(self, other)

    setattr(tensor, name, apply)
