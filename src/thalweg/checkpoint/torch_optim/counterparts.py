"""Classes of `torch.optim` that correspond to update rules, and the rules' hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from thalweg._base.execution_context import is_symbolic
from thalweg._core.hyperparameters import as_hyper, is_number
from thalweg.errors import InvalidTypeError

# Keys that groups of a class have, and groups of the classes after it do not: state dicts do not
# name their class.
_GROUP_KEYS: tuple[tuple[str, frozenset[str]], ...] = (
    ("NAdam", frozenset({"betas", "eps", "momentum_decay"})),
    ("Adam", frozenset({"betas", "eps", "amsgrad"})),
    ("RMSprop", frozenset({"alpha", "eps", "momentum", "centered"})),
    ("Adagrad", frozenset({"eps", "lr_decay"})),
    ("Adadelta", frozenset({"eps", "rho"})),
    ("SGD", frozenset({"momentum", "dampening", "nesterov"})),
    ("Adamax", frozenset({"betas", "eps", "weight_decay"})),
)
# Groups of RAdam have the keys of Adamax, and this one.
_RADAM = "decoupled_weight_decay"
NAMES = ("Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Adadelta", "NAdam", "Adamax")


@dataclass(frozen=True)
class TorchEntry:
    """Tensor in torch's state that corresponds to a slot of a rule.

    Attributes:
        key: The key in the state of a parameter.
        rates: The slot is torch's tensor times `rates` times the learning rate; 0 if both are
            equal.
        may_lack: True if the slot is zeros when torch's momentum is 0, and so has no tensor.
    """

    key: str
    rates: int = 0
    may_lack: bool = False


@dataclass(frozen=True)
class Counterpart:
    """Correspondence of an update rule to a class of `torch.optim`.

    Attributes:
        family: The name of the class.
        slots: {slot of the rule: entry in torch's state}.
        hypers: {hyperparameter of the rule: key of a group}; "betas.0" is the first of "betas".
        epsilon: A note on the place of epsilon in both formulas; "" if it is equal.
        rate: A note on the place of the learning rate in both formulas; "" if it is equal.
        options: Options that a group must have.
        powers: True if the step count is part of the formula.
    """

    family: str
    slots: Mapping[str, TorchEntry] = field(default_factory=dict[str, TorchEntry])
    hypers: Mapping[str, str] = field(default_factory=dict[str, str])
    epsilon: str = ""
    rate: str = ""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    powers: bool = False


_RATE = {"learning_rate": "lr"}
_BETAS = {**_RATE, "beta1": "betas.0", "beta2": "betas.1", "epsilon": "eps"}
_MOMENTUM = {**_RATE, "momentum": "momentum"}
_RHO = {**_RATE, "rho": "alpha", "epsilon": "eps"}
_HAT = "epsilon is added to the root of v before bias correction here, in torch after it"
_INSIDE_ROOT = "epsilon is inside of the root here, in torch outside"
_IN_SLOT = (
    "the momentum has the learning rate in it here, in torch it has not, which shows when the rate"
    " changes"
)
_MOMENTS = {"m": TorchEntry("exp_avg"), "v": TorchEntry("exp_avg_sq")}
_ADAM = Counterpart("Adam", _MOMENTS, _BETAS, _HAT, options={"amsgrad": False}, powers=True)
_AMSGRAD = {**_MOMENTS, "vhat": TorchEntry("max_exp_avg_sq")}
_ADAMAX = Counterpart(
    "Adamax",
    {"m": TorchEntry("exp_avg"), "v": TorchEntry("exp_inf")},
    _BETAS,
    "epsilon is added to v where it divides here, in torch to |g| inside of the maximum",
    powers=True,
)


def _sgd_counterpart(
    momentum: TorchEntry | None, nesterov: bool = False, note: str = ""
) -> Counterpart:
    """Return the counterpart of a rule for `torch.optim.SGD`; `note` is about the rate."""
    slots = {} if momentum is None else {"momentum": momentum}
    names = _RATE if momentum is None else _MOMENTUM
    options = {"momentum": 0} if momentum is None else {"nesterov": nesterov}
    return Counterpart("SGD", slots, names, rate=note, options=options)


def _rmsprop_counterpart(momentum: bool, centered: bool, may_lack: bool = False) -> Counterpart:
    """Return the counterpart for `torch.optim.RMSprop` with these values of `momentum`, `centered`.

    With `may_lack`, a missing momentum buffer of torch stands for zeros.
    """
    slots = {"rms": TorchEntry("square_avg")}
    if momentum:
        slots["momentum"] = TorchEntry("momentum_buffer", 1, may_lack)
    if centered:
        slots["mg"] = TorchEntry("grad_avg")
    return Counterpart(
        "RMSprop",
        slots,
        {**_RHO, "momentum": "momentum"} if momentum else _RHO,
        _INSIDE_ROOT if momentum else "",
        _IN_SLOT if momentum else "",
        {"centered": centered, **({} if momentum else {"momentum": 0})},
    )


def _adagrad_counterpart(epsilon: str = "") -> Counterpart:
    """Return the counterpart of a rule for `torch.optim.Adagrad`; `epsilon` is a note."""
    names = _RATE if epsilon else {**_RATE, "epsilon": "eps"}
    return Counterpart("Adagrad", {"accumulator": TorchEntry("sum")}, names, epsilon)


def _adadelta_counterpart(square: str, delta: str) -> Counterpart:
    """Return the counterpart for `torch.optim.Adadelta`, by the names of its slots."""
    slots = {square: TorchEntry("square_avg"), delta: TorchEntry("acc_delta")}
    return Counterpart("Adadelta", slots, {**_RATE, "rho": "rho", "epsilon": "eps"})


_BUFFER, _VELOCITY = TorchEntry("momentum_buffer"), TorchEntry("momentum_buffer", -1)
COUNTERPARTS: dict[str, Counterpart] = {
    "SGD": _sgd_counterpart(None),
    "Momentum": _sgd_counterpart(_VELOCITY, note=_IN_SLOT),
    "Nesterov": _sgd_counterpart(_VELOCITY, nesterov=True, note=_IN_SLOT),
    "HeavyBall": _sgd_counterpart(_BUFFER),
    "NesterovBall": _sgd_counterpart(_BUFFER, nesterov=True),
    "MomentumW": _sgd_counterpart(_BUFFER),
    "NesterovW": _sgd_counterpart(_BUFFER, nesterov=True),
    "RMSprop": _rmsprop_counterpart(momentum=False, centered=False),
    "CenteredRMSprop": _rmsprop_counterpart(momentum=False, centered=True),
    "MomentumRMSprop": _rmsprop_counterpart(momentum=True, centered=False),
    "CenteredMomentumRMSprop": _rmsprop_counterpart(momentum=True, centered=True),
    "RMSPropV1": _rmsprop_counterpart(momentum=True, centered=False, may_lack=True),
    "CenteredRMSPropV1": _rmsprop_counterpart(momentum=True, centered=True, may_lack=True),
    "Adam": _ADAM,
    "AdamV1": _ADAM,
    "AdamW": _ADAM,
    "LazyAdam": _ADAM,
    "AMSGrad": Counterpart("Adam", _AMSGRAD, _BETAS, _HAT, options={"amsgrad": True}, powers=True),
    "Adamax": _ADAMAX,
    "AdamaxV1": _ADAMAX,
    "Nadam": Counterpart("NAdam", _MOMENTS, {**_BETAS, "decay": "momentum_decay"}, powers=True),
    "Adagrad": _adagrad_counterpart(),
    "AdagradV1": _adagrad_counterpart("there is no epsilon here, in torch it is added to the root"),
    "Adadelta": _adadelta_counterpart("accum_grad", "accum_var"),
    "AdadeltaV1": _adadelta_counterpart("accum", "accum_update"),
}


def family_of(groups: list[dict[str, object]]) -> str | None:
    """Return the `torch.optim` class whose groups have these keys; None if not supported."""
    for name, marks in _GROUP_KEYS:
        if all(marks <= group.keys() for group in groups):
            return None if name == "Adamax" and _RADAM in groups[0] else name
    return None


def counterpart_of(optimizer: object) -> Counterpart:
    """Return the `Counterpart` of the rule that an optimizer runs.

    Raises:
        InvalidTypeError: The optimizer has no rule, or a rule without a counterpart.
    """
    inner = getattr(optimizer, "_opt", None)
    if inner is not None:
        raise InvalidTypeError(
            f"{type(optimizer).__name__} wraps an optimizer: give that, the {type(inner).__name__}."
        )
    rule = getattr(optimizer, "_choose_rule", None)
    name = "" if rule is None else rule().name
    if name not in COUNTERPARTS:
        rule_text = f"the rule {name}" if name else "no rule of the library"
        raise InvalidTypeError(
            f"{type(optimizer).__name__} runs {rule_text}, which has no counterpart in torch.optim;"
            f" there are those of {', '.join(NAMES)}."
        )
    return COUNTERPARTS[name]


def constant_hypers(optimizer: Any) -> dict[str, float]:
    """Return {name: number} of hyperparameters that are not schedules or callables."""
    values: dict[str, Any] = {}
    if is_classic(optimizer):
        attributes: dict[str, str] = getattr(optimizer, "HYPERS", {})
        values = {name: getattr(optimizer, attribute) for name, attribute in attributes.items()}
        values["weight_decay"] = getattr(optimizer, "_weight_decay", None)
    else:
        constants, exact = optimizer._hyper.numbers(), getattr(optimizer, "EXACT", {})
        names = getattr(optimizer, "NAMES", {})
        for hyper in optimizer._choose_rule().hypers:
            constant = constants.get(names.get(hyper.name, hyper.name))
            values[hyper.name] = (
                getattr(optimizer, exact[hyper.name]) if hyper.name in exact else constant
            )
    return {name: _as_float(hyper) for name, hyper in values.items() if _is_constant(hyper)}


def is_classic(optimizer: object) -> bool:
    """Return True if an optimizer is of `thalweg.v1`, not of `thalweg.keras`."""
    return getattr(optimizer, "_needs_variables", False)


def current_hypers(optimizer: Any) -> dict[str, float]:
    """Return {name: number} of all hyperparameters; schedules and callables are called."""
    if is_classic(optimizer):
        values: dict[str, Any] = optimizer._read_values()
        names = [*getattr(optimizer, "HYPERS", {}), "decoupled_decay"]
        floats = {
            name: float(as_hyper(values[name], np.float64)) for name in names if name in values
        }
        if "decoupled_decay" in floats:
            floats["weight_decay"] = floats.pop("decoupled_decay")
        return floats
    with optimizer._hyper:
        scalars = optimizer._hyper_scalars(np.float64)
    return {name: float(scalar) for name, scalar in scalars.items()}


def beta_of(optimizer: Any, name: str) -> Any:
    """Return a hyperparameter of a `thalweg.v1` optimizer, unrounded; a callable is called."""
    return optimizer._call_if_callable(getattr(optimizer, optimizer.HYPERS[name]))


def decay_of(optimizer: Any) -> float:
    """Return the learning rate's `decay` of a Keras optimizer; 0 for others."""
    has_decay = "decay" not in {hyper.name for hyper in optimizer._choose_rule().hypers}
    return float(getattr(optimizer, "_initial_decay", 0.0)) if has_decay else 0.0


def _is_constant(hyper: object) -> bool:
    """Return True for hyperparameters that are numbers."""
    is_scalar = isinstance(hyper, Tensor) and not is_symbolic(hyper) and hyper.numel() == 1
    return is_number(hyper) or is_scalar


def _as_float(hyper: Any) -> float:
    """Return a number or scalar tensor as a float."""
    return float(hyper.detach() if isinstance(hyper, Tensor) else hyper)
