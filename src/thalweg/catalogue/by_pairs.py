"""Optimizers of torch's kind, given gradients and variables as all others are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from thalweg import optim
from thalweg.errors import NotFoundError
from thalweg.formula import Rule
from thalweg.indexed_slices import IndexedSlices

if TYPE_CHECKING:
    from thalweg.diagnostics import Diagnostics


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
        self._made: list[Any] = []  # at the first step
        self._matrices: set[int] | None = None
        self._measured: dict[str, Any] = {}
        self._names: dict[int, str] = {}

    @property
    def is_of_matrices(self) -> bool:
        """Whether its class takes matrices alone, so that AdamW has all other variables."""
        return getattr(self.made_of, "_of_matrices", False) or self.made_of.__name__ == "Muon"

    def choose_matrices(self, variables: Iterable[Any]) -> None:
        """Say which variables a class of matrices has; else it has all of two or more dimensions.

        Args:
            variables: Those, such as the hidden matrices of a model; before the first step.
        """
        self._matrices = {id(var) for var in variables}

    @property
    def is_measurable(self) -> bool:
        """Whether its steps can be measured, as those of the library's own classes."""
        return hasattr(self.made_of, "diagnostics")

    def measure(self, diagnostics: Diagnostics, named: Iterable[tuple[str, Any]]) -> None:
        """Have steps measured; before the first one.

        Args:
            diagnostics: Which steps, and who is given the tables.
            named: The variables, with the names that tables have for them.
        """
        self._measured = {"diagnostics": diagnostics}
        self._names = {id(var): name for name, var in named}

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Have variables be what they are to be evaluated with: their means, if schedule-free."""
        with ExitStack() as stack:
            for made in self._made:
                if getattr(made, "_has_means", False):
                    stack.enter_context(made.swapped())
            yield

    def variables(self) -> list[torch.Tensor]:
        """The tensors of its state."""
        states = chain.from_iterable(made.state.values() for made in self._made)
        own = chain.from_iterable(state.values() for state in states)
        return [each for each in own if isinstance(each, torch.Tensor)]

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> None:
        """Take a step with these gradients, which the variables have as their own from then on."""
        pairs = list(grads_and_vars)
        for grad, var in pairs:
            var.grad = _as_torchs(grad)
        if not self._made:
            self._made = self._make([var for _, var in pairs])
        for made in self._made:
            made.step()

    def _make(self, variables: list[Any]) -> list[Any]:
        """What takes a step: AdamW has the variables that a class for matrices does not take."""
        made_of, options = self.made_of, {"lr": self.learning_rate, **self._options}
        if getattr(made_of, "_of_matrices", False):
            own, others = self._split(variables, lambda var: var.dim() > 1)
            # Problems have kernels of Conv1d, and no stacks of matrices.
            matrices = {"params": self._name(own), "rule": made_of, "heads": 1, **options}
            rest = {"params": self._name(others), "rule": "AdamW", "lr": self.learning_rate}
            groups = [group for group in (matrices, rest) if group["params"]]
            return [optim.Mixed(groups, **self._measured)]
        if made_of.__name__ != "Muon":
            return [made_of(self._name(variables), **options, **self._measured)]
        flat, others = self._split(variables, lambda var: var.dim() == 2)
        kinds = ((made_of, flat, options), (torch.optim.AdamW, others, {"lr": options["lr"]}))
        return [kind(own, **given) for kind, own, given in kinds if own]

    def _name(self, variables: list[Any]) -> list[Any]:
        """Variables with their names, where tables need them."""
        if not self._names:
            return variables
        return [(self._names[id(var)], var) for var in variables]

    def _split(
        self, variables: list[Any], fits: Callable[[Any], bool]
    ) -> tuple[list[Any], list[Any]]:
        """The matrices, and all others."""
        chosen = {id(var) for var in variables if fits(var)}
        if self._matrices is not None:
            chosen &= self._matrices
        others = [var for var in variables if id(var) not in chosen]
        return [var for var in variables if id(var) in chosen], others

    def _choose_rule(self) -> Rule:
        """The rule that it runs, or that torch's own is like."""
        if self.rule is None:
            raise NotFoundError(f"{self.made_of.__name__} of torch has no rule in this library.")
        return self.rule


def by_pairs(cls: type[object], rule: Rule | None) -> type[ByPairs]:
    """The class that makes optimizers of a class of torch's kind."""
    own = {"made_of": cls, "rule": rule, "__module__": cls.__module__}
    return type(cls.__name__, (ByPairs,), own)


def _as_torchs(grad: object) -> Any:
    if isinstance(grad, IndexedSlices):
        values = grad.values
        return torch.sparse_coo_tensor(
            grad.indices[None], values, grad.dense_shape, dtype=values.dtype, device=values.device
        )
    return grad
