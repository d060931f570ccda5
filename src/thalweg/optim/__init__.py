"""`torch.optim`, with steps in one pass over memory: `from thalweg import optim`.

All names of `torch.optim` are here. Twelve classes take their steps in one pass, and `Adafactor` in
three, with torch's numbers; all other names (`LBFGS`, `lr_scheduler`, ...) come from torch. `Lion`,
`Adan`, `LAMB` and further optimizers, which torch lacks, have torch's form. `Mixed` runs several of
these rules in one step, on separate groups; `groups` and `hidden_matrices` choose the groups.
`tensorflow` has TensorFlow's optimizers in torch's form, and `RuleOptimizer` runs any rule.

Modules are here, too: `thalweg.optim.adamw` has the class of this package;
`thalweg.optim.lr_scheduler`, `swa_utils`, `optimizer` and `lbfgs` come from torch.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

import torch

from thalweg.optim.classes import (
    ASGD,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    RAdam,
    RMSprop,
    Rprop,
    SparseAdam,
)
from thalweg.optim.param_groups import groups
from thalweg.optim.rule_names import HOMES

if TYPE_CHECKING:
    from torch.optim import LBFGS, Optimizer, lr_scheduler, swa_utils

    from thalweg._base.matrix_layout import MatrixLayout
    from thalweg.optim import diagnostics, tensorflow
    from thalweg.optim.adafactor import Adafactor
    from thalweg.optim.layout_decisions import MatrixLayouts, ParamLayout, matrix_layouts
    from thalweg.optim.lion import Lion
    from thalweg.optim.matrix_selection import hidden_matrices
    from thalweg.optim.memory_use import MemoryRow, MemoryUse, memory
    from thalweg.optim.mixed import Mixed
    from thalweg.optim.modern.adafactor_hf import AdafactorHF
    from thalweg.optim.modern.adamw import (
        AdamWCautiousDecay,
        AdamWCoupled,
        AdamWDecoupled,
        AdamWIndependent,
        CautiousAdamW,
        NAdamW,
        StableAdamW,
    )
    from thalweg.optim.modern.adaptive import ADOPT, LAMB, SM3, AdamH, Adan, AdEMAMix, LaProp
    from thalweg.optim.modern.mars import MARS
    from thalweg.optim.modern.matrix_rules import KLSOAP, SOAP, AdaMuon, Muon, MuonH, NorMuon
    from thalweg.optim.modern.prodigy import Prodigy
    from thalweg.optim.modern.schedule_free import ScheduleFreeAdamW, ScheduleFreeSGD
    from thalweg.optim.precision_conversion import full_precision
    from thalweg.optim.rule_optimizer import RuleOptimizer

__all__ = [
    "ADOPT", "ASGD", "KLSOAP", "LAMB", "LBFGS", "MARS", "SGD", "SM3", "SOAP", "AdEMAMix", "AdaMuon",
    "Adadelta", "Adafactor", "AdafactorHF", "Adagrad", "Adam", "AdamH", "AdamW",
    "AdamWCautiousDecay", "AdamWCoupled", "AdamWDecoupled", "AdamWIndependent", "Adamax", "Adan",
    "CautiousAdamW", "LaProp", "Lion", "MatrixLayout", "MatrixLayouts", "MemoryRow", "MemoryUse",
    "Mixed", "Muon", "MuonH", "NAdam", "NAdamW", "NorMuon", "Optimizer", "ParamLayout", "Prodigy",
    "RAdam", "RMSprop", "Rprop", "RuleOptimizer", "ScheduleFreeAdamW", "ScheduleFreeSGD",
    "SparseAdam", "StableAdamW", "diagnostics", "full_precision", "groups", "hidden_matrices",
    "lr_scheduler", "matrix_layouts", "memory", "swa_utils", "tensorflow",
]  # fmt: skip
_HOMES = {
    **HOMES,
    "MemoryRow": "memory_use",
    "MemoryUse": "memory_use",
    "Mixed": "mixed",
    "memory": "memory_use",
    "full_precision": "precision_conversion",
    "RuleOptimizer": "rule_optimizer",
    "hidden_matrices": "matrix_selection",
    "matrix_layouts": "layout_decisions",
    "MatrixLayouts": "layout_decisions",
    "ParamLayout": "layout_decisions",
    "MatrixLayout": "matrix_layout",
}
# Names that a release of torch has beyond these.
__all__ += [n for n in dir(torch.optim) if not (n.startswith("_") or n in __all__)]  # pyright: ignore


def _get(name: str) -> Any:
    if name in ("diagnostics", "tensorflow"):
        return importlib.import_module(f"thalweg.optim.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"thalweg.optim.{_HOMES[name]}"), name)
    if not name.startswith("__"):
        with contextlib.suppress(AttributeError):
            return getattr(torch.optim, name)
    raise AttributeError(f"module 'thalweg.optim' has no attribute {name!r}")


# Type checkers must not see `__getattr__`, so that they report misspelt names.
if not TYPE_CHECKING:
    __getattr__ = _get


def __dir__() -> list[str]:
    return sorted(__all__)
