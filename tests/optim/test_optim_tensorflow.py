"""`thalweg.optim.tensorflow`: bits of the other front ends, torch-style groups and states."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thalweg
from rulebook import assert_same, slow_unless
from thalweg import optim, v1
from thalweg.errors import CheckpointMismatchError
from thalweg.keras import optimizers as keras
from thalweg.optim import tensorflow
from thalweg.rules import LARS, NOVOGRAD
from thalweg.v1.contrib import opt
from torch_inputs import ROWS, params_of, set_grads

Pairs = dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]]
_STEP = thalweg.Variable(torch.tensor(0), trainable=False)

# Functions that create the optimizer of this front end, and of another one.
PAIRS: Pairs = {
    "SGD": (lambda p: tensorflow.SGD(p, 0.1), lambda: keras.SGD(0.1)),
    "momentum": (
        lambda p: tensorflow.SGD(p, 0.1, momentum=0.9),
        lambda: keras.SGD(0.1, momentum=0.9),
    ),
    "nesterov": (
        lambda p: tensorflow.SGD(p, 0.1, momentum=0.9, nesterov=True),
        lambda: keras.SGD(0.1, momentum=0.9, nesterov=True),
    ),
    "Adam": (lambda p: tensorflow.Adam(p, 0.1), lambda: keras.Adam(0.1)),
    "amsgrad": (
        lambda p: tensorflow.Adam(p, 0.1, (0.8, 0.9), 1e-3, amsgrad=True),
        lambda: keras.Adam(0.1, 0.8, 0.9, 1e-3, amsgrad=True),
    ),
    "Adamax": (lambda p: tensorflow.Adamax(p), lambda: keras.Adamax()),
    "Nadam": (lambda p: tensorflow.Nadam(p), lambda: keras.Nadam()),
    "Adagrad": (lambda p: tensorflow.Adagrad(p, 0.1, 0.3), lambda: keras.Adagrad(0.1, 0.3)),
    "Adadelta": (lambda p: tensorflow.Adadelta(p, 1.0), lambda: keras.Adadelta(1.0)),
    "RMSprop": (lambda p: tensorflow.RMSprop(p), lambda: keras.RMSprop()),
    "centered": (
        lambda p: tensorflow.RMSprop(p, momentum=0.9, centered=True),
        lambda: keras.RMSprop(momentum=0.9, centered=True),
    ),
    "Ftrl": (
        lambda p: tensorflow.Ftrl(p, 0.1, l1=0.01, l2=0.02, l2_shrinkage=0.03),
        lambda: keras.Ftrl(
            0.1,
            l1_regularization_strength=0.01,
            l2_regularization_strength=0.02,
            l2_shrinkage_regularization_strength=0.03,
        ),
    ),
    "FtrlPower": (
        lambda p: tensorflow.Ftrl(p, 0.1, learning_rate_power=-0.6),
        lambda: keras.Ftrl(0.1, learning_rate_power=-0.6),
    ),
    "Momentum": (
        lambda p: tensorflow.Momentum(p, 0.1, nesterov=True),
        lambda: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    ),
    "MomentumW": (
        lambda p: tensorflow.MomentumW(p, 0.1),
        lambda: opt.MomentumWOptimizer(0.01, 0.1, 0.9),
    ),
    "LazyAdam": (lambda p: tensorflow.LazyAdam(p), lambda: opt.LazyAdamOptimizer()),
    "AdamW": (lambda p: tensorflow.AdamW(p), lambda: opt.AdamWOptimizer(0.01)),
    "ProximalAdagrad": (
        lambda p: tensorflow.ProximalAdagrad(p, l1=0.01),
        lambda: v1.train.ProximalAdagradOptimizer(0.01, l1_regularization_strength=0.01),
    ),
    "ProximalGradientDescent": (
        lambda p: tensorflow.ProximalGradientDescent(p, l2=0.01),
        lambda: v1.train.ProximalGradientDescentOptimizer(0.01, l2_regularization_strength=0.01),
    ),
    "AdagradDA": (
        lambda p: tensorflow.AdagradDA(p, l1=0.01),
        lambda: v1.train.AdagradDAOptimizer(0.01, _STEP, l1_regularization_strength=0.01),
    ),
    "rule": (lambda p: optim.RuleOptimizer(p, LARS, 0.1), lambda: keras.RuleOptimizer(LARS, 0.1)),
}
FAST = ("Adam", "Nadam", "LazyAdam", "Ftrl", "rule")


def _run_other(make: Callable[..., Any], params: list[Any], steps: int, sparse: bool) -> list[Any]:
    """Return variables and slots after steps of another front end."""
    reference = make()
    variables = [thalweg.Variable(param.detach()) for param in params]
    counter = getattr(reference, "_global_step", None)
    if counter is not None:
        counter.assign(0)
    for step in range(steps):
        set_grads(params, step, sparse)
        pairs = [(param.grad, var) for param, var in zip(params, variables, strict=True)]
        reference.apply_gradients(pairs, **({} if counter is None else {"global_step": counter}))
    names = [slot.name for slot in reference._choose_rule().slots]
    slots = [reference._slots.of(var, names) for var in variables]
    return [*variables, *(slot for group in slots for slot in group)]


def _tensors_of(optimizer: Any) -> list[torch.Tensor]:
    params = optimizer.param_groups[0]["params"]
    names = [slot.name for slot in optimizer.rule.slots]
    return [*params, *(optimizer.state[param][name] for param in params for name in names)]


@pytest.mark.parametrize(
    ("name", "dtype", "sparse"),
    [
        slow_unless(dtype == torch.float32 and (not sparse or name in FAST), name, dtype, sparse)
        for name in PAIRS
        for dtype in (torch.float32, torch.float64, torch.bfloat16)
        for sparse in (False, True)
        if not (sparse and name == "rule")
    ],
)
def test_bits_equal_other_front_ends(name: str, dtype: torch.dtype, sparse: bool) -> None:
    make, make_reference = PAIRS[name]
    params = params_of(dtype, ROWS)
    expected = _run_other(make_reference, [param.detach().clone() for param in params], 5, sparse)
    optimizer = make(params)
    for step in range(5):
        set_grads(params, step, sparse)
        optimizer.step()
    assert_same([x.detach() for x in _tensors_of(optimizer)], [x.detach() for x in expected])


def test_a_class_for_every_name() -> None:
    assert {type(make(params_of(torch.float32))).__name__ for make, _ in PAIRS.values()} == {
        *tensorflow.__all__, "RuleOptimizer"
    }  # fmt: skip


def train(name: str, steps: int, optimizer: Any = None, first: int = 0) -> Any:
    optimizer = optimizer or PAIRS[name][0](
        list(zip("ab", params_of(torch.float32, ROWS), strict=True))
    )
    for step in range(first, first + steps):
        set_grads(optimizer.param_groups[0]["params"], step)
        optimizer.step()
    return optimizer


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", PAIRS)
def test_resumed_training_has_the_same_bits(name: str) -> None:
    straight, start = train(name, 6), train(name, 3)
    file = io.BytesIO()
    torch.save(start.state_dict(), file)
    file.seek(0)
    params = [param.detach().clone() for param in start.param_groups[0]["params"]]
    loaded = PAIRS[name][0](list(zip("ab", (p.requires_grad_() for p in params), strict=True)))
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for resumed in (loaded, copy.deepcopy(start), pickle.loads(pickle.dumps(start)), start):
        train(name, 3, resumed, 3)
        assert_same(
            [x.detach() for x in _tensors_of(resumed)], [x.detach() for x in _tensors_of(straight)]
        )


@pytest.mark.parametrize("name", PAIRS)
def test_constructor_creates_state(name: str) -> None:
    """State exists before the first step."""
    fresh, stepped = train(name, 0), train(name, 1)
    assert [list(slots) for slots in fresh.state.values()] == [
        list(slots) for slots in stepped.state.values()
    ]
    assert {state["step"].item() for state in fresh.state.values()} == {0}
    assert {state["step"].item() for state in stepped.state.values()} == {1}
    assert stepped.state[stepped.param_groups[0]["params"][0]]["step"].dtype == torch.int64


def test_parameters_are_matched_by_name() -> None:
    optimizer = train("Adam", 3)
    params = [param.detach().clone() for param in optimizer.param_groups[0]["params"]]
    reversed_opt = tensorflow.Adam(
        [(name, param.requires_grad_()) for name, param in zip("ba", params[::-1], strict=True)]
    )
    reversed_opt.load_state_dict(optimizer.state_dict())
    for a, b in zip(optimizer.param_groups[0]["params"], params, strict=True):
        assert_same(list(optimizer.state[a].values())[1:], list(reversed_opt.state[b].values())[1:])
    assert reversed_opt.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    assert reversed_opt.param_groups[0]["param_names"] == ["b", "a"]


def _change_state(state: dict[str, Any], change: Callable[..., Any]) -> dict[str, Any]:
    changed_state = copy.deepcopy(state)
    change(changed_state)
    return changed_state


MISMATCHES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "missing": (lambda s: s["state"][0].pop("m"), "'a/m' is missing"),
    "further": (lambda s: s["state"][1].update(n=torch.ones(())), "'b/n' belongs to nothing here"),
    "shape": (
        lambda s: s["state"][0].update(m=torch.ones(2)),
        r"'a/m' is float32 \(2,\), here float32 \(9, 4\)",
    ),
    "dtype": (
        lambda s: s["state"][0].update(m=s["state"][0]["m"].double()),
        r"'a/m' is float64 \(9, 4\), here float32",
    ),
    "number": (lambda s: s["state"][0].update(m=3), "'a/m' is 3 and no tensor"),
    "name": (
        lambda s: s["param_groups"][0].update(param_names=["a", "c"]),
        "'b' is missing; 'c' belongs to nothing here",
    ),
    "rule": (lambda s: s["param_groups"][0].update(rule="Ftrl"), "its rule is 'Ftrl', here 'Adam'"),
    "count": (
        lambda s: s["param_groups"][0].update(params=[0]),
        r"groups have \[1\] parameters, those here \[2\]",
    ),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_mismatched_state_changes_nothing(name: str) -> None:
    change, message = MISMATCHES[name]
    optimizer, source = train("Adam", 3), train("Adam", 1)
    previous = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(CheckpointMismatchError, match=message + r".*Nothing was loaded\."):
        optimizer.load_state_dict(_change_state(source.state_dict(), change))
    for key, state in previous["state"].items():
        assert_same(
            [value.double() for value in optimizer.state_dict()["state"][key].values()],
            [value.double() for value in state.values()],
        )


def test_bfloat16_params_keep_float32_slots() -> None:
    """Torch's loader would cast float32 slots to the parameter's dtype."""
    params = [torch.ones(3, dtype=torch.bfloat16, requires_grad=True)]
    rule = thalweg.Rule(
        name="Wide", update=_wide, slots=(thalweg.Slot("sum", dtype=torch.float32),)
    )
    optimizer = optim.RuleOptimizer(params, rule, 0.1)
    params[0].grad = torch.full((3,), 1 / 3, dtype=torch.bfloat16)
    optimizer.step()
    loaded = optim.RuleOptimizer(
        [param.detach().clone().requires_grad_() for param in params], rule
    )
    loaded.load_state_dict(optimizer.state_dict())
    (state,), (loaded_state,) = optimizer.state.values(), loaded.state.values()
    assert loaded_state["sum"].dtype == torch.float32
    assert_same([loaded_state["sum"]], [state["sum"]])


def _wide(var, grad, total, *, learning_rate):
    total = total + grad
    return var - learning_rate * total, total


def test_steps_are_counted_per_optimizer() -> None:
    """TensorFlow counts steps per optimizer, also for parameters without a gradient."""
    params = params_of(torch.float32, ROWS)
    reference = keras.Adam(0.1)
    variables = [thalweg.Variable(param.detach()) for param in params]
    optimizer = tensorflow.Adam(params, 0.1)
    for step in range(6):
        set_grads(params, step)
        if step in (1, 2):
            params[0].grad = None
        pairs = [(p.grad, v) for p, v in zip(params, variables, strict=True) if p.grad is not None]
        reference.apply_gradients(pairs)
        optimizer.step()
    assert_same([param.detach() for param in params], [var.detach() for var in variables])
    assert {state["step"].item() for state in optimizer.state.values()} == {6}


def test_groups_with_other_options() -> None:
    params = params_of(torch.float32, ((3,), (4,), (5,)))
    rates = (0.1, 0.2, 0.3)
    groups = [{"params": [param], "lr": rate} for param, rate in zip(params, rates, strict=True)]
    optimizer = tensorflow.LazyAdam(groups[:2])
    variables = [thalweg.Variable(param.detach()) for param in params]
    refs = [opt.LazyAdamOptimizer(rate) for rate in rates]
    for step in range(4):
        if step == 2:
            optimizer.add_param_group({"params": [params[2]], "lr": rates[2]})
            optimizer.param_groups[0]["lr"] = 0.5
            refs[0]._lr = 0.5
        set_grads(params, step)
        optimizer.step()
        for param, var, reference in zip(params[: 2 + step // 2], variables, refs, strict=False):
            reference.apply_gradients([(param.grad, var)])
    assert_same([param.detach() for param in params[:2]], [var.detach() for var in variables[:2]])
    assert optimizer.state[params[2]]["step"].item() == 4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"lr": "much"}, TypeError, "lr must be a number or a tensor of shape"),
        ({"lr": float("nan")}, ValueError, "lr is nan"),
        ({"lr": torch.ones(2)}, ValueError, r"lr must be a scalar, not of shape \(2,\)"),
        ({"epss": 0.1}, TypeError, "Adam takes no 'epss'. Did you mean 'eps'"),
    ],
)
def test_invalid_options_raise(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    from thalweg.rules import ADAM

    with pytest.raises(error, match=message):
        optim.RuleOptimizer(params_of(torch.float32), ADAM, **arguments)
    optimizer = optim.RuleOptimizer(params_of(torch.float32, ((3,),)), ADAM)
    if "lr" in arguments:
        with pytest.raises(error, match=message):
            optimizer.add_param_group({"params": [torch.ones(2, requires_grad=True)], **arguments})
        assert len(optimizer.param_groups) == 1


def test_nan_lr_raises() -> None:
    optimizer = train("Adam", 1)
    previous = [tensor.detach().clone() for tensor in _tensors_of(optimizer)]
    optimizer.param_groups[0]["lr"] = float("nan")
    with pytest.raises(ValueError, match="lr of group 0 is nan"):
        train("Adam", 1, optimizer)
    assert_same([tensor.detach() for tensor in _tensors_of(optimizer)], previous)


def test_rules_with_scalar_slots() -> None:
    params = params_of(torch.float32, ROWS)
    optimizer, reference = optim.RuleOptimizer(params, NOVOGRAD), keras.RuleOptimizer(NOVOGRAD)
    variables = [thalweg.Variable(param.detach()) for param in params]
    for step in range(4):
        set_grads(params, step)
        optimizer.step()
        reference.apply_gradients([(p.grad, v) for p, v in zip(params, variables, strict=True)])
    assert_same([param.detach() for param in params], [var.detach() for var in variables])


def test_linear_rules_take_complex_parameters() -> None:
    params = params_of(torch.complex64, ((3,),))
    optimizer, reference = tensorflow.SGD(params, 0.1, momentum=0.9), keras.SGD(0.1, momentum=0.9)
    variables = [thalweg.Variable(param.detach()) for param in params]
    for step in range(3):
        set_grads(params, step)
        optimizer.step()
        reference.apply_gradients([(params[0].grad, variables[0])])
    assert torch.equal(params[0].detach(), variables[0].detach())
    adam = tensorflow.Adam(params)
    with pytest.raises(TypeError, match="Adam is not defined for complex variables"):
        adam.step()


@pytest.mark.parametrize("limit", [{"clip_grad_norm": 1.5}, {"clip_grad_value": 0.5}], ids=str)
def test_clipping_equals_tensorflow(limit: dict[str, float]) -> None:
    params = params_of(torch.float32, ROWS)
    ((name, value),) = limit.items()
    names = {"clip_grad_norm": "global_clipnorm", "clip_grad_value": "clipvalue"}
    optimizer, reference = tensorflow.Adam(params, **limit), keras.Adam(**{names[name]: value})
    variables = [thalweg.Variable(param.detach()) for param in params]
    for step in range(4):
        set_grads(params, step)
        optimizer.step()
        reference.apply_gradients([(p.grad, v) for p, v in zip(params, variables, strict=True)])
    assert_same([param.detach() for param in params], [var.detach() for var in variables])


def test_capturable_changes_nothing_on_the_cpu() -> None:
    trained_params: list[torch.Tensor] = []
    for options in ({}, {"capturable": True}):
        param = torch.nn.Parameter(torch.linspace(-1, 1, 9))
        optimizer = tensorflow.Nadam([param], lr=0.1, **options)
        param.grad = torch.linspace(1, 2, 9)
        optimizer.step()
        optimizer = pickle.loads(pickle.dumps(optimizer))
        assert optimizer._capturable is bool(options)
        param = optimizer.param_groups[0]["params"][0]
        param.grad = torch.linspace(1, 2, 9)
        optimizer.step()
        assert optimizer.state[param]["step"].device.type == "cpu"
        trained_params.append(param.detach())
    assert torch.equal(*trained_params)
    with pytest.raises(TypeError, match="capturable must be a bool, not 1"):
        tensorflow.Adam([torch.nn.Parameter(torch.ones(1))], capturable=1)
