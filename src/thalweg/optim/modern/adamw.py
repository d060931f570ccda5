"""AdamW and rules like it."""

from __future__ import annotations

from thalweg._core.param_groups import Params
from thalweg.optim.modern.optimizer import Betas, ModernOptimizer, Rate


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
        """Do nothing; the signature declares the arguments of the constructor."""


class AdamWCoupled(AdamWKin):
    """Adam whose weight decay is added to the gradient: the formula of `torch.optim.Adam`."""

    _rule = "ADAMW_COUPLED"


class AdamWDecoupled(AdamWKin):
    """AdamW that shrinks variables by lr times weight_decay, as `torch.optim.AdamW`."""

    _rule = "ADAMW_DECOUPLED"


class AdamWIndependent(AdamWKin):
    """AdamW whose decay is not multiplied by the rate: use a small `weight_decay`.

    Source: Wortsman et al. 2023, https://arxiv.org/abs/2309.14322
    """

    _rule = "ADAMW_INDEPENDENT"


class AdamWCautiousDecay(AdamWKin):
    """AdamW that decays only elements whose magnitude the step reduces.

    Source: Chen et al. 2025, https://arxiv.org/abs/2510.12402
    """

    _rule = "ADAMW_CAUTIOUS_DECAY"


class NAdamW(AdamWKin):
    """AdamW with Nesterov momentum.

    Source: Dozat 2016; timm.optim.NAdamW
    """

    _rule = "NADAMW"


class CautiousAdamW(AdamWKin):
    """AdamW without update elements whose sign differs from the gradient; the rest is scaled up.

    Source: Liang et al. 2024, https://arxiv.org/abs/2411.16085; timm.optim.AdamWLegacy
    """

    _rule = "CAUTIOUS_ADAMW"


class StableAdamW(ModernOptimizer):
    """AdamW that lowers a parameter's rate if its gradients exceed their running root mean square.

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
        """Do nothing; the signature declares the arguments of the constructor."""
