"""Files are rejected for the same states as `load_state_dict` rejects."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from thalweg import CheckpointMismatchError, checkpoint, optim
from thalweg._formats import container
from thalweg._formats.stored_tensor import of_tensor
from thalweg.optim import tensorflow

CASES: dict[str, tuple[Any, str, dict[str, Any], str]] = {
    "AdamW": (optim, "AdamW", {}, "exp_avg"),
    "torch's AdamW": (torch.optim, "AdamW", {}, "exp_avg"),
    "SGD": (optim, "SGD", {"momentum": 0.9}, "momentum_buffer"),
    "masters": (optim, "AdamW", {"masters": True}, "exp_avg_sq"),
    "split": (optim, "AdamW", {"weights": "split"}, "exp_avg"),
    "state_dtype": (optim, "Lion", {"state_dtype": torch.float32}, "exp_avg"),
    "sphere": (optim, "AdamW", {"sphere": True}, "exp_avg"),
    "state_device": (optim, "AdamW", {"state_device": "cpu"}, "exp_avg"),
    "Prodigy": (optim, "Prodigy", {}, "d"),
    "SOAP": (optim, "SOAP", {}, "row_factor"),
    "Adafactor": (optim, "Adafactor", {}, "row_var"),
    "NAdam": (optim, "NAdam", {}, "mu_product"),
    "ema_decay": (optim, "Adam", {"ema_decay": 0.9}, "ema"),
    "accumulate": (optim, "Adam", {"accumulate": 3}, "gradient_sum"),
    "tensorflow": (tensorflow, "Adam", {}, "m"),
}
CHANGES: dict[str, Any] = {
    "int64": lambda tensor: tensor.long(),
    "uint8": lambda tensor: tensor.byte(),
    "bool": lambda tensor: tensor.bool(),
    "complex64": lambda tensor: tensor.to(torch.complex64),
    "a shape": lambda tensor: torch.zeros(7),
    "a text": lambda tensor: "x",
    "a list": lambda tensor: [0.5],
}


def _make(case: str) -> tuple[Any, Tensor]:
    module, name, options, _ = CASES[case]
    dtype = torch.bfloat16 if options.keys() & {"masters", "weights"} else torch.float32
    param = torch.nn.Parameter(torch.full((4, 3), 0.5, dtype=dtype))
    opt = getattr(module, name)([param], lr=0.1, **options)
    _step(opt, param, 4)
    return opt, param


def _step(opt: Any, param: Tensor, count: int) -> None:
    for number in range(count):
        param.grad = torch.full((4, 3), 0.5 + number, dtype=param.dtype)
        opt.step()


def _text(opt: Any, param: Tensor) -> str:
    return repr((param.detach(), opt.state_dict()))


def _write_changed(path: Path, key: str, change: Any) -> None:
    """Write a file again with one changed tensor and correct checksums."""
    contents = container.read(path)
    name = f"optimizer/state/w/{key}"
    value = change(contents.tensors[name].tensor().clone())
    tensors, document = dict(contents.tensors), copy.deepcopy(dict(contents.document))
    if isinstance(value, Tensor):
        tensors[name] = of_tensor(value)
    else:
        del tensors[name]
        document["state"]["state"]["w"][key] = value
    container.write(path, tensors, document)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("case", CASES)
def test_files_and_states_are_rejected_alike(case: str, change: str, tmp_path: Path) -> None:
    key, path = CASES[case][-1], tmp_path / "run"
    opt, param = _make(case)
    checkpoint.save(path, optimizer=opt, variables={"w": param})
    state = copy.deepcopy(opt.state_dict())
    _write_changed(path, key, CHANGES[change])
    with torch.no_grad():
        param.fill_(0.25)
    initial = _text(opt, param)
    with pytest.raises(CheckpointMismatchError, match=f"'w/{key}' is .*Nothing was loaded"):
        checkpoint.restore(path, optimizer=opt, variables={"w": param})
    assert _text(opt, param) == initial
    if CASES[case][0] is not torch.optim:
        state["state"][0][key] = CHANGES[change](state["state"][0][key])
        with pytest.raises(CheckpointMismatchError, match=f"'0/{key}' is "):
            opt.load_state_dict(state)
        assert _text(opt, param) == initial
    _step(opt, param, 1)


STEPS: dict[str, Any] = {
    "int64": torch.tensor(5),
    "uint8": torch.tensor(255, dtype=torch.uint8),
    "int8": torch.tensor(127, dtype=torch.int8),
    "shape (1,)": torch.ones(1),
    "int32 of shape (1, 1)": torch.ones(1, 1, dtype=torch.int32),
    "half": torch.tensor(3.0, dtype=torch.float16),
}
OPTIONS: list[dict[str, Any]] = [{}, {"state_device": "cpu"}, {"sphere": True}, {"masters": True}]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("by_file", [False, True])
def test_accepted_step_counts_continue(
    by_file: bool, steps: str, options: dict[str, Any], tmp_path: Path
) -> None:
    param = torch.nn.Parameter(torch.ones(4, 3))
    opt = optim.AdamW([param], lr=0.1, **options)
    _step(opt, param, 2)
    if by_file:
        checkpoint.save(tmp_path / "run", optimizer=opt, variables={"w": param})
        _write_changed(tmp_path / "run", "step", lambda _: STEPS[steps])
        checkpoint.restore(tmp_path / "run", optimizer=opt, variables={"w": param})
    else:
        state = copy.deepcopy(opt.state_dict())
        state["state"][0]["step"] = STEPS[steps].clone()
        opt.load_state_dict(state)
    _step(opt, param, 3)
    assert opt.state[param]["step"].shape == ()
    assert int(opt.state[param]["step"]) == int(STEPS[steps]) + 3


ALIASES: dict[str, Any] = {
    "of another parameter": lambda states, params: states[0].update(exp_avg=states[1]["exp_avg"]),
    "another slot": lambda states, params: states[0].update(exp_avg=states[0]["exp_avg_sq"]),
    "the parameter": lambda states, params: states[0].update(exp_avg=params[0].detach()),
    "expanded": lambda states, params: states[0].update(exp_avg=torch.ones(3).expand(4, 3)),
    "overlapping": lambda states, params: states[0].update(
        exp_avg=torch.ones(6).as_strided((4, 3), (1, 1))
    ),
}


@pytest.mark.parametrize("options", [{}, {"clip_grad_norm": 1.0}, {"ema_decay": 0.9}], ids=str)
@pytest.mark.parametrize("alias", ALIASES)
def test_slots_that_share_memory_are_copied(alias: str, options: dict[str, Any]) -> None:
    params = [torch.nn.Parameter(torch.ones(4, 3)) for _ in range(2)]
    opt = optim.AdamW(params, lr=0.1, **options)
    for param in params:
        param.grad = torch.ones(4, 3)
    opt.step()
    state = copy.deepcopy(opt.state_dict())
    ALIASES[alias](state["state"], params)
    expected = state["state"][0]["exp_avg"].clone()
    opt.load_state_dict(state)
    assert torch.equal(opt.state[params[0]]["exp_avg"], expected)
    opt.step()


def test_groups_with_different_shared_values_raise(tmp_path: Path) -> None:
    params = {name: torch.nn.Parameter(torch.ones(3)) for name in "wb"}
    opt = optim.Prodigy([{"params": [param]} for param in params.values()])
    checkpoint.save(tmp_path / "run", optimizer=opt, variables=params)
    contents = container.read(tmp_path / "run")
    document = copy.deepcopy(dict(contents.document))
    document["state"]["groups"][1]["d0"] = 0.5
    container.write(tmp_path / "run", contents.tensors, document)
    with pytest.raises(CheckpointMismatchError, match="groups of Prodigy have it in common"):
        checkpoint.restore(tmp_path / "run", optimizer=opt, variables=params)
    state = copy.deepcopy(opt.state_dict())
    state["param_groups"][1]["d0"] = 0.5
    with pytest.raises(CheckpointMismatchError, match="groups of Prodigy have it in common"):
        opt.load_state_dict(state)
