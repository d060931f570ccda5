"""Summaries: what a step tells a writer, such as torch.utils.tensorboard.SummaryWriter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg.core.state import positioned
from thalweg.errors import InvalidTypeError
from thalweg.openseq2seq.optimizers.gradients import title
from thalweg.variable import REDUCED


class Journal:
    """The summaries of one step, kept until the step has been taken.

    Scalars stay tensors, wherever they are, and are fetched all at once.

    Args:
        wanted: The names of the summaries to make.
        scope: What comes before all tags but that of the learning rate.
    """

    def __init__(self, wanted: Sequence[str], scope: str = "") -> None:
        self.wanted = frozenset(wanted)
        self._scope = scope
        self._scalars: dict[str, tuple[Any, type]] = {}
        self._histograms: dict[str, Tensor] = {}

    def scalar(self, tag: str, value: Any, kind: type = float, scoped: bool = True) -> None:
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

    def write(self, writer: Any, step: int) -> None:
        """Hand all to `writer.add_scalar` and `writer.add_histogram`."""
        values = [value for value, _ in self._scalars.values()]
        for (tag, (_, kind)), value in zip(self._scalars.items(), _fetched(values), strict=True):
            writer.add_scalar(tag, kind(value), step)
        for tag, kept in self._histograms.items():
            writer.add_histogram(tag, kept, step)


def _fetched(values: Sequence[Any]) -> list[float]:
    """Numbers of tensors of shape (), those of a device in one transfer."""
    found = [0.0] * len(values)
    by_device: dict[torch.device, list[int]] = {}
    for index, value in enumerate(values):
        if isinstance(value, Tensor):
            by_device.setdefault(value.device, []).append(index)
        else:
            found[index] = value
    for members in by_device.values():
        fetched = torch.stack([values[index].detach().double() for index in members]).tolist()
        for index, value in zip(members, fetched, strict=True):
            found[index] = value
    return found


def tags_of(variables: Sequence[Any]) -> list[str]:
    """The names of variables as tags have them, each another: "w_0"; ":" is none of a tag's."""
    return positioned([title(var).replace(":", "_") for var in variables], "_")


def check_writer(writer: Any) -> None:
    """Refuse what summaries cannot be handed to.

    Raises:
        InvalidTypeError: It lacks a method.
    """
    methods: Sequence[Callable[..., Any] | None] = [
        getattr(writer, name, None) for name in ("add_scalar", "add_histogram")
    ]
    if writer is not None and not all(map(callable, methods)):
        raise InvalidTypeError(
            f"summary_writer must have the methods add_scalar and add_histogram, not {writer!r}."
        )
