"""Matrix rules in float64, written out from papers and packages for `record_matrices.py`.

`record_modern.py` has elementwise rules in the same form.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

TRIPLE = ((3.4445, -4.7750, 2.0315),)
QUINTIC = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
POLAR_EXPRESS = (
    (8.237312490495555, -23.157747414558198, 16.680568411445915),
    (4.082441999064835, -2.893047735332586, 0.5252849256975648),
    (3.9263479922546582, -2.8547468034765298, 0.5318022422894988),
    (3.2982187133085143, -2.424541981026706, 0.48632008358844075),
    (2.2970369434552573, -1.63662558125903, 0.4002628455953627),
    (1.8763805351440397, -1.2347896577722228, 0.35891887501668385),
    (1.8564423485617974, -1.2132449880935525, 0.3568003487825883),
    (1.8749994008682747, -1.2499988017229169, 0.3749994008546422),
)
COEFFICIENTS = {"original": TRIPLE, "quintic": QUINTIC, "polar_express": POLAR_EXPRESS}


def newton_schulz(matrix: Tensor, coefficients_name: str, steps: int, eps: float) -> Tensor:
    """Approximate the orthogonal factor of a matrix; the last triple is repeated."""
    triples_ = COEFFICIENTS[coefficients_name]
    tall = len(matrix) > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=eps)
    for step in range(steps):
        a, b, c = triples_[min(step, len(triples_) - 1)]
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def scale_of(adjustment: str | None, rows: int, columns: int) -> float:
    """Return the factor of the learning rate of an orthogonal step."""
    if adjustment in (None, "original"):
        return max(1.0, rows / columns) ** 0.5
    return 0.2 * max(rows, columns) ** 0.5


class Formula(torch.optim.Optimizer):
    """A step in float64, and a parameter of another type that is rounded at the end."""

    defaults_of_class: dict[str, Any]

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, {**self.defaults_of_class, **options})

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take a step."""
        for group in self.param_groups:
            for param in group["params"]:
                state_ = self.state[param]
                state_["t"] = state_.get("t", 0) + 1
                var = state_.setdefault("var", param.double())
                state_["var"] = self.update(var, param.grad.double(), state_, **group)
                param.copy_(state_["var"])

    def update(self, var: Tensor, grad: Tensor, state: Any, **group: Any) -> Tensor:
        """Return the variable after a step."""
        raise NotImplementedError


class Muon(Formula):
    """Jordan et al. 2024, with torch.optim's arguments."""

    defaults_of_class = {"lr": 1e-3, "weight_decay": 0.1, "momentum": 0.95, "nesterov": True,
                         "ns_coefficients": "original", "eps": 1e-7, "ns_steps": 5,
                         "adjust_lr_fn": None}  # fmt: skip

    def direction(self, grad: Tensor, state: Any, **group: Any) -> Tensor:
        """Return the orthogonal factor of the momentum."""
        momentum = group["momentum"]
        state["m"] = torch.lerp(state.get("m", torch.zeros_like(grad)), grad, 1 - momentum)
        mean = torch.lerp(grad, state["m"], momentum) if group["nesterov"] else state["m"]
        return newton_schulz(mean, group["ns_coefficients"], group["ns_steps"], group["eps"])

    def update(self, var: Tensor, grad: Tensor, state: Any, **group: Any) -> Tensor:
        step = self.direction(grad, state, **group)
        scale = scale_of(group["adjust_lr_fn"], *var.shape)
        return var * (1 - group["lr"] * group["weight_decay"]) - group["lr"] * scale * step


class NorMuon(Muon):
    """Li et al. 2025: each row has its rate; "match_rms" is the paper's, the other the code's."""

    defaults_of_class = Muon.defaults_of_class | {
        "lr": 0.02, "weight_decay": 0.0, "beta2": 0.95, "row_eps": 1e-10,
        "update_scale": "preserve_norm",
    }  # fmt: skip

    def update(self, var: Tensor, grad: Tensor, state: Any, **group: Any) -> Tensor:
        step = self.direction(grad, state, **group)
        rows = (step * step).mean(dim=1, keepdim=True)
        state["v"] = torch.lerp(state.get("v", torch.zeros_like(rows)), rows, 1 - group["beta2"])
        normed = step / (state["v"].sqrt() + group["row_eps"])
        length, scale = step.norm(), scale_of(group["adjust_lr_fn"], *var.shape)
        if group["update_scale"] == "match_rms":
            length, scale = 0.2 * var.numel() ** 0.5, 1.0
        normed = normed * (length / (normed.norm() + group["row_eps"]))
        return var * (1 - group["lr"] * group["weight_decay"]) - group["lr"] * scale * normed


class AdaMuon(Muon):
    """Si et al. 2025, algorithm 1: orthogonalized signs over the roots of their mean squares."""

    defaults_of_class = Muon.defaults_of_class | {"lr": 0.02, "weight_decay": 0.01, "v_eps": 1e-8}

    def update(self, var: Tensor, grad: Tensor, state: Any, **group: Any) -> Tensor:
        share, eps = group["momentum"], group["v_eps"]
        state["m"] = torch.lerp(state.get("m", torch.zeros_like(grad)), grad, 1 - share)
        mean = torch.lerp(grad, state["m"], share) if group["nesterov"] else state["m"]
        factor = newton_schulz(mean.sign(), "original", group["ns_steps"], group["eps"])
        state["v"] = share * state.get("v", 0.0) + (1 - share) * factor.square()
        step = factor / (state["v"].sqrt() + eps)
        step = step * (0.2 * var.numel() ** 0.5 / (step.norm() + eps))
        return var * (1 - group["lr"] * group["weight_decay"]) - group["lr"] * step


class MuonH(Muon):
    """Hyperball, 2026: a step of the radius times the rate along Muon's, and back to the sphere."""

    def update(self, var: Tensor, grad: Tensor, state: Any, **group: Any) -> Tensor:
        step, radius = self.direction(grad, state, **group), var.norm()
        new_var = var - group["lr"] * step * (radius / step.norm())
        return new_var * (radius / new_var.norm())


def descending(factor: Tensor) -> Tensor:
    """Return eigenvectors as columns, that of the largest eigenvalue first."""
    return torch.linalg.eigh(factor).eigenvectors.flip(1)


def projected(matrix: Tensor, bases: Any) -> Tensor:
    """Return a matrix in the eigenbases; None is the identity."""
    left, right = bases
    matrix = matrix if left is None else left.T @ matrix
    return matrix if right is None else matrix @ right


def back(matrix: Tensor, bases: Any) -> Tensor:
    """Return a matrix of the eigenbases in the coordinates of the parameter."""
    return projected(matrix, [basis if basis is None else basis.T for basis in bases])


def turned(factors: Any, bases: Any, square: Tensor) -> tuple[Any, Tensor]:
    """Return bases after a step of orthogonal iteration, and the mean square in their order."""
    new_bases: list[Any] = []
    for axis, (factor, basis) in enumerate(zip(factors, bases, strict=True)):
        if basis is None:
            new_bases.append(None)
            continue
        product = factor @ basis
        order = torch.argsort((basis * product).sum(dim=0), descending=True)
        square = square.index_select(axis, order)
        new_bases.append(torch.linalg.qr(product[:, order]).Q)
    return new_bases, square


class SOAP(Formula):
    """Vyas et al. 2024, as the authors wrote it first: the first gradient only makes the bases."""

    defaults_of_class = {"lr": 3e-3, "betas": (0.95, 0.95), "weight_decay": 1e-2, "eps": 1e-8,
                         "precondition_frequency": 10, "max_precondition_dim": 10000}  # fmt: skip

    def products(self, grad: Tensor, state: Any, eps: float) -> tuple[Tensor, Tensor]:
        """Return the products whose running means are the factors."""
        return grad @ grad.T, grad.T @ grad

    def factors(self, grad: Tensor, state: Any, beta: float, eps: float) -> None:
        """Return running means of both products."""
        products = self.products(grad, state, eps)
        old = state.get("factors", [torch.zeros_like(product) for product in products])
        state["factors"] = [torch.lerp(old_factor, product, 1 - beta)
                          for old_factor, product in zip(old, products, strict=True)]  # fmt: skip

    def update(self, var: Tensor, grad: Tensor, state: Any, **group: Any) -> Tensor:
        (beta1, beta2), t = group["betas"], state["t"] - 1
        limit = group["max_precondition_dim"]
        if t == 0:
            self.factors(grad, state, beta2, group["eps"])
            state["bases"] = [descending(factor) if len(factor) <= limit else None
                            for factor in state["factors"]]  # fmt: skip
            state["m"], state["v"] = torch.zeros_like(grad), torch.zeros_like(grad)
            return var
        state["m"] = torch.lerp(state["m"], grad, 1 - beta1)
        state["v"] = torch.lerp(state["v"], projected(grad, state["bases"]).square(), 1 - beta2)
        ratio = projected(state["m"], state["bases"]) / (state["v"].sqrt() + group["eps"])
        rate = group["lr"] * (1 - beta2**t) ** 0.5 / (1 - beta1**t)
        var = var - rate * back(ratio, state["bases"])
        var = var * (1 - group["lr"] * group["weight_decay"])
        self.factors(grad, state, beta2, group["eps"])
        if t % group["precondition_frequency"] == 0:
            state["bases"], state["v"] = turned(state["factors"], state["bases"], state["v"])
        return var


def whitened(grad: Tensor, state: Any, eps: float) -> tuple[Tensor, Tensor]:
    """Return products of a gradient, each with the inverse of the other side in between."""
    inverses: list[Tensor] = []
    for factor, basis in zip(state["factors"], state["bases"], strict=True):
        if basis is None:
            inverses.append(torch.eye(len(factor), dtype=grad.dtype))
            continue
        values = (basis * (factor @ basis)).sum(dim=0).clamp(min=eps)
        inverses.append((basis / (values * len(basis))) @ basis.T)
    left, right = inverses
    return grad @ right @ grad.T, grad.T @ left @ grad


class KLSOAP(SOAP):
    """Lin et al. 2025, with SOAP's calendar: its first products have nothing to whiten them."""

    def products(self, grad: Tensor, state: Any, eps: float) -> tuple[Tensor, Tensor]:
        return (
            whitened(grad, state, eps) if "bases" in state else super().products(grad, state, eps)
        )
