"""Optimizers in torch's form behind `apply_gradients`, which all others have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from thalweg import optim
from thalweg.errors import NotFoundError
from thalweg.formula import Rule
from thalweg.indexed_slices import IndexedSlices

if TYPE_CHECKING:
    from thalweg.diagnostics import Diagnostics


class ApplyGradientsAdapter:
    """An optimizer in torch's form, made by `begin`, or with the variables of its first step.

    Args:
        learning_rate: Its `lr`; None takes its default.
        options: Its other arguments.

    Attributes:
        made_of: The class, or a function that makes the optimizer.
        rule: The rule of the class, if it has one.
    """

    made_of: Callable[..., Any]
    rule: Rule | None = None
    rate_argument = "lr"

    def __init__(self, learning_rate: float | None, **options: object) -> None:
        self.learning_rate, self._options = learning_rate, options
        self._made: list[Any] = []
        self._matrices: set[int] | None = None
        self._measured: dict[str, Any] = {}
        self._names: dict[int, str] = {}

    @property
    def is_of_matrices(self) -> bool:
        """True for a class that takes matrices alone, so that AdamW has all other variables."""
        return self._is_mixed or self._is_muon

    @property
    def _is_mixed(self) -> bool:
        return getattr(self.made_of, "_of_matrices", False)

    @property
    def _is_muon(self) -> bool:
        return isinstance(self.made_of, type) and self.made_of.__name__ == "Muon"

    def choose_matrices(self, variables: Iterable[Any]) -> None:
        """Choose the variables of a class of matrices; the default is all matrices.

        Args:
            variables: The matrices, such as the hidden ones of a model; before the first step.
        """
        self._matrices = {id(var) for var in variables}

    @property
    def is_measurable(self) -> bool:
        """True if its steps can be measured, as those of the library's own classes."""
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
        """Give variables the values to evaluate: their means, if the optimizer is schedule-free."""
        with ExitStack() as stack:
            for made in self._made:
                if getattr(made, "_has_means", False):
                    stack.enter_context(made.swapped())
                elif _has_modes(made):
                    made.eval()
                    stack.callback(made.train)
            yield

    def variables(self) -> list[torch.Tensor]:
        """Return the tensors of its state."""
        states = chain.from_iterable(made.state.values() for made in self._made)
        own = chain.from_iterable(state.values() for state in states)
        return [each for each in own if isinstance(each, torch.Tensor)]

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> None:
        """Take a step with these gradients, which the variables keep as their `grad`."""
        pairs = list(grads_and_vars)
        for grad, var in pairs:
            var.grad = _as_torchs(grad)
        if not self._made:
            self._begin([var for _, var in pairs])
        for made in self._made:
            made.step()

    def begin(self, model: nn.Module) -> None:
        """Make the optimizer of all parameters of a model, before the first step."""
        self._begin(list(model.parameters()))

    def _begin(self, variables: list[Any]) -> None:
        self._made = self._make(variables)
        for made in self._made:
            if _has_modes(made):
                made.train()

    @property
    def _rate(self) -> dict[str, Any]:
        return {} if self.learning_rate is None else {self.rate_argument: self.learning_rate}

    def _make(self, variables: list[Any]) -> list[Any]:
        """Make the optimizers that take a step.

        AdamW has the variables that a class of matrices does not take.
        """
        made_of, options = self.made_of, {**self._rate, **self._options}
        if self._is_mixed:
            own, others = self._split(variables, lambda var: var.dim() > 1)
            # Problems have kernels of Conv1d, and no stacks of matrices.
            matrices = {"params": self._name(own), "rule": made_of, "heads": 1, **options}
            rest = {"params": self._name(others), "rule": "AdamW", **self._rate}
            groups = [group for group in (matrices, rest) if group["params"]]
            return [optim.Mixed(groups, **self._measured)]
        if not self._is_muon:
            made = made_of(self._name(variables), **options, **self._measured)
            return list(made) if isinstance(made, list | tuple) else [made]
        flat, others = self._split(variables, lambda var: var.dim() == 2)
        kinds = ((made_of, flat, options), (torch.optim.AdamW, others, self._rate))
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


def _has_modes(made: object) -> bool:
    """Return True for an optimizer with the modes `train` and `eval`, as schedule-free ones."""
    return callable(getattr(made, "train", None)) and callable(getattr(made, "eval", None))


def by_pairs(cls: type[object], rule: Rule | None) -> type[ApplyGradientsAdapter]:
    """Return the class that makes optimizers of a class in torch's form."""
    own = {"made_of": cls, "rule": rule, "__module__": cls.__module__}
    return type(cls.__name__, (ApplyGradientsAdapter,), own)


def _as_torchs(grad: object) -> Any:
    if isinstance(grad, IndexedSlices):
        values = grad.values
        return torch.sparse_coo_tensor(
            grad.indices[None], values, grad.dense_shape, dtype=values.dtype, device=values.device
        )
    return grad
