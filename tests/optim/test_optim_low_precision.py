"""Parameters of 16 bits: masters in float32, states of a dtype by choice, files without loss."""

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


def mixed() -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    kinds = (torch.bfloat16, torch.float32, torch.float16)
    return [
        torch.randn(shape, generator=made).to(kind).requires_grad_()
        for shape, kind in zip((*ROWS, (3,)), kinds, strict=True)
    ]


def wide(params: list[torch.Tensor]) -> list[torch.Tensor]:
    return [param.detach().float().clone().requires_grad_() for param in params]


def steps(made: Any, count: int, first: int = 0, sparse: bool = False) -> Any:
    params = made.param_groups[0]["params"]
    for step in range(first, first + count):
        set_grads(params, step, sparse)
        made.step()
    return made


def both(name: str, count: int, sparse: bool = False, **options: Any) -> tuple[Any, Any]:
    """An optimizer with masters, and one of float32 parameters that gets the same gradients."""
    narrow = MAKERS[name](mixed()[: 2 + (not sparse)], masters=True, **options)
    params = narrow.param_groups[0]["params"]
    other = MAKERS[name](wide(params), **options)
    for step in range(count):
        set_grads(params, step, sparse)
        for param, copied in zip(params, other.param_groups[0]["params"], strict=True):
            copied.grad = param.grad.float()
        narrow.step()
        other.step()
    return narrow, other


def assert_followed(narrow: Any, other: Any) -> None:
    for param, copied in zip(*(o.param_groups[0]["params"] for o in (narrow, other)), strict=True):
        own, theirs = narrow.state[param], dict(other.state[copied])
        if param.dtype != torch.float32:
            theirs["master"] = copied.detach()
            assert_same([param.detach()], [saturated(copied, param.dtype)])
        assert list(own) == list(theirs)
        floats = [key for key in own if key != "step"]
        assert_same([own[key] for key in floats], [theirs[key] for key in floats])


@pytest.mark.parametrize("name", MAKERS)
def test_steps_are_those_of_the_masters(name: str) -> None:
    assert_followed(*both(name, 4))


def test_masters_beside_clipping_and_averages() -> None:
    assert_followed(*both("Adam", 4, clip_grad_norm=1.0, ema_decay=0.9))


def test_rows_of_masters() -> None:
    narrow, other = both("tensorflow", 3, sparse=True)
    assert_followed(narrow, other)


# What others write, on two parameters alike; the types of numbers differ.
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


def written(name: str, write: Any, kind: torch.dtype, sparse: bool, **options: Any) -> None:
    """A step after a write begins at what was written, and at masters elsewhere, to the bit."""
    made, count = torch.Generator().manual_seed(1), 2 if sparse else 3
    shapes = (*ROWS, (3,))[:count]
    params = [torch.randn(each, generator=made).to(kind).requires_grad_() for each in shapes]
    narrow = MAKERS[name](params, masters=True, **options)
    other = MAKERS[name](wide(params), **options)
    copied = other.param_groups[0]["params"]
    for step in range(4):
        if step == 2:
            for param, twin in zip(params, copied, strict=True):
                before = param.detach().clone()
                with torch.no_grad():
                    write(param)
                    differs = param.view(torch.int16) != before.view(torch.int16)
                    twin[differs] = param[differs].float()
        set_grads(params, step, sparse)
        for param, twin in zip(params, copied, strict=True):
            twin.grad = param.grad.float()
        narrow.step()
        other.step()
        assert_followed(narrow, other)


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_what_others_write_to_a_parameter_counts(name: str, kind: torch.dtype, write: Any) -> None:
    written(name, write, kind, sparse=False)


@pytest.mark.parametrize(
    "options", [{"ema_decay": 0.9}, {"clip_grad_norm": 0.5}, {"clip_grad_value": 0.1}], ids=str
)
def test_what_others_write_counts_beside_options(options: dict[str, Any]) -> None:
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine):
            written("Adam", WRITES["a clamp"], torch.bfloat16, sparse=False, **options)


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_what_others_write_to_rows_counts(write: Any) -> None:
    """When a gradient names the row; until then it stays where it was written."""
    written("tensorflow", write, torch.bfloat16, sparse=True)
    param = torch.nn.Parameter(torch.ones(4, 2, dtype=torch.bfloat16))
    made = tensorflow.LazyAdam([param], lr=0.1, masters=True)
    for rows in ([0, 1, 2, 3], [0], [1]):
        values = torch.ones(len(rows), 2, dtype=torch.bfloat16)
        param.grad = torch.sparse_coo_tensor(
            torch.tensor([rows]), values, (4, 2), check_invariants=True
        )
        made.step()
        if len(rows) == 4:
            param.data[1:3] = 7.0
    assert param[1].tolist() == [float(torch.tensor(6.9).bfloat16())] * 2
    assert param[2].tolist() == [7.0, 7.0]


@pytest.mark.parametrize("rule", [LARS, NESTEROV_LARS], ids=["plain", "nesterov"])
def test_a_norm_of_what_others_wrote(rule: Any) -> None:
    """LARS measures where the step begins."""
    params = [torch.randn(9, 4).bfloat16().requires_grad_()]
    narrow = optim.RuleOptimizer(params, rule, lr=0.1, masters=True)
    other = optim.RuleOptimizer(wide(params), rule, lr=0.1)
    (copied,) = other.param_groups[0]["params"]
    for step in range(3):
        set_grads(params, step)
        copied.grad = params[0].grad.float()  # pyright: ignore
        narrow.step()
        other.step()
        assert_followed(narrow, other)
        params[0].data.fill_(3.0 + step)
        copied.data.fill_(3.0 + step)


@pytest.mark.parametrize("name", MAKERS)
def test_a_model_that_is_loaded_between_steps(name: str) -> None:
    model = torch.nn.Linear(5, 3).bfloat16()
    made = MAKERS[name](model.parameters(), masters=True, ema_decay=0.9, accumulate=2)
    kept = copy.deepcopy(model.state_dict())
    for step in range(4):
        set_grads(list(model.parameters()), step)
        made.step()
    with made.swapped():
        averages = copy.deepcopy(model.state_dict())
    masters = [made.state[param]["master"].clone() for param in model.parameters()]
    for state in (kept, averages):
        model.load_state_dict(state)
        before = [param.detach().clone() for param in model.parameters()]
        for param in model.parameters():
            param.grad = torch.zeros_like(param)
        made.param_groups[0]["lr"] = 0.0
        made.step()
        assert_same([param.detach() for param in model.parameters()], before)  # one of two
        made.step()
        assert_same([param.detach() for param in model.parameters()], before)
        own = [made.state[param]["master"] for param in model.parameters()]
        assert_same([each.bfloat16() for each in own], before)
        assert not any(map(torch.equal, own, masters))


def test_averages_swapped_in_and_out_leave_masters() -> None:
    narrow, other = both("Adam", 2, ema_decay=0.9)
    for step in range(2, 4):
        with narrow.swapped():
            pass
        params = narrow.param_groups[0]["params"]
        set_grads(params, step)
        for one, two in zip(params, other.param_groups[0]["params"], strict=True):
            two.grad = one.grad.float()
        narrow.step()
        other.step()
    assert_followed(narrow, other)


def test_an_average_begins_at_what_others_wrote() -> None:
    param = torch.ones(3, dtype=torch.bfloat16).requires_grad_()
    made = steps(optim.SGD([param], lr=0.0, masters=True), 1)
    state = made.state_dict()
    state["state"][0]["ema"] = torch.zeros(3)
    later = optim.SGD([param], lr=0.0, masters=True, ema_decay=0.5)
    later.load_state_dict(state)
    del later.state[param]["ema"]
    param.data.fill_(5.0)
    steps(later, 1, 1)
    assert later.state[param]["ema"].tolist() == [5.0] * 3


@pytest.mark.parametrize("name", MAKERS)
def test_masters_are_saved(name: str) -> None:
    made = steps(MAKERS[name](mixed(), masters=True), 3)
    file = io.BytesIO()
    torch.save(made.state_dict(), file)
    file.seek(0)
    params = [p.detach().clone().requires_grad_() for p in made.param_groups[0]["params"]]
    loaded = MAKERS[name](params, masters=True)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for resumed in (loaded, copy.deepcopy(made), made):
        steps(resumed, 3, 3)
    for other in (loaded, copy.deepcopy(made)):
        assert_same(
            [p.detach() for p in other.param_groups[0]["params"]],
            [p.detach() for p in made.param_groups[0]["params"]],
        )
    plain = steps(MAKERS[name](mixed()), 1)
    with pytest.warns(CheckpointWarning, match="has no 'master', which begins at the parameters"):
        loaded.load_state_dict(plain.state_dict())


def test_masters_of_a_rule_without_slots_are_saved() -> None:
    made = steps(optim.SGD(mixed(), lr=0.1, masters=True), 3)
    params = [p.detach().clone().requires_grad_() for p in made.param_groups[0]["params"]]
    assert [list(made.state[p]) for p in made.state] == [["master"], ["master"]]
    loaded = optim.SGD(params, lr=0.1, masters=True)
    loaded.load_state_dict(copy.deepcopy(made.state_dict()))
    for resumed in (loaded, made):
        steps(resumed, 3, 3)
    assert_same([p.detach() for p in params], [p.detach() for p in made.param_groups[0]["params"]])


@pytest.mark.parametrize("name", MAKERS)
def test_states_of_a_dtype_by_choice(name: str) -> None:
    made = steps(MAKERS[name](mixed(), state_dtype=torch.bfloat16), 2)
    kinds = {v.dtype for own in made.state.values() for k, v in own.items() if k != "step"}
    assert kinds == {torch.bfloat16}
    params = [p.detach().clone().requires_grad_() for p in made.param_groups[0]["params"]]
    other = MAKERS[name](params, state_dtype=torch.bfloat16)
    other.load_state_dict(copy.deepcopy(made.state_dict()))
    for each in (made, other):
        steps(each, 2, 2)
    assert_same([p.detach() for p in params], [p.detach() for p in made.param_groups[0]["params"]])
    with pytest.raises(TypeError, match=r"state_dtype must be .* not torch.int8"):
        MAKERS[name](mixed(), state_dtype=torch.int8)
