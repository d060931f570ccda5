"""`RuleOptimizer`: a Keras optimizer that runs a `Rule`, fused into one pass over memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from thalweg import _engines, rules
from thalweg._base.execution_context import current_session, is_ours, is_symbolic
from thalweg._base.locks import importing
from thalweg._core.commit import raise_within
from thalweg._core.complex_variables import real_pair, update_analytic
from thalweg._core.graph_mode import graph_mode
from thalweg._core.hyperparameters import check_value
from thalweg._core.step import run_step
from thalweg._core.step_adapter import Dtype
from thalweg._core.step_scalars import defaults_of, derived
from thalweg._core.validation import scatters
from thalweg._engines import compute_dtype
from thalweg.errors import RuleError, did_you_mean
from thalweg.formula import Rule
from thalweg.keras.optimizers.optimizer import Optimizer
from thalweg.keras.optimizers.step_adapter import (
    UPDATES,
    ApplyState,
    ComplexHooks,
    KerasHookStepAdapter,
    KerasRuleStepAdapter,
    rows_of,
)


class RuleOptimizer(Optimizer):
    """Keras optimizer that runs a `Rule`, built-in or custom, on any engine.

    Args:
        rule: The rule.
        learning_rate: A float, a 0-d tensor, a schedule, or a callable without arguments. None
            selects the rule's default.
        name: Name of the optimizer; None selects the rule's name.
        **kwargs: The rule's other hyperparameters by name, as numbers, tensors or callables, and
            the keywords of `Optimizer`.

    Attributes:
        NAMES: {hyperparameter name of the rule: attribute name} if the two differ.

    Raises:
        TypeError: A keyword is neither a hyperparameter of the rule nor a keyword of `Optimizer`.
        RuleError: A scalar of the rule has the name of an attribute or option of all optimizers.

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

    NAMES: dict[str, str] = {}

    def __init__(
        self, rule: Rule, learning_rate: object = None, name: str | None = None, **kwargs: Any
    ) -> None:
        defaults = defaults_of(rule)
        reserved = [key for key in defaults if key in _RESERVED or hasattr(Optimizer, key)]
        if reserved:
            raise RuleError(
                f"Rule {rule.name!r} has hyperparameters named {', '.join(reserved)}, which mean"
                " something else to every optimizer. Rename them."
            )
        rule_hyperparams = {key: kwargs.pop(key) for key in list(kwargs) if key in defaults}
        # Before super().__init__, whose error about an unknown keyword names the rule.
        vars(self)["rule"] = rule
        super().__init__(name or rule.name, **kwargs)
        if learning_rate is not None:
            learning_rate = check_value("learning_rate", learning_rate)
        learning_rate = kwargs.get("lr", learning_rate)
        if learning_rate is not None:
            defaults["learning_rate"] = learning_rate
        _engines.check_rule(rule, {**defaults, **rule_hyperparams})
        for key, value in {**defaults, **rule_hyperparams}.items():
            self._set_hyper(key, value)

    def _spelling_hint(self, keyword: str) -> str:
        """Return a hint at the argument or hyperparameter closest to an unknown keyword, or ""."""
        # The signature of a subclass's constructor gives a better hint.
        if type(self).__init__ is not RuleOptimizer.__init__:
            return super()._spelling_hint(keyword)
        hyper_names = [hyper.name for hyper in self.rule.hypers]
        suggestion = did_you_mean(keyword, hyper_names)
        return f" Rule {self.rule.name!r} has {', '.join(hyper_names)}. {suggestion}".rstrip()

    def _choose_rule(self) -> Rule:
        """Return the rule of this step, which may depend on hyperparameters."""
        return self.rule

    def _hyper_scalars(self, dtype: Dtype) -> dict[str, object]:
        """Return {hyperparameter of the rule: scalar of the NumPy type `dtype`} for this step."""
        values = {
            hyper.name: self._scalar_of(hyper.name, dtype)
            for hyper in self._choose_rule().hypers
            if hyper.name != "learning_rate"
        }
        if "learning_rate" in self._hyper:
            values["learning_rate"] = self._rate(dtype)
        return values

    def _scalar_of(self, name: str, dtype: Dtype) -> Any:
        """Return a hyperparameter of this step, by its name in the rule, as a scalar."""
        if name == "learning_rate":
            return self._rate(dtype)
        return self._scalar(self.NAMES.get(name, name), dtype)

    def _rule_scalars(
        self, dtype: Dtype, rate: float | None = None, in_common: Mapping[str, float] | None = None
    ) -> dict[str, Any]:
        """Return {name: scalar} of all scalars that the rule's formulas read in this step.

        Args:
            dtype: The NumPy type of the scalars.
            rate: Optional. A learning rate to use instead of the optimizer's.
            in_common: Optional. {name: value} of the rule's optimizer-wide slots.
        """
        values = self._hyper_scalars(dtype)
        values |= {name: dtype(shared_scalar) for name, shared_scalar in (in_common or {}).items()}
        if rate is not None:
            values["learning_rate"] = dtype(rate)
        return derived(self._choose_rule(), values, dtype, int(self.iterations.item()) + 1)

    def _has_usual_scalars(self) -> bool:
        """Return True if no method that computes scalars is overridden by users."""
        methods = (
            self._decayed_lr, self._choose_rule, self._rule_scalars, self._hyper_scalars,
            self._scalar, self._rate, self._learning_rate, self._get_hyper,
        )  # fmt: skip
        return all(map(is_ours, methods))

    def _exact_names(self) -> tuple[str, ...]:
        """Return the names of attributes, other than variables, that scalars depend on."""
        return ()

    def _rate(self, dtype: Dtype) -> object:
        """Return the learning rate of this step, by `_decayed_lr` if a subclass overrides it."""
        is_overridden = type(self)._decayed_lr is not Optimizer._decayed_lr
        if is_overridden and (current_session() is None or not self._is_recorded()):
            kind = torch.float64 if dtype is np.float64 else torch.float32
            return dtype(float(self._decayed_lr(kind)))
        return self._learning_rate(dtype)

    def _slot_initial(self, name: str) -> float:
        """Return the initial value of new slots of this name."""
        return next(slot.initial for slot in self._choose_rule().slots if slot.name == name)

    def _create_slots(self, var_list: list[Tensor]) -> None:
        """Create the slots of the rule for variables that lack them."""
        for slot in self._choose_rule().slots:
            self._add_slots(var_list, slot.name, self._slot_initial(slot.name), slot)

    def _scatters(self) -> bool:
        """Return True if the rule updates only the rows of a sparse gradient."""
        return scatters(self._choose_rule())

    def _make_hooks(self, aggregates: bool) -> KerasRuleStepAdapter:
        """Return the adapter of one call of `apply_gradients`."""
        return KerasRuleStepAdapter(self, aggregates)

    def _one_by_one(self) -> bool:
        """Return True if hooks of a subclass update variables one by one."""
        return not self._overridden_hooks().isdisjoint(UPDATES)

    def _may_repeat(self) -> bool:
        """Return True if steps may be replayed: no hook or function receives gradients."""
        has_functions = self._aggregator is not None or bool(self._transformers)
        return not has_functions and not self._overridden_hooks()

    @classmethod
    @cache
    def _is_begun_by_users(cls) -> bool:
        """Return True if a subclass's hooks are called before the updates."""
        is_standard = is_ours(cls._decayed_lr) and is_ours(cls._create_slots)
        return not is_standard or not cls._overridden_hooks() <= {*UPDATES}

    def _changed_rates(self, state: ApplyState) -> dict[Dtype, float]:
        """Return {compute dtype: learning rate} for rates that `_prepare_local` changed.

        `state` has the coefficients from `_prepare_local`, with the learning rate as "lr_t".
        """
        rates: dict[Dtype, float] = {}
        # Dtypes may share a compute dtype: the widest, which comes last, has the most exact rate.
        for (_, dtype), coefficients in sorted(state.items(), key=lambda item: item[0][1].itemsize):
            if "lr_t" in coefficients and float(coefficients["lr_t"]) != float(
                self._decayed_lr(dtype)
            ):
                rates[compute_dtype(dtype)] = float(coefficients["lr_t"])
        return rates

    def _resource_apply_dense(self, grad: Tensor, var: Any, apply_state: Any = None) -> Any:
        """Update `var` in place by the rule, with a dense gradient."""
        return self._apply_one(grad, var, apply_state)

    def _resource_apply_sparse(
        self, grad: Tensor, var: Any, indices: Tensor, apply_state: Any = None
    ) -> Any:
        """Update `var` in place by the rule, with rows `grad` of distinct `indices`."""
        return self._apply_one(rows_of(grad, indices), var, apply_state)

    def _resource_apply_sparse_duplicate_indices(
        self, grad: Tensor, var: Any, indices: Tensor, apply_state: Any = None
    ) -> Any:
        """Update `var` in place by the rule, with rows `grad` at `indices`."""
        # For rules that scatter, TensorFlow does not call `_resource_apply_sparse`.
        scatters = self._choose_rule().duplicates == "successive"
        if "_resource_apply_sparse" in self._overridden_hooks() and not scatters:
            return super()._resource_apply_sparse_duplicate_indices(grad, var, indices, apply_state)
        return self._apply_one(rows_of(grad, indices), var, apply_state)

    def _apply_one(self, grad: Any, var: Any, apply_state: Any) -> Any:
        """Update a variable by the rule, for a hook that a subclass overrides and calls."""
        if is_symbolic(var):
            return graph_mode().update(self, grad, var, apply_state)
        self._update_one(grad, var, apply_state)

    def _update_one(
        self, grad: Any, var: Tensor, apply_state: Any, rates: dict[Dtype, float] | None = None
    ) -> None:
        """Update `var` and its slots in place by the rule.

        Args:
            grad: A tensor, or `IndexedSlices`.
            apply_state: The `apply_state` that a hook received, or None.
            rates: {compute dtype: learning rate}; None uses the step's learning rate.
        """
        cache = self._plans.now().alone(var)
        hooks, pair = KerasHookStepAdapter(self, apply_state, rates), (grad, var)
        if var.is_complex() and not self._choose_rule().linear:
            hooks.create_state([var])
            hooks.read_hypers([var])
            dtype = compute_dtype(var.dtype.to_real())
            tensors = [var, *hooks.slots_of(var)]
            update_analytic(self._choose_rule(), grad, tensors, hooks.scalars_of(dtype, None))
            return
        if var.is_complex():
            hooks, pair = ComplexHooks(self, apply_state, var, rates), real_pair(grad, var)
        raise_within(run_step(hooks, cache, [pair], is_final=False).errors)

    def _arguments(self) -> dict[str, object]:
        """Return the constructor's arguments that affect updates, by name."""
        arguments = super()._arguments()
        return {**arguments, "rule": self.rule} if "rule" in arguments else arguments

    def get_config(self) -> dict[str, Any]:
        """Return the configuration; it holds the name of the rule, not the rule."""
        hyperparams = {
            hyper.name: self._serialize_hyperparameter(hyper.name) for hyper in self.rule.hypers
        }
        config = super().get_config()
        return {**config, "rule": self.rule.name, **hyperparams, "decay": self._initial_decay}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        """Return an optimizer made from a configuration.

        Args:
            config: A dict that `get_config` returned; not changed.
            custom_objects: {name: custom rule or class of schedules}. Built-in rules need no entry.

        Raises:
            ValueError: No rule has the name `config["rule"]`.
        """
        name = config.get("rule")
        with importing:
            from thalweg.rules.modern import MODERN_RULES
        library_rules = {rule.name: rule for rule in (*rules.RULES, *MODERN_RULES)}
        rule = {**library_rules, **(custom_objects or {})}.get(str(name))
        if not isinstance(rule, Rule):
            raise ValueError(f"Unknown rule: {name}. Give it as custom_objects={{{name!r}: rule}}.")
        return super().from_config({**config, "rule": rule}, custom_objects)


# Keywords of the constructor.
_RESERVED = ("name", "lr", "decay", "rule")
RuleOptimizer._DEFAULT_HOOKS = {
    name: getattr(RuleOptimizer, name) for name in Optimizer._DEFAULT_HOOKS
}
