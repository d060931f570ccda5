"""`RuleOptimizer`: a v1 optimizer whose arithmetic is a `Rule`, fused into one pass over memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from typing import Any

from torch import Tensor

from thalweg._base.device_counters import number_of
from thalweg._base.execution_context import is_ours
from thalweg._base.showing import show_value
from thalweg._core.commit import raise_within
from thalweg._core.hyperparameters import as_hyper, check_scalar, is_function
from thalweg._core.step import run_step
from thalweg._core.step_adapter import Dtype
from thalweg._core.step_scalars import Groups
from thalweg._core.validation import scatters
from thalweg._graph import by_reference, convert_to_tensor, is_symbolic, operation, resolve
from thalweg._graph.eager_or_graph import IndexedSlices
from thalweg.formula import Rule
from thalweg.v1.train.callable_rate import has_formula, value_now
from thalweg.v1.train.optimizer import Optimizer
from thalweg.v1.train.step_adapter import V1HookStepAdapter, V1RuleStepAdapter, Values
from thalweg.variable import to_tensor

ACCEPTED = "number, tensor or callable"
_UPDATES = (
    "_apply_dense", "_resource_apply_dense", "_apply_sparse", "_resource_apply_sparse",
    "_apply_sparse_duplicate_indices", "_resource_apply_sparse_duplicate_indices",
    "_apply_sparse_shared",
)  # fmt: skip


class RuleOptimizer(Optimizer):
    """Base class of v1 optimizers that run an update rule.

    A subclass sets `HYPERS`, and overrides `_choose_rule`, which returns the rule of a step.

    Attributes:
        HYPERS: {hyperparameter of the rule: attribute with the constructor's argument}.
        TENSORS: {attribute: hyperparameter} of TensorFlow's attributes with a step's
            hyperparameters as tensors, for subclasses that read them.
        POWERS: {scalar: hyperparameter}. A scalar is a variable of that name, multiplied by the
            hyperparameter in each step.
        CALLABLES: True if hyperparameters may be callables without arguments.
    """

    HYPERS: dict[str, str] = {}
    TENSORS: dict[str, str] = {}
    POWERS: dict[str, str] = {}
    CALLABLES = True
    # True if the attributes of `TENSORS` are set to symbolic tensors.
    _has_symbols = False

    def _choose_rule(self) -> Rule:
        """Return the rule of this step."""
        raise NotImplementedError

    def _rule_of_step(self) -> Rule:
        """Return the rule that a step runs for all variables at once; extensions add to it."""
        return self._choose_rule()

    def _slot_fills(self) -> Iterable[tuple[str, float, str]]:
        """Return name, initial value and operation name of each slot, in order of creation."""
        return [(slot.name, slot.initial, self._name) for slot in self._choose_rule().slots]

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        # A graph lists variables in their order of creation, so all slots of one variable come
        # before those of the next, as in TensorFlow. Eager slots are made together, which is fast.
        kinds = {slot.name: slot for slot in self._choose_rule().slots}
        is_of_graph = any(map(is_symbolic, var_list))
        for variables in [[var] for var in var_list] if is_of_graph else [var_list]:
            for name, initial_value, op_name in self._slot_fills():
                self._fill_slots(variables, initial_value, name, op_name, kinds.get(name))

    def _prepare(self) -> None:
        """While a graph is built, set the attributes in `TENSORS` to symbolic tensors.

        In eager mode and in runs, remove these attributes; `__getattr__` then computes them.
        """
        if self._has_symbols:
            for attribute in self.TENSORS:
                vars(self).pop(attribute, None)
            self._has_symbols = False
        if self._under_way is not None:
            values = self._under_way.values
            if self._under_way.builds:
                for attribute, hyper in self.TENSORS.items():
                    setattr(self, attribute, convert_to_tensor(values[hyper], name=hyper))
                self._has_symbols = True

    def _with_prepared(self, values: Values) -> Values:
        """Return the values of a step, replaced by the tensors that a subclass's `_prepare` set."""
        fields = vars(self)
        tensors = {hyper: fields[name] for name, hyper in self.TENSORS.items() if name in fields}
        return {**values, **{hyper: resolve(tensor) for hyper, tensor in tensors.items()}}

    def _read_values(self) -> Values:
        return self._evaluate_hypers()

    def _evaluate_hypers(self) -> Values:
        """Return {name in the rule: value in this step} of all hyperparameters.

        Callables are called; numbers and tensors are returned unchanged.

        Raises:
            ValueError: A hyperparameter is callable, and `CALLABLES` is False.
            InvalidTypeError, InvalidArgumentError: A value is not a real scalar.
        """
        values = {}
        for name, attribute in self.HYPERS.items():
            hyper = getattr(self, attribute)
            # The usual case, checked without a call; NaN is not equal to itself.
            if type(hyper) is float and hyper == hyper:
                values[name] = hyper
                continue
            if is_function(hyper) and not self.CALLABLES:
                raise ValueError(
                    f"{type(self).__name__} takes numbers and tensors as {attribute.lstrip('_')},"
                    f" not the callable {show_value(hyper)}."
                )
            values[name] = value_now(hyper)
            if not has_formula(hyper):
                check_scalar(attribute.lstrip("_"), values[name], ACCEPTED)
        return values

    def _functions(self) -> list[object]:
        """Return the hyperparameters that are functions, which each step calls once."""
        return list(filter(is_function, [getattr(self, name) for name in self.HYPERS.values()]))

    def _captured_inputs(self) -> list[Any]:
        # As in TensorFlow, callables are called when the graph is built.
        return [self._read_values()]

    def _group_variables(
        self, values: Values, variables: Sequence[Tensor], gradients: Sequence[object]
    ) -> Groups:
        """Return the group of each variable, for `_scalars_of`; None if all share one.

        Variables of one group have common hyperparameters.
        """
        return None

    def _scalars_of(self, values: Values, dtype: Dtype, group: Hashable) -> Values:
        """Return all scalars of a group in a compute dtype, from the values of a step."""
        powers = {name: dtype(number_of(self._get_non_slot_variable(name))) for name in self.POWERS}
        return {**self._hyper_scalars(values, dtype, group), **powers}

    def _hyper_scalars(self, values: Values, dtype: Dtype, group: Hashable) -> Values:
        """Return the scalars that depend on the values of a step alone."""
        return {name: as_hyper(values[name], dtype) for name in self.HYPERS}

    def _make_hooks(
        self, global_step: object, name: str, values: Values | None
    ) -> V1RuleStepAdapter:
        return V1RuleStepAdapter(self, global_step, name, values)

    def __getattr__(self, name: str) -> Any:
        # Called for missing attributes only. Without `_under_way`, the object is not set up yet.
        hyper = type(self).TENSORS.get(name)
        if hyper is None or "_under_way" not in vars(self):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        tensor = self._values()[hyper]
        return tensor if is_symbolic(tensor) else to_tensor(tensor)

    def _kernel_name(self) -> str:
        """Return the name of TensorFlow's operation that updates a variable, without "Apply"."""
        kernel_class = next(
            cls
            for cls in type(self).__mro__
            if "_choose_rule" in vars(cls) and is_ours(cls._choose_rule)
        )
        return kernel_class.__name__.removesuffix("Optimizer")

    def _scatters(self) -> bool:
        return scatters(self._choose_rule())

    def _one_by_one(self) -> bool:
        """Return True if an overridden hook has to be called for each variable."""
        # A loop, since each planned step calls this: it is three times as fast as `_has_own_hook`.
        # An attribute of the object may replace a method, too.
        cls, fields = type(self), vars(self)
        for hook in _UPDATES:
            if hook in fields or getattr(cls, hook) is not getattr(RuleOptimizer, hook):
                return True
        return False

    def _has_own_hook(self, hook: str) -> bool:
        """Return True if a subclass or this object overrides a hook."""
        is_overridden = getattr(type(self), hook) is not getattr(RuleOptimizer, hook)
        return is_overridden or hook in vars(self)

    def _calls_sparse(self, hook: str) -> bool:
        """Return True if sparse gradients are passed to an overridden hook.

        Return False for a rule that applies repeated rows one by one, as in TensorFlow.
        """
        is_overridden = self._has_own_hook(hook) or self._has_own_hook("_apply_sparse_shared")
        return is_overridden and self._choose_rule().duplicates != "successive"

    @classmethod
    @cache
    def _is_begun_by_users(cls) -> bool:
        """Return True if a subclass's hooks are called before the updates."""
        return not (is_ours(cls._prepare) and is_ours(cls._create_slots))

    def _may_call_users(self) -> bool:
        if self._is_begun_by_users():
            return True
        hypers = [getattr(self, name) for name in self.HYPERS.values()]
        return any(map(callable, hypers)) and any(map(is_function, hypers))

    def _update(self, grad: Any, var: Any) -> object:
        """Update a variable and all its slots by the rule; return an operation in graph mode."""
        if is_symbolic(var):
            step = self._under_way
            values = self._captured_inputs()[0] if step is None else step.values
            kind = "SparseApply" if isinstance(grad, IndexedSlices) else "Apply"
            op = operation(
                self._update_with, [grad, by_reference(var), values], f"{kind}{self._kernel_name()}"
            )
            # The slots are no inputs, so the session would not know that they are written.
            op.written += tuple(self._slots.all_of(var).values())
            return op
        return self._update_with(
            grad, var, None if self._under_way is None else self._under_way.values
        )

    def _update_with(self, grad: object, var: Tensor, values: Values | None) -> None:
        with self._turn_lock(), self._locked():
            cache = self._plans.now().alone(var)
            errors = run_step(
                V1HookStepAdapter(self, values), cache, [(grad, var)], is_final=False
            ).errors
        raise_within(errors)

    def _resource_apply_dense(self, grad: Tensor, handle: Any) -> Any:
        return self._update(grad, handle)

    def _apply_dense(self, grad: Tensor, var: Any) -> Any:
        return self._update(grad, var)

    def _resource_apply_sparse(self, grad: Tensor, handle: Any, indices: Tensor) -> Any:
        return self._apply_sparse_shared(grad, handle, indices, self._resource_scatter_add)

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        return self._apply_sparse_shared(grad.values, var, grad.indices, self._resource_scatter_add)

    def _apply_sparse_shared(
        self, grad: Tensor, var: Any, indices: Tensor, scatter_add: Callable[..., Any]
    ) -> Any:
        """Update the rows of a variable by the rule, for both hooks of sparse gradients.

        Args:
            grad: The rows of the gradient.
            indices: The indices of the rows, without repetitions.
            scatter_add: `scatter_add(variable, indices, rows)` adds rows. Unused here, but an
                override may call it.
        """
        return self._update(IndexedSlices(grad, indices), var)

    def _resource_scatter_add(self, x: Any, i: Tensor, v: Tensor) -> Any:
        """Add the rows `v` to the rows `i` of the variable `x`; return the new value."""
        return x.scatter_add(IndexedSlices(v, i))

    def _resource_apply_sparse_duplicate_indices(
        self, grad: Tensor, handle: Any, indices: Tensor
    ) -> Any:
        if self._calls_sparse("_resource_apply_sparse"):
            return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices)
        return self._update(IndexedSlices(grad, indices), handle)

    def _apply_sparse_duplicate_indices(self, grad: Any, var: Any) -> Any:
        if self._calls_sparse("_apply_sparse"):
            return super()._apply_sparse_duplicate_indices(grad, var)
        return self._update(grad, var)


def check_hyper(name: str, hyper: object) -> Any:
    """Return a hyperparameter unchanged, or raise if a step cannot use it.

    Raises:
        InvalidTypeError: `hyper` is not a number, tensor or callable.
        InvalidArgumentError: `hyper` has dimensions, is NaN, or is an integer too large for a
            float.
    """
    if not is_function(hyper):
        check_scalar(name, hyper, ACCEPTED)
    return hyper
