"""`Layer`: a function with variables of its own, made when it is first called."""

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

_ACTIVATIONS = {
    "elu": nn.elu,
    "exponential": elementwise.exp,
    "gelu": nn.gelu,
    "leaky_relu": nn.leaky_relu,
    "linear": None,
    "log_softmax": nn.log_softmax,
    "relu": nn.relu,
    "relu6": nn.relu6,
    "selu": nn.selu,
    "sigmoid": nn.sigmoid,
    "silu": nn.silu,
    "softmax": nn.softmax,
    "softplus": nn.softplus,
    "softsign": nn.softsign,
    "swish": nn.swish,
    "tanh": nn.tanh,
}


def activation_of(activation: Any) -> Callable[[Any], Any] | None:
    """Return a function from one, or its name; None for none.

    Raises:
        InvalidArgumentError: No activation has this name.
    """
    if not isinstance(activation, str):
        return activation
    if activation not in _ACTIVATIONS:
        raise InvalidArgumentError(f"{activation!r} is none of {', '.join(sorted(_ACTIVATIONS))}.")
    return _ACTIVATIONS[activation]


class Layer:
    """A function with variables, which a subclass makes in `build` and uses in `call`.

    In a graph the variables are those of a variable scope, which is found or made as the layer is
    first called; penalties go to REGULARIZATION_LOSSES, and updates to UPDATE_OPS. In eager mode
    they are `thalweg.Variable`s, and updates are done at once.

    Args:
        trainable: Whether its variables are trained.
        name: What the scope is called, made unique; by default after the class.
        dtype: That of its variables; by default that of the first input.
        activity_regularizer: Optional. A function of the output, divided by the size of the batch.
        _scope: A scope, or its name, which is not made unique.
        _reuse: Whether the variables are there already.
    """

    RANK: tuple[int, int | None] = (0, None)  # the least and the largest number of dimensions
    NAMES: dict[str, str] = {}  # what variables are called in place of their own names
    UPDATES: Any = GraphKeys.UPDATE_OPS  # the collections of updates

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
        """The name it was given, or that of its class."""
        return self._base_name

    @property
    def scope_name(self) -> str:
        """The name of its variable scope.

        Raises:
            ValueError: It was not called yet.
        """
        if self._scope is None:
            raise ValueError(f"Layer {self.name} has no scope before it is called.")
        return self._scope.name

    @property
    def losses(self) -> list[Any]:
        """The penalties of its variables and outputs."""
        return [loss() if callable(loss) else loss for loss in self._losses]

    @property
    def weights(self) -> list[Any]:
        """Its variables, those that are trained first."""
        return [*self.trainable_variables, *self.non_trainable_variables]

    @property
    def trainable_variables(self) -> list[Any]:
        """Variables of the layer that are trained."""
        return [each for each in self.variables if self.trainable and _is_trained(each)]

    @property
    def non_trainable_variables(self) -> list[Any]:
        """Variables of the layer that are not trained."""
        return [each for each in self.variables if not (self.trainable and _is_trained(each))]

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
            given, default = scope or (self._base_name if self._reuse else None), self._base_name
            with _graph.variable_scope(given, default, reuse=self._reuse) as self._scope:
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
            several = isinstance(inputs, list | tuple)
            self.build([each.shape for each in inputs] if several else first.shape)
            self.built = True
        outputs = self.call(inputs, *args, **kwargs)
        if self.activity_regularizer is not None:
            penalty = self.activity_regularizer(outputs)
            self.add_loss(call(lambda total, given: total / len(given), penalty, outputs))
        return outputs

    def _check_rank(self, given: Tensor) -> None:
        least, most = self.RANK
        rank = None if given.shape is UNKNOWN else len(given.shape)
        if rank is None and least == 0:
            return
        if rank is None or rank < least or (most is not None and rank > most):
            wanted = f"{least}" if least == most else f"at least {least}"
            raise InvalidArgumentError(
                f"Layer {self.name} takes inputs of {wanted} dimensions, not "
                + ("of an unknown number." if rank is None else f"of {rank}.")
            )

    def channels(self, shape: Sequence[int | None], axis: int = -1) -> int:
        """Return the size of a dimension that variables have, too.

        Raises:
            ValueError: It is not known.
        """
        found = shape[axis]
        if found is None:
            raise InvalidArgumentError(
                f"The channel dimension of the inputs of layer {self.name} should be defined, but"
                f" they have the shape {tuple(shape)}."
            )
        return int(found)

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
        """Return a variable of the layer: found or made in its scope, in eager mode made.

        The arguments are those of `get_variable`, whose defaults apply; an initializer may be
        given by name.
        """
        kind, shape = dtype or self.dtype or torch.float32, tuple(int(size) for size in shape)
        name, start = self.NAMES.get(name, name), initializers.get(initializer)
        trained = bool(trainable and self.trainable)
        if _graph.executing_eagerly():
            fill = start or initializers.glorot_uniform()
            title = f"{self.name}/{name}"
            made = v1.Variable(fill(shape, kind), trained, name=title, constraint=constraint)
            if regularizer is not None:
                self._losses.append(functools.partial(regularizer, made))
        else:
            store = _graph.get_default_graph().variable_store
            count = len(store)
            made = _graph.get_variable(
                name, shape, kind, start, trainable=trained, constraint=constraint
            )
            if regularizer is not None and len(store) > count:  # one that is reused has its penalty
                loss = regularizer(made)
                if loss is not None:
                    self.add_loss(loss)
        self.variables.append(made)
        return made

    add_variable = add_weight

    def add_loss(self, loss: object) -> None:
        """Count a penalty; in a graph it goes to REGULARIZATION_LOSSES, too."""
        if not _graph.executing_eagerly():
            _graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)
        self._losses.append(loss)

    def add_update(self, update: object) -> None:
        """Have an operation of the graph in UPDATE_OPS, unless the layer is not trained."""
        if self.trainable and not _graph.executing_eagerly():
            _graph.get_default_graph().add_to_collections(self.UPDATES, update)
            self.updates.append(update)


def _is_trained(variable: object) -> bool:
    return bool(getattr(variable, "trainable", True))


def _as_tensors(inputs: object) -> Any:
    if isinstance(inputs, list | tuple) and inputs and isinstance(inputs[0], _TENSORS):
        return [tensor(each) for each in inputs]
    return tensor(inputs)


_TENSORS = (torch.Tensor, _graph.SymbolicTensor)


def _snake_case(title: str) -> str:
    """As TensorFlow names layers: "MaxPooling2D" is "max_pooling2d"."""
    text = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", title)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", text).lower()


def bound(
    signature: inspect.Signature, name: str, args: Sequence[object], kwargs: dict[str, object]
) -> dict[str, Any]:
    """Return the arguments of a call by their names.

    Raises:
        TypeError: They are not those of the function.
    """
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        known = ", ".join(signature.parameters)
        raise TypeError(f"{name}() {error}; its arguments are {known}.") from None


def as_function(layer: Callable[..., Layer], name: str) -> Callable[..., Any]:
    """Return a function that makes a layer and calls it: `(inputs, *arguments of the layer,
    reuse=None)`.

    In a graph the scope has exactly the name that it is given, so that `reuse=True` finds it again.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    own = [each for each in inspect.signature(layer).parameters.values() if each.kind is kind]
    first, last = inspect.Parameter("inputs", kind), inspect.Parameter("reuse", kind, default=None)
    signature = inspect.Signature([first, *own, last])

    def apply(*args: object, **kwargs: object) -> Any:
        given = bound(signature, name, args, kwargs)
        inputs, reuse = given.pop("inputs"), given.pop("reuse", None)
        return layer(**given, _scope=given.get("name"), _reuse=reuse)(inputs)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = layer.__doc__
    apply.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    return apply
