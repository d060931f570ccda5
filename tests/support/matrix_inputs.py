"""Inputs for comparing matrix rules with their authors' packages, as in `modern_inputs.py`.

Values are mixed better than there: Newton-Schulz and eigenvectors tell a matrix of condition 2000
from one of 10. SOAP gets sides that are of full rank at the first gradient: of any other,
eigenvectors are what LAPACK happens to choose, and Adam in their basis is something else each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from modern_inputs import Case

SHAPES = ((24, 16), (16, 24), (6, 8, 3, 3), (300, 5), (16, 16))


@dataclass(frozen=True)
class MatrixCase(Case):
    """A rule of matrices.

    Attributes:
        formula: The class of `tools/matrix_formulas.py`, which takes the arguments of ours.
        shapes: Of the parameters; packages get those of more dimensions as matrices.
    """

    formula: str = ""
    shapes: tuple[tuple[int, ...], ...] = SHAPES

    def params_of(self, dtype: torch.dtype) -> list[Tensor]:
        """Return whole numbers over 64 in [-2, 2]."""
        return [_values(shape, 1000 + place, 64.0).to(dtype).requires_grad_()
                for place, shape in enumerate(self.shapes)]  # fmt: skip

    def gradients_of(self, step: int, dtype: torch.dtype) -> list[Tensor]:
        """Return gradients of a step; every third step has larger ones."""
        scale = 32.0 if step % 3 == 0 else 256.0
        return [_values(shape, 17 * step + place, scale).to(dtype)
                for place, shape in enumerate(self.shapes)]  # fmt: skip


def _muon(arguments: dict[str, Any], **peer_arguments: Any) -> MatrixCase:
    package = "timm.optim:Muon" if peer_arguments else "torch.optim:Muon"
    return MatrixCase("Muon", package, 0.02, arguments, arguments | peer_arguments, formula="Muon")


_TIMM: dict[str, Any] = {"nesterov": True, "adjust_lr_fn": "original"}
_EMERGING: dict[str, Any] = {"fp32_matmul_prec": "highest"}
_SIDES = {"max_precondition_dim": 16}
MATRIX_CASES = (
    _muon({}),
    _muon({"adjust_lr_fn": "match_rms_adamw"}),
    _muon({"nesterov": False}),
    _muon({"ns_coefficients": "quintic"}, **_TIMM),
    _muon({"ns_coefficients": "quintic", "ns_steps": 7}, **_TIMM),
    _muon({"ns_coefficients": "polar_express"}, **_TIMM),
    MatrixCase("NorMuon", "pytorch_optimizer:NorMuon", 0.02, formula="NorMuon"),
    MatrixCase(
        "NorMuon",
        "pytorch_optimizer:NorMuon",
        0.02,
        {"update_scale": "match_rms"},
        formula="NorMuon",
    ),
    MatrixCase(
        "AdaMuon",
        "adamuon:AdaMuon",
        0.02,
        theirs={"rank": 0, "world_size": 1},
        formula="AdaMuon",
    ),
    MatrixCase(
        "MuonH",
        "emerging_optimizers.orthogonalized_optimizers:MuonHyperball",
        0.02,
        theirs={**_EMERGING, "nesterov": True, "coefficient_type": "simple", "weight_decay": 0.0},
        decays=(0.0,),
        formula="MuonH",
    ),
    MatrixCase("SOAP", "pytorch_optimizer:SOAP", 0.01, _SIDES, formula="SOAP"),
    MatrixCase("KLSOAP", "", 0.01, _SIDES, formula="KLSOAP"),
)
MATRIX_TABLE = {
    f"{case.name}-{decay}": (case, decay) for case in MATRIX_CASES for decay in case.decays
}


def _values(shape: tuple[int, ...], seed: int, scale: float) -> Tensor:
    # SplitMix64's numbers, the same with every version of every package.
    count = int(np.prod(shape, dtype=np.int64))
    mixed = (np.arange(count, dtype=np.uint64) + np.uint64(1000003 * (seed + 1))) * np.uint64(
        0x9E3779B97F4A7C15
    )
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    integers = (mixed >> np.uint64(40)) % np.uint64(257)
    return torch.from_numpy((integers.astype(np.float32) - 128) / scale).reshape(shape)
