"""Steps in one call beside the careful look: what the one takes, the other has to find the same.

    THALWEG_CHECK_LOOK=1 pytest

asks both at each step of the tests' own processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thalweg._core import replay_pairs
from thalweg._core.replay import stands
from thalweg.optim import replay

DISAGREES = "the look takes a step that the careful look does not find to be the one before"


def check_steps() -> None:
    """From now on fail where both do not agree."""
    from thalweg.keras.optimizers import replay as of_keras
    from thalweg.v1.train import replay as of_v1

    ask_both(replay.ReplayedStep, _found_by_optim)
    ask_both(of_keras.KerasReplay, lambda step, optimizer, plan_cache, pairs: _found(step, pairs))
    ask_both(of_v1.V1Replay, lambda step, optimizer, plan_cache, pairs: _found(step, pairs[0]))


def _found_by_optim(
    step: Any, optimizer: Any, has_sums: bool = False, unrecorded: bool = False
) -> bool:
    if has_sums is not step._has_sums:
        return False
    gradients = optimizer._gradients(step._owners)
    if step.may_lack:
        pairs = zip(gradients, step._owners, strict=True)
        gradients = [torch.empty_like(x) if grad is None else grad for grad, x in pairs]
    return step._is_unchanged(optimizer, gradients)


def _found(step: Any, pairs: Any) -> bool:
    plan = step._cached_plan
    return replay_pairs._are_pairs(pairs, plan) and stands(plan, [grad for grad, _ in pairs])


def ask_both(kind: Any, predict: Callable[..., bool]) -> None:
    """Check a kind of steps against `predict`."""
    take = kind.take

    def taken(step: Any, *args: Any) -> bool:
        try:
            careful = predict(step, *args)
        except Exception:  # then nothing may be taken
            careful = False
        repeated = take(step, *args)
        if repeated and not careful:
            raise AssertionError(DISAGREES)
        return repeated

    kind.take = taken
