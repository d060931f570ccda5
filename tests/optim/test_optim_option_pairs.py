"""8-bit state and split weights with matrix rules, and with rules and wrappers that measure slots.

Each pair of options has the bits of the reference, in planned and in replayed steps, and goes on
with the same bits after its state was saved and loaded.
"""

from __future__ import annotations

import copy
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rulebook import assert_same
from thalweg import Measure, Pass, Rule, Slot, checkpoint, optim
from thalweg._engines import engine
from thalweg.errors import RuleError
from thalweg.formula import gradient_squares

SHAPES = [(64, 96), (70, 80), (5, 7)]
WRAPPERS: list[dict[str, Any]] = [
    {}, {"trust_ratio": True}, {"cautious": True}, {"sphere": True}, {"radial_brake": True},
    {"clip_grad_norm": 0.5}, {"ema_decay": 0.9}, {"diagnostics": 1},
]  # fmt: skip
MEASURING = [optim.LAMB, optim.MARS, optim.Prodigy, optim.StableAdamW, optim.CautiousAdamW,
             optim.AdamH]  # fmt: skip
MATRIX = [optim.Muon, optim.NorMuon, optim.AdaMuon, optim.MuonH, optim.SOAP, optim.KLSOAP]
BYTES = {"state_storage": "8bit"}
CASES = [
    *((optim.AdamW, {**BYTES, **options}) for options in (WRAPPERS[0], *WRAPPERS[1::2])),
    *((optim.Muon, {**BYTES, **options}) for options in WRAPPERS[::2]),
    *((cls, BYTES) for cls in (*MEASURING, *MATRIX[1:])),
    (optim.LAMB, {"state_storage": "dynamic8"}),
    (optim.SGD, {"state_storage": "linear8", "momentum": 0.9, "trust_ratio": True}),
    *((cls, {"weights": "split"}) for cls in MATRIX),
    *((optim.Muon, {"weights": "split", **options}) for options in WRAPPERS[1::2]),
    (optim.SOAP, {"weights": "split", "round": "stochastic", **BYTES}),
    (optim.NorMuon, {"masters": True, **BYTES}),
    (optim.LAMB, {"weights": "split", **BYTES}),
]


def make_optimizer(cls: Any, options: dict[str, Any], shapes: Any = SHAPES) -> Any:
    """Return an optimizer over random parameters, bfloat16 where the options need it."""
    generator = torch.Generator().manual_seed(1)
    is_narrow = "weights" in options or "masters" in options
    dtype = torch.bfloat16 if is_narrow else torch.float32
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return cls([torch.nn.Parameter(tensor) for tensor in tensors], lr=0.01, **options)


def take_steps(optimizer: Any, count: int, seed: int = 2, is_planned: bool = False) -> Any:
    """Take steps over random gradients and return the optimizer; planned steps are not replayed."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        for param in optimizer.param_groups[0]["params"]:
            gradient = torch.randn(param.shape, generator=generator).to(param.dtype)
            param.grad = torch.empty_like(param).copy_(gradient)
        if is_planned:
            optimizer.step_cache.forget_replay()
        optimizer.step()
    return optimizer


def written_tensors(optimizer: Any) -> list[torch.Tensor]:
    """Return the parameters and their state, bytes as numbers."""
    params = optimizer.param_groups[0]["params"]
    tensors = [param.detach() for param in params]
    for param in params:
        slots = optimizer.state[param].values()
        tensors += [slot.detach() for slot in slots if isinstance(slot, torch.Tensor)]
    return [each.float() if each.dtype == torch.uint8 else each for each in tensors]


@pytest.mark.parametrize(("cls", "options"), CASES, ids=str)
@pytest.mark.one_in(7)
def test_option_pairs_equal_the_reference(cls: Any, options: dict[str, Any]) -> None:
    replayed = take_steps(make_optimizer(cls, options), 4)
    planned = take_steps(make_optimizer(cls, options), 4, is_planned=True)
    with engine("reference"):
        reference = take_steps(make_optimizer(cls, options), 4)
    assert_same(written_tensors(replayed), written_tensors(planned))
    assert_same(written_tensors(replayed), written_tensors(reference))
    states = replayed.state.values()
    assert any(slot.dtype == torch.uint8 for state in states for slot in state.values()
               if isinstance(slot, torch.Tensor)) or "masters" in options  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("cls", [optim.LAMB, optim.SOAP, optim.MuonH, optim.Prodigy])
@pytest.mark.parametrize("options", [BYTES, {"weights": "split"}, {"masters": True}], ids=str)
@pytest.mark.parametrize("through_file", [False, True], ids=["state_dict", "checkpoint"])
def test_training_continues_after_a_load(
    cls: Any, options: dict[str, Any], through_file: bool, tmp_path: Path
) -> None:
    first = take_steps(make_optimizer(cls, options), 3)
    second = make_optimizer(cls, options)
    pairs = zip(first.param_groups[0]["params"], second.param_groups[0]["params"], strict=True)
    for param, other_param in pairs:
        other_param.data.copy_(param.data)
    if through_file:
        path = tmp_path / "state.safetensors"
        named = [
            dict(zip("abc", x.param_groups[0]["params"], strict=True)) for x in (first, second)
        ]
        checkpoint.save(path, optimizer=first, variables=named[0])
        checkpoint.restore(path, optimizer=second, variables=named[1])
    else:
        second.load_state_dict(copy.deepcopy(first.state_dict()))
    for optimizer in (first, second):
        take_steps(optimizer, 2, seed=3)
    assert_same(written_tensors(first), written_tensors(second))


def test_encoded_momentum_moves_muon_little() -> None:
    exact = take_steps(make_optimizer(optim.Muon, {}), 20)
    encoded = take_steps(make_optimizer(optim.Muon, BYTES), 20)
    start = make_optimizer(optim.Muon, {})
    params = [each.param_groups[0]["params"][0].detach() for each in (exact, encoded, start)]
    distance = (params[0] - params[2]).norm()
    assert 0 < (params[0] - params[1]).norm() < distance / 10


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (optim.LAMB, BYTES),
        (optim.LAMB, {"state_storage": "dynamic8"}),
        (optim.SGD, {"state_storage": "linear8", "momentum": 0.9, "trust_ratio": True}),
    ],
    ids=str,
)
def test_slots_of_several_leaves_are_measured_as_by_the_reference(
    cls: Any, options: dict[str, Any]
) -> None:
    actual = take_steps(make_optimizer(cls, options, [((1 << 17) + 300,)]), 3)
    with engine("reference"):
        expected = take_steps(make_optimizer(cls, options, [((1 << 17) + 300,)]), 3)
    assert_same(written_tensors(actual), written_tensors(expected))


def plain_update(var: Any, grad: Any, mean: Any, *, learning_rate: Any, rows: Any) -> Any:
    mean = mean * 0.9 + grad
    return var - learning_rate * mean / (rows + 1.0), mean


def update_after_pass(
    var: Any, grad: Any, doubled: Any, mean: Any, *, learning_rate: Any, rows: Any
) -> Any:
    mean = mean * 0.9 + doubled
    return var - learning_rate * mean / (rows + 1.0), mean


def slot_squares(var: Any, grad: Any, mean: Any) -> Any:
    return mean * mean


def made_slot_squares(var: Any, grad: Any, doubled: Any, mean: Any) -> Any:
    return mean * mean


def unread_slot(var: Any, grad: Any, mean: Any) -> Any:
    return grad * grad


def double(var: Any, grad: Any, mean: Any) -> Any:
    return grad * 2.0


def rows_rule(*passes: Any, **options: Any) -> Rule:
    """Return a rule of one encoded slot that uses a sum of each row."""
    update = update_after_pass if any(isinstance(each, Pass) for each in passes) else plain_update
    slots = (Slot("m", storage="softsign8"),)
    return Rule(name="Rows", update=update, slots=slots, passes=passes, **options)


GRADIENT_ROWS = Measure(unread_slot, makes="rows", over="row")


@pytest.mark.parametrize("passes", [(GRADIENT_ROWS,), (Pass(double, makes="u"), GRADIENT_ROWS)])
def test_rows_beside_encoded_slots_equal_the_reference(passes: Any) -> None:
    if len(passes) > 1:
        passes = (passes[0], Measure(gradient_squares, makes="rows", over="row"))

    def train() -> Any:
        parameter = torch.nn.Parameter(torch.ones(64, 80))
        return take_steps(optim.RuleOptimizer([parameter], rows_rule(*passes)), 3)

    actual = train()
    with engine("reference"):
        expected = train()
    assert_same(written_tensors(actual), written_tensors(expected))


@pytest.mark.parametrize(
    ("passes", "options"),
    [
        ((Measure(slot_squares, makes="rows", over="row"),), {}),
        ((Measure(slot_squares, makes="rows", over="row"), Pass(double, makes="u")), {}),
        ((Pass(double, makes="u"), Measure(made_slot_squares, makes="rows", over="row")), {}),
        (
            (GRADIENT_ROWS,),
            {"measures": {"length": slot_squares}, "per_variable": lambda length: {}},
        ),
    ],
)
def test_encoded_slots_read_by_kernels_of_rows_raise(passes: Any, options: Any) -> None:
    params = [torch.nn.Parameter(torch.ones(64, 80))]
    with pytest.raises(RuleError, match=r"reads its slot 'm', which must not be encoded"):
        optim.RuleOptimizer(params, rows_rule(*passes, **options))


@pytest.mark.parametrize("option", ["trust_ratio", "cautious", "sphere", "radial_brake"])
def test_wrappers_of_row_rules_cannot_measure_encoded_slots(option: str) -> None:
    params = [torch.nn.Parameter(torch.ones(64, 80))]
    with pytest.raises(RuleError, match=r"reads its slot 'm', which must not be encoded"):
        optim.RuleOptimizer(params, rows_rule(GRADIENT_ROWS), **{option: True})


def test_prodigy_encodes_neither_its_sum_nor_the_initial_weights() -> None:
    optimizer = take_steps(make_optimizer(optim.Prodigy, BYTES), 2)
    state = optimizer.state[optimizer.param_groups[0]["params"][0]]
    names = {name for name, slot in state.items() if slot.dtype == torch.uint8}
    assert names == {"exp_avg", "exp_avg_sq"}


PAIRS = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "option_pairs.py"))


@pytest.mark.slow
def test_sampled_pairs_of_options_equal_the_reference_or_are_listed(tmp_path: Path) -> None:
    tool = Path(__file__).parents[2] / "tools" / "option_pairs.py"
    command = [sys.executable, str(tool), "--out", str(tmp_path / "pairs.tsv"), "--sample", "15"]
    check = subprocess.run(command, capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stdout + check.stderr


def test_page_lists_classes_and_options_that_exclude_each_other() -> None:
    page = """
## Exceptions

| option | not with | reason |
|---|---|---|
| `weights="split"` | `masters` (except in `Muon`); `SM3` | none |
| `cautious_decay` | every class except `Adam` | none |

## Groups
"""
    exceptions = PAIRS["read_page"](page)
    case = PAIRS["Case"]
    assert exceptions.lists(case("AdamW", ("masters", "weights")))
    assert not exceptions.lists(case("Muon", ("masters", "weights")))
    assert exceptions.lists(case("SM3", ("weights",)))
    assert not exceptions.lists(case("AdamW", ("weights",)))
    assert not exceptions.lists(case("Adam", ("cautious_decay",)))
    assert exceptions.lists(case("SGD", ("cautious_decay", "masters")))


@pytest.mark.parametrize(
    ("actual", "expected", "name"),
    [
        ({"a": torch.ones(2)}, {"a": torch.ones(2)}, ""),
        ({"a": torch.zeros(2)}, {"a": -torch.zeros(2)}, "a"),
        ({"a": torch.ones(2)}, {"a": torch.ones(2).double()}, "a in dtype or shape"),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}, "the names ['a', 'b']"),
    ],
)
def test_differences_of_bits_are_found(actual: Any, expected: Any, name: str) -> None:
    assert PAIRS["first_difference"](actual, expected) == name
