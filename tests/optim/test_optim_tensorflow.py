"""`thalweg.optim.tensorflow`: the bits of the other faces, in torch's groups, states and files."""

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

Faces = dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]]
_STEP = thalweg.Variable(torch.tensor(0), trainable=False)

# What makes the optimizer of this face, and that of the other.
FACES: Faces = {
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
    "Adagrad": (
        lambda p: tensorflow.Adagrad(p, 0.1, 0.3),
        lambda: keras.Adagrad(0.1, 0.3),
    ),
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
    "rule": (
        lambda p: optim.RuleOptimizer(p, LARS, 0.1),
        lambda: keras.RuleOptimizer(LARS, 0.1),
    ),
}
QUICK = ("Adam", "Nadam", "LazyAdam", "Ftrl", "rule")


def _other(make: Callable[[], Any], params: list[Any], steps: int, sparse: bool) -> list[Any]:
    """The variables after steps of another face, and their slots."""
    made = make()
    variables = [thalweg.Variable(param.detach()) for param in params]
    counter = getattr(made, "_global_step", None)
    if counter is not None:
        counter.assign(0)
    for step in range(steps):
        set_grads(params, step, sparse)
        pairs = [(p.grad, var) for p, var in zip(params, variables, strict=True)]
        made.apply_gradients(pairs, **({} if counter is None else {"global_step": counter}))
    names = [slot.name for slot in made._choose_rule().slots]
    slots = [made._slots.of(var, names) for var in variables]
    return [*variables, *(slot for own in slots for slot in own)]


def _written(made: Any) -> list[torch.Tensor]:
    params = made.param_groups[0]["params"]
    names = [slot.name for slot in made.rule.slots]
    return [*params, *(made.state[param][name] for param in params for name in names)]


@pytest.mark.parametrize(
    ("name", "dtype", "sparse"),
    [
        slow_unless(dtype == torch.float32 and (not sparse or name in QUICK), name, dtype, sparse)
        for name in FACES
        for dtype in (torch.float32, torch.float64, torch.bfloat16)
        for sparse in (False, True)
        if not (sparse and name == "rule")
    ],
)
def test_bits_are_those_of_the_other_faces(name: str, dtype: torch.dtype, sparse: bool) -> None:
    ours, theirs = FACES[name]
    params = params_of(dtype, ROWS)
    wanted = _other(theirs, [param.detach().clone() for param in params], 5, sparse)
    made = ours(params)
    for step in range(5):
        set_grads(params, step, sparse)
        made.step()
    assert_same([each.detach() for each in _written(made)], [each.detach() for each in wanted])


def test_a_class_for_every_name() -> None:
    assert {type(make(params_of(torch.float32))).__name__ for make, _ in FACES.values()} == {
        *tensorflow.__all__, "RuleOptimizer"
    }  # fmt: skip


def trained(name: str, steps: int, made: Any = None, first: int = 0) -> Any:
    made = made or FACES[name][0](list(zip("ab", params_of(torch.float32, ROWS), strict=True)))
    for step in range(first, first + steps):
        set_grads(made.param_groups[0]["params"], step)
        made.step()
    return made


@pytest.mark.parametrize("name", FACES)
def test_a_training_goes_on_where_it_was_saved(name: str) -> None:
    straight, begun = trained(name, 6), trained(name, 3)
    file = io.BytesIO()
    torch.save(begun.state_dict(), file)
    file.seek(0)
    params = [param.detach().clone() for param in begun.param_groups[0]["params"]]
    loaded = FACES[name][0](list(zip("ab", (p.requires_grad_() for p in params), strict=True)))
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for resumed in (loaded, copy.deepcopy(begun), pickle.loads(pickle.dumps(begun)), begun):
        trained(name, 3, resumed, 3)
        assert_same(
            [each.detach() for each in _written(resumed)],
            [each.detach() for each in _written(straight)],
        )


@pytest.mark.parametrize("name", FACES)
def test_all_state_is_made_with_the_optimizer(name: str) -> None:
    """What looks for state before a first step finds it, and takes none to have it made."""
    made, after = trained(name, 0), trained(name, 1)
    assert [list(own) for own in made.state.values()] == [list(own) for own in after.state.values()]
    assert {own["step"].item() for own in made.state.values()} == {0}
    assert {own["step"].item() for own in after.state.values()} == {1}
    assert after.state[after.param_groups[0]["params"][0]]["step"].dtype == torch.int64


def test_parameters_are_matched_by_name() -> None:
    made = trained("Adam", 3)
    params = [param.detach().clone() for param in made.param_groups[0]["params"]]
    turned = tensorflow.Adam(
        [(name, param.requires_grad_()) for name, param in zip("ba", params[::-1], strict=True)]
    )
    turned.load_state_dict(made.state_dict())
    for a, b in zip(made.param_groups[0]["params"], params, strict=True):
        assert_same(list(made.state[a].values())[1:], list(turned.state[b].values())[1:])
    assert turned.param_groups[0]["lr"] == made.param_groups[0]["lr"]
    assert turned.param_groups[0]["param_names"] == ["b", "a"]


def _without(state: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    changed = copy.deepcopy(state)
    change(changed)
    return changed


DIFFERENT: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
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
    "rule": (
        lambda s: s["param_groups"][0].update(rule="Ftrl"),
        "its rule is 'Ftrl', here 'Adam'",
    ),
    "count": (
        lambda s: s["param_groups"][0].update(params=[0]),
        r"groups have \[1\] parameters, those here \[2\]",
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_state_is_refused_and_nothing_changes(name: str) -> None:
    change, message = DIFFERENT[name]
    made, other = trained("Adam", 3), trained("Adam", 1)
    before = copy.deepcopy(made.state_dict())
    with pytest.raises(CheckpointMismatchError, match=message + r".*Nothing was loaded\."):
        made.load_state_dict(_without(other.state_dict(), change))
    for key, own in before["state"].items():
        assert_same(
            [value.double() for value in made.state_dict()["state"][key].values()],
            [value.double() for value in own.values()],
        )


def test_narrow_parameters_keep_wide_slots() -> None:
    """torch's own loader would cast what a rule keeps in float32."""
    params = [torch.ones(3, dtype=torch.bfloat16, requires_grad=True)]
    rule = thalweg.Rule(
        name="Wide", update=_wide, slots=(thalweg.Slot("sum", dtype=torch.float32),)
    )
    made = optim.RuleOptimizer(params, rule, 0.1)
    params[0].grad = torch.full((3,), 1 / 3, dtype=torch.bfloat16)
    made.step()
    other = optim.RuleOptimizer([param.detach().clone().requires_grad_() for param in params], rule)
    other.load_state_dict(made.state_dict())
    (own,), (theirs,) = made.state.values(), other.state.values()
    assert theirs["sum"].dtype == torch.float32
    assert_same([theirs["sum"]], [own["sum"]])


def _wide(var, grad, total, *, learning_rate):
    total = total + grad
    return var - learning_rate * total, total


def test_steps_are_the_optimizers() -> None:
    """TensorFlow counts the steps of an optimizer: also for what had no gradient in one."""
    params = params_of(torch.float32, ROWS)
    other = keras.Adam(0.1)
    variables = [thalweg.Variable(param.detach()) for param in params]
    made = tensorflow.Adam(params, 0.1)
    for step in range(6):
        set_grads(params, step)
        if step in (1, 2):
            params[0].grad = None
        pairs = [(p.grad, v) for p, v in zip(params, variables, strict=True) if p.grad is not None]
        other.apply_gradients(pairs)
        made.step()
    assert_same([param.detach() for param in params], [var.detach() for var in variables])
    assert {own["step"].item() for own in made.state.values()} == {6}


def test_groups_have_options_of_their_own() -> None:
    params = params_of(torch.float32, ((3,), (4,), (5,)))
    rates = (0.1, 0.2, 0.3)
    groups = [{"params": [p], "lr": rate} for p, rate in zip(params, rates, strict=True)]
    made = tensorflow.LazyAdam(groups[:2])
    alone = [thalweg.Variable(param.detach()) for param in params]
    others = [opt.LazyAdamOptimizer(rate) for rate in rates]
    for step in range(4):
        if step == 2:
            made.add_param_group({"params": [params[2]], "lr": rates[2]})
            made.param_groups[0]["lr"] = 0.5
            others[0]._lr = 0.5
        set_grads(params, step)
        made.step()
        for param, var, other in zip(params[: 2 + step // 2], alone, others, strict=False):
            other.apply_gradients([(param.grad, var)])
    assert_same([p.detach() for p in params[:2]], [var.detach() for var in alone[:2]])
    assert made.state[params[2]]["step"].item() == 4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"lr": "much"}, TypeError, "lr must be a number or a tensor of shape"),
        ({"lr": float("nan")}, ValueError, "lr is nan"),
        ({"lr": torch.ones(2)}, ValueError, r"lr must be a scalar, not of shape \(2,\)"),
        ({"epss": 0.1}, TypeError, "Adam takes no 'epss'. Did you mean 'eps'"),
    ],
)
def test_bad_options_are_refused(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    from thalweg.rules import ADAM

    with pytest.raises(error, match=message):
        optim.RuleOptimizer(params_of(torch.float32), ADAM, **arguments)
    made = optim.RuleOptimizer(params_of(torch.float32, ((3,),)), ADAM)
    if "lr" in arguments:
        with pytest.raises(error, match=message):
            made.add_param_group({"params": [torch.ones(2, requires_grad=True)], **arguments})
        assert len(made.param_groups) == 1


def test_a_rate_that_became_nan_is_refused() -> None:
    made = trained("Adam", 1)
    before = [each.detach().clone() for each in _written(made)]
    made.param_groups[0]["lr"] = float("nan")
    with pytest.raises(ValueError, match="lr of group 0 is nan"):
        trained("Adam", 1, made)
    assert_same([each.detach() for each in _written(made)], before)


def test_rules_with_scalar_slots() -> None:
    params = params_of(torch.float32, ROWS)
    made, other = optim.RuleOptimizer(params, NOVOGRAD), keras.RuleOptimizer(NOVOGRAD)
    variables = [thalweg.Variable(param.detach()) for param in params]
    for step in range(4):
        set_grads(params, step)
        made.step()
        other.apply_gradients([(p.grad, v) for p, v in zip(params, variables, strict=True)])
    assert_same([param.detach() for param in params], [var.detach() for var in variables])


def test_complex_parameters_of_linear_rules() -> None:
    params = params_of(torch.complex64, ((3,),))
    made, other = tensorflow.SGD(params, 0.1, momentum=0.9), keras.SGD(0.1, momentum=0.9)
    variables = [thalweg.Variable(param.detach()) for param in params]
    for step in range(3):
        set_grads(params, step)
        made.step()
        other.apply_gradients([(params[0].grad, variables[0])])
    assert torch.equal(params[0].detach(), variables[0].detach())
    refused = tensorflow.Adam(params)
    with pytest.raises(TypeError, match="Adam is not defined for complex variables"):
        refused.step()


@pytest.mark.parametrize("limit", [{"clip_grad_norm": 1.5}, {"clip_grad_value": 0.5}], ids=str)
def test_gradients_are_clipped_as_tensorflow_does(limit: dict[str, float]) -> None:
    params = params_of(torch.float32, ROWS)
    ((name, value),) = limit.items()
    names = {"clip_grad_norm": "global_clipnorm", "clip_grad_value": "clipvalue"}
    made, other = tensorflow.Adam(params, **limit), keras.Adam(**{names[name]: value})
    variables = [thalweg.Variable(param.detach()) for param in params]
    for step in range(4):
        set_grads(params, step)
        made.step()
        other.apply_gradients([(p.grad, v) for p, v in zip(params, variables, strict=True)])
    assert_same([param.detach() for param in params], [var.detach() for var in variables])


def test_capturable_changes_nothing_on_the_cpu() -> None:
    found: list[torch.Tensor] = []
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
        found.append(param.detach())
    assert torch.equal(*found)
    with pytest.raises(TypeError, match="capturable must be a bool, not 1"):
        tensorflow.Adam([torch.nn.Parameter(torch.ones(1))], capturable=1)
