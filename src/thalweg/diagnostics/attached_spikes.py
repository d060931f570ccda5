"""`Spikes` with an action for optimizers of Keras and TensorFlow 1."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from thalweg._base.execution_context import is_symbolic
from thalweg._base.showing import show_value
from thalweg._core.atomic_section import Call
from thalweg.diagnostics.attach import find_optimizer
from thalweg.diagnostics.spike_judge import SpikeJudge, StepSource
from thalweg.errors import FailedPreconditionError


def attach_judge(judge: SpikeJudge, optimizer: Any) -> None:
    """Let `judge` decide which steps of an optimizer are taken; see `Spikes.attach`."""
    innermost = find_optimizer(optimizer)
    class_name = type(innermost).__name__
    if judge.keep and not hasattr(innermost, "weights"):
        raise NotImplementedError(
            f"Steps of {class_name} cannot be taken back, since its variables may have copies and"
            " counters elsewhere: use Spikes('skip')."
        )
    with innermost._locked():
        if innermost._spikes is not None:
            raise FailedPreconditionError(
                f"Steps of {class_name} are judged by other Spikes already."
            )
        judge.attach_to(_SlotSource(innermost))
        innermost._judge_by(judge)


class _SlotSource(StepSource):
    """Access of `Spikes` to an optimizer of Keras or TensorFlow 1."""

    def copy_state(self) -> Callable[[], list[Call]]:
        """Copy variables and state. Return a function that returns calls to restore the copy.

        Raises:
            NotImplementedError: A variable belongs to a graph.
        """
        optimizer = self.optimizer
        tensors: list[Tensor] = [*optimizer._slots.owners(), *optimizer.weights]
        if any(map(is_symbolic, tensors)):
            raise NotImplementedError(
                f"Steps of {show_value(optimizer)} in a session cannot be taken back: use"
                " Spikes('skip')."
            )
        copies = [(tensor.detach(), tensor.detach().clone()) for tensor in tensors]
        return lambda: [partial(memory.copy_, copied_tensor) for memory, copied_tensor in copies]

    def skip_calls(self, reason: str) -> list[Call]:
        """Return []: skipped steps are not recorded."""
        return []
