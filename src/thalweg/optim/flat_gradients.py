"""Gradients as views of a few buffers, which are cleared by one memset each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from operator import is_

from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._core.atomic_section import run
from thalweg._core.dtensor import check_whole
from thalweg._core.state_allocation import laid_out
from thalweg._engines.layout import all_have_memory, check_memory, check_parts
from thalweg.variable import name_of

_grad: Callable[[Tensor], Tensor | None] = Tensor.grad.__get__  # pyright: ignore


class FlatGradients:
    """Gradients of parameters as views of a few buffers, one per dtype, with fixed addresses.

    Args:
        params: Dense CPU parameters. Their `grad` becomes a view; existing gradients are copied. A
            frozen parameter gets no gradient, since a gradient of 0 would decay it.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        check_whole(params, "gradients='flat'")
        self._all_params = list(params)
        self._flags = [param.requires_grad for param in params]
        self.params = list(compress(self._all_params, self._flags))
        self._frozen_params = [param for param in params if not param.requires_grad]
        self.views = laid_out(self.params, [param.dtype for param in self.params], 0.0)
        bases = {view.untyped_storage().data_ptr(): view._base for view in self.views}
        self._buffers = [base for base in bases.values() if base is not None]
        with no_grad():
            for param, view in zip(self.params, self.views, strict=True):
                if param.grad is not None:
                    check_parts(param.grad, f"The gradient of '{name_of(param)}'")
                    view.copy_(param.grad.to_dense())
        self._attach_calls = [
            partial(setattr, param, "grad", view)
            for param, view in zip(self.params, self.views, strict=True)
        ]
        run(self._attach_calls)

    def lie(self) -> bool:
        """Return True if the gradients of all parameters are views of the buffers."""
        return all(map(is_, map(_grad, self.params), self.views))

    def stands(self) -> bool:
        """Return True if the same parameters are frozen as at construction."""
        return [param.requires_grad for param in self._all_params] == self._flags

    def clear(self) -> None:
        """Set all gradients to 0 in place.

        If other code assigned a gradient, put the view of the buffer back. Gradients of frozen
        parameters become None.

        Raises:
            LayoutError: A buffer has no memory that holds its elements.
        """
        if not all_have_memory(self._buffers):
            for param, view in zip(self.params, self.views, strict=True):
                check_memory(view, f"The gradient of '{name_of(param)}'")
        # A frozen parameter may have a gradient of an earlier step, which no step takes.
        frozen = [param for param in self._frozen_params if param.grad is not None]
        forgotten = [partial(setattr, param, "grad", None) for param in frozen]
        attach_calls = [] if self.lie() else self._attach_calls
        run([*(buffer.zero_ for buffer in self._buffers), *attach_calls, *forgotten])
