"""Lion, which torch lacks: `PlainLion`, in tensor operations, and the fused `Lion`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg._base.showing import show_value
from thalweg._core.param_groups import Group, Params
from thalweg.errors import InvalidTypeError
from thalweg.optim.fused_torch_optimizer import FusedTorchOptimizer
from thalweg.optim.state_mismatch import are_numbers


class PlainLion(torch.optim.Optimizer):
    """Lion in tensor operations; `Lion` uses it if the engines do not support a step.

    Args:
        params, lr, betas, weight_decay: As those of `Lion`.

    Raises:
        ValueError: A number is out of range.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        if not lr >= 0:
            raise ValueError(f"Invalid learning rate: {lr}")
        if not are_numbers(betas, 2):
            raise InvalidTypeError(
                f"Invalid betas value: {show_value(betas)}; expected: two numbers."
            )
        for index, beta in enumerate(betas):
            if not 0 <= beta < 1:
                raise ValueError(f"Invalid beta parameter at index {index}: {beta}")
        if not weight_decay >= 0:
            raise ValueError(f"Invalid weight_decay value: {weight_decay}")
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], object] | None = None) -> Any:
        """Take a step; return the result of `closure`, or None."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, param.grad, group)
        return loss

    def _update(self, param: Tensor, grad: Tensor, group: Group) -> None:
        """Update a parameter and its state in place."""
        if grad.is_sparse:
            raise RuntimeError("Lion does not support sparse gradients")
        entries, (beta1, beta2) = self.state[param], group["betas"]
        if "exp_avg" not in entries:
            entries["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        mean = entries["exp_avg"]
        # Operations have the order of lucidrains' lion-pytorch; another order rounds otherwise.
        param.mul_(1 - group["lr"] * group["weight_decay"])
        step = (mean * beta1 + grad * (1 - beta1)).sign_()
        param.add_(step * -group["lr"])
        mean.mul_(beta2).add_(grad, alpha=1 - beta2)


class Lion(FusedTorchOptimizer, PlainLion):
    """Lion in one pass: a step is the sign of a mean; decay is decoupled, times the rate.

    Torch has no Lion. `state[p]` holds `exp_avg`. Sparse gradients raise RuntimeError.

    Args:
        params: Parameters or groups, as torch's optimizers take them.
        lr: The learning rate.
        betas: The weight of the mean in a step, and the fraction of the mean that a step keeps.
        weight_decay: A parameter is multiplied by 1 - lr * weight_decay first.

    Source: Chen et al. 2023, algorithm 2; lucidrains' lion-pytorch
    """

    _rule = "TORCH_LION"
    _counts = False


# Python's errors about arguments name the function by its qualified name.
PlainLion.__init__.__qualname__ = "Lion.__init__"
