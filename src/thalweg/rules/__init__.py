"""The update rules, one file each, from the simplest to the longest."""

# ruff: isort: skip_file
from thalweg.formula import Rule
from thalweg.rules.gradient_descent import SGD
from thalweg.rules.momentum import MOMENTUM, NESTEROV
from thalweg.rules.adagrad import ADAGRAD
from thalweg.rules.adadelta import ADADELTA
from thalweg.rules.rmsprop import CENTERED_RMSPROP, RMSPROP
from thalweg.rules.rmsprop_momentum import CENTERED_MOMENTUM_RMSPROP, MOMENTUM_RMSPROP
from thalweg.rules.adamax import ADAMAX
from thalweg.rules.adam import ADAM
from thalweg.rules.amsgrad import AMSGRAD
from thalweg.rules.nadam import NADAM
from thalweg.rules.ftrl import FTRL
from thalweg.rules.ftrl_power import FTRL_POWER

RULES: tuple[Rule, ...] = (
    SGD,
    MOMENTUM,
    NESTEROV,
    ADAGRAD,
    ADADELTA,
    RMSPROP,
    CENTERED_RMSPROP,
    MOMENTUM_RMSPROP,
    CENTERED_MOMENTUM_RMSPROP,
    ADAMAX,
    ADAM,
    AMSGRAD,
    NADAM,
    FTRL,
    FTRL_POWER,
)
