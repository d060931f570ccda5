"""Faults planted in single steps of small trainings, to measure what `Spikes` with actions saves.

    PYTHONPATH=src python benchmarks/planted_actions.py              the table of docs/spikes.md
    PYTHONPATH=src python benchmarks/planted_actions.py --seeds 2    two seeds of each fault
    PYTHONPATH=src python benchmarks/planted_actions.py --cost       times of judged steps

Ten faults of one to five steps in the trainings of `planted.py`, each without an action, with
"skip" and with "rollback", and twenty trainings without a fault. All end after as many steps that
were neither left out nor taken back. A training is saved if its final
loss, over examples that are the same for all, is at most the largest one of the trainings without a
fault. Thresholds were set on `TUNED_ON`; the seeds of the table were not looked at before.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import torch
from planted import CLEAN, WIDE, Training, do_nothing, explode, scale_weight

from thalweg import optim
from thalweg.errors import NumericsWarning
from thalweg.optim.diagnostics import Spikes

TUNED_ON, SEEDS = range(100, 105), range(200, 205)
STEPS, FAULT_STEP, LONGEST = 120, 70, 240
ACTIONS = (None, "skip", "rollback")


class Fault(NamedTuple):
    """Fault of some steps.

    Attributes:
        name: The description.
        steps: The number of steps with the fault.
        begin: Called before the first of them.
        end: Called after the last one.
    """

    name: str
    steps: int
    begin: Callable[[Training], object]
    end: Callable[[Training], object]


def _scale_grads(factor: float) -> Callable[[Training], object]:
    return lambda training: _change_grads(training, lambda grad: grad.mul_(factor))


def _change_element(number: float) -> Callable[[Training], object]:
    return lambda training: _change_grads(training, lambda grad: grad.view(-1)[:1].fill_(number))


def _change_grads(training: Training, change: Callable[[torch.Tensor], object]) -> None:
    def change_all() -> None:
        for param in training.model.parameters():
            if param.grad is not None:
                change(param.grad)

    training.change_grads = change_all


def _restore_grads(training: Training) -> None:
    training.change_grads = None


def _multiply_rates(factor: float) -> Callable[[Training], object]:
    def multiply(training: Training) -> None:
        training.rates = [rate * factor for rate in training.rates]

    return multiply


def _set(name: str, setting: object) -> Callable[[Training], object]:
    return lambda training: setattr(training, name, setting)


FAULTS = (
    Fault("gradients x 1,000", 1, _scale_grads(1e3), _restore_grads),
    Fault("an element of each gradient is NaN", 1, _change_element(float("nan")), _restore_grads),
    Fault("an element of each gradient is 1e8", 1, _change_element(1e8), _restore_grads),
    Fault("loss summed in place of its mean", 5, _scale_grads(256.0), _restore_grads),
    Fault("batches of one token", 5, _set("all_tokens", 10), _set("all_tokens", None)),
    Fault("batches with shuffled targets", 5, _set("shuffles", True), _set("shuffles", False)),
    Fault("gradients of the wrong sign, x 30", 5, _scale_grads(-30.0), _restore_grads),
    Fault("rates x 100", 1, _multiply_rates(100), _multiply_rates(1 / 100)),
    Fault("a layer's weights x 30", 1, scale_weight(WIDE, 30.0), do_nothing),
    Fault("an attention logit explodes", 5, explode, _set("term", None)),
)


class Result(NamedTuple):
    """Result of a training: the final loss, and the number of actions."""

    loss: float
    actions: int


class Task(NamedTuple):
    """Training to run; `fault` is an index of `FAULTS`."""

    seed: int
    kind: str
    action: str | None
    fault: int | None = None


def run(task: Task) -> Result:
    """Run a training; without an action, each step is taken."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", NumericsWarning)
    # A function that returns None takes each step.
    spikes = Spikes((lambda warning: None) if task.action is None else task.action)
    training = Training(task.seed, task.kind, spikes=spikes)
    training.begin()
    # Each training ends after as many steps that count.
    while training.step < min(LONGEST, STEPS + sum(len(event.steps) for event in spikes.actions)):
        fault_age = training.step - FAULT_STEP
        if task.fault is not None and fault_age in (0, FAULTS[task.fault].steps):
            fault = FAULTS[task.fault]
            (fault.begin if fault_age == 0 else fault.end)(training)
        training.take_judged_step()
    return Result(training.evaluate(), len(spikes.actions))


def measure_cost(shape: tuple[int, ...], steps: int) -> list[float]:
    """Return the least times of a step of 20 parameters in seconds of the thread, interleaved.

    They are those of a plain step, of a clipped one and of a judged one.
    """
    torch.manual_seed(0)
    spikes = Spikes("skip")
    every_options: list[dict[str, Any]] = [{}, {"clip_grad_norm": 1.0}, {"spikes": spikes}]
    optimizers: list[Any] = []
    for options in every_options:
        params = [torch.nn.Parameter(torch.randn(shape)) for _ in range(20)]
        for param in params:
            param.grad = torch.randn(shape)
        optimizers.append(optim.AdamW(params, 1e-3, **options))
    times = [[math.inf] for _ in optimizers]
    for _ in range(25):
        for optimizer, optimizer_times in zip(optimizers, times, strict=True):
            start = time.thread_time()
            for _ in range(steps):
                if optimizer is optimizers[-1]:
                    spikes.log_loss(1.0)
                optimizer.step()
            optimizer_times.append((time.thread_time() - start) / steps)
    return [min(optimizer_times) for optimizer_times in times]


def print_cost() -> None:
    """Print the table of times."""
    torch.set_num_threads(1)
    print(
        "| elements | a plain step, us | with `clip_grad_norm` | with `spikes` |\n|---|---|---|---|"
    )
    for shape, steps in (((8, 8), 200), ((64, 64), 100), ((256, 256), 20), ((512, 512), 5)):
        plain, clipped, judged = measure_cost(shape, steps)
        row = f"{20 * math.prod(shape):,} | {1e6 * plain:,.0f}"
        print(f"| {row} | {clipped / plain:.2f} x | {judged / plain:.2f} x |")


def main() -> None:
    """Run all, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=1, help="the seeds of each fault")
    parser.add_argument("--jobs", type=int, default=2, help="the number of processes")
    parser.add_argument("--tuned-on", action="store_true", help="the seeds of the thresholds")
    parser.add_argument("--cost", action="store_true", help="times of judged steps alone")
    arguments = parser.parse_args()
    if arguments.cost:
        return print_cost()
    seeds = list(TUNED_ON if arguments.tuned_on else SEEDS)
    clean_tasks = [Task(seed, kind, "rollback") for kind in CLEAN for seed in seeds]
    fault_tasks = [
        Task(seed, "adamw", action, index)
        for index in range(len(FAULTS))
        for action in ACTIONS
        for seed in seeds[: arguments.seeds]
    ]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        results = dict(zip([*clean_tasks, *fault_tasks],
                           pool.map(run, [*clean_tasks, *fault_tasks]), strict=True))  # fmt: skip
    losses = [results[Task(seed, "adamw", "rollback")].loss for seed in seeds]
    count = sum(results[task].actions > 0 for task in clean_tasks)
    print(f"Without a fault: final losses from {min(losses):.3f} to {max(losses):.3f};", end=" ")
    print(f"actions in {count} of {len(clean_tasks)} trainings; seeds {seeds}.\n")
    print_table(results, fault_tasks, max(losses))


def print_table(results: Mapping[Task, Result], tasks: Sequence[Task], largest_loss: float) -> None:
    """Print the worst final loss of each fault and action, and whether all were saved."""
    print("| fault | steps | no action | skip | rollback |\n|---|---|---|---|---|")
    saved_counts = dict.fromkeys(ACTIONS, 0)
    for index, fault in enumerate(FAULTS):
        cells: list[str] = []
        for action in ACTIONS:
            losses = [results[task].loss for task in tasks if task[2:] == (action, index)]
            worst_loss = max(math.inf if math.isnan(loss) else loss for loss in losses)
            saved_counts[action] += worst_loss <= largest_loss
            cells.append(f"{worst_loss:.3f}{'' if worst_loss <= largest_loss else ' (lost)'}")
        print(f"| {fault.name} | {fault.steps} | {' | '.join(cells)} |")
    counts = " | ".join(str(saved_counts[action]) for action in ACTIONS)
    print(f"| saved, of {len(FAULTS)} | | {counts} |")


if __name__ == "__main__":
    main()
