"""8-bit slots load only into parameters of the same shape."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from rulebook import assert_same
from thalweg import checkpoint, optim
from thalweg.errors import CheckpointMismatchError, CheckpointWarning
from thalweg.optim import tensorflow
from thalweg.optim.quantized_state import SHAPE

WIDE, TALL = (64, 80), (80, 64)
BIG, SMALL = [WIDE, (5121,)], (7,)
CODEC = {"state_storage": "8bit"}
SPLIT = {"weights": "split"}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "AdamW": (optim.AdamW, CODEC),
    "linear8": (optim.AdamW, {"state_storage": "linear8"}),
    "one slot": (optim.AdamW, {"state_storage": {"exp_avg_sq": "root8"}}),
    "SGD": (optim.SGD, {"momentum": 0.9, **CODEC}),
    "Lion": (optim.Lion, CODEC),
    "schedule-free": (optim.ScheduleFreeAdamW, CODEC),
    "tensorflow": (tensorflow.Adam, CODEC),
    "split": (optim.SGD, SPLIT),
    "split and 8 bits": (optim.AdamW, {**SPLIT, **CODEC}),
}
by_case = pytest.mark.parametrize("case", CASES)
State = dict[str, Any]


def trained(case: str, shapes: Any = (*BIG, SMALL), steps: int = 2) -> tuple[list[Any], Any]:
    make, options = CASES[case]
    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if "weights" in options else torch.float32
    params = [torch.nn.Parameter(torch.randn(x, generator=generator).to(dtype)) for x in shapes]
    optimizer = make(params, lr=0.01, **options)
    for _ in range(steps):
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator).to(dtype)
        optimizer.step()
    return params, optimizer


def through_torch_save(state: State) -> State:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def without_shapes(state: State) -> State:
    """Return a state without shapes, as older versions wrote it."""
    states = {
        key: {name: value for name, value in slots.items() if name != SHAPE}
        for key, slots in state["state"].items()
    }
    return {**state, "state": states}


def tensors_in(optimizer: Any) -> list[torch.Tensor]:
    values = [slots[name] for slots in optimizer.state.values() for name in sorted(slots)]
    return [x.float() for x in values if isinstance(x, torch.Tensor)]


@pytest.mark.one_in(3)
@by_case
@pytest.mark.parametrize("copy_state", [dict, copy.deepcopy, through_torch_save])
def test_same_shapes_load_same_bits(case: str, copy_state: Callable[[State], State]) -> None:
    _, optimizer = trained(case)
    _, second = trained(case, steps=1)
    second.load_state_dict(copy_state(optimizer.state_dict()))
    assert_same(tensors_in(second), tensors_in(optimizer))
    for opt in (optimizer, second):
        for param, slots in opt.state.items():
            has_codes = any(x.dtype == torch.uint8 for x in slots.values() if torch.is_tensor(x))
            assert (SHAPE in slots) == has_codes
            assert not has_codes or slots[SHAPE].tolist() == [*param.shape]


@pytest.mark.one_in(3)
@by_case
@pytest.mark.parametrize("convert", [False, True])
@pytest.mark.parametrize("shapes", [[TALL, *BIG[1:]], [(5120,), *BIG[1:]], [*BIG[::-1]]])
def test_mismatched_shapes_raise_and_load_nothing(
    case: str, convert: bool, shapes: list[Any]
) -> None:
    state = trained(case)[1].state_dict()
    _, loaded = trained(case, [*shapes, SMALL], steps=1)
    previous = [x.clone() for x in tensors_in(loaded)]
    with pytest.raises(CheckpointMismatchError, match=r"\(64, 80\), here \(\d+,"):
        loaded.load_state_dict(state, convert=convert)
    assert_same(tensors_in(loaded), previous)


@by_case
def test_state_conversions_check_shapes(case: str) -> None:
    """Decoded slots would have the new shape."""
    state, options = trained(case)[1].state_dict(), CASES[case][1]
    plain_options = {name: x for name, x in options.items() if name not in (*CODEC, *SPLIT)}
    param = torch.nn.Parameter(torch.zeros(TALL, dtype=torch.bfloat16))
    params = [torch.nn.Parameter(torch.zeros(x, dtype=torch.bfloat16)) for x in (*BIG[1:], SMALL)]
    second = CASES[case][0]([param, *params], lr=0.01, **plain_options)
    with pytest.raises(CheckpointMismatchError, match=r"\(64, 80\), here \(80, 64\)"):
        second.load_state_dict(state, convert=True)


@by_case
def test_older_states_load_with_a_warning(case: str) -> None:
    _, optimizer = trained(case)
    state = without_shapes(optimizer.state_dict())
    _, second = trained(case, steps=1)
    with pytest.warns(CheckpointWarning, match="does not have the shapes") as records:
        second.load_state_dict(state)
    assert len(records) == 1
    assert_same(tensors_in(second), tensors_in(optimizer))


def test_older_states_are_checked_only_for_element_counts() -> None:
    state = without_shapes(trained("AdamW")[1].state_dict())
    _, second = trained("AdamW", [TALL, *BIG[1:], SMALL], steps=1)
    with pytest.warns(CheckpointWarning, match="only the number of elements"):
        second.load_state_dict(state)


@by_case
def test_older_states_with_other_element_counts_raise(case: str) -> None:
    state = without_shapes(trained(case)[1].state_dict())
    _, second = trained(case, [(64, 96), *BIG[1:], SMALL], steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        with pytest.raises(CheckpointMismatchError, match=r"uint8 \(\d+,\)"):
            second.load_state_dict(state)


@by_case
def test_checkpoint_files_have_encoded_shapes(case: str, tmp_path: Path) -> None:
    params, optimizer = trained(case)
    second_params, second = trained(case, steps=1)
    names = ("a", "b", "c")
    variables = [dict(zip(names, tensors, strict=True)) for tensors in (params, second_params)]
    checkpoint.save(tmp_path / "new", optimizer=optimizer, variables=variables[0])
    checkpoint.restore(tmp_path / "new", optimizer=second, variables=variables[1])
    assert_same(tensors_in(second), tensors_in(optimizer))
    for slots in optimizer.state.values():
        slots.pop(SHAPE, None)
    checkpoint.save(tmp_path / "old", optimizer=optimizer, variables=variables[0])
    with pytest.warns(CheckpointWarning, match=r"does not have the shapes .*'a'"):
        checkpoint.restore(tmp_path / "old", optimizer=second, variables=variables[1])
    _, transposed = trained(case, [TALL, *BIG[1:], SMALL], steps=1)
    named_params = dict(zip(names, transposed.param_groups[0]["params"], strict=True))
    with pytest.raises(CheckpointMismatchError):
        checkpoint.restore(tmp_path / "new", optimizer=transposed, variables=named_params)


def test_exchanged_layers_are_named() -> None:
    state = trained("AdamW", [WIDE, TALL])[1].state_dict()
    _, second = trained("AdamW", [TALL, WIDE])
    with pytest.raises(CheckpointMismatchError, match=r"'0' .* here \(80, 64\).*'1' .*\(64, 80\)"):
        second.load_state_dict(state)


def test_layers_that_are_matched_by_name_may_be_in_another_order() -> None:
    tensors = {"wide": torch.randn(WIDE), "tall": torch.randn(TALL)}
    optimizers: list[Any] = []
    for names in (("wide", "tall"), ("tall", "wide")):
        params = [(name, torch.nn.Parameter(tensors[name].clone())) for name in names]
        optimizers.append(tensorflow.Adam(params, state_storage="8bit"))
        for _, param in params:
            param.grad = torch.ones_like(param)
        optimizers[-1].step()
    optimizers[1].load_state_dict(optimizers[0].state_dict())
    states = [
        {
            name: opt.state[param]
            for name, param in zip(
                opt.param_groups[0]["param_names"], opt.param_groups[0]["params"], strict=True
            )
        }
        for opt in optimizers
    ]
    for name in tensors:
        for slot, value in states[0][name].items():
            assert torch.equal(states[1][name][slot], value), (name, slot)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.tensor([64.0, 80.0]), r"float32 \(2,\), not a row of int64"),
        (torch.tensor([[64, 80]]), r"int64 \(1, 2\), not a row of int64"),
        ((64, 80), "not a row of int64"),
        (torch.tensor([64, 80], device="meta"), "encoded_shape"),
    ],
)
def test_invalid_shape_in_state_raises(value: Any, message: str) -> None:
    _, optimizer = trained("AdamW")
    state = optimizer.state_dict()
    state["state"][0][SHAPE] = value
    with pytest.raises(CheckpointMismatchError, match=message):
        optimizer.load_state_dict(state)


def test_full_precision_state_has_no_shapes() -> None:
    _, optimizer = trained("split and 8 bits")
    states = optim.full_precision(optimizer, masters=True)["state"]
    assert all(SHAPE not in state for state in states.values())
    state = optimizer.state_dict()["state"]
    assert [SHAPE in state[key] for key in state] == [True, True, True]
    assert [SHAPE in state for state in trained("AdamW")[1].state_dict()["state"].values()] == [
        True, True, False,
    ]  # fmt: skip


def test_states_with_module_names_check_shapes() -> None:
    """`torch.distributed.checkpoint` transfers states by parameter name."""
    optimizers: list[Any] = []
    for seed in range(2):
        torch.manual_seed(seed)
        module = torch.nn.Linear(80, 64)
        optimizer = optim.AdamW(module.parameters(), state_storage="8bit")
        module(torch.randn(2, 80)).sum().backward()
        optimizer.step()
        optimizers.append((module, optimizer))
    state = get_optimizer_state_dict(*optimizers[0])
    assert state["state"]["weight"][SHAPE].tolist() == [64, 80]
    set_optimizer_state_dict(*optimizers[1], copy.deepcopy(state))
    assert_same(tensors_in(optimizers[1][1]), tensors_in(optimizers[0][1]))
