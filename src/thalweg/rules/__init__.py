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
from thalweg.rules.heavy_ball import HEAVY_BALL, NESTEROV_BALL
from thalweg.rules.proximal_gradient_descent import PROXIMAL_GRADIENT_DESCENT
from thalweg.rules.adagrad_v1 import ADAGRAD_V1
from thalweg.rules.proximal_adagrad import PROXIMAL_ADAGRAD
from thalweg.rules.adagrad_da import ADAGRAD_DA
from thalweg.rules.adadelta_v1 import ADADELTA_V1
from thalweg.rules.rmsprop_v1 import CENTERED_RMSPROP_V1, RMSPROP_V1
from thalweg.rules.adam_v1 import ADAM_V1
from thalweg.rules.ftrl_v1 import FTRL_POWER_V1, FTRL_V1
from thalweg.rules.lazy_adam import LAZY_ADAM
from thalweg.rules.nesterov_adam import NESTEROV_ADAM
from thalweg.rules.adamax_v1 import ADAMAX_V1
from thalweg.rules.adam_w import ADAM_W
from thalweg.rules.momentum_w import MOMENTUM_W, NESTEROV_W
from thalweg.rules.lars import LARS, NESTEROV_LARS
from thalweg.rules.novograd import NOVOGRAD, NOVOGRAD_AS_SHIPPED as NOVOGRAD_AS_SHIPPED

KERAS_RULES: tuple[Rule, ...] = (
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

# What TensorFlow 1 computes otherwise, in tf.train and tf.contrib.opt; its gradient descent is SGD.
V1_RULES: tuple[Rule, ...] = (
    HEAVY_BALL,
    NESTEROV_BALL,
    PROXIMAL_GRADIENT_DESCENT,
    ADAGRAD_V1,
    PROXIMAL_ADAGRAD,
    ADAGRAD_DA,
    ADADELTA_V1,
    RMSPROP_V1,
    CENTERED_RMSPROP_V1,
    ADAM_V1,
    FTRL_V1,
    FTRL_POWER_V1,
    LAZY_ADAM,
    NESTEROV_ADAM,
    ADAMAX_V1,
    ADAM_W,
    MOMENTUM_W,
    NESTEROV_W,
    LARS,
    NESTEROV_LARS,
)

OPENSEQ2SEQ_RULES: tuple[Rule, ...] = (NOVOGRAD,)

RULES: tuple[Rule, ...] = (*KERAS_RULES, *V1_RULES, *OPENSEQ2SEQ_RULES)
