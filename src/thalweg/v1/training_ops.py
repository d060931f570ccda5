"""TensorFlow's training kernels, for optimizers that call them directly.

`apply_x` and `resource_apply_x` take a dense gradient, `sparse_apply_x` and
`resource_sparse_apply_x` the rows of one and their indices; a row that is named twice is updated
twice. Arguments come in TensorFlow's order, as `tf.raw_ops` documents it. The variable and its
slots are updated in place, whatever is wrong is said before that. They may be called in eager mode
and in the hooks of an optimizer; with symbolic arguments they make operations of a graph.

Scalars are converted straight to the dtype of the variable: 0.1 beside a float64 variable is
0.1, where TensorFlow's optimizers make a float32 of it first.

Example:
    >>> from thalweg import Variable
    >>> w, accum = Variable([1.0, 2.0]), Variable([0.0, 0.0])
    >>> resource_apply_momentum(w, accum, 0.5, [1.0, 1.0], 0.9)
    >>> w.numpy()
    array([0.5, 1.5], dtype=float32)
"""

from __future__ import annotations

from typing import Any

from thalweg.rules import (
    ADADELTA_V1,
    ADAGRAD,
    ADAGRAD_DA,
    ADAGRAD_V1,
    ADAM_V1,
    ADAMAX_V1,
    AMSGRAD,
    CENTERED_RMSPROP_V1,
    FTRL_POWER_V1,
    FTRL_V1,
    HEAVY_BALL,
    MOMENTUM,
    NESTEROV,
    NESTEROV_ADAM,
    NESTEROV_BALL,
    PROXIMAL_ADAGRAD,
    PROXIMAL_GRADIENT_DESCENT,
    RMSPROP_V1,
    SGD,
)
from thalweg.rules.adagrad_fixed import ADAGRAD_FIXED, ADAGRAD_V1_FIXED
from thalweg.rules.add_sign import ADD_SIGN, POWER_SIGN
from thalweg.rules.ftrl_multiply_by_lr import FTRL_BY_RATE, FTRL_POWER_BY_RATE
from thalweg.v1.train.checks import check_step_size
from thalweg.v1.training_kernels import Arguments, Kernel


def _check_proximal(arguments: Arguments, sparse: bool) -> None:
    check_step_size("lr", arguments["lr"])
    check_step_size("l1", arguments["l1"], zero=True)
    check_step_size("l2", arguments["l2"], zero=True)


def _check_ftrl(arguments: Arguments, sparse: bool) -> None:
    if sparse:
        _check_proximal(arguments, sparse)


def _choose_ftrl(arguments: Arguments) -> Any:
    power = arguments["lr_power"]
    is_root = power is None or float(power) == -0.5
    if arguments["multiply_linear_by_lr"]:
        return FTRL_BY_RATE if is_root else FTRL_POWER_BY_RATE
    return FTRL_V1 if is_root else FTRL_POWER_V1


_NESTEROV = {"use_nesterov": False}
_UPDATE_SLOTS = {"update_slots": True}
_LINEAR = {"multiply_linear_by_lr": False}

_GRADIENT_DESCENT = Kernel(
    "var alpha delta", "", lambda given: SGD, rule_names={"alpha": "learning_rate"}
)
_MOMENTUM = Kernel(
    "var accum lr grad momentum",
    "accum",
    lambda given: NESTEROV_BALL if given["use_nesterov"] else HEAVY_BALL,
    _NESTEROV,
)
_KERAS_MOMENTUM = Kernel(
    "var accum lr grad momentum",
    "accum",
    lambda given: NESTEROV if given["use_nesterov"] else MOMENTUM,
    _NESTEROV,
)
_ADAGRAD = Kernel(
    "var accum lr grad",
    "accum",
    lambda given: ADAGRAD_V1 if given["update_slots"] else ADAGRAD_V1_FIXED,
    _UPDATE_SLOTS,
)
_ADAGRAD_V2 = Kernel(
    "var accum lr epsilon grad",
    "accum",
    lambda given: ADAGRAD if given["update_slots"] else ADAGRAD_FIXED,
    _UPDATE_SLOTS,
)
_ADAGRAD_DA = Kernel(
    "var gradient_accumulator gradient_squared_accumulator grad lr l1 l2 global_step",
    "gradient_accumulator gradient_squared_accumulator",
    lambda given: ADAGRAD_DA,
)
_ADADELTA = Kernel(
    "var accum accum_update lr rho epsilon grad", "accum accum_update", lambda given: ADADELTA_V1
)
_ADAM = Kernel(
    "var m v beta1_power beta2_power lr beta1 beta2 epsilon grad",
    "m v",
    lambda given: NESTEROV_ADAM if given["use_nesterov"] else ADAM_V1,
    _NESTEROV,
)
_AMSGRAD = Kernel(
    "var m v vhat beta1_power beta2_power lr beta1 beta2 epsilon grad",
    "m v vhat",
    lambda given: AMSGRAD,
)
_ADA_MAX = Kernel("var m v beta1_power lr beta1 beta2 epsilon grad", "m v", lambda given: ADAMAX_V1)
_FTRL = Kernel(
    "var accum linear grad lr l1 l2 lr_power",
    "accum linear",
    _choose_ftrl,
    _LINEAR,
    {"beta": 0.0, "l2_shrinkage": 0.0},
    check=_check_ftrl,
)
_FTRL_V2 = Kernel(
    "var accum linear grad lr l1 l2 l2_shrinkage lr_power",
    "accum linear",
    _choose_ftrl,
    _LINEAR,
    {"beta": 0.0},
    check=_check_ftrl,
)
_RMS_PROP = Kernel("var ms mom lr rho momentum epsilon grad", "ms mom", lambda given: RMSPROP_V1)
_CENTERED_RMS_PROP = Kernel(
    "var mg ms mom lr rho momentum epsilon grad", "ms mom mg", lambda given: CENTERED_RMSPROP_V1
)
_PROXIMAL_ADAGRAD = Kernel(
    "var accum lr l1 l2 grad", "accum", lambda given: PROXIMAL_ADAGRAD, check=_check_proximal
)
_PROXIMAL_GRADIENT_DESCENT = Kernel(
    "var alpha l1 l2 delta",
    "",
    lambda given: PROXIMAL_GRADIENT_DESCENT,
    rule_names={"alpha": "learning_rate"},
)
_ADD_SIGN = Kernel("var m lr alpha sign_decay beta grad", "m", lambda given: ADD_SIGN)
_POWER_SIGN = Kernel("var m lr logbase sign_decay beta grad", "m", lambda given: POWER_SIGN)

apply_gradient_descent = _GRADIENT_DESCENT.function("apply_gradient_descent")
resource_apply_gradient_descent = _GRADIENT_DESCENT.function("resource_apply_gradient_descent")
apply_momentum = _MOMENTUM.function("apply_momentum")
resource_apply_momentum = _MOMENTUM.function("resource_apply_momentum")
sparse_apply_momentum = _MOMENTUM.function("sparse_apply_momentum")
resource_sparse_apply_momentum = _MOMENTUM.function("resource_sparse_apply_momentum")
resource_apply_keras_momentum = _KERAS_MOMENTUM.function("resource_apply_keras_momentum")
resource_sparse_apply_keras_momentum = _KERAS_MOMENTUM.function(
    "resource_sparse_apply_keras_momentum"
)
apply_adagrad = _ADAGRAD.function("apply_adagrad")
resource_apply_adagrad = _ADAGRAD.function("resource_apply_adagrad")
sparse_apply_adagrad = _ADAGRAD.function("sparse_apply_adagrad")
resource_sparse_apply_adagrad = _ADAGRAD.function("resource_sparse_apply_adagrad")
apply_adagrad_v2 = _ADAGRAD_V2.function("apply_adagrad_v2")
resource_apply_adagrad_v2 = _ADAGRAD_V2.function("resource_apply_adagrad_v2")
sparse_apply_adagrad_v2 = _ADAGRAD_V2.function("sparse_apply_adagrad_v2")
resource_sparse_apply_adagrad_v2 = _ADAGRAD_V2.function("resource_sparse_apply_adagrad_v2")
apply_adagrad_da = _ADAGRAD_DA.function("apply_adagrad_da")
resource_apply_adagrad_da = _ADAGRAD_DA.function("resource_apply_adagrad_da")
sparse_apply_adagrad_da = _ADAGRAD_DA.function("sparse_apply_adagrad_da")
resource_sparse_apply_adagrad_da = _ADAGRAD_DA.function("resource_sparse_apply_adagrad_da")
apply_adadelta = _ADADELTA.function("apply_adadelta")
resource_apply_adadelta = _ADADELTA.function("resource_apply_adadelta")
sparse_apply_adadelta = _ADADELTA.function("sparse_apply_adadelta")
resource_sparse_apply_adadelta = _ADADELTA.function("resource_sparse_apply_adadelta")
apply_adam = _ADAM.function("apply_adam")
resource_apply_adam = _ADAM.function("resource_apply_adam")
resource_apply_adam_with_amsgrad = _AMSGRAD.function("resource_apply_adam_with_amsgrad")
apply_ada_max = _ADA_MAX.function("apply_ada_max")
resource_apply_ada_max = _ADA_MAX.function("resource_apply_ada_max")
apply_ftrl = _FTRL.function("apply_ftrl")
resource_apply_ftrl = _FTRL.function("resource_apply_ftrl")
sparse_apply_ftrl = _FTRL.function("sparse_apply_ftrl")
resource_sparse_apply_ftrl = _FTRL.function("resource_sparse_apply_ftrl")
apply_ftrl_v2 = _FTRL_V2.function("apply_ftrl_v2")
resource_apply_ftrl_v2 = _FTRL_V2.function("resource_apply_ftrl_v2")
sparse_apply_ftrl_v2 = _FTRL_V2.function("sparse_apply_ftrl_v2")
resource_sparse_apply_ftrl_v2 = _FTRL_V2.function("resource_sparse_apply_ftrl_v2")
apply_rms_prop = _RMS_PROP.function("apply_rms_prop")
resource_apply_rms_prop = _RMS_PROP.function("resource_apply_rms_prop")
sparse_apply_rms_prop = _RMS_PROP.function("sparse_apply_rms_prop")
resource_sparse_apply_rms_prop = _RMS_PROP.function("resource_sparse_apply_rms_prop")
apply_centered_rms_prop = _CENTERED_RMS_PROP.function("apply_centered_rms_prop")
resource_apply_centered_rms_prop = _CENTERED_RMS_PROP.function("resource_apply_centered_rms_prop")
sparse_apply_centered_rms_prop = _CENTERED_RMS_PROP.function("sparse_apply_centered_rms_prop")
resource_sparse_apply_centered_rms_prop = _CENTERED_RMS_PROP.function(
    "resource_sparse_apply_centered_rms_prop"
)
apply_proximal_adagrad = _PROXIMAL_ADAGRAD.function("apply_proximal_adagrad")
resource_apply_proximal_adagrad = _PROXIMAL_ADAGRAD.function("resource_apply_proximal_adagrad")
sparse_apply_proximal_adagrad = _PROXIMAL_ADAGRAD.function("sparse_apply_proximal_adagrad")
resource_sparse_apply_proximal_adagrad = _PROXIMAL_ADAGRAD.function(
    "resource_sparse_apply_proximal_adagrad"
)
apply_proximal_gradient_descent = _PROXIMAL_GRADIENT_DESCENT.function(
    "apply_proximal_gradient_descent"
)
resource_apply_proximal_gradient_descent = _PROXIMAL_GRADIENT_DESCENT.function(
    "resource_apply_proximal_gradient_descent"
)
sparse_apply_proximal_gradient_descent = _PROXIMAL_GRADIENT_DESCENT.function(
    "sparse_apply_proximal_gradient_descent"
)
resource_sparse_apply_proximal_gradient_descent = _PROXIMAL_GRADIENT_DESCENT.function(
    "resource_sparse_apply_proximal_gradient_descent"
)
apply_add_sign = _ADD_SIGN.function("apply_add_sign")
resource_apply_add_sign = _ADD_SIGN.function("resource_apply_add_sign")
apply_power_sign = _POWER_SIGN.function("apply_power_sign")
resource_apply_power_sign = _POWER_SIGN.function("resource_apply_power_sign")

__all__ = [
    "apply_ada_max", "apply_adadelta", "apply_adagrad", "apply_adagrad_da", "apply_adagrad_v2",
    "apply_adam", "apply_add_sign", "apply_centered_rms_prop", "apply_ftrl", "apply_ftrl_v2",
    "apply_gradient_descent", "apply_momentum", "apply_power_sign", "apply_proximal_adagrad",
    "apply_proximal_gradient_descent", "apply_rms_prop", "resource_apply_ada_max",
    "resource_apply_adadelta", "resource_apply_adagrad", "resource_apply_adagrad_da",
    "resource_apply_adagrad_v2", "resource_apply_adam", "resource_apply_adam_with_amsgrad",
    "resource_apply_add_sign", "resource_apply_centered_rms_prop", "resource_apply_ftrl",
    "resource_apply_ftrl_v2", "resource_apply_gradient_descent", "resource_apply_keras_momentum",
    "resource_apply_momentum", "resource_apply_power_sign", "resource_apply_proximal_adagrad",
    "resource_apply_proximal_gradient_descent", "resource_apply_rms_prop",
    "resource_sparse_apply_adadelta", "resource_sparse_apply_adagrad",
    "resource_sparse_apply_adagrad_da", "resource_sparse_apply_adagrad_v2",
    "resource_sparse_apply_centered_rms_prop", "resource_sparse_apply_ftrl",
    "resource_sparse_apply_ftrl_v2", "resource_sparse_apply_keras_momentum",
    "resource_sparse_apply_momentum", "resource_sparse_apply_proximal_adagrad",
    "resource_sparse_apply_proximal_gradient_descent", "resource_sparse_apply_rms_prop",
    "sparse_apply_adadelta", "sparse_apply_adagrad", "sparse_apply_adagrad_da",
    "sparse_apply_adagrad_v2", "sparse_apply_centered_rms_prop", "sparse_apply_ftrl",
    "sparse_apply_ftrl_v2", "sparse_apply_momentum", "sparse_apply_proximal_adagrad",
    "sparse_apply_proximal_gradient_descent", "sparse_apply_rms_prop",
]  # fmt: skip
