"""Gradients of a loss: `minimize`, `get_gradients` and `get_updates`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from thalweg._base.execution_context import is_deferred, is_symbolic
from thalweg._base.tracing import untraced
from thalweg._core.grads_and_vars import check_variables, flatten, refuse_no_variables
from thalweg._core.graph_mode import graph_mode
from thalweg.autodiff import GradientTape, gradients_of
from thalweg.errors import NumericsWarning, warn
from thalweg.variable import is_frozen, is_variable, titles_of


class Differentiation:
    """Mixin of `Optimizer` that computes gradients."""

    apply_gradients: Callable[..., Any]
    _waited_for: Callable[[], AbstractContextManager[None]]

    @untraced
    def minimize(
        self,
        loss: Callable[[], Tensor] | Tensor,
        var_list: object = None,
        grad_loss: Tensor | None = None,
        name: str | None = None,
        tape: GradientTape | None = None,
    ) -> Any:
        """Compute the gradients of a loss and apply them.

        Args:
            loss: A callable without arguments that returns the value to minimize, or a tensor
                computed under `tape`; in graph mode also a symbolic tensor.
            var_list: Required. List or tuple of variables, possibly nested, or a callable that
                returns a list. The callable is called after `loss`. Variables frozen by
                `requires_grad_(False)` do not change.
            grad_loss: Optional. Weights for the elements of the loss, of the loss's shape.
            name: Name of the operation in graph mode; eager steps have none.
            tape: Required when `loss` is a tensor in eager mode.

        Returns:
            `iterations`, or None if `var_list` is empty. In graph mode, the operation that takes
            the step.

        Raises:
            ValueError: The loss is a tensor and there is no tape; no variable has a gradient.
            TypeError: There is no `var_list`, or an element of it is not a variable.
        """
        with self._waited_for():
            pairs = self._compute_gradients(loss, var_list, grad_loss=grad_loss, tape=tape)
        if not pairs and isinstance(var_list, Iterator):
            warn(
                "minimize was given an iterator that has no variables (any more), so nothing is"
                " trained. model.parameters() is used up by its first use: give"
                " list(model.parameters()).",
                NumericsWarning,
            )
        return self.apply_gradients(pairs, name=name)

    def _transform_loss(self, loss: Tensor) -> Tensor:
        """Hook: return the loss to differentiate, by default unchanged."""
        return loss

    def _get_gradients(
        self, tape: GradientTape, loss: Tensor, var_list: list[Tensor], grad_loss: Tensor | None
    ) -> list[tuple[Any, Tensor]]:
        """Hook: return pairs of gradient and variable for a loss recorded on a tape."""
        return list(zip(tape.gradient(loss, var_list, grad_loss), var_list, strict=True))

    @untraced
    def _compute_gradients(
        self,
        loss: Callable[[], Tensor] | Tensor,
        var_list: object,
        grad_loss: Tensor | None = None,
        tape: GradientTape | None = None,
    ) -> list[tuple[Any, Tensor]]:
        """Hook of `minimize`: return a list of (gradient or None, variable) pairs for a loss.

        Arguments are those of `minimize`. Without `tape`, a new tape records a callable loss.
        Frozen variables are not watched.
        """
        refuse_no_variables(var_list)
        if is_deferred(loss):
            symbol = graph_mode().variable_of(loss)
            value = self._transform_loss(symbol if is_symbolic(symbol) else symbol())
            variables = flatten(var_list() if callable(var_list) else var_list)
            return graph_mode().gradients(value, variables, grad_loss) if variables else []
        is_tensor = isinstance(loss, Tensor)
        if is_tensor and tape is None:
            raise ValueError(
                "`tape` is required when a `Tensor` loss is passed. Pass a function that computes"
                " the loss, or the tape that recorded it."
            )
        tape = tape or GradientTape()
        if not callable(var_list):
            var_list = flatten(var_list)
            _check_sources(var_list)
        if isinstance(loss, Tensor):
            value = self._transform_loss(loss)
        else:
            with tape:
                # A callable is called after the loss, which may create the variables.
                if not callable(var_list):
                    tape.watch([x for x in var_list if not (is_variable(x) and is_frozen(x))])
                value = self._transform_loss(loss())
        if callable(var_list):
            var_list = flatten(var_list())
            _check_sources(var_list)
        return self._get_gradients(tape, value, var_list, grad_loss) if var_list else []

    @untraced
    def get_gradients(self, loss: Tensor, params: Sequence[Tensor]) -> list[Any]:
        """Return a list of the gradients of `loss`, one per variable of `params`, without clipping.

        Raises:
            ValueError: A variable has no gradient.

        Differs from:
            TensorFlow works in graph mode only. Here `loss` may also be any tensor that autograd
            tracks.
        """
        variables = flatten(params)
        if is_deferred(loss):
            gradients = [grad for grad, _ in graph_mode().gradients(loss, variables, None)]
        else:
            gradients = gradients_of(loss, variables)
        for grad, name in zip(gradients, titles_of(variables), strict=True):
            if grad is None:
                raise ValueError(
                    f"Variable {name} has `None` for gradient. Please make sure that all of your"
                    " ops have a gradient defined (i.e. are differentiable)."
                )
        return gradients

    @untraced
    def get_updates(self, loss: Tensor, params: Sequence[Tensor]) -> list[Any]:
        """Take a step with the gradients of a loss tensor; return the result in a list.

        The result is that of `apply_gradients`: `iterations`, or in graph mode an operation.
        """
        gradients = self.get_gradients(loss, params)
        return [self.apply_gradients(zip(gradients, flatten(params), strict=True))]


def _check_sources(sources: Sequence[object]) -> None:
    """Raise TypeError for a source that is neither a variable nor a tensor."""
    # Plain tensors have gradients, too, as in TensorFlow; only a step needs variables.
    check_variables([x for x in sources if is_variable(x) or not isinstance(x, Tensor)])
