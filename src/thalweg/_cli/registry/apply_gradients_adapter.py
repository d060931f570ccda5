"""Adapter of optimizers with torch's interface to `apply_gradients`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from thalweg import optim
from thalweg.errors import NotFoundError
from thalweg.formula import Rule
from thalweg.indexed_slices import IndexedSlices

if TYPE_CHECKING:
    from thalweg.diagnostics import Diagnostics


class ApplyGradientsAdapter:
    """Adapter of a torch-style optimizer, which is built by `begin` or at the first step.

    Args:
        learning_rate: The argument `lr`; None means the class's default.
        options: The other arguments.

    Attributes:
        factory: The class, or a function that builds the optimizer.
        rule: The rule of the class, or None.
    """

    factory: Callable[..., Any]
    rule: Rule | None = None
    rate_argument = "lr"

    def __init__(self, learning_rate: float | None, **options: object) -> None:
        self.learning_rate, self._options = learning_rate, options
        self._optimizers: list[Any] = []
        self._matrices: set[int] | None = None
        self._diagnostics_options: dict[str, Any] = {}
        self._names: dict[int, str] = {}

    @property
    def is_of_matrices(self) -> bool:
        """Return True for a class that updates matrices. AdamW then updates other variables."""
        return self._is_mixed or self._is_muon

    @property
    def _is_mixed(self) -> bool:
        return getattr(self.factory, "_of_matrices", False)

    @property
    def _is_muon(self) -> bool:
        return isinstance(self.factory, type) and self.factory.__name__ == "Muon"

    def choose_matrices(self, variables: Iterable[Any]) -> None:
        """Select the matrices for a class that updates matrices. The default is all matrices.

        Args:
            variables: The matrices, such as hidden layers. Call this method before the first step.
        """
        self._matrices = {id(var) for var in variables}

    @property
    def is_measurable(self) -> bool:
        """Return True if the class can record diagnostics, such as classes of thalweg.optim."""
        return hasattr(self.factory, "diagnostics")

    def measure(self, diagnostics: Diagnostics, names_and_vars: Iterable[tuple[str, Any]]) -> None:
        """Record diagnostics of all steps. Call this method before the first step.

        Args:
            diagnostics: The diagnostics, with interval and sinks.
            names_and_vars: (name in tables, variable) pairs.
        """
        self._diagnostics_options = {"diagnostics": diagnostics}
        self._names = {id(var): name for name, var in names_and_vars}

    @contextmanager
    def evaluated(self) -> Generator[None]:
        """Replace variables by the averages of schedule-free optimizers in a `with` block."""
        with ExitStack() as stack:
            for optimizer in self._optimizers:
                if getattr(optimizer, "_has_means", False):
                    stack.enter_context(optimizer.swapped())
                elif _has_modes(optimizer):
                    optimizer.eval()
                    stack.callback(optimizer.train)
            yield

    def variables(self) -> list[torch.Tensor]:
        """Return the tensors of the state."""
        states = chain.from_iterable(optimizer.state.values() for optimizer in self._optimizers)
        entries = chain.from_iterable(state.values() for state in states)
        return [entry for entry in entries if isinstance(entry, torch.Tensor)]

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> None:
        """Set `grad` of each variable to its gradient, and take a step."""
        pairs = list(grads_and_vars)
        for grad, var in pairs:
            var.grad = _as_torchs(grad)
        if not self._optimizers:
            self._begin(self._make([var for _, var in pairs]))
        for optimizer in self._optimizers:
            optimizer.step()

    def begin(self, model: nn.Module) -> None:
        """Build the optimizer from all parameters of a model, before the first step."""
        self._begin(self._make(list(model.parameters())))

    def _begin(self, optimizers: list[Any]) -> None:
        self._optimizers = optimizers
        for optimizer in self._optimizers:
            if _has_modes(optimizer):
                optimizer.train()

    @property
    def _rate(self) -> dict[str, Any]:
        return {} if self.learning_rate is None else {self.rate_argument: self.learning_rate}

    def _make(self, variables: list[Any]) -> list[Any]:
        """Return new optimizers. A matrix rule updates only matrices; AdamW updates the rest."""
        factory: Any = self.factory
        options: dict[str, Any] = {**self._rate, **self._options}
        if self._is_mixed:
            members, remaining = self._split(variables, lambda var: var.dim() > 1)
            # Three-dimensional parameters are kernels of Conv1d, not stacks of matrices.
            matrix_group = {"params": self._name(members), "rule": factory, "heads": 1, **options}
            adamw_group = {"params": self._name(remaining), "rule": "AdamW", **self._rate}
            groups = [group for group in (matrix_group, adamw_group) if group["params"]]
            return [optim.Mixed(groups, **self._diagnostics_options)]
        if not self._is_muon:
            return self._call_factory(self._name(variables), **self._diagnostics_options)
        flat, remaining = self._split(variables, lambda var: var.dim() == 2)
        kinds = ((factory, flat, options), (torch.optim.AdamW, remaining, self._rate))
        return [cls(members, **arguments) for cls, members, arguments in kinds if members]

    def _call_factory(self, params_or_model: object, **options: Any) -> list[Any]:
        """Call `factory` with the arguments of this adapter; return one or several optimizers."""
        product = self.factory(params_or_model, **self._rate, **self._options, **options)
        return [*cast("list[Any]", product)] if isinstance(product, list | tuple) else [product]

    def _name(self, variables: list[Any]) -> list[Any]:
        """Return (name, variable) pairs if diagnostics need names, else `variables`."""
        if not self._names:
            return variables
        return [(self._names[id(var)], var) for var in variables]

    def _split(
        self, variables: list[Any], is_matrix: Callable[[Any], bool]
    ) -> tuple[list[Any], list[Any]]:
        """Return (matrices that the matrix rule updates, all further variables)."""
        matrix_ids = {id(var) for var in variables if is_matrix(var)}
        if self._matrices is not None:
            matrix_ids &= self._matrices
        remaining = [var for var in variables if id(var) not in matrix_ids]
        return [var for var in variables if id(var) in matrix_ids], remaining

    def _choose_rule(self) -> Rule:
        """Return the rule of the class, or raise `NotFoundError`."""
        if self.rule is None:
            raise NotFoundError(f"{self.factory.__name__} of torch has no rule in this library.")
        return self.rule


def _has_modes(optimizer: object) -> bool:
    """Return True for an optimizer with `train` and `eval`, such as schedule-free ones."""
    return callable(getattr(optimizer, "train", None)) and callable(
        getattr(optimizer, "eval", None)
    )


def by_pairs(cls: type[object], rule: Rule | None) -> type[ApplyGradientsAdapter]:
    """Return a subclass of the adapter for a class with torch's interface."""
    attributes = {"factory": cls, "rule": rule, "__module__": cls.__module__}
    return type(cls.__name__, (ApplyGradientsAdapter,), attributes)


def _as_torchs(grad: object) -> Any:
    if isinstance(grad, IndexedSlices):
        values = grad.values
        return torch.sparse_coo_tensor(  # pyright: ignore[reportUnknownMemberType]
            grad.indices[None], values, grad.dense_shape, dtype=values.dtype, device=values.device
        )
    return grad
