"""`RuleOptimizer`: an optimizer whose arithmetic is a `Rule`, fused into one pass over memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from thalweg.core.outcome import constrain
from thalweg.core.pairs import Pair, as_pairs
from thalweg.core.pipeline import Clipping
from thalweg.core.step import Plans, Shared, Stepper, check_names, derived, scatters
from thalweg.engines import check_rule, compute_dtype
from thalweg.errors import RuleError
from thalweg.formula import Rule
from thalweg.graph import executing_eagerly
from thalweg.indexed_slices import IndexedSlices
from thalweg.keras.optimizers.hooks import ApplyState
from thalweg.keras.optimizers.optimizer import Optimizer
from thalweg.rules import RULES
from thalweg.variable import variable_constraint

# A subclass that overrides one of these wants to be called pair by pair, or with real gradients.
_UPDATES = (
    "_resource_apply_dense",
    "_resource_apply_sparse",
    "_resource_apply_sparse_duplicate_indices",
    "_apply",
)
_TRANSFORMS = (
    "_transform_unaggregated_gradients",
    "_aggregate_gradients",
    "_transform_gradients",
    "_filtered",
    "_check",
    "_prepare",
    "_prepare_local",
)


class RuleOptimizer(Optimizer):
    """Runs any update rule, the library's or your own, through any engine.

    Args:
        rule: The rule.
        learning_rate: A float, a 0-d tensor, a schedule, or a callable without arguments. None
            takes the rule's default.
        name: Name of the optimizer; the rule's if None.
        **kwargs: The rule's other hyperparameters by name, as numbers, tensors or callables, and
            the keywords of `Optimizer`.

    Raises:
        TypeError: A keyword that is neither.
        RuleError: Names of the rule's scalars mean something else to every optimizer.

    Example:
        >>> from thalweg import Hyper, Rule, Variable, sign
        >>> def update(var, grad, *, learning_rate):
        ...     return (var - learning_rate * sign(grad),)
        >>> rule = Rule(name="SignSGD", update=update, hypers=(Hyper("learning_rate", 0.5),))
        >>> w = Variable([1.0, 2.0], name="w")
        >>> _ = RuleOptimizer(rule).apply_gradients([([3.0, -4.0], w)])
        >>> w.numpy()
        array([0.5, 2.5], dtype=float32)
    """

    def __init__(
        self,
        rule: Rule,
        learning_rate: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(rule, Rule):
            raise TypeError(f"rule must be a thalweg.Rule, not {rule!r}.")
        check_names(rule)
        own = {hyper.name: hyper.default for hyper in rule.hypers}
        reserved = [key for key in own if key in _RESERVED or hasattr(Optimizer, key)]
        if reserved:
            raise RuleError(
                f"Rule {rule.name!r} has hyperparameters named {', '.join(reserved)}, which mean"
                " something else to every optimizer. Rename them."
            )
        given = {key: kwargs.pop(key) for key in list(kwargs) if key in own}
        super().__init__(name or rule.name, **kwargs)
        self.rule = rule
        learning_rate = kwargs.get("lr", learning_rate)
        if learning_rate is not None:
            own["learning_rate"] = learning_rate
        check_rule(rule, {**own, **given})
        for key, value in {**own, **given}.items():
            self._set_hyper(key, value)

    # Plans hold addresses; a copy makes its own.
    _NOT_COPIED = ("_lock", "_plans", "_rates")

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        # Set here, so that a subclass may call Optimizer.__init__ in its own time.
        object.__setattr__(self, "_plans", Plans())
        object.__setattr__(self, "_rates", {})  # learning rates by `_prepare_local`, by dtype
        return self

    def _rule(self) -> Rule:
        """The rule of this step; it may depend on hyperparameters."""
        return self.rule

    def _hyper_scalars(self, dtype: type[np.floating]) -> dict[str, Any]:
        """The rule's hyperparameters of this step as scalars of a compute dtype."""
        values = {
            hyper.name: self._scalar(hyper.name, dtype)
            for hyper in self._rule().hypers
            if hyper.name != "learning_rate"
        }
        if "learning_rate" in self._hyper:
            values["learning_rate"] = self._fused_rate(dtype)
        return values

    def _rule_scalars(self, dtype: type[np.floating]) -> dict[str, Any]:
        """Everything that formulas may ask for in this step, as scalars of a compute dtype."""
        return derived(
            self._rule(), self._hyper_scalars(dtype), dtype, int(self.iterations.item()) + 1
        )

    def _fused_rate(self, dtype: type[np.floating]) -> Any:
        """The learning rate of this step, as a subclass's hooks would have it."""
        if dtype in self._rates:
            return dtype(self._rates[dtype])
        if type(self)._decayed_lr is not Optimizer._decayed_lr:
            kind = torch.float64 if dtype is np.float64 else torch.float32
            return dtype(float(self._decayed_lr(kind)))
        return self._learning_rate(dtype)

    def _slot_initial(self, name: str) -> float:
        """What new slots of this name are filled with."""
        return next(slot.initial for slot in self._rule().slots if slot.name == name)

    def _create_slots(self, var_list: list[Tensor]) -> None:
        for slot in self._rule().slots:
            self._add_slots(var_list, slot.name, self._slot_initial(slot.name))

    def _scatters(self) -> bool:
        return scatters(self._rule())

    def _overrides(self, names: Iterable[str]) -> bool:
        return any(getattr(type(self), name) is not _BUILT_IN.get(name) for name in names)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Tensor]],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        with self._lock, self._hyper:
            try:
                pairs: Any = grads_and_vars if type(grads_and_vars) is list else [*grads_and_vars]
            except TypeError:
                pairs = grads_and_vars  # refused below
            repeatable = self._plans.now().repeatable and executing_eagerly()
            if repeatable and pairs and self._aggregator is None and not self._transformers:
                iterations = self._repeat(pairs)
                if iterations is not None:
                    return iterations
            return self._take(as_pairs(pairs), name, experimental_aggregate_gradients)

    def _repeat(self, pairs: list[tuple[Any, Tensor]]) -> Tensor | None:
        """Take the step if it is the last one with other gradients; None leaves it to be taken."""
        try:
            gradients, variables = [grad for grad, _ in pairs], [var for _, var in pairs]
        except (TypeError, ValueError):
            return None
        shared = self._plans.now().together.repeat(
            self._rule(),
            self._clipping,
            variables,
            gradients,
            self._rule_scalars,
            self._selection(),
            calls=self._hyper.calls,
        )
        if shared is None:
            return None
        self._finish(shared)
        return self.iterations.add_(1)

    def _prepare(self, var_list: Sequence[Tensor]) -> ApplyState:
        # Only hooks read these coefficients; a schedule need not be asked for them otherwise.
        self._rates.clear()
        if not self._overrides((*_UPDATES, "_prepare_local")):
            return {}
        state = super()._prepare(var_list)
        if self._overrides(("_prepare_local",)):
            self._rates.update(self._changed_rates(state))
        return state

    def _changed_rates(self, state: ApplyState) -> dict[type[np.floating], float]:
        """Learning rates that a subclass's `_prepare_local` put in place of the usual ones."""
        found: dict[type[np.floating], float] = {}
        # Of the dtypes that are computed alike, the widest has the least rounded rate.
        for (_, dtype), own in sorted(state.items(), key=lambda item: item[0][1].itemsize):
            if "lr_t" in own and float(own["lr_t"]) != float(self._decayed_lr(dtype)):
                found[compute_dtype(dtype)] = float(own["lr_t"])
        return found

    def _transform_gradients(self, grads_and_vars: list[Pair]) -> Iterable[Pair]:
        # Clipping is part of the fused pass, unless hooks want to see clipped gradients.
        is_asked_for = self._overrides(("_transform_gradients",)) or bool(self._transformers)
        if is_asked_for or self._one_by_one(grads_and_vars):
            return super()._transform_gradients(grads_and_vars)
        return grads_and_vars

    def _one_by_one(self, pairs: list[Pair]) -> bool:
        """Whether each pair is updated on its own: for a subclass's hook, or because a constraint
        comes between two updates of a variable.
        """
        constrained = [id(var) for _, var in pairs if variable_constraint(var) is not None]
        return self._overrides(_UPDATES) or len(set(constrained)) < len(constrained)

    def _apply(self, pairs: list[Pair], apply_state: ApplyState) -> list[BaseException]:
        if self._one_by_one(pairs):
            self._plans.now().forget_others([var for _, var in pairs])
            errors = super()._apply(pairs, apply_state)
            dtypes = dict.fromkeys(compute_dtype(var.dtype) for _, var in pairs)
            self._finish({dtype: self._rule_scalars(dtype) for dtype in dtypes})
            return errors
        clipped = self._transformers or self._overrides(("_transform_gradients",))
        clipping = Clipping() if clipped else self._clipping
        steppers = self._plans.now()
        self._finish(self._step(steppers.together, clipping, pairs))
        constrained = [var for _, var in pairs if variable_constraint(var) is not None]
        plain = not self._overrides((*_UPDATES, *_TRANSFORMS))
        steppers.repeatable = plain and not constrained
        return [error for var in constrained for error in constrain(var, self._title(var))]

    def _step(self, stepper: Stepper, clipping: Clipping, pairs: list[Pair]) -> Shared:
        rule = self._rule()
        names = [slot.name for slot in rule.slots]
        slots = [self._slots.of(var, names) for _, var in pairs]
        return stepper.take(
            rule,
            clipping,
            pairs,
            [self._title(var) for _, var in pairs],
            slots,
            self._rule_scalars,
            self._selection(),
            calls=self._hyper.calls,
        )

    def _finish(self, shared: Shared) -> None:
        """Hook: called after the updates with the scalars of the step, for each compute dtype."""

    def _resource_apply_dense(self, grad: Tensor, var: Any, apply_state: Any = None) -> Any:
        self._apply_one(grad, var)

    def _resource_apply_sparse(
        self, grad: Tensor, var: Any, indices: Tensor, apply_state: Any = None
    ) -> Any:
        self._apply_one(IndexedSlices(grad, indices), var)

    def _resource_apply_sparse_duplicate_indices(
        self, grad: Tensor, var: Any, indices: Tensor, apply_state: Any = None
    ) -> Any:
        if self._overrides(("_resource_apply_sparse",)):
            super()._resource_apply_sparse_duplicate_indices(grad, var, indices, apply_state)
        else:
            self._apply_one(IndexedSlices(grad, indices), var)

    def _apply_one(self, grad: Any, var: Tensor) -> None:
        with torch.no_grad():
            self._step(self._plans.now().alone(var), Clipping(), [(grad, var)])

    def get_config(self) -> dict[str, Any]:
        """The configuration; it holds the name of the rule, not the rule."""
        hypers = {
            hyper.name: self._serialize_hyperparameter(hyper.name) for hyper in self.rule.hypers
        }
        config = super().get_config()
        return {**config, "rule": self.rule.name, **hypers, "decay": self._initial_decay}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        """An optimizer made of a configuration.

        Args:
            config: As `get_config` returns it, and left as it is.
            custom_objects: Your rules, and classes of schedules, by name; the library's rules are
                known.

        Raises:
            ValueError: There is no rule of that name.
        """
        name = config.get("rule")
        rule = {**{rule.name: rule for rule in RULES}, **(custom_objects or {})}.get(str(name))
        if not isinstance(rule, Rule):
            raise ValueError(f"Unknown rule: {name}. Give it as custom_objects={{{name!r}: rule}}.")
        return super().from_config({**config, "rule": rule}, custom_objects)


_RESERVED = ("name", "lr", "decay", "rule")  # keywords of the constructor
_BUILT_IN = {name: getattr(RuleOptimizer, name) for name in (*_UPDATES, *_TRANSFORMS)}
