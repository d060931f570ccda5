"""Checks that all ranks are about to do the same."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thalweg._base.static_shape import UNKNOWN
from thalweg.distribute.handshake import PendingCollective, RankMessage, compare_lines
from thalweg.distribute.process_group import Ranks
from thalweg.variable import dtype_name, titles_of

EVERY = 1000  # steps

_VALUES = "the bits of the values"
_HINTS = [(_VALUES, "Set them alike: strategy.broadcast(variables).")]
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class StepFingerprint(NamedTuple):
    """Description of an optimizer that must be equal on all ranks.

    Attributes:
        words: Returns everything that numbers depend on, one line for each fact.
        numbers: Returns the part that may change from step to step and is cheap: the number of
            steps taken, and hyperparameters.
    """

    words: Callable[[], Sequence[str]]
    numbers: Callable[[], tuple[int, Sequence[float]]] = lambda: (0, ())


class Agreed(NamedTuple):
    """Result of a check of all ranks.

    Attributes:
        is_doubted: Whether a rank is in doubt.
        is_alike: Whether the gradients of all ranks are of the same kinds.
    """

    is_doubted: bool
    is_alike: bool


class Agreement:
    """Comparison of ranks before they send gradients: a few bytes each time, everything sometimes.

    Everything is the variables in their order with names, shapes, dtypes and values, and the
    optimizer's description of itself.

    Args:
        ranks: The ranks.
        values: Whether the values of variables are compared.
    """

    def __init__(self, ranks: Ranks, values: bool = True) -> None:
        self._ranks, self._values = ranks, values
        self._steps = 0
        self._known: tuple[list[Any], list[Any], int] = [], [], 0

    def check(
        self,
        variables: Sequence[Any],
        said: StepFingerprint,
        trouble: BaseException | None = None,
        doubt: bool = False,
        kinds: bytes = b"",
        beside: int = 0,
        doing: PendingCollective = PendingCollective.STEP,
    ) -> Agreed:
        """Raise on all ranks if they differ, or if one of them has no gradients to send.

        Args:
            variables: Those of the step.
            said: What else must be the same.
            trouble: What kept this rank from having gradients.
            doubt: Anything that all ranks are to know of one another.
            kinds: What kinds the gradients are of; they may differ.
            beside: A number that must be the same on all ranks, too; `said` has words for it.
            doing: What they are about to do.

        Raises:
            ReplicaMismatchError: Names the first difference, or the rank in trouble.
            BaseException: `trouble`, on its rank.
        """
        digest = 0
        if trouble is None:
            try:
                digest = self._hash_variables(variables) ^ beside ^ _hash_numbers(*said.numbers())
            except Exception as error:
                trouble = error
        due = self._steps % EVERY == 0
        same, most = (digest, hash_bytes(kinds)), (due, doubt)
        heard = RankMessage(self._ranks, doing, same, most, trouble).receive()
        (is_same, is_alike), (is_due, is_doubted) = heard
        if not is_same or is_due:
            self._compare_all(variables, said)
        self._steps += 1
        return Agreed(bool(is_doubted), is_alike)

    def compare_all_next(self) -> None:
        """Compare everything at the next check."""
        self._steps = 0

    def ask_all(self, variables: Sequence[Tensor], declines: bool) -> Meeting:
        """Ask whether all ranks have the same variables, and none declines."""
        same, most = (self._hash_variables(variables),), (declines,)
        return Meeting(RankMessage(self._ranks, PendingCollective.BACKWARD, same, most))

    def _hash_variables(self, variables: Sequence[Tensor]) -> int:
        known, formats, digest = self._known
        own = [(var.shape, var.dtype) for var in variables]
        if own != formats or any(
            one is not other for one, other in zip(known, variables, strict=True)
        ):
            digest = hash_bytes("\n".join(_describe_variables(variables, False)).encode())
            self._known = list(variables), own, digest
        return digest

    def _compare_all(self, variables: Sequence[Tensor], said: StepFingerprint) -> None:
        trouble: Exception | None = None
        lines: list[str] = []
        try:
            lines = [*said.words(), *_describe_variables(variables, self._values)]
        except Exception as error:
            trouble = error
        RankMessage(self._ranks, PendingCollective.STEP, trouble=trouble).receive()
        compare_lines(self._ranks, lines, _HINTS)


class Meeting:
    """A question that all ranks are asked while they go on."""

    def __init__(self, message: RankMessage) -> None:
        self._message = message
        self._answer: bool | None = None

    def reach_agreement(self) -> bool:
        """Return the answer, the same on all ranks; waits for it."""
        if self._answer is None:
            alike, (is_declined, _) = self._message.receive()
            self._answer = alike[0] and not is_declined
        return self._answer


def hash_bytes(text: bytes) -> int:
    """Return a number of 56 bits, the same on all ranks if the text is."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")


def _hash_numbers(step: int, numbers: Sequence[float]) -> int:
    with np.errstate(over="ignore"):  # steps compute with float32
        rounded = np.array(numbers, np.float32)
    return hash_bytes(struct.pack("q", step) + rounded.tobytes())


def _describe_variables(variables: Sequence[Any], values: bool) -> list[str]:
    titles = titles_of(variables)
    found = [f"the number of variables: {len(variables)}"]
    found += [
        f"variable {place}: '{title}' {dtype_name(var.dtype)} {_shape_of(var)}{_strides_of(var)}"
        for place, (title, var) in enumerate(zip(titles, variables, strict=True))
    ]
    if values:
        pairs = zip(titles, variables, strict=True)
        found += [f"{_VALUES} of '{title}': a sum of {_sum_bits(var):x}" for title, var in pairs]
    return found


def _sum_bits(var: Tensor) -> int:
    """The sum of the bits of all elements as whole numbers, for which no order matters."""
    plain = var.detach()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    return int(plain.view(_BITS[plain.element_size()]).sum(dtype=torch.int64)) % 2**64


def _shape_of(var: Tensor) -> Any:
    shape: Any = var.shape
    # A variable of a graph may have an unknown shape.
    return None if shape is UNKNOWN else tuple(shape)


def _strides_of(var: object) -> str:
    """Where elements lie, if not in rows: parts of variables, and sums, go by that."""
    if not isinstance(var, Tensor) or var.is_contiguous():
        return ""
    return f" with strides {var.stride()}"
