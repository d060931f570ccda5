"""An optimizer that bounds the norms of variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.context_managers import no_grad
from thalweg._base.static_shape import UNKNOWN
from thalweg._base.tracing import untraced
from thalweg._core import atomic_section
from thalweg._core.commit import add_note
from thalweg._core.grads_and_vars import as_gradient, as_pairs
from thalweg.errors import InvalidArgumentError
from thalweg.indexed_slices import IndexedSlices
from thalweg.v1.train.slot_creator import base_name
from thalweg.v1.train.wrapping_optimizer import WrappingOptimizer
from thalweg.variable import name_of


class VariableClippingOptimizer(WrappingOptimizer):
    """Optimizer that runs another optimizer, then scales variables down to a maximum norm.

        var <- var - (var - var max_norm / max(|var|, max_norm))

    The norm is taken over given dimensions: for a matrix, (1,) takes the norm of each row. After a
    sparse gradient only the gradient's rows are clipped, unless the norm is taken over dimension 0.
    Gradients are not clipped.

    Args:
        opt: The wrapped optimizer.
        vars_to_clip_dims: {variable: dimensions of the norm} for variables to clip.
        max_norm: The bound; a number.
        use_locking: See `Optimizer`.
        colocate_clip_ops_with_vars: Accepted for compatibility.
        name: Name of the operation in graph mode.

    Raises:
        InvalidArgumentError: A variable lacks a dimension.

    Differs from:
        TensorFlow clips a row once per repeated index, and so may flip its sign. Sums of squares
        are in float64 here.

    Example:
        >>> from thalweg import Variable
        >>> from thalweg.v1.train import GradientDescentOptimizer
        >>> w = Variable([[3.0, 4.0], [0.0, 1.0]], name="w")
        >>> opt = VariableClippingOptimizer(GradientDescentOptimizer(1.0), {w: [1]}, max_norm=2.5)
        >>> opt.apply_gradients([([[0.0, 0.0], [0.0, 0.0]], w)])
        >>> w.numpy()
        array([[1.5, 2. ],
               [0. , 1. ]], dtype=float32)

    Reference: tf.contrib.opt.VariableClippingOptimizer
    """

    def __init__(
        self,
        opt: object,
        vars_to_clip_dims: Mapping[object, Sequence[int]],
        max_norm: float,
        use_locking: bool = False,
        colocate_clip_ops_with_vars: bool = False,
        name: str = "VariableClipping",
    ) -> None:
        super().__init__(opt, use_locking, name)
        self._dims = [(var, _check_dims(var, dims)) for var, dims in vars_to_clip_dims.items()]
        # Not `<`, which would let NaN pass.
        if not max_norm >= 0:
            raise ValueError(f"max_norm must be 0 or more, not {max_norm}.")
        self._max_norm = float(max_norm)

    def _arguments(self) -> dict[str, object]:
        return {**super()._arguments(), "vars_to_clip_dims": dict(self._dims)}

    def _foreign(self) -> list[object]:
        return [*super()._foreign(), *(var for var, _ in self._dims)]

    def _dims_of(self, var: object) -> list[int] | None:
        return next((dims for variable, dims in self._dims if variable is var), None)

    @untraced
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[object, object]],
        global_step: object = None,
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
    ) -> Any:
        """Apply gradients as `Optimizer.apply_gradients` does, then clip the variables."""
        pairs = as_pairs(grads_and_vars)
        clipped = [(grad, var, self._dims_of(var)) for grad, var in pairs if grad is not None]
        clipped = [(grad, var, dims) for grad, var, dims in clipped if dims is not None]
        step = self._opt.apply_gradients(pairs, global_step=global_step)
        if _graph.executing_eagerly():
            try:
                self._clip([(grad, var, dims, name_of(var)) for grad, var, dims in clipped])
            except BaseException as error:
                add_note(error, ["The step was taken, but the variables were not clipped."])
                raise
            return None
        with _graph.control_dependencies([step]):
            operations = [self._clip_in_graph(*clip_args) for clip_args in clipped]
        return _graph.group(step, *operations, name=name or self._name)

    def _clip(self, updates: Sequence[tuple[object, Any, list[int], str]]) -> None:
        """Clip variables in place, either all or none.

        Args:
            updates: (gradient, variable, dimensions, name for errors) tuples.
        """
        with self._turn_lock(), self._locked(), no_grad():
            atomic_section.run(
                [
                    _clip_call(as_gradient(grad, var, name), var, dims, self._max_norm)
                    for grad, var, dims, name in updates
                ]
            )

    def _clip_in_graph(self, grad: object, var: object, dims: list[int]) -> object:
        """Return a graph operation that clips `var` over `dims`.

        A run in which `grad` evaluates to None does not clip.
        """
        variable = _graph.graph_variable_of(var)
        name = variable.name

        def clip_leaf(grad: object, leaf: Tensor) -> None:
            if grad is not None:
                self._clip([(grad, leaf, dims, name)])

        inputs = [grad, _graph.by_reference(variable)]
        return _graph.operation(clip_leaf, inputs, f"clip_{base_name(variable)}", kind="update")


def _check_dims(var: object, dims: Sequence[int]) -> list[int]:
    """Return `dims` as a list in which negative dimensions are replaced by dimensions >= 0.

    If the rank of `var` is unknown, return `dims` unchecked as a list. Raise InvalidArgumentError
    if `var` lacks a dimension.
    """
    shape = _graph.handle_of(var).shape
    dim_list = list(dims)
    # The shape of a graph's variable may be unknown until the variable has a value.
    if shape is UNKNOWN:
        return dim_list
    rank = len(shape)
    for dim in dim_list:
        if not -rank <= dim < rank:
            raise InvalidArgumentError(
                f"Cannot clip '{base_name(var)}' over dimension {dim}: it has {rank} dimensions."
            )
    return [dim % rank for dim in dim_list]


def _clip_call(
    grad: Tensor | IndexedSlices, var: Tensor, dims: list[int], max_norm: float
) -> atomic_section.Call:
    """Compute the clipped value now; return a function that writes it into `var`.

    With a sparse `grad`, only the rows of its indices are clipped, unless `dims` contains 0.
    """
    detached = var.detach()
    if isinstance(grad, IndexedSlices) and 0 not in dims:
        # Unique: with repeated indices `index_copy_` is not deterministic.
        rows = torch.unique(grad.indices.long())
        return partial(detached.index_copy_, 0, rows, _clip_by_norm(detached[rows], dims, max_norm))
    return partial(detached.copy_, _clip_by_norm(detached, dims, max_norm))


def _clip_by_norm(tensor: Tensor, dims: list[int], max_norm: float) -> Tensor:
    squares = tensor.double().square()
    # torch sums over all dimensions for [].
    total = squares.sum(dims, keepdim=True) if dims else squares
    norm = total.sqrt().to(tensor.dtype)
    # The order of operations is TensorFlow's; clamp() keeps NaN, as its maximum does.
    return tensor - (tensor - tensor * max_norm / norm.clamp(min=max_norm))
