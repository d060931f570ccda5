"""Option that leaves out steps whose loss or gradient norm is unusual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg._base.exports import exported_from
from thalweg._base.showing import show_value
from thalweg._core.options.base import Option, Others
from thalweg._core.options.step_in_backward import InBackward
from thalweg.errors import InvalidArgumentError, InvalidTypeError

# Key of the history of a judge in the groups of a state.
HISTORY = "spike_history"


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class SpikeActions(Option):
    """Action that replaces a step with an unusual loss or gradient norm.

    Attributes:
        spikes: A `thalweg.optim.diagnostics.Spikes` with an action, such as `Spikes("skip")`, which
            skips the step. The host waits for the gradient norm of each step. Not with
            `in_backward`.
    """

    has_file_entry, has_resources = False, True
    spikes: Any | None = None

    def __post_init__(self) -> None:
        if self.spikes is not None and getattr(self.spikes, "judge", None) is None:
            raise InvalidTypeError(
                "spikes must be a Spikes of thalweg.optim.diagnostics with an action, such as"
                f" Spikes('skip'), not {show_value(self.spikes)}."
            )

    def gradient_transforms(self) -> dict[str, Any]:
        return {} if self.spikes is None else {"judge": self.spikes.judge, "overflow": False}

    def check_beside(self, options: Others) -> None:
        if options.of(InBackward).in_backward:
            raise InvalidArgumentError(
                "spikes= decides on whole steps, and in_backward=True updates each parameter by"
                " itself: choose one."
            )
