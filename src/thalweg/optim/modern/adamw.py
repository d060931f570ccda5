"""AdamW and rules like it."""

from __future__ import annotations

from thalweg._core.param_groups import Params
from thalweg.optim.modern.arguments import Betas, Rate
from thalweg.optim.modern.optimizer import ModernOptimizer


class AdamWKin(ModernOptimizer):
    """Base class of optimizers with the arguments of AdamW."""

    def _arguments(
        self,
        params: Params,
        lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        """Define the arguments of the constructor."""


class AdamWCoupled(AdamWKin):
    """Adam with a share of the variable in the gradient: the formula of `torch.optim.Adam`."""

    _rule = "ADAMW_COUPLED"


class AdamWDecoupled(AdamWKin):
    """AdamW that shrinks variables by lr times weight_decay, as `torch.optim.AdamW`."""

    _rule = "ADAMW_DECOUPLED"


class AdamWIndependent(AdamWKin):
    """AdamW that shrinks variables by weight_decay for any rate: use a small one.

    Source: Wortsman et al. 2023, https://arxiv.org/abs/2309.14322
    """

    _rule = "ADAMW_INDEPENDENT"


class AdamWCautiousDecay(AdamWKin):
    """AdamW without decay of elements that the step does not make smaller.

    Source: Chen et al. 2025, https://arxiv.org/abs/2510.12402
    """

    _rule = "ADAMW_CAUTIOUS_DECAY"


class NAdamW(AdamWKin):
    """AdamW with steps that look one gradient ahead.

    Source: Dozat 2016; timm.optim.NAdamW
    """

    _rule = "NADAMW"


class CautiousAdamW(AdamWKin):
    """AdamW that leaves out uphill steps, of the sign of the gradient, and lengthens the others.

    Source: Liang et al. 2024, https://arxiv.org/abs/2411.16085; timm.optim.AdamWLegacy
    """

    _rule = "CAUTIOUS_ADAMW"


class StableAdamW(ModernOptimizer):
    """AdamW with a smaller rate for a parameter if its gradients outgrow their root.

    Source: Wortsman et al. 2023, https://arxiv.org/abs/2304.13013
    """

    _rule = "STABLE_ADAMW"

    def _arguments(
        self,
        params: Params,
        lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.99),
        weight_decay: float = 1e-2,
        eps: float = 1e-8,
    ) -> None:
        """Define the arguments of the constructor."""
