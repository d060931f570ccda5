"""Optimizers of torch's kind, given gradients and variables as all others are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch

from thalweg.errors import NotFoundError
from thalweg.formula import Rule
from thalweg.indexed_slices import IndexedSlices


class ByPairs:
    """An optimizer of `torch.optim` or `thalweg.optim`, made with the variables of its first step.

    Args:
        learning_rate: Its `lr`.
        options: Its other arguments.
    """

    made_of: ClassVar[type[Any]]
    rule: ClassVar[Rule | None]

    def __init__(self, learning_rate: float, **options: object) -> None:
        self.learning_rate, self._options = learning_rate, options
        self._made: Any = None

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> None:
        """Take a step with these gradients, which the variables have as their own from then on."""
        pairs = list(grads_and_vars)
        for grad, var in pairs:
            var.grad = _as_torchs(grad)
        if self._made is None:
            variables = [var for _, var in pairs]
            self._made = self.made_of(variables, lr=self.learning_rate, **self._options)
        self._made.step()

    def _choose_rule(self) -> Rule:
        """The rule that it runs, or that torch's own is like."""
        if self.rule is None:
            raise NotFoundError(f"{self.made_of.__name__} of torch has no rule in this library.")
        return self.rule


def by_pairs(cls: type[Any], rule: Rule | None) -> type[ByPairs]:
    """The class that makes optimizers of a class of torch's kind."""
    own = {"made_of": cls, "rule": rule, "__module__": cls.__module__}
    return type(cls.__name__, (ByPairs,), own)


def _as_torchs(grad: object) -> Any:
    if isinstance(grad, IndexedSlices):
        return torch.sparse_coo_tensor(grad.indices[None], grad.values, grad.dense_shape)
    return grad
