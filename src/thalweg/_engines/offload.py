"""Offload: variables and slots on the CPU, gradients and copies of the variables on a GPU.

A step updates the variables in groups, named runs. During the update of a run, the GPU sends the
gradients of the next run, and receives the values of the previous run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from thalweg._engines import layout
from thalweg._engines.array_types import Int64
from thalweg._engines.composite import Part, select_members
from thalweg._engines.protocol import Call, Columns, Reduction, Results, StepRequest
from thalweg._engines.torch_part import TorchPart
from thalweg.indexed_slices import IndexedSlices, values_of

RUN = 1 << 25  # bytes of the variables of a run


class Prefetch:
    """Transfer of a gradient to the CPU that starts before the step.

    The gradient keeps the transfer as an attribute. The step ignores a changed gradient's transfer.

    Args:
        grad: A dense gradient.
        param: The parameter, whose strides `buffer` gets.

    Attributes:
        buffer: The copy of the gradient on the CPU.
        event: The CUDA event of the transfer; None for a gradient that is not on a GPU.
    """

    def __init__(self, grad: Tensor, param: Tensor) -> None:
        source, self.event = grad.detach(), None
        options: Any = {"dtype": grad.dtype, "device": "cpu", "pin_memory": grad.is_cuda}
        self.buffer = torch.empty_like(param.detach(), **options)
        self._version = grad._version
        if grad.is_cuda:
            stream = _transfer_stream(grad.device)
            # The transfer follows the kernels that compute the gradient.
            stream.wait_stream(torch.cuda.current_stream(grad.device))
            with torch.cuda.stream(stream):
                self.buffer.copy_(source, non_blocking=True)
                self.event = stream.record_event()
            # Until the transfer is done, torch must not give the memory to another tensor.
            source.record_stream(stream)
        else:
            self.buffer.copy_(source)
        grad._thalweg_prefetch = self  # pyright: ignore[reportAttributeAccessIssue]

    def has_arrived(self) -> bool:
        """Return True if the transfer is complete."""
        return self.event is None or self.event.query()

    @staticmethod
    def of(grad: Any) -> Prefetch | None:
        """Return the transfer of a gradient; None without one, or if the gradient has changed."""
        prefetch = getattr(grad, "_thalweg_prefetch", None)
        return prefetch if prefetch and prefetch._version == grad._version else None


class OffloadLink:
    """Memory on the variable's device for transfers between a variable and its copy.

    Args:
        copy: The copy on another device, which receives the values of the variable.

    Attributes:
        copy: The copy on another device.
        staged_copy: A tensor on the variable's device with the dtype of the copy; None if the
            dtypes are equal.
    """

    def __init__(self, var: Tensor, copy: Tensor) -> None:
        self._var, self.copy, self._dtype = var, copy, copy.dtype
        self.staged_copy = None if copy.dtype == var.dtype else empty_transfer_tensor(var, copy)
        self._gradient: Tensor | None = None

    def connects(self, var: Tensor, copy: Tensor) -> bool:
        """Return True if the link is for this variable and copy, whose dtype is unchanged."""
        return var is self._var and copy is self.copy and copy.dtype == self._dtype

    def fetch_gradient(self, grad: Any) -> Any:
        """Start the copy of a gradient to the variable's device; return the destination tensor.

        The next call overwrites the tensor. Sparse gradients, and gradients on the variable's
        device, are returned unchanged. If a `Prefetch` has started the copy, return its `buffer`.
        """
        if isinstance(grad, IndexedSlices) or not layout.is_far(grad, self._var.device):
            return grad
        if (prefetch := Prefetch.of(grad)) is not None:
            return prefetch.buffer
        if self._gradient is None or self._gradient.dtype != grad.dtype:
            self._gradient = empty_transfer_tensor(self._var, grad)
        return self._gradient.copy_(grad.detach(), non_blocking=grad.is_cuda)

    def send_rows(self, rows: Tensor | None) -> list[Call]:
        """Return functions that copy the variable's new values to the copy on another device.

        Args:
            rows: The rows that have changed; None for all.
        """
        source = self._var if self.staged_copy is None else self.staged_copy
        target = self.copy.detach()
        if rows is None:
            return [partial(target.copy_, source.detach(), target.is_cuda)]
        host_rows = source.new_empty((len(rows), *source.shape[1:]))
        device_rows = torch.empty_like(host_rows, device=target.device)
        indices = rows.long().to(target.device)  # `index_copy_` takes int64 only
        return [
            partial(torch.index_select, source.detach(), 0, rows, out=host_rows),
            partial(device_rows.copy_, host_rows),
            partial(target.index_copy_, 0, indices, device_rows),
        ]


def empty_transfer_tensor(var: Tensor, template: Tensor) -> Tensor:
    """Return an uninitialized tensor like a variable, with the dtype of `template`.

    The tensor's memory is pinned, for fast transfers, if `template` is on a GPU.
    """
    return torch.empty_like(var, dtype=template.dtype, pin_memory=template.is_cuda).detach()


class OffloadTransfers:
    """Transfers of a step between devices: gradients, and new values of variables, run by run.

    The constructor starts the transfers of gradients.

    Args:
        request: The step. Some copies are on another device. A variable with a copy on another
            device and a dense gradient occurs once.
        links: {id(variable): link}; missing links are added.

    Attributes:
        request: The step with gradients and copies on the devices of the variables.
        runs: {index of a variable with a dense gradient: index of its run}.
    """

    def __init__(self, request: StepRequest, links: dict[int, OffloadLink]) -> None:
        self._links: dict[int, OffloadLink] = {}
        self.runs: dict[int, int] = {}
        self._rows: dict[int, Tensor] = {}  # rows that change, if the others do not
        self._events: dict[int, list[Any]] = {}  # by run
        copies, gradients, size = list(request.copies or ()), list(request.gradients), 0
        for index, (var, copy) in enumerate(zip(request.variables, copies, strict=True)):
            if copy is None or not layout.is_far(copy, var.device):
                continue
            link = links.get(id(var))
            if link is None or not link.connects(var, copy):
                link = links[id(var)] = OffloadLink(var, copy)
            self._links[index], copies[index] = link, link.staged_copy
            if not isinstance(gradients[index], IndexedSlices):
                self.runs[index] = size // RUN
                size += var.nbytes
        self._fetch_gradients(gradients)
        if request.rule.update_untouched is None:
            sparse = {index: gradients[index] for index in self._links if index not in self.runs}
            self._rows = {index: grad.indices.unique() for index, grad in sparse.items()}
        self.request = request._replace(gradients=gradients, copies=copies)

    def _fetch_gradients(self, gradients: list[Any]) -> None:
        """Start the transfers of all gradients; record CUDA events after each run of variables.

        `gradients` is changed: destination tensors replace transferred gradients.
        """
        streams: dict[torch.device, Any] = {}
        arrivals: list[Any] = []
        for index, link in self._links.items():
            prefetch, device = Prefetch.of(gradients[index]), values_of(gradients[index]).device
            if prefetch is not None:
                device = prefetch.buffer.device
                arrivals += [] if prefetch.event is None else [prefetch.event]
            if device.type == "cuda" and device not in streams:
                streams[device] = _transfer_stream(device)
                streams[device].wait_stream(torch.cuda.current_stream(device))
            # For None, torch does not change the stream.
            with torch.cuda.stream(streams.get(device)):
                gradients[index] = link.fetch_gradient(gradients[index])
            if index in self.runs and self.runs[index] != self.runs.get(index + 1):
                events = [stream.record_event() for stream in streams.values()]
                self._events[self.runs[index]], arrivals = [*arrivals, *events], []

    def take_share(self, request: StepRequest, members: Sequence[int]) -> StepRequest:
        """Return the request of the variables `members`; offloaded copies are not read."""
        sub_request = select_members(request, members)
        return sub_request._replace(from_copies=False) if members[0] in self._links else sub_request

    def wrap_part(self, members: Sequence[int], plan: Part) -> Part:
        """Return a part that awaits gradients, runs `plan`, and sends variables to the copies.

        Return `plan` itself if the variables are not offloaded.

        Args:
            members: The indices in the step of the plan's variables, all of one run.
        """
        if members[0] not in self._links:
            return plan
        sends = [
            call
            for index in members
            for call in self._links[index].send_rows(self._rows.get(index))
        ]
        copies = [self._links[index].copy for index in members]
        return OffloadedPart(
            plan, copies, self._events.get(self.runs.get(members[0], -1), []), sends
        )


@cache
def _transfer_stream(device: torch.device) -> Any:
    """Return the CUDA stream of all transfers from a device."""
    return torch.cuda.Stream(device)


class OffloadedPart:
    """`Part` of variables that have copies on another device.

    Args:
        inner: The part that updates the variables.
        events: CUDA events of the transfers of gradients.
        sends: Functions that start the transfers of values to the copies.
    """

    def __init__(
        self, inner: Part, copies: Sequence[Tensor], events: Sequence[Any], sends: Sequence[Call]
    ) -> None:
        self._inner, self._copies, self._events, self._sends = inner, copies, events, sends

    @property
    def written(self) -> Sequence[Tensor]:
        return [*self._inner.written, *self._copies]

    def try_rebind(self, request: StepRequest, bounds: Int64) -> bool:
        """Return False: each step is planned again."""
        return False

    def _wait_calls(self) -> list[Call]:
        """Return C functions that wait for the gradients, as `torch.cuda.Event.synchronize`."""
        return [partial(torch._C._CudaEventBase.synchronize, event) for event in self._events]  # pyright: ignore

    def reduce(self, reduction: Reduction, columns: Columns) -> Results:
        for wait in self._wait_calls():
            wait()
        return self._inner.reduce(reduction, columns)

    def make_calls(self, columns: Columns) -> list[Call]:
        """Return functions that await gradients, update the variables, and send copies."""
        wait_calls = self._wait_calls()
        # Parts of these classes compute when their calls are made.
        if isinstance(self._inner, TorchPart):
            for wait in wait_calls:
                wait()
        return [*wait_calls, *self._inner.make_calls(columns), *self._sends]

    def memory_checks(self) -> list[Call]:
        return self._inner.memory_checks()

    def release_gradients(self) -> None:
        self._inner.release_gradients()
