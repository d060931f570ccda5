"""Places of the random bits of parameters, for stochastic rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._core.dtensor import is_on_mesh
from thalweg._core.param_groups import Group, parameter_names
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.formula import Rule
from thalweg.variable import REDUCED, dtype_name

HOMES = ("cpu", "cuda", "meta")  # kinds of devices on which bits are drawn


def places_of(optimizer: Any, rule: Rule, params: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return the index of each parameter in the optimizer, and the offset of its elements here.

    Raises:
        InvalidArgumentError, InvalidTypeError, NotImplementedError: As `check_params`.
    """
    check_params(optimizer, rule, params)
    all_params = (param for group in optimizer.param_groups for param in group["params"])
    numbers = {id(param): number for number, param in enumerate(all_params)}
    return [(numbers[id(param)], _first_of(param)) for param in params]


def check_group(optimizer: Any, group: Group) -> None:
    """Raise if no random bits are defined for parameters of a new group.

    Raises:
        InvalidArgumentError, InvalidTypeError, NotImplementedError: As `check_params`.
    """
    check_params(optimizer, optimizer._rule_of(group), group["params"])


def check_params(optimizer: Any, rule: Rule, params: Sequence[Tensor]) -> None:
    """Raise if no random bits are defined for parameters of a rule.

    Raises:
        InvalidArgumentError: One is neither on the CPU nor on a GPU.
        InvalidTypeError: One is of float64, and slots of it are of 16 bits.
        NotImplementedError: One is a DTensor that is not cut along its first dimension alone.
    """
    for param in params:
        if param.device.type not in HOMES:
            raise InvalidArgumentError(
                f"'{_title(optimizer, param)}' is on {param.device}, and round='stochastic' is for"
                " parameters on the CPU and on GPUs of CUDA: run there, or without it."
            )
        if is_on_mesh(param) and not _is_cut_in_order(param):
            raise NotImplementedError(
                f"'{_title(optimizer, param)}' is a DTensor with the placements"
                f" {_placements(param)}; round='stochastic' is defined for contiguous ones that are"
                " cut along dimension 0, or not at all."
            )
        if param.dtype == torch.float64:
            _check_wide(optimizer, rule, param)


def _check_wide(optimizer: Any, rule: Rule, param: Tensor) -> None:
    kinds = optimizer.step_options.kinds
    for slot in rule.element_slots:
        dtype = kinds.of(slot, param)
        if dtype in REDUCED:
            raise InvalidTypeError(
                f"'{_title(optimizer, param)}' is float64, and slot '{slot.name}' of it"
                f" {dtype_name(dtype)}: round='stochastic' rounds numbers of float32. Give another"
                " state_dtype, or parameters of float32, float16 or bfloat16."
            )


def _title(optimizer: Any, param: Tensor) -> str:
    (title,) = parameter_names(optimizer.param_groups, [param])
    return title


def _placements(param: Any) -> str:
    return f"({', '.join(map(str, param.placements))})"


def _is_cut_in_order(param: Any) -> bool:
    """Return whether what lies here of a DTensor is a run of the elements of the whole one."""
    from torch.distributed.tensor import Replicate, Shard

    # By their very types: others cut rows in another order than ranks have.
    kinds = {type(placement) for placement in param.placements}
    shards = [placement for placement in param.placements if type(placement) is Shard]
    cuts = {shard.dim % max(param.dim(), 1) for shard in shards}
    return kinds <= {Replicate, Shard} and cuts <= {0} and param.is_contiguous()


def _first_of(param: Any) -> int:
    """Return the offset of a DTensor's first local element in the global tensor."""
    if not (is_on_mesh(param) and param.dim() and param.numel()):
        return 0
    first, rows = 0, param.shape[0]
    for dim, placement in enumerate(param.placements):
        if placement.is_shard():
            share = -(-rows // param.device_mesh.size(dim))  # as `torch.chunk` cuts
            begin = min(param.device_mesh.get_local_rank(dim) * share, rows)
            first, rows = first + begin, min(share, rows - begin)
    return first * (param.numel() // param.shape[0])
