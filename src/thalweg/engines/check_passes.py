"""Check what comes before a rule's update: its passes, and its stages over small matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.engines.check_formula import check_numbers, check_order, check_sides, check_taken
from thalweg.engines.given import check_given
from thalweg.engines.staged import Batch, check_found, names_of
from thalweg.engines.transcribe import place_of, transcribe
from thalweg.errors import RuleError
from thalweg.formula import Rule
from thalweg.ground.passes import Pass, Stage


def check_passes(rule: Rule, known: Mapping[str, Any]) -> None:
    """Refuse passes that take or make other values than they say, and stages that ask for more."""
    made: list[str] = []
    for each in rule.passes:
        if isinstance(each, Pass):
            transcript = transcribe(each.function)
            taken = [*made, *(slot.name for slot in rule.element_slots)]
            check_sides(taken, each.function, transcript, 2, known)
            count, names = len(each.makes), ", ".join(each.makes)
            check_taken(each.function, transcript, taken, count, names)
            check_order(taken, each.function, transcript, True)
            check_numbers(rule, each.function, transcript, known)
            made += each.makes
        else:
            names = names_of(each)
            there = {**known, **dict.fromkeys([*made, *(x.name for x in rule.shaped_slots)])}
            check_given(place_of(each.function), names, there, rule)
            _try_stage(rule, each, made, known)


def _try_stage(rule: Rule, stage: Stage, made: list[str], known: Mapping[str, Any]) -> None:
    """Refuse a stage that fails over two small matrices, or returns what it may not."""
    dice = torch.Generator().manual_seed(0)
    for shape in ((3, 2), (2, 3)):
        matrices = {name: torch.rand(2, *shape, generator=dice) for name in made}
        given: dict[str, Any] = dict(matrices)
        for slot in rule.shaped_slots:
            given[slot.name] = torch.full((2, *slot.shape(*shape)), slot.initial)  # pyright: ignore
        given = {
            name: given[name] if name in given else float(known[name]) for name in names_of(stage)
        }
        try:
            found = stage.function(**given)
        except Exception as error:
            raise RuleError(
                f"{place_of(stage.function)} fails over matrices of shape {shape}:"
                f" {type(error).__name__}: {error}"
            ) from error
        check_found(rule, stage, found, Batch([0, 1], shape, dict(matrices)), given, 2)
