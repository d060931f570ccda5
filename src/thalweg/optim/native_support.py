"""Decides if engines (fused kernels of this package) or torch's code take a step."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._core.dtensor import any_on_mesh, is_on_mesh, local
from thalweg._core.vectors import is_host as is_on_host
from thalweg._engines import current
from thalweg._engines.cuda.availability import takes_device
from thalweg.formula import STORED
from thalweg.variable import REDUCED

_SUPPORTED_DTYPES = (*STORED, torch.complex64, torch.complex128)


def engines_support(
    pairs: Sequence[tuple[Tensor, Tensor]],
    state: Mapping[Tensor, Any],
    names: Container[str],
    allows_float32_sums: bool = False,
    anywhere: bool = False,
    coded: Container[str] = (),
) -> bool:
    """Return True if the engines can update all parameters in `pairs`.

    Args:
        pairs: (gradient, parameter) pairs. A parameter that occurs twice is not supported.
        names: The keys that a step reads from a state; other entries belong to the user.
        allows_float32_sums: True to accept float32 gradients of 16-bit parameters, which
            accumulation produces.
        anywhere: True to accept tensors on any device, even without an engine.
        coded: The names of slots that may be uint8 tensors of encoded values.
    """
    for grad, param in pairs:
        slots = [
            entry
            for name, entry in state.get(param, {}).items()
            if name in names
            and isinstance(entry, Tensor)
            and not (entry.dtype == torch.uint8 and name in coded)
        ]
        # Sums of gradients of 16-bit parameters are float32 with masters.
        is_sum = allows_float32_sums and param.dtype in REDUCED and grad.dtype == torch.float32
        if not (
            all(_is_supported_tensor(local(tensor), anywhere) for tensor in (param, *slots))
            and (grad.dtype == param.dtype or is_sum)
            and is_on_mesh(grad) == is_on_mesh(param)
            and not (is_on_mesh(param) and param.is_complex())
            and (
                _is_supported_tensor(local(grad), anywhere) or _is_supported_sparse(grad, anywhere)
            )
        ):
            return False
    return len({id(param) for _, param in pairs}) == len(pairs)


def find_shared_scalar(
    params: Sequence[Tensor], state: Mapping[Tensor, Any], names: Container[str]
) -> tuple[str, list[Tensor]] | None:
    """Return (state key, [first, second parameter]) if two parameters share one tensor, else None.

    Torch's step would increase a shared step count twice; engines increase it once.
    """
    first_owner: dict[int, Tensor] = {}
    for param in params:
        for name, value in state.get(param, {}).items():
            if name in names and isinstance(value, Tensor):
                # A tensor without memory has the address 0.
                first = first_owner.setdefault(value.data_ptr() or id(value), param)
                if first is not param:
                    return name, [first, param]
    return None


def _is_supported_tensor(tensor: Tensor, anywhere: bool) -> bool:
    """Return True for dense tensors of supported dtype and device; `anywhere`: any device."""
    return (
        (anywhere or _has_engine(tensor.device))
        and tensor.layout == torch.strided
        and (tensor.dtype in _SUPPORTED_DTYPES or not tensor.dim())
        and has_plain_dispatch(tensor)
    )


def has_plain_dispatch(tensor: Tensor) -> bool:
    """Return True if a tensor's class has torch's dispatch, so that memory is as torch says."""
    return type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__  # pyright: ignore


def _is_supported_sparse(grad: Tensor, anywhere: bool) -> bool:
    """Return True for a sparse gradient of rows on a supported device."""
    has_engine = (anywhere or _has_engine(grad.device)) and not grad.is_complex()
    return has_engine and grad.layout == torch.sparse_coo and grad.sparse_dim() == 1


def device_of(params: Sequence[Tensor]) -> torch.device | None:
    """Return the GPU with an engine that updates all of these parameters, or None."""
    if is_host(params):
        return None
    device = params[0].device
    if not takes_device(device, current().name):
        return None
    is_single_device = all(param.device == device for param in params)
    return device if is_single_device and not any_on_mesh(params) else None


def is_host(params: Sequence[Tensor]) -> bool:
    """Return True if parameters are certainly not all on a GPU; called in every step."""
    return not params or is_on_host(params[0])


def _has_engine(device: torch.device) -> bool:
    """Return True if the selected engine supports a device."""
    return device.type == "cpu" or takes_device(device, current().name)
