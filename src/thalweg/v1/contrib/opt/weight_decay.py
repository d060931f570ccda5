"""Decoupled weight decay for optimizers of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

from torch import Tensor

from thalweg._base.context_managers import ContextSetting
from thalweg._base.scalars import as_operand
from thalweg._base.tracing import untraced
from thalweg._core.commit import raise_within
from thalweg._core.grads_and_vars import Gradient
from thalweg._core.hyperparameters import check_scalar, is_function
from thalweg._core.single_rule_step import OneRule
from thalweg._core.step import run_step
from thalweg._core.step_adapter import Dtype
from thalweg._core.step_scalars import Groups
from thalweg._graph import by_reference, graph_variable_of, is_symbolic, operation, resolve
from thalweg.formula import Rule
from thalweg.rules.weight_decay import WEIGHT_DECAY, with_decay
from thalweg.v1.train.callable_rate import has_formula, value_now
from thalweg.v1.train.optimizer import Optimizer
from thalweg.v1.train.rule_optimizer import ACCEPTED, check_hyper
from thalweg.v1.train.step_adapter import Values

# (optimizer, variables to decay) of the running call. The extended optimizer's `minimize` and
# `apply_gradients` have no such argument to pass on.
_DECAY_SCOPE: ContextVar[tuple[object, list[object] | None]] = ContextVar(
    "decay_var_list", default=(None, None)
)


class DecoupledWeightDecayExtension(Optimizer):
    """Mixin that adds decoupled weight decay; name it before the optimizer among the base classes.

        var <- var - weight_decay var, and then the optimizer's own step

    A dense gradient decays the whole variable. A sparse gradient decays each of its rows once. The
    decay is not multiplied by the learning rate. If the rate has a schedule, give the decay one.
    For most built-in optimizers decay and step are one fused pass. For LARS, NovoGrad and
    optimizers with update hooks, the variable is decayed first.

    Args:
        weight_decay: Fraction of a variable subtracted in each step. A float, 0-d tensor, or
            callable without arguments.
        *args: Arguments of the optimizer.
        **kwargs: Keyword arguments of the optimizer.

    Differs from:
        TensorFlow's `minimize` ignores `decay_var_list` and decays all variables. There, callables
        fail, and `GradientDescentOptimizer` does not decay rows.

    Example:
        >>> from thalweg import Variable
        >>> from thalweg.v1.train import MomentumOptimizer
        >>> class MomentumW(DecoupledWeightDecayExtension, MomentumOptimizer):
        ...     pass
        >>> w = Variable(10.0, name="w")
        >>> MomentumW(0.1, learning_rate=1.0, momentum=0.9).apply_gradients([(2.0, w)])
        >>> w.numpy()
        np.float32(7.0)

    Reference: tf.contrib.opt.DecoupledWeightDecayExtension; https://arxiv.org/abs/1711.05101
    """

    # True if the rule has the scalar `weight_decay` itself.
    FUSED: ClassVar[bool] = False

    def __init__(self, weight_decay: object, *args: Any, **kwargs: Any) -> None:
        self._weight_decay = check_hyper("weight_decay", weight_decay)
        super().__init__(*args, **kwargs)

    @untraced
    def minimize(
        self,
        loss: object,
        global_step: object = None,
        var_list: object = None,
        gate_gradients: int = Optimizer.GATE_OP,
        aggregation_method: object = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: object = None,
        decay_var_list: Iterable[object] | None = None,
    ) -> Any:
        """Minimize a loss as `Optimizer.minimize` does, and decay variables.

        Args:
            loss: As in `Optimizer.minimize`, like all arguments up to `grad_loss`.
            decay_var_list: Optional. Variables to decay; all variables if None or empty.
        """
        with self._while_decaying(decay_var_list):
            return super().minimize(
                loss,
                global_step,
                var_list,
                gate_gradients,
                aggregation_method,
                colocate_gradients_with_ops,
                name,
                grad_loss,
            )

    @untraced
    def apply_gradients(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        grads_and_vars: Iterable[tuple[object, object]],
        global_step: object = None,
        name: str | None = None,
        decay_var_list: Iterable[object] | None = None,
    ) -> Any:
        """Apply gradients as `Optimizer.apply_gradients` does, and decay variables.

        Args:
            grads_and_vars, global_step, name: As in `Optimizer.apply_gradients`.
            decay_var_list: Optional. Variables to decay; all variables if None or empty.
        """
        optimizer, scope_variables = _DECAY_SCOPE.get()
        if decay_var_list is None and optimizer is self:
            decay_var_list = scope_variables
        with self._while_decaying(decay_var_list):
            return super().apply_gradients(grads_and_vars, global_step, name)

    _APPLIES = True

    def _while_decaying(self, variables: Iterable[object] | None) -> ContextSetting:
        # As in TensorFlow, an empty list decays all variables.
        change, decay_scope = _DECAY_SCOPE.set, (self, list(variables or ()) or None)
        return ContextSetting(
            lambda: ([partial(change, decay_scope)], [partial(change, _DECAY_SCOPE.get())])
        )

    def _read_values(self) -> Values:
        optimizer, subset = _DECAY_SCOPE.get()
        decay = resolve(value_now(self._weight_decay))
        if not has_formula(self._weight_decay):
            check_scalar("weight_decay", decay, ACCEPTED)
        read = {"decoupled_decay": decay, "decay_var_list": subset if optimizer is self else None}
        return {**read, **super()._read_values()}

    def _captured_inputs(self) -> list[Any]:
        read, *other_inputs = super()._captured_inputs()
        if read["decay_var_list"] is not None:
            subset = [graph_variable_of(var) for var in read["decay_var_list"]]
            read["decay_var_list"] = [
                by_reference(var) if is_symbolic(var) else var for var in subset
            ]
        return [read, *other_inputs]

    def _functions(self) -> list[object]:
        functions: list[object] = super()._functions()  # pyright: ignore
        return [*functions, *filter(is_function, [self._weight_decay])]

    def _may_call_users(self) -> bool:
        return is_function(self._weight_decay) or super()._may_call_users()

    def _rule_of_step(self) -> Rule:
        rule: Rule = super()._rule_of_step()  # pyright: ignore
        return rule if self.FUSED else with_decay(rule) or rule

    def _one_by_one(self) -> bool:
        fused = self.FUSED or with_decay(self._choose_rule())  # pyright: ignore
        return not fused or super()._one_by_one()  # pyright: ignore

    def _group_variables(
        self, values: Values, variables: Sequence[Tensor], gradients: Sequence[object]
    ) -> Groups:
        """Return the group of each variable, a hashable; variables of equal groups share scalars.

        Without a `decay_var_list`, return the groups of the extended optimizer: a list, or None if
        all variables are one group. With it, return a list, in which the groups of variables that
        are not decayed are wrapped in `_Spared`.
        """
        groups: Groups = super()._group_variables(values, variables, gradients)  # pyright: ignore
        subset = values["decay_var_list"]
        if subset is None:
            return groups
        # By identity: `==` of tensors compares elements.
        ids = set(map(id, subset))
        base_groups = groups or [None] * len(variables)
        return [
            group if id(var) in ids else _Spared(group)
            for var, group in zip(variables, base_groups, strict=True)
        ]

    def _hyper_scalars(self, values: Values, dtype: Dtype, group: Hashable) -> Values:
        decay = as_operand(values["decoupled_decay"], dtype)
        if isinstance(group, _Spared):
            decay, group = dtype(0), group.group
        scalars = super()._hyper_scalars(values, dtype, group)  # pyright: ignore
        return {**scalars, "weight_decay" if self.FUSED else "decoupled_decay": decay}

    def _apply_one(self, grad: Any, var: Any) -> Any:
        """Decay one variable, then call the extended optimizer's hook; return the hook's result.

        Do not decay if the rule itself decays (`FUSED`), or if `decay_var_list` excludes the
        variable. In graph mode, build operations of decay and update.
        """
        values = self._values()
        subset = values["decay_var_list"] or [var]
        if self.FUSED or all(var is not getattr(member, "symbol", member) for member in subset):
            return super()._apply_one(grad, var)
        decay = values["decoupled_decay"]
        if not is_symbolic(var):
            self._decay_one(grad, var, decay)
            return super()._apply_one(grad, var)
        decay_op = operation(self._decay_one, [grad, by_reference(var), decay], "AssignSub")
        with var.graph.control_dependencies([decay_op]):
            return super()._apply_one(grad, var)

    def _decay_one(self, grad: Gradient, var: Tensor, decay: object) -> None:
        scalars = {"weight_decay": decay}
        hooks = OneRule(WEIGHT_DECAY, scalars, selection=self._selection(), is_checked=True)
        # The step of the extended optimizer uses the cache of the first `alone`.
        cache = self._plans.now().alone(var).alone(var)
        raise_within(run_step(hooks, cache, [(grad, var)], is_final=False).errors)


@dataclass(frozen=True)
class _Spared:
    """Group of variables that are not decayed; `group` is the extended optimizer's group."""

    group: Hashable


@cache
def extend_with_decoupled_weight_decay(base_optimizer: type[object]) -> type[Any]:
    """Return a subclass of `base_optimizer` that decays weights before each step.

    Args:
        base_optimizer: A class derived from `Optimizer`.

    Returns:
        A class whose constructor takes `weight_decay` and then the arguments of `base_optimizer`;
        see `DecoupledWeightDecayExtension`. Repeated calls return the same class.

    Reference: tf.contrib.opt.extend_with_decoupled_weight_decay
    """

    class OptimizerWithDecoupledWeightDecay(DecoupledWeightDecayExtension, base_optimizer):
        __doc__ = f"`{base_optimizer.__name__}` with decoupled weight decay, its first argument."

        # pickle finds classes by name, and this class has none in its module.
        def __reduce__(self) -> Any:
            return _blank, (base_optimizer,), self.__getstate__()

    return OptimizerWithDecoupledWeightDecay


# Pickles name this function.
def _blank(base_optimizer: type[object]) -> object:
    extended = extend_with_decoupled_weight_decay(base_optimizer)
    return object.__new__(extended)
