"""Optimizers as others write them, for what `thalweg conform` says of each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thalweg import Hyper, Rule, sign


class Plain(torch.optim.Optimizer):
    """Sign descent, by a loop over tensors; what is below differs in one way."""

    def __init__(self, params: Any, lr: float = 0.01, scale: float = 1.0) -> None:
        super().__init__(params, {"lr": lr, "scale": scale})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore
        self.steps += 1
        for group in self.param_groups:
            for place, param in enumerate(group["params"]):
                self.update(place, param, group)

    def update(self, place: int, param: Tensor, group: Any) -> None:
        param.sub_(group["lr"] * param.grad.sign())  # pyright: ignore


class Later(Plain):
    """Parts in step 3, in one element of the second parameter."""

    def update(self, place: int, param: Tensor, group: Any) -> None:
        super().update(place, param, group)
        if self.steps == 3 and place == 1:
            param[5] += 0.25


class LastPlace(Plain):
    """Rounds in another way."""

    def update(self, place: int, param: Tensor, group: Any) -> None:
        param.copy_((param.double() - group["lr"] * param.grad.sign().double()).float())  # pyright: ignore


class Doubled(Plain):
    """An argument of its own, by default on, makes it another optimizer."""

    def __init__(self, params: Any, lr: float = 0.01, double: bool = True) -> None:
        super().__init__(params, lr * (1 + double))


class Random(Plain):
    def update(self, place: int, param: Tensor, group: Any) -> None:
        param.sub_(group["lr"] * torch.rand(()))


class Still(Plain):
    def update(self, place: int, param: Tensor, group: Any) -> None:
        pass


class Broken(Plain):
    """Makes NaN of every parameter in the first step."""

    def update(self, place: int, param: Tensor, group: Any) -> None:
        param.fill_(float("nan"))


class Failing(Plain):
    def update(self, place: int, param: Tensor, group: Any) -> None:
        if self.steps == 4:
            raise ArithmeticError("no more")
        super().update(place, param, group)


class NotFinite(Plain):
    def update(self, place: int, param: Tensor, group: Any) -> None:
        super().update(place, param, group)
        if self.steps == 2:
            param.fill_(float("nan"))


class Scribbling(Plain):
    """Writes into gradients, and prints."""

    def update(self, place: int, param: Tensor, group: Any) -> None:
        super().update(place, param, group)
        param.grad.zero_()  # pyright: ignore
        print("a step")  # noqa: T201


class NeedsBase(Plain):
    def __init__(self, params: Any, base: Any, lr: float = 0.01) -> None:
        super().__init__(params, lr)


class NeedsClosure(Plain):
    def step(self, closure: Any) -> None:  # pyright: ignore
        if not closure().isfinite():
            raise ArithmeticError("no loss")
        super().step()


class OfGroups(Plain):
    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__([{**group, "lr": group["lr"]} for group in params], lr)


class OfModel(Plain):
    def __init__(self, model: torch.nn.Module, lr: float = 0.01) -> None:
        super().__init__([param for _, param in model.named_parameters()], lr)


class OfMatrices(Plain):
    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, lr)
        if any(param.ndim != 2 for param in self.param_groups[0]["params"]):
            raise ValueError("only matrices")


class WantsToBeTold(Plain):
    """Takes steps only in train mode, as schedule-free optimizers do."""

    def train(self) -> None:
        self.told = True

    def update(self, place: int, param: Tensor, group: Any) -> None:
        if not self.told:
            raise ArithmeticError("not in train mode")
        super().update(place, param, group)


class NoOptimizer:
    pass


def function() -> None:
    pass


def sign_descent(var, grad, *, learning_rate):
    return (var - learning_rate * sign(grad),)


SIGN = Rule(name="SignSGD", update=sign_descent, hypers=(Hyper("learning_rate", 0.001),))
