"""The engines: they update memory by formulas, and know no algorithm's name."""

from thalweg.engines.layout import compute_dtype
from thalweg.engines.reference import check_scalars, prepared
from thalweg.engines.run import Runner, check_gradients
from thalweg.engines.selection import Selection, check_name, current, engine

__all__ = [
    "Runner",
    "Selection",
    "check_gradients",
    "check_name",
    "check_scalars",
    "compute_dtype",
    "current",
    "engine",
    "prepared",
]
