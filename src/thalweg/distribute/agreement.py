"""Whether all ranks are about to do the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg.distribute.ranks import Pending, Ranks
from thalweg.errors import ReplicaMismatchError
from thalweg.variable import dtype_name, titles_of

EVERY = 1000  # steps

_VALUES = "the bits of the values"
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Agreed(NamedTuple):
    """What ranks know of one another after a check.

    Attributes:
        is_doubted: Whether one is in doubt.
        is_alike: Whether the gradients of all are of the same kinds.
    """

    is_doubted: bool
    is_alike: bool


class Agreement:
    """What ranks compare before they send gradients: a few bytes each time, all of it sometimes.

    All of it is the variables in their order with names, shapes, dtypes and values, and what
    the optimizer says of itself.

    Args:
        ranks: The ranks.
        values: Whether the values of variables are part of it.
    """

    def __init__(self, ranks: Ranks, values: bool = True) -> None:
        self._ranks, self._values = ranks, values
        self._steps = 0
        self._known: tuple[list[Any], int] = [], 0

    def check(
        self,
        variables: Sequence[Tensor],
        told: Callable[[], Sequence[str]],
        trouble: BaseException | None = None,
        doubt: bool = False,
        kinds: bytes = b"",
        beside: int = 0,
    ) -> Agreed:
        """Raise on all ranks if they differ, or if one of them has no gradients to send.

        Args:
            variables: Those of the step.
            told: What else must be the same, in words, one thing a line.
            trouble: What kept this rank from having gradients.
            doubt: Anything that all ranks are to know of one another.
            kinds: What kinds the gradients are of; they may differ.
            beside: A number that must be the same on all ranks, too; `told` tells of it.

        Raises:
            ReplicaMismatchError: Names the first difference, or the rank in trouble.
            BaseException: `trouble`, on its rank.
        """
        mine = self._ranks.rank + 1 if trouble is not None else 0
        digest, kind = self._digest(variables) ^ beside, _hashed(kinds)
        due = self._steps % EVERY == 0
        first = self._message(digest, -digest, kind, -kind, mine, due, doubt)
        self._ranks.maximum(first)
        highest, lowest, most, least, troubled, is_due, is_doubted = first.tolist()
        if trouble is not None:
            raise trouble
        if troubled:
            raise ReplicaMismatchError(
                f"rank {troubled - 1} raised an error before its gradients were there. Nothing has"
                " changed on any rank."
            )
        if highest != -lowest or is_due:
            self._compare(variables, told)
        self._steps += 1
        return Agreed(bool(is_doubted), most == -least)

    def meet(self, variables: Sequence[Tensor], declines: bool) -> Meeting:
        """Ask whether all ranks have the same variables, and none declines."""
        digest = self._digest(variables)
        asked = self._message(digest, -digest, declines)
        return Meeting(asked, self._ranks.begin_maximum(asked))

    def _message(self, *numbers: int) -> Tensor:
        return torch.tensor(numbers, device=self._ranks.device)

    def _digest(self, variables: Sequence[Tensor]) -> int:
        known, digest = self._known
        if len(known) != len(variables) or any(
            one is not other for one, other in zip(known, variables, strict=True)
        ):
            digest = _hashed("\n".join(_lines(variables, False)).encode())
            self._known = list(variables), digest
        return digest

    def _compare(self, variables: Sequence[Tensor], told: Callable[[], Sequence[str]]) -> None:
        trouble: Exception | None = None
        try:
            own = "\n".join([*told(), *_lines(variables, self._values)])
        except Exception as error:  # the others wait for what this one says
            own, trouble = f"optimizer: one that raised {type(error).__name__}: {error}", error
        first, *others = self._ranks.texts(own)
        if trouble is not None:
            raise trouble
        for rank, other in enumerate(others, 1):
            if other != first:
                raise ReplicaMismatchError(_difference(first, rank, other))


class Meeting:
    """A question that all ranks are asked while they go on."""

    def __init__(self, asked: Tensor, pending: Pending) -> None:
        self._asked, self._pending = asked, pending
        self._answer: bool | None = None

    def is_agreed(self) -> bool:
        """The answer, the same on all ranks; waits for it."""
        if self._answer is None:
            self._pending.wait()
            highest, lowest, is_declined = self._asked.tolist()
            self._answer = highest == -lowest and not is_declined
        return self._answer


def _hashed(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")


def _lines(variables: Sequence[Tensor], values: bool) -> list[str]:
    titles = titles_of(variables)
    found = [f"the number of variables: {len(variables)}"]
    found += [
        f"variable {place}: '{title}' {dtype_name(var.dtype)} {tuple(var.shape)}"
        for place, (title, var) in enumerate(zip(titles, variables, strict=True))
    ]
    if values:
        pairs = zip(titles, variables, strict=True)
        found += [f"{_VALUES} of '{title}': a sum of {_sum(var):x}" for title, var in pairs]
    return found


def _sum(var: Tensor) -> int:
    """The sum of the bits of all elements as whole numbers, for which no order matters."""
    plain = var.detach()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    return int(plain.view(_BITS[plain.element_size()]).sum(dtype=torch.int64)) % 2**64


def _difference(first: str, rank: int, other: str) -> str:
    """In words, the first line that differs."""
    pairs = zip_longest(first.split("\n"), other.split("\n"), fillvalue=": nothing")
    one, two = next((one, two) for one, two in pairs if one != two)
    (where, _, mine), (there, _, its) = one.partition(": "), two.partition(": ")
    place = where if where == there else f"{where} and {there}"
    hint = " Set them alike: strategy.broadcast(variables)." if where.startswith(_VALUES) else ""
    return f"rank {rank} disagrees with rank 0 at {place}: {its} vs {mine}.{hint}"
