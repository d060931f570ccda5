"""Steps that are left to torch: they write to memory that is there, and are taken, or not at all."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from thalweg.core.outcome import not_taken
from thalweg.core.section import Call, no_grad, run
from thalweg.engines.layout import check_parts
from thalweg.optim.fitting import has_plain_dispatch
from thalweg.optim.groups import Group, titles_in
from thalweg.optim.rows import check_rows


@contextmanager
def whole(optimizer: Any) -> Generator[None]:
    """Have torch take a step in a `with` block, all of it or nothing.

    Torch updates one parameter after the other, and refuses a gradient when it comes to it. So what
    a step changes is copied before, and put back. Nothing is copied where gradients and state are
    like their parameters, which torch does not refuse, nor after a step of the same kinds: what
    torch refuses depends on them, and not on numbers. Tensors with a dispatch of their own are left
    to their class.

    Raises:
        LayoutError: What the step would read or write has no memory, which ends the process.
        InvalidArgumentError: An index of a sparse gradient is beyond its parameter.
    """
    members = [
        (group, param)
        for group in optimizer.param_groups
        for param in group["params"]
        if param.grad is not None
    ]
    with not_taken():
        _check(optimizer, [param for _, param in members])
    kinds = _kinds(optimizer, members)
    if kinds is None or kinds == optimizer._own.kinds_of_torch:
        yield
        return
    with not_taken():
        with torch.inference_mode(False), no_grad():
            new = [param for _, param in members if param not in optimizer.state]
            back = [call for _, param in members for call in _putting_back(optimizer, param)]
        try:
            yield
        except BaseException:
            with torch.inference_mode(False), no_grad():
                run(back)
            for param in new:
                optimizer.state.pop(param, None)
            raise
    optimizer._own.kinds_of_torch = kinds


def _check(optimizer: Any, params: Sequence[Tensor]) -> None:
    for param, title in zip(params, titles_in(optimizer.param_groups, params), strict=True):
        if param.is_meta:
            continue
        own = optimizer.state.get(param) or {}
        held = {"": param, "The gradient of ": param.grad}
        held |= {f"'{name}' of ": each for name, each in own.items()}
        for what, each in held.items():
            # A class with a dispatch of its own keeps its elements elsewhere.
            if isinstance(each, Tensor) and has_plain_dispatch(each):
                check_parts(each.detach(), f"{what}'{title}'")
                if each.is_sparse:
                    check_rows(each.detach(), f"{what}'{title}'")


def _kinds(optimizer: Any, members: Sequence[tuple[Group, Tensor]]) -> Hashable:
    """What torch decides by whether it takes a step; None where it certainly does."""
    found: list[Any] = []
    is_usual = True
    for group, param in members:
        own = optimizer.state.get(param) or {}
        kind, *others = [_kind(each) for each in (param, param.grad, *own.values())]
        tensors = [each for each in own.values() if isinstance(each, Tensor) and each.dim()]
        if not all(map(has_plain_dispatch, (param, cast("Tensor", param.grad), *tensors))):
            return None
        is_usual = is_usual and all(_kind(each) == kind for each in (param.grad, *tensors))
        options = [(name, _kind(each)) for name, each in group.items() if name != "params"]
        found.append((kind, *others, *own, *options))
    return None if is_usual else tuple(found)


def _kind(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        layout = value.stride() if value.layout == torch.strided else value.sparse_dim()
        return value.shape, layout, value.dtype, value.device, value.is_neg()
    return type(value), isinstance(value, int | float) and bool(value)


def _putting_back(optimizer: Any, param: Tensor) -> list[Call]:
    """What gives a parameter and its state the values that they have now, as functions in C."""
    own: dict[str, Any] = optimizer.state.get(param) or {}
    tensors = [param, *(each for each in own.values() if isinstance(each, Tensor))]
    plain = [_each_once(tensor) for tensor in tensors]
    calls: list[Call] = [partial(each.copy_, each.clone()) for each in plain]
    return [own.clear, partial(own.update, dict(own)), *calls]


def _each_once(tensor: Tensor) -> Tensor:
    """The elements of a tensor, those of expanded dimensions once: nothing copies to them else."""
    if tensor.layout != torch.strided:
        return tensor  # a detached one would be given other elements alone
    return tensor.detach()[tuple(slice(None if step else 1) for step in tensor.stride())]
