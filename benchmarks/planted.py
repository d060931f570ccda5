"""Faults planted in small trainings, to measure which faults `Spikes` reports, and when.

    PYTHONPATH=src python benchmarks/planted.py            the table of docs/report.md
    PYTHONPATH=src python benchmarks/planted.py --quick    one seed
    PYTHONPATH=src python benchmarks/planted.py --write run.jsonl
                                                           the diagnostics of one, for its picture

Ten faults, five seeds each, in a small transformer over the sources of Python's standard library,
and twenty trainings without one. A fault of the kind that breaks a training is found if its layer
is named at or before the step at which the loss leaves the band of the same training without the
fault; a silent one, or one whose loss stays, if it is named within 100 steps. Thresholds were set
on `TUNED_ON`; what is reported is of `SEEDS`, which were not looked at before.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from thalweg import optim
from thalweg._cli.race.problems import lm
from thalweg._cli.race.problems.problem import Examples
from thalweg.optim.diagnostics import COLUMNS, Diagnostics, JsonLines, Spikes, Table, Warned

TUNED_ON, SEEDS = range(5), range(100, 105)
STEPS, FAULT_STEP, RATE = 300, 150, 3e-3
BATCH, CONTEXT = 8, 32
MAX_DELAY = 100  # steps, of a fault that leaves the loss in its band
BAND = 0.5  # nats that the loss is above that of the same step without the fault


class Training:
    """Small training with attributes that faults change."""

    def __init__(
        self, seed: int, kind: str = "adamw", sinks: Sequence[JsonLines] = (),
        spikes: Spikes | None = None,
    ) -> None:  # fmt: skip
        torch.manual_seed(seed)
        self.sinks, self.spikes = sinks, spikes
        self.model, self.kind, self.step = lm.Transformer(), kind, 0
        self.examples = _examples()
        batch = 2 if kind == "small batches" else BATCH
        generator = torch.Generator().manual_seed(seed)
        count = len(self.examples.inputs)
        self.order = torch.randint(count, (STEPS, batch), generator=generator)
        self.all_tokens: int | None = None
        self.shuffles = False
        self.change_grads: Callable[[], object] | None = None
        self.term: Callable[[], Tensor] | None = None  # of the loss that is not logged
        self.groups: dict[str, dict[str, float]] = {}  # what a parameter's group has of its own

    def begin(self) -> None:
        """Build the optimizer and its diagnostics."""
        rate = {"sgd": 0.1, "small batches": 1e-3}.get(self.kind, RATE)
        params_by_name = dict(self.model.named_parameters())
        separate = sorted({WIDE, *self.groups})
        groups = [{"params": [pair for pair in params_by_name.items() if pair[0] not in separate]}]
        groups += [
            {"params": [(name, params_by_name[name])], **self.groups.get(name, {})}
            for name in separate
        ]
        self.diagnostics = Diagnostics(every=1, sinks=[self._keep_table, *self.sinks])
        has_spikes = self.spikes is not None
        options = {"spikes": self.spikes} if has_spikes else {"diagnostics": self.diagnostics}
        if self.kind == "sgd":
            self.optimizer: Any = optim.SGD(groups, rate, momentum=0.9, **options)
        else:
            self.optimizer = optim.AdamW(groups, rate, weight_decay=0.01, **options)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.group = 1 + separate.index(WIDE)

    def take_step(self) -> tuple[float, Table]:
        """Take a measured step; return the loss and the table of diagnostics."""
        loss = self._compute_gradients()
        self.diagnostics.log_loss(loss)
        self.optimizer.step()
        return loss.item(), self._table

    def take_judged_step(self) -> None:
        """Take a step that `spikes` may leave out."""
        loss = self._compute_gradients()
        if self.spikes is not None:
            self.spikes.log_loss(loss)
        self.optimizer.step()

    def evaluate(self) -> float:
        """Return the mean loss of the last examples, which are the same for all seeds."""
        inputs, targets = (tensor[-256:, :CONTEXT] for tensor in self.examples)
        with torch.no_grad():
            return functional.cross_entropy(self.model(inputs), targets).item()

    def _compute_gradients(self) -> Tensor:
        """Set the gradients and rates of the next step; return the loss."""
        rows = self.order[self.step]
        self.step += 1
        inputs = self.examples.inputs[rows, :CONTEXT]
        targets = self.examples.targets[rows, :CONTEXT]
        if self.all_tokens is not None:
            inputs = torch.full_like(inputs, self.all_tokens)
        if self.shuffles:
            targets = targets.flatten()[torch.randperm(targets.numel())].view_as(targets)
        loss = functional.cross_entropy(self.model(inputs), targets)
        self.optimizer.zero_grad()
        (loss if self.term is None else loss + self.term()).backward()
        if self.change_grads is not None:
            self.change_grads()
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * self._factor()
        return loss

    def _keep_table(self, table: Table) -> None:
        self._table = table

    def _factor(self) -> float:
        """Return the schedule's factor of the learning rate."""
        if self.kind != "cosine":
            return 1.0
        return min(1.0, self.step / 30) * (0.55 + 0.45 * math.cos(math.pi * self.step / STEPS))


@cache
def _examples() -> Examples:
    return lm.load(0).train


# The faults.


class Plant(NamedTuple):
    """Fault of a training.

    Attributes:
        name: The description.
        title_pattern: Pattern of the right layers in reports; "batch" means most layers at once.
        first_step: The first step with the fault.
        prepare: Called before the optimizer is built.
        do: Called before each step from `first_step` on.
        is_silent: Whether the loss stays in its band for long.
    """

    name: str
    title_pattern: str
    first_step: int
    prepare: Callable[[Training], None]
    do: Callable[[Training], None]
    is_silent: bool = False


def do_nothing(training: Training) -> None:
    """Leave a training as it is."""


def _named(training: Training, name: str) -> nn.Parameter:
    return dict(training.model.named_parameters())[name]


def _raise_rate(training: Training) -> None:
    training.rates[training.group] = 30 * RATE


def explode(training: Training) -> None:
    """Add a term with the wrong sign to the loss, which increases large logits further."""
    layer: Any = training.model.layers[0]
    training.term = lambda: -0.1 * (layer.queries.weight @ layer.keys.weight.T).square().sum()


def scale_weight(name: str, factor: float) -> Callable[[Training], None]:
    """Return a function that multiplies a parameter of a training by a factor."""

    def scale(training: Training) -> None:
        with torch.no_grad():
            _named(training, name).mul_(factor)

    return scale


def _lose_moments(training: Training) -> None:
    if training.step == FAULT_STEP - 1:
        training.begin()


def _one_token(training: Training) -> None:
    training.all_tokens = 10


def _kill(training: Training) -> None:
    if training.step == FAULT_STEP - 1:
        with torch.no_grad():
            _named(training, WIDE.replace("weight", "bias")).fill_(-100.0)


def _narrow(training: Training) -> None:
    layer = training.model.layers[1].narrow
    layer.to(torch.bfloat16)
    layer.register_forward_pre_hook(lambda module, inputs: inputs[0].bfloat16())
    layer.register_forward_hook(lambda module, inputs, output: output.float())
    for name in ("weight", "bias"):  # fine-tuning: steps are small beside the weights
        training.groups[f"layers.1.narrow.{name}"] = {"lr": 2e-5}


def _freeze(training: Training) -> None:
    _named(training, WIDE).requires_grad_(False)


def _stop_group(training: Training) -> None:
    training.groups[WIDE] = {"lr": 0.0}


WIDE = "layers.1.wide.weight"
PLANTS = (
    Plant("a layer's rate x 30", WIDE, FAULT_STEP, do_nothing, _raise_rate),
    Plant("an attention logit explodes",
          r"layers\.0\.(queries|keys)\.weight", FAULT_STEP, do_nothing, explode),
    Plant("a resume without moments", ".*", FAULT_STEP, do_nothing, _lose_moments),
    Plant("one token hits one row of the embedding",
          r"characters\.weight|batch", FAULT_STEP, do_nothing, _one_token),
    Plant("a layer's first weights x 100", r"scores\.weight", 1,
          scale_weight("scores.weight", 100), do_nothing),
    Plant("a dead layer",
          r"layers\.1\.(wide\.(weight|bias)|narrow\.weight)", FAULT_STEP, do_nothing, _kill, True),
    Plant("bfloat16 weights that lose updates",
          r"layers\.1\.narrow\..*", 1, _narrow, do_nothing, True),
    Plant("a frozen layer", WIDE, 1, _freeze, do_nothing, True),
    Plant("a group with a rate of 0", WIDE, 1, _stop_group, do_nothing, True),
    Plant("weights that grow without bound", WIDE, FAULT_STEP, do_nothing,
          scale_weight(WIDE, 1.02), True),
)  # fmt: skip
CLEAN = ("adamw", "sgd", "cosine", "small batches")


class Run(NamedTuple):
    """Result of a training: the losses, and warnings with their steps."""

    losses: list[float]
    warnings: list[tuple[int, Warned]]


def run(
    seed: int, kind: str = "adamw", plant: Plant | None = None, sinks: Sequence[JsonLines] = ()
) -> Run:
    """Run a training with a fault, or without one."""
    training, spikes = Training(seed, kind, sinks), Spikes()
    if plant:
        plant.prepare(training)
    training.begin()
    result_ = Run([], [])
    while training.step < STEPS:
        if plant and training.step >= plant.first_step - 1:
            plant.do(training)
        loss, table = training.take_step()
        result_.losses.append(loss)
        rows = {key: np.where(table.measured[key], table.records[key], -math.inf)
                for key in COLUMNS}  # fmt: skip
        own = table.parameters
        # Not by the table's number of the step, which begins anew with a new optimizer.
        warnings = spikes.feed(rows, own.names, training.step, loss, own.sizes)
        result_.warnings.extend((training.step, warning) for warning in warnings)
    return result_


def left_band(run: Run, clean: Run) -> int | None:
    """Return the first step whose loss exceeds that of the clean training by `BAND`, or None."""
    pairs = enumerate(zip(run.losses, clean.losses, strict=True), 1)
    return next((step for step, (loss, clean_loss) in pairs if not loss <= clean_loss + BAND), None)


class Verdict(NamedTuple):
    """Verdict on the reports of a fault.

    Attributes:
        report_step: The step at which the right layer was reported, or None.
        is_first: Whether no other layer was reported before.
        exit_step: The step at which the loss left its band, or None.
        in_time: Whether the report was in time.
    """

    report_step: int | None
    is_first: bool
    exit_step: int | None
    in_time: bool


def judge(plant: Plant, run: Run, clean: Run) -> Verdict:
    """Return the verdict on the reports of a fault."""
    reports = [
        (step, warning)
        for step, warning in run.warnings
        if step >= plant.first_step and warning.kind != "loss"
    ]
    right = [step for step, warning in reports if re.fullmatch(plant.title_pattern, warning.title)]
    exit_step = left_band(run, clean)
    if not right:
        return Verdict(None, False, exit_step, False)
    limit = plant.first_step + MAX_DELAY if plant.is_silent or exit_step is None else exit_step
    is_first = re.fullmatch(plant.title_pattern, reports[0][1].title) is not None
    return Verdict(right[0], is_first, exit_step, right[0] <= limit)


def main() -> None:
    """Run all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="one seed, and four clean trainings")
    parser.add_argument("--tuned-on", action="store_true", help="the seeds of the thresholds")
    parser.add_argument("--write", metavar="FILE", help="write one, to be drawn, and no table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.write:
        run(SEEDS[0], plant=PLANTS[0], sinks=[JsonLines(arguments.write)])
        return
    seeds = list(TUNED_ON if arguments.tuned_on else SEEDS)[: 1 if arguments.quick else None]
    clean = {(kind, seed): run(seed, kind) for kind in CLEAN for seed in seeds}
    print(
        "| fault | named in time | named first | reported after, steps | loss left its band after |"
    )
    print("|---|---|---|---|---|")
    detected_count = 0
    for plant in PLANTS:
        verdicts = [judge(plant, run(seed, plant=plant), clean["adamw", seed]) for seed in seeds]
        in_time = sum(verdict.in_time for verdict in verdicts)
        detected_count += in_time == len(seeds)
        first_count = sum(verdict.is_first for verdict in verdicts)
        delays = _span([verdict.report_step for verdict in verdicts], plant.first_step)
        exits = _span([verdict.exit_step for verdict in verdicts], plant.first_step)
        print(
            f"| {plant.name} | {in_time} of {len(seeds)} | {first_count} | {delays} | {exits} |",
            flush=True,
        )
    alarms = {
        key: training_run.warnings for key, training_run in clean.items() if training_run.warnings
    }
    print(f"\nFound with all seeds: {detected_count} of {len(PLANTS)} faults.", end=" ")
    print(f"False alarms: {len(alarms)} of {len(clean)} clean trainings; seeds {seeds}.")
    for (kind, seed), warnings in alarms.items():
        print(f"  {kind}, seed {seed}: {'; '.join(str(warning) for _, warning in warnings)}")


def _span(steps: list[int | None], start: int) -> str:
    """Format delays as `0` or `0 to 3`, and "-" without any."""
    delays = [step - start for step in steps if step is not None]
    if not delays:
        return "-"
    span = f"{min(delays)}" if min(delays) == max(delays) else f"{min(delays)} to {max(delays)}"
    return span if len(delays) == len(steps) else f"{span} ({len(delays)} of {len(steps)})"


if __name__ == "__main__":
    main()
