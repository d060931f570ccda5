"""Rules with passes: what is made of each element, stages over matrices, and the update."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import thalweg
from rulebook import assert_same
from thalweg import Hyper, Pass, Rule, RuleError, Slot, Stage, Variable, check_rule, optim
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.keras.optimizers import RuleOptimizer

SHAPES = ((4, 3), (3, 4), (4, 3), (2, 3, 2))


def ahead(var, grad, mean, *, share):
    mean = mean * share + grad
    return mean


def center(*, step):
    return {"step": step - step.mean(dim=(1, 2), keepdim=True)}


def update(var, grad, step, mean, *, learning_rate, share):
    return var - learning_rate * step, mean * share + grad


HYPERS = (Hyper("learning_rate", 0.5), Hyper("share", 0.5))
CENTERED = Rule(
    name="Centered",
    passes=(Pass(ahead, makes="step"), Stage(center, heads=1)),
    update=update,
    hypers=HYPERS,
    slots=(Slot("mean"),),
)


def by_hand(var: Tensor, mean: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    mean = mean * 0.5 + grad
    return var - 0.5 * (mean - mean.mean()), mean


def parameters(shapes: Any = SHAPES, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


def take(optimizer: Any, params: list[Tensor], count: int = 1, seed: int = 1) -> None:
    dice = torch.Generator().manual_seed(seed)
    for _ in range(count):
        for param in params:
            param.grad = torch.randn(param.shape, generator=dice).to(param.dtype)
        optimizer.step()


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_staged_step_equals_its_passes(engine: Any) -> None:
    params = parameters()
    expected = [(param.detach().clone(), torch.zeros(param.shape)) for param in params]
    with thalweg.engine(engine):
        optimizer = optim.RuleOptimizer(params, CENTERED)
        for step in range(4):
            take(optimizer, params, seed=step)
            grads = [param.grad for param in params]
            expected = [by_hand(*state, grad) for state, grad in zip(expected, grads, strict=True)]
    for param, (var, mean) in zip(params, expected, strict=True):
        torch.testing.assert_close(param.detach(), var)
        assert_same([optimizer.state[param]["mean"]], [mean])


def test_column_major_variables_equal_row_major_ones() -> None:
    rows, columns = parameters([(4, 3)]), [parameters([(4, 3)])[0].detach().t().contiguous().t()]
    assert not columns[0].is_contiguous()
    for params in (rows, columns):
        params[0].requires_grad_()
        take(optim.RuleOptimizer(params, CENTERED), params, 3)
    assert_same([columns[0].detach().contiguous()], [rows[0].detach()])


def test_batched_step_equals_single_steps() -> None:
    joint, single = parameters(), parameters()
    take(optim.RuleOptimizer(joint, CENTERED), joint, 3)
    dice = torch.Generator().manual_seed(1)
    grads = [[torch.randn(p.shape, generator=dice) for p in single] for _ in range(3)]
    for place, param in enumerate(single):
        optimizer = optim.RuleOptimizer([param], CENTERED)
        for param_grads in grads:
            param.grad = param_grads[place]
            optimizer.step()
    assert_same([p.detach() for p in joint], [p.detach() for p in single])


def failing(*, step: Tensor, fails: list[bool]) -> Any:
    if fails[0]:
        raise KeyboardInterrupt
    return {"step": step}


def test_failing_stage_changes_nothing() -> None:
    fails = [False]
    rule = replace(
        CENTERED, passes=(CENTERED.passes[0], Stage(partial(failing, fails=fails), heads=1))
    )
    params = parameters()
    optimizer = optim.RuleOptimizer(params, rule)
    take(optimizer, params, 2)
    params_before = [param.detach().clone() for param in params]
    means_before = [optimizer.state[param]["mean"].clone() for param in params]
    versions = [param._version for param in params]
    fails[0] = True
    with pytest.raises(KeyboardInterrupt) as raised:
        take(optimizer, params)
    assert "The step was not taken: no variable and no slot has changed." in raised.value.__notes__
    assert_same([param.detach() for param in params], params_before)
    assert_same([optimizer.state[param]["mean"] for param in params], means_before)
    assert [param._version for param in params] == versions
    fails[0] = False
    take(optimizer, params)
    assert not torch.equal(params[0].detach(), params_before[0])


def test_skipped_step_runs_no_stage() -> None:
    calls: list[int] = []

    def count(*, step):
        calls.append(len(step))
        return {}

    rule = replace(CENTERED, passes=(CENTERED.passes[0], Stage(count, heads=1)))
    params = parameters([(4, 3), (4, 3)])
    optimizer = optim.RuleOptimizer(params, rule)
    calls.clear()  # those of `check_rule`
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(torch.ones(()))
    for number, runs in ((1.0, [2]), (float("inf"), [2]), (1.0, [2, 2])):
        for param in params:
            param.grad = torch.full_like(param, number)
        scaler.step(optimizer)
        scaler.update()
        assert calls == runs


def turns(rows: int, columns: int) -> tuple[int, ...]:
    return rows, rows


def turn(*, step, factor, t):
    return {"step": step * t, "factor": factor + step @ step.mT}


KEEPING = replace(
    CENTERED,
    name="Keeping",
    passes=(CENTERED.passes[0], Stage(turn, every=2, heads=1)),
    slots=(Slot("mean"), Slot("factor", initial=1.0, shape=turns)),
)


@pytest.mark.parametrize("face", ["optim", "keras"])
def test_stage_slots_have_their_shape_and_update_interval(face: str) -> None:
    params = parameters([(4, 3), (2, 3, 2)])
    if face == "keras":
        params = [Variable(param.detach(), name=f"w{k}") for k, param in enumerate(params)]
        opt = RuleOptimizer(KEEPING)
    else:
        opt = optim.RuleOptimizer(params, KEEPING)
    expected = [torch.ones(len(param), len(param)) for param in params]
    means = [torch.zeros(param.shape) for param in params]
    dice = torch.Generator().manual_seed(1)
    for step in range(1, 5):
        grads = [torch.randn(param.shape, generator=dice) for param in params]
        means = [mean * 0.5 + grad for mean, grad in zip(means, grads, strict=True)]
        if step % 2:
            flat_means = [mean.flatten(1) for mean in means]
            expected = [factor + x @ x.mT for factor, x in zip(expected, flat_means, strict=True)]
        if face == "keras":
            opt.apply_gradients(zip(grads, params, strict=True))
            factors = [opt.get_slot(param, "factor") for param in params]
        else:
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad
            opt.step()
            factors = [opt.state[param]["factor"] for param in params]
        for factor, want in zip(factors, expected, strict=True):
            torch.testing.assert_close(torch.as_tensor(factor), want)


def test_parameters_with_other_step_counts_run_separate_stages() -> None:
    calls: list[tuple[int, float]] = []

    def look(*, step, t):
        calls.append((len(step), t))
        return {"step": step}

    params = parameters([(4, 3), (4, 3)])
    optimizer = optim.RuleOptimizer(
        params, replace(CENTERED, passes=(CENTERED.passes[0], Stage(look, heads=1)))
    )
    calls.clear()
    params[0].grad = torch.ones_like(params[0])
    optimizer.step()
    take(optimizer, params)
    assert calls[:1] == [(1, 1.0)]
    assert sorted(calls[1:]) in ([(1, 1.0), (1, 2.0)], [(2, 2.0)])  # by what the face counts


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "message"),
    [
        ((7,), torch.float32, InvalidArgumentError, "for matrices, of two dimensions or more"),
        ((), torch.float32, InvalidArgumentError, "select another rule for it"),
        ((4, 3), torch.float16, InvalidTypeError, "is float16, and rule 'Centered' is for"),
    ],
)
def test_stages_need_matrices(shape: Any, dtype: Any, error: Any, message: str) -> None:
    (param,) = parameters([shape], dtype)
    w, params_before = Variable(param.detach().clone(), name="w"), param.detach().clone()
    with pytest.raises(error, match=message):
        RuleOptimizer(CENTERED).apply_gradients([(torch.ones_like(params_before), w)])
    assert_same([torch.as_tensor(w).detach()], [params_before])
    with pytest.raises(error, match=message):
        optim.RuleOptimizer([param], CENTERED)


def test_empty_matrices_skip_stages() -> None:
    params = parameters([(0, 3), (3, 0), (4, 3)])
    take(optim.RuleOptimizer(params, CENTERED), params, 2)
    assert params[2].isfinite().all()


def test_repeated_variable_raises() -> None:
    w = Variable(torch.ones(2, 2), name="w")
    with pytest.raises(InvalidArgumentError, match="comes twice in a step of rule 'Centered'"):
        RuleOptimizer(CENTERED).apply_gradients([(torch.ones(2, 2), w), (torch.ones(2, 2), w)])


def test_autocast_does_not_reach_a_stage() -> None:
    params, other_params = parameters(), parameters()
    rule = replace(KEEPING, passes=(CENTERED.passes[0], Stage(turn, heads=1)))
    take(optim.RuleOptimizer(params, rule), params, 2)
    with torch.autocast("cpu", torch.bfloat16):
        take(optim.RuleOptimizer(other_params, rule), other_params, 2)
    assert_same([p.detach() for p in params], [p.detach() for p in other_params])


def two(var, grad, mean):
    return grad, mean


def wrong_names(*, step, other):
    return {}


def returns_none(*, step):
    return None


def returns_other(*, step):
    return {"mean": step}


def returns_cut(*, step):
    return {"step": step[:, :1]}


def returns_untaken(*, learning_rate):
    return {"step": learning_rate}


def writes(*, step):
    step *= 2
    return {"step": step}


def raises(*, step):
    raise ValueError("no")


def takes_less(var, grad, mean, *, learning_rate):
    return var, mean


def asks_for_an_element_slot(*, step, mean):
    return {}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"passes": [Stage(center)]}, "passes of rule 'Centered' must be a tuple"),
    ({"passes": (Pass(ahead, makes="mean"),)}, "are named 'mean'"),
    ({"passes": (Pass(two, makes="step"), Stage(center))}, "returns 2; it must take 3"),
    ({"passes": (Pass(update, makes="step"), Stage(center))}, "it must take 3"),
    (
        {"passes": (CENTERED.passes[0], Stage(wrong_names))},
        r"Stage wrong_names \(.*\) asks for other, which is neither made by a pass before it",
    ),
    (
        {"passes": (CENTERED.passes[0], Stage(asks_for_an_element_slot))},
        "asks for mean, which is a slot of the variable's shape, which passes are given",
    ),
    ({"passes": (CENTERED.passes[0], Stage(returns_none))}, "must return a dict, not a NoneType"),
    ({"passes": (CENTERED.passes[0], Stage(returns_other))}, "returns 'mean', which is neither"),
    ({"passes": (CENTERED.passes[0], Stage(returns_cut))}, r"of shape \(2, 1, 2\); expected"),
    ({"passes": (CENTERED.passes[0], Stage(returns_untaken))}, "'step', which it must take, too"),
    ({"passes": (CENTERED.passes[0], Stage(writes))}, "writes to step, which it was given"),
    ({"passes": (CENTERED.passes[0], Stage(raises))}, "fails over matrices of shape .* no"),
    ({"update": takes_less}, r"it must take 4 \(var, grad, step, mean\)"),
    ({"update_sparse": update}, "beside which there are no formulas for rows"),
    ({"passes": (), "slots": KEEPING.slots}, "no Stage that reads it"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_contradictory_rule_raises(changes: Any, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        check_rule(replace(CENTERED, **changes))


@pytest.mark.parametrize("interval", [0, -1, 1.5, True, None])
def test_stage_with_invalid_interval_raises(interval: Any) -> None:
    with pytest.raises(RuleError, match="every of a Stage must be a positive integer"):
        Stage(center, interval)


@pytest.mark.parametrize("names", ["", (), (1,)])
def test_results_of_a_pass_have_names(names: Any) -> None:
    with pytest.raises(RuleError, match="makes of a Pass must be names"):
        Pass(ahead, names)


@pytest.mark.parametrize("kind", [Stage, partial(Pass, makes="step")])
def test_passes_and_stages_need_functions(kind: Any) -> None:
    with pytest.raises(RuleError, match="needs a function, not 3"):
        kind(3)


def test_a_slot_has_one_shape() -> None:
    with pytest.raises(RuleError, match="must be a function of rows and columns"):
        Slot("s", scalar=True, shape=turns)


def test_a_rule_with_passes_is_checked() -> None:
    check_rule(CENTERED)
    check_rule(KEEPING)


def two_values(var, grad, mean):
    return grad, mean


def swap(*, one, other):
    return {"one": other, "other": one}


def of_two(var, grad, one, other, mean, *, learning_rate):
    return var - learning_rate * (one + 2 * other), grad


def test_stage_may_return_an_input_under_another_name() -> None:
    rule = replace(
        CENTERED, passes=(Pass(two_values, makes=("one", "other")), Stage(swap)), update=of_two
    )
    (param,) = params = [torch.zeros(2, 3, requires_grad=True)]
    optimizer = optim.RuleOptimizer(params, rule)
    for grad, expected in ((1.0, -1.0), (3.0, -4.5)):  # the mean is that of the step before
        param.grad = torch.full((2, 3), grad)
        optimizer.step()
        torch.testing.assert_close(param.detach(), torch.full((2, 3), expected))


def returns_its_own(*, step, factor):
    return {"factor": step @ step.mT * 0 + step[:, :, :1], "step": step}


def add_later(*, step):
    return {"step": step + 100}


def test_slot_becomes_the_returned_value() -> None:
    passes = (CENTERED.passes[0], Stage(returns_its_own), Stage(add_later))
    (param,) = params = [torch.zeros(1, 1, requires_grad=True)]
    optimizer = optim.RuleOptimizer(params, replace(KEEPING, passes=passes))
    param.grad = torch.ones(1, 1)
    optimizer.step()
    assert optimizer.state[param]["factor"].item() == 1.0


def test_variables_of_any_memory_format_are_staged() -> None:
    torch.manual_seed(0)
    laid_out = [
        torch.randn(6, 4, 3, 3).to(memory_format=torch.channels_last),
        torch.randn(2, 3, 2, 2, 2).to(memory_format=torch.channels_last_3d),
        torch.randn(18, 4).t(),
        torch.randn(9, 2, 4).permute(2, 1, 0),
        torch.randn(8, 9)[::2],
    ]
    contiguous = [tensor.clone(memory_format=torch.contiguous_format) for tensor in laid_out]
    results: list[Any] = []
    for params in (laid_out, contiguous):
        copies = [param.detach().requires_grad_() for param in params]
        with pytest.warns(thalweg.PerformanceWarning) if params is laid_out else nullcontext():
            take(optim.RuleOptimizer(copies, CENTERED), copies, 3)
        results.append([tensor.detach().contiguous() for tensor in copies])
    assert_same(*results)


def with_default(*, step, learning_rate=7.0, unknown=3.0):
    return {"step": step * (learning_rate - 0.5) + unknown}


def test_stage_parameters_with_defaults_are_passed() -> None:
    rule = replace(CENTERED, passes=(CENTERED.passes[0], Stage(with_default)))
    check_rule(rule)
    (param,) = params = [torch.zeros(2, 2, requires_grad=True)]
    take(optim.RuleOptimizer(params, rule), params)
    torch.testing.assert_close(param.detach(), torch.full((2, 2), -1.5))


def test_rejected_call_creates_no_state() -> None:
    opt, w = RuleOptimizer(KEEPING), Variable(torch.ones(3), name="w")
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="for matrices"):
            opt.apply_gradients([(torch.ones(3), w)])
        assert opt.get_weights() == []
    for shape in ((3,), ()):
        (param,) = params = parameters([shape])
        with pytest.raises(InvalidArgumentError, match="for matrices"):
            optim.RuleOptimizer([param], KEEPING)
        optimizer = optim.RuleOptimizer(parameters([(2, 2)]), KEEPING)
        with pytest.raises(InvalidArgumentError, match="for matrices"):
            optimizer.add_param_group({"params": params})
        assert param not in optimizer.state


def no_shape(rows: int, columns: int) -> Any:
    return rows


def failing_shape(rows: int, columns: int) -> Any:
    raise ValueError("no")


@pytest.mark.parametrize(
    ("shape", "message"),
    [(no_shape, "must be a tuple of sizes, not"), (failing_shape, "fails beside a matrix .* no")],
)
def test_a_shape_is_a_tuple_of_sizes(shape: Any, message: str) -> None:
    slots = (Slot("mean"), Slot("factor", shape=shape))
    with pytest.raises(RuleError, match=message):
        check_rule(replace(KEEPING, slots=slots))


def test_rule_check_is_independent_of_defaults() -> None:
    from thalweg.rules.modern import SOAP

    default_dtype = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("meta"):
            check_rule(SOAP)
    finally:
        torch.set_default_dtype(default_dtype)


def fails_later(*, step):
    if len(step) != 2:
        raise ValueError("no")
    return {}


def test_a_stage_that_fails_in_a_step_is_named() -> None:
    params = parameters([(4, 3)])
    optimizer = optim.RuleOptimizer(
        params, replace(CENTERED, passes=(CENTERED.passes[0], Stage(fails_later)))
    )
    with pytest.raises(ValueError, match="no") as error_info:
        take(optimizer, params)
    assert any(
        "Stage fails_later" in note and "'Centered'" in note for note in error_info.value.__notes__
    )


def test_heads_split_stage_inputs() -> None:
    shapes: list[Any] = []

    def seen(*, step, rows, share):
        shapes.append((tuple(step.shape), tuple(rows.shape), getattr(share, "shape", ())))
        return {"step": step * share, "rows": rows + 1}

    slots = (Slot("mean"), Slot("rows", shape=lambda rows, columns: (rows, 1)))
    rule = replace(CENTERED, passes=(CENTERED.passes[0], Stage(seen, heads=2)), slots=slots)
    params = parameters([(4, 3), (4, 3), (2, 3, 2)])
    groups = [{"params": params[:1]}, {"params": params[1:], "share": 0.25}]
    optimizer = optim.RuleOptimizer(groups, rule)
    shapes.clear()  # those of `check_rule`
    take(optimizer, params, 2)
    expected = [((4, 2, 3), (4, 2, 1), (4, 1, 1)), ((2, 1, 6), (2, 1, 1), ())]
    assert shapes == expected * 2
    assert all(optimizer.state[param]["rows"].eq(2).all() for param in params)
    with pytest.raises(InvalidArgumentError, match=r"of rule 'Centered': .* 2 blocks of rows do"):
        optim.RuleOptimizer(parameters([(3, 4)]), rule)
    layouts = "have the layouts 'rows=1' and 'rows=2': give all of them the same one"
    with pytest.raises(RuleError, match=layouts):
        replace(rule, passes=(*rule.passes, Stage(center)))
    with pytest.raises(RuleError, match="either heads= or layout=, not both"):
        Stage(center, heads=2, layout="rows=2")
    for wrong in (0, 1.0, True):
        with pytest.raises(RuleError, match="heads of a Stage must be a positive integer"):
            Stage(center, heads=wrong)  # pyright: ignore[reportArgumentType]
