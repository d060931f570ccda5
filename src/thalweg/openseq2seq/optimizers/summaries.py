"""Summaries: what a step tells a writer, such as torch.utils.tensorboard.SummaryWriter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg._base.async_fetch import brought
from thalweg._base.showing import show_value
from thalweg._core.state import positioned
from thalweg._core.vectors import is_host
from thalweg.errors import InvalidTypeError
from thalweg.openseq2seq.optimizers.gradients import title
from thalweg.variable import REDUCED


class Journal:
    """The summaries of one step, kept until the step has been taken.

    Scalars stay tensors, wherever they are, and are brought to the host all at once.

    Args:
        wanted: The names of the summaries to make.
        scope: What comes before all tags but that of the learning rate.
    """

    def __init__(self, wanted: Sequence[str], scope: str = "") -> None:
        self.wanted = frozenset(wanted)
        self._scope = scope
        self._scalars: dict[str, tuple[object, type]] = {}
        self._histograms: dict[str, Tensor] = {}

    def scalar(self, tag: str, value: object, kind: type = float, scoped: bool = True) -> None:
        """Note a number or a tensor of shape ()."""
        self._scalars[self._scope + tag if scoped else tag] = value, kind

    def histogram(self, tag: str, values: Tensor, masked: bool = False) -> None:
        """Note the elements of a tensor, if any; if `masked`, 0 stands for what is not finite."""
        if not values.numel():
            return  # torch's SummaryWriter refuses it
        kept = values.detach().float() if values.dtype in REDUCED else values.detach().clone()
        if masked:
            kept = torch.nan_to_num(kept, nan=0.0, posinf=0.0, neginf=0.0)
        self._histograms[self._scope + tag] = kept

    def sent(self, step: int) -> Letter:
        """Return the letter with the summaries of a step, whose values are on their way to the
        host.
        """
        values = {tag: value for tag, (value, _) in self._scalars.items()}
        tensors = {tag: value for tag, value in values.items() if isinstance(value, Tensor)}
        places = list(dict.fromkeys(value.device for value in tensors.values()))
        groups = [[tag for tag in tensors if tensors[tag].device == place] for place in places]
        vectors = [torch.stack([tensors[tag].detach().double() for tag in own]) for own in groups]
        found, wait = brought([*vectors, *self._histograms.values()])
        is_pending = not all(map(is_host, [*vectors, *self._histograms.values()]))

        def write(writer: Any) -> None:
            wait()
            for own, numbers in zip(groups, found, strict=False):
                values.update(zip(own, numbers.tolist(), strict=True))
            for tag, (_, kind) in self._scalars.items():
                writer.add_scalar(tag, kind(values[tag]), step)
            for tag, kept in zip(self._histograms, found[len(groups) :], strict=True):
                writer.add_histogram(tag, torch.from_numpy(kept), step)

        return Letter(write, is_pending)


class Letter(NamedTuple):
    """Summaries of a step for a writer.

    Attributes:
        write: Writes them to a writer.
        is_pending: Whether a device has yet to compute them.
    """

    write: Callable[[Any], None]
    is_pending: bool


class Outbox:
    """Hands the summaries of steps to a writer, in order.

    What a device has yet to compute is handed over with the step after, or by `flush`.

    Args:
        writer: The writer.
        waits: Whether it is handed over at once, too.

    Attributes:
        writer: The writer.
    """

    def __init__(self, writer: object, waits: bool = False) -> None:
        self.writer = writer
        self._waits = waits
        self._letters: list[Letter] = []

    def send(self, letter: Letter) -> None:
        """Hand over what came before, and this if it is there."""
        self._letters.append(letter)
        self.flush(but=0 if self._waits or not letter.is_pending else 1)

    def flush(self, but: int = 0) -> None:
        """Hand over what is left, waiting for the device; but for this many of the last."""
        while len(self._letters) > but:
            self._letters.pop(0).write(self.writer)


def tags_of(variables: Sequence[object]) -> list[str]:
    """Return the names of variables as tags have them, each another: "w_0"; ":" is none of a
    tag's.
    """
    return positioned([title(var).replace(":", "_") for var in variables], "_")


def check_writer(writer: object) -> None:
    """Refuse what summaries cannot be handed to.

    Raises:
        InvalidTypeError: It lacks a method.
    """
    methods: Sequence[Callable[..., object] | None] = [
        getattr(writer, name, None) for name in ("add_scalar", "add_histogram")
    ]
    if writer is not None and not all(map(callable, methods)):
        raise InvalidTypeError(
            f"summary_writer must have the methods add_scalar and add_histogram, not"
            f" {show_value(writer)}."
        )
