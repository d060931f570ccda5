"""Clipping of sparse gradients with duplicate rows: equal to clipping of summed rows."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from pairwise import cover_values
from rulebook import assert_same
from thalweg import Rule, optim
from thalweg.optim import tensorflow
from thalweg.rules import ADAM
from torch_inputs import params_of, set_grads

ROWS = ((9, 4), (30, 2, 3))
ENTRIES = 40  # torch's `coalesce` of more than 16 does not add rows as they came

MAKERS: dict[str, Any] = {
    "torch's SGD": lambda p, **o: optim.SGD(p, lr=0.1, **o),
    "torch's Adagrad": lambda p, **o: optim.Adagrad(p, lr=0.1, **o),
    "SparseAdam": lambda p, **o: optim.SparseAdam(p, lr=0.1, **o),
    "SGD": lambda p, **o: tensorflow.SGD(p, 0.1, **o),
    "nesterov": lambda p, **o: tensorflow.SGD(p, 0.1, 0.9, True, **o),
    "Adam": lambda p, **o: tensorflow.Adam(p, 0.1, **o),
    "Adamax": lambda p, **o: tensorflow.Adamax(p, **o),
    "Nadam": lambda p, **o: tensorflow.Nadam(p, **o),
    "Adagrad": lambda p, **o: tensorflow.Adagrad(p, 0.1, **o),
    "Adadelta": lambda p, **o: tensorflow.Adadelta(p, 1.0, **o),
    "RMSprop": lambda p, **o: tensorflow.RMSprop(p, momentum=0.9, centered=True, **o),
    "Ftrl": lambda p, **o: tensorflow.Ftrl(p, 0.1, l1=0.01, l2_shrinkage=0.03, **o),
    "Momentum": lambda p, **o: tensorflow.Momentum(p, 0.1, **o),
    "MomentumW": lambda p, **o: tensorflow.MomentumW(p, 0.1, **o),
    "LazyAdam": lambda p, **o: tensorflow.LazyAdam(p, **o),
    "AdamW": lambda p, **o: tensorflow.AdamW(p, **o),
    "ProximalAdagrad": lambda p, **o: tensorflow.ProximalAdagrad(p, l1=0.01, **o),
    "ProximalGradientDescent": lambda p, **o: tensorflow.ProximalGradientDescent(p, l2=0.01, **o),
    "AdagradDA": lambda p, **o: tensorflow.AdagradDA(p, l1=0.01, **o),
    "a rule": lambda p, **o: optim.RuleOptimizer(p, ADAM, 0.1, **o),
}
LIMITS: dict[str, float] = {"clip_grad_norm": 0.5, "clip_grad_value": 0.7}
OPTION_SETS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "each other": LIMITS,
    "an average": {"ema_decay": 0.9},
    "slow weights": {"lookahead": 2},
    "sums": {"accumulate": 2},
    "wide sums": {"accumulate": 3, "wide_sums": True},
    "a scaler": {"fused_unscale": True},
    "slots of a type": {"state_dtype": torch.bfloat16},
    "the backward pass": {"in_backward": True},
    "masters": {"masters": True},
    "masters and sums": {"masters": True, "accumulate": 2, "ema_decay": 0.9},
}
SUMS = ("accumulate", "wide_sums", "masters")


def entries(param: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return row indices with duplicates, and their values."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(param) // 2, (ENTRIES,), generator=generator)
    shape = (ENTRIES, *param.shape[1:])
    return rows, torch.randn(shape, generator=generator, dtype=torch.float64)


def add_rows(rows: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return unique sorted rows, and sums in the order of entries, at least in float32."""
    wide = (values if values.dtype == torch.float64 else values.float()).numpy()
    sums: dict[int, Any] = {}
    for row, value in zip(rows.tolist(), wide, strict=True):
        sums[row] = sums[row] + value if row in sums else value
    unique_rows = sorted(sums)
    return torch.tensor(unique_rows), torch.from_numpy(np.stack([sums[row] for row in unique_rows]))


def sparse(rows: torch.Tensor, values: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(rows[None], values, param.shape, check_invariants=True)


def run_backward(opt: Any, parts: list[Any], scale: float = 1.0) -> None:
    """Run a backward pass with one sparse row per entry, and take a step."""
    for param, (rows, values) in zip(opt.param_groups[0]["params"], parts, strict=True):
        embedded = thalweg.embedding_lookup(param, rows)
        (embedded * values.to(param.dtype) * scale).sum().backward()
    if scale != 1.0:
        opt.grad_scale, opt.found_inf = torch.tensor(scale), torch.tensor(0.0)
    opt.step()
    opt.zero_grad()


def train_both(make: Any, dtype: torch.dtype, options: dict[str, Any], steps: int = 4) -> list[Any]:
    """Return an optimizer trained with duplicate rows, and one trained with their sums.

    With master weights, the second has float32 parameters.
    """
    params = params_of(dtype, ROWS)
    wide = torch.float32 if options.get("masters") and dtype.itemsize == 2 else dtype
    ref_params = [param.detach().to(wide).clone().requires_grad_() for param in params]
    opt = make(params, **options)
    ref = make(ref_params, **{name: option for name, option in options.items() if name not in SUMS})
    passes, scale = options.get("accumulate", 1), 8.0 if "fused_unscale" in options else 1.0
    for step in range(steps):
        batches = [
            [entries(param, 1000 * step + 10 * k + index) for index, param in enumerate(params)]
            for k in range(passes)
        ]
        is_wide = bool({"wide_sums", "masters"} & set(options))
        sums: list[Any] = []
        for batch, param in zip(zip(*batches, strict=True), params, strict=True):
            gradients = [sparse(rows, values.to(dtype), param) for rows, values in batch]
            if is_wide and dtype.itemsize == 2:
                gradients = [grad.float() for grad in gradients]
            total = reduce(torch.add, gradients)  # as torch accumulates them in `grad`
            sums.append(add_rows(total._indices()[0], total._values()))
        for parts in batches:
            run_backward(opt, parts, scale)
        run_backward(ref, sums, scale)
    return [opt, ref]


def tensors_of(opt: Any) -> list[torch.Tensor]:
    """Return parameters, or their master weights, and slots."""
    params = opt.param_groups[0]["params"]
    tensors: list[torch.Tensor] = []
    for param in params:
        slots = {name: x for name, x in opt.state[param].items() if torch.is_tensor(x)}
        tensors += [slots.pop("master", param.detach()), *slots.values()]
    return [tensor if tensor.is_floating_point() else tensor.double() for tensor in tensors]


def assert_same_steps(actual: Any, expected: Any) -> None:
    assert_same(tensors_of(actual), tensors_of(expected))
    assert actual.last_step == expected.last_step


def is_unsupported(extras: str, dtype: torch.dtype, option: str) -> bool:
    """Return whether clipping raises: a norm needs all gradients, torch cannot add such rows."""
    if OPTION_SETS[extras] == {"accumulate": 2} and dtype == torch.float16:
        return True
    return "in_backward" in OPTION_SETS[extras] and option == "clip_grad_norm"


@pytest.mark.parametrize(
    ("name", "extras", "dtype", "option"),
    cover_values(
        (
            (name, extras, dtype, option)
            for name in MAKERS
            for extras in OPTION_SETS
            for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
            for option in LIMITS
            # Scalars beside the slots have the parameter's dtype, with or without masters.
            if not ("masters" in extras and name in ("torch's Adagrad", "Nadam"))
            if not is_unsupported(extras, dtype, option)
        ),
        3,
    ),
    ids=str,
)
@pytest.mark.one_in(7)
def test_clipping_uses_summed_rows(name: str, extras: str, dtype: torch.dtype, option: str) -> None:
    options = {option: LIMITS[option], **OPTION_SETS[extras]}
    assert_same_steps(*train_both(MAKERS[name], dtype, options, 2 if dtype == torch.float16 else 4))


def subtract(var: Any, grad: Any) -> Any:
    return (var - grad,)


@pytest.mark.parametrize("options", [{}, {"clip_grad_value": 0.7}], ids=str)
@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_sums_of_rows_begin_at_zero(engine: Any, options: dict[str, Any]) -> None:
    """The sum of a row of negative zeros is zero, as in TensorFlow."""
    param = (-torch.zeros(3, 2)).requires_grad_()
    param.grad = sparse(torch.tensor([2, 0]), -torch.zeros(2, 2), param)
    with thalweg.engine(engine):
        optim.RuleOptimizer([param], Rule(name="Difference", update=subtract), **options).step()
    assert param.signbit().all()


@pytest.mark.parametrize("name", MAKERS)
def test_unsupported_clipping_raises(name: str) -> None:
    with pytest.raises(ValueError, match=r"in_backward applies each .* clip_grad_norm needs"):
        MAKERS[name](params_of(torch.float32, ROWS), in_backward=True, clip_grad_norm=1.0)
    opt = MAKERS[name](params_of(torch.float16, ROWS), clip_grad_value=0.1, accumulate=2)
    params = opt.param_groups[0]["params"]
    previous = [param.detach().clone() for param in params]
    set_grads(params, 0, True)
    opt.step()
    set_grads(params, 1, True)
    with pytest.raises(NotImplementedError, match="not implemented for 'Half'") as error:
        opt.step()
    assert "The step was not taken: no variable and no slot has changed." in error.value.__notes__
    assert_same([param.detach() for param in params], previous)


def test_a_class_for_every_name() -> None:
    classes = {type(make(params_of(torch.float32, ROWS))) for make in MAKERS.values()}
    expected = {getattr(tensorflow, name) for name in tensorflow.__all__}
    assert classes == expected | {optim.SGD, optim.Adagrad, optim.SparseAdam, optim.RuleOptimizer}


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_norm_is_of_the_summed_gradient(engine: Any) -> None:
    (param,) = params_of(torch.float32, ROWS[:1])
    opt = optim.SGD([param], lr=1.0, clip_grad_norm=1.0)
    for step in range(3):
        rows, values = entries(param, step)
        dense = torch.zeros_like(param).index_add_(0, rows, values.float()).detach()
        norm = dense.double().norm()
        expected = param.detach() - dense / norm
        with thalweg.engine(engine):
            run_backward(opt, [(rows, values)])
        assert opt.last_step.grad_norm == pytest.approx(norm.item(), rel=1e-6)
        torch.testing.assert_close(param.detach(), expected.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["torch's Adagrad", "SparseAdam", "LazyAdam", "Ftrl"])
def test_large_limit_changes_nothing(name: str) -> None:
    """Rules that sum rows themselves have the same sums."""
    states = []
    for options in ({}, {"clip_grad_norm": 2.0**60}, {"clip_grad_value": 2.0**60}):
        opt = MAKERS[name](params_of(torch.float32, ROWS), **options)
        for step in range(3):
            params = opt.param_groups[0]["params"]
            run_backward(opt, [entries(param, 10 * step + k) for k, param in enumerate(params)])
        states.append(tensors_of(opt))
    assert_same(states[0], states[1])
    assert_same(states[0], states[2])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", [{}, {"clip_grad_value": 0.7}, {"masters": True}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_rules_share_the_norm_of_summed_rows(dtype: torch.dtype, options: dict[str, Any]) -> None:
    def make(params: list[Any], **kwargs: Any) -> Any:
        dense = [param for param in params if param.dim() == 1]
        tables = [param for param in params if param.dim() > 1]
        return optim.SGD([{"params": tables}, {"params": dense, "momentum": 0.9}], lr=0.1, **kwargs)

    outcomes: list[Any] = []
    wide = torch.float32 if options.get("masters") and dtype.itemsize == 2 else dtype
    for has_sums, target in ((False, dtype), (True, wide)):
        params = [p.detach().to(target).requires_grad_() for p in params_of(dtype, (*ROWS, (5,)))]
        kwargs = {
            name: option for name, option in options.items() if name != "masters" or not has_sums
        }
        opt = make(params, clip_grad_norm=0.5, **kwargs)
        for step in range(4):
            parts = [entries(param, 10 * step + k) for k, param in enumerate(params[:2])]
            if has_sums:
                parts = [add_rows(rows, values.to(dtype)) for rows, values in parts]
            params[2].grad = torch.linspace(-1, step, 5, dtype=dtype).to(target)
            run_backward(opt, parts)
        weights = [opt.state[param].get("master", param.detach()) for param in params]
        outcomes.append((weights, opt.last_step))
    assert_same(outcomes[0][0], outcomes[1][0])
    assert outcomes[0][1] == outcomes[1][1]


def test_clipping_does_not_depend_on_rule_count() -> None:
    """Gradients are unscaled, then clipped by element, then by the norm, for one and two rules."""
    outcomes = []
    for momentum in (0.0, 1e-30):  # a share that changes no bits
        params = params_of(torch.float32, ((3, 2), (4,)))
        opt = optim.SGD(
            [{"params": params[:1]}, {"params": params[1:], "momentum": momentum}],
            lr=0.1, clip_grad_norm=0.5, clip_grad_value=0.3, fused_unscale=True,
        )  # fmt: skip
        for step in range(3):
            for k, param in enumerate(params):
                generator = torch.Generator().manual_seed(10 * step + k)
                param.grad = 8.0 * torch.randn(param.shape, generator=generator)
            opt.grad_scale, opt.found_inf = torch.tensor(8.0), torch.tensor(0.0)
            opt.step()
        outcomes.append(([param.detach() for param in params], opt.last_step))
    assert_same(outcomes[0][0], outcomes[1][0])
    assert outcomes[0][1] == outcomes[1][1]


@pytest.mark.parametrize("size", [1e20, 1e30])
@pytest.mark.parametrize("has_two_rules", [False, True])
@pytest.mark.parametrize("cls", [optim.SGD, tensorflow.SGD, tensorflow.Ftrl, tensorflow.AdagradDA])
def test_squares_beyond_float32_are_clipped(cls: Any, has_two_rules: bool, size: float) -> None:
    params = [torch.zeros(100, requires_grad=True), torch.zeros(2, requires_grad=True)]
    groups: Any = params
    if has_two_rules and cls is optim.SGD:
        groups = [{"params": params[:1]}, {"params": params[1:], "momentum": 0.5}]
    opt, ref = (
        cls(parameters, lr=1.0, **options)
        for parameters, options in (
            (groups, {"clip_grad_norm": 1.0}),
            ([param.detach().clone().requires_grad_() for param in params], {}),
        )
    )
    for param in params:
        param.grad = torch.full_like(param, size)
    expected = 1 / 102**0.5
    for param in ref.param_groups[0]["params"]:
        param.grad = torch.full_like(param, expected)
    opt.step(), ref.step()
    assert opt.last_step.grad_norm == pytest.approx(size * 102**0.5, rel=1e-6)
    for param, ref_param in zip(params, ref.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(param.detach(), ref_param.detach(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("options", [{}, {"clip_grad_norm": 1.0}], ids=str)
@pytest.mark.parametrize("cls", [optim.SGD, tensorflow.SGD])
def test_freed_storage_raises(cls: Any, options: dict[str, Any]) -> None:
    (param,) = params_of(torch.float32, ROWS[:1])
    previous, optimizer = param.detach().clone(), cls([("w", param)], lr=0.1, **options)
    for part in ("_values", "_indices"):
        rows, values = entries(param, 0)
        param.grad = sparse(rows, values.float(), param)
        getattr(param.grad, part)().untyped_storage().resize_(8)
        with pytest.raises(ValueError, match=r"gradient of .w. has no memory") as error:
            optimizer.step()
        assert "no variable and no slot has changed" in error.value.__notes__[0]
    assert_same([param.detach()], [previous])


def test_row_out_of_range_raises() -> None:
    (param,) = params_of(torch.float32, ROWS[:1])
    optimizer = tensorflow.SGD([("w", param)], lr=0.1, clip_grad_value=1.0)
    rows, previous = torch.tensor([[1, 1, 9, 0]]), param.detach().clone()
    param.grad = torch.sparse_coo_tensor(rows, torch.ones(4, 4), (9, 4), check_invariants=False)
    with pytest.raises(ValueError, match=r"indices\[2\] = 9 is not in \[0, 9\)"):
        optimizer.step()
    assert_same([param.detach()], [previous])


@pytest.mark.parametrize("name", ["SparseAdam", "torch's Adagrad", "LazyAdam"])
def test_sparse_steps_are_replayed(name, monkeypatch):
    """Steps are replayed even if Python numbers in the state change."""
    params = params_of(torch.float32, ROWS)
    optimizer = MAKERS[name](params)
    for seed in range(4):
        set_grads(params, seed, sparse=True)
        if seed == 1:
            monkeypatch.setattr("thalweg._core.step._plan_step", None)
        optimizer.step()


def test_user_written_count_is_used():
    params = params_of(torch.float32, ROWS)
    optimizers = [
        optim.SparseAdam(params),
        torch.optim.SparseAdam(copies := params_of(torch.float32, ROWS)),
    ]
    for seed in range(5):
        for optimizer, tensors in zip(optimizers, (params, copies), strict=True):
            set_grads(tensors, seed, sparse=True)
            if seed == 3:
                optimizer.state[tensors[0]]["step"] = 7
            optimizer.step()
    assert [optimizers[0].state[param]["step"] for param in params] == [9, 5]
    for actual, expected in zip(params, copies, strict=True):
        torch.testing.assert_close(actual, expected)
