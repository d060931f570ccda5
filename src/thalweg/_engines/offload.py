"""Variables on the CPU whose gradients come from a GPU, and whose values go there.

Such a variable has its slots beside it and stands for a tensor of the GPU, its copy. A step goes
through them in runs: while one is updated, the gradients of the next are on their way here, and the
values of the one before on their way there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from thalweg._base.rule_passes import Measure
from thalweg._engines import layout
from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.composite import Part, share_of
from thalweg._engines.protocol import Call, Columns, Formulas, Stages, StepRequest
from thalweg._engines.reference import ReferencePart
from thalweg.indexed_slices import IndexedSlices, values_of

RUN = 1 << 25  # bytes of the variables that are updated in one go


class OffloadLink:
    """The memory beside a variable for what crosses.

    Args:
        var: The variable.
        copy: What follows it, on another device.

    Attributes:
        copy: The same.
        near: What follows it here, where the copy is of another dtype; None elsewhere.
    """

    def __init__(self, var: Tensor, copy: Tensor) -> None:
        self._var, self.copy, self._dtype = var, copy, copy.dtype
        self.near = None if copy.dtype == var.dtype else stand_in_for(var, copy)
        self._gradient: Tensor | None = None

    def is_of(self, var: Tensor, copy: Tensor) -> bool:
        """Whether it was made for these two, as they are."""
        return var is self._var and copy is self.copy and copy.dtype == self._dtype

    def bring_beside(self, grad: Any) -> Any:
        """A gradient beside the variable; it is on its way there, to memory that the next uses."""
        if isinstance(grad, IndexedSlices) or not layout.is_far(grad, self._var.device):
            return grad
        if self._gradient is None or self._gradient.dtype != grad.dtype:
            self._gradient = stand_in_for(self._var, grad)
        return self._gradient.copy_(grad.detach(), non_blocking=grad.is_cuda)

    def send_rows(self, rows: Tensor | None) -> list[Call]:
        """What has the values on their way there, as functions in C.

        Args:
            rows: The rows that have changed; None stands for all.
        """
        source, there = self._var if self.near is None else self.near, self.copy.detach()
        if rows is None:
            return [partial(there.copy_, source.detach(), there.is_cuda)]
        picked = source.new_empty((len(rows), *source.shape[1:]))
        sent = torch.empty_like(picked, device=there.device)
        places = rows.long().to(there.device)  # torch's functions take no other type
        return [
            partial(torch.index_select, source.detach(), 0, rows, out=picked),
            partial(sent.copy_, picked),
            partial(there.index_copy_, 0, places, sent),
        ]


def stand_in_for(var: Tensor, there: Tensor) -> Tensor:
    """A new tensor in a variable's place, of the dtype of one of a GPU, which can read it fast."""
    return torch.empty_like(var, dtype=there.dtype, pin_memory=there.is_cuda).detach()


class OffloadTransfers:
    """What crosses between devices in a step; gradients are on their way when it is made.

    Args:
        asked: The step. A copy may be on another device, with a dense gradient, and comes once
            then.
        known: The memory beside variables, by their `id`; what is missing is added.

    Attributes:
        asked: The step with all of that beside its variables.
        runs: The run of a variable with a dense gradient, by its position in the step.
    """

    def __init__(self, request: StepRequest, known: dict[int, OffloadLink]) -> None:
        self.asked = request
        self._far: dict[int, OffloadLink] = {}
        self.runs: dict[int, int] = {}
        self._rows: dict[int, Tensor] = {}  # those that change, where others do not
        self._events: dict[int, list[Any]] = {}  # by run
        if request.copies is None:
            return
        copies, gradients, size = list(request.copies), list(request.gradients), 0
        for index, (var, copy) in enumerate(zip(request.variables, copies, strict=True)):
            if copy is None or not layout.is_far(copy, var.device):
                continue
            far = known.get(id(var))
            if far is None or not far.is_of(var, copy):
                far = known[id(var)] = OffloadLink(var, copy)
            self._far[index], copies[index] = far, far.near
            if not isinstance(gradients[index], IndexedSlices):
                self.runs[index] = size // RUN
                size += var.nbytes
        self._fetch_gradients(gradients)
        if request.rule.update_untouched is None:
            sparse = {index: gradients[index] for index in self._far if index not in self.runs}
            self._rows = {index: grad.indices.unique() for index, grad in sparse.items()}
        self.asked = request._replace(gradients=gradients, copies=copies)

    def _fetch_gradients(self, gradients: list[Any]) -> None:
        streams: dict[torch.device, Any] = {}
        for index, far in self._far.items():
            device = values_of(gradients[index]).device
            if device.type == "cuda" and device not in streams:
                streams[device] = _transfer_stream(device)
                streams[device].wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(streams.get(device)):
                gradients[index] = far.bring_beside(gradients[index])
            if index in self.runs and self.runs[index] != self.runs.get(index + 1):
                events = [stream.record_event() for stream in streams.values()]
                self._events[self.runs[index]] = events

    def take_share(self, request: StepRequest, own: Sequence[int]) -> StepRequest:
        """The share of some variables in the step; of copies elsewhere nothing is read."""
        found = share_of(request, own)
        return found._replace(from_copies=False) if own[0] in self._far else found

    def wrap_part(self, own: Sequence[int], part: Part) -> Part:
        """A part with what crosses for its variables, which are of one run, if anything does."""
        if own[0] not in self._far:
            return part
        sends = [
            call for index in own for call in self._far[index].send_rows(self._rows.get(index))
        ]
        copies = [self._far[index].copy for index in own]
        return OffloadedPart(part, copies, self._events.get(self.runs.get(own[0], -1), []), sends)


@cache
def _transfer_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)


class OffloadedPart:
    """A `Part` of variables that stand for tensors of another device.

    Args:
        inner: Updates them.
        copies: Those tensors.
        events: What tells that their gradients are here.
        sends: What has their values on the way there, as functions in C.
    """

    def __init__(
        self, inner: Part, copies: Sequence[Tensor], events: Sequence[Any], sends: Sequence[Call]
    ) -> None:
        self._inner, self._copies, self._events, self._sends = inner, copies, events, sends

    @property
    def written(self) -> Sequence[Tensor]:
        """See `Part`."""
        return [*self._inner.written, *self._copies]

    def try_rebind(self, request: StepRequest, bounds: Int64) -> bool:
        """See `Part`: each step is looked at anew."""
        return False

    def _wait_calls(self) -> list[Call]:
        # As torch.cuda.Event has it, but in C.
        return [partial(torch._C._CudaEventBase.synchronize, each) for each in self._events]  # pyright: ignore

    def _wait_for_rows(self) -> None:
        for event in self._events:
            event.synchronize()

    def compute_sums(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Float64]:
        """See `StepPlan`."""
        self._wait_for_rows()
        return self._inner.compute_sums(formulas, stages, columns)

    def compute_leaves(self, formulas: Formulas, stages: Stages, columns: Columns) -> list[Float64]:
        """See `StepPlan`."""
        self._wait_for_rows()
        return self._inner.compute_leaves(formulas, stages, columns)

    def compute_lines(
        self, measures: tuple[Measure, ...], stages: Stages, columns: Columns
    ) -> list[list[Tensor]]:
        """See `StepPlan`."""
        self._wait_for_rows()
        return self._inner.compute_lines(measures, stages, columns)

    def max_abs(self) -> Float64:
        """See `StepPlan`."""
        self._wait_for_rows()
        return self._inner.max_abs()

    def make_calls(self, columns: Columns) -> list[Call]:
        """See `Part`."""
        if isinstance(self._inner, ReferencePart):  # which computes now
            self._wait_for_rows()
        return [*self._wait_calls(), *self._inner.make_calls(columns), *self._sends]

    def release_gradients(self) -> None:
        """See `StepPlan`."""
        self._inner.release_gradients()
