"""Keras' layers and models in graphs of TensorFlow 1.

A call of a layer or model on symbolic tensors adds one operation to the graph. A run of the
operation calls the layer with the session's values of the layer's variables. Inputs of a functional
model are placeholders, outputs (`KerasTensor`s) are tensors of the graph. Keras' classes are
patched once, when `tf.keras` is first used: `_as_graph_element` returns an object's symbol.

`keras.Layer.__call__` is replaced, because it supports only tensors of torch and Keras. In eager
mode, and while Keras computes shapes, calls use the original method.
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
from thalweg._graph.node_names import node_name_from
from thalweg.errors import InvalidTypeError
from thalweg.variable import as_dtype, dtype_name, tensor_of

keras: Any = importlib.import_module("keras")

_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
_COMPARISONS = ("lt", "le", "gt", "ge")
# Arguments of losses that become inputs of a layer, even if they are arrays.
_TENSORS = ("y_true", "y_pred")


def lend() -> None:
    """Patch Keras' layers, tensors and variables to accept symbolic tensors; do so only once."""
    layer, tensor = keras.Layer, keras.KerasTensor
    # A second call would wrap the wrappers.
    if hasattr(tensor, "_as_graph_element"):
        return
    tensor._as_graph_element = _symbol_of
    keras.Variable._as_graph_element = _variable_of
    for name in (*_OPERATORS, *_COMPARISONS):
        _widen_operator(tensor, f"__{name}__", getattr(operator, name))
    layer.__call__ = _catching_call(layer.__call__)


def recording(function: Callable[..., object]) -> Callable[..., Any]:
    """Wrap a function, such as a Keras loss, to accept symbolic tensors.

    A call with symbolic tensors becomes a `Lambda` layer of Keras. Other calls are unchanged.
    """

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> Any:
        if not any(isinstance(leaf, SymbolicTensor) for leaf in leaves_of((args, kwargs))):
            return function(*args, **kwargs)
        bound = inspect.signature(function).bind(*args, **kwargs).arguments
        tensors = {name: x for name, x in bound.items() if name in _TENSORS or is_symbolic(x)}
        options = {name: x for name, x in bound.items() if name not in tensors}
        return keras.layers.Lambda(
            lambda operands: function(**dict(zip(tensors, operands, strict=True)), **options),
            name=function.__name__,
            autocast=False,
        )(list(tensors.values()))

    return call


def _symbol_of(tensor: Any) -> SymbolicTensor:
    """Return the symbolic tensor of the default graph for a `KerasTensor`.

    An input of a model becomes a placeholder. Raise InvalidTypeError if the tensor is not the
    output of a layer.
    """
    maker = getattr(getattr(tensor, "_keras_history", None), "operation", None)
    if maker is None:
        raise InvalidTypeError(
            f"A graph cannot compute {tensor!r}: it is the output of no layer. Make inputs with"
            " tf.keras.Input."
        )
    inputs = keras.utils.get_source_inputs(tensor)
    if any(leaf is tensor for leaf in inputs):
        return placeholder(tensor.dtype, tensor.shape, node_name_from(maker.name))
    return keras.Model(inputs, tensor, name=maker.name)([graph_variable_of(x) for x in inputs])


def _variable_of(variable: object) -> GraphVariable:
    """Return the default graph's variable for a Keras variable. Keras' session initializes it.

    Raise InvalidTypeError if the variable has no value yet.
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
    """Return True if a layer's call with the arguments `leaves` must add an operation to the graph.

    A symbolic tensor among the arguments suffices. So does an array or tensor, unless Keras only
    computes shapes: in a stateless scope, or with a `KerasTensor` among the arguments.
    """
    if any(isinstance(leaf, SymbolicTensor) for leaf in leaves):
        return True
    if in_stateless_scope() or any(isinstance(leaf, keras.KerasTensor) for leaf in leaves):
        return False
    return any(isinstance(leaf, np.ndarray | torch.Tensor) for leaf in leaves)


def _record_call(
    original: Callable[..., object], layer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> object:
    """Add an operation that calls `layer`; return symbolic outputs in the layer's structure.

    `original` is the unpatched `keras.Layer.__call__`, which also builds the layer. Changes of
    untrained variables in a run, such as moving averages, change the graph's variables, too.

    Raises:
        InvalidTypeError: The dtype or number of dimensions of an input is unknown, or the layer
            returns anything but tensors.
    """
    args, kwargs = mapped(_in_graph, (tuple(args), dict(kwargs)))
    with eagerly():
        specs = original(layer, *mapped(_describe_leaf, args), **mapped(_describe_leaf, kwargs))
    leaves = list(leaves_of(specs))
    if not all(isinstance(leaf, keras.KerasTensor) for leaf in leaves):
        raise InvalidTypeError(f"The layer {layer.name!r} returns {specs!r}, which is no tensor.")
    trained = [variable for variable in layer.variables if variable.trainable]
    untrained = [variable for variable in layer.variables if not variable.trainable]

    def run(weights: Any, states: Any, args: Any, kwargs: Any) -> list[object]:
        values = [*zip(trained, weights, strict=True), *zip(untrained, states, strict=True)]
        with keras.StatelessScope(values, initialize_variables=False) as scope:
            results = list(leaves_of(original(layer, *args, **kwargs)))
        # The scope collects assignments of the layer instead of changing Keras' variables.
        with no_grad():
            for variable, leaf in zip(untrained, states, strict=True):
                value = scope.get_current_value(variable)
                if value is not leaf:
                    leaf.copy_(value)
        return results

    weights, states = (
        [graph_variable_of(variable) for variable in variables]
        for variables in (trained, untrained)
    )
    outputs = operation(
        run,
        [weights, [by_reference(state) for state in states], args, kwargs],
        node_name_from(layer.name),
        kind="pure",
        outputs=[Output(as_dtype(leaf.dtype), leaf.shape) for leaf in leaves],
    )
    outputs[0].op.stateful = bool(states)
    symbols = iter(outputs)
    return mapped(lambda _: next(symbols), specs)


def _in_graph(leaf: object) -> object:
    """Return the symbol of a leaf, or a constant for an array."""
    is_array = isinstance(leaf, np.ndarray | torch.Tensor)
    return convert_to_tensor(leaf) if is_array else graph_variable_of(leaf)


def _describe_leaf(leaf: object) -> object:
    """Return a `KerasTensor` for a symbolic tensor; return other leaves unchanged."""
    if not isinstance(leaf, SymbolicTensor):
        return leaf
    if leaf.dtype is None or leaf.shape is UNKNOWN:
        raise InvalidTypeError(
            f"A layer of Keras needs the dtype and the number of dimensions of '{leaf.name}', of"
            f" which is known: {leaf!r}. Tell it with set_shape, or cast it."
        )
    return keras.KerasTensor(tuple(leaf.shape), dtype_name(leaf.dtype))


def _widen_operator(tensor: object, name: str, function: Callable[..., object]) -> None:
    """Patch the operator method `name` of class `tensor` to accept symbolic operands.

    `function(x, y)` computes the operator for symbolic tensors.
    """
    original = getattr(tensor, name)

    @functools.wraps(original)
    def apply(self: object, operand: object) -> object:
        if is_symbolic(operand) and not executing_eagerly():
            return function(graph_variable_of(self), operand)
        return original(self, operand)

    setattr(tensor, name, apply)
