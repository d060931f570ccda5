"""Steps whose learning rate, or whose set of gradients, changes each time.

    python benchmarks/changing.py [--rounds N]

The optimizer's step alone, in processor time of one thread, with new gradients each time, beside
`torch.optim.AdamW(fused=True)` or SGD in the same loop: the medians of interleaved rounds. Before
each step a small model computes gradients, so that the caches are as a training leaves them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from figure import Figure, watched
from torch import Tensor
from torch.nn import Parameter
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


class Loop:
    """Training loop whose optimizer steps alone are timed.

    Args:
        count: The number of parameters.
    """

    def __init__(self, count: int) -> None:
        self.params = [Parameter(torch.randn(SIZE)) for _ in range(count)]

    def prepare(self) -> None:
        """Set new gradients, and advance the schedule."""
        raise NotImplementedError

    def step(self) -> None:
        raise NotImplementedError

    def taken(self) -> int:
        """Return the number of steps that were one native call."""
        return 0


class TorchLoop(Loop):
    """Training loop of an optimizer with torch's interface.

    Args:
        count: The number of parameters.
        make: Builds the optimizer from parameters.
        schedule: Optional. Builds a scheduler from an optimizer.
        choose: Optional. Returns the indices of parameters with a gradient, from the number of
            parameters and that of the step.
    """

    def __init__(
        self,
        count: int,
        make: Callable[[list[Parameter]], Any],
        schedule: Callable[[Any], Any] | None = None,
        choose: Callable[[int, int], set[int]] | None = None,
    ) -> None:
        super().__init__(count)
        self.optimizer = make(self.params)
        self._scheduler = None if schedule is None else schedule(self.optimizer)
        self._choose = choose
        self._number = 0

    def prepare(self) -> None:
        self._number += 1
        if self._scheduler is not None and self._number > 1:
            self._scheduler.step()
        count = len(self.params)
        with_gradient = (
            set(range(count)) if self._choose is None else self._choose(count, self._number)
        )
        for index, param in enumerate(self.params):
            param.grad = torch.randn(SIZE) if index in with_gradient else None

    def step(self) -> None:
        self.optimizer.step()

    def taken(self) -> int:
        step_cache = getattr(self.optimizer, "step_cache", None)
        return getattr(getattr(step_cache, "replay", None), "taken", 0)


class PairsLoop(Loop):
    """Training loop of an optimizer with `apply_gradients`.

    Args:
        count: The number of parameters.
        make: Builds the optimizer from the variable that counts steps.
        counts: Whether steps increment that variable.
    """

    def __init__(self, count: int, make: Callable[[Variable], Any], counts: bool = False) -> None:
        super().__init__(count)
        self._count = Variable(0, dtype=torch.int64, trainable=False)
        self.optimizer = make(self._count)
        self._options = {"global_step": self._count} if counts else {}
        self._pairs: list[tuple[Tensor, Parameter]] = []

    def prepare(self) -> None:
        self._pairs = [(torch.randn(SIZE), param) for param in self.params]

    def step(self) -> None:
        self.optimizer.apply_gradients(self._pairs, **self._options)

    def taken(self) -> int:
        return getattr(self.optimizer._plans.now().replay, "taken", 0)


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


def _own_adamw(params: list[Parameter]) -> Any:
    return optim.AdamW(params)


def _torch_adamw(params: list[Parameter]) -> Any:
    return torch.optim.AdamW(params, fused=True)


def _sgd(package: Any, **options: Any) -> Callable[[list[Parameter]], Any]:
    return lambda params: package.SGD(params, lr=1e-3, momentum=0.9, **options)


def _keras(count: int) -> Loop:
    return PairsLoop(count, lambda _: optimizers.Adam(schedules.ExponentialDecay(1e-3, 100, 0.9)))


def _v1(count: int) -> Loop:
    def make(step: Variable) -> Any:
        return train.AdamOptimizer(train.exponential_decay(1e-3, step, 100, 0.9))

    return PairsLoop(count, make, counts=True)


class Case(NamedTuple):
    """Loops to compare, built for a number of tensors, and targets by that number."""

    make_own: Callable[[int], Loop]
    make_torch: Callable[[int], Loop]
    targets: dict[int, float]


def _pair(
    targets: dict[int, float],
    schedule: Callable[[Any], Any] | None = None,
    choose: Callable[[int, int], set[int]] | None = None,
    make_own: Callable[[list[Parameter]], Any] = _own_adamw,
    make_torch: Callable[[list[Parameter]], Any] = _torch_adamw,
) -> Case:
    def loop_of(make: Callable[[list[Parameter]], Any]) -> Callable[[int], Loop]:
        return lambda count: TorchLoop(count, make, schedule, choose)

    return Case(loop_of(make_own), loop_of(make_torch), targets)


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


class Row(NamedTuple):
    """Median microseconds of a step.

    Attributes:
        name: The case.
        count: The number of tensors.
        own_time, torch_time: The median of thalweg and of torch.
        replayed: The share of the steps that were one native call.
        target: The maximum of `own_time / torch_time`.
    """

    name: str
    count: int
    own_time: float
    torch_time: float
    replayed: float
    target: float

    @property
    def ratio(self) -> float:
        return self.own_time / self.torch_time


def _passes() -> Callable[[], None]:
    """Return a function that runs a forward and backward pass of a small model."""
    layers = torch.nn.Linear(SIZE, SIZE), torch.nn.ReLU(), torch.nn.Linear(SIZE, 1)
    model, inputs = torch.nn.Sequential(*layers), torch.randn(16, SIZE)

    def run() -> None:
        model.zero_grad()
        model(inputs).square().mean().backward()

    return run


def rows(rounds: int) -> Iterator[Row]:
    """Measure all cases, on one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    passes = _passes()
    for count in RATES:
        for name, case in CASES.items():
            if count in case.targets:
                own_loop, torch_loop = case.make_own(count), case.make_torch(count)
                _medians((own_loop, torch_loop), passes, WARM_UP)
                replayed_before = own_loop.taken()
                medians = _medians((own_loop, torch_loop), passes, rounds)
                replayed_share = (own_loop.taken() - replayed_before) / rounds
                yield Row(name, count, *medians, replayed_share, case.targets[count])


def _medians(
    loops: tuple[Loop, Loop], passes: Callable[[], None], rounds: int
) -> tuple[float, float]:
    """Return the median microseconds of a step of each loop, which take turns."""
    times: tuple[list[int], list[int]] = ([], [])
    for _ in range(rounds):
        for loop_times, loop in zip(times, loops, strict=True):
            loop.prepare()
            passes()
            begin = time.thread_time_ns()
            loop.step()
            loop_times.append(time.thread_time_ns() - begin)
    return statistics.median(times[0]) / 1e3, statistics.median(times[1]) / 1e3


def figures(rounds: int = 300) -> list[Figure]:
    """Measure processor time of one thread in units of torch's in the same loop."""
    figures_: list[Figure] = []
    with watched(figures_):
        figures_ += map(_figure, rows(rounds))
    return figures_


def _figure(row: Row) -> Figure:
    note = (
        f"{row.own_time:.3g} us of the processor, torch fused {row.torch_time:.3g};"
        f" {row.replayed:.0%} in one call"
    )
    return Figure(f"changing_{row.name}_{row.count}", row.ratio, row.target, note=note)


def main() -> None:
    parser = argparse.ArgumentParser(description="Steps that change each time.")
    parser.add_argument("--rounds", type=int, default=300)
    arguments = parser.parse_args()
    print("          case tensors  thalweg us  torch us  ratio   once  target")
    for row in rows(arguments.rounds):
        print(
            f"{row.name:>14} {row.count:7} {row.own_time:11.1f} {row.torch_time:9.1f}"
            f" {row.ratio:6.2f} {row.replayed:6.0%} <= {row.target:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
