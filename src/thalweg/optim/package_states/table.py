"""Table of the packages with states that can be converted, and of the conversions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from thalweg.optim.package_states.codes import Codes, read_codes
from thalweg.optim.package_states.member import Member

# Key of bitsandbytes 0.50 for the slots of a parameter, which hides them from FSDP.
_WRAPPED = "__bnb_optimizer_quant_state__"
_EMPTY: Mapping[str, Any] = MappingProxyType({})
Read = str | Callable[[Member], Any]


@dataclass(frozen=True)
class Package:
    """Optimizer class of another package, with the conversion of its states.

    Attributes:
        name: The class, for messages.
        into: Classes of `thalweg.optim` that continue its states; the first is the default.
        entries: Keys that the state of each parameter has.
        options: Keys that each group has.
        lacks: Keys that neither a state nor a group may have, to exclude similar classes.
        slots: {slot here: its name there, or a function of a `Member` that returns a tensor or
            codes}.
        numbers: {number here: its name there, or a function of a `Member` that returns it}.
        renamed: {option there: function of its value and group that returns options here}.
        fixed: {option here: value that the class there always has}.
        neutral: {option there without a counterpart: value without an effect}.
        unread: Entries and options there that no step depends on.
        remark: Optional. A reason for rounding in every step.
        arguments: Arguments of the class here for a conversion without an optimizer.
    """

    name: str
    into: tuple[str, ...]
    entries: frozenset[str]
    options: frozenset[str]
    slots: Mapping[str, Read]
    lacks: frozenset[str] = frozenset()
    numbers: Mapping[str, Read] = field(default_factory=lambda: _EMPTY)
    renamed: Mapping[str, Callable[[Any, Mapping[str, Any]], dict[str, Any]]] = field(
        default_factory=lambda: _EMPTY
    )
    fixed: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    neutral: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    unread: tuple[str, ...] = ()
    remark: str = ""
    arguments: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)

    def matches(self, entries: set[str], group: Mapping[str, Any]) -> bool:
        """Return True if a group, with the keys `entries` in its states, is of this class."""
        return (
            self.entries <= entries
            and self.options <= group.keys()
            and not self.lacks & (entries | group.keys())
        )


def _option(name: str) -> Callable[[Any, Mapping[str, Any]], dict[str, Any]]:
    """Return a converter (value, group) -> {name: value} of a renamed option."""
    return lambda value, group: {name: value}


def _number_option(name: str) -> Callable[[Any, Mapping[str, Any]], dict[str, Any]]:
    """Return a converter of a number that may be a tensor in the package, or None for 0."""

    def convert(value: Any, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return {name: number} for a value."""
        is_single = isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta
        return {name: value.item() if is_single else 0 if value is None else value}

    return convert


def _zeros(member: Member) -> Tensor:
    """Return float32 zeros in the shape of the parameter."""
    return torch.zeros_like(member.param, dtype=torch.float32)


def _or_zeros(name: str) -> Callable[[Member], Tensor]:
    """Return a function `read(member)` that reads a slot, or zeros if it is absent or None."""
    return lambda m: _zeros(m) if m.entries.get(name) is None else m.tensor(name)


def _of_bitsandbytes(slot_index: int) -> Callable[[Member], Tensor | Codes]:
    """Return a function `read(member)` that reads slot `slot_index` of bitsandbytes."""

    def read(member: Member) -> Tensor | Codes:
        """Return the slot as `Codes` if quantized, else as a tensor; report `max_unorm` as lost."""
        name = f"state{slot_index}"
        wrapped: Mapping[str, Any] | None = member.entries.get(_WRAPPED)
        values = {**member.entries, **(wrapped if isinstance(wrapped, Mapping) else {})}
        if name not in values:
            raise member.fail(name, "is missing")
        if "unorm_vec" in values:
            member.report.lost["max_unorm"] = "which limits updates; no option here does"
        tensors = values[name], values.get(f"qmap{slot_index}"), values.get(f"absmax{slot_index}")
        codes = read_codes(member, name, tensors, block=256)
        return codes or member.checked(name, values[name], member.param.shape)

    return read


def _of_torchao(name: str) -> Callable[[Member], Tensor | Codes]:
    """Return a function `read(member)` that reads a slot of torchao, quantized or not."""

    def read(member: Member) -> Tensor | Codes:
        """Return the slot as `Codes` if quantized, else as a tensor."""
        value: Any = member.read(name)
        if not hasattr(value, "codes"):
            return member.tensor(name)
        tensors = value.codes, getattr(value, "qmap", None), getattr(value, "scale", None)
        table = tensors[1]
        # A table of 16 numbers is that of 4-bit codes.
        bits = 4 if isinstance(table, Tensor) and table.numel() == 16 else 8
        codes = read_codes(member, name, tensors, bits)
        if codes is None:
            raise member.fail(name, "has codes that are not of uint8 (float8 is not supported)")
        return codes

    return read


def _unflatten(name: str) -> Callable[[Member], Tensor]:
    """Return a function `read(member)` that reads a slot of Prodigy in the parameter's shape.

    Prodigy stores the slot flat, or as one number for all elements.
    """

    def read(member: Member) -> Tensor:
        """Return the slot in the shape of the parameter."""
        value = member.read(name)
        if isinstance(value, Tensor) and not value.dim() and member.param.dim():
            return member.tensor(name, ()).expand(member.param.shape).contiguous()
        return member.tensor(name, (member.param.numel(),)).view(member.param.shape)

    return read


def _beta3(value: Any, group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option `beta3`, with the default that depends on `betas`."""
    return {"beta3": math.sqrt(group["betas"][1]) if value is None else value}


def _rate_mean(member: Member) -> float:
    """Return LaProp's mean of rates; report a loss if betas changed during the training."""
    step, rate_sum = member.number("step"), member.number("exp_avg_lr_2")
    beta2 = member.beta(1)
    # With constant betas the weights of all rates add up to 1 - beta2**step.
    if abs(rate_sum - (1 - beta2**step)) > 1e-5 * abs(rate_sum):
        member.report.lost["exp_avg_lr_2"] = "which shows that betas changed during the training"
    return member.number("exp_avg_lr_1")


def _factor(name: str, side: int) -> Callable[[Member], Tensor]:
    """Return a function `read(member)` that reads SOAP's matrix of rows (side 0) or columns (1)."""

    def read(member: Member) -> Tensor:
        """Return the matrix, or a tensor of shape (0, 0) if this side has none."""
        if member.param.dim() != 2:
            raise member.fail(name, "is converted for parameters of two dimensions only")
        matrix, size = member.items(name, 2)[side], member.param.shape[side]
        if isinstance(matrix, list) and not matrix:
            return torch.zeros((0, 0), dtype=torch.float32, device="cpu")
        return member.checked(name, matrix, (size, size))  # pyright: ignore[reportUnknownArgumentType]

    return read


def _rotate_back(member: Member) -> Tensor:
    """Return SOAP's mean of gradients, rotated out of the eigenbasis; report the rounding."""
    mean = member.tensor("exp_avg")
    rows, columns = (_factor("Q", side)(member).to(mean) for side in (0, 1))
    mean = rows @ mean if rows.numel() else mean
    member.report.rounded["exp_avg"] = "rotated out of the basis"
    step, frequency = member.number("step"), member.number("precondition_frequency")
    if step and frequency > 0 and step % frequency == 0:
        member.report.rounded["Q"] = "the basis takes one more step, as this step changes it"
    return mean @ columns.mT if columns.numel() else mean


def _shampoo_beta(value: Any, group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option `shampoo_beta`, with the default that depends on `betas`."""
    is_default = isinstance(value, int | float) and value < 0
    return {"shampoo_beta": group["betas"][1] if is_default else value}


def _momentum(value: Any, group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option `momentum`, the first of the betas."""
    return {"momentum": value[0]}


ADAM = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}
_STEP: Mapping[str, Read] = {"step": "step"}
_MUON: Mapping[str, Any] = {
    "nesterov": True, "ns_coefficients": (3.4445, -4.7750, 2.0315), "ns_steps": 5, "eps": 1e-7,
    "adjust_lr_fn": None,
}  # fmt: skip
_IN_BFLOAT16 = "products are in bfloat16 there, and here with ns_dtype='bfloat16'"
_TIMM = {"caution": False, "corrected_weight_decay": False}
_UNREAD = ("foreach", "fused", "capturable", "max_lr_snapshot")
_BITSANDBYTES = ("step", _WRAPPED, "t_alpha", "t_beta3", "eps")
_EIGHT = {"state_storage": "dynamic8"}
_MEANS = {"step": "k", "weight_sum": "weight_sum", "lr_max": "lr_max"}


def _keys(*names: str) -> frozenset[str]:
    """Return a set of names."""
    return frozenset(names)


def _bitsandbytes(
    name: str, class_name: str, slots: Mapping[str, Read], **rest: Any
) -> list[Package]:
    """Return a `Package` for each of the two forms of states of a bitsandbytes class.

    Slots are entries of a parameter's state in one form. In the other form, slots are in a nested
    dict under the key `_WRAPPED`.
    """
    options = _keys("lr", "betas", "eps", "weight_decay", *rest.pop("more", ()))
    return [
        Package(f"bitsandbytes.optim.{name}", (class_name,), _keys(key), options, slots,
                arguments=_EIGHT, unread=_BITSANDBYTES, **rest)
        for key in (_WRAPPED, "state1")
    ]  # fmt: skip


PACKAGES: tuple[Package, ...] = (
    *_bitsandbytes(
        "AdamW", "AdamW", {"exp_avg": _of_bitsandbytes(1), "exp_avg_sq": _of_bitsandbytes(2)},
        more=("t_alpha",), numbers=_STEP, renamed={"eps": _option("eps")}, neutral={"alpha": 0.0},
    ),
    *_bitsandbytes(
        "Lion", "Lion", {"exp_avg": _of_bitsandbytes(1)}, lacks=_keys("alpha"),
    ),
    *_bitsandbytes(
        "SGD", "SGD", {"momentum_buffer": _of_bitsandbytes(1)}, lacks=_keys("alpha"),
        renamed={"betas": _momentum}, fixed={"dampening": 0, "nesterov": False},
    ),
    Package(
        "DeepSpeed Adam", ("AdamW", "Adam"), _keys("step", *ADAM), _keys("zero_stage"),
        ADAM, numbers=_STEP, unread=("zero_stage", "fused", "foreach"),
        neutral={"bias_correction": True, "max_grad_norm": 0.0},
    ),
    Package(
        "torchao.optim.AdamW", ("AdamW", "Adam"), _keys("step", *ADAM),
        _keys("lr", "betas", "eps", "weight_decay", "amsgrad"),
        {name: _of_torchao(name) for name in ADAM}, lacks=_keys("maximize", "foreach"),
        numbers=_STEP, renamed={"lr": _number_option("lr")}, arguments=_EIGHT,
    ),
    Package(
        "schedulefree.AdamWScheduleFree", ("ScheduleFreeAdamW",), _keys("z", "exp_avg_sq"),
        _keys("train_mode", "k", "betas"), {"z": "z", "exp_avg_sq": "exp_avg_sq"}, numbers=_MEANS,
        unread=(*_UNREAD, "train_mode", "scheduled_lr"),
    ),
    Package(
        "schedulefree.SGDScheduleFree", ("ScheduleFreeSGD",), _keys("z"),
        _keys("train_mode", "k", "momentum"), {"z": "z"}, numbers=_MEANS,
        unread=(*_UNREAD, "train_mode", "scheduled_lr"),
    ),
    Package(
        "prodigyopt.Prodigy", ("Prodigy",), _keys("p0", "s", "exp_avg_sq"),
        _keys("d", "d0", "d_numerator", "k"),
        {"p0": _unflatten("p0"), "s": _unflatten("s"), "exp_avg": _or_zeros("exp_avg"),
         "exp_avg_sq": "exp_avg_sq"},
        numbers={**_STEP, **{name: name for name in ("d", "d_max", "d_numerator", "k")}},
        renamed={"beta3": _beta3}, unread=("d_denom", "d_hat"),
    ),
    Package(
        "timm.optim.Lamb", ("LAMB",), _keys(*ADAM), _keys("trust_clip", "grad_averaging"), ADAM,
        numbers=_STEP, unread=_UNREAD,
        neutral={**_TIMM, "bias_correction": True, "grad_averaging": True, "decoupled_decay": False,
                 "max_grad_norm": None},
    ),
    Package(
        "timm.optim.Mars", ("MARS",), _keys("last_grad", *ADAM), _keys("mars_type", "gamma"),
        {**ADAM, "last_grad": "last_grad"}, lacks=_keys("is_vector"),
        numbers={**_STEP, "is_vector": lambda m: float(m.param.dim() < 2)},
        neutral={"caution": False},
    ),
    Package(
        "timm.optim.LaProp", ("LaProp",), _keys("exp_avg_lr_1", "exp_avg_lr_2", *ADAM),
        _keys("lr"), ADAM, numbers={**_STEP, "rate_mean": _rate_mean}, neutral=_TIMM,
        unread=(*_UNREAD, "exp_avg_lr_2"),
    ),
    Package(
        "timm.optim.NAdamW", ("NAdamW",), _keys(*ADAM), _keys("corrected_weight_decay", "maximize"),
        ADAM, lacks=_keys("trust_clip"), numbers=_STEP, unread=_UNREAD,
        neutral={**_TIMM, "maximize": False, "clipping_threshold": None},
    ),
    Package(
        "Adan", ("Adan",), _keys("neg_pre_grad", "exp_avg_diff", *ADAM), _keys("no_prox"),
        {**ADAM, "exp_avg_diff": "exp_avg_diff", "last_grad": lambda m: -m.tensor("neg_pre_grad")},
        numbers=_STEP, neutral={"max_grad_norm": 0.0}, unread=_UNREAD,
    ),
    Package(
        "AdEMAMix", ("AdEMAMix",), _keys("exp_avg_fast", "exp_avg_slow", "exp_avg_sq"),
        _keys("alpha", "beta3_warmup"),
        {"exp_avg": _or_zeros("exp_avg_fast"), "exp_avg_slow": "exp_avg_slow",
         "exp_avg_sq": "exp_avg_sq"},
        numbers=_STEP,
        renamed={name: _number_option(name) for name in ("alpha_warmup", "beta3_warmup")},
    ),
    Package(
        "SOAP", ("SOAP",), _keys("GG", "Q", *ADAM), _keys("max_precond_dim"),
        {"exp_avg": _rotate_back, "exp_avg_sq": "exp_avg_sq",
         "row_factor": _factor("GG", 0), "column_factor": _factor("GG", 1),
         "row_basis": _factor("Q", 0), "column_basis": _factor("Q", 1)},
        numbers={"step": lambda m: m.number("step") + 1},
        renamed={"max_precond_dim": _option("max_precondition_dim"),
                 "shampoo_beta": _shampoo_beta},
        neutral={"merge_dims": False, "precondition_1d": False, "normalize_grads": False,
                 "correct_bias": True},
    ),
    Package(
        "Muon", ("Muon",), _keys("momentum_buffer"), _keys("lr", "momentum", "weight_decay"),
        {"momentum_buffer": "momentum_buffer"},
        lacks=_keys("nesterov", "betas", "dampening", "alpha", "rule"),
        fixed=_MUON, remark=_IN_BFLOAT16, unread=("use_muon",),
    ),
    Package(
        "Adam of MuonWithAuxAdam", ("AdamW",), _keys("step", *ADAM), _keys("use_muon", "betas"),
        ADAM, numbers=_STEP, unread=("use_muon",),
    ),
)  # fmt: skip
