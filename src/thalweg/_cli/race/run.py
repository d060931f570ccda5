"""Race loop: contestants take turns, with equal batches and equal initial weights."""

# torch does not annotate all functions of random numbers.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from thalweg._cli.race.contestant import Contestant
from thalweg._cli.race.errors import EntryError, name_failures
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
    """Scores of a model after a number of steps."""

    step: int
    scores: Scores


def rate_of(contestant: Contestant, optimizer: object) -> float | None:
    """Return the learning rate of a contestant, or None if it is not a number."""
    if contestant.learning_rate is not None:
        return contestant.learning_rate
    try:
        return float(getattr(optimizer, rate_name(optimizer) or "learning_rate"))
    except (AttributeError, TypeError, ValueError):
        return None


@dataclass
class Lane:
    """Model, optimizer and history of one contestant in a race.

    Times are in seconds, one per step. They include the diagnostics in `recorder`.
    """

    contestant: Contestant
    model: nn.Module
    optimizer: Any
    losses: list[float] = field(default_factory=list[float])
    model_times: list[float] = field(default_factory=list[float])
    optimizer_times: list[float] = field(default_factory=list[float])
    evaluations: list[Evaluation] = field(default_factory=list[Evaluation])
    diverged_at: int | None = None
    recorder: MeasuredSteps | None = None

    @property
    def name(self) -> str:
        """Return the contestant's name."""
        return self.contestant.name

    @property
    def learning_rate(self) -> float | None:
        """Return the optimizer's learning rate, or None if it is not a number."""
        return rate_of(self.contestant, self.optimizer)

    @property
    def scores(self) -> Scores:
        """Return the latest scores; NaN before the first evaluation and after divergence."""
        if self.diverged_at is not None or not self.evaluations:
            return Scores(math.nan, math.nan, math.nan)
        return self.evaluations[-1].scores

    @property
    def seconds(self) -> float:
        """Return the total time of all steps but the first, which compiles the rule."""
        return sum(self.model_times[1:]) + sum(self.optimizer_times[1:])

    @property
    def step_time(self) -> float:
        """Return the median time of the optimizer's step, without the first."""
        return statistics.median(self.optimizer_times[1:] or self.optimizer_times or [math.nan])


@dataclass
class Race:
    """State of a race, running or finished."""

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
    record_interval: int | None = None

    def stop(self) -> None:
        """Mark the race as stopped; drop evaluations that some contestants do not have."""
        self.stopped = True
        racing = [lane.evaluations for lane in self.lanes if lane.diverged_at is None]
        shared = min(map(len, racing), default=0)
        for evaluations in racing:
            del evaluations[shared:]

    def ranked(self) -> list[Lane]:
        """Return the lanes sorted by test accuracy, then by train loss; diverged lanes are last."""

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
    """Run a race with one seed.

    Args:
        problem: Data and model.
        epochs: Passes over the training examples; the problem's default if None.
        seed: Decides the initial weights and the order of the examples.
        threads: The number of threads of torch during the race. One thread is as fast for small
            models, and gives equal numbers on every machine.
        progress: `progress(race)` is called after each block of steps of a contestant.
        strategy: Optional. The ranks that share each batch; every rank calls `run`.
        measures: True to record diagnostics, of at most as many steps as a page can show.

    Returns:
        The race with all histories and this rank's times. With one rank, Ctrl-C ends the race; the
        result then has the steps so far.

    Raises:
        EntryError: An optimizer fails; the message names the optimizer.
        KeyboardInterrupt: Ctrl-C with several ranks or before the first step.
    """
    epochs = problem.epochs if epochs is None else epochs
    strategy = Strategy.alone() if strategy is None else strategy
    start_time = perf_counter()
    with set_threads(threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        start = problem.make_model()
        order = problem.order(epochs, seed)
        for _ in range(3):  # else the first contestant would pay for torch's initialization
            torch.autograd.grad(problem.loss(start, order[0]), list(start.parameters()))
        lanes = [_make_lane(contestant, problem, start) for contestant in contestants]
        ranks = strategy.num_replicas_in_sync
        race = Race(problem, lanes, epochs, seed, threads, len(order), ranks)
        # Before `_begin_lane`: constructors of optimizers take the diagnostics.
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
    """Build the optimizer of an `ApplyGradientsAdapter`; do nothing with other optimizers."""
    if not isinstance(lane.optimizer, ApplyGradientsAdapter):
        return
    with name_failures(f"{lane.name} failed while it was made"):
        lane.optimizer.begin(lane.model)


def _measure_lanes(race: Race) -> None:
    from thalweg._cli.race.race_diagnostics import MeasuredSteps
    from thalweg._cli.report.bins import MAX_BINS

    race.record_interval = math.ceil(race.steps / MAX_BINS)
    for lane in race.lanes:
        lane.recorder = MeasuredSteps(lane.optimizer, lane.model, race.record_interval)


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
    interval = max(1, math.ceil(race.steps / EVALUATIONS))
    for index, (begin, end) in enumerate(_cut_blocks(race.steps, interval)):
        # Rotate, so that no contestant is always first.
        turn = index % len(lanes)
        for lane in lanes[turn:] + lanes[:turn]:
            if lane.diverged_at is None:
                _advance_lane(lane, problem, order[begin:end], strategy)
                if end % interval == 0 or end == race.steps:
                    lane.evaluations.append(Evaluation(end, _evaluate(lane, problem)))
            race.step, race.seconds = end, perf_counter() - start_time
            if progress is not None:
                progress(race)


def _cut_blocks(steps: int, interval: int) -> Iterator[tuple[int, int]]:
    """Yield first and last step of blocks of at most `BLOCK` steps that end at evaluations."""
    begin = 0
    while begin < steps:
        end = min(begin + BLOCK, (begin // interval + 1) * interval, steps)
        yield begin, end
        begin = end


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
        if lane.recorder is not None:
            lane.recorder.add_step(len(lane.losses), lane.losses[-1])
        if not math.isfinite(lane.losses[-1]):
            lane.diverged_at = len(lane.losses)
            return


def _share_of_loss(model: nn.Module, problem: Problem, rows: Tensor, strategy: Strategy) -> Tensor:
    """Return this rank's part of a batch's mean loss; the parts of all ranks sum to the mean."""
    if strategy.ranks.is_alone:
        return problem.loss(model, rows)
    local_rows = rows[strategy.ranks.rank :: strategy.ranks.size]
    return problem.loss(model, local_rows) * (len(local_rows) / len(rows))


def _applier_of(optimizer: object, strategy: Strategy) -> Callable[[Any], Any]:
    apply = applied(optimizer)
    if strategy.ranks.is_alone:
        return apply
    # The adapter, unlike thalweg's optimizers, does not sum the gradients of ranks.
    if isinstance(optimizer, ApplyGradientsAdapter):

        def summed(pairs: Any) -> None:
            gradients, variables = zip(*pairs, strict=True)
            apply(zip(strategy.reduce("sum", list(gradients)), variables, strict=True))

        return summed
    return lambda pairs: strategy.run(apply, (list(pairs),))


@contextmanager
def set_threads(count: int) -> Generator[None]:
    """Set torch's number of threads for a `with` block."""
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)
