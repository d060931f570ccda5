"""Adapters between Keras optimizers and the core step, with hooks called in Keras' order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._base.execution_context import current_session, is_ours, is_symbolic, replicas, resolve
from thalweg._core.atomic_section import Call
from thalweg._core.complex_variables import check_complex
from thalweg._core.grads_and_vars import (
    Gradient,
    Pair,
    as_gradient,
    as_pairs,
    as_real,
    check_variables,
    distinct,
)
from thalweg._core.graph_mode import graph_mode
from thalweg._core.state import making
from thalweg._core.step_adapter import Dtype, Shared, StepAdapter
from thalweg._core.validation import check_memories, check_pairs, check_readable, counting
from thalweg._engines import compute_dtype
from thalweg.distribute.context import enter_update
from thalweg.errors import warn
from thalweg.formula import Rule
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import frozen_among, is_frozen, name_of, titles_of


def rows_of(values: object, indices: object) -> IndexedSlices | None:
    """Return a sparse gradient with rows `values` at `indices`."""
    if is_symbolic(values) or is_symbolic(indices):
        return graph_mode().slices(values, indices)
    return IndexedSlices(values, indices)


def deduplicated(values: object, indices: object) -> tuple[Any, Any]:
    """Return (values, indices) with unique indices; rows of repeated indices are summed.

    Args:
        indices: int32 or int64, of shape (rows,).
    """
    if is_symbolic(values) or is_symbolic(indices):
        return graph_mode().deduplicated(values, indices)
    unique_slices = IndexedSlices(values, indices).deduplicated()
    return unique_slices.values, unique_slices.indices


class ApplyState(dict[tuple[Any, torch.dtype], dict[str, Any]]):
    """Coefficients of a step: {(device or its name, dtype): {name: value}}."""

    def __init__(
        self, coefficients: dict[tuple[object, torch.dtype], dict[str, object]] | None = None
    ) -> None:
        items = (coefficients or {}).items()
        super().__init__({_with_device_name(key): value for key, value in items})

    def __getitem__(self, key: tuple[object, torch.dtype]) -> dict[str, Any]:
        return super().__getitem__(_with_device_name(key))

    def __setitem__(self, key: tuple[object, torch.dtype], value: dict[str, object]) -> None:
        super().__setitem__(_with_device_name(key), value)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(_with_device_name(key))

    def get(self, key: tuple[object, torch.dtype], default: object = None) -> Any:
        """Return the coefficients of a device (or name) and dtype, or `default`."""
        return super().get(_with_device_name(key), default)


def _with_device_name(key: object) -> Any:
    """Return a key (device, ...) with the device as a string; other keys unchanged."""
    return (str(key[0]), *key[1:]) if isinstance(key, tuple) and key else key


def call(hook: Callable[..., Any], args: tuple[object, ...], apply_state: object) -> Any:
    """Call a hook, with `apply_state` unless it lacks this parameter, as in older subclasses."""
    code = getattr(hook, "__code__", None)
    names = () if code is None else code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    # Flag 0x08 of a code object: the hook takes **kwargs.
    if code is None or "apply_state" in names or code.co_flags & 0x08:
        return hook(*args, apply_state=apply_state)
    return hook(*args)


class KerasStepAdapter(StepAdapter):
    """Adapter that calls an optimizer's hooks for one call of `apply_gradients`.

    Args:
        aggregates: True to call the gradient aggregator.
    """

    def __init__(self, optimizer: Any, aggregates: bool) -> None:
        super().__init__()
        self._optimizer, self._aggregates = optimizer, aggregates
        self._names: dict[int, str] = {}
        self._state = ApplyState()
        self.selection = optimizer._selection()

    def _get_variable_name(self, var: Tensor) -> str:
        """Return the name of a variable for messages."""
        return self._names.get(id(var)) or name_of(var)

    def names_of(self, variables: Sequence[Tensor]) -> list[str]:
        """Return the names of variables for messages, in order."""
        return list(map(self._get_variable_name, variables))

    def convert_pairs(self, given: Sequence[tuple[object, object]]) -> list[Pair]:
        """Return the pairs with tensors or `IndexedSlices` as gradients."""
        pairs = as_pairs(given)
        variables = [var for _, var in pairs]
        check_variables(variables)
        names = titles_of(variables)
        self._names = dict(zip(map(id, variables), names, strict=True))
        return self._convert_gradients(with_gradients(pairs, names))

    def _convert_gradients(self, pairs: Iterable[tuple[object, Tensor]]) -> list[Pair]:
        """Return the pairs with tensors or `IndexedSlices` as gradients."""
        return [
            (as_gradient(grad, var, self._get_variable_name(var)), var)
            for grad, var in pairs
            if grad is not None
        ]

    def check_pairs(self, pairs: Sequence[Pair], narrow: bool) -> None:
        """Raise if dtypes, shapes or memory of the pairs are invalid."""
        names = self.names_of([var for _, var in pairs])
        check_pairs(pairs, names, scatter=self._optimizer._scatters(), narrow=narrow)

    def create_state(self, variables: Sequence[Tensor]) -> None:
        """Create `iterations`, hyperparameter variables and slots."""
        # In graph mode, state was created when the graph was built.
        if current_session() is None:
            with making(self._optimizer, variables):
                self._optimizer._create_all_weights(list(variables))

    def read_hypers(self, variables: Sequence[Tensor]) -> None:
        """Call `_prepare` for the coefficients of the step."""
        self._state = self._optimizer._prepare(distinct(variables))

    def transform_pairs(self, pairs: list[Pair]) -> list[Pair]:
        """Return the pairs after the gradient hooks."""
        optimizer = self._optimizer
        if self._aggregates:
            pairs = self._call_hook("_transform_unaggregated_gradients", pairs)
            is_required = optimizer._aggregator is not None or replicas() > 1
            pairs = self._call_hook("_aggregate_gradients", pairs, is_required)
        return self._call_hook("_transform_gradients", pairs, bool(optimizer._transformers))

    def _call_hook(self, hook: str, pairs: list[Pair], is_required: bool = False) -> list[Pair]:
        """Call the hook method named `hook`; return the checked pairs that it returned.

        Create slots of variables that the hook has added. Return `pairs`, without a call, if no
        subclass overrides the hook and `is_required` is False. Raise ValueError if the hook
        returned no gradient.
        """
        optimizer = self._optimizer
        if not (is_required or hook in optimizer._overridden_hooks()):
            return pairs
        # The hook gets a list of its own, which it may change.
        hook_pairs = as_pairs(getattr(optimizer, hook)(list(pairs)))
        check_variables([var for _, var in hook_pairs])
        new_pairs = self._convert_gradients(hook_pairs)
        if not new_pairs:
            raise ValueError("The aggregator or transformer returned no gradients.")
        owner_ids = {id(var) for var in optimizer._slots.owners()}
        new = [var for _, var in new_pairs if id(var) not in owner_ids]
        if owner_ids and new:
            optimizer._create_slots(distinct(new))
        self.check_pairs(new_pairs, False)
        return new_pairs

    def apply_one(self, grad: Gradient, var: Tensor) -> None:
        """Update one variable in place by the optimizer's dense or sparse hook."""
        optimizer = self._optimizer
        with enter_update():
            if isinstance(grad, IndexedSlices):
                optimizer._resource_apply_sparse_duplicate_indices(
                    grad.values, var, grad.indices, apply_state=self._state
                )
            else:
                call(optimizer._resource_apply_dense, (grad, var), self._state)

    def written_tensors(self, variables: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors that hooks may write: variables, slots and weights."""
        optimizer_state: list[Tensor] = []
        for optimizer in self._optimizer._with_inner():
            slots = [slot for var in variables for slot in optimizer._slots.all_of(var).values()]
            optimizer_state += [*slots, *map(resolve, optimizer._added_weights)]
        return [*variables, *optimizer_state]

    def counting_calls(self, shared: Shared) -> list[Call]:
        """Return calls that count the step."""
        return [counting(self._optimizer.iterations)]


class KerasRuleStepAdapter(KerasStepAdapter):
    """Adapter of one call of `apply_gradients` of a `RuleOptimizer`."""

    def __init__(self, optimizer: Any, aggregates: bool) -> None:
        super().__init__(optimizer, aggregates)
        self.calls = optimizer._hyper.calls or optimizer._is_begun_by_users()
        self.repeats = optimizer._may_repeat()
        self._rates: dict[Dtype, float] = {}
        # Scalars computed by users' functions.
        self._scalars_by_dtype: dict[Dtype, dict[str, object]] = {}
        # Variables of the step, set by `read_hypers`.
        self._variables: Sequence[Tensor] = ()

    def step_rule(self) -> Rule:
        """Return the rule of the step."""
        return self._optimizer._choose_rule()

    def slots_of(self, var: Tensor) -> list[Tensor]:
        """Return the slots of a variable, in the order of the rule."""
        optimizer = self._optimizer
        return optimizer._slots.of(var, [slot.name for slot in optimizer._choose_rule().slots])

    def find_common_slots(self) -> list[Sequence[Tensor]]:
        """Return the common slots of each variable that has them."""
        optimizer = self._optimizer
        names = [slot.name for slot in optimizer._choose_rule().common_slots]
        owner_slots = map(optimizer._slots.all_of, optimizer._slots.owners())
        return [
            [slots[n] for n in names] for slots in owner_slots if all(n in slots for n in names)
        ]

    def read_hypers(self, variables: Sequence[Tensor]) -> None:
        """Call users' functions, such as callable hyperparameters, and store their results.

        Call `_prepare` if a subclass overrides a hook that reads coefficients.
        """
        self._variables = variables
        # Only hooks read coefficients: without hooks, no schedule is called for them.
        optimizer = self._optimizer
        if not _COEFFICIENT_HOOKS.isdisjoint(optimizer._overridden_hooks()):
            super().read_hypers(variables)
            self._rates = optimizer._changed_rates(self._state)
        if self.calls:
            for dtype in dict.fromkeys(compute_dtype(var.dtype) for var in variables):
                self._scalars_by_dtype[dtype] = self.scalars_of(dtype, None)

    def check_pairs(self, pairs: Sequence[Pair], narrow: bool) -> None:
        """Raise if dtypes, shapes or memory of the pairs are invalid."""
        unreal = [pair for pair in pairs if pair[1].is_complex()]
        if unreal:
            optimizer = self._optimizer
            titles = self.names_of([var for _, var in unreal])
            check_complex(unreal, titles, optimizer._choose_rule(), bool(optimizer._clipping))
            pairs = [pair for pair in pairs if not pair[1].is_complex()]
        super().check_pairs(pairs, narrow)

    def one_by_one(self, pairs: Sequence[Pair]) -> bool:
        """Return True if hooks of a subclass update variables one by one."""
        return self._optimizer._one_by_one() or any(var.is_complex() for _, var in pairs)

    def scalars_of(self, dtype: Dtype, group: Hashable) -> dict[str, Any]:
        """Return {name: scalar} of the step in a compute dtype."""
        if dtype in self._scalars_by_dtype:
            return self._scalars_by_dtype[dtype]
        rate = self._rates.get(dtype)
        if not self.in_common:
            return self._optimizer._rule_scalars(dtype, rate)
        return self._optimizer._rule_scalars(dtype, rate, self.in_common)

    def counting_calls(self, shared: Shared) -> list[Call]:
        """Return calls that count the step and write optimizer-wide scalars."""
        return [
            *super().counting_calls(shared),
            *self._optimizer._counting_calls(shared, self._variables),
        ]


class KerasHookStepAdapter(KerasRuleStepAdapter):
    """Adapter for a user's hook that updates one variable by the rule within a step."""

    # The outer step applies constraints.
    constrains = False
    sees_all = False

    def __init__(
        self,
        optimizer: object,
        apply_state: ApplyState | None,
        rates: dict[Dtype, float] | None = None,
    ) -> None:
        super().__init__(optimizer, False)
        self._state = apply_state or ApplyState()
        self._rates = rates or {}
        # Rates are fixed if hooks were recorded when a graph was built.
        self._has_fixed_rates = rates is not None
        self.repeats = True

    def read_hypers(self, variables: Sequence[Tensor]) -> None:
        """Read the learning rates that the hook set in `apply_state`, unless they are fixed."""
        if self._has_fixed_rates:
            return
        if not self._state:
            super().read_hypers(variables)
        elif "_prepare_local" in self._optimizer._overridden_hooks():
            self._rates = self._optimizer._changed_rates(self._state)

    def convert_pairs(self, given: Sequence[tuple[Any, Any]]) -> list[Pair]:
        """Return the pairs unchanged: the outer step has converted them."""
        return list(given)

    def check_pairs(self, pairs: Sequence[Pair], narrow: bool) -> None:
        """Check memories and gradients again, which the hook may have changed."""
        variables = [var for _, var in pairs]
        check_memories(variables)
        check_readable([grad for grad, _ in pairs], self.names_of(variables))

    def transform_pairs(self, pairs: list[Pair]) -> list[Pair]:
        """Return the pairs unchanged: the outer step has transformed them."""
        return pairs

    def one_by_one(self, pairs: Sequence[Pair]) -> bool:
        """Return False: the rule updates the variable, not a function of the user."""
        return False


class ComplexHooks(KerasHookStepAdapter):
    """Adapter that updates one complex variable through its view of real numbers."""

    def __init__(
        self,
        optimizer: object,
        apply_state: ApplyState | None,
        var: Tensor,
        rates: dict[Dtype, float] | None = None,
    ) -> None:
        super().__init__(optimizer, apply_state, rates)
        self._var = var

    def names_of(self, variables: Sequence[Tensor]) -> list[str]:
        """Return the name of the complex variable for messages."""
        return super().names_of([self._var])

    def create_state(self, variables: Sequence[Tensor]) -> None:
        """Create the missing state of the complex variable."""
        super().create_state([self._var])

    def slots_of(self, var: Tensor) -> list[Tensor]:
        """Return the slots of the complex variable as real views."""
        return list(map(as_real, super().slots_of(self._var)))


# A subclass that overrides one of these hooks is called pair by pair.
UPDATES = (
    "_resource_apply_dense",
    "_resource_apply_sparse",
    "_resource_apply_sparse_duplicate_indices",
)
_COEFFICIENT_HOOKS = frozenset((*UPDATES, "_prepare", "_prepare_local"))
_HOOKS = (
    *_COEFFICIENT_HOOKS,
    "_decayed_lr",
    "_transform_unaggregated_gradients",
    "_aggregate_gradients",
    "_transform_gradients",
)


def has_hooks(optimizer: Any) -> bool:
    """Return True if a step calls users' functions other than hyperparameters."""
    hooks = [getattr(optimizer, hook) for hook in _HOOKS]
    return not all(map(is_ours, (*hooks, optimizer._aggregator, *optimizer._transformers)))


def with_gradients(pairs: Sequence[tuple[object, object]], names: Sequence[str]) -> list[Any]:
    """Return the pairs whose gradient is not None.

    Warn about missing gradients of variables that are not frozen (`requires_grad_(False)`).

    Raises:
        ValueError: No pair has a gradient.
    """
    missing = [name for (grad, _), name in zip(pairs, names, strict=True) if grad is None]
    if missing and len(missing) == len(pairs):
        hint = frozen_among(var for _, var in pairs)
        raise ValueError(f"No gradients provided for any variable: {missing}.{hint}")
    missing = [
        name
        for (grad, var), name in zip(pairs, names, strict=True)
        if grad is None and not is_frozen(var)
    ]
    if missing:
        warn(
            f"Gradients do not exist for variables {missing} when minimizing the loss.", UserWarning
        )
    return [(grad, var) for grad, var in pairs if grad is not None]
