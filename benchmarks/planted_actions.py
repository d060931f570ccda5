"""Faults planted in single steps of small trainings, to measure what `Spikes` with actions saves.

    PYTHONPATH=src python benchmarks/planted_actions.py              the table of docs/spikes.md
    PYTHONPATH=src python benchmarks/planted_actions.py --seeds 2    two seeds of each fault

Ten faults of one to five steps in the trainings of `planted.py`, each without an action, with
"skip" and with "rollback", and twenty trainings without a fault. All end after as many steps that
were neither left out nor taken back. A training is saved if its final
loss, over examples that are the same for all, is at most the largest one of the trainings without a
fault. Thresholds were set on `planted.TUNED_ON`.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from planted import CLEAN, SEEDS, TUNED_ON, WIDE, Training

from thalweg.errors import NumericsWarning
from thalweg.optim.diagnostics import Spikes

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


def _change_element(value: float) -> Callable[[Training], object]:
    return lambda training: _change_grads(training, lambda grad: grad.view(-1)[:1].fill_(value))


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


def _scale_weight(name: str, factor: float) -> Callable[[Training], object]:
    def scale(training: Training) -> None:
        with torch.no_grad():
            dict(training.model.named_parameters())[name].mul_(factor)

    return scale


def _set(name: str, value: object) -> Callable[[Training], object]:
    return lambda training: setattr(training, name, value)


def _nothing(training: Training) -> None:
    pass


def _explode(training: Training) -> None:
    layer: Any = training.model.layers[0]
    training.term = lambda: -0.1 * (layer.queries.weight @ layer.keys.weight.T).square().sum()


FAULTS = (
    Fault("gradients x 1,000", 1, _scale_grads(1e3), _restore_grads),
    Fault("an element of each gradient is NaN", 1, _change_element(float("nan")), _restore_grads),
    Fault("an element of each gradient is 1e8", 1, _change_element(1e8), _restore_grads),
    Fault("loss summed in place of its mean", 5, _scale_grads(256.0), _restore_grads),
    Fault("batches of one token", 5, _set("all_tokens", 10), _set("all_tokens", None)),
    Fault("batches with shuffled targets", 5, _set("shuffles", True), _set("shuffles", False)),
    Fault("gradients of the wrong sign, x 30", 5, _scale_grads(-30.0), _restore_grads),
    Fault("rates x 100", 1, _multiply_rates(100), _multiply_rates(1 / 100)),
    Fault("a layer's weights x 30", 1, _scale_weight(WIDE, 30.0), _nothing),
    Fault("an attention logit explodes", 5, _explode, _set("term", None)),
)


class Result(NamedTuple):
    """Result of a training: the final loss, and the number of actions."""

    loss: float
    actions: int


def run(seed: int, kind: str, action: str | None, fault: Fault | None = None) -> Result:
    """Run a training; without an action, each step is taken."""
    # A function that returns None takes each step.
    spikes = Spikes((lambda warning: None) if action is None else action)
    training = Training(seed, kind, spikes=spikes)
    training.begin()
    # Each training ends after as many steps that count.
    while training.step < min(LONGEST, STEPS + sum(len(x.steps) for x in spikes.actions)):
        at = training.step - FAULT_STEP
        if fault is not None and at in (0, fault.steps):
            (fault.begin if at == 0 else fault.end)(training)
        training.take_judged_step()
    return Result(training.evaluate(), len(spikes.actions))


def main() -> None:
    """Run all, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=1, help="the seeds of each fault")
    parser.add_argument("--tuned-on", action="store_true", help="the seeds of the thresholds")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", NumericsWarning)
    seeds = list(TUNED_ON if arguments.tuned_on else SEEDS)
    clean = {(kind, seed): run(seed, kind, "rollback") for kind in CLEAN for seed in seeds}
    losses = [clean["adamw", seed].loss for seed in seeds]
    count = sum(result.actions > 0 for result in clean.values())
    print(f"Without a fault: final losses from {min(losses):.3f} to {max(losses):.3f};", end=" ")
    print(f"actions in {count} of {len(clean)} trainings.\n")
    print("| fault | steps | no action | skip | rollback |\n|---|---|---|---|---|", flush=True)
    saved = dict.fromkeys(ACTIONS, 0)
    for fault in FAULTS:
        cells: list[str] = []
        for action in ACTIONS:
            results = [run(seed, "adamw", action, fault) for seed in seeds[: arguments.seeds]]
            is_saved = all(result.loss <= max(losses) for result in results)
            saved[action] += is_saved
            worst = max(math.inf if math.isnan(result.loss) else result.loss for result in results)
            cells.append(f"{worst:.3f}{'' if is_saved else ' (lost)'}")
        print(f"| {fault.name} | {fault.steps} | {' | '.join(cells)} |", flush=True)
    print(f"| saved, of {len(FAULTS)} | | {' | '.join(str(saved[x]) for x in ACTIONS)} |")


if __name__ == "__main__":
    main()
