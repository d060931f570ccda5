"""Measures of variables whose memory is dense but not in row-major order, such as channels last.

The bits of a sum depend on the order of its elements. All engines add elements in row-major order
of the indices. Kernels that read memory in address order measure row-major copies of other
variables. CPU kernels read offsets of elements instead, if that is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.protocol import Formulas, StepRequest

_VAR, _GRADIENT, _COPY = 0, 1, -1


class RowMajorGroups:
    """Groups over row-major copies of the tensors that measures read, reused in all steps.

    Args:
        request: The step, without gradients.
        make_group: `make_group(request, indices of variables)` returns a `dense_plan.Group`.
    """

    def __init__(
        self, request: StepRequest, make_group: Callable[[StepRequest, list[int]], Any]
    ) -> None:
        self._request, self._make_group = request, make_group
        self._read: set[int] = set()
        self._copies: dict[tuple[int, int], Tensor] = {}  # by variable and stream
        self._groups: list[Any] = []

    def refresh(
        self, groups: Sequence[Any], gradients: Sequence[Tensor], formulas: Formulas
    ) -> list[Any]:
        """Copy tensors into row-major memory; return groups of kernels over the copies.

        Args:
            groups: The original groups of variables.
            formulas: The measures; tensors that no measure reads are not copied.
        """
        request = self._request._replace(gradients=gradients)
        read = {stream for formula in formulas for stream in trace_formula(formula).streams}
        # Groups have the addresses of copies, so that further copies need new groups.
        if not self._groups or not read <= self._read:
            self._read |= read
            self._copies = {}
            copied_request = self._with_copies(request)
            self._groups = [self._make_group(copied_request, group.members) for group in groups]
        else:
            copied_request = self._with_copies(request)
        addresses = np.array([grad.data_ptr() for grad in copied_request.gradients], np.int64)
        for group in self._groups:
            group.point_at(addresses[group.members])
        return self._groups

    def _with_copies(self, request: StepRequest) -> StepRequest:
        """Return a request with row-major copies of all read tensors that are not row-major."""

        def copy_all(stream: int, tensors: Sequence[Tensor | None]) -> list[Any]:
            return [self._copy_if_read(index, stream, x) for index, x in enumerate(tensors)]

        return request._replace(
            variables=copy_all(_VAR, request.variables),
            gradients=copy_all(_GRADIENT, request.gradients),
            slots=[
                [self._copy_if_read(index, stream, slot) for stream, slot in enumerate(slots, 2)]
                for index, slots in enumerate(request.slots)
            ],
            copies=request.copies and copy_all(_COPY, request.copies),
        )

    def _copy_if_read(self, index: int, stream: int, tensor: Tensor | None) -> Tensor | None:
        """Copy a tensor into row-major memory and return the copy; later calls reuse the memory.

        Return `tensor` itself if it is None or contiguous, or if no measure reads it.

        Args:
            index: The index of the variable.
            stream: 0 for the variable, 1 for its gradient, k + 2 for slot k, `_COPY` for its copy.
        """
        # A step may begin at the copy of a variable, so the copy is read if the variable is.
        is_read = (_VAR if stream == _COPY else stream) in self._read
        if tensor is None or tensor.is_contiguous() or not is_read:
            return tensor
        key = index, stream
        if key not in self._copies:
            self._copies[key] = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return self._copies[key].copy_(tensor.detach())
