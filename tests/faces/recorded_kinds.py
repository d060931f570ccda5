"""Kinds of objects that users pickle: how each is made, and what it does when it goes on.

`tools/record_objects.py` records those that are added.
"""

from __future__ import annotations

import math
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import thalweg
from thalweg import IndexedSlices, Variable, errors, optim
from thalweg._base.static_shape import Shape
from thalweg._cli.registry import applied, by_class, by_rule
from thalweg.distribute import ReduceOp
from thalweg.keras import optimizers as keras
from thalweg.keras.optimizers import schedules
from thalweg.openseq2seq.optimizers import lr_policies
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper
from thalweg.optim import tensorflow
from thalweg.rules import RULES
from thalweg.rules.torch import TORCH_RULES
from thalweg.v1 import train
from thalweg.v1.contrib import opt as contrib
from thalweg.v1.train import experimental

SHAPES = ((3,), (2, 2))
STEPS = 2


class Kind(NamedTuple):
    """A function that builds an object, and one that describes it after another step."""

    make: Callable[[], Any]
    tell: Callable[[Any], Any]


class Training(NamedTuple):
    """An optimizer after some steps of its own, and how it takes another.

    Attributes:
        make: The optimizer, given the variables.
        step: Takes the step of a number.
        dtype: That of the variables.
        variable: Makes one of a tensor and a name.
    """

    make: Callable[[list[Any]], Any]
    step: Callable[[Any, list[Any], int], Any]
    dtype: torch.dtype = torch.float32
    variable: Callable[[torch.Tensor, str], Any] = Variable

    def begun(self, steps: int = STEPS) -> tuple[Any, list[Any]]:
        """Return the optimizer and its variables, after some steps."""
        values = (torch.arange(1.0, 1 + math.prod(shape)).reshape(shape) / 4 for shape in SHAPES)
        params = [self.variable(start.to(self.dtype), "ab"[k]) for k, start in enumerate(values)]
        optimizer = self.make(params)
        for step in range(steps):
            self.step(optimizer, params, step)
        return optimizer, params

    def gone_on(self, trained: tuple[Any, list[Any]]) -> Any:
        """Return the variables and the state after one more step."""
        self.step(*trained, STEPS)
        return [*trained[1], trained[0].state_dict()]

    def loaded(self, state: Any) -> tuple[Any, list[Any]]:
        """Return another optimizer, with a recorded state and variables."""
        optimizer, params = self.begun(0)
        with torch.no_grad():
            for var, value in zip(params, state["variables"], strict=True):
                var.copy_(value)
        args = (params,) if not isinstance(optimizer, torch.optim.Optimizer) else ()
        optimizer.load_state_dict(state["state"], *args)
        return optimizer, params


def gradient(var: torch.Tensor, step: int) -> torch.Tensor:
    """Return another gradient for each step."""
    count = torch.arange(var.numel(), dtype=torch.float32, device=var.device).reshape(var.shape)
    return torch.cos(count * 0.7 + step).to(var.dtype)


def by_pairs(optimizer: Any, params: list[Any], step: int) -> None:
    applied(optimizer)([(gradient(var, step), var) for var in params])


def by_grad(optimizer: Any, params: list[Any], step: int) -> None:
    for var in params:
        var.grad = gradient(var, step)
    optimizer.step()


def by_rows(optimizer: Any, params: list[Any], step: int) -> None:
    for var in params:
        rows = gradient(var[:1], step)
        var.grad = torch.sparse_coo_tensor(
            torch.ones(1, 1, dtype=torch.int64, device=var.device),
            rows,
            var.shape,
            device=var.device,
            check_invariants=True,
        )
    optimizer.step()


def in_backward(optimizer: Any, params: list[Any], step: int) -> None:
    torch.stack([(var * gradient(var, step)).sum() for var in params]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def parameter(value: torch.Tensor, name: str) -> Any:
    return torch.nn.Parameter(value)


def of_torch(make: Any, step: Any = by_grad, dtype: torch.dtype = torch.float32, **options: Any):
    if make is optim.AdafactorHF:  # Its relative steps have no rate.
        options = {"relative_step": False, **options}
    return Training(lambda params: make(params, lr=0.1, **options), step, dtype, parameter)


def of_pairs(make: Any, dtype: torch.dtype = torch.float32) -> Training:
    return Training(lambda params: make(), by_pairs, dtype)


def averaging(params: list[Any]) -> Any:
    return contrib.MovingAverageOptimizer(train.AdamOptimizer(0.1), 0.5)


def of_loss(optimizer: Any, params: list[Any], step: int) -> None:
    optimizer.minimize(
        lambda: sum((var.float() * gradient(var, step).float()).sum() for var in params),
        var_list=params,
    )


def _named() -> dict[str, Training]:
    """Return classes of Keras, TensorFlow 1 and OpenSeq2Seq, by rule and by class."""
    entries = {
        name: entry for name, entry in {**by_class(), **by_rule()}.items() if name != "AdagradDA"
    }
    return {
        f"named-{name.replace(':', '-')}": of_pairs(lambda entry=entry: entry.make(0.1))
        for name, entry in entries.items()
    }


def _of_optim() -> dict[str, Training]:
    """Return `thalweg.optim` and `thalweg.optim.tensorflow` with each of their options."""
    half = torch.bfloat16
    options_of: dict[str, dict[str, Any]] = {
        "clip_norm": {"clip_grad_norm": 0.5},
        "clip_value": {"clip_grad_value": 0.5},
        "ema": {"ema_decay": 0.9},
        "state_dtype": {"state_dtype": torch.float64},
        "accumulate": {"accumulate": 2},
        "fused_unscale": {"fused_unscale": True},
    }
    trainings: dict[str, Training] = {
        "optim-SGD-momentum": of_torch(optim.SGD, momentum=0.9, nesterov=True),
        "optim-RMSprop-all": of_torch(optim.RMSprop, momentum=0.9, centered=True),
        "optim-Adam-amsgrad": of_torch(optim.Adam, amsgrad=True, weight_decay=0.1),
        "optim-SparseAdam": of_torch(optim.SparseAdam, by_rows),
        "optim-RuleOptimizer": Training(
            lambda params: optim.RuleOptimizer(params, by_rule()["Adagrad"].rule), by_grad,
            torch.float32, parameter,
        ),
        "optim-AdamW-half": of_torch(optim.AdamW, dtype=half, masters=True, ema_decay=0.9),
        "optim-AdamW-wide_sums": of_torch(
            optim.AdamW, dtype=half, masters=True, accumulate=2, wide_sums=True
        ),
        "optim-AdamW-in_backward": of_torch(optim.AdamW, in_backward, in_backward=True),
        "optim-AdamW-flat": of_torch(optim.AdamW, in_backward, gradients="flat"),
        "tensorflow-Momentum-nesterov": of_torch(tensorflow.Momentum, nesterov=True),
        "tensorflow-RMSprop-all": of_torch(tensorflow.RMSprop, momentum=0.9, centered=True),
        "tensorflow-Adam-amsgrad": of_torch(tensorflow.Adam, amsgrad=True),
        "tensorflow-Ftrl-power": of_torch(tensorflow.Ftrl, learning_rate_power=-0.75),
        "tensorflow-Adam-half": of_torch(tensorflow.Adam, dtype=half, masters=True),
    }  # fmt: skip
    for name, options in options_of.items():
        trainings[f"optim-Adam-{name}"] = of_torch(optim.Adam, **options)
        trainings[f"tensorflow-Adam-{name}"] = of_torch(tensorflow.Adam, **options)
    for name in ("ASGD", "SGD", "Adadelta", "Adagrad", "Adam", "Adamax", "NAdam", "RAdam",
                 "RMSprop", "Rprop"):  # fmt: skip
        trainings[f"optim-{name}"] = of_torch(getattr(optim, name))
    for name in tensorflow.__all__:
        trainings[f"tensorflow-{name}"] = of_torch(getattr(tensorflow, name))
    return trainings


TRAININGS: dict[str, Training] = {
    **_named(),
    **_of_optim(),
    "keras-clipnorm": of_pairs(lambda: keras.Adam(0.1, clipnorm=0.5)),
    "keras-global_clipnorm": of_pairs(lambda: keras.SGD(0.1, 0.9, global_clipnorm=0.5)),
    "keras-decay": of_pairs(lambda: keras.Adagrad(0.1, decay=0.1, clipvalue=0.5)),
    "keras-schedule": of_pairs(
        lambda: keras.Adam(schedules.ExponentialDecay(0.1, 3, 0.5, staircase=True))
    ),
    "keras-half": of_pairs(lambda: keras.Adam(0.1), torch.bfloat16),
    "keras-RuleOptimizer": of_pairs(lambda: keras.RuleOptimizer(by_rule()["Adamax"].rule)),
    "v1-MovingAverageOptimizer": Training(averaging, by_pairs),
    "v1-VariableClippingOptimizer": Training(
        lambda params: contrib.VariableClippingOptimizer(
            train.GradientDescentOptimizer(0.1), {params[0]: [0]}, 1.0
        ),
        by_pairs,
    ),
    "v1-extended": of_pairs(
        lambda: contrib.extend_with_decoupled_weight_decay(train.AdagradOptimizer)(
            0.01, learning_rate=0.1
        )
    ),
    "v1-loss-scale": Training(
        lambda params: experimental.MixedPrecisionLossScaleOptimizer(
            train.AdamOptimizer(0.1), experimental.DynamicLossScale(8.0, 2)
        ),
        of_loss,
    ),
    "openseq2seq-mixed": Training(
        lambda params: MixedPrecisionOptimizerWrapper(
            train.AdamOptimizer(0.1), AutomaticLossScaler("Backoff", {"scale_max": 16.0})
        ),
        of_loss,
        torch.float16,
    ),
}


def _errors() -> list[BaseException]:
    """Return one error of each class."""
    public = (cls for cls in vars(errors).values() if isinstance(cls, type))
    return [cls("what", "more") for cls in public if issubclass(cls, Exception)]


def _about_error(error: Any) -> Any:
    return [type(error).__name__, *error.args, str(error), [c.__name__ for c in type(error).mro()]]


def _about_variable(var: Any) -> Any:
    var.assign_add(torch.ones_like(var))
    return [var.name, str(var.dtype), var.trainable, var]


def _scheduled(schedule: Any) -> Any:
    return [schedule.get_config(), [float(schedule(step)) for step in (0, 1, 5, 50)]]


def _scaler(algorithm: str) -> AutomaticLossScaler:
    scaler = AutomaticLossScaler(algorithm)
    for largest in (1.0, float("inf"), 0.01, 3.0):
        scaler.update_op(False, largest)
    return scaler


def _scaled(scaler: Any) -> Any:
    scaler.update_op(False, float("inf"))
    return scaler.state_dict()


def _averages() -> Any:
    var = Variable([1.0, 2.0], name="w")
    averages = train.ExponentialMovingAverage(0.5, zero_debias=False)
    averages.apply([var])
    return averages, var


def _averaged(pair: Any) -> Any:
    averages, var = pair
    var.assign([3.0, 5.0])
    averages.apply([var])
    return averages.average(var)


def _on_schedule() -> Any:
    optimizer, params = TRAININGS["optim-SGD-momentum"].begun()
    return optimizer, params, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def _rated(all_three: Any) -> Any:
    optimizer, params, rates = all_three
    for step in range(3):
        by_grad(optimizer, params, step)
        rates.step()
    return [rates.get_last_lr(), params]


def _named_parameters() -> Any:
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        for var in thalweg.named_variables(model):
            var.fill_(0.5)
    return model


OBJECTS: dict[str, Kind] = {
    **{name: Kind(training.begun, training.gone_on) for name, training in TRAININGS.items()},
    "variable": Kind(
        lambda: Variable([1.0, 2.0], name="w", constraint=torch.nn.functional.relu), _about_variable
    ),
    "variable-half": Kind(
        lambda: Variable([1.0], dtype="bfloat16", trainable=False), _about_variable
    ),
    "variable-of-state": Kind(
        lambda: TRAININGS["keras-half"].begun()[0].iterations, lambda x: [x.name, x]
    ),
    "parameters": Kind(
        _named_parameters, lambda model: [[thalweg.name_of(p), p] for p in model.parameters()]
    ),
    "indexed_slices": Kind(
        lambda: IndexedSlices(torch.ones(2, 3), torch.tensor([0, 2]), (4, 3)),
        lambda x: [x.values, x.indices, x.dense_shape, thalweg.IndexedSlices.__name__],
    ),
    "errors": Kind(_errors, lambda raised: [_about_error(error) for error in raised]),
    "rules": Kind(
        lambda: [*RULES, *TORCH_RULES],
        lambda rules: [[rule.name, len(rule.hypers), len(rule.slots)] for rule in rules],
    ),
    "shapes": Kind(
        lambda: [Shape([2, 3]), Shape([None, 3])],
        lambda shapes: [[repr(shape), shape.merge_with([2, None]).as_list()] for shape in shapes],
    ),
    "choices": Kind(
        lambda: [
            *thalweg.VariableAggregation,
            *thalweg.VariableSynchronization,
            *ReduceOp,
        ],
        lambda dtypes: [str(dtype) for dtype in dtypes],
    ),
    "schedule-exponential": Kind(lambda: schedules.ExponentialDecay(0.1, 3, 0.5), _scheduled),
    "schedule-inverse": Kind(lambda: schedules.InverseTimeDecay(0.1, 3, 0.5), _scheduled),
    "schedule-polynomial": Kind(
        lambda: schedules.PolynomialDecay(0.1, 9, power=2.0, cycle=True), _scheduled
    ),
    "schedule-cosine": Kind(
        lambda: schedules.CosineDecay(0.1, 9, warmup_target=0.3, warmup_steps=2), _scheduled
    ),
    "schedule-restarts": Kind(lambda: schedules.CosineDecayRestarts(0.1, 9), _scheduled),
    "schedule-piecewise": Kind(
        lambda: schedules.PiecewiseConstantDecay([3, 9], [1.0, 0.5, 0.1]), _scheduled
    ),
    "policies": Kind(
        lambda: [lr_policies.fixed_lr, lr_policies.exp_decay, lr_policies.cosine_decay],
        lambda classes: [cls.__name__ for cls in classes],
    ),
    "scaler-backoff": Kind(lambda: _scaler("Backoff"), _scaled),
    "scaler-logmax": Kind(lambda: _scaler("LogMax"), _scaled),
    "loss-scale-fixed": Kind(
        lambda: experimental.FixedLossScale(8.0), lambda scale: [scale.get_config(), float(scale())]
    ),
    "loss-scale-dynamic": Kind(
        lambda: experimental.DynamicLossScale(8.0, 2),
        lambda scale: [scale.update([torch.ones(1)]), scale.get_config(), float(scale())][1:],
    ),
    "averages": Kind(_averages, _averaged),
    "lr_scheduler": Kind(_on_schedule, _rated),
}


def numbers(value: Any) -> Any:
    """Return a told value as JSON has it."""
    if isinstance(value, torch.Tensor):
        return value.detach().double().tolist() if value.numel() else []
    if isinstance(value, dict):
        return {str(key): numbers(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, torch.Size)):
        return [numbers(part) for part in value]
    if isinstance(value, np.generic):
        return value.item()
    is_primitive = value is None or isinstance(value, (bool, int, float, str))
    return value if is_primitive else f"{type(value).__name__}"


def contents(path: Path) -> dict[str, bytes]:
    """Return the recorded members by their names, "KIND/MEMBER"."""
    with tarfile.open(path) as file:
        return {member.name: file.extractfile(member).read() for member in file}  # pyright: ignore[reportOptionalMemberAccess]
