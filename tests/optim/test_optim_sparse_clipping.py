"""Sparse gradients that name a row twice, clipped: the step is that of rows that are added up."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from rulebook import assert_same, slow_unless
from thalweg import optim
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
QUICK = ("SparseAdam", "SGD", "torch's SGD", "LazyAdam")
LIMITS: dict[str, float] = {"clip_grad_norm": 0.5, "clip_grad_value": 0.7}
BESIDE: dict[str, dict[str, Any]] = {
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
    """Rows, some of which are named often, and their values."""
    made = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(param) // 2, (ENTRIES,), generator=made)
    shape = (ENTRIES, *param.shape[1:])
    return rows, torch.randn(shape, generator=made, dtype=torch.float64)


def added(rows: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows, each once and in order, with sums in the order of entries, of float32 at least."""
    wide = (values if values.dtype == torch.float64 else values.float()).numpy()
    sums: dict[int, Any] = {}
    for row, value in zip(rows.tolist(), wide, strict=True):
        sums[row] = sums[row] + value if row in sums else value
    named = sorted(sums)
    return torch.tensor(named), torch.from_numpy(np.stack([sums[row] for row in named]))


def sparse(rows: torch.Tensor, values: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(rows[None], values, param.shape, check_invariants=True)


def passed(made: Any, parts: list[Any], scale: float = 1.0) -> None:
    """A backward pass whose gradients are sparse, with a row for each entry; and a step."""
    for param, (rows, values) in zip(made.param_groups[0]["params"], parts, strict=True):
        looked_up = thalweg.embedding_lookup(param, rows)
        (looked_up * values.to(param.dtype) * scale).sum().backward()
    if scale != 1.0:
        made.grad_scale, made.found_inf = torch.tensor(scale), torch.tensor(0.0)
    made.step()
    made.zero_grad()


def both(make: Any, dtype: torch.dtype, options: dict[str, Any], steps: int = 4) -> list[Any]:
    """An optimizer of gradients whose rows repeat, and one that is given their sums.

    That of masters has parameters of float32.
    """
    params = params_of(dtype, ROWS)
    wide = torch.float32 if options.get("masters") and dtype.itemsize == 2 else dtype
    others = [param.detach().to(wide).clone().requires_grad_() for param in params]
    made = make(params, **options)
    other = make(others, **{name: each for name, each in options.items() if name not in SUMS})
    passes, scale = options.get("accumulate", 1), 8.0 if "fused_unscale" in options else 1.0
    for step in range(steps):
        every = [
            [entries(param, 1000 * step + 10 * k + place) for place, param in enumerate(params)]
            for k in range(passes)
        ]
        is_wide = bool({"wide_sums", "masters"} & set(options))
        sums: list[Any] = []
        for found, param in zip(zip(*every, strict=True), params, strict=True):
            gradients = [sparse(rows, values.to(dtype), param) for rows, values in found]
            if is_wide and dtype.itemsize == 2:
                gradients = [grad.float() for grad in gradients]
            total = reduce(torch.add, gradients)  # as torch accumulates them in `grad`
            sums.append(added(total._indices()[0], total._values()))
        for parts in every:
            passed(made, parts, scale)
        passed(other, sums, scale)
    return [made, other]


def everything(made: Any) -> list[torch.Tensor]:
    """Parameters, or their masters, and slots."""
    params = made.param_groups[0]["params"]
    found: list[torch.Tensor] = []
    for param in params:
        own = {name: each for name, each in made.state[param].items() if torch.is_tensor(each)}
        found += [own.pop("master", param.detach()), *own.values()]
    return [each if each.is_floating_point() else each.double() for each in found]


def assert_added(made: Any, other: Any) -> None:
    assert_same(everything(made), everything(other))
    assert made.last_step == other.last_step


def is_refused(beside: str, dtype: torch.dtype, option: str) -> bool:
    """Whether nothing clips this: a norm needs all gradients, and torch adds no such rows."""
    if BESIDE[beside] == {"accumulate": 2} and dtype == torch.float16:
        return True
    return "in_backward" in BESIDE[beside] and option == "clip_grad_norm"


@pytest.mark.parametrize(
    ("name", "beside", "dtype", "option"),
    [
        slow_unless(
            beside == "nothing" or name in QUICK[:2] or (name in QUICK and dtype == torch.float32),
            name,
            beside,
            dtype,
            option,
        )
        for name in MAKERS
        for beside in BESIDE
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        for option in LIMITS
        # What is made beside the slots has the parameter's dtype, master or not.
        if not ("masters" in beside and name in ("torch's Adagrad", "Nadam"))
        if not is_refused(beside, dtype, option)
    ],
    ids=str,
)
def test_clipping_sees_rows_that_are_added_up(
    name: str, beside: str, dtype: torch.dtype, option: str
) -> None:
    options = {option: LIMITS[option], **BESIDE[beside]}
    assert_added(*both(MAKERS[name], dtype, options, 2 if dtype == torch.float16 else 4))


@pytest.mark.parametrize("name", MAKERS)
def test_what_nothing_clips_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"in_backward applies each .* clip_grad_norm needs"):
        MAKERS[name](params_of(torch.float32, ROWS), in_backward=True, clip_grad_norm=1.0)
    made = MAKERS[name](params_of(torch.float16, ROWS), clip_grad_value=0.1, accumulate=2)
    params = made.param_groups[0]["params"]
    before = [param.detach().clone() for param in params]
    set_grads(params, 0, True)
    made.step()
    set_grads(params, 1, True)
    with pytest.raises(NotImplementedError, match="not implemented for 'Half'") as error:
        made.step()
    assert "The step was not taken: no variable and no slot has changed." in error.value.__notes__
    assert_same([param.detach() for param in params], before)


def test_a_class_for_every_name() -> None:
    classes = {type(make(params_of(torch.float32, ROWS))) for make in MAKERS.values()}
    wanted = {getattr(tensorflow, name) for name in tensorflow.__all__}
    assert classes == wanted | {optim.SGD, optim.Adagrad, optim.SparseAdam, optim.RuleOptimizer}


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_the_norm_is_that_of_the_gradient(engine: Any) -> None:
    (param,) = params_of(torch.float32, ROWS[:1])
    made = optim.SGD([param], lr=1.0, clip_grad_norm=1.0)
    for step in range(3):
        rows, values = entries(param, step)
        dense = torch.zeros_like(param).index_add_(0, rows, values.float()).detach()
        norm = dense.double().norm()
        wanted = param.detach() - dense / norm
        with thalweg.engine(engine):
            passed(made, [(rows, values)])
        assert made.last_step.grad_norm == pytest.approx(norm.item(), rel=1e-6)
        torch.testing.assert_close(param.detach(), wanted.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["torch's Adagrad", "SparseAdam", "LazyAdam", "Ftrl"])
def test_a_limit_that_is_not_reached_changes_nothing(name: str) -> None:
    """Where a rule adds up rows itself, both sums are the same."""
    found = []
    for options in ({}, {"clip_grad_norm": 2.0**60}, {"clip_grad_value": 2.0**60}):
        made = MAKERS[name](params_of(torch.float32, ROWS), **options)
        for step in range(3):
            params = made.param_groups[0]["params"]
            passed(made, [entries(param, 10 * step + k) for k, param in enumerate(params)])
        found.append(everything(made))
    assert_same(found[0], found[1])
    assert_same(found[0], found[2])


@pytest.mark.parametrize("options", [{}, {"clip_grad_value": 0.7}, {"masters": True}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_rules_share_a_norm_of_rows_that_are_added_up(
    dtype: torch.dtype, options: dict[str, Any]
) -> None:
    def make(params: list[Any], **given: Any) -> Any:
        dense = [p for p in params if p.dim() == 1]
        rest = [p for p in params if p.dim() > 1]
        return optim.SGD([{"params": rest}, {"params": dense, "momentum": 0.9}], lr=0.1, **given)

    found: list[Any] = []
    wide = torch.float32 if options.get("masters") and dtype.itemsize == 2 else dtype
    for is_added, kind in ((False, dtype), (True, wide)):
        params = [p.detach().to(kind).requires_grad_() for p in params_of(dtype, (*ROWS, (5,)))]
        given = {name: each for name, each in options.items() if name != "masters" or not is_added}
        made = make(params, clip_grad_norm=0.5, **given)
        for step in range(4):
            parts = [entries(param, 10 * step + k) for k, param in enumerate(params[:2])]
            if is_added:
                parts = [added(rows, values.to(dtype)) for rows, values in parts]
            params[2].grad = torch.linspace(-1, step, 5, dtype=dtype).to(kind)
            passed(made, parts)
        own = [made.state[p].get("master", p.detach()) for p in params]
        found.append((own, made.last_step))
    assert_same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_clipping_of_several_rules_is_that_of_one() -> None:
    """Unscaled, clipped by element, and then by the norm, whatever the number of rules."""
    found = []
    for several in (0.0, 1e-30):  # a share that changes no bits
        params = params_of(torch.float32, ((3, 2), (4,)))
        made = optim.SGD(
            [{"params": params[:1]}, {"params": params[1:], "momentum": several}],
            lr=0.1, clip_grad_norm=0.5, clip_grad_value=0.3, fused_unscale=True,
        )  # fmt: skip
        for step in range(3):
            for k, param in enumerate(params):
                made_by = torch.Generator().manual_seed(10 * step + k)
                param.grad = 8.0 * torch.randn(param.shape, generator=made_by)
            made.grad_scale, made.found_inf = torch.tensor(8.0), torch.tensor(0.0)
            made.step()
        found.append(([param.detach() for param in params], made.last_step))
    assert_same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("size", [1e20, 1e30])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kind", [optim.SGD, tensorflow.SGD, tensorflow.Ftrl, tensorflow.AdagradDA])
def test_sums_of_squares_beyond_float32_are_clipped(kind: Any, several: bool, size: float) -> None:
    params = [torch.zeros(100, requires_grad=True), torch.zeros(2, requires_grad=True)]
    groups: Any = params
    if several and kind is optim.SGD:
        groups = [{"params": params[:1]}, {"params": params[1:], "momentum": 0.5}]
    made, other = (
        kind(each, lr=1.0, **options)
        for each, options in (
            (groups, {"clip_grad_norm": 1.0}),
            ([p.detach().clone().requires_grad_() for p in params], {}),
        )
    )
    for param in params:
        param.grad = torch.full_like(param, size)
    wanted = 1 / 102**0.5
    for param in other.param_groups[0]["params"]:
        param.grad = torch.full_like(param, wanted)
    made.step(), other.step()
    assert made.last_step.grad_norm == pytest.approx(size * 102**0.5, rel=1e-6)
    for param, copied in zip(params, other.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(param.detach(), copied.detach(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("options", [{}, {"clip_grad_norm": 1.0}], ids=str)
@pytest.mark.parametrize("made", [optim.SGD, tensorflow.SGD])
def test_rows_beyond_their_storage_are_refused(made: Any, options: dict[str, Any]) -> None:
    (param,) = params_of(torch.float32, ROWS[:1])
    before, optimizer = param.detach().clone(), made([("w", param)], lr=0.1, **options)
    for part in ("_values", "_indices"):
        rows, values = entries(param, 0)
        param.grad = sparse(rows, values.float(), param)
        getattr(param.grad, part)().untyped_storage().resize_(8)
        with pytest.raises(ValueError, match=r"gradient of .w. has no memory") as caught:
            optimizer.step()
        assert "no variable and no slot has changed" in caught.value.__notes__[0]
    assert_same([param.detach()], [before])


def test_what_is_no_row_is_refused() -> None:
    (param,) = params_of(torch.float32, ROWS[:1])
    optimizer = tensorflow.SGD([("w", param)], lr=0.1, clip_grad_value=1.0)
    rows, before = torch.tensor([[1, 1, 9, 0]]), param.detach().clone()
    param.grad = torch.sparse_coo_tensor(rows, torch.ones(4, 4), (9, 4), check_invariants=False)
    with pytest.raises(ValueError, match=r"indices\[2\] = 9 is not in \[0, 9\)"):
        optimizer.step()
    assert_same([param.detach()], [before])


@pytest.mark.parametrize("name", ["SparseAdam", "torch's Adagrad", "LazyAdam"])
def test_steps_are_repeated(name, monkeypatch):
    """With numbers of Python's in the state, too, which are others after each step."""
    params = params_of(torch.float32, ROWS)
    optimizer = MAKERS[name](params)
    for seed in range(4):
        set_grads(params, seed, sparse=True)
        if seed == 1:
            monkeypatch.setattr("thalweg._core.step._plan_step", None)
        optimizer.step()


def test_a_count_that_somebody_sets_counts():
    params = params_of(torch.float32, ROWS)
    both = [
        optim.SparseAdam(params),
        torch.optim.SparseAdam(copies := params_of(torch.float32, ROWS)),
    ]
    for seed in range(5):
        for optimizer, own in zip(both, (params, copies), strict=True):
            set_grads(own, seed, sparse=True)
            if seed == 3:
                optimizer.state[own[0]]["step"] = 7
            optimizer.step()
    assert [both[0].state[param]["step"] for param in params] == [9, 5]
    for own, other in zip(params, copies, strict=True):
        torch.testing.assert_close(own, other)
