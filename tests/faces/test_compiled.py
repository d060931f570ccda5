"""Steps inside of functions that `torch.compile` compiles: a break, and the bits of eager mode."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thalweg
from thalweg import v1
from thalweg._base import tracing
from thalweg.keras import optimizers as keras
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.schedules import ExponentialDecay

# Dynamo looks at `.grad` of everything, and says so where a loss is not a leaf.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")

Step = Callable[[torch.Tensor], Any]
Compile = Callable[[Step], Any]


def _model() -> list[Any]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(3, 2)), thalweg.Variable(torch.randn(2), name="b")]


def _loss(weights: list[Any], x: Tensor) -> torch.Tensor:
    return ((x @ weights[0]).tanh() + weights[1]).square().sum()


def applied(make: Callable[..., Any]) -> Callable[[], tuple[Step, list[Any]]]:
    """Steps by gradients that were computed in the compiled function."""

    def prepare() -> tuple[Step, list[Any]]:
        weights, optimizer = _model(), make()

        def step(x: Tensor) -> torch.Tensor:
            loss = _loss(weights, x)
            loss.backward()
            optimizer.apply_gradients([(weight.grad, weight) for weight in weights])
            for weight in weights:
                weight.grad = None
            return loss * 2

        return step, weights

    return prepare


def minimized(make: Callable[..., Any]) -> Callable[[], tuple[Step, list[Any]]]:
    """Steps by a loss of the compiled function."""

    def prepare() -> tuple[Step, list[Any]]:
        weights, optimizer = _model(), make()

        def step(x: Tensor) -> torch.Tensor:
            x = x * 2
            optimizer.minimize(lambda: _loss(weights, x), var_list=weights)
            return x + 1

        return step, weights

    return prepare


def updates() -> tuple[Step, list[Any]]:
    weights, optimizer = _model(), keras.SGD(0.1)

    def step(x: Tensor) -> torch.Tensor:
        return optimizer.get_updates(_loss(weights, x), weights)[0] + 1

    return step, weights


def training_step() -> tuple[Step, list[Any]]:
    weights = _model()
    batch = torch.ones(4, 3)
    train: Any = optimize_loss(
        lambda: _loss(weights, batch),
        optimizer="Momentum",
        optimizer_params={"momentum": 0.9},
        learning_rate_decay_fn=lambda step: 0.1,
        var_list=weights,
    )

    def step(x: Tensor) -> torch.Tensor:
        batch.copy_(x)
        return train() * 2

    return step, weights


def averages() -> tuple[Step, list[Any]]:
    weights = _model()
    averages = v1.train.ExponentialMovingAverage(0.9)
    averages.apply(weights)

    def step(x: Tensor) -> torch.Tensor:
        with torch.no_grad():
            weights[0].add_(x.sum())
        averages.apply(weights)
        return x * 2

    return step, [weights[0], averages.average(weights[0])]


def scheduled() -> tuple[Step, list[Any]]:
    weights, schedule = _model(), ExponentialDecay(0.1, 7, 0.3)

    def step(x: Tensor) -> torch.Tensor:
        rate = schedule(3)
        with torch.no_grad():
            weights[0].sub_(rate * x.sum())
        return x * rate

    return step, weights


def taped() -> tuple[Step, list[Any]]:
    weights, optimizer = _model(), keras.Adam(0.1)

    def step(x: Tensor) -> torch.Tensor:
        with thalweg.GradientTape() as tape:
            loss = _loss(weights, x)
        gradients = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients, weights))
        return x * 2

    return step, weights


def saving() -> tuple[Step, list[Any]]:
    weights, optimizer = _model(), keras.Adam(0.1)

    def step(x: Tensor) -> torch.Tensor:
        optimizer.apply_gradients([(weight * 0.5, weight) for weight in weights])
        optimizer.load_state_dict(optimizer.state_dict())
        return x * 2

    return step, weights


CASES: dict[str, Callable[[], tuple[Step, list[Any]]]] = {
    "keras": applied(lambda: keras.Adam(ExponentialDecay(0.1, 5, 0.9), clipnorm=0.5)),
    "keras minimize": minimized(lambda: keras.RMSprop(0.1, momentum=0.9)),
    "keras updates": updates,
    "rule": applied(lambda: keras.RuleOptimizer(thalweg.rules.LARS, 0.1)),
    "v1": applied(lambda: v1.train.AdamOptimizer(0.1)),
    "v1 minimize": minimized(lambda: v1.train.MomentumOptimizer(0.1, 0.9)),
    "wrapped": applied(lambda: v1.contrib.opt.MovingAverageOptimizer(v1.train.AdamOptimizer(0.1))),
    "decayed": minimized(lambda: v1.contrib.opt.AdamWOptimizer(0.01, 0.1)),
    "openseq2seq": training_step,
    "averages": averages,
    "schedule": scheduled,
    "tape": taped,
    "state": saving,
}


def _results(prepare: Callable[[], tuple[Step, list[Any]]], compiled: Compile) -> list[Any]:
    step, weights = prepare()
    step = compiled(step)
    returned = [step(torch.full((4, 3), 0.1 * (i + 1))) for i in range(4)]
    return [*returned, *(weight.detach().clone() for weight in weights)]


@pytest.fixture(autouse=True)
def anew():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.one_in(7)
def test_a_compiled_step_has_the_bits_of_eager_mode(case, backend):
    expected = _results(CASES[case], lambda step: step)
    results = _results(CASES[case], torch.compile(backend=backend))
    for tensor, twin in zip(expected, results, strict=True):
        assert torch.equal(tensor.detach(), twin.detach())


@pytest.mark.parametrize("older", [False, True], ids=["this torch", "an older torch"])
def test_calls_within_a_step_are_not_compiled(older, monkeypatch):
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.code)
        return graph.forward

    def step() -> Any:
        return torch.ones(2).mul(3), torch.compiler.is_compiling()

    if older:
        monkeypatch.setattr(
            tracing, "_dynamo", type("", (), {"set_eval_frame": tracing._dynamo.set_eval_frame})
        )
    call = tracing.untraced(step)

    @torch.compile(backend=backend)
    def train(x: Tensor) -> Any:
        x = x + 1
        y, compiling = call()
        return x * 2, y, compiling

    value, y, compiling = train(torch.zeros(2))
    assert (value.tolist(), y.tolist(), compiling) == ([2.0, 2.0], [3.0, 3.0], False)
    assert len(graphs) == 2  # before and after
    assert not any("mul(3)" in code for code in graphs)


def test_compiled_step_is_one_graph_break():
    weights, optimizer = _model(), keras.Adam(0.1)

    def step(x: Tensor) -> torch.Tensor:
        x = x + 1
        optimizer.apply_gradients([(x, weights[0])])
        return x * 2

    explained = torch._dynamo.explain(step)(torch.ones(3, 2))
    assert explained.graph_break_count == 1
    assert explained.graph_count == 2


def test_fullgraph_compile_raises_with_advice():
    weights, optimizer = _model(), keras.Adam(0.1)

    @torch.compile(backend="eager", fullgraph=True)
    def step(x: Tensor) -> torch.Tensor:
        optimizer.apply_gradients([(x, weights[0])])
        return x * 2

    initial = weights[0].detach().clone()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="thalweg reads and writes the memory"):
        step(torch.ones(3, 2))
    assert torch.equal(weights[0], initial)


def test_a_loss_that_was_compiled_stays_compiled_in_a_step():
    weights, optimizer = _model(), keras.SGD(0.1)
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    loss = torch.compile(lambda: _loss(weights, torch.ones(4, 3)), backend=backend)
    optimizer.minimize(loss, weights)
    torch.compile(lambda: optimizer.minimize(loss, weights), backend="eager")()
    assert len(graphs) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_inductor_step_equals_eager_step():
    expected = _results(CASES["keras"], lambda step: step)
    results = _results(CASES["keras"], torch.compile)
    for tensor, twin in zip(expected, results, strict=True):
        torch.testing.assert_close(tensor.detach(), twin.detach())


def test_import_does_not_import_the_compiler():
    code = (
        "import sys, thalweg, thalweg.v1, thalweg.tf, thalweg.keras.optimizers\n"
        "import thalweg.openseq2seq.optimizers, thalweg.optim.tensorflow\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=280)
