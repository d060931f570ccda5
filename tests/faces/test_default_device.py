"""Torch's default device and dtype are the user's: no step, state or file depends on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fresh_process
from recorded_kinds import TRAININGS, Training, by_grad, of_torch, parameter
from thalweg import checkpoint, optim
from thalweg.keras.optimizers import schedules
from thalweg.openseq2seq.optimizers import lr_policies
from thalweg.optim import tensorflow
from thalweg.optim.rule_names import KINDS
from thalweg.v1 import train

# Rows and columns to reduce, a vector, a number, and a matrix of more than one tile of a sweep.
SHAPES = ((64, 48), (6,), (), (300, 70))
# Slots of these are allocated in huge pages.
LARGE_SHAPES = ((1024, 520), (70,))
# Of those, the ones that run by default.
LARGE = ("optim-AdamW", "optim-Adafactor", "named-Adam", "named-v1-AdamOptimizer", "option-flat")
MATRICES = {"Muon", "NorMuon", "AdaMuon", "MuonH", "SOAP", "KLSOAP"}
HALF = torch.bfloat16
OPTIONS: dict[str, dict[str, Any]] = {
    "clip-norm": {"clip_grad_norm": 0.5},
    "clip-value": {"clip_grad_value": 0.5},
    "average": {"ema_decay": 0.9},
    "lookahead": {"lookahead": 2},
    "accumulate": {"accumulate": 2},
    "eight-bit": {"state_storage": "8bit"},
    "row-floor": {"row_floor": True},
    "trust-ratio": {"trust_ratio": True},
    "cautious": {"cautious": True},
    "cautious-decay": {"cautious_decay": True},
    "diagnostics": {"diagnostics": 1},
    "sphere": {"sphere": True},
    "radial-brake": {"radial_brake": True},
    "flat": {"gradients": "flat"},
}
HALF_OPTIONS: dict[str, dict[str, Any]] = {
    "masters": {"masters": True},
    "split": {"weights": "split"},
    "stochastic": {"round": "stochastic"},
    "wide-sums": {"masters": True, "accumulate": 2, "wide_sums": True},
}
DEFAULTS: dict[str, Callable[[], Any]] = {
    "device": lambda: torch.device("meta"),
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype for a `with` block."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(previous)


def replayed(optimizer: Any, variables: list[Any], step: int) -> None:
    """Take steps with new gradients, and then with the same ones again."""
    by_grad(optimizer, variables, step)
    optimizer.step()


def with_tensor_rate(variables: list[Any]) -> Any:
    rate = torch.tensor(0.1, dtype=torch.float32, device="cpu")
    return optim.AdamW(variables, lr=rate)


def of_groups(variables: list[Any]) -> Any:
    """Make an optimizer with a rule of matrices and one of everything else."""
    matrices = [var for var in variables if var.dim() > 1]
    vectors = [var for var in variables if var.dim() < 2]
    return optim.Mixed(
        [
            {"params": matrices, "rule": "Muon", "lr": 0.1},
            {"params": vectors, "rule": "AdamW", "lr": 0.1},
        ]
    )


def trainings() -> dict[str, Training]:
    """Return every public class, and a class with each option."""
    trainings = dict(TRAININGS)
    for name in KINDS:
        if name != "SparseAdam":
            trainings[f"optim-{name}"] = of_torch(getattr(optim, name), replayed)
    for name in tensorflow.__all__:
        trainings[f"tensorflow-{name}"] = of_torch(getattr(tensorflow, name), replayed)
    for name, options in OPTIONS.items():
        trainings[f"option-{name}"] = of_torch(optim.AdamW, replayed, **options)
    for name, options in HALF_OPTIONS.items():
        trainings[f"half-{name}"] = of_torch(optim.AdamW, replayed, HALF, **options)
    trainings["optim-Mixed"] = Training(of_groups, replayed, torch.float32, parameter)
    trainings["option-tensor-rate"] = Training(with_tensor_rate, replayed, torch.float32, parameter)
    trainings["half-Adafactor"] = of_torch(optim.Adafactor, replayed, HALF)
    return trainings


TABLE = trainings()
# Whose numbers follow the default dtype in torch, too.
DEVICE_FOLLOWERS = {"optim-ASGD", "optim-NAdam"}
DTYPES = ("float64", "bfloat16")
# Those that run by default under every default; the others under another device alone, or slowly.
ALWAYS = ("optim-LaProp", "optim-ScheduleFreeAdamW", "optim-Adafactor", "named-v1-AdamOptimizer")


def shapes_of(name: str) -> tuple[tuple[int, ...], ...]:
    if name in {f"optim-{matrix}" for matrix in MATRICES}:
        return SHAPES[:1]
    if "Sparse" in name:
        return SHAPES[:2]
    return tuple(shape for shape in SHAPES if len(shape) == 2) if "row-floor" in name else SHAPES


def make_variables(training: Training, shapes: tuple[tuple[int, ...], ...]) -> list[Any]:
    values = [torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape) for shape in shapes]
    return [
        training.variable(value.to(training.dtype), f"v{place}")
        for place, value in enumerate(values)
    ]


def take_steps(
    training: Training, shapes: tuple[tuple[int, ...], ...], default: Callable[[], Any]
) -> dict[str, Tensor]:
    """Return variables and state after steps under a default of torch's, a load between them."""
    variables, twins = make_variables(training, shapes), make_variables(training, shapes)
    with default():
        optimizer = training.make(variables)
        for step in range(4):
            training.step(optimizer, variables, step)
        state = optimizer.state_dict()
        new_opt = training.make(twins)
        if isinstance(new_opt, torch.optim.Optimizer):
            new_opt.load_state_dict(state)
        else:
            training.step(new_opt, twins, 0)  # makes what is loaded
            new_opt.load_state_dict(state, twins)
        for source, target in zip(variables, twins, strict=True):
            target.data.copy_(source.data)
        for step in range(4, 6):
            training.step(new_opt, twins, step)
    return dict(tensors_of([twins, new_opt.state_dict()], ""))


def tensors_of(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors and numbers of a state with their places in it."""
    if isinstance(value, Tensor):
        yield name, value.detach()
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_of(item, f"{name}/{key}")
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from tensors_of(item, f"{name}/{place}")
    elif isinstance(value, int | float):
        yield name, torch.tensor(value, dtype=torch.float64)


@cache
def usual(name: str, is_large: bool) -> dict[str, Tensor]:
    return take_steps(TABLE[name], LARGE_SHAPES if is_large else shapes_of(name), nullcontext)


def differing(expected: dict[str, Tensor], actual: dict[str, Tensor]) -> list[str]:
    """Return the places of what is not on the CPU, or differs in a bit."""
    return [
        name
        for name in {**expected, **actual}
        if name not in expected or name not in actual or actual[name].device.type != "cpu"
        # Torch keeps `step` in float64 if that is the default dtype.
        or not torch.equal(expected[name].double(), actual[name].double())
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "default"),
    [
        pytest.param(
            name,
            default,
            id=f"{name}-{default}",
            marks=[] if default == "device" or name in ALWAYS else [pytest.mark.slow],
        )
        for place, name in enumerate(TABLE)
        for default in (DEFAULTS if name in ALWAYS else ("device", DTYPES[place % 2]))
        if name not in DEVICE_FOLLOWERS or default == "device"
    ],
)
@pytest.mark.one_in(7)
def test_steps_do_not_depend_on_defaults_of_torch(name: str, default: str) -> None:
    actual = take_steps(TABLE[name], shapes_of(name), DEFAULTS[default])
    assert differing(usual(name, is_large=False), actual) == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in LARGE else [pytest.mark.slow])
        for place, name in enumerate(TABLE)
        if "SOAP" not in name and "Sparse" not in name
        # Of classes, which allocate slots by the same functions, every fourth.
        if name in LARGE or name.startswith(("option", "half")) or place % 4 == 0
    ],
)
def test_large_slots_do_not_depend_on_the_default_device(name: str) -> None:
    takes_matrices = {"option-row-floor", *(f"optim-{matrix}" for matrix in MATRICES)}
    shapes = LARGE_SHAPES[:1] if name in takes_matrices else LARGE_SHAPES
    actual = take_steps(TABLE[name], shapes, DEFAULTS["device"])
    assert differing(take_steps(TABLE[name], shapes, nullcontext), actual) == []


@pytest.mark.parametrize("default", ["float64", "bfloat16"])
@pytest.mark.parametrize("name", ["ASGD", "NAdam"])
def test_hyperparameters_follow_the_default_dtype_as_in_torch(name: str, default: str) -> None:
    states: list[dict[str, Any]] = []
    with DEFAULTS[default]():
        for cls in (getattr(torch.optim, name), getattr(optim, name)):
            variables = make_variables(of_torch(cls), SHAPES[:1])
            optimizer = cls(variables, lr=0.1, foreach=False)
            for step in range(5):
                by_grad(optimizer, variables, step)
            states.append(optimizer.state[variables[0]])
    torch_slots, slots_here = ({n: x for n, x in slots.items() if not x.dim()} for slots in states)
    assert len(torch_slots) > 1
    assert {n: (x.dtype, x.item()) for n, x in slots_here.items()} == {
        n: (x.dtype, x.item()) for n, x in torch_slots.items()
    }


@pytest.mark.parametrize("default", DEFAULTS)
@pytest.mark.parametrize("name", ["optim-AdamW", "named-Nadam", "named-v1-AdamOptimizer"])
def test_files_do_not_depend_on_defaults_of_torch(name: str, default: str, tmp_path: Path) -> None:
    training = TABLE[name]
    variables, twins = (make_variables(training, SHAPES) for _ in range(2))
    names = {f"v{place}": var for place, var in enumerate(variables)}
    with DEFAULTS[default]():
        optimizer = training.make(variables)
        training.step(optimizer, variables, 0)
        checkpoint.save(tmp_path / "a", optimizer=optimizer, variables=names)
        new_opt = training.make(twins)
        checkpoint.restore(tmp_path / "a", optimizer=new_opt, variables=dict(zip(names, twins)))
        training.step(new_opt, twins, 1)
        training.step(optimizer, variables, 1)
    expected, actual = (
        [params, opt.state_dict()] for params, opt in ((variables, optimizer), (twins, new_opt))
    )
    assert differing(dict(tensors_of(expected, "")), dict(tensors_of(actual, ""))) == []


RATES: dict[str, Callable[[int], Any]] = {
    "keras-exponential": lambda step: schedules.ExponentialDecay(0.1, 3, 0.5)(step),
    "keras-cosine": lambda step: schedules.CosineDecay(0.1, 9, warmup_target=0.3, warmup_steps=2)(
        step
    ),
    "keras-restarts": lambda step: schedules.CosineDecayRestarts(0.1, 9)(step),
    "keras-polynomial": lambda step: schedules.PolynomialDecay(0.1, 9, power=2.0)(float(step)),
    "keras-inverse": lambda step: schedules.InverseTimeDecay(0.1, 3, 0.5)(step),
    "keras-piecewise": lambda step: schedules.PiecewiseConstantDecay([3.5, 9.0], [1.0, 0.5, 0.1])(
        float(step)
    ),
    "v1-exponential": lambda step: train.exponential_decay(0.1, step, 3, 0.5)(),
    "v1-piecewise": lambda step: train.piecewise_constant(step, [3, 9], [1.0, 0.5, 0.1])(),
    "openseq2seq-polynomial": lambda step: lr_policies.poly_decay(step, 0.1, 20),
    "openseq2seq-exponential": lambda step: lr_policies.exp_decay(step, 0.1, 5, 0.5, True),
}


@pytest.mark.parametrize("default", DEFAULTS)
@pytest.mark.parametrize("name", RATES)
def test_rates_do_not_depend_on_defaults_of_torch(name: str, default: str) -> None:
    def rates() -> list[tuple[float, str]]:
        makers = [RATES[name](step) for step in (0, 1, 4, 30)]
        values = [rate() if callable(rate) else rate for rate in makers]
        return [(float(rate), str(getattr(rate, "dtype", ""))) for rate in values]

    expected = rates()
    with DEFAULTS[default]():
        assert rates() == expected


PROGRAM = """
import sys
import torch
if sys.argv[1] == "meta":
    torch.set_default_device("meta")
else:
    torch.set_default_dtype(getattr(torch, sys.argv[1]))
import numpy as np
from thalweg import Variable, keras, optim
from thalweg.v1 import train

ones = np.ones((64, 48), np.float32)
param = torch.nn.Parameter(torch.from_numpy(ones.copy()))
optimizer = optim.AdamW([param], lr=0.1, clip_grad_norm=1.0)
for _ in range(6):
    param.grad = torch.from_numpy(ones)
    optimizer.step()
print(optimizer.step_cache.rebind_target is not None, param[0, 0].item())
for optimizer in (keras.optimizers.Nadam(0.1), train.AdamOptimizer(0.1)):
    variable = Variable(ones)
    for _ in range(6):
        optimizer.apply_gradients([(ones, variable)])
    print(variable.numpy()[0, 0])
"""


def test_defaults_may_be_set_before_the_package_is_imported() -> None:
    """Tensors allocated once per process, at the first use, are on the CPU, too."""
    with (
        fresh_process.Fresh(PROGRAM, "float32") as usual_run,
        fresh_process.Fresh(PROGRAM, "meta") as other_run,
    ):
        runs = [usual_run.done(), other_run.done()]
    assert [run.returncode for run in runs] == [0, 0], [run.stderr for run in runs]
    (printed,) = {run.stdout for run in runs}
    assert printed.startswith("True ")
