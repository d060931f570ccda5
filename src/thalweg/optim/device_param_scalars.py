"""Per-parameter numbers, such as step counts, stored on a device only; see `param_scalars`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from thalweg._core.atomic_section import Call


class DeviceColumn:
    """Per-parameter numbers of one state key on a device; the host never waits to read them.

    Args:
        name: The key.
        views: The tensors in the state, one per parameter.
        block: A tensor (parameters,) whose elements are the views.

    Attributes:
        common: The numbers of all parameters, in one tensor.
    """

    is_on_device: ClassVar[Literal[True]] = True

    def __init__(self, name: str, views: Sequence[Tensor], block: Tensor) -> None:
        self.name, self.dtype, self.common = name, block.dtype, block
        self.views = views
        self._pointers = list(map(Tensor.data_ptr, views))

    def stands(self) -> bool:
        return list(map(Tensor.data_ptr, self.views)) == self._pointers

    def read(self) -> None:
        """Do nothing: readers get the tensor on the device."""

    def counting(self, apply_flag: Tensor | None) -> Call:
        """Return a call that adds 1, or `apply_flag` as a number, to each number."""
        return partial(self.common.add_, 1 if apply_flag is None else apply_flag.to(self.dtype))

    def moving(self, values: Tensor, apply_flag: Tensor | None) -> Call:
        """Return a call that writes one number per parameter if `apply_flag` is None or True."""
        return partial(self.common.copy_, self._choose_numbers(values, apply_flag))

    def _choose_numbers(self, values: Tensor, apply_flag: Tensor | None) -> Tensor:
        """Return the new numbers if the device applies the step, else the present numbers."""
        next_values = values.to(self.dtype)
        return (
            next_values if apply_flag is None else torch.where(apply_flag, next_values, self.common)
        )


class ForeignDeviceColumn(DeviceColumn):
    """Per-parameter numbers on a device, in state tensors that other code created."""

    def __init__(self, name: str, views: Sequence[Tensor]) -> None:
        flat_views = [view.detach().reshape(()) for view in views]
        dtype = reduce(torch.promote_types, [view.dtype for view in flat_views])
        super().__init__(name, views, torch.stack([view.to(dtype) for view in flat_views]))
        self._foreign_views = flat_views

    def read(self) -> None:
        """Copy the present numbers into `common`, on the device."""
        self.common = torch.stack([view.to(self.dtype) for view in self._foreign_views])

    def counting(self, apply_flag: Tensor | None) -> Call:
        """Return a call that adds 1 or `apply_flag` to each distinct state tensor."""
        add: Any = torch._foreach_add_  # pyright: ignore
        unique_views = [*dict(zip(self._pointers, self._foreign_views, strict=True)).values()]
        return partial(add, unique_views, 1 if apply_flag is None else apply_flag.to(self.dtype))

    def moving(self, values: Tensor, apply_flag: Tensor | None) -> Call:
        """Return a call that writes one number per parameter if `apply_flag` is None or True."""
        copy: Any = torch._foreach_copy_  # pyright: ignore
        next_values = self._choose_numbers(values, apply_flag).expand(len(self._foreign_views))
        return partial(copy, self._foreign_views, list(next_values.unbind()))
