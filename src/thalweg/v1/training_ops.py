"""TensorFlow's training kernels, for optimizers that call them directly.

`apply_x` and `resource_apply_x` take a dense gradient. `sparse_apply_x` and
`resource_sparse_apply_x` take rows of a gradient and their indices; a repeated row is updated
repeatedly. Arguments have TensorFlow's order, as in `tf.raw_ops`. The variable and its slots are
updated in place; invalid arguments raise before any change. Call the functions in eager mode and in
hooks of an optimizer; symbolic arguments create graph operations.

Scalars are converted directly to the variable's dtype: 0.1 is 0.1 for a float64 variable.
TensorFlow's optimizers first round it to float32.

Example:
    >>> from thalweg import Variable
    >>> w, accum = Variable([1.0, 2.0]), Variable([0.0, 0.0])
    >>> resource_apply_momentum(w, accum, 0.5, [1.0, 1.0], 0.9)
    >>> w.numpy()
    array([0.5, 1.5], dtype=float32)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from thalweg.v1.argument_checks import check_step_size
from thalweg.v1.training_kernels import DENSE, Arguments, Kernel


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

_KERNELS = {
    "gradient_descent": Kernel(
        "var alpha delta", "", SGD, rule_names={"alpha": "learning_rate"}, prefixes=DENSE
    ),
    "momentum": Kernel(
        "var accum lr grad momentum",
        "accum",
        lambda given: NESTEROV_BALL if given["use_nesterov"] else HEAVY_BALL,
        _NESTEROV,
    ),
    "keras_momentum": Kernel(
        "var accum lr grad momentum",
        "accum",
        lambda given: NESTEROV if given["use_nesterov"] else MOMENTUM,
        _NESTEROV,
        prefixes=("resource_apply", "resource_sparse_apply"),
    ),
    "adagrad": Kernel(
        "var accum lr grad",
        "accum",
        lambda given: ADAGRAD_V1 if given["update_slots"] else ADAGRAD_V1_FIXED,
        _UPDATE_SLOTS,
    ),
    "adagrad_v2": Kernel(
        "var accum lr epsilon grad",
        "accum",
        lambda given: ADAGRAD if given["update_slots"] else ADAGRAD_FIXED,
        _UPDATE_SLOTS,
    ),
    "adagrad_da": Kernel(
        "var gradient_accumulator gradient_squared_accumulator grad lr l1 l2 global_step",
        "gradient_accumulator gradient_squared_accumulator",
        ADAGRAD_DA,
    ),
    "adadelta": Kernel(
        "var accum accum_update lr rho epsilon grad", "accum accum_update", ADADELTA_V1
    ),
    "adam": Kernel(
        "var m v beta1_power beta2_power lr beta1 beta2 epsilon grad",
        "m v",
        lambda given: NESTEROV_ADAM if given["use_nesterov"] else ADAM_V1,
        _NESTEROV,
        prefixes=DENSE,
    ),
    "adam_with_amsgrad": Kernel(
        "var m v vhat beta1_power beta2_power lr beta1 beta2 epsilon grad",
        "m v vhat",
        AMSGRAD,
        prefixes=("resource_apply",),
    ),
    "ada_max": Kernel(
        "var m v beta1_power lr beta1 beta2 epsilon grad", "m v", ADAMAX_V1, prefixes=DENSE
    ),
    "ftrl": Kernel(
        "var accum linear grad lr l1 l2 lr_power",
        "accum linear",
        _choose_ftrl,
        _LINEAR,
        {"beta": 0.0, "l2_shrinkage": 0.0},
        check=_check_ftrl,
    ),
    "ftrl_v2": Kernel(
        "var accum linear grad lr l1 l2 l2_shrinkage lr_power",
        "accum linear",
        _choose_ftrl,
        _LINEAR,
        {"beta": 0.0},
        check=_check_ftrl,
    ),
    "rms_prop": Kernel("var ms mom lr rho momentum epsilon grad", "ms mom", RMSPROP_V1),
    # Slots are in the order of the rule, not of the arguments.
    "centered_rms_prop": Kernel(
        "var mg ms mom lr rho momentum epsilon grad", "ms mom mg", CENTERED_RMSPROP_V1
    ),
    "proximal_adagrad": Kernel(
        "var accum lr l1 l2 grad", "accum", PROXIMAL_ADAGRAD, check=_check_proximal
    ),
    "proximal_gradient_descent": Kernel(
        "var alpha l1 l2 delta",
        "",
        PROXIMAL_GRADIENT_DESCENT,
        rule_names={"alpha": "learning_rate"},
    ),
    "add_sign": Kernel("var m lr alpha sign_decay beta grad", "m", ADD_SIGN, prefixes=DENSE),
    "power_sign": Kernel("var m lr logbase sign_decay beta grad", "m", POWER_SIGN, prefixes=DENSE),
}
_FUNCTIONS = {
    name: kernel.function(name)
    for suffix, kernel in _KERNELS.items()
    for name in (f"{prefix}_{suffix}" for prefix in kernel.prefixes)
}
globals().update(_FUNCTIONS)

# For type checkers, which do not see the functions above.
if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


__all__ = sorted(_FUNCTIONS)  # pyright: ignore[reportUnsupportedDunderAll]
