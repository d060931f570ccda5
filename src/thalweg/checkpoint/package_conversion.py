"""Conversion of files with optimizer states of other packages, without a model."""

# Contents of files have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from thalweg.checkpoint.optimizer_files import read_state
from thalweg.checkpoint.save_restore import save
from thalweg.errors import InvalidArgumentError
from thalweg.optim import Mixed
from thalweg.optim.class_lookup import kind_of
from thalweg.optim.package_states.conversion import convert_state, recognize
from thalweg.optim.package_states.table import PACKAGES, Package

# Slots of the parameter's shape, one of which each package has.
_SHAPED = ("exp_avg_sq", "z", "momentum_buffer", "state1", "exp_avg")


def convert_file(
    path: str | PathLike[str],
    target_path: str | PathLike[str],
    optimizer: str | None = None,
    allow_loss: bool = False,
    **arguments: Any,
) -> list[str]:
    """Convert the optimizer state of another package, and write it to a file.

    `read_state(target_path)` returns the state dict, for `load_state_dict` of the new class.

    Args:
        path: A file of `torch.save`, or a folder of DeepSpeed.
        target_path: The new file, in the format of `save`.
        optimizer: Optional. The name of a class of `thalweg.optim`. By default, the class that
            `PACKAGES` lists first for the package's optimizer.
        allow_loss: True to leave out state without a counterpart; by default such state raises.
        arguments: Arguments of the class.

    Returns:
        Lines that describe what is exact, rounded and lost.

    Raises:
        InvalidArgumentError: The file is damaged, or its state is of no known package.
        CheckpointMismatchError: The state does not fit, or something would be lost.
    """
    state = read_state(path)
    groups = state["param_groups"]
    packages = recognize(state, [optimizer or ""] * len(groups))
    if packages is None:
        package_names = ", ".join(dict.fromkeys(package.name for package in PACKAGES))
        raise InvalidArgumentError(
            f"{fspath(path)}: the state is of none of {package_names}. A state of torch.optim or"
            " thalweg.optim needs no conversion: optimizer.load_state_dict reads it."
        )
    if any(group.get("train_mode") is False for group in groups):
        raise InvalidArgumentError(
            f"{fspath(path)} was saved in eval mode, in which parameters are averages: use"
            " optimizer.load_state_dict(checkpoint.read_state(path), convert=True), which moves"
            " the parameters, too."
        )
    target = _make_optimizer(state, packages, optimizer, arguments)
    conversion = convert_state(target, state, allow_loss)
    if conversion is None:
        raise InvalidArgumentError(f"{fspath(path)}: the state is not converted.")
    target.load_state_dict(conversion.state)
    save(Path(target_path), extra={"optimizer": target.state_dict()})
    return [line for report in conversion.reports for line in report.lines()]


def _make_optimizer(
    state: Mapping[str, Any],
    packages: Sequence[Package],
    name: str | None,
    arguments: Mapping[str, Any],
) -> Any:
    """Return a `thalweg.optim` optimizer over parameters of zeros with the shapes in a state.

    Args:
        packages: For each group the entry of `PACKAGES` that describes its optimizer. The first
            entry's arguments are defaults of the constructor.
        name: The class of all groups. None means the first class in the entry of each group. If the
            groups have different classes, the optimizer is a `Mixed`.
        arguments: Arguments of the constructor. With `masters`, parameters are bfloat16.
    """
    dtype = torch.bfloat16 if arguments.get("masters") else torch.float32
    names = [name or package.into[0] for package in packages]
    is_mixed = len(set(names)) > 1
    groups: list[dict[str, Any]] = []
    for saved_group, rule in zip(state["param_groups"], names, strict=True):
        shapes = [_shape_of(state["state"].get(key)) for key in saved_group["params"]]
        params = [
            torch.zeros(shape, dtype=dtype, device="cpu", requires_grad=True) for shape in shapes
        ]
        groups.append({"params": params, **({"rule": rule} if is_mixed else {})})
    options = {**packages[0].arguments, **arguments}
    # Without momentum, the optimizer has no slot for the buffer in the file.
    if "momentum" in packages[0].fixed or names[0] == "SGD":
        options.setdefault("momentum", 0.9)
    cls = Mixed if is_mixed else kind_of(names[0])
    try:
        return cls(groups, **options)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{cls.__name__} cannot be made: {error}") from error


def _shape_of(entries: object) -> tuple[int, ...]:
    """Return a parameter's shape, from a slot such as "exp_avg" in its state `entries`.

    Return (0,) if there is no such slot.
    """
    has_entries = isinstance(entries, Mapping)
    outer: Mapping[str, Any] = cast("Mapping[str, Any]", entries) if has_entries else {}
    for values in (outer, *outer.values()):
        for name in _SHAPED if isinstance(values, Mapping) else ():
            tensor: Any = values.get(name)
            if isinstance(tensor, Tensor):
                return tuple(tensor.shape)
    return (0,)
