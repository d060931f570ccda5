"""`Layer`: a callable with variables that are created in the first call."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph, v1
from thalweg._base.static_shape import UNKNOWN
from thalweg._graph import GraphKeys
from thalweg.errors import InvalidArgumentError
from thalweg.tf import elementwise, nn
from thalweg.tf.compat.v1 import initializers
from thalweg.tf.convert import call, tensor
from thalweg.tf.operators import name_function
from thalweg.tf.signatures import bind_arguments, set_signature

_NN_NAMES = (
    "elu", "gelu", "leaky_relu", "log_softmax", "relu", "relu6", "selu", "sigmoid", "silu",
    "softmax", "softplus", "softsign", "swish", "tanh",
)  # fmt: skip
_ACTIVATIONS: dict[str, Any] = {name: getattr(nn, name) for name in _NN_NAMES}
_ACTIVATIONS |= {"exponential": elementwise.exp, "linear": None}


def activation_of(activation: Any) -> Callable[[Any], Any] | None:
    """Return an activation function for a name; return a function or None unchanged.

    Raise InvalidArgumentError if no activation has this name.
    """
    if not isinstance(activation, str):
        return activation
    if activation not in _ACTIVATIONS:
        raise InvalidArgumentError(f"{activation!r} is none of {', '.join(sorted(_ACTIVATIONS))}.")
    return _ACTIVATIONS[activation]


class Layer:
    """Callable with variables; subclasses create variables in `build` and compute in `call`.

    In a graph the first call opens a variable scope for the variables. Penalties go to
    REGULARIZATION_LOSSES, and updates to UPDATE_OPS. In eager mode variables are
    `thalweg.Variable`s, and updates are done at once.

    Args:
        trainable: True to train the variables.
        name: Name of the scope, made unique; by default derived from the class.
        dtype: Dtype of the variables; by default that of the first input.
        activity_regularizer: Optional. A function of the output, divided by the size of the batch.
        _scope: A scope, or its name, which is not made unique.
        _reuse: True to reuse existing variables.
    """

    # The least and the largest number of dimensions of inputs.
    RANK: tuple[int, int | None] = (0, None)
    # {name of a variable in `build`: its name in the scope}.
    NAMES: dict[str, str] = {}
    # The collections of updates.
    UPDATES: Any = GraphKeys.UPDATE_OPS

    def __init__(
        self,
        trainable: bool = True,
        name: str | None = None,
        dtype: object = None,
        *,
        activity_regularizer: Callable[[Any], object] | None = None,
        _scope: Any = None,
        _reuse: object = None,
    ) -> None:
        self.trainable, self.dtype = trainable, dtype
        self.activity_regularizer = activity_regularizer
        self.built = False
        self.variables: list[object] = []
        self.updates: list[object] = []
        self._losses: list[object] = []
        self._base_name = name if isinstance(name, str) else _snake_case(type(self).__name__)
        self._reuse = _reuse
        self._scope: _graph.VariableScope | None = None
        if _scope is not None and not _graph.executing_eagerly():
            with _graph.variable_scope(_scope) as self._scope:
                pass

    @property
    def name(self) -> str:
        """Name of the layer, by default from its class."""
        return self._base_name

    @property
    def scope_name(self) -> str:
        """Name of the variable scope.

        Raise ValueError if the layer was not called yet.
        """
        if self._scope is None:
            raise ValueError(f"Layer {self.name} has no scope before it is called.")
        return self._scope.name

    @property
    def losses(self) -> list[Any]:
        """Penalties of the layer's variables and outputs."""
        return [loss() if callable(loss) else loss for loss in self._losses]

    @property
    def weights(self) -> list[Any]:
        """Variables of the layer, trained ones first."""
        return [*self.trainable_variables, *self.non_trainable_variables]

    @property
    def trainable_variables(self) -> list[Any]:
        """Variables of the layer that are trained."""
        return [var for var in self.variables if self.trainable and _is_trained(var)]

    @property
    def non_trainable_variables(self) -> list[Any]:
        """Variables of the layer that are not trained."""
        return [var for var in self.variables if not (self.trainable and _is_trained(var))]

    trainable_weights, non_trainable_weights = trainable_variables, non_trainable_variables

    def build(self, input_shape: Sequence[int | None]) -> None:
        """Make variables."""
        self.built = True

    def call(self, inputs: object, *args: object, **kwargs: object) -> Any:
        """Return the outputs."""
        raise NotImplementedError

    def __call__(self, inputs: object, *args: object, **kwargs: Any) -> Any:
        scope = kwargs.pop("scope", None)
        inputs = _as_tensors(inputs)
        if _graph.executing_eagerly():
            return self._build_and_call(inputs, *args, **kwargs)
        if self._scope is None:
            default = self._base_name
            scope_or_name = scope or (default if self._reuse else None)
            # The scope only gets its unique name here. Each call opens it again.
            with _graph.variable_scope(scope_or_name, default, reuse=self._reuse) as self._scope:
                pass
        reuse = True if self.built else self._reuse
        with (
            _graph.variable_scope(self._scope, reuse=reuse, auxiliary_name_scope=False) as current,
            _graph.name_scope(current.original_name_scope),
        ):
            return self._build_and_call(inputs, *args, **kwargs)

    def apply(self, inputs: object, *args: object, **kwargs: object) -> Any:
        """Call the layer."""
        return self(inputs, *args, **kwargs)

    def _build_and_call(self, inputs: Any, *args: object, **kwargs: object) -> Any:
        first = inputs[0] if isinstance(inputs, list | tuple) else inputs
        self._check_rank(first)
        if self.dtype is None and first.dtype is not None and first.dtype.is_floating_point:
            self.dtype = first.dtype
        if not self.built:
            has_list = isinstance(inputs, list | tuple)
            self.build([leaf.shape for leaf in inputs] if has_list else first.shape)
            self.built = True
        outputs = self.call(inputs, *args, **kwargs)
        if self.activity_regularizer is not None:
            penalty = self.activity_regularizer(outputs)
            self.add_loss(call(lambda total, batch: total / len(batch), penalty, outputs))
        return outputs

    def _check_rank(self, inputs: Tensor) -> None:
        lowest, highest = self.RANK
        rank = None if inputs.shape is UNKNOWN else len(inputs.shape)
        if rank is None and lowest == 0:
            return
        if rank is None or rank < lowest or (highest is not None and rank > highest):
            rank_text = f"{lowest}" if lowest == highest else f"at least {lowest}"
            raise InvalidArgumentError(
                f"Layer {self.name} takes inputs of {rank_text} dimensions, not "
                + ("of an unknown number." if rank is None else f"of {rank}.")
            )

    def channels(self, shape: Sequence[int | None], axis: int = -1) -> int:
        """Return the size of the channel dimension `axis`.

        Raise ValueError if the size is unknown.
        """
        channel_count = shape[axis]
        if channel_count is None:
            raise InvalidArgumentError(
                f"The channel dimension of the inputs of layer {self.name} should be defined, but"
                f" they have the shape {tuple(shape)}."
            )
        return int(channel_count)

    def add_weight(
        self,
        name: str,
        shape: Sequence[int] = (),
        dtype: object = None,
        initializer: object = None,
        regularizer: Callable[[Any], object] | None = None,
        trainable: bool = True,
        constraint: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Create and return a variable of the layer, or reuse a variable of the graph.

        Arguments are as for `get_variable`; `initializer` may also be a name.
        """
        kind, shape = dtype or self.dtype or torch.float32, tuple(int(size) for size in shape)
        name, start = self.NAMES.get(name, name), initializers.get(initializer)
        trained = bool(trainable and self.trainable)
        if _graph.executing_eagerly():
            fill = start or initializers.glorot_uniform()
            full_name = f"{self.name}/{name}"
            variable = v1.Variable(
                fill(shape, kind), trained, name=full_name, constraint=constraint
            )
            if regularizer is not None:
                # `losses` calls it each time, because the variable changes.
                self._losses.append(functools.partial(regularizer, variable))
        else:
            store = _graph.get_default_graph().variable_store
            count = len(store)
            variable = _graph.get_variable(
                name, shape, kind, start, trainable=trained, constraint=constraint
            )
            # A reused variable has its penalty already.
            if regularizer is not None and len(store) > count:
                loss = regularizer(variable)
                if loss is not None:
                    self.add_loss(loss)
        self.variables.append(variable)
        return variable

    add_variable = add_weight

    def add_loss(self, loss: object) -> None:
        """Add a penalty, in a graph also to REGULARIZATION_LOSSES."""
        if not _graph.executing_eagerly():
            _graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)
        self._losses.append(loss)

    def add_update(self, update: object) -> None:
        """Add an operation, in a graph also to UPDATE_OPS if the layer is trained."""
        if self.trainable and not _graph.executing_eagerly():
            _graph.get_default_graph().add_to_collections(self.UPDATES, update)
            self.updates.append(update)


def _is_trained(variable: object) -> bool:
    return bool(getattr(variable, "trainable", True))


def _as_tensors(inputs: object) -> Any:
    if isinstance(inputs, list | tuple) and inputs and isinstance(inputs[0], _TENSORS):
        return [tensor(leaf) for leaf in inputs]
    return tensor(inputs)


_TENSORS = (torch.Tensor, _graph.SymbolicTensor)


def _snake_case(class_name: str) -> str:
    """Return TensorFlow's name of a layer: "MaxPooling2D" becomes "max_pooling2d"."""
    text = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", class_name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", text).lower()


def as_function(layer: type[Layer], name: str, order: str = "") -> Callable[..., Any]:
    """Return a function `(inputs, *layer arguments, reuse=None)` that creates and calls a layer.

    In a graph, the function's argument `name` is the exact name of the scope.

    Args:
        layer: The class. Further arguments of `layer.call` become arguments of the function.
        name: The name of the function.
        order: Names of all arguments, separated by spaces. By default `inputs`, the arguments of
            the class, the further arguments of `call`, and `reuse`.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    call_signature = inspect.signature(layer.call, eval_str=True)
    _, inputs, *call_params = call_signature.parameters.values()
    layer_params = inspect.signature(layer, eval_str=True).parameters.values()
    reuse = inspect.Parameter("reuse", kind, default=None, annotation=object)
    params = [param for param in (inputs, *layer_params, *call_params, reuse) if param.kind is kind]
    params_by_name = {param.name: param for param in params}
    names = order.split() or params_by_name
    signature = call_signature.replace(parameters=[params_by_name[label] for label in names])
    call_names = ["inputs", *(param.name for param in call_params)]

    def apply(*args: object, **kwargs: object) -> Any:
        arguments = bind_arguments(signature, name, args, kwargs).arguments
        call_arguments = {name: arguments.pop(name) for name in call_names if name in arguments}
        options = {"_scope": arguments.get("name"), "_reuse": arguments.pop("reuse", None)}
        return layer(**arguments, **options)(**call_arguments)

    set_signature(apply, signature)
    first_line = f"Create a `{layer.__name__}` and return the outputs of this layer for `inputs`."
    doc = f"{first_line}\n\n{inspect.getdoc(layer) or ''}"
    return name_function(apply, name, doc, layer.__module__)
