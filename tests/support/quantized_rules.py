"""Steps of rules whose slots are encoded, for tests: rules, problems, and what slots hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rulebook import Case, Problem
from thalweg import Rule, Slot
from thalweg._engines.codecs import CODECS
from thalweg._engines.codecs.codec import Codec
from thalweg._engines.codecs.records import (
    decode_numbers,
    decode_tensor,
    encode_numbers,
    encode_tensor,
)


def encode_array(codec: Codec, numbers: Any, dithers: torch.Tensor | None = None) -> Any:
    """Return the records of an array; see `encode_numbers`."""
    return encode_numbers(codec, torch.from_numpy(numbers), dithers).numpy()


def decode_array(codec: Codec, records: Any, count: int) -> Any:
    """Return the numbers of records in an array; see `decode_numbers`."""
    return decode_numbers(codec, torch.from_numpy(records), count).numpy()


def natural_codec(slot: Slot) -> str:
    """Return the default codec of a slot, which depends on its sign alone."""
    return "root8" if slot.positive else "softsign8"


def suited_codec(codec: str) -> Callable[[Slot], str]:
    """Return a function from slots to this codec, or to the default where it cannot hold them."""
    positive = CODECS[codec].positive
    return lambda slot: codec if slot.positive or not positive else natural_codec(slot)


@cache
def encoded_rule(rule: Rule, codec: str) -> Rule:
    """Return a rule whose slots are all kept in a codec, or in what suits them."""
    choose = suited_codec(codec)
    slot_names = set(rule.element_slots)
    slots = tuple(
        replace(slot, dtype=None, storage=choose(slot)) if slot in slot_names else slot
        for slot in rule.slots
    )
    return replace(rule, slots=slots)


def encoded_case(case: Case, codec: str) -> Case:
    return replace(case, row=replace(case.row, rule=encoded_rule(case.rule, codec)))


def encode_slots(case: Case, problem: Problem) -> Problem:
    """Return a problem with its slots as the case's rule keeps them."""
    problem.slots = [_encoded(case.rule, slots) for slots in problem.slots]
    return problem


def _encoded(rule: Rule, slots: Sequence[Tensor]) -> list[Tensor]:
    pairs = zip(rule.codecs, slots, strict=True)
    return [slot if name is None else encode_tensor(CODECS[name], slot) for name, slot in pairs]


def numbers_of(case: Case, problem: Problem, index: int = 0) -> list[Tensor]:
    """Return the decoded slots of a variable."""
    var = problem.variables[index]
    pairs = zip(case.rule.codecs, problem.slots[index], strict=True)
    return [
        slot if name is None else decode_tensor(CODECS[name], slot, var) for name, slot in pairs
    ]


def records_of(codec: str, slot: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scales of the blocks of a slot, and their codes: (blocks,), (blocks, block)."""
    rows = slot.view(-1, CODECS[codec].record_bytes)
    codes: Any = rows[:, 4:]
    return rows[:, :4].contiguous().view(torch.float32).flatten(), codes.view(
        torch.int8 if CODECS[codec].signed else torch.uint8
    )


def shard_of(case: Case, problem: Problem, positions: Tensor) -> Problem:
    """Return the elements of a problem of one variable at positions, which are whole blocks."""
    slots: list[Tensor] = []
    for name, slot in zip(case.rule.codecs, problem.slots[0], strict=True):
        codec = CODECS[name or ""]
        blocks = positions[:: codec.block] // codec.block
        slots.append(slot.view(-1, codec.record_bytes)[blocks].reshape(-1))
    (var,), (grad,) = problem.variables, problem.gradients
    return Problem([var[positions]], [slots], [grad[positions]])
