"""The race itself: the same first weights and the same batches for everyone, and turns."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from thalweg._cli.race.contestant import Contestant
from thalweg._cli.race.errors import EntryError
from thalweg._cli.race.problems import Problem
from thalweg._cli.race.problems.problem import Scores
from thalweg._cli.registry import applied, rate_name
from thalweg._cli.registry.apply_gradients_adapter import ApplyGradientsAdapter
from thalweg.distribute import Strategy

if TYPE_CHECKING:
    from thalweg._cli.race.race_diagnostics import MeasuredSteps

BLOCK = 11
EVALUATIONS = 10


class Evaluation(NamedTuple):
    """Scores after some steps."""

    step: int
    scores: Scores


def rate_of(contestant: Contestant, optimizer: object) -> float | None:
    """Return the learning rate that a contestant races with, if it is a number."""
    if contestant.learning_rate is not None:
        return contestant.learning_rate
    try:
        return float(getattr(optimizer, rate_name(optimizer) or "learning_rate"))
    except (AttributeError, TypeError, ValueError):
        return None


@dataclass
class Lane:
    """Model, optimizer and history of a contestant. Times are in seconds, one for each step.

    These times include the measurements in `measured`.
    """

    contestant: Contestant
    model: nn.Module
    optimizer: Any
    losses: list[float] = field(default_factory=list)
    model_times: list[float] = field(default_factory=list)
    optimizer_times: list[float] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    diverged_at: int | None = None
    measured: MeasuredSteps | None = None

    @property
    def name(self) -> str:
        """The contestant's name."""
        return self.contestant.name

    @property
    def learning_rate(self) -> float | None:
        """The optimizer's learning rate if it is a number."""
        return rate_of(self.contestant, self.optimizer)

    @property
    def scores(self) -> Scores:
        """The latest scores; NaN before the first and after the loss stopped being a number."""
        if self.diverged_at is not None or not self.evaluations:
            return Scores(math.nan, math.nan, math.nan)
        return self.evaluations[-1].scores

    @property
    def seconds(self) -> float:
        """Forward, backward and step of all steps but the first, which compiles the rule."""
        return sum(self.model_times[1:]) + sum(self.optimizer_times[1:])

    @property
    def step_time(self) -> float:
        """The optimizer's part of a step, the median without the first."""
        return statistics.median(self.optimizer_times[1:] or self.optimizer_times or [math.nan])


@dataclass
class Race:
    """A race, under way or over."""

    problem: Problem
    lanes: list[Lane]
    epochs: int
    seed: int
    threads: int
    steps: int
    ranks: int = 1
    step: int = 0
    seconds: float = 0.0
    stopped: bool = False
    measured_every: int | None = None

    def stop(self) -> None:
        """End it before its time: the scores that count are the latest that all have."""
        self.stopped = True
        racing = [lane.evaluations for lane in self.lanes if lane.diverged_at is None]
        shared = min(map(len, racing), default=0)
        for evaluations in racing:
            del evaluations[shared:]

    def ranked(self) -> list[Lane]:
        """The best first: test accuracy, then train loss; those that diverged are last."""

        def key(lane: Lane) -> tuple[bool, float, float]:
            scores = lane.scores
            if not all(map(math.isfinite, scores)):
                return True, 0.0, -float(lane.diverged_at or len(lane.losses))
            return False, -scores.test_accuracy, scores.train_loss

        return sorted(self.lanes, key=key)


def run(
    problem: Problem, contestants: Sequence[Contestant], *, epochs: int | None = None,
    seed: int = 0, threads: int = 1, progress: Callable[[Race], None] | None = None,
    strategy: Strategy | None = None, measures: bool = False,
) -> Race:  # fmt: skip
    """Run a race.

    Args:
        problem: Data and model.
        contestants: Who races.
        epochs: Passes over the training examples; the problem's default if None.
        seed: Decides the initial weights and the order of the examples.
        threads: How many threads torch uses during the race. One is as fast for models this small,
            does not wait for busy cores, and gives the same numbers on every machine.
        progress: Called after every block of steps of one contestant.
        strategy: Optional. The ranks that share each batch; all of them call this.
        measures: Whether steps are measured, each or as many as a page has columns.

    Returns:
        The race with everyone's history; times are those of this rank. Ctrl-C stops a race of one
        rank, and what was raced until then is returned.

    Raises:
        EntryError: If an optimizer fails; names it.
        KeyboardInterrupt: Ctrl-C, where several ranks race or none has taken a step.
    """
    epochs = problem.epochs if epochs is None else epochs
    strategy = Strategy.alone() if strategy is None else strategy
    start_time = perf_counter()
    with set_threads(threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        start = problem.make_model()
        order = problem.order(epochs, seed)
        _warm_up(problem, start, order[0])
        lanes = [_make_lane(contestant, problem, start) for contestant in contestants]
        ranks = strategy.num_replicas_in_sync
        race = Race(problem, lanes, epochs, seed, threads, len(order), ranks)
        if measures:
            _measure_lanes(race)
        for lane in lanes:
            _begin_lane(lane)
        try:
            _take_turns(race, order, strategy, start_time, progress)
        except KeyboardInterrupt:
            if not strategy.ranks.is_alone or not any(lane.losses for lane in lanes):
                raise
            race.stop()
    return race


def _make_lane(contestant: Contestant, problem: Problem, start: nn.Module) -> Lane:
    lane = Lane(contestant, copy.deepcopy(start), contestant.make(contestant.learning_rate))
    if isinstance(lane.optimizer, ApplyGradientsAdapter) and lane.optimizer.is_of_matrices:
        lane.optimizer.choose_matrices(problem.hidden_matrices(lane.model))
    return lane


def _begin_lane(lane: Lane) -> None:
    """Make what is made of parameters, before the race."""
    if not isinstance(lane.optimizer, ApplyGradientsAdapter):
        return
    try:
        lane.optimizer.begin(lane.model)
    except EntryError:
        raise
    except Exception as error:
        raise EntryError(
            f"{lane.name} failed while it was made: {type(error).__name__}: {error}"
        ) from error


def _measure_lanes(race: Race) -> None:
    from thalweg._cli.race.race_diagnostics import MeasuredSteps  # of use to few
    from thalweg._cli.report.bins import MOST

    race.measured_every = math.ceil(race.steps / MOST)
    for lane in race.lanes:
        lane.measured = MeasuredSteps(lane.optimizer, lane.model, race.measured_every)


def _evaluate(lane: Lane, problem: Problem) -> Scores:
    if not isinstance(lane.optimizer, ApplyGradientsAdapter):
        return problem.scores(lane.model)
    with lane.optimizer.evaluated():
        return problem.scores(lane.model)


def _take_turns(
    race: Race, order: Tensor, strategy: Strategy, start_time: float,
    progress: Callable[[Race], None] | None,
) -> None:  # fmt: skip
    problem, lanes = race.problem, race.lanes
    every = max(1, math.ceil(race.steps / EVALUATIONS))
    for number, (first, last) in enumerate(_cut_blocks(race.steps, every)):
        turn = number % len(lanes)  # nobody is always first
        for lane in lanes[turn:] + lanes[:turn]:
            if lane.diverged_at is None:
                _advance_lane(lane, problem, order[first:last], strategy)
                if last % every == 0 or last == race.steps:
                    lane.evaluations.append(Evaluation(last, _evaluate(lane, problem)))
            race.step, race.seconds = last, perf_counter() - start_time
            if progress is not None:
                progress(race)


def _cut_blocks(steps: int, every: int) -> Iterator[tuple[int, int]]:
    """Blocks of steps that end where an evaluation is due."""
    first = 0
    while first < steps:
        last = min(first + BLOCK, (first // every + 1) * every, steps)
        yield first, last
        first = last


def _advance_lane(lane: Lane, problem: Problem, order: Tensor, strategy: Strategy) -> None:
    parameters = list(lane.model.parameters())
    apply = _applier_of(lane.optimizer, strategy)
    for rows in order:
        begin = perf_counter()
        loss = _share_of_loss(lane.model, problem, rows, strategy)
        gradients = torch.autograd.grad(loss, parameters)
        lane.losses.append(strategy.reduce("sum", loss.detach()).item())
        middle = perf_counter()
        try:
            apply(zip(gradients, parameters, strict=True))
        except Exception as error:
            message = f"{lane.name} failed at step {len(lane.losses)}: {error}"
            raise EntryError(message) from error
        lane.model_times.append(middle - begin)
        lane.optimizer_times.append(perf_counter() - middle)
        if lane.measured is not None:
            lane.measured.add_step(len(lane.losses), lane.losses[-1])
        if not math.isfinite(lane.losses[-1]):
            lane.diverged_at = len(lane.losses)
            return


def _share_of_loss(model: nn.Module, problem: Problem, rows: Tensor, strategy: Strategy) -> Tensor:
    """This rank's share of a batch's loss: those of all ranks add up to the mean."""
    if strategy.ranks.is_alone:
        return problem.loss(model, rows)
    own = rows[strategy.ranks.rank :: strategy.ranks.size]
    return problem.loss(model, own) * (len(own) / len(rows))


def _applier_of(optimizer: object, strategy: Strategy) -> Callable[[Any], Any]:
    apply = applied(optimizer)
    if strategy.ranks.is_alone:
        return apply
    if isinstance(optimizer, ApplyGradientsAdapter):  # which does not add up the gradients of ranks

        def summed(pairs: Any) -> None:
            gradients, variables = zip(*pairs, strict=True)
            apply(zip(strategy.reduce("sum", list(gradients)), variables, strict=True))

        return summed
    return lambda pairs: strategy.run(apply, (list(pairs),))


def _warm_up(problem: Problem, model: nn.Module, rows: Tensor) -> None:
    # torch's own first-time costs would be charged to whoever comes first.
    for _ in range(3):
        torch.autograd.grad(problem.loss(model, rows), list(model.parameters()))


@contextmanager
def set_threads(count: int) -> Iterator[None]:
    """Have torch use so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
