"""LARS: momentum with a rate for each variable."""

from __future__ import annotations

import numbers
from collections.abc import Hashable, Iterable, Sequence
from enum import Enum

from torch import Tensor

from thalweg._base.scalars import as_operand
from thalweg._core.grads_and_vars import has_rows
from thalweg._core.hyperparameters import as_hyper
from thalweg._core.step_adapter import Dtype
from thalweg._core.step_scalars import Groups
from thalweg.formula import Rule
from thalweg.rules import LARS, NESTEROV_LARS
from thalweg.v1.train.rule_optimizer import RuleOptimizer, check_hyper
from thalweg.v1.train.step_adapter import Values
from thalweg.variable import name_of


class _Group(Enum):
    ADAPTIVE = 1
    SKIPPED = 2
    ROWS = 3


class LARSOptimizer(RuleOptimizer):
    """Layer-wise adaptive rate scaling, for training with large batches.

        ratio = eeta |var| / (|g| + weight_decay |var| + epsilon), 1 where a norm is 0
        a <- momentum a + learning_rate ratio (g + weight_decay var);  var <- var - a
        use_nesterov: var <- var - (learning_rate ratio (g + weight_decay var) + momentum a)

    Norms are taken over a whole variable and a whole gradient, summed in float64. Variables named
    in `skip_list` have the ratio 1 and no decay. A sparse gradient is applied as by
    `MomentumOptimizer`: no ratio, no decay, the learning rate outside of the velocity.

    Args:
        learning_rate: A float, 0-d tensor, or callable without arguments.
        momentum: Decay rate of the velocity; 0 or more. A float, tensor or callable.
        weight_decay: The decay, added to the gradient; 0 or more. A float, tensor or callable.
        eeta: Scales the ratio. A float, tensor or callable.
        epsilon: Added to the divisor of the ratio. A float, tensor or callable.
        name: Name of the optimizer.
        skip_list: Optional. Strings; a variable whose name contains a listed string is skipped.
        use_nesterov: True for Nesterov momentum.

    Raises:
        ValueError: `momentum` or `weight_decay` is below 0.

    Differs from:
        TensorFlow sums squares in the variable's dtype, in another order. It raises an error for
        callables with dense gradients.

    Reference: tf.contrib.opt.LARSOptimizer; https://arxiv.org/abs/1708.03888
    """

    HYPERS = {
        "learning_rate": "_learning_rate", "momentum": "_momentum", "weight_decay": "_weight_decay",
        "eeta": "_eeta", "epsilon": "_epsilon",
    }  # fmt: skip
    TENSORS = {"_learning_rate_tensor": "learning_rate", "_momentum_tensor": "momentum"}

    def __init__(
        self,
        learning_rate: object,
        momentum: object = 0.9,
        weight_decay: object = 0.0001,
        eeta: object = 0.001,
        epsilon: object = 0.0,
        name: str = "LARSOptimizer",
        skip_list: Iterable[str] | None = None,
        use_nesterov: bool = False,
    ) -> None:
        for hyper_name, hyper in (("momentum", momentum), ("weight_decay", weight_decay)):
            if isinstance(hyper, numbers.Real) and hyper < 0.0:
                raise ValueError(f"{hyper_name} should be positive: {hyper}")
        super().__init__(False, name)
        self._learning_rate = check_hyper("learning_rate", learning_rate)
        self._momentum, self._weight_decay, self._eeta = momentum, weight_decay, eeta
        self._epsilon = epsilon
        self._skip_list = None if skip_list is None else list(skip_list)
        self._use_nesterov = use_nesterov

    def _choose_rule(self) -> Rule:
        return NESTEROV_LARS if self._use_nesterov else LARS

    def _group_variables(
        self, values: Values, variables: Sequence[Tensor], gradients: Sequence[object]
    ) -> Groups:
        return list(map(self._group_of, variables, gradients))

    def _group_of(self, var: Tensor, grad: object) -> _Group:
        if has_rows(grad):
            return _Group.ROWS
        is_skipped = any(fragment in name_of(var) for fragment in self._skip_list or ())
        return _Group.SKIPPED if is_skipped else _Group.ADAPTIVE

    def _hyper_scalars(self, values: Values, dtype: Dtype, group: Hashable) -> Values:
        """Return {name: scalar of `dtype`} of the rule's hyperparameters for a group of variables.

        `values` has this step's hyperparameters. The group `ADAPTIVE` has the scalar `adaptive` 1.
        Other groups have `adaptive` 0 and `weight_decay` 0.
        """
        # TensorFlow's LARS passes Python floats to dense kernels, so they are rounded once. Its
        # sparse kernels get float32 tensors, as in other optimizers.
        cast = as_hyper if group is _Group.ROWS else as_operand
        scalars = {name: cast(values[name], dtype) for name in self.HYPERS}
        if group is _Group.ADAPTIVE:
            return {**scalars, "adaptive": dtype(1)}
        return {**scalars, "adaptive": dtype(0), "weight_decay": dtype(0)}
