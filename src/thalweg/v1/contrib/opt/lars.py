"""LARS: momentum with a rate for each variable."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from thalweg.core.pairs import Pair
from thalweg.core.pipeline import Measure, PerVariable, Pipeline
from thalweg.core.step import Dtype
from thalweg.engines import compute_dtype
from thalweg.formula import Rule
from thalweg.indexed_slices import IndexedSlices
from thalweg.rules import LARS, NESTEROV_LARS
from thalweg.rules.lars import trust_ratio
from thalweg.scalars import as_operand, as_scalar
from thalweg.v1.train.rule_optimizer import RuleOptimizer
from thalweg.variable import name_of


class LARSOptimizer(RuleOptimizer):
    """Layer-wise adaptive rate scaling, for training with large batches.

        ratio = eeta |var| / (|g| + weight_decay |var| + epsilon), 1 where a norm is 0
        a <- momentum a + learning_rate ratio (g + weight_decay var);  var <- var - a
        use_nesterov: var <- var - (learning_rate ratio (g + weight_decay var) + momentum a)

    The norms are those of the whole variable and its whole gradient, summed in float64. Variables
    that `skip_list` names have the ratio 1 and no decay. A sparse gradient gives the step of
    `MomentumOptimizer`: no ratio, no decay, the learning rate outside of the velocity.

    Args:
        learning_rate: A float, 0-d tensor, or callable without arguments.
        momentum: Share of the velocity that is kept; 0 or more. A float, tensor or callable.
        weight_decay: The decay, a part of the gradient; 0 or more. A float, tensor or callable.
        eeta: Scales the ratio. A float, tensor or callable.
        epsilon: Added to the divisor of the ratio. A float, tensor or callable.
        name: Name of the optimizer.
        skip_list: Optional. Strings; a variable whose name contains one of them is left out.
        use_nesterov: Whether the step looks ahead along the velocity.

    Raises:
        ValueError: `momentum` or `weight_decay` is below 0.

    Differs from:
        TensorFlow sums the squares in the variable's dtype, in an order of its own; it refuses
        callables with dense gradients.

    Reference: tf.contrib.opt.LARSOptimizer; https://arxiv.org/abs/1708.03888
    """

    HYPERS = {
        "learning_rate": "_learning_rate",
        "momentum": "_momentum",
        "weight_decay": "_weight_decay",
        "eeta": "_eeta",
        "epsilon": "_epsilon",
    }
    TENSORS = {"_learning_rate_tensor": "learning_rate", "_momentum_tensor": "momentum"}

    def __init__(
        self,
        learning_rate: Any,
        momentum: Any = 0.9,
        weight_decay: Any = 0.0001,
        eeta: Any = 0.001,
        epsilon: Any = 0.0,
        name: str = "LARSOptimizer",
        skip_list: Iterable[str] | None = None,
        use_nesterov: bool = False,
    ) -> None:
        for title, value in (("momentum", momentum), ("weight_decay", weight_decay)):
            if isinstance(value, numbers.Real) and value < 0.0:
                raise ValueError(f"{title} should be positive: {value}")
        super().__init__(False, name)
        self._learning_rate = learning_rate
        self._momentum = momentum
        self._weight_decay = weight_decay
        self._eeta = eeta
        self._epsilon = epsilon
        self._skip_list = None if skip_list is None else list(skip_list)
        self._use_nesterov = use_nesterov

    def _rule(self) -> Rule:
        return NESTEROV_LARS if self._use_nesterov else LARS

    def _skips(self, var: Tensor) -> bool:
        return any(part in name_of(var) for part in self._skip_list or ())

    def _scalars(self, dtype: Dtype) -> dict[str, Any]:
        # Unlike other optimizers this one hands its numbers to the kernels without a cast, so that
        # a Python float is rounded once.
        given = {name: as_operand(value, dtype) for name, value in self._values.items()}
        return {**given, "trust_ratio": dtype(1)}

    def _one_by_one(self, pairs: Sequence[Pair] = ()) -> bool:
        # The norms of a variable that comes twice are measured twice.
        variables = [id(var) for _, var in pairs]
        return len(set(variables)) < len(variables) or super()._one_by_one(pairs)

    def _pipeline(self, variables: Sequence[Tensor], gradients: Sequence[Any]) -> Pipeline:
        def of(measure: Measure) -> dict[str, np.ndarray]:
            norms = np.sqrt([measure.variable_squares(), measure.squares()])
            ratios, decays = np.ones(len(variables)), np.zeros(len(variables))
            for index, (var, grad) in enumerate(zip(variables, gradients, strict=True)):
                if isinstance(grad, IndexedSlices) or self._skips(var):
                    continue
                dtype = compute_dtype(var.dtype)
                given = self._scalars(dtype)
                var_norm, grad_norm = (dtype(norm) for norm in norms[:, index])
                decay, epsilon = given["weight_decay"], given["epsilon"]
                with np.errstate(all="ignore"):
                    ratio = trust_ratio(var_norm, grad_norm, given["eeta"], decay, epsilon)
                ratios[index] = ratio
                decays[index] = decay
            found = {"trust_ratio": ratios, "weight_decay": decays}
            return {**found, **self._of_rows(variables, gradients)}

        return PerVariable(of=of)

    def _of_rows(
        self, variables: Sequence[Tensor], gradients: Sequence[Any]
    ) -> dict[str, np.ndarray]:
        """What sparse gradients have otherwise: TensorFlow casts there."""
        if not any(isinstance(grad, IndexedSlices) for grad in gradients):
            return {}
        casts = [as_scalar if isinstance(grad, IndexedSlices) else as_operand for grad in gradients]
        return {
            name: np.array(
                [
                    cast(self._values[name], compute_dtype(var.dtype))
                    for cast, var in zip(casts, variables, strict=True)
                ],
                np.float64,
            )
            for name in ("learning_rate", "momentum")
        }
