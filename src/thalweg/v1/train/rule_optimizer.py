"""`RuleOptimizer`: a v1 optimizer whose arithmetic is a `Rule`, fused into one pass over memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from thalweg import getters, scalars
from thalweg.core.hyperparameters import is_function, is_number
from thalweg.core.outcome import constrain, raise_first
from thalweg.core.pairs import Pair
from thalweg.core.pipeline import NOTHING, Pipeline
from thalweg.core.step import Copies, Dtype, Plans, Stepper, check_pairs, derived, scatters
from thalweg.core.sweeps import SkippedStep, Sweep
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.formula import Rule
from thalweg.graph import current_session, is_symbolic
from thalweg.indexed_slices import IndexedSlices
from thalweg.v1.train.optimizer import Optimizer, is_global_step
from thalweg.variable import name_of, titles_of, to_tensor, variable_constraint

_UPDATES = (
    "_apply_dense",
    "_resource_apply_dense",
    "_apply_sparse",
    "_resource_apply_sparse",
    "_apply_sparse_duplicate_indices",
    "_resource_apply_sparse_duplicate_indices",
)


class RuleOptimizer(Optimizer):
    """Runs an update rule behind TensorFlow 1's interface.

    A subclass names its hyperparameters; `_rule` chooses the rule of a step.

    Attributes:
        HYPERS: The attribute that holds each hyperparameter of the rule as it was given.
        TENSORS: Names under which TensorFlow's optimizer of this name keeps the hyperparameters
            of a step as tensors, for subclasses that read them.
        CALLABLES: Whether hyperparameters may be callables without arguments.
    """

    HYPERS: dict[str, str] = {}
    TENSORS: dict[str, str] = {}
    CALLABLES = True
    _APPLIES = Optimizer.apply_gradients  # what `apply_in_sweeps` may stand for

    def __init__(self, use_locking: bool, name: str) -> None:
        super().__init__(use_locking, name)
        self._values: dict[str, Any] = {}
        self._plans = Plans()
        self._sweep: Sweep | None = None  # of the step that is being taken
        self._copies: Copies = None

    def _rule(self) -> Rule:
        """The rule of this step."""
        raise NotImplementedError

    def _slot_fills(self) -> Iterable[tuple[str, float, str]]:
        """For each slot, in order of creation: name, initial value, last part of its own name."""
        return [(slot.name, slot.initial, self._name) for slot in self._rule().slots]

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        # A graph lists variables in their order of creation: TensorFlow goes variable by variable.
        is_deferred = any(is_symbolic(var) for var in var_list)
        for variables in [[var] for var in var_list] if is_deferred else [var_list]:
            for name, value, part in self._slot_fills():
                self._fill_slots(variables, value, name, part)

    def _prepare(self) -> None:
        if current_session() is None:
            self._values = self._evaluated()

    def _evaluated(self) -> dict[str, Any]:
        """The hyperparameters of a step by their names in the rule, callables called."""
        values = {}
        for name, attribute in self.HYPERS.items():
            given = getattr(self, attribute)
            if is_function(given) and not self.CALLABLES:
                raise ValueError(
                    f"{type(self).__name__} takes numbers and tensors as {attribute.lstrip('_')},"
                    f" not the callable {given!r}."
                )
            values[name] = self._called(given)
            _check_scalar(attribute, values[name])
        return values

    def _called(self, given: Any) -> Any:
        return given() if is_function(given) else given

    def _captured(self) -> list[Any]:
        # As in TensorFlow, callables are called when the graph is built.
        return list(self._evaluated().values())

    def _restore_captured(self, values: list[Any]) -> None:
        self._values = dict(zip(self.HYPERS, values, strict=True))

    def _scalars(self, dtype: Dtype) -> dict[str, Any]:
        """The hyperparameters of this step as scalars of a compute dtype."""
        return {name: scalars.as_scalar(value, dtype) for name, value in self._values.items()}

    def _rule_scalars(self, dtype: Dtype) -> dict[str, Any]:
        return derived(self._rule(), self._scalars(dtype), dtype, 1)

    def __getattr__(self, name: str) -> Any:
        hyper = type(self).TENSORS.get(name)
        values = self.__dict__.get("_values")
        if hyper is None or values is None:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return to_tensor(values[hyper])

    def _pipeline(self, variables: Sequence[Tensor], gradients: Sequence[Any]) -> Pipeline:
        """What happens to the gradients of a step before the rule: nothing, unless overridden."""
        return NOTHING

    def _gradients_to_rule(self, variables: Sequence[Tensor], gradients: Sequence[Any]) -> Pipeline:
        own = self._pipeline(variables, gradients)
        return own if self._sweep is None else replace(self._sweep, inner=own)

    def can_sweep(self, pairs: Sequence[Pair]) -> bool:
        """Whether `apply_in_sweeps` can take a step of these gradients and variables."""
        gradients, variables = [grad for grad, _ in pairs], [var for _, var in pairs]
        return (
            set(map(type, gradients)) == {Tensor}
            and set(map(getters.layout, gradients)) == {torch.strided}
            and set(map(getters.dtype, variables)) == {torch.float32}
            and all(constraint is None for constraint in map(variable_constraint, variables))
            and len(set(map(id, variables))) == len(variables)
            and self.sweeps()
        )

    def sweeps(self) -> bool:
        """Whether steps of this optimizer can: nothing of a subclass's comes between."""
        return (
            type(self).apply_gradients is type(self)._APPLIES
            and "apply_gradients" not in vars(self)
            and not self._one_by_one()
        )

    def apply_in_sweeps(
        self, pairs: Sequence[Pair], sweep: Sweep, copies: Copies, global_step: Any
    ) -> bool | None:
        """Apply raw gradients that are processed inside the update; eagerly, or as a session runs.

        Args:
            pairs: Dense gradients, of float32 or a 16-bit type, and float32 variables.
            sweep: What happens to the gradients.
            copies: For each variable a tensor of a 16-bit type that is set to it, or None.
            global_step: A variable that is raised by 1 if the step is taken, or None.

        Returns:
            Whether the step was taken: False if `sweep.decide` had it skipped, and nothing but
            what that function changed has changed; None if `can_sweep` does not hold.
        """
        if not self.sweeps():
            return None
        with self._locked():
            self._sweep, self._copies = sweep, copies
            try:
                # What repeats a swept step can be swept.
                if not self._repeats(pairs, global_step):
                    if not self.can_sweep(pairs):
                        return None
                    self._apply_eagerly(list(pairs), global_step, self._name)
            except SkippedStep:
                return False
            finally:
                self._sweep = self._copies = None
        return True

    def _check(self, pairs: list[Pair]) -> None:
        titles = titles_of([var for _, var in pairs])
        narrow = self._sweep is not None
        check_pairs(pairs, titles, scatter=self._scatters(), narrow=narrow)

    def _scatters(self) -> bool:
        return scatters(self._rule())

    def _one_by_one(self, pairs: Sequence[Pair] = ()) -> bool:
        """Whether each pair is updated on its own: for a subclass's hook, or because a constraint
        comes between two updates of a variable.
        """
        if any(getattr(type(self), name) is not getattr(RuleOptimizer, name) for name in _UPDATES):
            return True
        constrained = [id(var) for _, var in pairs if variable_constraint(var) is not None]
        return len(set(constrained)) < len(constrained)

    def _repeats(self, given: Sequence[tuple[Any, Any]], global_step: Any) -> bool:
        with self._locked():
            plans = self._plans.now()
            if not plans.repeatable or not is_global_step(global_step):
                return False
            gradients, variables = [grad for grad, _ in given], [var for _, var in given]
            prepared = False

            def scalars_of(dtype: Dtype) -> dict[str, Any]:
                nonlocal prepared
                if not prepared:
                    self._prepare()
                    prepared = True
                return self._rule_scalars(dtype)

            shared = plans.together.repeat(
                self._rule(),
                self._gradients_to_rule(variables, gradients),
                variables,
                gradients,
                scalars_of,
                self._selection(),
                calls=self._calls(),
                copies=self._copies,
            )
            if shared is None:
                return False
            raise_first(self._finished(self._name, global_step))
        return True

    def _calls(self) -> bool:
        return any(is_function(getattr(self, attribute)) for attribute in self.HYPERS.values())

    def _apply_pairs(self, pairs: list[Pair]) -> list[BaseException]:
        if self._one_by_one(pairs):
            self._plans.now().forget_others([var for _, var in pairs])
            return super()._apply_pairs(pairs)
        plans = self._plans.now()
        self._step(plans.together, pairs)
        constrained = [var for _, var in pairs if variable_constraint(var) is not None]
        plans.repeatable = not constrained
        return [error for var in constrained for error in constrain(var, name_of(var))]

    def _apply_alone(self, grad: Any, var: Tensor) -> list[BaseException]:
        if self._one_by_one():
            return super()._apply_pairs([(grad, var)])
        self._update(grad, var)
        return constrain(var, name_of(var))

    def _forget_others(self, variables: Sequence[Tensor]) -> None:
        self._plans.now().forget_others(variables)

    def _step(self, stepper: Stepper, pairs: list[Pair]) -> None:
        rule = self._rule()
        names = [slot.name for slot in rule.slots]
        variables = [var for _, var in pairs]
        stepper.take(
            rule,
            self._gradients_to_rule(variables, [grad for grad, _ in pairs]),
            pairs,
            titles_of(variables),
            [self._slots.of(var, names) for var in variables],
            self._rule_scalars,
            self._selection(),
            calls=False,  # `_prepare` has called them
            copies=self._copies,
        )

    def _update(self, grad: Any, var: Tensor) -> None:
        with torch.no_grad():
            self._step(self._plans.now().alone(var), [(grad, var)])

    def _resource_apply_dense(self, grad: Tensor, handle: Any) -> Any:
        self._update(grad, handle)

    def _apply_dense(self, grad: Tensor, var: Any) -> Any:
        self._update(grad, var)

    def _resource_apply_sparse(self, grad: Tensor, handle: Any, indices: Tensor) -> Any:
        self._update(IndexedSlices(grad, indices), handle)

    def _apply_sparse(self, grad: IndexedSlices, var: Any) -> Any:
        self._update(grad, var)

    def _resource_apply_sparse_duplicate_indices(
        self, grad: Tensor, handle: Any, indices: Tensor
    ) -> Any:
        if type(self)._resource_apply_sparse is not RuleOptimizer._resource_apply_sparse:
            super()._resource_apply_sparse_duplicate_indices(grad, handle, indices)
        else:
            self._update(IndexedSlices(grad, indices), handle)

    def _apply_sparse_duplicate_indices(self, grad: IndexedSlices, var: Any) -> Any:
        if type(self)._apply_sparse is not RuleOptimizer._apply_sparse:
            super()._apply_sparse_duplicate_indices(grad, var)
        else:
            self._update(grad, var)


def _check_scalar(name: str, value: Any) -> None:
    """Refuse a hyperparameter that is no scalar.

    Raises:
        InvalidTypeError: It is no number.
        InvalidArgumentError: It has a shape.
    """
    title = name.lstrip("_")
    if not is_symbolic(value) and not is_number(value) and not hasattr(value, "shape"):
        raise InvalidTypeError(f"{title} must be a number, tensor or callable, not {value!r}.")
    if isinstance(value, Tensor) and value.is_complex():
        raise InvalidTypeError(f"{title} must be real, not {value!r}.")
    if is_number(value) and value != value:
        raise InvalidArgumentError(f"{title} is nan.")
    shape = getattr(value, "shape", None)
    if shape is not None and tuple(shape) != ():
        raise InvalidArgumentError(f"{title} must be a scalar, not of shape {tuple(shape)}.")
