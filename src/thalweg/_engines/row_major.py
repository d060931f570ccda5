"""Measures of variables whose memory is dense but not in row-major order, such as channels last.

The bits of a sum depend on the order of its elements, so all engines add them up in row-major order
of the indices. Kernels that read memory from its first element to its last measure copies of
variables in another order. Those of the CPU look up where elements lie, if that is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._engines.formula_parser import transcribe
from thalweg._engines.protocol import Formulas, StepRequest

_VAR, _GRADIENT, _COPY = 0, 1, -1


class RowMajorGroups:
    """Groups over copies of what measures read, which are kept from step to step.

    Args:
        request: The step, without gradients.
        make_group: Makes a `plan.Group` of a request and the positions of its members.
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
        """Return groups whose memory holds the present values in row-major order.

        Args:
            groups: Those of the plan.
            gradients: Those of the step.
            formulas: What is to be measured: what they do not read is not copied.
        """
        request = self._request._replace(gradients=gradients)
        read = {stream for each in formulas for stream in transcribe(each).streams}
        if not self._groups or not read <= self._read:
            self._read |= read
            self._copies = {}
            packed = self._with_copies(request)
            self._groups = [self._make_group(packed, each.members) for each in groups]
        else:
            packed = self._with_copies(request)
        addresses = np.array([each.data_ptr() for each in packed.gradients], np.int64)
        for group in self._groups:
            group.point_at(addresses[group.members])
        return self._groups

    def _with_copies(self, request: StepRequest) -> StepRequest:
        """Return the step with copies that have the present values."""
        slots = [
            [self._packed(index, 2 + k, slot) for k, slot in enumerate(own)]
            for index, own in enumerate(request.slots)
        ]
        copies = request.copies and [
            copy if copy is None else self._packed(index, _COPY, copy)
            for index, copy in enumerate(request.copies)
        ]
        return request._replace(
            variables=[self._packed(k, _VAR, each) for k, each in enumerate(request.variables)],
            gradients=[
                self._packed(k, _GRADIENT, each) for k, each in enumerate(request.gradients)
            ],
            slots=slots,
            copies=copies,
        )

    def _packed(self, index: int, stream: int, tensor: Tensor) -> Tensor:
        """Return the copy of a stream of a variable; the tensor itself where none is needed."""
        # Where the variable is read, so is the copy at which a step may begin.
        is_read = (_VAR if stream == _COPY else stream) in self._read
        if tensor.is_contiguous() or not is_read:
            return tensor
        key = index, stream
        if key not in self._copies:
            self._copies[key] = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return self._copies[key].copy_(tensor.detach())
