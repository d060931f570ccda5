"""Gradients that lie in a few buffers, and stay there: one memset clears them all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import is_
from typing import Any

from torch import Tensor

from thalweg.core.blocks import laid_out
from thalweg.core.section import run
from thalweg.engines.layout import check_memory, check_parts, holds
from thalweg.optim.sharded import check_whole
from thalweg.switches import no_grad
from thalweg.tracing import untraced
from thalweg.variable import name_of

_grad: Any = Tensor.grad.__get__  # pyright: ignore


class FlatGradients:
    """The gradients of parameters, in a buffer for each dtype.

    Args:
        params: Dense parameters on the CPU; what gradients they have are kept.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        check_whole(params, "gradients='flat'")
        self.params = list(params)
        self.views = laid_out(self.params, [param.dtype for param in self.params], 0.0)
        bases = {view.untyped_storage().data_ptr(): view._base for view in self.views}
        self._buffers = [base for base in bases.values() if base is not None]
        with no_grad():
            for param, view in zip(self.params, self.views, strict=True):
                if param.grad is not None:
                    check_parts(param.grad, f"The gradient of '{name_of(param)}'")
                    view.copy_(param.grad)
        self._attached = [
            partial(setattr, param, "grad", view)
            for param, view in zip(self.params, self.views, strict=True)
        ]
        run(self._attached)

    def lie(self) -> bool:
        """Whether all gradients are those that lie here."""
        return all(map(is_, map(_grad, self.params), self.views))

    @untraced
    def clear(self) -> None:
        """Set all gradients to 0; those that others gave a parameter are replaced.

        Raises:
            LayoutError: A buffer has no memory that holds its elements.
        """
        if not all(map(holds, self._buffers)):
            for param, view in zip(self.params, self.views, strict=True):
                check_memory(view, f"The gradient of '{name_of(param)}'")
        run([*(each.zero_ for each in self._buffers), *([] if self.lie() else self._attached)])
