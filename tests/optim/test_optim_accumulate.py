"""Gradients accumulated over passes: sums, freed gradients, states between passes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rulebook import assert_same
from thalweg import checkpoint, optim
from thalweg.errors import CheckpointWarning, LayoutError
from thalweg.optim import tensorflow
from torch_inputs import CLASSES, ROWS, params_of, set_grads

MAKERS: dict[str, Any] = {
    "Adam": lambda p, **o: optim.Adam(p, lr=0.1, **o),
    "momentum": lambda p, **o: optim.SGD(p, lr=0.1, momentum=0.9, **o),
    "LazyAdam": lambda p, **o: tensorflow.LazyAdam(p, lr=0.1, **o),
}


def values(opt: Any) -> list[torch.Tensor]:
    return [param.detach() for param in opt.param_groups[0]["params"]]


def step_with_sums(opt: Any, steps: int, passes: int, sparse: bool = False) -> Any:
    """Take steps with sums of gradients, as torch accumulates them in `grad`."""
    params = opt.param_groups[0]["params"]
    for step in range(steps):
        totals = [None] * len(params)
        for k in range(passes):
            set_grads(params, step * passes + k, sparse)
            totals = [
                p.grad if total is None else total + p.grad
                for p, total in zip(params, totals, strict=True)
            ]
        for param, total in zip(params, totals, strict=True):
            param.grad = total
        opt.step()
    return opt


def accumulate(opt: Any, calls: int, first: int = 0, sparse: bool = False) -> Any:
    params = opt.param_groups[0]["params"]
    for call in range(first, first + calls):
        set_grads(params, call, sparse)
        opt.step()
        assert [param.grad for param in params] == [None] * len(params)
    return opt


@pytest.mark.parametrize("options", [{}, {"clip_grad_norm": 1.0}], ids=str)
@pytest.mark.parametrize(
    ("name", "sparse"),
    [("Adam", False), ("momentum", False), ("LazyAdam", False), ("LazyAdam", True)],
)
def test_step_uses_the_sum(name: str, sparse: bool, options: dict[str, Any]) -> None:
    opt = MAKERS[name](params_of(torch.float32, ROWS), accumulate=3, **options)
    accumulate(opt, 6, sparse=sparse)
    ref = step_with_sums(MAKERS[name](params_of(torch.float32, ROWS), **options), 2, 3, sparse)
    assert_same(values(opt), values(ref))
    assert [state["gradient_sum"] for state in opt.state.values()] == [0] * len(opt.state)


def test_last_step_reports_waiting_passes() -> None:
    opt = optim.Adam(params_of(torch.float32), accumulate=2)
    reports = []
    for call in range(4):
        accumulate(opt, 1, call)
        assert opt.last_step is not None
        reports.append((opt.last_step.taken, opt.last_step.reason, opt.last_step.count))
    waiting = "1 of 2 gradients are summed up"
    assert reports == [(False, waiting, 0), (True, "", 1), (False, waiting, 1), (True, "", 2)]


@pytest.mark.parametrize("name", MAKERS)
def test_sums_are_saved(name: str) -> None:
    opt = accumulate(MAKERS[name](params_of(torch.float32, ROWS), accumulate=3), 5)
    params = [value.clone().requires_grad_() for value in values(opt)]
    loaded = MAKERS[name](params, accumulate=3)
    loaded.load_state_dict(copy.deepcopy(opt.state_dict()))
    for stepped in (opt, loaded):
        accumulate(stepped, 4, 5)
    assert_same(values(loaded), values(opt))


def reload(opt: Any) -> Any:
    """Return a new optimizer with the loaded state."""
    params = [value.clone().requires_grad_() for value in values(opt)]
    loaded = type(opt)(params, lr=0.1, accumulate=3)
    loaded.load_state_dict(copy.deepcopy(opt.state_dict()))
    return loaded


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}], ids=str)
@pytest.mark.parametrize("name", ["Adagrad", "RMSprop"])
@pytest.mark.parametrize("by_file", [True, False])
def test_param_without_step_has_no_average(
    name: str, by_file: bool, options: dict[str, Any], tmp_path: Path
) -> None:
    opt, loaded = (
        getattr(optim, name)(
            params_of(torch.bfloat16, ROWS), ema_decay=0.9, masters=True, **options
        )
        for _ in range(2)
    )
    opt.param_groups[0]["params"][0].grad = torch.ones(ROWS[0], dtype=torch.bfloat16)
    opt.step()
    if by_file:
        checkpoint.save(tmp_path / "made", optimizer=opt)
        checkpoint.restore(tmp_path / "made", optimizer=loaded)
    else:
        loaded.load_state_dict(copy.deepcopy(opt.state_dict()))
    with torch.no_grad():
        for param, value in zip(values(loaded), values(opt), strict=True):
            param.copy_(value)
    for stepped in (opt, loaded):
        for call in range(4):
            set_grads(stepped.param_groups[0]["params"], call)
            stepped.step()
    assert_same(values(loaded), values(opt))


@pytest.mark.parametrize("copy_opt", [reload, copy.deepcopy], ids=["loaded", "copied"])
@pytest.mark.parametrize("name", [name for name in CLASSES if name != "SparseAdam"])
def test_sums_before_the_first_step_are_saved(name: str, copy_opt: Any) -> None:
    opt = accumulate(getattr(optim, name)(params_of(torch.float32), lr=0.1, accumulate=3), 2)
    loaded = copy_opt(opt)
    for stepped in (opt, loaded):
        accumulate(stepped, 4, 2)
    assert_same(values(loaded), values(opt))


GRADIENT_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda buffer: buffer,
    "a view": lambda buffer: buffer.view(3),
    "detached": torch.Tensor.detach,
    "an array": lambda buffer: torch.from_numpy(buffer.numpy()),
}


@pytest.mark.parametrize("view", GRADIENT_VIEWS.values(), ids=GRADIENT_VIEWS)
@pytest.mark.parametrize("name", MAKERS)
def test_referenced_gradients_are_copied(name: str, view: Any) -> None:
    buffer = torch.zeros(3)
    params = [torch.ones(3).requires_grad_() for _ in range(2)]
    opt = MAKERS[name](params, accumulate=3)
    for call in range(3):
        expected = torch.tensor([1.0, 3.0 - 2 * call, -3.0])
        buffer.copy_(expected)
        for param in params:
            param.grad = view(buffer)
        opt.step()
        assert_same([buffer], [expected])
    ref = MAKERS[name]([torch.ones(3).requires_grad_() for _ in params])
    for param in ref.param_groups[0]["params"]:
        param.grad = torch.tensor([3.0, 3.0, -9.0])
    ref.step()
    assert_same(values(opt), values(ref))


def test_wide_sums_are_float32() -> None:
    opt = optim.SGD([torch.zeros(2, dtype=torch.bfloat16).requires_grad_()], lr=1.0,
                     accumulate=300, wide_sums=True)  # fmt: skip
    (param,) = opt.param_groups[0]["params"]
    for _ in range(300):
        param.grad = torch.ones_like(param)
        opt.step()
    assert param.tolist() == [-300.0, -300.0]  # a sum of 16 bits ends at 256


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_sums_with_masters_are_float32(name: str, dtype: torch.dtype, sparse: bool) -> None:
    if sparse and name != "LazyAdam":
        return
    params = params_of(dtype, ROWS)
    wide = [param.detach().float().requires_grad_() for param in params]
    opt, ref = (
        MAKERS[name](params, accumulate=2, masters=True),
        MAKERS[name](wide, accumulate=2),
    )
    for call in range(4):
        set_grads(params, call, sparse)
        for param, wide_param in zip(params, wide, strict=True):
            wide_param.grad = None if param.grad is None else param.grad.float()
        opt.step()
        ref.step()
    assert_same([opt.state[param]["master"] for param in params], values(ref))
    assert_same(values(opt), [value.to(dtype) for value in values(ref)])


def test_nonfinite_pass_is_skipped() -> None:
    opt = optim.SGD([torch.zeros(2, requires_grad=True)], lr=1.0, accumulate=2, fused_unscale=True)
    (param,) = opt.param_groups[0]["params"]
    for scale, value in ((2.0, 1.0), (4.0, float("inf")), (4.0, 1.0)):
        param.grad = torch.full((2,), scale * value)
        opt.grad_scale = torch.tensor(scale)
        opt.found_inf = torch.tensor(float(value == float("inf")))
        opt.step()
    assert param.tolist() == [-2.0, -2.0]


def test_failed_step_keeps_sums() -> None:
    opt = accumulate(optim.Adam(params_of(torch.float32), accumulate=2), 1)
    set_grads(opt.param_groups[0]["params"], 1)
    rate, opt.param_groups[0]["lr"] = opt.param_groups[0]["lr"], "much"
    with pytest.raises(TypeError, match="lr must be a number"):
        opt.step()
    opt.param_groups[0]["lr"] = rate
    opt.step()
    ref = step_with_sums(optim.Adam(params_of(torch.float32)), 1, 2)
    assert_same(values(opt), values(ref))


def test_zero_accumulate_raises() -> None:
    with pytest.raises(ValueError, match="accumulate must be a whole number from 1 on, not 0"):
        optim.Adam(params_of(torch.float32), accumulate=0)


@pytest.mark.parametrize("cls", [optim.SGD, tensorflow.Adam])
def test_step_without_groups(cls: Any) -> None:
    optimizer = cls([torch.nn.Parameter(torch.ones(3))], lr=0.1, accumulate=2)
    optimizer.param_groups.clear()
    optimizer.step()
    assert optimizer.last_step is not None
    assert not optimizer.last_step.taken


@pytest.mark.parametrize("calls", [1, 3, 4])
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("by_file", [False, True])
def test_unused_sums_are_dropped(name: str, calls: int, by_file: bool, tmp_path: Path) -> None:
    """Stale sums would be added to gradients if accumulation is enabled later."""
    source = accumulate(MAKERS[name](params_of(torch.float32, ROWS), accumulate=2), calls)
    opt = MAKERS[name](params_of(torch.float32, ROWS))

    def load() -> None:
        if not by_file:
            opt.load_state_dict(source.state_dict())
            return
        checkpoint.save(tmp_path / "run", optimizer=source)
        checkpoint.restore(tmp_path / "run", optimizer=opt, check_arguments=False)

    if calls % 2:
        with pytest.warns(CheckpointWarning, match="sums of gradients .* are left behind"):
            load()
    else:
        load()
    assert not any("gradient_sum" in state for state in opt.state.values())
    assert not any(group.get("folded") for group in opt.param_groups)
    set_grads(opt.param_groups[0]["params"], 9)
    opt.step()
    assert opt.last_step is not None
    assert opt.last_step.count == 1


def on_its_parameter(params: list[torch.Tensor], sums: list[torch.Tensor]) -> str:
    sums[1].data = params[1].data
    return "share memory"


def on_another_parameter(params: list[torch.Tensor], sums: list[torch.Tensor]) -> str:
    params[0].data = sums[1].detach()
    return "share memory"


def on_another_sum(params: list[torch.Tensor], sums: list[torch.Tensor]) -> str:
    sums[1].data = sums[0].data
    return "share memory"


def expand(params: list[torch.Tensor], sums: list[torch.Tensor]) -> str:
    sums[1].data = torch.ones(1).expand(3)
    return "its elements share memory"


@pytest.mark.parametrize("change", [on_its_parameter, on_another_parameter, on_another_sum, expand])
@pytest.mark.parametrize("cls", [optim.SGD, tensorflow.SGD])
def test_sums_that_share_memory_raise(cls: Any, change: Any) -> None:
    params = [torch.nn.Parameter(torch.full((3,), 2.0)) for _ in range(2)]
    opt = cls(params, lr=0.5, accumulate=3)
    for param in params:
        param.grad = torch.ones(3)
    opt.step()
    sums = [opt.state[param]["gradient_sum"] for param in params]
    message = change(params, sums)
    for param in params:
        param.grad = torch.ones(3)
    previous = repr(opt.state_dict()), [param.tolist() for param in params]
    with pytest.raises(LayoutError, match=message):
        opt.step()
    assert (repr(opt.state_dict()), [param.tolist() for param in params]) == previous


def test_gradients_in_memory_of_sums() -> None:
    params = [torch.nn.Parameter(torch.zeros(3)) for _ in range(3)]
    opt = optim.SGD(params, lr=1.0, accumulate=2)
    for number, param in enumerate(params):
        param.grad = torch.full((3,), 1.0 + number)
    opt.step()
    sums = [opt.state[param]["gradient_sum"].detach() for param in params]
    params[0].grad, params[1].grad, params[2].grad = sums[0], sums[0], sums[1]
    opt.step()
    assert [param.tolist() for param in params] == [[-2.0] * 3, [-3.0] * 3, [-5.0] * 3]


@pytest.mark.parametrize("name", MAKERS)
def test_unused_pass_count_is_dropped_at_load(name: str) -> None:
    """Stale pass counts would trigger a step too early if accumulation is enabled later."""
    source = MAKERS[name](params_of(torch.float32, ROWS), accumulate=2)
    source.step()
    opt = MAKERS[name](params_of(torch.float32, ROWS))
    opt.load_state_dict(source.state_dict())
    assert not any(group.get("folded") for group in opt.param_groups)
