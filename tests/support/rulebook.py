"""The table of rules that drives the engine tests, and what they share: values, steps, bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bit_comparison import assert_same as assert_same
from bit_comparison import bits as bits
from bit_comparison import note_problem
from thalweg import IndexedSlices, Rule
from thalweg._base import scalars
from thalweg._core import atomic_section
from thalweg._engines import Dispatcher, Selection, apply_prepare, check_gradients
from thalweg._engines.layout import compute_dtype
from thalweg._engines.protocol import Columns, StepRequest
from thalweg.formula import FORMULAS
from thalweg.rules import RULES

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
LENGTHS = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 300)
KEEP, FLUSH = Selection("cpu", "keep"), Selection("cpu", "flush")


@dataclass(frozen=True)
class Scale:
    """Response of a slot to a transformation of the problem.

    Attributes:
        sign: 1 if it stays when variable and gradient change sign, -1 if it changes too.
        grad: Power with which it grows when the gradient is multiplied.
        var: Power with which it grows when variable and learning rate are multiplied.
    """

    sign: int = 1
    grad: int = 0
    var: int = 0


MEAN, SQUARE, SPEED = Scale(-1, grad=1), Scale(1, grad=2), Scale(-1, var=1)


@dataclass(frozen=True)
class Row:
    """Properties of one rule that tests use.

    Attributes:
        slots: A `Scale` per slot.
        configs: Hyperparameters that differ from the defaults, by name of the configuration.
        scale_free: Hyperparameters with which a multiplied gradient moves the variable by the same
            bits; None where there are none.
        per_rate: Whether a gradient times 1024 with a learning rate over 1024 gives the same bits.
        linear: Hyperparameters with which the step is proportional to variable and learning rate;
            None where there are none.
        warm: Bounds of the values that slots start from in tests.
    """

    rule: Rule
    slots: tuple[Scale, ...] = ()
    configs: dict[str, dict[str, float]] = field(default_factory=dict)
    scale_free: dict[str, float] | None = None
    per_rate: bool = False
    linear: dict[str, float] | None = field(default_factory=dict)
    warm: tuple[float, float] = (0.5, 2.0)

    @property
    def name(self) -> str:
        return self.rule.name


_EXACT = {"epsilon": 0.0}
_FTRL = {"l1": 0.01, "l2": 0.02, "beta": 0.5, "l2_shrinkage": 0.03}
_SHRINKING = {"l1": 0.01, "l2": 0.02}
_BETAS = {"beta1": 0.5, "beta2": 0.75, "learning_rate": 0.3}
_DETAILS: dict[str, Any] = {
    "SGD": partial(Row, configs={"large": {"learning_rate": 3.0}}, per_rate=True),
    "Momentum": partial(Row, slots=(SPEED,), configs={"half": {"momentum": 0.5}}, per_rate=True),
    "Nesterov": partial(Row, slots=(SPEED,), configs={"half": {"momentum": 0.5}}, per_rate=True),
    "Adagrad": partial(
        Row, slots=(SQUARE,), scale_free=_EXACT, configs={"large": {"learning_rate": 1.0}}
    ),
    "Adadelta": partial(
        Row, slots=(SQUARE, Scale()), scale_free=_EXACT, linear=None, configs={"half": {"rho": 0.5}}
    ),
    "RMSprop": partial(Row, slots=(SQUARE,), scale_free=_EXACT, configs={"half": {"rho": 0.5}}),
    "CenteredRMSprop": partial(
        Row, slots=(SQUARE, MEAN), scale_free=_EXACT, configs={"half": {"rho": 0.5}}
    ),
    "MomentumRMSprop": partial(
        Row, slots=(SQUARE, SPEED), scale_free=_EXACT, configs={"moving": {"momentum": 0.9}}
    ),
    "CenteredMomentumRMSprop": partial(
        Row, slots=(SQUARE, SPEED, MEAN), scale_free=_EXACT, configs={"moving": {"momentum": 0.9}}
    ),
    "Adamax": partial(
        Row, slots=(MEAN, Scale(1, grad=1)), scale_free=_EXACT, configs={"fast": _BETAS}
    ),
    "Adam": partial(Row, slots=(MEAN, SQUARE), scale_free=_EXACT, configs={"fast": _BETAS}),
    "AMSGrad": partial(
        Row, slots=(MEAN, SQUARE, SQUARE), scale_free=_EXACT, configs={"fast": _BETAS}
    ),
    "Nadam": partial(Row, slots=(MEAN, SQUARE), scale_free=_EXACT, configs={"fast": _BETAS}),
    "Ftrl": partial(Row, slots=(SQUARE, MEAN), scale_free={}, configs={"all": _FTRL}),
    "FtrlPower": partial(
        Row,
        slots=(SQUARE, MEAN),
        configs={"all": {**_FTRL, "learning_rate_power": -0.6}, "flat": {"learning_rate_power": 0}},
    ),
    "HeavyBall": partial(Row, slots=(MEAN,), configs={"half": {"momentum": 0.5}}),
    "NesterovBall": partial(Row, slots=(MEAN,), configs={"half": {"momentum": 0.5}}),
    "ProximalGradientDescent": partial(Row, configs={"all": _SHRINKING}, per_rate=True),
    "AdagradV1": partial(Row, slots=(SQUARE,), scale_free={}),
    "ProximalAdagrad": partial(Row, slots=(SQUARE,), scale_free={}, configs={"all": _SHRINKING}),
    "AdagradDA": partial(Row, slots=(MEAN, SQUARE), scale_free={}, configs={"all": _SHRINKING}),
    "LazyAdam": partial(Row, slots=(MEAN, SQUARE), scale_free=_EXACT),
    "NesterovAdam": partial(Row, slots=(MEAN, SQUARE), scale_free=_EXACT, configs={"fast": _BETAS}),
    "AdamW": partial(
        Row, slots=(MEAN, SQUARE), scale_free=_EXACT, configs={"without": {"weight_decay": 0.0}}
    ),
    "MomentumW": partial(Row, slots=(MEAN,), configs={"without": {"weight_decay": 0.0}}),
    "NesterovW": partial(Row, slots=(MEAN,), configs={"without": {"weight_decay": 0.0}}),
    "LARS": partial(Row, slots=(SPEED,), linear={"weight_decay": 0.0}),
    "NesterovLARS": partial(Row, slots=(SPEED,), linear={"weight_decay": 0.0}),
    "NovoGrad": partial(Row, slots=(MEAN,), configs={"decay": {"weight_decay": 0.05}}),
}


def _formulas(rule: Rule) -> tuple[Any, ...]:
    return tuple(getattr(rule, name) for name in FORMULAS)


_DISTINCT: dict[tuple[Any, ...], Rule] = {}
for _rule in RULES:  # one whose formulas are those of an earlier one is that one to an engine
    _DISTINCT.setdefault(_formulas(_rule), _rule)
ROWS = {rule.name: _DETAILS[rule.name](rule) for rule in _DISTINCT.values()}


@dataclass(frozen=True)
class Case:
    """A rule with a configuration."""

    row: Row
    config: str
    hypers: dict[str, float]

    @property
    def rule(self) -> Rule:
        return self.row.rule

    def with_hypers(self, **hypers: float) -> Case:
        return replace(self, hypers={**self.hypers, **hypers})

    def scalars(self, dtype: type[np.floating], step: int = 3) -> dict[str, Any]:
        """Return the scalars of one step, as the public optimizer would make them."""
        hypers = {hyper.name: hyper.default for hyper in self.rule.hypers} | self.hypers
        values: dict[str, Any] = {name: dtype(value) for name, value in hypers.items()}
        for power, hyper in self.rule.powers.items():
            values[power] = scalars.power(values[hyper], dtype(step))
        values["t"], values["momentum_cache"] = dtype(step), dtype(0.7)
        values["trust_ratio"] = values["grad_scale"] = dtype(0.5)
        return apply_prepare(self.rule, values)


def case(name: str, config: str = "default") -> Case:
    row = ROWS[name]
    return Case(row, config, {} if config == "default" else row.configs[config])


CASES = [case(name, config) for name, row in ROWS.items() for config in ("default", *row.configs)]
FIRST = [case(name) for name in ROWS]


# One rule of each kind: kernels take long to compile, so what all rules do in all dtypes is slow.
KINDS = ("SGD", "Adam", "AdagradDA", "FtrlPower", "MomentumRMSprop", "LARS")


def slow_unless(quick: bool, *values: Any) -> Any:
    """Return a row of a table of cases, marked slow unless it is one of the quick ones."""
    return pytest.param(*values, marks=() if quick else pytest.mark.slow)


def label(value: Any) -> str:
    if isinstance(value, Case):
        return f"{value.rule.name}-{value.config}"
    if isinstance(value, tuple):
        return "+".join(map(label, value))
    return str(value).removeprefix("torch.")


def by_rule(cases: Sequence[Case] = tuple(CASES)) -> pytest.MarkDecorator:
    """Parametrise a test over cases, as `case`."""
    return pytest.mark.parametrize("case", cases, ids=label)


by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
by_rule_and_dtype = pytest.mark.parametrize(
    ("case", "dtype"),
    [
        slow_unless(dtype.itemsize > 2 or case.rule.name in KINDS, case, dtype)
        for case in FIRST
        for dtype in DTYPES
    ],
    ids=label,
)


def by_rule_and_dtypes(cases: Sequence[Case] = tuple(FIRST)) -> pytest.MarkDecorator:
    """Parametrise a test over cases, as `case`, and the dtypes that it mixes, as `dtypes`."""
    dtypes = DTYPES[:2]
    rows = [slow_unless(case.rule.name in KINDS, case, DTYPES) for case in cases]
    rows += [pytest.param(case, dtypes) for case in cases if case.rule.name not in KINDS]
    return pytest.mark.parametrize(("case", "dtypes"), rows, ids=label)


# Values

SPECIAL = np.array([
    0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e-45, 1e-310, 5e-324, 6e-8, -6e-5,
    1.1754944e-38, 3.4e38, -3.4e38, 65504.0, 1e-20, 1e20, 1.0, -1.0,
])  # fmt: skip


def numbers(
    shape: Any, rng: np.random.Generator, special: float, low: float | None, high: float
) -> np.ndarray:
    if low is not None:
        drawn = rng.uniform(low, high, shape)
    else:
        drawn = rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 3, shape)
    if special:
        specials = SPECIAL[rng.integers(0, len(SPECIAL), shape)]
        drawn = np.where(rng.random(shape) < special, specials, drawn)
    return drawn


def values(
    shape: int | tuple[int, ...],
    dtype: torch.dtype,
    rng: np.random.Generator,
    special: float = 0.0,
    low: float | None = None,
    high: float = 2.0,
) -> torch.Tensor:
    """Return random values: of many magnitudes, or of one sign between `low` and `high`.

    Args:
        special: The share of zeros, denormals, infinities, NaN and extremes among them.
    """
    return torch.tensor(numbers(shape, rng, special, low, high)).to(dtype)


def slots_for(row: Row, var: torch.Tensor, rng: np.random.Generator, special: float = 0.0) -> list:
    """Return slots of a variable as they might be in the middle of a training."""
    shape, (low, high) = tuple(var.shape), row.warm
    return [values(shape, var.dtype, rng, special, low, high) for _ in row.rule.element_slots]


@dataclass
class Problem:
    """Variables with their slots and the gradients of one step."""

    variables: list[torch.Tensor]
    slots: list[list[torch.Tensor]]
    gradients: list[Any]

    @classmethod
    def make(
        cls, row: Row, shapes: Sequence[Any], dtypes: Sequence[torch.dtype], seed: int,
        special: float = 0.0,
    ) -> Problem:  # fmt: skip
        # All numbers at once: a call takes longer than those of a tensor.
        rng, count = np.random.default_rng(seed), len(row.rule.element_slots)
        extents = [torch.Size([shape] if isinstance(shape, int) else shape) for shape in shapes]
        sizes, kinds = [size.numel() for size in extents], list(zip(extents, dtypes, strict=True))
        note_problem(row.name, seed)

        def made(low: float | None = None, high: float = 2.0) -> list[torch.Tensor]:
            flat = torch.from_numpy(numbers(sum(sizes), rng, special, low, high))
            parts = zip(flat.split(sizes), kinds, strict=True)
            return [part.to(dtype, copy=True).view(shape) for part, (shape, dtype) in parts]

        variables, gradients = made(), made()
        columns = [made(*row.warm) for _ in range(count)]
        slots = [list(row) for row in zip(*columns, strict=True)] or [[] for _ in variables]
        return cls(variables, slots, gradients)

    def copy(self) -> Problem:
        """Return a copy with new variables and slots, and the same gradients."""
        slots = [[slot.clone() for slot in row] for row in self.slots]
        return Problem([var.clone() for var in self.variables], slots, list(self.gradients))

    def written(self) -> list[torch.Tensor]:
        return [*self.variables, *(slot for row in self.slots for slot in row)]

    def permuted(self, order: Sequence[int]) -> Problem:
        return Problem(*[[part[i] for i in order] for part in vars(self).values()])


# Steps


class Engines:
    """Takes steps by the engines alone, and repeats them where it can."""

    def __init__(self) -> None:
        self.gate, self.last = Dispatcher(), None

    def plan_step(self, request: StepRequest) -> Any:
        if self.last is None or not self.last.try_rebind(request):
            narrow = request.copies is not None
            check_gradients(request.variables, request.gradients, request.titles, narrow=narrow)
            plan = self.gate.plan_step(request)
            self.last = plan if plan.is_single else None
            return plan
        return self.last

    def take(self, request: StepRequest, shared: Any, separate: Any = None) -> None:
        ready = self.plan_step(request)
        with torch.no_grad():
            for step_round in ready.make_rounds(Columns(shared(ready.dtypes), separate or {})):
                atomic_section.run(step_round.calls)
        ready.release_gradients()


def take(
    case: Case, problem: Problem, selection: Selection = KEEP, *, steps: int = 1,
    engines: Engines | None = None, stages: tuple[Any, ...] = (), copies: Any = None,
    from_copies: bool = False, places: Any = (), **extra: float,
) -> Problem:  # fmt: skip
    """Take steps in place, as the public optimizer does; returns the problem."""
    engines = engines or Engines()
    names = [f"w{index}" for index in range(len(problem.variables))]
    request = StepRequest(
        case.rule, stages, problem.variables, problem.gradients, problem.slots, names, selection,
        copies, from_copies, places=places,
    )  # fmt: skip
    for step in range(1, steps + 1):

        def shared(dtypes: Any, step: int = step) -> Any:
            return {
                dtype: case.scalars(dtype, step)
                | {name: dtype(value) for name, value in extra.items()}
                for dtype in dtypes
            }

        engines.take(request, shared)
    return problem


def reference(
    case: Case, problem: Problem, selection: Selection = KEEP, **keywords: Any
) -> Problem:
    """Take the steps on a copy by the reference engine."""
    return take(case, problem.copy(), selection._replace(name="reference"), **keywords)


def update_case(update: Any, slots: int = 0, **keywords: Any) -> Case:
    """Return a case of a rule made up by a test, with no hyperparameters unless given."""
    from thalweg import Slot

    items = tuple(Slot(f"s{index}") for index in range(slots))
    rule = Rule(name=update.__name__, update=update, slots=items, **{"hypers": (), **keywords})
    return Case(Row(rule), "default", {})


def sparse(rows: Any, indices: Any, var: torch.Tensor, kind: torch.dtype = torch.int64) -> Any:
    return IndexedSlices(rows, torch.as_tensor(indices, dtype=kind), tuple(var.shape))


def compute(tensor: Tensor) -> type[np.floating]:
    return compute_dtype(tensor.dtype)
