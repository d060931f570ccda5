"""NovoGrad."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from thalweg._base.scalars import as_scalar
from thalweg._core.step_adapter import Dtype
from thalweg.formula import Rule
from thalweg.rules import NOVOGRAD
from thalweg.rules.novograd import NOVOGRAD_AS_SHIPPED
from thalweg.v1.train.rule_optimizer import RuleOptimizer, check_hyper
from thalweg.v1.train.step_adapter import Values

_AVERAGE = "grads_ema"


class NovoGrad(RuleOptimizer):
    """Momentum of normalised gradients; the norm is a moving average for each variable.

        v <- beta2 v + (1 - beta2) |g|^2, v <- |g|^2 as long as v is 0
        h = g / sqrt(v + epsilon) + weight_decay var
        a <- beta1 a + h;  var <- var - learning_rate a
        grad_averaging: a <- beta1 a + (1 - beta1) h

    The squares of a gradient are summed in float64. A sparse gradient counts as a dense gradient:
    repeated rows are added, and all rows change.

    Args:
        learning_rate: A float, 0-d tensor, or callable without arguments.
        beta1: Decay of the momentum a. A float, tensor or callable.
        beta2: Decay of the average v of squared norms. A float, tensor or callable.
        epsilon: Added to v, inside the root. A float, tensor or callable.
        weight_decay: Factor of the variable that is added to the normalised gradient. A float,
            tensor or callable.
        grad_averaging: True to multiply h by 1 - beta1.
        use_locking: See `Optimizer`.
        name: Name of the optimizer.
        as_shipped: True for `v = |g|^2` in every step, as in OpenSeq2Seq, which does not store the
            average; `beta2` has no effect then.

    Differs from:
        OpenSeq2Seq refuses float16 and float64 variables, callables, tuples of pairs, and gradients
        that are None, and sums the squares in float32. torch.optim has no NovoGrad.

    Example:
        >>> from thalweg import Variable
        >>> w = Variable([3.0, 4.0], name="w")
        >>> opt = NovoGrad(0.5)
        >>> opt.apply_gradients([([3.0, 4.0], w)])
        >>> w.numpy()
        array([2.7, 3.6], dtype=float32)

    Reference: https://arxiv.org/abs/1905.11286; OpenSeq2Seq, optimizers.novograd
    """

    HYPERS = {
        "learning_rate": "_learning_rate", "beta1": "_beta1", "beta2": "_beta2",
        "epsilon": "_epsilon", "weight_decay": "_wd",
    }  # fmt: skip
    TENSORS = {"_learning_rate_tensor": "learning_rate", "_momentum_tensor": "beta1"}

    def __init__(
        self,
        learning_rate: object = 1.0,
        beta1: object = 0.95,
        beta2: object = 0.98,
        epsilon: object = 1e-8,
        weight_decay: object = 0.0,
        grad_averaging: bool = False,
        use_locking: bool = False,
        name: str = "NovoGrad",
        *,
        as_shipped: bool = False,
    ) -> None:
        super().__init__(use_locking, name)
        self._learning_rate = check_hyper("learning_rate", learning_rate)
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon
        self._wd = weight_decay
        self._grad_averaging, self._as_shipped = grad_averaging, as_shipped

    def _choose_rule(self) -> Rule:
        return NOVOGRAD_AS_SHIPPED if self._as_shipped else NOVOGRAD

    def _slot_fills(self) -> Iterable[tuple[str, float, str]]:
        return [("momentum", 0.0, self._name), (_AVERAGE, 0.0, f"{self._name}/{_AVERAGE}")]

    def _hyper_scalars(self, values: Values, dtype: Dtype, group: Hashable) -> Values:
        """Return {name of a rule's scalar: number of type `dtype`} from the hyperparameters."""
        # 1 - beta, which a Python float leaves in its own precision.
        scalars = super()._hyper_scalars(values, dtype, group)
        scalars["fresh"] = as_scalar(1.0 - values["beta2"], dtype)
        if self._grad_averaging:
            scalars["share"] = as_scalar(1.0 - values["beta1"], dtype)
        return scalars
