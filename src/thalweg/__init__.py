"""Optimizers for PyTorch: torch's with torch's numbers, TensorFlow's with TensorFlow's."""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

from thalweg._base.lazy import UPPER_PACKAGES as _UPPER_PACKAGES
from thalweg._core.config_registry import faces as _faces
from thalweg.errors import (
    CancelledError,
    CheckpointMismatchError,
    CheckpointWarning,
    CheckpointWriteError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidConfigError,
    InvalidTypeError,
    LayoutError,
    MissingFileError,
    NotFoundError,
    NumericsWarning,
    OutOfRangeError,
    PerformanceWarning,
    ReplicaLostError,
    ReplicaMismatchError,
    RuleError,
    ThalwegError,
    UnsafeCheckpointError,
    UnsupportedCheckpointError,
)
from thalweg.formula import (
    Hyper,
    Rule,
    Slot,
    absolute,
    exp,
    log,
    maximum,
    minimum,
    power,
    sign,
    sqrt,
    where,
)
from thalweg.indexed_slices import IndexedSlices, embedding_lookup
from thalweg.variable import (
    Variable,
    VariableAggregation,
    VariableSynchronization,
    name_of,
    named_variables,
)
from thalweg.version import __version__ as __version__

if TYPE_CHECKING:
    from thalweg import checkpoint, diagnostics, distribute, keras, openseq2seq, optim, v1
    from thalweg._base.fused_stage import FusedStage
    from thalweg._base.rule_passes import Measure, Pass, Stage
    from thalweg._base.tensor_patching import lend_names, take_back_names
    from thalweg._engines import check_rule, engine
    from thalweg.autodiff import GradientTape
    from thalweg.tf.install import install_as_tensorflow

# Imported at first use, so that `import thalweg` costs little beside torch.
_MODULES = ("autodiff", "checkpoint", "diagnostics", "distribute", "keras", "openseq2seq", "optim",
            "tf", "v1")  # fmt: skip
_HOMES = {
    "GradientTape": "autodiff",
    "FusedStage": "_base.fused_stage",
    **dict.fromkeys(("Measure", "Pass", "Stage"), "_base.rule_passes"),
    "check_rule": "_engines",
    "engine": "_engines",
    "install_as_tensorflow": "tf.install",
    "lend_names": "_base.tensor_patching",
    "take_back_names": "_base.tensor_patching",
}

__all__ = [
    "CancelledError",
    "CheckpointMismatchError",
    "CheckpointWarning",
    "CheckpointWriteError",
    "DataLossError",
    "FailedPreconditionError",
    "FusedStage",
    "GradientTape",
    "Hyper",
    "IndexedSlices",
    "InvalidArgumentError",
    "InvalidConfigError",
    "InvalidTypeError",
    "LayoutError",
    "Measure",
    "MissingFileError",
    "NotFoundError",
    "NumericsWarning",
    "OutOfRangeError",
    "Pass",
    "PerformanceWarning",
    "ReplicaLostError",
    "ReplicaMismatchError",
    "Rule",
    "RuleError",
    "Slot",
    "Stage",
    "ThalwegError",
    "UnsafeCheckpointError",
    "UnsupportedCheckpointError",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "absolute",
    "check_rule",
    "checkpoint",
    "diagnostics",
    "distribute",
    "embedding_lookup",
    "engine",
    "exp",
    "install_as_tensorflow",
    "keras",
    "lend_names",
    "log",
    "maximum",
    "minimum",
    "name_of",
    "named_variables",
    "openseq2seq",
    "optim",
    "power",
    "sign",
    "sqrt",
    "take_back_names",
    "v1",
    "where",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"thalweg.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"thalweg.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'thalweg' has no attribute {name!r}")


def __dir__() -> list[str]:
    # `tf` is not in __all__, because its import adds names to torch's classes.
    return sorted([*__all__, "__version__", "tf"])


# Packages whose optimizers files describe, in the order of lookup.
_faces.update({face: partial(__getattr__, face) for face in ("keras", "v1", "openseq2seq")})
_UPPER_PACKAGES["tf"] = partial(__getattr__, "tf")
