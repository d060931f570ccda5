"""16-bit parameters: float32 master weights, `state_dtype`, lossless files."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch

import thalweg
from rulebook import assert_same
from thalweg import optim
from thalweg._engines import saturated
from thalweg.errors import CheckpointWarning
from thalweg.optim import tensorflow
from thalweg.rules.lars import LARS, NESTEROV_LARS
from torch_inputs import ROWS, set_grads

MAKERS: dict[str, Any] = {
    "Adam": lambda p, **o: optim.Adam(p, lr=0.1, **o),
    "momentum": lambda p, **o: optim.SGD(p, lr=0.1, momentum=0.9, **o),
    "tensorflow": lambda p, **o: tensorflow.Adam(p, lr=0.1, **o),
}


def mixed_params() -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    dtypes = (torch.bfloat16, torch.float32, torch.float16)
    return [
        torch.randn(shape, generator=rng).to(dtype).requires_grad_()
        for shape, dtype in zip((*ROWS, (3,)), dtypes, strict=True)
    ]


def wide(params: list[torch.Tensor]) -> list[torch.Tensor]:
    return [param.detach().float().clone().requires_grad_() for param in params]


def steps(opt: Any, count: int, first: int = 0, sparse: bool = False) -> Any:
    params = opt.param_groups[0]["params"]
    for step in range(first, first + count):
        set_grads(params, step, sparse)
        opt.step()
    return opt


def train_both(name: str, count: int, sparse: bool = False, **options: Any) -> tuple[Any, Any]:
    """Return an optimizer with masters and one of float32 parameters, after equal gradients."""
    with_masters = MAKERS[name](mixed_params()[: 2 + (not sparse)], masters=True, **options)
    params = with_masters.param_groups[0]["params"]
    reference = MAKERS[name](wide(params), **options)
    for step in range(count):
        set_grads(params, step, sparse)
        for param, ref_param in zip(params, reference.param_groups[0]["params"], strict=True):
            ref_param.grad = param.grad.float()
        with_masters.step()
        reference.step()
    return with_masters, reference


def assert_same_weights(with_masters: Any, reference: Any) -> None:
    for param, ref_param in zip(
        *(o.param_groups[0]["params"] for o in (with_masters, reference)), strict=True
    ):
        slots, expected = with_masters.state[param], dict(reference.state[ref_param])
        if param.dtype != torch.float32:
            expected["master"] = ref_param.detach()
            assert_same([param.detach()], [saturated(ref_param, param.dtype)])
        assert list(slots) == list(expected)
        floats = [key for key in slots if key != "step"]
        assert_same([slots[key] for key in floats], [expected[key] for key in floats])


@pytest.mark.parametrize("name", MAKERS)
def test_step_updates_masters(name: str) -> None:
    assert_same_weights(*train_both(name, 4))


def test_masters_with_clipping_and_ema() -> None:
    assert_same_weights(*train_both("Adam", 4, clip_grad_norm=1.0, ema_decay=0.9))


def test_masters_with_sparse_rows() -> None:
    with_masters, reference = train_both("tensorflow", 3, sparse=True)
    assert_same_weights(with_masters, reference)


# Writes by users to a parameter.
WRITES: dict[str, Any] = {
    "an element": lambda p: p[0].fill_(3.0),
    "by data": lambda p: p.data[0].fill_(3.0),
    "a clamp": lambda p: p.data.clamp_(-0.25, 0.25),
    "a detached view": lambda p: p.detach().view(-1)[::2].zero_(),
    "-0": lambda p: p.data.fill_(-0.0),
    "copied": lambda p: p.data.copy_(torch.linspace(-8, 8, p.numel()).view(p.shape)),
    "NumPy": lambda p: p.data.view(torch.int16).numpy().fill(0x3C00),
    "not finite": lambda p: p.data[:1].fill_(float("inf")),
    "other memory": lambda p: setattr(p, "data", p.data * 2),
}


def check_write(name: str, write: Any, dtype: torch.dtype, sparse: bool, **options: Any) -> None:
    """Assert that a step starts from written elements, and from masters elsewhere."""
    rng, count = torch.Generator().manual_seed(1), 2 if sparse else 3
    shapes = (*ROWS, (3,))[:count]
    params = [torch.randn(shape, generator=rng).to(dtype).requires_grad_() for shape in shapes]
    with_masters = MAKERS[name](params, masters=True, **options)
    reference = MAKERS[name](wide(params), **options)
    twins = reference.param_groups[0]["params"]
    for step in range(4):
        if step == 2:
            for param, twin in zip(params, twins, strict=True):
                previous = param.detach().clone()
                with torch.no_grad():
                    write(param)
                    differs = param.view(torch.int16) != previous.view(torch.int16)
                    twin[differs] = param[differs].float()
        set_grads(params, step, sparse)
        for param, twin in zip(params, twins, strict=True):
            twin.grad = param.grad.float()
        with_masters.step()
        reference.step()
        assert_same_weights(with_masters, reference)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_user_writes_are_used(name: str, dtype: torch.dtype, write: Any) -> None:
    check_write(name, write, dtype, sparse=False)


@pytest.mark.parametrize(
    "options", [{"ema_decay": 0.9}, {"clip_grad_norm": 0.5}, {"clip_grad_value": 0.1}], ids=str
)
def test_user_writes_with_options(options: dict[str, Any]) -> None:
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine):
            check_write("Adam", WRITES["a clamp"], torch.bfloat16, sparse=False, **options)


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_user_writes_to_rows(write: Any) -> None:
    """A written row is used as soon as a gradient names the row."""
    check_write("tensorflow", write, torch.bfloat16, sparse=True)
    param = torch.nn.Parameter(torch.ones(4, 2, dtype=torch.bfloat16))
    opt = tensorflow.LazyAdam([param], lr=0.1, masters=True)
    for rows in ([0, 1, 2, 3], [0], [1]):
        values = torch.ones(len(rows), 2, dtype=torch.bfloat16)
        param.grad = torch.sparse_coo_tensor(
            torch.tensor([rows]), values, (4, 2), check_invariants=True
        )
        opt.step()
        if len(rows) == 4:
            param.data[1:3] = 7.0
    assert param[1].tolist() == [float(torch.tensor(6.9).bfloat16())] * 2
    assert param[2].tolist() == [7.0, 7.0]


@pytest.mark.parametrize("rule", [LARS, NESTEROV_LARS], ids=["plain", "nesterov"])
def test_norm_after_user_write(rule: Any) -> None:
    """LARS measures the weights at the start of the step."""
    params = [torch.randn(9, 4).bfloat16().requires_grad_()]
    with_masters = optim.RuleOptimizer(params, rule, lr=0.1, masters=True)
    reference = optim.RuleOptimizer(wide(params), rule, lr=0.1)
    (ref_param,) = reference.param_groups[0]["params"]
    for step in range(3):
        set_grads(params, step)
        ref_param.grad = params[0].grad.float()  # pyright: ignore
        with_masters.step()
        reference.step()
        assert_same_weights(with_masters, reference)
        params[0].data.fill_(3.0 + step)
        ref_param.data.fill_(3.0 + step)


@pytest.mark.parametrize("name", MAKERS)
def test_model_loaded_between_steps(name: str) -> None:
    model = torch.nn.Linear(5, 3).bfloat16()
    opt = MAKERS[name](model.parameters(), masters=True, ema_decay=0.9, accumulate=2)
    start = copy.deepcopy(model.state_dict())
    for step in range(4):
        set_grads(list(model.parameters()), step)
        opt.step()
    with opt.swapped():
        averages = copy.deepcopy(model.state_dict())
    masters = [opt.state[param]["master"].clone() for param in model.parameters()]
    for state in (start, averages):
        model.load_state_dict(state)
        previous = [param.detach().clone() for param in model.parameters()]
        for param in model.parameters():
            param.grad = torch.zeros_like(param)
        opt.param_groups[0]["lr"] = 0.0
        opt.step()
        assert_same([param.detach() for param in model.parameters()], previous)  # one of two
        opt.step()
        assert_same([param.detach() for param in model.parameters()], previous)
        masters_now = [opt.state[param]["master"] for param in model.parameters()]
        assert_same([tensor.bfloat16() for tensor in masters_now], previous)
        assert not any(map(torch.equal, masters_now, masters))


def test_swapped_keeps_masters() -> None:
    with_masters, reference = train_both("Adam", 2, ema_decay=0.9)
    for step in range(2, 4):
        with with_masters.swapped():
            pass
        params = with_masters.param_groups[0]["params"]
        set_grads(params, step)
        for param, ref_param in zip(params, reference.param_groups[0]["params"], strict=True):
            ref_param.grad = param.grad.float()
        with_masters.step()
        reference.step()
    assert_same_weights(with_masters, reference)


def test_average_starts_at_user_write() -> None:
    param = torch.ones(3, dtype=torch.bfloat16).requires_grad_()
    opt = steps(optim.SGD([param], lr=0.0, masters=True), 1)
    state = opt.state_dict()
    state["state"][0]["ema"] = torch.zeros(3)
    later = optim.SGD([param], lr=0.0, masters=True, ema_decay=0.5)
    later.load_state_dict(state)
    del later.state[param]["ema"]
    param.data.fill_(5.0)
    steps(later, 1, 1)
    assert later.state[param]["ema"].tolist() == [5.0] * 3


@pytest.mark.parametrize("name", MAKERS)
def test_masters_are_saved(name: str) -> None:
    opt = steps(MAKERS[name](mixed_params(), masters=True), 3)
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    params = [param.detach().clone().requires_grad_() for param in opt.param_groups[0]["params"]]
    loaded = MAKERS[name](params, masters=True)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for resumed in (loaded, copy.deepcopy(opt), opt):
        steps(resumed, 3, 3)
    for resumed in (loaded, copy.deepcopy(opt)):
        assert_same(
            [param.detach() for param in resumed.param_groups[0]["params"]],
            [param.detach() for param in opt.param_groups[0]["params"]],
        )
    source = steps(MAKERS[name](mixed_params()), 1)
    with pytest.warns(CheckpointWarning, match="has no 'master', which begins at the parameters"):
        loaded.load_state_dict(source.state_dict())


def test_masters_of_a_rule_without_slots_are_saved() -> None:
    opt = steps(optim.SGD(mixed_params(), lr=0.1, masters=True), 3)
    params = [param.detach().clone().requires_grad_() for param in opt.param_groups[0]["params"]]
    assert [list(opt.state[param]) for param in opt.state] == [["master"], ["master"]]
    loaded = optim.SGD(params, lr=0.1, masters=True)
    loaded.load_state_dict(copy.deepcopy(opt.state_dict()))
    for resumed in (loaded, opt):
        steps(resumed, 3, 3)
    assert_same([p.detach() for p in params], [p.detach() for p in opt.param_groups[0]["params"]])


@pytest.mark.parametrize("name", MAKERS)
def test_state_dtype_sets_slot_dtypes(name: str) -> None:
    opt = steps(MAKERS[name](mixed_params(), state_dtype=torch.bfloat16), 2)
    dtypes = {v.dtype for state in opt.state.values() for k, v in state.items() if k != "step"}
    assert dtypes == {torch.bfloat16}
    params = [param.detach().clone().requires_grad_() for param in opt.param_groups[0]["params"]]
    loaded = MAKERS[name](params, state_dtype=torch.bfloat16)
    loaded.load_state_dict(copy.deepcopy(opt.state_dict()))
    for stepped in (opt, loaded):
        steps(stepped, 2, 2)
    assert_same([p.detach() for p in params], [p.detach() for p in opt.param_groups[0]["params"]])
    with pytest.raises(TypeError, match=r"state_dtype must be .* not torch.int8"):
        MAKERS[name](mixed_params(), state_dtype=torch.int8)
