"""Mixed precision of OpenSeq2Seq in a checkpoint: masters and the loss scale.

The master of `w` is called `Loss_Optimization/FP32-master-copy/w`. The scaler's variables have
default names: `Loss_Optimization/Variable`, `Variable_1` and so on, in order of creation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thalweg._formats.stored_tensor import StoredTensor

_MASTER = "FP32-master-copy/"
_HALVES = ("F16", "BF16")
_NUMBERED = re.compile(r"(.*/)?Variable(?:_([1-9][0-9]{0,3}))?", re.DOTALL)
_AVERAGE = re.compile(r"(?:.*/)?nvgrad2_ema([0-9]{1,6})", re.DOTALL)

# Dtypes of the variables of each algorithm, in order of creation.
_SCALERS = {
    "Backoff": {"iteration": "I64", "last_overflow_iteration": "I64", "scale": "F32"},
    "LogMax": dict.fromkeys(
        (
            "iteration",
            "scale",
            "x_hat",
            "slow_x_hat",
            "xsquared_hat",
            "b1_correction",
            "b2_correction",
        ),
        "F32",
    )
    | {"iteration": "I64"},
}


@dataclass(frozen=True)
class MixedPrecision:
    """Entries of OpenSeq2Seq's mixed precision beside the variables and their slots.

    Attributes:
        masters: The float32 master of each float16 variable, by the variable's name.
        names: The names of the masters, and the variable of each.
        scaler: The loss scaler's algorithm, "Backoff" or "LogMax"; "" if the scale is fixed.
        scale: Its state by the names of `thalweg.openseq2seq`.
        averages: NovoGrad's averages of squared norms, numbered as its variables were created.
    """

    masters: dict[str, StoredTensor] = field(default_factory=dict[str, "StoredTensor"])
    names: dict[str, str] = field(default_factory=dict[str, str])
    scaler: str = ""
    scale: dict[str, StoredTensor] = field(default_factory=dict[str, "StoredTensor"])
    averages: list[StoredTensor] = field(default_factory=list["StoredTensor"])


def split_mixed_precision(
    stored_tensors: Mapping[str, StoredTensor],
) -> tuple[MixedPrecision | None, dict[str, StoredTensor]]:
    """Return masters, loss scale and averages, or None; and all other tensors."""
    names = {
        name: variable
        for name, tensor in stored_tensors.items()
        for variable in [name.partition(_MASTER)[2]]
        if tensor.dtype == "F32"
        and variable in stored_tensors
        and stored_tensors[variable].dtype in _HALVES
    }
    averages = {
        int(match[1]): name for name in stored_tensors if (match := _AVERAGE.fullmatch(name))
    }
    if not names and not averages:
        return None, dict(stored_tensors)
    scaler, scale = _find_scaler(stored_tensors) if names else ("", {})
    used_names = {*names, *averages.values(), *scale.values()}
    mixed = MixedPrecision(
        masters={variable: stored_tensors[name] for name, variable in names.items()},
        names=names,
        scaler=scaler,
        scale={kind: stored_tensors[name] for kind, name in scale.items()},
        averages=[stored_tensors[averages[number]] for number in sorted(averages)],
    )
    unused = stored_tensors.keys() - used_names
    return mixed, {name: tensor for name, tensor in stored_tensors.items() if name in unused}


def _find_scaler(stored_tensors: Mapping[str, StoredTensor]) -> tuple[str, dict[str, str]]:
    """Return the loss scaler's algorithm, and the names of its variables; "" and {} if missing."""
    scopes: dict[str, dict[int, str]] = {}
    for name, tensor in stored_tensors.items():
        match = _NUMBERED.fullmatch(name)
        if match is not None and not tensor.shape:
            scopes.setdefault(match[1] or "", {})[int(match[2] or 0)] = name
    for numbered in scopes.values():
        names = [numbered[number] for number in sorted(numbered)]
        for algorithm, kinds in _SCALERS.items():
            if [stored_tensors[name].dtype for name in names] == list(kinds.values()):
                return algorithm, dict(zip(kinds, names, strict=True))
    return "", {}
