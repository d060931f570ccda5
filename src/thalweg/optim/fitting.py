"""Which steps of `torch.optim` are taken here, and which by torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg.formula import STORED
from thalweg.optim.sharded import is_on_mesh, local

_COMPUTED = (*STORED, torch.complex64, torch.complex128)


def fits(pairs: Sequence[tuple[Tensor, Tensor]], state: Mapping[Tensor, Any]) -> bool:
    """Whether gradients, parameters and their state are such as engines here compute."""
    once = {id(param) for _, param in pairs}
    return len(once) == len(pairs) and all(_fits(*pair, state) for pair in pairs)


def _fits(grad: Tensor, param: Tensor, state: Mapping[Tensor, Any]) -> bool:
    kept = [value for value in state.get(param, {}).values() if isinstance(value, Tensor)]
    return (
        all(map(_is_ours, map(local, (param, *kept))))
        and grad.dtype == param.dtype
        and is_on_mesh(grad) == is_on_mesh(param)
        and not (is_on_mesh(param) and param.is_complex())
        and (_is_ours(local(grad)) or _is_of_rows(grad))
    )


def _is_ours(tensor: Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and (tensor.dtype in _COMPUTED or not tensor.dim())
        and type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__  # pyright: ignore
    )


def _is_of_rows(grad: Tensor) -> bool:
    is_here = grad.device.type == "cpu" and not grad.is_complex()
    return is_here and grad.layout == torch.sparse_coo and grad.sparse_dim() == 1
