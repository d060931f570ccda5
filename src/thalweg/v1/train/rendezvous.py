"""`Rendezvous`: exchange of gradients and tokens between the workers and the chief of a session.

Workers compute gradients. The chief applies mean gradients and hands out a token per worker.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._base.locks import Lock, on_fork
from thalweg.errors import CancelledError, FailedPreconditionError
from thalweg.indexed_slices import IndexedSlices


class DenseAccumulator:
    """Sum of dense gradients, added in order of arrival.

    None counts as a gradient of zeros. The mean is None if all gradients are None.
    """

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._count = 0

    def add(self, gradient: Tensor | None) -> None:
        """Add a copy of a gradient."""
        self._count += 1
        if gradient is None:
            return
        if self._sum is None:
            self._sum = gradient.detach().clone()
        else:
            self._sum += gradient.detach()

    def mean(self) -> Tensor | None:
        """Return the sum divided by the number of gradients; do not call `add` afterwards."""
        return None if self._sum is None else self._sum.div_(self._count)


class SparseAccumulator:
    """Sums of the rows of sparse gradients, and counts of gradients per row.

    The mean divides each row by the row's count. Repeated rows of one gradient are summed first and
    count once.
    """

    def __init__(self) -> None:
        # Sorted and unique.
        self._rows: Tensor | None = None
        self._sums = torch.empty(0, dtype=torch.float32, device="cpu")
        self._counts = torch.empty(0, dtype=torch.float32, device="cpu")
        self._shape: torch.Size | None = None

    def add(self, gradient: IndexedSlices | None) -> None:
        """Add copies of a gradient's rows to the sums, and count each row once; ignore None."""
        if gradient is None:
            return
        # Repeated rows must count once, so they are summed first.
        if len(torch.unique(gradient.indices)) < len(gradient.indices):
            gradient = gradient.deduplicated()
        indices, order = torch.sort(gradient.indices.long())
        values = gradient.values.detach()[order]
        if self._rows is None:
            self._rows, self._sums = indices, values
            self._counts = torch.ones_like(indices)
            self._shape = gradient.dense_shape
            return
        rows = torch.unique(torch.cat([self._rows, indices]))
        sums = values.new_empty((len(rows), *values.shape[1:]))
        counts = torch.zeros_like(rows)
        previous_indices = torch.searchsorted(rows, self._rows)
        sums[previous_indices], counts[previous_indices] = self._sums, self._counts
        new_indices = torch.searchsorted(rows, indices)
        is_new = counts[new_indices] == 0
        # Assigned first: `sums` is not initialized.
        sums[new_indices[is_new]] = values[is_new]
        sums[new_indices[~is_new]] += values[~is_new]
        counts[new_indices] += 1
        self._rows, self._sums, self._counts = rows, sums, counts

    def mean(self) -> IndexedSlices | None:
        """Return the means of the rows, sorted by row; nothing may be added after it."""
        if self._rows is None:
            return None
        counts = self._counts.to(self._sums.dtype)
        counts = counts.reshape(-1, *[1] * (self._sums.dim() - 1))
        return IndexedSlices(self._sums / counts, self._rows, self._shape)


Accumulator = DenseAccumulator | SparseAccumulator


Make = Callable[[], list[Accumulator]]


class _Wait:
    """Wait of one thread; ends when another thread sets `payload`, which the thread receives."""

    def __init__(self, required: int = 1) -> None:
        self.required = required
        # Set by the thread that serves this wait.
        self.payload: Any = None


class _Era:
    """Gradients, tokens and waiting threads of a rendezvous from one stop to the next.

    When the era ends, all waiting threads raise an error.
    """

    def __init__(self, make: Make) -> None:
        self.sums = make()
        self.count = 0
        self.tokens: deque[object] = deque()
        self.workers: deque[_Wait] = deque()
        self.chiefs: deque[_Wait] = deque()
        self.ending: tuple[str, BaseException | None] | None = None

    def end(self, reason: str, error: BaseException | None) -> None:
        """Mark the era as ended: `check` raises from now on. A second call has no effect."""
        self.ending = self.ending or (reason, error)

    def check(self) -> None:
        """Raise an error if the era has ended."""
        if self.ending is None:
            return
        reason, error = self.ending
        message = f"Workers and chief no longer wait for each other: {reason}."
        if error is None:
            raise CancelledError(message)
        raise FailedPreconditionError(message) from error


class Rendezvous:
    """Exchange of gradients (workers to chief) and tokens (chief to workers) in one session.

    A token is the value of the global step. A worker that receives a token computes further
    gradients. A worker's gradients are added either all or not at all. Gradients computed before
    the present step are stale and dropped.

    Waits end with CancelledError when the rendezvous is stopped or closed, and with
    FailedPreconditionError after a failure. Later calls raise these errors, too.

    Args:
        make: `make()` returns a list of new accumulators, one per gradient of a worker.

    Attributes:
        step: The step set by `begin`, plus 1 for each time that the chief took gradients.
        dropped: The number of times that a worker's gradients were stale.
    """

    def __init__(self, make: Make) -> None:
        self._make = make
        # Held in `with` blocks: the methods of `Condition` are Python code and may be interrupted.
        self._lock = Lock()
        self._condition = threading.Condition(self._lock)
        self._era = _Era(make)
        self._is_session_closed = False
        self.step: Any = 0
        self.dropped = 0
        on_fork(self, Rendezvous._end_after_fork)

    def _end_after_fork(self) -> None:
        """Drop the waiting threads in a forked child, where they do not run.

        End the era if another thread held the lock, as a sum may be incomplete.
        """
        self._era.workers.clear()
        self._era.chiefs.clear()
        if self._lock.is_abandoned():
            self._era.end("the process was forked while gradients were handed over", None)

    def meet(self, gradients: Sequence[object], local_step: object) -> Any:
        """Add a worker's gradients; then wait for a token and return the token.

        Drop the gradients if `local_step` is below the present step. Workers receive tokens in the
        order of their `meet` calls.

        Args:
            gradients: One gradient per accumulator.
            local_step: The global step at which the worker computed the gradients.
        """
        wait = _Wait()
        with self._lock:
            era = self._era
            era.check()
            if local_step < self.step:
                self.dropped += 1
            else:
                self._add_gradients(era, gradients)
            return self._wait_in(era.workers, wait, era)

    def _add_gradients(self, era: _Era, gradients: Sequence[Any]) -> None:
        """Add gradients to an era's accumulators; if an addition fails, end the era and raise."""
        try:
            for accumulator, gradient in zip(era.sums, gradients, strict=True):
                accumulator.add(gradient)
        except BaseException as error:
            # The sums are incomplete and must not be used.
            self._end_era(f"gradients could not be added: {_describe_error(error)}", error)
            raise
        era.count += 1

    def take(self, required: int) -> list[Any]:
        """Wait until gradients were added `required` times; return a list of mean gradients.

        If gradients were added more often before the call, the means include all gradients.
        """
        wait = _Wait(required)
        with self._lock:
            era = self._era
            era.check()
            accumulators = self._wait_in(era.chiefs, wait, era)
        # Without the lock: the accumulators now belong to this call alone.
        return [accumulator.mean() for accumulator in accumulators]

    def _wait_in(self, queue: deque[_Wait], wait: _Wait, era: _Era) -> Any:
        """Append `wait` to `queue`, sleep until `wait.payload` is set, and return the payload.

        On an error, such as the end of `era`, remove `wait` from the queue and raise.
        """
        queue.append(wait)
        # This call may complete a wait, such as the chief's, and its own at once.
        self._hand_over(era)
        try:
            while wait.payload is None:
                era.check()
                self._condition.wait()
        except BaseException:
            if wait in queue:
                queue.remove(wait)
            raise
        return wait.payload

    def _hand_over(self, era: _Era) -> None:
        """Set the payload of each wait that can end, and wake the threads.

        If enough gradients were added, a waiting chief receives the accumulators. The era gets new
        accumulators, and `step` is raised by 1. Waiting workers receive the tokens in order.
        """
        if era.chiefs and era.count >= era.chiefs[0].required:
            era.chiefs.popleft().payload = era.sums
            era.sums, era.count = self._make(), 0
            self.step += 1
            self._condition.notify_all()
        while era.workers and era.tokens:
            era.workers.popleft().payload = era.tokens.popleft()
            self._condition.notify_all()

    def put_tokens(self, local_step: object, count: int) -> None:
        """Add `count` tokens with the value `local_step`, and wake workers that wait for tokens."""
        with self._lock:
            self._era.tokens.extend([local_step] * count)
            self._hand_over(self._era)

    def check(self) -> None:
        """Raise an error if the rendezvous was stopped or closed."""
        with self._lock:
            self._era.check()

    def begin(self, step: Any) -> None:
        """Set the step; after a stop begin a new era without gradients and tokens."""
        with self._lock:
            # A new object: threads that still wait hold the old era, and must raise.
            if self._era.ending is not None and not self._is_session_closed:
                self._era = _Era(self._make)
            self.step = step

    def stop(self, error: BaseException | None = None) -> None:
        """End all waits; the waiting threads raise an error.

        Args:
            error: The cause, a failure of a thread; None if a stop was requested.
        """
        with self._lock:
            self._end_era(
                "a stop was requested" if error is None else _describe_error(error), error
            )

    def close(self) -> None:
        """End all waits with an error; the session is closed, so no new era can begin."""
        with self._lock:
            self._is_session_closed = True
            self._end_era("the session was closed", None)

    def _end_era(self, reason: str, error: BaseException | None) -> None:
        self._era.end(reason, error)
        self._condition.notify_all()


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(".")
