"""The rules of `torch.optim`, as its form with a loop over tensors computes them, one file each.

Scalars are made by `prepare` in Python's numbers, and rounded when a kernel gets them, as torch
does. Torch rounds some sums and products together, and its square root is not always the nearest
number: results differ from its own by a few units in the last place.
"""

# ruff: isort: skip_file
from thalweg.formula import Rule
from thalweg.rules.torch.sgd import TORCH_MOMENTUM, TORCH_SGD
from thalweg.rules.torch.asgd import TORCH_ASGD
from thalweg.rules.torch.rprop import TORCH_RPROP
from thalweg.rules.torch.adagrad import TORCH_ADAGRAD
from thalweg.rules.torch.adadelta import TORCH_ADADELTA
from thalweg.rules.torch.rmsprop import (
    TORCH_CENTERED_MOMENTUM_RMSPROP,
    TORCH_CENTERED_RMSPROP,
    TORCH_MOMENTUM_RMSPROP,
    TORCH_RMSPROP,
)
from thalweg.rules.torch.adamax import TORCH_ADAMAX
from thalweg.rules.torch.adam import TORCH_ADAM, TORCH_AMSGRAD
from thalweg.rules.torch.sparse_adam import TORCH_SPARSE_ADAM
from thalweg.rules.torch.nadam import TORCH_NADAM
from thalweg.rules.torch.radam import TORCH_RADAM

TORCH_RULES: tuple[Rule, ...] = (
    TORCH_SGD,
    TORCH_MOMENTUM,
    TORCH_ASGD,
    TORCH_RPROP,
    TORCH_ADAGRAD,
    TORCH_ADADELTA,
    TORCH_RMSPROP,
    TORCH_CENTERED_RMSPROP,
    TORCH_MOMENTUM_RMSPROP,
    TORCH_CENTERED_MOMENTUM_RMSPROP,
    TORCH_ADAMAX,
    TORCH_ADAM,
    TORCH_AMSGRAD,
    TORCH_SPARSE_ADAM,
    TORCH_NADAM,
    TORCH_RADAM,
)
