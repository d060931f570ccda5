"""TensorFlow's optimizers, with TensorFlow's numbers, on PyTorch tensors."""

from thalweg import keras
from thalweg.autodiff import GradientTape, embedding_lookup
from thalweg.engines.check import check_rule
from thalweg.engines.selection import engine
from thalweg.errors import (
    CheckpointMismatchError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    LayoutError,
    NumericsWarning,
    PerformanceWarning,
    RuleError,
    ThalwegError,
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
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import (
    Variable,
    VariableAggregation,
    VariableSynchronization,
    name_of,
    named_variables,
)

__version__ = "0.1.0"

__all__ = [
    "CheckpointMismatchError",
    "FailedPreconditionError",
    "GradientTape",
    "Hyper",
    "IndexedSlices",
    "InvalidArgumentError",
    "InvalidTypeError",
    "LayoutError",
    "NumericsWarning",
    "PerformanceWarning",
    "Rule",
    "RuleError",
    "Slot",
    "ThalwegError",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "absolute",
    "check_rule",
    "embedding_lookup",
    "engine",
    "exp",
    "keras",
    "log",
    "maximum",
    "minimum",
    "name_of",
    "named_variables",
    "power",
    "sign",
    "sqrt",
    "where",
]
