"""Trainings that stop and go on: what is saved of them, and the program that goes on elsewhere.

Run as `python tests/support/resumed.py FOLDER` it loads what `saved.pt` holds in that folder, takes
the steps that are left, and writes what has become of it to `ended.pt`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import openseq2seq_steps
from thalweg import IndexedSlices, Variable
from thalweg._cli.registry import RegistryEntry, by_class, by_rule, named
from thalweg.keras.optimizers import Nadam
from thalweg.keras.optimizers import Optimizer as KerasOptimizer
from thalweg.v1 import train
from thalweg.v1.contrib.opt import (
    MovingAverageOptimizer,
    VariableClippingOptimizer,
    extend_with_decoupled_weight_decay,
)

STEPS = 7
CHECKPOINT, FINAL = "saved.pt", "ended.pt"
SHAPES = {"w": (19,), "b": (2, 3), "h": (5,), "table": (6, 3)}
DTYPES = {"w": torch.float32, "b": torch.float64, "h": torch.bfloat16, "table": torch.float32}


def normal(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def flat(state: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in state.items():
        if isinstance(value, dict):
            yield from flat(value, f"{path}{key}/")
        else:
            yield f"{path}{key}", value


class OfRule:
    """A training by one rule, in Keras or `thalweg.v1`: three dense variables and a table.

    The learning rate depends on the number of the step wherever it can.
    """

    def __init__(self, name: str) -> None:
        self.own = {
            key: Variable(normal(shape, 1).to(DTYPES[key]), key) for key, shape in SHAPES.items()
        }
        self.make(named(name))

    def make(self, entry: RegistryEntry) -> None:
        self.counter: Any = Variable(torch.zeros((), dtype=torch.int64), trainable=False)
        if issubclass(entry.cls, KerasOptimizer):
            is_nadam = issubclass(entry.cls, Nadam)
            self.optimizer = entry.make(0.1, **({} if is_nadam else {"decay": 0.25}))
        elif entry.cls.CALLABLES:
            self.optimizer = entry.make(lambda: 0.1 / (1 + int(self.counter)))
        else:
            self.optimizer = entry.make(0.1)
        if isinstance(self.optimizer, train.AdagradDAOptimizer):
            self.counter = self.optimizer._global_step

    def step(self, number: int) -> None:
        pairs: list[Any] = [
            (normal(SHAPES[key], 10 * number + place).to(var.dtype), var)
            for place, (key, var) in enumerate(self.own.items())
        ]
        rows = torch.tensor([number % 6, 5, 1, 5])
        pairs[-1] = (IndexedSlices(pairs[-1][0][:4], rows, SHAPES["table"]), self.own["table"])
        if isinstance(self.optimizer, KerasOptimizer):
            self.optimizer.apply_gradients(pairs)
        else:
            self.optimizer.apply_gradients(pairs, self.counter)

    def variables(self) -> dict[str, Tensor]:
        return {**self.own, "counter": self.counter}

    def state(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load(self, state: dict[str, Any], number: int) -> None:
        if isinstance(self.optimizer, KerasOptimizer) and number % 2 == 0:
            self.optimizer.load_state_dict(state)  # slots wait for their variables
        else:
            self.optimizer.load_state_dict(state, list(self.own.values()))


class Around(OfRule):
    """A training by an optimizer of `thalweg.v1` around another, or derived from another.

    Args:
        make: Returns the optimizer for a learning rate and variables.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self.wrap = make
        super().__init__("HeavyBall")

    def make(self, entry: RegistryEntry) -> None:
        self.counter = Variable(torch.zeros((), dtype=torch.int64), trainable=False)
        self.optimizer = self.wrap(lambda: 0.1 / (1 + int(self.counter)), self.own)


WRAPPERS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "averages of Adam": lambda rate, _: MovingAverageOptimizer(train.AdamOptimizer(rate), 0.5),
    "averages without slots": lambda rate, _: MovingAverageOptimizer(
        train.GradientDescentOptimizer(rate), 0.5
    ),
    "Momentum with short rows": lambda rate, variables: VariableClippingOptimizer(
        train.MomentumOptimizer(rate, 0.9), {variables["table"]: [1], variables["w"]: [0]}, 0.5
    ),
    "averages of short rows": lambda rate, variables: MovingAverageOptimizer(
        VariableClippingOptimizer(train.AdagradOptimizer(rate), {variables["table"]: [1]}, 0.5), 0.5
    ),
    "Adagrad with decay": lambda rate, _: extend_with_decoupled_weight_decay(
        train.AdagradOptimizer
    )(0.1, rate),
}


class OfAverages:
    """Variables that go where they like, and their averages."""

    def __init__(self) -> None:
        self.own = {key: Variable(normal(shape, 1), key) for key, shape in SHAPES.items()}
        self.averages = train.ExponentialMovingAverage(0.5)

    def step(self, number: int) -> None:
        for place, var in enumerate(self.own.values()):
            var.assign(normal(tuple(var.shape), 10 * number + place))
        self.averages.apply(self.own.values())

    def variables(self) -> dict[str, Tensor]:
        return dict(self.own)

    def state(self) -> dict[str, Any]:
        return self.averages.state_dict()

    def load(self, state: dict[str, Any], number: int) -> None:
        self.averages.load_state_dict(state, self.own.values())


SCALINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "static": {"loss_scaling": 8.0},
    "Backoff": {
        "loss_scaling": "Backoff",
        "loss_scaling_params": {"scale_max": 64.0, "step_window": 2},
    },
    "LogMax": {"loss_scaling": "LogMax", "loss_scaling_params": {"scale_max": 64.0}},
}
OVERFLOWS = 3  # the number of a run that does, where the scale adapts


class OfLoss:
    """A training by `optimize_loss` of a float16 and a float32 variable."""

    def __init__(self, rule: str, scaling: str, runs: int) -> None:
        options = dict(SCALINGS[scaling])
        if runs > 1:
            options |= {"iter_size": runs, "on_horovod": True}
            options["skip_update_ph"] = lambda: self.number % runs != runs - 1
        self.adapts = isinstance(options.get("loss_scaling"), str)
        self.number = 0
        self.training = openseq2seq_steps.Training(
            rule,
            torch.float16,
            learning_rate_decay_fn=lambda step: 0.1 / (1 + int(step)),
            **options,
        )

    def step(self, number: int) -> None:
        self.number = number
        for place, gradient in enumerate(self.training.gradients.values()):
            gradient.copy_(normal(tuple(gradient.shape), 10 * number + place))
            if self.adapts and number == OVERFLOWS:
                gradient[1] = math.inf
        self.training.step()

    def variables(self) -> dict[str, Tensor]:
        return dict(self.training.own)

    def state(self) -> dict[str, Any]:
        return self.training.step.state_dict()

    def load(self, state: dict[str, Any], number: int) -> None:
        self.training.step.load_state_dict(state)


class OfWrapper(OfLoss):
    """A training by a `MixedPrecisionOptimizerWrapper`, without `optimize_loss` around it."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.number, self.adapts = 0, True
        self.training = openseq2seq_steps.Training(make, torch.bfloat16, **SCALINGS["LogMax"])
        self.optimizer: Any = self.training.step.optimizer

    def state(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load(self, state: dict[str, Any], number: int) -> None:
        self.optimizer.load_state_dict(state, list(self.training.own.values()))


def averages_of_adam(learning_rate: Any) -> Any:
    return MovingAverageOptimizer(train.AdamOptimizer(learning_rate), 0.5)


def _faces() -> dict[str, dict[str, Callable[[], Any]]]:
    rules: dict[str, dict[str, Callable[[], Any]]] = {"keras": {}, "v1": {}}
    for name, entry in by_rule().items():
        face = "keras" if issubclass(entry.cls, KerasOptimizer) else "v1"
        rules[face][name] = partial(OfRule, name)
    losses = {
        f"{rule}, {scaling}, {runs} runs": partial(OfLoss, rule, scaling, runs)
        for rule in openseq2seq_steps.RULES
        for scaling, runs in [*((scaling_name, 1) for scaling_name in SCALINGS), ("Backoff", 2)]
    }
    averaged = partial(OfLoss, averages_of_adam, "Backoff", 1)
    wrappers = {
        "mixed Adam": partial(OfWrapper, lambda learning_rate: train.AdamOptimizer(learning_rate)),
        "mixed averages": partial(OfWrapper, averages_of_adam),
        "averages in a step": averaged,
        "averages of sums in a step": partial(OfLoss, averages_of_adam, "none", 2),
    }
    other_makers = {name: partial(OfRule, name) for name in by_class() if name not in by_rule()}
    wrapper_makers = {name: partial(Around, make) for name, make in WRAPPERS.items()}
    return {
        **rules,
        "other classes of v1": other_makers,
        "wrappers of v1": {**wrapper_makers, "averages": OfAverages},
        "openseq2seq": losses,
        "wrappers of openseq2seq": wrappers,
    }


FACES = _faces()


def copy_everything(training: Any) -> dict[str, Any]:
    copies = {f"variable {key}": var.detach().clone() for key, var in training.variables().items()}
    return {**copies, **dict(flat(training.state()))}


def make_checkpoint(training: Any) -> dict[str, Any]:
    variables = {key: var.detach().clone() for key, var in training.variables().items()}
    return {"variables": variables, "state": training.state()}


def resume_training(make: Callable[..., Any], state: dict[str, Any], number: int) -> dict[str, Any]:
    """Return all results after a new training has loaded a saved one and taken the steps left."""
    training = make()
    with torch.no_grad():
        for key, var in training.variables().items():
            var.copy_(state["variables"][key])
    training.load(state["state"], number)
    for step in range(number, STEPS):
        training.step(step)
    return copy_everything(training)


def main(folder: str) -> None:
    torch.set_num_threads(1)
    saved_stops = torch.load(Path(folder, CHECKPOINT), weights_only=True)
    makers = {name: make for face in FACES.values() for name, make in face.items()}
    final_states = {
        name: [resume_training(makers[name], stop, number) for number, stop in enumerate(stops)]
        for name, stops in saved_stops.items()
    }
    torch.save(final_states, Path(folder, FINAL))


if __name__ == "__main__":
    main(*sys.argv[1:])
