"""Penalties on weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.weak import WeakTensorKeyDictionary

from thalweg import _graph
from thalweg._base.context_managers import enable_grad
from thalweg._core.hyperparameters import is_function
from thalweg._core.validation import check_memories
from thalweg.variable import REDUCED, Variable, to_tensor

Regularizer = Callable[[Any], Any]

REGULARIZATION_FUNCTIONS = "REGULARIZATION_FUNCTIONS"

# {float16 or bfloat16 variable: its last regularizer}, by identity and without references.
_eager: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def get_regularization_loss(
    scope: str | None = None, name: str = "total_regularization_loss"
) -> Any:
    """Return the sum of the collection REGULARIZATION_LOSSES, with items cast to float32.

    In graph mode the regularizers of `get_variable` fill the collection. In eager mode the default
    graph has the collection, and an item may be a callable without arguments, which is called each
    time. Add the sum to the loss of `optimize_loss` yourself.

    Args:
        scope: Optional. A regular expression that matches the beginning of an item's name.
        name: Name of the sum in graph mode.

    Returns:
        A float32 tensor of shape (), 0 if the collection is empty.

    Example:
        >>> import thalweg.v1 as tf
        >>> from thalweg import Variable
        >>> w = Variable([1.0, 2.0], name="w")
        >>> key = tf.GraphKeys.REGULARIZATION_LOSSES
        >>> tf.add_to_collection(key, lambda: 0.1 * (w * w).sum())
        >>> get_regularization_loss()
        tensor(0.5000, grad_fn=<AddBackward0>)
        >>> tf.get_collection_ref(key).clear()

    Reference: OpenSeq2Seq, optimizers.optimizers
    """
    losses = _graph.get_collection(_graph.GraphKeys.REGULARIZATION_LOSSES, scope)
    if _graph.executing_eagerly():
        return _sum_losses([loss() if is_function(loss) else to_tensor(loss) for loss in losses])
    if not losses:
        return _graph.constant(0.0, dtype=torch.float32, name=name)
    output = _graph.Output(torch.float32, losses[0].shape)
    return _graph.operation(_sum_losses, [losses], name, kind="pure", outputs=output)


def _sum_losses(losses: Sequence[Tensor]) -> Tensor:
    zero = torch.zeros((), dtype=torch.float32, device="cpu")
    return sum((loss.to(torch.float32) for loss in losses), zero)


def mp_regularizer_wrapper(regularizer: Regularizer) -> Regularizer:
    """Return a regularizer for variables that may be trained in mixed precision.

    Args:
        regularizer: `regularizer(weights)` returns a penalty of shape ().

    Returns:
        A function of weights. For float16 and bfloat16 weights it stores `regularizer` and returns
        None. `MixedPrecisionOptimizerWrapper` then adds the gradient of `regularizer` at the
        float32 master. In graph mode regularizers are stored in the collection
        REGULARIZATION_FUNCTIONS, and several add up. In eager mode only the last regularizer of the
        weights counts; copies of weights have none. For other dtypes the function returns
        `regularizer(weights)`.

    Differs from:
        OpenSeq2Seq does not support bfloat16.

    Reference: OpenSeq2Seq, optimizers.mp_wrapper
    """

    def wrapped(weights: Any) -> object:
        if not _graph.executing_eagerly() and isinstance(weights, torch.nn.Parameter):
            weights = _graph.graph_variable_of(weights)
        if weights.dtype not in REDUCED:
            return regularizer(weights)
        if _graph.is_symbolic(weights):
            with weights.graph.as_default():
                _graph.add_to_collection(REGULARIZATION_FUNCTIONS, (weights, regularizer))
        else:
            _eager[weights] = regularizer
        return None

    return wrapped


def may_have_penalties(variables: Sequence[object]) -> bool:
    """Return True if a variable may have a penalty, by a quick check."""
    if len(_eager) > 0:
        return True
    variable_types = set(map(type, variables)) - {Variable, Parameter, Tensor}
    return bool(variable_types) and any(map(_graph.is_symbolic, variables))


def penalty_gradient(var: Any, master: Tensor) -> Any:
    """Return the gradient of a variable's penalty at `master`; None without a penalty.

    The gradient is symbolic if `var` is symbolic.
    """
    if not _graph.is_symbolic(var):
        regularizer = _eager.get(var)
        return None if regularizer is None else _differentiate_penalty(regularizer, master)
    with var.graph.as_default():
        regularizers = [
            regularizer
            for weights, regularizer in _graph.get_collection(REGULARIZATION_FUNCTIONS)
            if weights is var
        ]
        if not regularizers:
            return None
        # The sum starts with the first penalty, since a start at 0 would add a node to the graph.
        penalty = sum(
            (regularizer(master) for regularizer in regularizers[1:]), regularizers[0](master)
        )
        return _graph.gradients(penalty, [master])[0]


def _differentiate_penalty(regularizer: Regularizer, master: Tensor) -> Tensor | None:
    check_memories([master])
    with enable_grad():
        point = master.detach().requires_grad_()
        penalty = regularizer(point)
    if not (isinstance(penalty, Tensor) and penalty.requires_grad):
        return None
    return torch.autograd.grad(penalty.sum(), point, allow_unused=True)[0]
