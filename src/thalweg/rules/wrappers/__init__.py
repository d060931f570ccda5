"""Wrappers: rules derived from a rule by a formula around its step.

`cautious(ADAM)` is a rule for every optimizer that takes one; optimizers of `thalweg.optim` have
wrappers as options, too. Sparse gradients of a wrapped rule are made dense.
"""

from thalweg.rules.wrappers.cautious import cautious, cautious_decay
from thalweg.rules.wrappers.radial_brake import radial_brake
from thalweg.rules.wrappers.row_floor import row_floor
from thalweg.rules.wrappers.trust_ratio import sphere, trust_ratio

__all__ = ["cautious", "cautious_decay", "radial_brake", "row_floor", "sphere", "trust_ratio"]


def __dir__() -> list[str]:
    return sorted(__all__)
