"""`torch.optim`, whose steps are one pass over memory: `from thalweg import optim`.

What `torch.optim` has is here under its names. Twelve of its classes take their steps in one pass,
with torch's numbers; all others (`LBFGS`, `Adafactor`, `lr_scheduler`, ...) are torch's own.
`Lion`, `Adan`, `LAMB` and others, which torch lacks, are in the form of the twelve. `Mixed` runs
several of them in one step, each on groups of its own, which `groups` and `hidden_matrices` choose.
`tensorflow` has TensorFlow's optimizers in the same form, and `RuleOptimizer` runs any rule.
"""

from __future__ import annotations

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
from thalweg.optim.kinds import HOMES
from thalweg.optim.selecting import groups

if TYPE_CHECKING:
    from thalweg.optim import tensorflow
    from thalweg.optim.encoding import full_precision
    from thalweg.optim.hidden import hidden_matrices
    from thalweg.optim.lion import Lion
    from thalweg.optim.mixed import Mixed
    from thalweg.optim.modern.adamw import (
        AdamWCautiousDecay,
        AdamWCoupled,
        AdamWDecoupled,
        AdamWIndependent,
        CautiousAdamW,
        NAdamW,
        StableAdamW,
    )
    from thalweg.optim.modern.further import (
        ADOPT,
        LAMB,
        AdamH,
        Adan,
        AdEMAMix,
        LaProp,
    )
    from thalweg.optim.modern.matrices import (
        KLSOAP,
        SOAP,
        Muon,
        MuonH,
        NorMuon,
    )
    from thalweg.optim.modern.schedule_free import (
        ScheduleFreeAdamW,
        ScheduleFreeSGD,
    )
    from thalweg.optim.rule_optimizer import RuleOptimizer

__all__ = [
    "ADOPT",
    "ASGD",
    "KLSOAP",
    "LAMB",
    "SGD",
    "SOAP",
    "AdEMAMix",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamH",
    "AdamW",
    "AdamWCautiousDecay",
    "AdamWCoupled",
    "AdamWDecoupled",
    "AdamWIndependent",
    "Adamax",
    "Adan",
    "CautiousAdamW",
    "LaProp",
    "Lion",
    "Mixed",
    "Muon",
    "MuonH",
    "NAdam",
    "NAdamW",
    "NorMuon",
    "RAdam",
    "RMSprop",
    "Rprop",
    "RuleOptimizer",
    "ScheduleFreeAdamW",
    "ScheduleFreeSGD",
    "SparseAdam",
    "StableAdamW",
    "full_precision",
    "groups",
    "hidden_matrices",
    "tensorflow",
]
_HOMES = {
    **HOMES,
    "Mixed": "mixed",
    "full_precision": "encoding",
    "RuleOptimizer": "rule_optimizer",
    "hidden_matrices": "hidden",
}
__all__ += [name for name in torch.optim.__all__ if name not in __all__]


def __getattr__(name: str) -> Any:
    if name == "tensorflow":
        return importlib.import_module("thalweg.optim.tensorflow")
    if name in _HOMES:
        return getattr(importlib.import_module(f"thalweg.optim.{_HOMES[name]}"), name)
    if name.startswith("__"):
        raise AttributeError(f"module 'thalweg.optim' has no attribute {name!r}")
    return getattr(torch.optim, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *dir(torch.optim)})
