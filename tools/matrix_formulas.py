"""Matrix rules in float64, written out from papers and packages for `record_matrices.py`."""

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
NAMED = {"original": TRIPLE, "quintic": QUINTIC, "polar_express": POLAR_EXPRESS}


def newton_schulz(matrix: Tensor, named: str, steps: int, eps: float) -> Tensor:
    """About the orthogonal factor of a matrix; the last triple is repeated."""
    known = NAMED[named]
    tall = len(matrix) > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=eps)
    for step in range(steps):
        a, b, c = known[min(step, len(known) - 1)]
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def scale_of(named: str | None, rows: int, columns: int) -> float:
    """What the rate of an orthogonal step is multiplied by."""
    if named in (None, "original"):
        return max(1.0, rows / columns) ** 0.5
    return 0.2 * max(rows, columns) ** 0.5


class Formula(torch.optim.Optimizer):
    """A step in float64, and a parameter of another type that is rounded at the end."""

    defaults_of_class: dict[str, Any]

    def __init__(self, params: Any, **given: Any) -> None:
        super().__init__(params, {**self.defaults_of_class, **given})

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take a step."""
        for group in self.param_groups:
            for param in group["params"]:
                own = self.state[param]
                own["t"] = own.get("t", 0) + 1
                var = own.setdefault("var", param.double())
                own["var"] = self.update(var, param.grad.double(), own, **group)
                param.copy_(own["var"])

    def update(self, var: Tensor, grad: Tensor, own: Any, **group: Any) -> Tensor:
        """The variable after a step."""
        raise NotImplementedError


class Muon(Formula):
    """Jordan et al. 2024, with torch.optim's arguments."""

    defaults_of_class = {"lr": 1e-3, "weight_decay": 0.1, "momentum": 0.95, "nesterov": True,
                         "ns_coefficients": "original", "eps": 1e-7, "ns_steps": 5,
                         "adjust_lr_fn": None}  # fmt: skip

    def direction(self, grad: Tensor, own: Any, **group: Any) -> Tensor:
        """The orthogonal factor of the momentum."""
        momentum = group["momentum"]
        own["m"] = torch.lerp(own.get("m", torch.zeros_like(grad)), grad, 1 - momentum)
        mean = torch.lerp(grad, own["m"], momentum) if group["nesterov"] else own["m"]
        return newton_schulz(mean, group["ns_coefficients"], group["ns_steps"], group["eps"])

    def update(self, var: Tensor, grad: Tensor, own: Any, **group: Any) -> Tensor:
        step = self.direction(grad, own, **group)
        scale = scale_of(group["adjust_lr_fn"], *var.shape)
        return var * (1 - group["lr"] * group["weight_decay"]) - group["lr"] * scale * step


class NorMuon(Muon):
    """Li et al. 2025: each row has its rate; "match_rms" is the paper's, the other the code's."""

    defaults_of_class = Muon.defaults_of_class | {
        "lr": 0.02, "weight_decay": 0.0, "beta2": 0.95, "row_eps": 1e-10,
        "update_scale": "preserve_norm",
    }  # fmt: skip

    def update(self, var: Tensor, grad: Tensor, own: Any, **group: Any) -> Tensor:
        step = self.direction(grad, own, **group)
        rows = (step * step).mean(dim=1, keepdim=True)
        own["v"] = torch.lerp(own.get("v", torch.zeros_like(rows)), rows, 1 - group["beta2"])
        normed = step / (own["v"].sqrt() + group["row_eps"])
        length, scale = step.norm(), scale_of(group["adjust_lr_fn"], *var.shape)
        if group["update_scale"] == "match_rms":
            length, scale = 0.2 * var.numel() ** 0.5, 1.0
        normed = normed * (length / (normed.norm() + group["row_eps"]))
        return var * (1 - group["lr"] * group["weight_decay"]) - group["lr"] * scale * normed


class MuonH(Muon):
    """Hyperball, 2026: a step of the radius times the rate along Muon's, and back to the sphere."""

    def update(self, var: Tensor, grad: Tensor, own: Any, **group: Any) -> Tensor:
        step, radius = self.direction(grad, own, **group), var.norm()
        moved = var - group["lr"] * step * (radius / step.norm())
        return moved * (radius / moved.norm())


def descending(factor: Tensor) -> Tensor:
    """Eigenvectors as columns, that of the largest eigenvalue first."""
    return torch.linalg.eigh(factor).eigenvectors.flip(1)


def projected(matrix: Tensor, bases: Any) -> Tensor:
    """A matrix in the eigenbases; None is the identity."""
    left, right = bases
    matrix = matrix if left is None else left.T @ matrix
    return matrix if right is None else matrix @ right


def back(matrix: Tensor, bases: Any) -> Tensor:
    """And from there."""
    return projected(matrix, [each if each is None else each.T for each in bases])


def turned(factors: Any, bases: Any, square: Tensor) -> tuple[Any, Tensor]:
    """Bases after a step of orthogonal iteration, and the mean square in their order."""
    found: list[Any] = []
    for axis, (factor, basis) in enumerate(zip(factors, bases, strict=True)):
        if basis is None:
            found.append(None)
            continue
        product = factor @ basis
        order = torch.argsort((basis * product).sum(dim=0), descending=True)
        square = square.index_select(axis, order)
        found.append(torch.linalg.qr(product[:, order]).Q)
    return found, square


class SOAP(Formula):
    """Vyas et al. 2024, as the authors wrote it first: the first gradient only makes the bases."""

    defaults_of_class = {"lr": 3e-3, "betas": (0.95, 0.95), "weight_decay": 1e-2, "eps": 1e-8,
                         "precondition_frequency": 10, "max_precondition_dim": 10000}  # fmt: skip

    def products(self, grad: Tensor, own: Any, eps: float) -> tuple[Tensor, Tensor]:
        """What factors are means of."""
        return grad @ grad.T, grad.T @ grad

    def factors(self, grad: Tensor, own: Any, beta: float, eps: float) -> None:
        """Running means of both products."""
        found = self.products(grad, own, eps)
        old = own.get("factors", [torch.zeros_like(each) for each in found])
        own["factors"] = [torch.lerp(kept, each, 1 - beta)
                          for kept, each in zip(old, found, strict=True)]  # fmt: skip

    def update(self, var: Tensor, grad: Tensor, own: Any, **group: Any) -> Tensor:
        (beta1, beta2), t = group["betas"], own["t"] - 1
        limit = group["max_precondition_dim"]
        if t == 0:
            self.factors(grad, own, beta2, group["eps"])
            own["bases"] = [descending(each) if len(each) <= limit else None
                            for each in own["factors"]]  # fmt: skip
            own["m"], own["v"] = torch.zeros_like(grad), torch.zeros_like(grad)
            return var
        own["m"] = torch.lerp(own["m"], grad, 1 - beta1)
        own["v"] = torch.lerp(own["v"], projected(grad, own["bases"]).square(), 1 - beta2)
        ratio = projected(own["m"], own["bases"]) / (own["v"].sqrt() + group["eps"])
        rate = group["lr"] * (1 - beta2**t) ** 0.5 / (1 - beta1**t)
        var = var - rate * back(ratio, own["bases"])
        var = var * (1 - group["lr"] * group["weight_decay"])
        self.factors(grad, own, beta2, group["eps"])
        if t % group["precondition_frequency"] == 0:
            own["bases"], own["v"] = turned(own["factors"], own["bases"], own["v"])
        return var


def whitened(grad: Tensor, own: Any, eps: float) -> tuple[Tensor, Tensor]:
    """Products of a gradient, each with the inverse of the other side in between."""
    inverses: list[Tensor] = []
    for factor, basis in zip(own["factors"], own["bases"], strict=True):
        if basis is None:
            inverses.append(torch.eye(len(factor), dtype=grad.dtype))
            continue
        values = (basis * (factor @ basis)).sum(dim=0).clamp(min=eps)
        inverses.append((basis / (values * len(basis))) @ basis.T)
    left, right = inverses
    return grad @ right @ grad.T, grad.T @ left @ grad


class KLSOAP(SOAP):
    """Lin et al. 2025, with SOAP's calendar: its first products have nothing to whiten them."""

    def products(self, grad: Tensor, own: Any, eps: float) -> tuple[Tensor, Tensor]:
        return whitened(grad, own, eps) if "bases" in own else super().products(grad, own, eps)
