"""`Spikes` with an action for optimizers of Keras and TensorFlow 1, which lack the option."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from torch import Tensor

from thalweg._base.execution_context import is_symbolic
from thalweg._base.showing import show_value
from thalweg._core.atomic_section import Call
from thalweg.diagnostics.attach import find_optimizer
from thalweg.errors import FailedPreconditionError

if TYPE_CHECKING:
    from thalweg.diagnostics.spike_judge import SpikeJudge


def attach_judge(judge: SpikeJudge, optimizer: Any) -> None:
    """Connect a judge to the steps of an optimizer; see `Spikes.attach`."""
    innermost = find_optimizer(optimizer)
    title = type(innermost).__name__
    if judge.keep and not hasattr(innermost, "weights"):
        raise NotImplementedError(
            f"Steps of {title} cannot be taken back, since its variables may have copies and"
            " counters elsewhere: use Spikes('skip')."
        )
    with innermost._locked():
        if innermost._spikes is not None:
            raise FailedPreconditionError(f"Steps of {title} are judged by other Spikes already.")
        judge.attach_to(_SlotSource(innermost))
        innermost._judge_by(judge)


class _SlotSource:
    """Interface of an optimizer of Keras or TensorFlow 1 to `Spikes`.

    Args:
        optimizer: The optimizer, held by a weak reference.
    """

    def __init__(self, optimizer: Any) -> None:
        self._ref: Any = ref(optimizer)

    def is_gone(self) -> bool:
        """Return True if the optimizer has been freed."""
        return self._ref() is None

    def keep(self) -> Callable[[], list[Call]]:
        """Copy the variables and the state; return a function that returns calls which restore
        them.

        Raises:
            NotImplementedError: The variables are of a graph.
        """
        optimizer = self._ref()
        tensors: list[Tensor] = [*optimizer._slots.owners(), *optimizer.weights]
        if any(map(is_symbolic, tensors)):
            raise NotImplementedError(
                f"Steps of {show_value(optimizer)} in a session cannot be taken back: use"
                " Spikes('skip')."
            )
        copies = [(tensor.detach(), tensor.detach().clone()) for tensor in tensors]
        return lambda: [partial(memory.copy_, copied_tensor) for memory, copied_tensor in copies]

    def leave_out(self, reason: str) -> list[Call]:
        """Return no calls: nothing records a step that is left out."""
        return []

    def mean_over_ranks(self, loss: float) -> float:
        """Return the loss unchanged: it is equal on all ranks and replicas."""
        return loss
