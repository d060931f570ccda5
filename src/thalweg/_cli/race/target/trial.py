"""Trials: trainings with one point of a search space, until a target loss or the last step."""

# torch does not annotate `backward`, nor all functions of random numbers.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor, nn

from thalweg._cli.race.errors import EntryError
from thalweg._cli.race.problems import PROBLEMS, Problem
from thalweg._cli.race.run import set_threads
from thalweg._cli.race.target.contestant import make_optimizer, make_schedule
from thalweg._cli.race.target.goals import DATA_SEED, GOALS
from thalweg._cli.race.target.search_spaces import Point, Space


@dataclass(frozen=True)
class Ran:
    """Result of a trial.

    Attributes:
        steps: The number of steps to the target; None for a miss.
        taken: The number of steps taken.
        loss: The lowest loss on the test examples; infinite if all were NaN.
        seconds: Time of all steps but the first, which compiles; without evaluations.
    """

    steps: int | None
    taken: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class Timed:
    """Time of a trial to the target, with no other trial running.

    Attributes:
        seconds: Time of the steps, as in `Ran`.
        cpu: The processor time of this process during the steps.
    """

    seconds: float
    cpu: float


@cache
def load(name: str) -> Problem:
    """Load a problem, once per process."""
    return PROBLEMS[name](DATA_SEED)


def run_trial(
    name: str, space: Space, point: Point, seed: int, threads: int, fastest: int | None = None
) -> Ran:
    """Train until the target loss, the last step or step `fastest` is reached.

    Args:
        name: The name of the problem.
        space: The contestant's search space.
        point: A point of `space`.
        seed: Decides the initial weights and the order of the examples.
        threads: The number of threads of torch.
        fastest: Optional. The number of steps of the study's fastest trial so far: a slower trial
            does not count.

    Raises:
        EntryError: A step fails; the message has the optimizer and the point.
    """
    goal, lowest, steps, seconds = GOALS[name], math.inf, 0, 0.0
    with closing(follow_trial(name, space, point, seed, threads)) as measurements:
        for steps, loss, seconds in measurements:
            lowest = min(lowest, loss)
            if loss <= goal.loss:
                return Ran(steps, steps, lowest, seconds)
            if fastest is not None and steps >= fastest:
                break
    return Ran(None, steps, lowest, seconds)


def follow_trial(
    name: str, space: Space, point: Point, seed: int, threads: int
) -> Generator[tuple[int, float, float], None, None]:
    """Train to the last step, regardless of the target.

    Yields:
        At each evaluation: the number of steps, the loss on the test examples, and the seconds of
        the steps. A loss that is not finite is yielded as infinity, and ends the training.
    """
    problem, goal = load(name), GOALS[name]
    with _begin_training(name, space, point, seed, threads) as training:
        while training.taken < goal.steps:
            loss = math.inf
            if training.advance(min(goal.every, goal.steps - training.taken)):
                # Schedule-free optimizers are evaluated at the means of parameters.
                with nullcontext() if space.falls else training.optimizer.swapped():
                    loss = problem.test_loss(training.model)
            is_finite = math.isfinite(loss)
            yield training.taken, loss if is_finite else math.inf, training.seconds
            if not is_finite:
                return


def time_trial(name: str, space: Space, point: Point, seed: int, threads: int, steps: int) -> Timed:
    """Repeat the first steps of a trial without measuring losses, and return their time."""
    with _begin_training(name, space, point, seed, threads) as training:
        training.advance(steps)
    return Timed(training.seconds, training.cpu)


@contextmanager
def _begin_training(
    name: str, space: Space, point: Point, seed: int, threads: int
) -> Generator[_Training]:
    problem, steps = load(name), GOALS[name].steps
    with set_threads(threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = problem.make_model()
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                # Most contestants do not support sparse gradients.
                module.sparse = False
        order = problem.order(-(-steps // problem.steps_per_epoch), seed)
        optimizer = make_optimizer(space, point, model, problem, steps)
        schedule = make_schedule(space, optimizer, steps)
        yield _Training(problem, space, point, order, model, optimizer, schedule)


@dataclass
class _Training:
    """State of a running trial: model, optimizer, schedule and times."""

    problem: Problem
    space: Space
    point: Point
    order: Tensor
    model: nn.Module
    optimizer: Any
    schedule: Any
    taken: int = 0
    seconds: float = 0.0
    cpu: float = 0.0

    def advance(self, count: int) -> bool:
        """Take `count` steps and return True; stop and return False if a loss is not finite."""
        for rows in self.order[self.taken : self.taken + count]:
            begin, began = perf_counter(), process_time()
            self.optimizer.zero_grad()
            loss = self.problem.loss(self.model, rows)
            loss.backward()
            self._step()
            self.taken += 1
            # The first step compiles kernels.
            if self.taken > 1:
                self.seconds += perf_counter() - begin
                self.cpu += process_time() - began
            if not math.isfinite(loss.item()):
                return False
        return True

    def _step(self) -> None:
        try:
            self.optimizer.step()
        except Exception as error:
            raise EntryError(
                f"{self.space.rule} failed at step {self.taken + 1} of '{self.problem.name}' with"
                f" {self.point}: {error}"
            ) from error
        if self.schedule is not None:
            self.schedule.step()
