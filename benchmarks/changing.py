"""Steps whose learning rate, or whose set of gradients, changes each time.

The optimizer's step alone, in processor time of one thread, with new gradients each time, beside
`torch.optim.AdamW(fused=True)` or SGD in the same loop: the medians of interleaved rounds. Before
each step a small model computes gradients, so that the caches are as a training leaves them.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from figure import Figure, watched
from steady import Make, PairsLoop, TorchLoop, compare_loops, fused_adamw, make_params
from torch.optim import lr_scheduler

from thalweg import Variable, optim
from thalweg.keras import optimizers
from thalweg.keras.optimizers import schedules
from thalweg.v1 import train

SIZE = 64
WARM_UP = 40  # steps of each contestant before its first round
STEPS = 100_000  # that schedules are made for
# The most of torch's time that a step may take, by number of tensors.
RATES = {1: 0.30, 10: 0.20, 100: 0.10}
SETS = {10: 0.30, 100: 0.30}

Schedule = Callable[[Any], Any]
# Returns the indices of parameters with a gradient, from the numbers of parameters and of the step.
Choose = Callable[[int, int], set[int]]


class ChangingLoop(TorchLoop):
    """Loop of an optimizer with torch's interface whose schedule or gradients change.

    Args:
        count: The number of parameters.
        make: Builds the optimizer from parameters.
        schedule: Builds a scheduler from an optimizer.
        choose: Returns the indices of parameters with a gradient.
    """

    def __init__(
        self, count: int, make: Make, schedule: Schedule | None, choose: Choose | None
    ) -> None:
        super().__init__(make_params(count, SIZE), make)
        self._scheduler = None if schedule is None else schedule(self.optimizer)
        self._choose = choose
        self._number = 0

    def prepare(self) -> None:
        """Set new gradients, and advance the schedule."""
        self._number += 1
        if self._scheduler is not None and self._number > 1:
            self._scheduler.step()
        count = len(self.params)
        with_gradient = (
            set(range(count)) if self._choose is None else self._choose(count, self._number)
        )
        for index, param in enumerate(self.params):
            param.grad = torch.randn(SIZE) if index in with_gradient else None


class ChangingPairsLoop(PairsLoop):
    """Loop of an optimizer with `apply_gradients` whose gradients change."""

    def prepare(self) -> None:
        """Set new gradients."""
        self.give([torch.randn(SIZE) for _ in self.variables])


def _lambda(optimizer: Any) -> Any:
    return lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step * 1e-4))


def _one_cycle(optimizer: Any) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=STEPS)


def _all_but_one(count: int, step: int) -> set[int]:
    return set(range(count)) - {step % count}


def _half(count: int, step: int) -> set[int]:
    return set(range(step % 2, count, 2))


def _random(count: int, step: int) -> set[int]:
    return set(random.Random(step).sample(range(count), count // 2))


def _sgd(package: Any, **options: Any) -> Make:
    return lambda params: package.SGD(params, lr=1e-3, momentum=0.9, **options)


def _keras(count: int) -> ChangingPairsLoop:
    rate = schedules.ExponentialDecay(1e-3, 100, 0.9)
    return ChangingPairsLoop(make_params(count, SIZE), optimizers.Adam(rate))


def _v1(count: int) -> ChangingPairsLoop:
    step = Variable(0, dtype=torch.int64, trainable=False)
    optimizer = train.AdamOptimizer(train.exponential_decay(1e-3, step, 100, 0.9))
    return ChangingPairsLoop(make_params(count, SIZE), optimizer, global_step=step)


class Case(NamedTuple):
    """Loops to compare, built for a number of tensors, and targets by that number."""

    make_own: Callable[[int], Any]
    make_torch: Callable[[int], Any]
    targets: dict[int, float]


def _pair(
    targets: dict[int, float],
    schedule: Schedule | None = None,
    choose: Choose | None = None,
    make_own: Make = optim.AdamW,
    make_torch: Make = fused_adamw,
) -> Case:
    return Case(
        lambda count: ChangingLoop(count, make_own, schedule, choose),
        lambda count: ChangingLoop(count, make_torch, schedule, choose),
        targets,
    )


# Torch's loop with a constant rate is the baseline of schedules without a fused step in torch.
_CONSTANT = _pair(RATES).make_torch
CASES = {
    "lambda": _pair(RATES, _lambda),
    "one_cycle": _pair(RATES, _one_cycle),
    "one_cycle_sgd": _pair(
        RATES, _one_cycle, make_own=_sgd(optim), make_torch=_sgd(torch.optim, fused=True)
    ),
    "keras": Case(_keras, _CONSTANT, RATES),
    "v1": Case(_v1, _CONSTANT, RATES),
    "rotating": _pair(SETS, choose=_all_but_one),
    "halves": _pair(SETS, choose=_half),
    "random": _pair(SETS, choose=_random),
}


def _passes() -> Callable[[], None]:
    """Return a function that runs a forward and backward pass of a small model."""
    layers = torch.nn.Linear(SIZE, SIZE), torch.nn.ReLU(), torch.nn.Linear(SIZE, 1)
    model, inputs = torch.nn.Sequential(*layers), torch.randn(16, SIZE)

    def run() -> None:
        model.zero_grad()
        model(inputs).square().mean().backward()

    return run


def _measure(rounds: int) -> Iterator[Figure]:
    """Yield the figures of all cases, on one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    passes = _passes()

    def prepare(loop: Any) -> None:
        loop.prepare()
        passes()

    for count in RATES:
        for name, case in CASES.items():
            if count in case.targets:
                loops = case.make_own(count), case.make_torch(count)
                compare_loops(*loops, WARM_UP, prepare)
                comparison = compare_loops(*loops, rounds, prepare, statistics.median)
                yield comparison.as_figure(f"changing_{name}_{count}", case.targets[count])


def figures(rounds: int = 300) -> list[Figure]:
    """Measure processor time of one thread in units of torch's in the same loop."""
    figures_: list[Figure] = []
    with watched(figures_):
        figures_ += _measure(rounds)
    return figures_
