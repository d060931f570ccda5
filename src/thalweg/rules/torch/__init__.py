"""The rules of `torch.optim`, one file each, computed as with foreach=False and fused=False.

Lion, which torch lacks, has an equal form.

`prepare` computes scalars as Python numbers, which are rounded for kernels, as torch does. Torch
rounds some sums and products together, and some of torch's square roots are not correctly rounded.
Therefore results differ from torch's results by a few units in the last place.
"""

from __future__ import annotations

from thalweg._base.lazy import offering
from thalweg.formula import Rule

TORCH_RULES: tuple[Rule, ...]

# The file of each rule, which is imported when the rule is asked for.
_HOMES = {
    "TORCH_SGD": "sgd",
    "TORCH_MOMENTUM": "sgd",
    "TORCH_ASGD": "asgd",
    "TORCH_RPROP": "rprop",
    "TORCH_ADAGRAD": "adagrad",
    "TORCH_ADADELTA": "adadelta",
    "TORCH_RMSPROP": "rmsprop",
    "TORCH_CENTERED_RMSPROP": "rmsprop",
    "TORCH_MOMENTUM_RMSPROP": "rmsprop",
    "TORCH_CENTERED_MOMENTUM_RMSPROP": "rmsprop",
    "TORCH_ADAMAX": "adamax",
    "TORCH_ADAM": "adam",
    "TORCH_AMSGRAD": "adam",
    "TORCH_SPARSE_ADAM": "sparse_adam",
    "TORCH_NADAM": "nadam",
    "TORCH_RADAM": "radam",
    "TORCH_LION": "lion",
    "TORCH_ADAFACTOR": "adafactor",
}
__all__ = ["Rule", "TORCH_RULES", *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__, __dir__ = offering(__name__, _HOMES, {"TORCH_RULES": _HOMES}, Rule)
