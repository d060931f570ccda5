"""Steps inside of `torch.compile`: as operations of a graph, and as graph breaks."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thalweg
from thalweg import optim
from thalweg.errors import FailedPreconditionError
from thalweg.optim import tensorflow
from thalweg.rules import LARS
from torch_inputs import INPUTS

Make = Callable[[Any], Any]
Change = Callable[[Any, int], None]
BACKENDS = ("eager", "aot_eager")

MAKE: dict[str, Make] = {
    "AdamW": lambda p: optim.AdamW(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "tensorflow.Adam": lambda p: tensorflow.Adam(p, lr=0.1),
    "RuleOptimizer": lambda p: optim.RuleOptimizer(p, LARS, lr=0.1),
}

# What leaves tensors of its own beside, or sees gradients before the rule does.
OPTIONS: dict[str, tuple[Make, torch.dtype]] = {
    "groups": (
        lambda p: optim.SGD([{"params": p[:1], "momentum": 0.9}, {"params": p[1:]}], lr=0.1),
        torch.float32,
    ),
    "masters": (lambda p: optim.Adam(p, lr=0.1, masters=True, ema_decay=0.9), torch.bfloat16),
    "clipped": (lambda p: tensorflow.Nadam(p, lr=0.1, clip_grad_norm=0.1), torch.float32),
    "flat": (lambda p: optim.RMSprop(p, lr=0.1, gradients="flat"), torch.float32),
    "wrapped": (lambda p: optim.AdamW(p, lr=0.1, cautious=True, sphere=True), torch.float32),
    "wrapped in others": (
        lambda p: optim.AdamW(
            [param for param in p if param.dim() == 2],
            lr=0.1,
            cautious_decay=True,
            trust_ratio=True,
            radial_brake=True,
            row_floor=True,
        ),
        torch.float32,
    ),
    "rate in a tensor": (lambda p: optim.Adam(p, lr=torch.tensor(0.1)), torch.float32),
}


def _counting(backend: str) -> Any:
    """Return a backend that counts its graphs."""
    from torch._dynamo.testing import CompileCounterWithBackend  # takes seconds

    return CompileCounterWithBackend(backend)


def _model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def _loss(module: nn.Module, index: int = 0) -> torch.Tensor:
    x = torch.full((5, 3), 0.1 * (index + 1), dtype=next(module.parameters()).dtype)
    return module(x).square().sum()


def _state(module: nn.Module, opt: Any) -> list[torch.Tensor]:
    slots = [torch.as_tensor(value) for state in opt.state.values() for value in state.values()]
    return [tensor.detach().clone() for tensor in (*module.parameters(), *slots)]


def _trained(
    make: Make,
    backend: Any = None,
    dtype: torch.dtype = torch.float32,
    change: Change = lambda opt, index: None,
    steps: int = 4,
) -> list[torch.Tensor]:
    """Return parameters and state after steps with gradients from outside of the graph."""
    module = _model(dtype)
    opt = make(list(module.parameters()))
    step = opt.step
    if backend is not None:
        step = torch.compile(step, fullgraph=True, backend=backend)
    for index in range(steps):
        _loss(module, index).backward()
        step()
        opt.zero_grad()
        change(opt, index)
    return _state(module, opt)


def _assert_same(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(actual) == len(expected)
    for first, second in zip(actual, expected, strict=True):
        assert first.dtype == second.dtype
        assert torch.equal(first, second)


@pytest.fixture(autouse=True)
def anew():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _scheduled(make: Make) -> tuple[Make, Change]:
    """Return an optimizer with a torch schedule and a user-written scalar."""
    rates: list[Any] = []

    def made(params: Any) -> Any:
        opt = make(params)
        rates.append(optim.lr_scheduler.ExponentialLR(opt, 0.9))
        return opt

    def change(opt: Any, index: int) -> None:
        rates[-1].step()
        if index == 2:
            opt.param_groups[0]["lr"] = 0.01

    return made, change


@pytest.mark.one_in(3)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MAKE)
def test_steps_have_the_bits_of_eager_mode_and_compile_no_rate(name: str, backend: str) -> None:
    make, change = _scheduled(MAKE[name])
    counter = _counting(backend)
    actual = _trained(make, counter, change=change, steps=6)
    _assert_same(actual, _trained(make, change=change, steps=6))
    # Once more if the first step made the state, which is written by the graph from then on.
    is_eager_state = isinstance(make([nn.Parameter(torch.ones(2))]), optim.RuleOptimizer)
    assert counter.frame_count == (1 if is_eager_state else 2)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.one_in(3)
def test_options_have_the_bits_of_eager_mode(name: str) -> None:
    make, dtype = OPTIONS[name]
    _assert_same(_trained(make, "aot_eager", dtype), _trained(make, dtype=dtype))


# The first and the last arguments of each class.
ENDS = [
    (name, end) for name in dict.fromkeys(case.name for case in INPUTS) for end in (0, -1)
    if name != "SparseAdam"
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", [[x for x in INPUTS if x.name == n][end] for n, end in ENDS])
def test_every_torch_class_compiles(case: Any) -> None:
    def make(params: Any) -> Any:
        return case.make(optim, params)

    _assert_same(_trained(make, "aot_eager"), _trained(make))


@pytest.mark.slow
@pytest.mark.parametrize("name", tensorflow.__all__)
def test_every_tensorflow_class_compiles(name: str) -> None:
    make = getattr(tensorflow, name)
    _assert_same(_trained(make, "aot_eager"), _trained(make))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
@pytest.mark.parametrize("name", [*MAKE, *OPTIONS])
def test_inductor_steps_equal_eager_steps(name: str) -> None:
    def change(opt: Any, index: int) -> None:
        for state in opt.state.values():
            if "step" in state:
                state["step"].fill_(index + 7)  # is seen only where views share a version

    make, dtype = OPTIONS.get(name) or (MAKE[name], torch.float32)
    actual = _trained(make, "inductor", dtype, change)
    _assert_same(actual, _trained(make, dtype=dtype, change=change))


def test_compiled_step_has_no_graph_break() -> None:
    module = _model()
    opt = optim.AdamW(module.parameters())
    optim.lr_scheduler.ConstantLR(opt)
    _loss(module).backward()

    def step(x: Tensor) -> torch.Tensor:
        x = x + 1
        opt.step()
        opt.zero_grad()
        return x * 2

    explained = torch._dynamo.explain(step)(torch.ones(2))
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    assert "thalweg.step" in explained.graphs[0].code
    assert opt.param_groups[0]["capturable"] is False  # which torch would have changed


def test_compiled_step_raises_the_errors_of_torch() -> None:
    module = _model()
    opt = optim.AdamW(module.parameters(), capturable=True)
    _loss(module).backward()
    previous = [param.detach().clone() for param in module.parameters()]
    step = torch.compile(opt.step, fullgraph=True, backend="aot_eager")
    for step_function in (opt.step, step):
        with pytest.raises(AssertionError, match="capturable=True"):
            step_function()
    _assert_same(list(module.parameters()), previous)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["AdamW", "tensorflow.Adam"])
def test_a_whole_training_is_one_graph(name: str, backend: str) -> None:
    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        pytest.skip("torch breaks for `backward`")

    def losses(compiles: bool) -> list[torch.Tensor]:
        module = _model()
        opt = MAKE[name](module.parameters())

        def train(x: Tensor) -> torch.Tensor:
            loss = module(x).square().sum()
            loss.backward()
            opt.step()
            # Not before `backward`: torch 2.13 takes what it then knows of None to other graphs.
            opt.zero_grad()
            return loss.detach()

        if compiles:
            train = torch.compile(train, fullgraph=True, backend=backend)
        actual = [train(torch.full((5, 3), 0.1 * (index + 1))) for index in range(4)]
        return actual + _state(module, opt)

    with torch._dynamo.config.patch(trace_autograd_ops=True):
        _assert_same(losses(True), losses(False))


@pytest.mark.parametrize("backend", [*BACKENDS, pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_graph_reads_current_parameters(backend: str) -> None:
    def found(compiles: bool) -> list[torch.Tensor]:
        module = _model()
        params = list(module.parameters())
        opt = MAKE["momentum"](params)

        def step() -> list[torch.Tensor]:
            doubled = [param * 2 for param in params]
            opt.step()
            shifted = [param + 1 for param in params]
            opt.step()
            differences = [old - param for old, param in zip(doubled, params, strict=True)]
            return [tensor.detach() for tensor in (*doubled, *shifted, *differences)]

        if compiles:
            step = torch.compile(step, fullgraph=True, backend=backend)
        tensors: list[torch.Tensor] = []
        for index in range(3):
            _loss(module, index).backward()
            tensors += step()
        return tensors + _state(module, opt)

    _assert_same(found(True), found(False))


@pytest.mark.parametrize("name", ["AdamW", "tensorflow.Adam"])
def test_a_state_that_is_loaded_needs_no_other_graph(name: str) -> None:
    def change(opt: Any, index: int) -> None:
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))

    counter = _counting("aot_eager")
    actual = _trained(MAKE[name], counter, change=change, steps=6)
    _assert_same(actual, _trained(MAKE[name], change=change, steps=6))
    assert counter.frame_count <= 2


def test_gradients_may_appear_and_disappear() -> None:
    def found(compiles: bool) -> list[torch.Tensor]:
        module = _model()
        opt = MAKE["AdamW"](module.parameters())
        step = opt.step
        if compiles:
            step = torch.compile(step, fullgraph=True, backend=counter)
        for index in range(12):
            _loss(module[:2] if index % 3 == 1 else module, index).backward()
            step()
            opt.zero_grad()
        return _state(module, opt)

    counter = _counting("aot_eager")
    _assert_same(found(True), found(False))
    assert counter.frame_count == 3


def test_added_parameters_are_compiled() -> None:
    def change(opt: Any, index: int) -> None:
        if index == 1:
            params.append(nn.Parameter(torch.ones(3)))
            opt.add_param_group({"params": params[-1:], "lr": 0.5})
        if index >= 1:
            params[-1].grad = torch.ones(3)

    params: list[nn.Parameter] = []
    for name in ("momentum", "tensorflow.Adam"):
        actual = _trained(MAKE[name], "aot_eager", change=change)
        _assert_same(actual, _trained(MAKE[name], change=change))
        assert torch.equal(*params)
        params.clear()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_that_fails_changes_nothing(backend: str) -> None:
    module = _model()
    opt = optim.Adam(module.parameters(), ema_decay=0.5)
    step = torch.compile(opt.step, fullgraph=True, backend=backend)
    for _ in range(2):
        _loss(module).backward()
        step()
    with opt.swapped():
        previous = _state(module, opt)
        with pytest.raises(FailedPreconditionError, match="inside of swapped"):
            step()
        _assert_same(_state(module, opt), previous)


@pytest.mark.parametrize("name", ["closure", "accumulate", "in_backward", "subclass", "sparse"])
def test_unsupported_options_break_the_graph_or_raise_with_advice(name: str) -> None:
    def prepared() -> tuple[Any, list[Any]]:
        params: list[Any] = [nn.Parameter(torch.ones(3, 2))]
        if name == "subclass":
            params = [thalweg.Variable(torch.ones(3, 2))]
        options: dict[str, Any] = {name: 2} if name == "accumulate" else {}
        options |= {name: True} if name == "in_backward" else {}
        opt = optim.SGD(params, lr=0.1, **options)
        grad = torch.ones(3, 2)
        params[0].grad = grad.to_sparse(1) if name == "sparse" else grad
        arguments = (lambda: 3.0,) if name == "closure" else ()

        def step(x: Tensor) -> torch.Tensor:
            x = x + 1
            opt.step(*arguments)
            return x * 2

        return step, params

    step, params = prepared()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="a step of thalweg is no operation"):
        torch.compile(step, fullgraph=True, backend="eager")(torch.ones(2))
    assert params[0].tolist() == torch.ones(3, 2).tolist()
    torch._dynamo.reset()
    step, params = prepared()
    assert torch._dynamo.explain(step)(torch.ones(2)).graph_break_count == 1
    eager, eager_params = prepared()
    eager(torch.ones(2))
    assert params[0].tolist() == eager_params[0].tolist()


def test_compiled_operation_declares_its_mutations() -> None:
    module = _model()
    opt = MAKE["AdamW"](module.parameters())
    for _ in range(2):
        _loss(module).backward()
        torch.compile(opt.step, fullgraph=True, backend="eager")()
    operands = opt.step_cache.operands
    gradients = [param.grad for param in operands.parameters]
    with torch.no_grad():
        operand_values = (operands.handle, operands.parameters, operands.slots, gradients)
        torch.library.opcheck(torch.ops.thalweg.step.default, operand_values)


@pytest.mark.parametrize("is_first", [True, False])
def test_scheduler_ahead_of_steps_warns(is_first: bool) -> None:
    param = nn.Parameter(torch.ones(2))
    param.grad = torch.ones(2)
    opt = MAKE["AdamW"]([param])
    rate = optim.lr_scheduler.ConstantLR(opt)
    if not is_first:
        torch.compile(opt.step, fullgraph=True, backend="eager")()
    warns = pytest.warns(UserWarning, match="before") if is_first else contextlib.nullcontext()
    with warns:
        rate.step()
