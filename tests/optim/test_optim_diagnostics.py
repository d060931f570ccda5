"""Diagnostics of parameters: beside numbers made by hand, and without a trace in a training."""

from __future__ import annotations

import copy
import gc
import io
import json
import math
import pickle
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from case_batches import many
from rulebook import assert_same
from thalweg import optim
from thalweg._engines import diagnostics
from thalweg._engines.diagnostic_sums import sums_of_products
from thalweg._engines.reduction_order import combine_leaves
from thalweg.errors import FailedPreconditionError, NotFoundError, NumericsWarning
from thalweg.optim import tensorflow
from thalweg.optim.diagnostics import COLUMNS, Diagnostics, JsonLines, TensorBoard, measuring, to
from thalweg.rules.heavy_ball import HEAVY_BALL

SHAPES = ((70, 1030), (33, 7), (5,))  # the first has two leaves
MOMENTUM = {"momentum": 0.9}
CLASSES: list[tuple[Any, str, dict[str, Any], str]] = [
    (optim, "SGD", {}, ""),
    (optim, "SGD", {**MOMENTUM, "weight_decay": 0.1}, "momentum_buffer"),
    (optim, "AdamW", {}, "exp_avg"),
    (optim, "Adam", {"amsgrad": True}, "exp_avg"),
    (optim, "RMSprop", {"centered": True, **MOMENTUM}, "grad_avg"),
    (optim, "Adagrad", {}, ""),
    (optim, "NAdam", {}, "exp_avg"),
    (optim, "Lion", {}, "exp_avg"),
    (optim, "Adan", {}, "exp_avg"),
    (optim, "LAMB", {}, "exp_avg"),
    (optim, "Prodigy", {}, "exp_avg"),
    (optim, "ScheduleFreeAdamW", {}, ""),
    (optim, "Adafactor", {}, ""),
    (optim, "SM3", {}, ""),
    (optim, "Muon", {}, "momentum_buffer"),
    (optim, "SOAP", {}, "exp_avg"),
    (tensorflow, "Adam", {}, "m"),
    (tensorflow, "SGD", MOMENTUM, "momentum"),
    (tensorflow, "Ftrl", {}, ""),
]
OF_MATRICES = ("Muon", "SOAP")
# Which torch computes in float16, or nobody.
NOT_OF_FLOAT16 = ("Adafactor", "SM3", *OF_MATRICES)
BESIDE: list[dict[str, Any]] = [
    {"clip_grad_norm": 0.5},
    {"clip_grad_value": 0.25},
    {"masters": True},
    {"weights": "split"},
    {"round": "stochastic"},
    {"state_storage": "8bit"},
    {"accumulate": 2},
    {"gradients": "flat"},
    {"ema_decay": 0.5},
    {"lookahead": 2},
    {"cautious": True},
    {"trust_ratio": True},
]
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def params_of(dtype: torch.dtype = torch.float32, shapes: Any = SHAPES) -> list[Any]:
    torch.manual_seed(0)
    made = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    return [(f"w{k}", param) for k, param in enumerate(made)]


def give(params: Any, step: int, scale: float = 1.0) -> None:
    torch.manual_seed(step)
    for _, param in params:
        grad = (torch.randn(param.shape) * scale).to(param.dtype)
        grad.view(-1)[0] = 0.0
        param.grad = grad


def run(params: Any, made: Any, steps: int = 3) -> Any:
    for step in range(steps):
        give(params, step)
        made.step()
    return made


def total(one: torch.Tensor, other: torch.Tensor) -> float:
    """The sum of products in the order of the protocol."""
    both = {name: own.reshape(-1).numpy() for name, own in (("a", one), ("b", other))}
    leaves = sums_of_products(both, {"both": ("a", "b")})["both"]
    return float(combine_leaves(leaves, np.array([len(leaves)]))[0])


def expected(
    old: torch.Tensor, new: torch.Tensor, grad: torch.Tensor, seen: torch.Tensor, momentum: Any
) -> dict[str, float]:
    """The columns of a parameter, with torch; `seen` is the gradient in the update's type."""
    move = (new.double() if new.dtype == torch.float64 else new.float()) - old
    wide, own = seen.to(move.dtype), (new.to(move.dtype), move)
    norms = [math.sqrt(total(each, each)) for each in (wide, own[1], own[0])]
    tiny, share = torch.finfo(grad.dtype).tiny, 1 / grad.numel()
    found = {
        "gradient_norm": norms[0],
        "gradient_max": float(wide.abs().max()),
        "update_norm": norms[1],
        "update_max": float(own[1].abs().max()),
        "weight_norm": norms[2],
        "weight_max": float(own[0].abs().max()),
        "ratio": norms[1] / norms[2],
        "unchanged": int(((new == old) & (grad != 0)).sum()) * share,
        "zero": int((grad == 0).sum()) * share,
        "denormal": int(((grad.abs() < tiny) & (grad != 0)).sum()) * share,
        "nonfinite": int((~grad.isfinite()).sum()),
    }
    if momentum is not None:
        beside = momentum.to(move.dtype)
        length = math.sqrt(total(beside, beside))
        found["cosine"] = total(wide, beside) / norms[0] / length if length else math.nan
        found["agreement"] = int((wide * beside > 0).sum()) * share
    return found


def assert_row(row: Any, wanted: dict[str, float]) -> None:
    for name in COLUMNS:
        if name in wanted:
            assert getattr(row, name) == pytest.approx(wanted[name], rel=1e-15, nan_ok=True), name
        elif name != "clip":
            assert math.isnan(getattr(row, name)), name


@pytest.mark.slow
@many("engine", ["cpu", "reference"])
@many("dtype", TYPES)
@many("case", CLASSES)
def test_numbers_of_all_are_those_of_the_step(case: Any, dtype: torch.dtype, engine: str) -> None:
    _compare(case, dtype, engine)


@many("dtype", (torch.float32, torch.bfloat16))
@many("case", [each for each in CLASSES if each[1] in ("SGD", "AdamW", "Muon", "SM3", "Ftrl")])
def test_numbers_are_those_of_the_step(case: Any, dtype: torch.dtype) -> None:
    _compare(case, dtype, "cpu")


def _compare(case: Any, dtype: torch.dtype, engine: str) -> None:
    module, name, own, slot = case
    if name in NOT_OF_FLOAT16 and dtype == torch.float16:
        return
    params = params_of(dtype, SHAPES[:2] if name in OF_MATRICES else SHAPES)
    with thalweg.engine(engine):
        made = getattr(module, name)(params, lr=0.01, diagnostics=2, **own)
        for step in range(2):
            give(params, step)
            old = [p.detach().clone() for _, p in params]
            sign = -1 if slot == "momentum" else 1
            slots = [made.state[p].get(slot, torch.zeros(p.shape)).clone() for _, p in params]
            made.step()
            if step % 2 == 0:
                continue
            assert made.diagnostics.step == step + 1
            for k, (title, param) in enumerate(params):
                momentum = sign * slots[k] if slot else None
                grad = param.grad
                row = made.diagnostics[title]
                assert_row(row, expected(old[k], param.detach(), grad, grad, momentum))
                assert row.group == 0
                assert row.step == step + 1
                assert row.clip == 1.0


@pytest.mark.slow
@many("case", [each for each in CLASSES if each[1] not in NOT_OF_FLOAT16])
@many("dtype", TYPES)
def test_all_engines_give_the_same_bits(case: Any, dtype: torch.dtype) -> None:
    _compare_engines(case, dtype)


@many("case", [each for each in CLASSES if each[1] in ("SGD", "AdamW")])
@many("dtype", TYPES)
def test_engines_give_the_same_bits(case: Any, dtype: torch.dtype) -> None:
    _compare_engines(case, dtype)


def _compare_engines(case: Any, dtype: torch.dtype) -> None:
    module, name, own, _ = case
    tables: list[Any] = []
    for engine in ("cpu", "reference"):
        params = params_of(dtype)
        with thalweg.engine(engine):
            tables.append(run(params, getattr(module, name)(params, diagnostics=3, **own)))
    one, other = (made.diagnostics.records for made in tables)
    for column in COLUMNS:
        assert_same([torch.tensor(one[column])], [torch.tensor(other[column])])


def _beside(dtype: torch.dtype, around: dict[str, Any], diagnostics: Any) -> Any:
    params = params_of(dtype)
    made = optim.AdamW(params[1:], lr=0.01, diagnostics=diagnostics, **around)
    for step in range(9):
        give(params[1:], step)
        made.step()
    return made


@many("around", [{}, *BESIDE])
@many("dtype", (torch.float32, torch.bfloat16))
def test_a_training_does_not_feel_it(around: dict[str, Any], dtype: torch.dtype) -> None:
    if "weights" in around and dtype != torch.bfloat16:
        return
    told, plain = (_beside(dtype, around, each) for each in (2, None))
    assert plain.diagnostics is None
    for one, other in zip(told.state.values(), plain.state.values(), strict=True):
        assert one.keys() == other.keys()
        pairs = zip(one.values(), other.values(), strict=True)
        for mine, theirs in pairs:
            assert torch.equal(mine, theirs)
            assert mine.dtype == theirs.dtype
    params = [[p.detach() for p in each.param_groups[0]["params"]] for each in (told, plain)]
    assert_same(*params)
    assert told.diagnostics.step == (4 if "accumulate" in around else 8)
    assert np.isfinite(told.diagnostics.ratio).all()
    assert "diagnostics" not in json.dumps(str(told.state_dict()))


def test_masters_tell_of_what_a_step_updates() -> None:
    tables: list[Any] = []
    for masters in (False, True):
        params = params_of(torch.bfloat16)
        made = optim.SGD(params, lr=1e-5, masters=masters, diagnostics=1)
        tables.append(run(params, made, 1).diagnostics)
    plain, mastered = tables
    assert (plain.unchanged >= 0.8).all()
    assert (mastered.unchanged < 0.05).all()
    assert (plain.update_norm < mastered.update_norm).all()


def test_clipping_and_scales_are_told() -> None:
    params = params_of()
    made = optim.SGD(params, lr=0.1, clip_grad_norm=0.5, diagnostics=1)
    give(params, 0)
    made.step()
    table, last = made.diagnostics, made.last_step
    norm = math.sqrt(sum(each * each for each in table.gradient_norm))
    assert norm == pytest.approx(last.grad_norm, rel=1e-6)  # before the factor
    assert set(table.clip) == {last.clip_factor}
    assert last.clip_factor < 1
    assert table.update_norm == pytest.approx(0.1 * table.clip * table.gradient_norm, rel=1e-4)


def test_a_scaler_is_followed() -> None:
    params = params_of(shapes=((5,), (3,)))
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    made = optim.SGD(params, lr=0.1, fused_unscale=True, diagnostics=1)
    for step, bad in enumerate((False, True, False)):
        scaler.scale(sum((p * (step + 1)).sum() for _, p in params)).backward()
        if bad:
            params[0][1].grad[0] = math.inf
        scaler.step(made)
        scaler.update()
        made.zero_grad()
        assert made.diagnostics.step == (1, 1, 2)[step]
        if not bad:
            assert made.diagnostics["w1"].gradient_max == step + 1


def test_rows_and_parameters_without_a_gradient_are_not_measured() -> None:
    table = torch.nn.Embedding(9, 4, sparse=True)
    other, unused = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))
    named = [("rows", table.weight), ("other", other), ("unused", unused)]
    made = optim.SGD(named, lr=0.1, diagnostics=1)
    for _ in range(3):  # repeated from the second on
        made.zero_grad()
        (table(torch.tensor([1, 1, 3])).sum() + other.sum()).backward()
        made.step()
    rows, whole, rest = (made.diagnostics[name] for name, _ in named)
    assert rows.update_max == pytest.approx(0.2)
    assert math.isnan(rows.gradient_norm)
    assert math.isnan(rows.unchanged)
    assert whole.gradient_norm == pytest.approx(math.sqrt(3))
    assert all(math.isnan(getattr(rest, name)) for name in COLUMNS)


@many("number", [math.nan, math.inf, 1e-40])
def test_strange_gradients_are_counted(number: float) -> None:
    params = params_of(shapes=((4,),))
    made = optim.SGD(params, lr=0.1, diagnostics=1)
    params[0][1].grad = torch.tensor([0.0, number, 1.0, 2.0])
    made.step()
    row = made.diagnostics["w0"]
    assert (row.zero, row.denormal, row.nonfinite) == (
        0.25,
        0.25 if number == 1e-40 else 0.0,
        0.0 if number == 1e-40 else 1.0,
    )
    if number != 1e-40:
        assert row.gradient_max == pytest.approx(number, nan_ok=True)


def test_several_rules_tell_in_one_table() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 2))
    rules = {"0.weight": "Muon", ...: {"rule": HEAVY_BALL}}
    made = optim.Mixed(optim.groups(model, rules=rules), diagnostics=1, clip_grad_norm=0.1)
    for _ in range(3):
        model(torch.ones(4, 6)).square().sum().backward()
        made.step()
    table = made.diagnostics
    assert sorted(table) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert np.isfinite(np.array([table.records[name] for name in COLUMNS])).all()
    assert {table["0.weight"].group, table["1.weight"].group} == {0, 1}
    assert set(table.clip) == {made.last_step.clip_factor}


@pytest.mark.parametrize("face", [optim.AdamW, tensorflow.Adam])
def test_counts_go_on_after_a_load_and_copies_tell_nobody(face: Any, tmp_path: Path) -> None:
    params, seen = params_of(shapes=((3,),)), list[int]()
    told = Diagnostics(2, [lambda table: seen.append(table.step)])
    made = run(params, face(params, lr=0.1, diagnostics=told), 3)
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        run([("w0", other.param_groups[0]["params"][0])], other, 1)
        assert other.diagnostics.step == 4
        assert seen == [2]
    again = params_of(shapes=((3,),))
    loaded = face(again, lr=0.1, diagnostics=2)
    loaded.load_state_dict(made.state_dict())
    run(again, loaded, 1)
    assert loaded.diagnostics.step == 4
    for steps in (5, 2):  # after steps of its own
        run(params, made, 2)
        loaded.load_state_dict(made.state_dict())
        run(again, loaded, steps)
        count = int(loaded.state[again[0][1]]["step"])
        assert loaded.diagnostics.step == count - count % 2
    with pytest.raises(FailedPreconditionError, match="another optimizer's"):
        face(params_of(shapes=((3,),)), lr=0.1, diagnostics=told)


def test_diagnostics_of_an_optimizer_that_is_gone_are_free() -> None:
    params, told = params_of(shapes=((3,),)), Diagnostics(1)
    with pytest.raises(ValueError, match="more than one") as caught:
        optim.AdamW([{"params": params}, {"params": params}], diagnostics=told)
    del caught
    gc.collect()
    made = optim.AdamW(params, diagnostics=told)
    assert run(params, made, 2).diagnostics.step == 2


def test_a_shallow_copy_tells_nobody() -> None:
    params, seen = params_of(shapes=((3,),)), list[int]()
    made = optim.AdamW(params, diagnostics=Diagnostics(1, [lambda table: seen.append(table.step)]))
    other = copy.copy(run(params, made, 1))
    assert run(params, other, 1).diagnostics.step == 2
    assert seen == [1]


def test_memory_that_runs_out_after_the_step_ends_no_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(watch: object) -> None:
        raise MemoryError("all of it")

    params, plain = params_of(shapes=((3,),)), params_of(shapes=((3,),))
    made = optim.SGD(params, lr=0.1, diagnostics=1)
    with monkeypatch.context() as patch:
        patch.setattr(measuring.StepWatch, "finish", fail)
        with pytest.warns(NumericsWarning, match="Step 1 was taken.*MemoryError: all of it"):
            run(params, made, 1)
    assert made.diagnostics is None
    assert made.last_step.taken
    run(plain, optim.SGD(plain, lr=0.1), 1)
    assert_same([params[0][1]], [plain[0][1]])
    assert run(params, made, 1).diagnostics.step == 2


def test_a_table_that_cannot_be_made_loses_no_numbers_of_the_next_step() -> None:
    """Those of a step are there before the table of the step before: ranks wait for them."""

    def fail() -> None:
        raise MemoryError

    params = params_of(shapes=((3,),))
    made = run(params, optim.SGD(params, lr=0.1, diagnostics=1), 1)
    finished, own = list[int](), made._cache.diagnosing
    finish, own._pending = own._finish, (fail, None)
    own._finish = lambda watch, step, taken: finished.append(step) or finish(watch, step, taken)
    with pytest.warns(NumericsWarning, match="MemoryError"):
        run(params, made, 1)
    assert finished == [2]


def test_a_sink_that_cannot_be_named_ends_no_step() -> None:
    class Nameless:
        def __call__(self, table: object) -> None:
            raise OSError("full")

        def __repr__(self) -> str:
            raise RuntimeError("no name")

    params = params_of(shapes=((3,),))
    made = optim.SGD(params, lr=0.1, diagnostics=Diagnostics(1, [Nameless()]))
    with pytest.warns(NumericsWarning, match="of Nameless failed, which is said once: OSError"):
        run(params, made, 1)
    assert made.last_step.taken


def test_names_that_are_alike_are_told_apart() -> None:
    models = [torch.nn.Linear(2, 1), torch.nn.Linear(3, 1, bias=False)]
    groups = [{"params": each.named_parameters()} for each in models]
    made = optim.AdamW(groups, diagnostics=1)
    for model, size in zip(models, (2, 3), strict=True):
        model(torch.ones(size)).sum().backward()
    made.step()
    assert list(made.diagnostics) == ["weight (index 0)", "bias", "weight (index 2)"]
    assert len(made.diagnostics.scalars(["ratio"])) == 3


def test_parameters_without_names_are_numbered() -> None:
    model = torch.nn.Linear(2, 1)
    made = optim.AdamW(model.parameters(), diagnostics=1)
    model(torch.ones(2)).sum().backward()
    made.step()
    assert list(made.diagnostics) == ["parameter 0", "parameter 1"]
    with pytest.raises(NotFoundError, match=r"'weight'\. It has parameter 0, parameter 1\."):
        made.diagnostics["weight"]


def test_shares_of_complex_numbers_are_of_both_parts() -> None:
    param = torch.nn.Parameter(torch.ones(4, dtype=torch.complex64))
    made = optim.SGD([param], lr=0.1, momentum=0.9, diagnostics=1)
    for _ in range(2):
        param.grad = torch.tensor([1 + 1j, 1, 0, 1j])
        made.step()
    assert made.diagnostics.zero == 0.5
    assert made.diagnostics.agreement == 0.5


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_signs_agree_beside_numbers_far_larger_or_not_finite(engine: Any) -> None:
    param = torch.nn.Parameter(torch.ones(4))
    made = optim.SGD([param], lr=0.1, momentum=0.9, diagnostics=1)
    with thalweg.engine(engine):
        for own in ([1e10, 1e-30, -1e-30, 0.0], [math.nan, 1e-30, -1e-30, 1.0]):
            param.grad = torch.tensor(own)
            made.step()
    assert made.diagnostics.agreement == 0.5


def test_lines_go_up_where_a_device_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table reaches the sinks in a later step, with the loss of its own."""
    monkeypatch.setattr(measuring.StepWatch, "is_there", True)
    file, params = io.StringIO(), params_of(shapes=((3,),))
    made = optim.SGD(params, lr=0.1, diagnostics=2)
    told = to(made, JsonLines(file))
    for step in range(1, 7):
        give(params, step)
        told.log_loss(step)
        made.step()
    told.close()
    _, *records = map(json.loads, file.getvalue().splitlines())
    assert [(each["step"], each["loss"]) for each in records] == [(k, k) for k in range(1, 7)]
    assert ["ratio" in each for each in records] == [False, True] * 3


def test_steps_between_are_one_native_call() -> None:
    params = params_of(shapes=((3,),))
    made = run(params, optim.AdamW(params, diagnostics=10), 9)
    assert made._cache.replay is not None
    assert made._cache.replay.taken == 7
    assert made.diagnostics is None
    run(params, made, 1)
    assert made.diagnostics.step == 10
    assert made.last_step.count == 10
    quick = made._cache.replay
    for _ in range(5):  # which a measured step leaves as it is
        run(params, made, 10)
    assert made._cache.replay is quick
    assert quick.taken == 7 + 45
    plain = optim.AdamW(other := params_of(shapes=((3,),)))
    for steps in (9, 1, *[10] * 5):
        run(other, plain, steps)
    assert_same([params[0][1].detach()], [other[0][1].detach()])


def test_nothing_that_was_measured_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, begin = [], diagnostics.VariableDiagnostics.__init__

    def begin_noted(own: Any, *given: Any) -> None:
        begin(own, *given)
        kept.append(weakref.ref(own))

    monkeypatch.setattr(diagnostics.VariableDiagnostics, "__init__", begin_noted)
    params = params_of(torch.float64, ((3,),))
    made = optim.AdamW(params, diagnostics=3)
    for _ in range(4):
        run(params, made, 3)
        assert [each() for each in kept] == [None] * len(kept) != []


@many(
    "given",
    [(0, ValueError), (-1, ValueError), (True, TypeError), (1.5, TypeError), ("10", TypeError)],
)
@many("face", [optim.AdamW, tensorflow.Adam, optim.Lion])
def test_bad_numbers_are_refused(face: Any, given: Any) -> None:
    value, kind = given
    with pytest.raises(kind, match="diagnostics must be"):
        face(params_of(shapes=((3,),)), diagnostics=value)
    with pytest.raises(kind, match="every must be"):
        Diagnostics(value)


def test_what_cannot_go_with_it_is_refused() -> None:
    with pytest.raises(ValueError, match=r"diagnostics=2 is of whole steps, and in_backward"):
        optim.AdamW(params_of(), diagnostics=2, in_backward=True)
    with pytest.raises(TypeError, match="a sink is a JsonLines, a TensorBoard or a function"):
        Diagnostics(2, sinks=["run.jsonl"])
    with pytest.raises(TypeError, match="path must be"):
        JsonLines(3)
    with pytest.raises(ValueError, match="columns has 'norm'"):
        TensorBoard("logs", columns=["norm"])
    with pytest.raises(FailedPreconditionError, match="with diagnostics=10"):
        to(optim.AdamW(params_of()), print)
    with pytest.raises(FailedPreconditionError, match="of no optimizer"):
        Diagnostics(2).log_loss(1.0)
    made = run(params := params_of(), optim.AdamW(params, diagnostics=1), 1)
    with pytest.raises(KeyError, match="Did you mean 'w0'"):
        made.diagnostics["w00"]
    with pytest.raises(AttributeError, match="norm"):
        _ = made.diagnostics.norm


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_of_json_lines(tmp_path: Path) -> None:
    path, params = tmp_path / "run.jsonl", params_of(shapes=((3,), (2, 2)))
    made = optim.SGD(params, lr=0.1, diagnostics=2)
    told = to(made, JsonLines(path))
    for step in range(1, 5):
        give(params, step)
        if step == 4:
            params[1][1].grad[0, 1] = math.inf
        told.log_loss(torch.tensor(step / 3, requires_grad=True))
        made.step()
    header, *records = lines_of(path)
    assert header == {
        "thalweg": "diagnostics",
        "version": 1,
        "every": 2,
        "names": ["w0", "w1"],
        "sizes": [3, 4],
        "groups": [0, 0],
        "columns": [*COLUMNS],
    }
    assert [each["step"] for each in records] == [1, 2, 3, 4]
    assert records[0] == {"step": 1, "loss": 0.3333}
    assert records[1]["loss"] == 0.6667
    assert records[1]["cosine"] == [None, None]
    assert records[3]["gradient_norm"][1] == records[3]["weight_max"][1] == "Infinity"
    assert records[3]["nonfinite"] == [0, 1]
    norm = float(made.diagnostics["w0"].update_norm)
    assert records[3]["update_norm"][0] == float(f"{norm:.4g}")
    # A run that goes on says what it is again, after a line that was cut off.
    with path.open("a") as file:
        file.write('{"step": 5')
    other = optim.SGD(params, lr=0.1, diagnostics=Diagnostics(1, [JsonLines(path)]))
    run(params, other, 1)
    *_, torn, second, record = path.read_text().splitlines()
    assert torn == '{"step": 5'
    assert json.loads(second)["every"] == 1
    assert json.loads(record)


def test_lines_of_others_and_a_file_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sinks, table = [JsonLines("run.jsonl"), JsonLines("run.jsonl")], trained_table()
    monkeypatch.chdir("/")
    for sink in (sinks[0], sinks[0], sinks[1], sinks[0]):
        sink.table(table, None)
    lines = (tmp_path / "run.jsonl").read_text().splitlines()
    assert ["thalweg" in line for line in lines] == [True, False, False, True, False, True, False]
    (tmp_path / "run.jsonl").unlink()
    sinks[0].table(table, None)
    assert '"thalweg"' in (tmp_path / "run.jsonl").read_text()


def test_a_sink_that_takes_itself_out_leaves_the_others() -> None:
    params, seen, told = params_of(shapes=((3,),)), list[int](), Diagnostics()
    for sink in (lambda _: told.sinks.pop(0), lambda table: seen.append(table.step)):
        told.add(sink)
    run(params, optim.AdamW(params, diagnostics=told), 1)
    assert seen == [1]


def test_losses_between_look_at_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, params, file = list[int](), params_of(shapes=((3,),)), io.StringIO()
    titles = measuring.names_in
    monkeypatch.setattr(measuring, "names_in", lambda *of: looked.append(1) or titles(*of))
    made = optim.AdamW(params, diagnostics=Diagnostics(4, [JsonLines(file)]))
    for loss in range(7):
        to(made).log_loss(loss)
        run(params, made, 1)
    assert (len(looked), len(file.getvalue().splitlines())) == (1, 8)


def trained_table() -> Any:
    params = params_of(shapes=((3,),))
    return run(params, optim.AdamW(params, diagnostics=1), 1).diagnostics


def test_a_closure_tells_its_loss() -> None:
    file, params = io.StringIO(), params_of(shapes=((3,),))
    made = optim.SGD(params, lr=0.1, diagnostics=Diagnostics(2, [JsonLines(file)]))

    def closure() -> torch.Tensor:
        made.zero_grad()
        loss = params[0][1].square().sum()
        loss.backward()
        return loss

    losses = [made.step(closure).item() for _ in range(5)]
    _, *records = map(json.loads, file.getvalue().splitlines())
    assert [each["loss"] for each in records] == [float(f"{each:.4g}") for each in losses]
    made.step(lambda: {"loss": 1.0})  # which is no number
    assert json.loads(file.getvalue().splitlines()[-1])["step"] == 6


def test_a_sink_that_fails_is_named_once(tmp_path: Path) -> None:
    def broken(table: Any) -> None:
        raise RuntimeError("no network")

    seen: list[int] = []
    for bad in (broken, JsonLines("/dev/full"), JsonLines(tmp_path / "no" / "run.jsonl")):
        told = Diagnostics(1, [bad, lambda table: seen.append(table.step)])
        params = params_of(shapes=((3,),))
        made = optim.SGD(params, lr=0.1, diagnostics=told)
        with pytest.warns(NumericsWarning, match="The diagnostics sink .* is said once"):
            run(params, made, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(params, made, 3)
            told.close()
    assert seen == [1, 2, 3, 4] * 3


def test_tensorboard_is_given_scalars() -> None:
    class Writer:
        seen: list[Any] = []

        def add_scalar(self, *given: Any) -> None:
            self.seen.append(given)

    params = params_of(shapes=((3,),))
    sink = TensorBoard(Writer(), columns=["ratio", "cosine"])
    told = Diagnostics(1, [sink])
    made = optim.SGD(params, lr=0.1, diagnostics=told)
    told.log_loss(2.0)
    run(params, made, 1)
    assert Writer.seen == [("loss", 2.0, 1), ("ratio/w0", made.diagnostics["w0"].ratio, 1)]


def test_tensors_of_a_device_are_added_up_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on a GPU runs here on tensors of the CPU."""
    for dtype in TYPES:
        tables: list[Any] = []
        for is_there in (False, True):
            params = params_of(dtype)
            with monkeypatch.context() as patched, thalweg.engine("reference"):
                if is_there:
                    patched.setattr(diagnostics, "_array", lambda flat: flat)
                made = optim.AdamW(params, lr=0.01, diagnostics=1, clip_grad_value=1.0)
                tables.append(run(params, made, 2).diagnostics.records)
                patched.setattr(diagnostics, "Tree", None)  # nothing is sent there a second time
                run(params, made, 1)
        for column in COLUMNS:
            assert_same(*([torch.tensor(each[column])] for each in tables))


def test_an_update_tells_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured beside it where there is a kernel."""
    monkeypatch.setattr("thalweg.diagnostics.step_watch.VariableDiagnostics", None)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        params = params_of(dtype, SHAPES[1:])
        made = optim.AdamW(params, diagnostics=1, masters=True, clip_grad_norm=1.0)
        assert run(params, made, 2).diagnostics.step == 2
    with pytest.raises(TypeError, match="NoneType"):
        run(params := params_of(torch.float64), optim.AdamW(params, diagnostics=1), 1)
