"""Blocks that switch a setting: it is switched back after an interruption at any place."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor

import thalweg
from interruptions import block_switches
from thalweg._base import context_managers
from thalweg._base.execution_context import eagerly
from thalweg._core.hyperparameters import Hyperparameters
from thalweg._core.state.entries import uncopied
from thalweg._engines.denormals import set_denormals
from thalweg.autodiff import watching
from thalweg.distribute import context

HYPERS = Hyperparameters()
BLOCKS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": context_managers.no_grad,
    "enable_grad": context_managers.enable_grad,
    "grad_kept": context_managers.grad_kept,
    "outside_inference": context_managers.outside_inference,
    "writable": context_managers.writable,
    "denormals": lambda: set_denormals(True),
    "eagerly": eagerly,
    "engine": lambda: thalweg.engine("reference", denormals="keep"),
    "uncopied": uncopied,
    "across": lambda: context.enter_cross_replica(thalweg.distribute.get_strategy()),
    "watching": lambda: watching(lambda *_: None),
    "knowing": lambda: HYPERS.knowing({}),
    "uncalled": HYPERS.uncalled,
}
OUTER_BLOCKS = {
    "torch's default": lambda: torch.inference_mode(False),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


def state() -> Any:
    return *block_switches(), HYPERS._results, HYPERS._overrides


def interrupted(number: int, work: Callable[[], Any]) -> bool:
    """Interrupt work where a signal may do so: where Python code is entered or left, or has called
    C code. Return False if there are fewer such places.
    """
    remaining = number

    def profile(frame: Any, *_: Any) -> None:
        nonlocal remaining
        remaining -= frame.f_code is not interrupted.__code__
        if remaining < 0:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def within(block: Callable[[], AbstractContextManager[Any]]) -> None:
    with block():
        torch.set_grad_enabled(torch.is_grad_enabled())


def places(block: Callable[[], AbstractContextManager[Any]]) -> list[int]:
    """Return places where an interruption leaves something switched, and minus their number."""
    wrong: list[int] = []
    for number in itertools.count():
        initial = state()
        was_hit = interrupted(number, lambda: within(block))
        if state() != initial:
            wrong.append(number)
            torch.set_grad_enabled(True)
        if not was_hit:
            return [*wrong, -number]
    return wrong


@pytest.mark.parametrize("outer", OUTER_BLOCKS)
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_that_is_interrupted_anywhere_is_left_whole(name: str, outer: str) -> None:
    with OUTER_BLOCKS[outer]():
        (count,) = places(BLOCKS[name])
    assert count < -4


def test_torch_blocks_are_not_interruption_safe() -> None:
    *wrong, _ = places(torch.no_grad)
    assert wrong


@pytest.mark.parametrize("name", ["no_grad", "enable_grad", "writable", "outside_inference"])
@pytest.mark.parametrize("outer", OUTER_BLOCKS)
def test_grad_mode_block_sets_and_restores_its_mode(name: str, outer: str) -> None:
    with OUTER_BLOCKS[outer]():
        initial = state()
        with BLOCKS[name]():
            is_inference = outer == "inference_mode" and name.endswith("_grad")
            assert torch.is_inference_mode_enabled() == is_inference
            assert torch.is_grad_enabled() == (name in ("enable_grad", "outside_inference"))
        assert state() == initial


def test_grad_mode_block_decorates_functions() -> None:
    @context_managers.no_grad()
    def doubled(x: Tensor, factor: int = 2) -> torch.Tensor:
        return x * factor

    product = doubled(torch.ones(1, requires_grad=True), factor=3)
    assert (product.item(), product.requires_grad, doubled.__name__) == (3, False, "doubled")
