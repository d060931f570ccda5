"""Diagnostics of parameters: columns computed by hand, and no effect on training."""

from __future__ import annotations

import copy
import gc
import io
import json
import math
import pickle
import warnings
import weakref
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from case_batches import many
from pairwise import cover_pairs
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
    (optim, "AdafactorHF", {"relative_step": False}, ""),
    (optim, "SM3", {}, ""),
    (optim, "Muon", {}, "momentum_buffer"),
    (optim, "SOAP", {}, "exp_avg"),
    (tensorflow, "Adam", {}, "m"),
    (tensorflow, "SGD", MOMENTUM, "momentum"),
    (tensorflow, "Ftrl", {}, ""),
]
MATRIX_RULES = ("Muon", "SOAP")
# Rules that no engine computes in float16.
WITHOUT_FLOAT16 = ("Adafactor", "AdafactorHF", "SM3", *MATRIX_RULES)
OTHER_OPTIONS: list[dict[str, Any]] = [
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
    params = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    return [(f"w{k}", param) for k, param in enumerate(params)]


def give(params: Any, step: int, scale: float = 1.0) -> None:
    torch.manual_seed(step)
    for _, param in params:
        grad = (torch.randn(param.shape) * scale).to(param.dtype)
        grad.view(-1)[0] = 0.0
        param.grad = grad


def run_steps(params: Any, opt: Any, steps: int = 3) -> Any:
    for step in range(steps):
        give(params, step)
        opt.step()
    return opt


def total(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the sum of products of two tensors, in the order of the protocol."""
    arrays = {name: tensor.reshape(-1).numpy() for name, tensor in (("a", first), ("b", second))}
    leaves = sums_of_products(arrays, {"both": ("a", "b")})["both"]
    return float(combine_leaves(leaves, np.array([len(leaves)]))[0])


def expected(
    old: torch.Tensor, new: torch.Tensor, grad: torch.Tensor, used_grad: torch.Tensor, momentum: Any
) -> dict[str, float]:
    """Return a parameter's columns by torch; `used_grad` is the gradient in the update's dtype."""
    move = (new.double() if new.dtype == torch.float64 else new.float()) - old
    wide_grad, weights = used_grad.to(move.dtype), (new.to(move.dtype), move)
    norms = [math.sqrt(total(tensor, tensor)) for tensor in (wide_grad, weights[1], weights[0])]
    tiny, share = torch.finfo(grad.dtype).tiny, 1 / grad.numel()
    columns = {
        "gradient_norm": norms[0],
        "gradient_max": float(wide_grad.abs().max()),
        "update_norm": norms[1],
        "update_max": float(weights[1].abs().max()),
        "weight_norm": norms[2],
        "weight_max": float(weights[0].abs().max()),
        "ratio": norms[1] / norms[2],
        "unchanged": int(((new == old) & (grad != 0)).sum()) * share,
        "zero": int((grad == 0).sum()) * share,
        "denormal": int(((grad.abs() < tiny) & (grad != 0)).sum()) * share,
        "nonfinite": int((~grad.isfinite()).sum()),
    }
    if momentum is not None:
        averages = momentum.to(move.dtype)
        length = math.sqrt(total(averages, averages))
        columns["cosine"] = total(wide_grad, averages) / norms[0] / length if length else math.nan
        columns["agreement"] = int((wide_grad * averages > 0).sum()) * share
    return columns


def assert_row(row: Any, expected: dict[str, float]) -> None:
    for name in COLUMNS:
        if name in expected:
            assert getattr(row, name) == pytest.approx(expected[name], rel=1e-15, nan_ok=True), name
        elif name != "clip":
            assert math.isnan(getattr(row, name)), name


@pytest.mark.slow
@many("case,dtype,engine", cover_pairs(product(CLASSES, TYPES, ("cpu", "reference"))))
def test_columns_of_all_classes_match_torch(case: Any, dtype: torch.dtype, engine: str) -> None:
    _compare(case, dtype, engine)


@many("dtype", (torch.float32, torch.bfloat16))
@many("case", [case for case in CLASSES if case[1] in ("SGD", "AdamW", "Muon", "SM3", "Ftrl")])
def test_columns_match_torch(case: Any, dtype: torch.dtype) -> None:
    _compare(case, dtype, "cpu")


def _compare(case: Any, dtype: torch.dtype, engine: str) -> None:
    module, name, kwargs, slot = case
    if name in WITHOUT_FLOAT16 and dtype == torch.float16:
        return
    params = params_of(dtype, SHAPES[:2] if name in MATRIX_RULES else SHAPES)
    with thalweg.engine(engine):
        opt = getattr(module, name)(params, lr=0.01, diagnostics=2, **kwargs)
        for step in range(2):
            give(params, step)
            old = [param.detach().clone() for _, param in params]
            sign = -1 if slot == "momentum" else 1
            slots = [opt.state[p].get(slot, torch.zeros(p.shape)).clone() for _, p in params]
            opt.step()
            if step % 2 == 0:
                continue
            assert opt.diagnostics.step == step + 1
            for k, (param_name, param) in enumerate(params):
                momentum = sign * slots[k] if slot else None
                grad = param.grad
                row = opt.diagnostics[param_name]
                assert_row(row, expected(old[k], param.detach(), grad, grad, momentum))
                assert row.group == 0
                assert row.step == step + 1
                assert row.clip == 1.0


@pytest.mark.slow
@many(
    "case,dtype", [case for case in zip(CLASSES, cycle(TYPES)) if case[0][1] not in WITHOUT_FLOAT16]
)
def test_engines_agree_on_all_classes(case: Any, dtype: torch.dtype) -> None:
    _compare_engines(case, dtype)


@many("case", [case for case in CLASSES if case[1] in ("SGD", "AdamW")])
@many("dtype", TYPES)
def test_engines_agree_on_diagnostics(case: Any, dtype: torch.dtype) -> None:
    _compare_engines(case, dtype)


def _compare_engines(case: Any, dtype: torch.dtype) -> None:
    module, name, kwargs, _ = case
    opts: list[Any] = []
    for engine in ("cpu", "reference"):
        params = params_of(dtype)
        with thalweg.engine(engine):
            opts.append(run_steps(params, getattr(module, name)(params, diagnostics=3, **kwargs)))
    cpu_records, reference_records = (opt.diagnostics.records for opt in opts)
    for column in COLUMNS:
        assert_same([torch.tensor(cpu_records[column])], [torch.tensor(reference_records[column])])


def _run_with_options(dtype: torch.dtype, options: dict[str, Any], diagnostics: Any) -> Any:
    params = params_of(dtype)
    opt = optim.AdamW(params[1:], lr=0.01, diagnostics=diagnostics, **options)
    for step in range(9):
        give(params[1:], step)
        opt.step()
    return opt


@many("options,dtype", [({}, torch.float32), ({}, torch.bfloat16), *(
    (options, torch.bfloat16 if "weights" in options or place % 2 else torch.float32)
    for place, options in enumerate(OTHER_OPTIONS)
)])  # fmt: skip
def test_diagnostics_do_not_change_training(options: dict[str, Any], dtype: torch.dtype) -> None:
    with_table, ref = (_run_with_options(dtype, options, interval) for interval in (2, None))
    assert ref.diagnostics is None
    for slots, ref_slots in zip(with_table.state.values(), ref.state.values(), strict=True):
        assert slots.keys() == ref_slots.keys()
        pairs = zip(slots.values(), ref_slots.values(), strict=True)
        for slot, ref_slot in pairs:
            assert_same([slot], [ref_slot])
            assert slot.dtype == ref_slot.dtype
    params = [[p.detach() for p in opt.param_groups[0]["params"]] for opt in (with_table, ref)]
    assert_same(*params)
    assert with_table.diagnostics.step == (4 if "accumulate" in options else 8)
    assert np.isfinite(with_table.diagnostics.ratio).all()
    assert "diagnostics" not in json.dumps(str(with_table.state_dict()))


def test_columns_describe_master_weights() -> None:
    tables: list[Any] = []
    for masters in (False, True):
        params = params_of(torch.bfloat16)
        opt = optim.SGD(params, lr=1e-5, masters=masters, diagnostics=1)
        tables.append(run_steps(params, opt, 1).diagnostics)
    narrow_table, master_table = tables
    assert (narrow_table.unchanged >= 0.8).all()
    assert (master_table.unchanged < 0.05).all()
    assert (narrow_table.update_norm < master_table.update_norm).all()


def test_columns_with_clipping() -> None:
    params = params_of()
    opt = optim.SGD(params, lr=0.1, clip_grad_norm=0.5, diagnostics=1)
    give(params, 0)
    opt.step()
    table, last_step = opt.diagnostics, opt.last_step
    norm = math.sqrt(sum(norm * norm for norm in table.gradient_norm))
    assert norm == pytest.approx(last_step.grad_norm, rel=1e-6)  # before the factor
    assert set(table.clip) == {last_step.clip_factor}
    assert last_step.clip_factor < 1
    assert table.update_norm == pytest.approx(0.1 * table.clip * table.gradient_norm, rel=1e-4)


def test_skipped_steps_are_not_measured() -> None:
    params = params_of(shapes=((5,), (3,)))
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    opt = optim.SGD(params, lr=0.1, fused_unscale=True, diagnostics=1)
    for step, bad in enumerate((False, True, False)):
        scaler.scale(sum((param * (step + 1)).sum() for _, param in params)).backward()
        if bad:
            params[0][1].grad[0] = math.inf
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        assert opt.diagnostics.step == (1, 1, 2)[step]
        if not bad:
            assert opt.diagnostics["w1"].gradient_max == step + 1


def test_sparse_and_missing_gradients_are_nan() -> None:
    table = torch.nn.Embedding(9, 4, sparse=True)
    dense, unused = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))
    named_params = [("rows", table.weight), ("other", dense), ("unused", unused)]
    opt = optim.SGD(named_params, lr=0.1, diagnostics=1)
    for _ in range(3):  # repeated from the second on
        opt.zero_grad()
        (table(torch.tensor([1, 1, 3])).sum() + dense.sum()).backward()
        opt.step()
    rows, dense_row, unused_row = (opt.diagnostics[name] for name, _ in named_params)
    assert rows.update_max == pytest.approx(0.2)
    assert math.isnan(rows.gradient_norm)
    assert math.isnan(rows.unchanged)
    assert dense_row.gradient_norm == pytest.approx(math.sqrt(3))
    assert all(math.isnan(getattr(unused_row, name)) for name in COLUMNS)


@many("element", [math.nan, math.inf, 1e-40])
def test_nonfinite_and_denormal_gradients_are_counted(element: float) -> None:
    params = params_of(shapes=((4,),))
    opt = optim.SGD(params, lr=0.1, diagnostics=1)
    params[0][1].grad = torch.tensor([0.0, element, 1.0, 2.0])
    opt.step()
    row = opt.diagnostics["w0"]
    assert (row.zero, row.denormal, row.nonfinite) == (
        0.25,
        0.25 if element == 1e-40 else 0.0,
        0.0 if element == 1e-40 else 1.0,
    )
    if element != 1e-40:
        assert row.gradient_max == pytest.approx(element, nan_ok=True)


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_default_device_of_torch_does_not_matter(engine: Any) -> None:
    param = torch.nn.Parameter(torch.ones(3))
    opt = optim.SGD([("weight", param)], lr=1.0, diagnostics=1)
    param.grad = torch.tensor([1.0, 0.0, -1.0])
    with thalweg.engine(engine), torch.device("meta"):
        opt.step()
        table = opt.diagnostics
    assert table is not None
    assert table["weight"].zero == pytest.approx(1 / 3)


def test_several_rules_share_one_table() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 2))
    rules = {"0.weight": "Muon", ...: {"rule": HEAVY_BALL}}
    opt = optim.Mixed(optim.groups(model, rules=rules), diagnostics=1, clip_grad_norm=0.1)
    for _ in range(3):
        model(torch.ones(4, 6)).square().sum().backward()
        opt.step()
    table = opt.diagnostics
    assert sorted(table) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert np.isfinite(np.array([table.records[name] for name in COLUMNS])).all()
    assert {table["0.weight"].group, table["1.weight"].group} == {0, 1}
    assert set(table.clip) == {opt.last_step.clip_factor}


@pytest.mark.parametrize("cls", [optim.AdamW, tensorflow.Adam])
def test_load_continues_counts_and_copies_have_no_sinks(cls: Any, tmp_path: Path) -> None:
    params, reported = params_of(shapes=((3,),)), list[int]()
    sinks = Diagnostics(2, [lambda table: reported.append(table.step)])
    opt = run_steps(params, cls(params, lr=0.1, diagnostics=sinks), 3)
    for copied_optimizer in (copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        run_steps([("w0", copied_optimizer.param_groups[0]["params"][0])], copied_optimizer, 1)
        assert copied_optimizer.diagnostics.step == 4
        assert reported == [2]
    loaded_params = params_of(shapes=((3,),))
    loaded = cls(loaded_params, lr=0.1, diagnostics=2)
    loaded.load_state_dict(opt.state_dict())
    run_steps(loaded_params, loaded, 1)
    assert loaded.diagnostics.step == 4
    for steps in (5, 2):  # after further steps
        run_steps(params, opt, 2)
        loaded.load_state_dict(opt.state_dict())
        run_steps(loaded_params, loaded, steps)
        count = int(loaded.state[loaded_params[0][1]]["step"])
        assert loaded.diagnostics.step == count - count % 2
    with pytest.raises(FailedPreconditionError, match="another optimizer's"):
        cls(params_of(shapes=((3,),)), lr=0.1, diagnostics=sinks)


def test_diagnostics_of_failed_optimizer_are_reusable() -> None:
    params, reused = params_of(shapes=((3,),)), Diagnostics(1)
    with pytest.raises(ValueError, match="more than one") as error_info:
        optim.AdamW([{"params": params}, {"params": params}], diagnostics=reused)
    del error_info
    gc.collect()
    opt = optim.AdamW(params, diagnostics=reused)
    assert run_steps(params, opt, 2).diagnostics.step == 2


def test_shallow_copy_has_no_sinks() -> None:
    params, steps = params_of(shapes=((3,),)), list[int]()
    opt = optim.AdamW(params, diagnostics=Diagnostics(1, [lambda table: steps.append(table.step)]))
    copied_optimizer = copy.copy(run_steps(params, opt, 1))
    assert run_steps(params, copied_optimizer, 1).diagnostics.step == 2
    assert steps == [1]


def test_memory_error_after_step_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(watch: object) -> None:
        raise MemoryError("all of it")

    params, reference_params = params_of(shapes=((3,),)), params_of(shapes=((3,),))
    opt = optim.SGD(params, lr=0.1, diagnostics=1)
    with monkeypatch.context() as patch:
        patch.setattr(measuring.StepWatch, "finish", fail)
        with pytest.warns(NumericsWarning, match="Step 1 was taken.*MemoryError: all of it"):
            run_steps(params, opt, 1)
    assert opt.diagnostics is None
    assert opt.last_step.taken
    run_steps(reference_params, optim.SGD(reference_params, lr=0.1), 1)
    assert_same([params[0][1]], [reference_params[0][1]])
    assert run_steps(params, opt, 1).diagnostics.step == 2


def test_failed_table_keeps_columns_of_next_step() -> None:
    """A step's columns are computed before the previous step's table, as ranks wait for them."""

    def fail() -> None:
        raise MemoryError

    params = params_of(shapes=((3,),))
    opt = run_steps(params, optim.SGD(params, lr=0.1, diagnostics=1), 1)
    finished, diagnosing = list[int](), opt.step_cache.diagnosing
    finish, diagnosing._pending = diagnosing._finish, (fail, None)
    diagnosing._finish = lambda watch, step, taken: (
        finished.append(step) or finish(watch, step, taken)
    )
    with pytest.warns(NumericsWarning, match="MemoryError"):
        run_steps(params, opt, 1)
    assert finished == [2]


def test_failing_sink_without_repr_is_a_warning() -> None:
    class Nameless:
        def __call__(self, table: object) -> None:
            raise OSError("full")

        def __repr__(self) -> str:
            raise RuntimeError("no name")

    params = params_of(shapes=((3,),))
    opt = optim.SGD(params, lr=0.1, diagnostics=Diagnostics(1, [Nameless()]))
    with pytest.warns(NumericsWarning, match="of Nameless failed, which is said once: OSError"):
        run_steps(params, opt, 1)
    assert opt.last_step.taken


def test_equal_names_have_indices() -> None:
    models = [torch.nn.Linear(2, 1), torch.nn.Linear(3, 1, bias=False)]
    groups = [{"params": model.named_parameters()} for model in models]
    opt = optim.AdamW(groups, diagnostics=1)
    for model, size in zip(models, (2, 3), strict=True):
        model(torch.ones(size)).sum().backward()
    opt.step()
    assert list(opt.diagnostics) == ["weight (index 0)", "bias", "weight (index 2)"]
    assert len(opt.diagnostics.scalars(["ratio"])) == 3


def test_parameters_without_names_are_numbered() -> None:
    model = torch.nn.Linear(2, 1)
    opt = optim.AdamW(model.parameters(), diagnostics=1)
    model(torch.ones(2)).sum().backward()
    opt.step()
    assert list(opt.diagnostics) == ["parameter 0", "parameter 1"]
    with pytest.raises(NotFoundError, match=r"'weight'\. It has parameter 0, parameter 1\."):
        opt.diagnostics["weight"]


def test_shares_of_complex_params_count_both_parts() -> None:
    param = torch.nn.Parameter(torch.ones(4, dtype=torch.complex64))
    opt = optim.SGD([param], lr=0.1, momentum=0.9, diagnostics=1)
    for _ in range(2):
        param.grad = torch.tensor([1 + 1j, 1, 0, 1j])
        opt.step()
    assert opt.diagnostics.zero == 0.5
    assert opt.diagnostics.agreement == 0.5


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_agreement_with_huge_or_nonfinite_gradients(engine: Any) -> None:
    param = torch.nn.Parameter(torch.ones(4))
    opt = optim.SGD([param], lr=0.1, momentum=0.9, diagnostics=1)
    with thalweg.engine(engine):
        for elements in ([1e10, 1e-30, -1e-30, 0.0], [math.nan, 1e-30, -1e-30, 1.0]):
            param.grad = torch.tensor(elements)
            opt.step()
    assert opt.diagnostics.agreement == 0.5


def test_json_lines_are_ordered_if_tables_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step's table reaches the sinks in a later step, with the loss of the measured step."""
    monkeypatch.setattr(measuring.StepWatch, "is_there", True)
    file, params = io.StringIO(), params_of(shapes=((3,),))
    opt = optim.SGD(params, lr=0.1, diagnostics=2)
    diagnostics = to(opt, JsonLines(file))
    for step in range(1, 7):
        give(params, step)
        diagnostics.log_loss(step)
        opt.step()
    diagnostics.close()
    _, *records = map(json.loads, file.getvalue().splitlines())
    assert [(record["step"], record["loss"]) for record in records] == [(k, k) for k in range(1, 7)]
    assert ["ratio" in record for record in records] == [False, True] * 3


def test_unmeasured_steps_are_replayed() -> None:
    params = params_of(shapes=((3,),))
    opt = run_steps(params, optim.AdamW(params, diagnostics=10), 9)
    assert opt.step_cache.replay is not None
    assert opt.step_cache.replay.taken == 7
    assert opt.diagnostics is None
    run_steps(params, opt, 1)
    assert opt.diagnostics.step == 10
    assert opt.last_step.count == 10
    replay = opt.step_cache.replay
    for _ in range(5):  # a measured step leaves the replay in place
        run_steps(params, opt, 10)
    assert opt.step_cache.replay is replay
    assert replay.taken == 7 + 45
    ref = optim.AdamW(reference_params := params_of(shapes=((3,),)))
    for steps in (9, 1, *[10] * 5):
        run_steps(reference_params, ref, steps)
    assert_same([params[0][1].detach()], [reference_params[0][1].detach()])


def test_measurements_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    references, begin = [], diagnostics.VariableDiagnostics.__init__

    def begin_noted(measurement: Any, *arguments: Any) -> None:
        begin(measurement, *arguments)
        references.append(weakref.ref(measurement))

    monkeypatch.setattr(diagnostics.VariableDiagnostics, "__init__", begin_noted)
    params = params_of(torch.float64, ((3,),))
    opt = optim.AdamW(params, diagnostics=3)
    for _ in range(4):
        run_steps(params, opt, 3)
        assert [ref() for ref in references] == [None] * len(references) != []


@many(
    "value_and_error",
    [(0, ValueError), (-1, ValueError), (True, TypeError), (1.5, TypeError), ("10", TypeError)],
)
@many("cls", [optim.AdamW, tensorflow.Adam, optim.Lion])
def test_invalid_interval_raises(cls: Any, value_and_error: Any) -> None:
    value, error = value_and_error
    with pytest.raises(error, match="diagnostics must be"):
        cls(params_of(shapes=((3,),)), diagnostics=value)
    with pytest.raises(error, match="every must be"):
        Diagnostics(value)


def test_invalid_arguments_raise() -> None:
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
    opt = run_steps(params := params_of(), optim.AdamW(params, diagnostics=1), 1)
    with pytest.raises(KeyError, match="Did you mean 'w0'"):
        opt.diagnostics["w00"]
    with pytest.raises(AttributeError, match="norm"):
        _ = opt.diagnostics.norm


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_diagnostics_are_written_as_json_lines(tmp_path: Path) -> None:
    path, params = tmp_path / "run.jsonl", params_of(shapes=((3,), (2, 2)))
    opt = optim.SGD(params, lr=0.1, diagnostics=2)
    table_log = to(opt, JsonLines(path))
    for step in range(1, 5):
        give(params, step)
        if step == 4:
            params[1][1].grad[0, 1] = math.inf
        table_log.log_loss(torch.tensor(step / 3, requires_grad=True))
        opt.step()
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
    assert [record["step"] for record in records] == [1, 2, 3, 4]
    assert records[0] == {"step": 1, "loss": 0.3333}
    assert records[1]["loss"] == 0.6667
    assert records[1]["cosine"] == [None, None]
    assert records[3]["gradient_norm"][1] == records[3]["weight_max"][1] == "Infinity"
    assert records[3]["nonfinite"] == [0, 1]
    norm = float(opt.diagnostics["w0"].update_norm)
    assert records[3]["update_norm"][0] == float(f"{norm:.4g}")
    # A continued run writes a second header, after a line that was cut off.
    with path.open("a") as file:
        file.write('{"step": 5')
    continued = optim.SGD(params, lr=0.1, diagnostics=Diagnostics(1, [JsonLines(path)]))
    run_steps(params, continued, 1)
    *_, torn, second, record = path.read_text().splitlines()
    assert torn == '{"step": 5'
    assert json.loads(second)["every"] == 1
    assert json.loads(record)


def test_json_lines_of_two_sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_sink_that_removes_itself_keeps_others() -> None:
    params, reported, sinks = params_of(shapes=((3,),)), list[int](), Diagnostics()
    for sink in (lambda _: sinks.sinks.pop(0), lambda table: reported.append(table.step)):
        sinks.add(sink)
    run_steps(params, optim.AdamW(params, diagnostics=sinks), 1)
    assert reported == [1]


def test_names_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    name_calls, params, file = list[int](), params_of(shapes=((3,),)), io.StringIO()
    titles = measuring.names_in
    monkeypatch.setattr(measuring, "names_in", lambda *args: name_calls.append(1) or titles(*args))
    opt = optim.AdamW(params, diagnostics=Diagnostics(4, [JsonLines(file)]))
    for loss in range(7):
        to(opt).log_loss(loss)
        run_steps(params, opt, 1)
    assert (len(name_calls), len(file.getvalue().splitlines())) == (1, 8)


def trained_table() -> Any:
    params = params_of(shapes=((3,),))
    return run_steps(params, optim.AdamW(params, diagnostics=1), 1).diagnostics


def test_loss_of_closure_is_logged() -> None:
    file, params = io.StringIO(), params_of(shapes=((3,),))
    opt = optim.SGD(params, lr=0.1, diagnostics=Diagnostics(2, [JsonLines(file)]))

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = params[0][1].square().sum()
        loss.backward()
        return loss

    losses = [opt.step(closure).item() for _ in range(5)]
    _, *records = map(json.loads, file.getvalue().splitlines())
    assert [record["loss"] for record in records] == [float(f"{record:.4g}") for record in losses]
    opt.step(lambda: {"loss": 1.0})  # is not a number
    assert json.loads(file.getvalue().splitlines()[-1])["step"] == 6


def test_failing_sink_warns_once(tmp_path: Path) -> None:
    def broken(table: Any) -> None:
        raise RuntimeError("no network")

    reported: list[int] = []
    for bad in (broken, JsonLines("/dev/full"), JsonLines(tmp_path / "no" / "run.jsonl")):
        sinks = Diagnostics(1, [bad, lambda table: reported.append(table.step)])
        params = params_of(shapes=((3,),))
        opt = optim.SGD(params, lr=0.1, diagnostics=sinks)
        with pytest.warns(NumericsWarning, match="The diagnostics sink .* is said once"):
            run_steps(params, opt, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run_steps(params, opt, 3)
            sinks.close()
    assert reported == [1, 2, 3, 4] * 3


def test_tensorboard_receives_scalars() -> None:
    class Writer:
        scalars: list[Any] = []

        def add_scalar(self, *arguments: Any) -> None:
            self.scalars.append(arguments)

    params = params_of(shapes=((3,),))
    sink = TensorBoard(Writer(), columns=["ratio", "cosine"])
    sinks = Diagnostics(1, [sink])
    opt = optim.SGD(params, lr=0.1, diagnostics=sinks)
    sinks.log_loss(2.0)
    run_steps(params, opt, 1)
    assert Writer.scalars == [("loss", 2.0, 1), ("ratio/w0", opt.diagnostics["w0"].ratio, 1)]


def test_device_tensors_have_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the GPU's code on tensors of the CPU."""
    for dtype in TYPES:
        tables: list[Any] = []
        for is_device in (False, True):
            params = params_of(dtype)
            with monkeypatch.context() as patch, thalweg.engine("reference"):
                if is_device:
                    patch.setattr(diagnostics, "_convert_to_array", lambda flat: flat)
                opt = optim.AdamW(params, lr=0.01, diagnostics=1, clip_grad_value=1.0)
                tables.append(run_steps(params, opt, 2).diagnostics.records)
                patch.setattr(diagnostics, "Tree", None)  # no second copy to the device
                run_steps(params, opt, 1)
        for column in COLUMNS:
            assert_same(*([torch.tensor(records[column])] for records in tables))


def test_kernel_measures_during_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """No separate pass measures an update that has a kernel."""
    monkeypatch.setattr("thalweg.diagnostics.step_watch.VariableDiagnostics", None)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        params = params_of(dtype, SHAPES[1:])
        opt = optim.AdamW(params, diagnostics=1, masters=True, clip_grad_norm=1.0)
        assert run_steps(params, opt, 2).diagnostics.step == 2
    with pytest.raises(TypeError, match="NoneType"):
        run_steps(params := params_of(torch.float64), optim.AdamW(params, diagnostics=1), 1)
