"""NovoGrad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.core.pairs import Pair
from thalweg.core.pipeline import Measure, PerVariable, Pipeline
from thalweg.core.step import Dtype, Stepper
from thalweg.engines import compute_dtype
from thalweg.formula import Rule
from thalweg.graph import is_symbolic, make_variable
from thalweg.indexed_slices import IndexedSlices
from thalweg.rules import NOVOGRAD
from thalweg.scalars import as_scalar
from thalweg.v1.train.rule_optimizer import RuleOptimizer
from thalweg.variable import Variable

_AVERAGE = "grads_ema"


class NovoGrad(RuleOptimizer):
    """Momentum of gradients that are divided by a moving norm of their variable.

        v <- beta2 v + (1 - beta2) |g|^2, v <- |g|^2 as long as v is 0
        h = g / sqrt(v + epsilon) + weight_decay var
        a <- beta1 a + h;  var <- var - learning_rate a
        grad_averaging: a <- beta1 a + (1 - beta1) h

    The squares of a gradient are summed in float64. A sparse gradient counts as the dense one it
    stands for: repeated rows are added, and all rows move.

    Args:
        learning_rate: A float, 0-d tensor, or callable without arguments.
        beta1: Share of the velocity that is kept. A float, tensor or callable.
        beta2: Share of the average of squared norms that is kept. A float, tensor or callable.
        epsilon: Added to that average, inside the root. A float, tensor or callable.
        weight_decay: A part of the normalised gradient. A float, tensor or callable.
        grad_averaging: Whether normalised gradients and decay are multiplied by 1 - beta1.
        use_locking: See `Optimizer`.
        name: Name of the optimizer.
        as_shipped: Whether v is |g|^2 in every step, as in OpenSeq2Seq, which forgets to store the
            average: `beta2` then has no effect.

    Differs from:
        OpenSeq2Seq refuses float16 and float64 variables, callables, tuples of pairs, and
        gradients that are None, and sums the squares in float32. torch.optim has no NovoGrad.

    Example:
        >>> w = Variable([3.0, 4.0], name="w")
        >>> opt = NovoGrad(0.5)
        >>> opt.apply_gradients([([3.0, 4.0], w)])
        >>> w.numpy()
        array([2.7, 3.6], dtype=float32)

    Reference: https://arxiv.org/abs/1905.11286; OpenSeq2Seq, optimizers.novograd
    """

    HYPERS = {
        "learning_rate": "_learning_rate",
        "beta1": "_beta1",
        "beta2": "_beta2",
        "epsilon": "_epsilon",
        "weight_decay": "_wd",
    }
    TENSORS = {"_learning_rate_tensor": "learning_rate", "_momentum_tensor": "beta1"}

    def __init__(
        self,
        learning_rate: Any = 1.0,
        beta1: Any = 0.95,
        beta2: Any = 0.98,
        epsilon: Any = 1e-8,
        weight_decay: Any = 0.0,
        grad_averaging: bool = False,
        use_locking: bool = False,
        name: str = "NovoGrad",
        *,
        as_shipped: bool = False,
    ) -> None:
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate
        self._beta1 = beta1
        self._beta2 = beta2
        self._epsilon = epsilon
        self._wd = weight_decay
        self._grad_averaging = grad_averaging
        self._as_shipped = as_shipped

    def _rule(self) -> Rule:
        return NOVOGRAD

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        super()._create_slots(var_list)
        for var in var_list:
            if self._slots.get(var, _AVERAGE) is None:
                zero = compute_dtype(var.dtype)(0)
                title = self._slot_title(var, f"{self._name}/{_AVERAGE}")
                if is_symbolic(var):
                    made: Any = make_variable(zero, title, like=var)
                else:
                    made = Variable(zero, name=title, trainable=False)
                self._slots.put(var, _AVERAGE, made)

    def _scalars(self, dtype: Dtype) -> dict[str, Any]:
        share = self._rest("beta1", dtype) if self._grad_averaging else dtype(1)
        return {**super()._scalars(dtype), "share": share, "grad_scale": dtype(1)}

    def _rest(self, name: str, dtype: Any) -> Any:
        """1 - beta, which a Python float leaves in its own precision."""
        return as_scalar(1.0 - self._values[name], dtype)

    def _one_by_one(self, pairs: Sequence[Pair] = ()) -> bool:
        # The average of a variable that comes twice moves twice.
        variables = [id(var) for _, var in pairs]
        return len(set(variables)) < len(variables) or super()._one_by_one(pairs)

    def _repeats(self, given: list[tuple[Any, Any]], global_step: Any) -> bool:
        # Rows are added up before they are measured, which a repeated step does not do.
        if any(isinstance(grad, IndexedSlices) or _is_sparse(grad) for grad, _ in given):
            return False
        return super()._repeats(given, global_step)

    def _step(self, stepper: Stepper, pairs: list[Pair]) -> None:
        # The norm is that of the rows' sums.
        whole = [
            (grad.deduplicated() if isinstance(grad, IndexedSlices) else grad, var)
            for grad, var in pairs
        ]
        super()._step(stepper, whole)

    def _pipeline(self, variables: Sequence[Tensor], gradients: Sequence[Any]) -> Pipeline:
        return PerVariable(of=lambda measure: {"grad_scale": self._scales(variables, measure)})

    def _scales(self, variables: Sequence[Tensor], measure: Measure) -> np.ndarray:
        """What each gradient is multiplied by; the averages move."""
        squares = measure.squares()
        dtypes = [compute_dtype(var.dtype) for var in variables]
        averages = [self._slots.of(var, [_AVERAGE])[0].detach().numpy() for var in variables]
        scales = np.empty(len(variables))
        for dtype in set(dtypes):
            own = [index for index, each in enumerate(dtypes) if each is dtype]
            with np.errstate(all="ignore"):
                moved = squares[own].astype(dtype)
                if not self._as_shipped:
                    moved = self._moved(np.array([averages[i][()] for i in own]), moved, dtype)
                    for index, value in zip(own, moved, strict=True):
                        averages[index][...] = value
                epsilon = as_scalar(self._values["epsilon"], dtype)
                scales[own] = dtype(1) / np.sqrt(moved + epsilon)
        return scales

    def _moved(self, averages: np.ndarray, squares: np.ndarray, dtype: Any) -> np.ndarray:
        kept = averages * as_scalar(self._values["beta2"], dtype)
        return np.where(averages == 0, squares, kept + squares * self._rest("beta2", dtype))


def _is_sparse(grad: Any) -> bool:
    return isinstance(grad, Tensor) and grad.layout != torch.strided
