"""round="stochastic": equal bits on all code paths, states, other options, errors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import thalweg
from replay_twins import count_replays
from rulebook import assert_same, slow_unless
from thalweg import checkpoint, optim
from thalweg._core.options.stochastic_rounding import Rounding
from thalweg.errors import CheckpointMismatchError
from thalweg.optim import tensorflow
from thalweg.optim.rule_names import HOMES, KINDS

SEED = 7**15
RANDOM: dict[str, Any] = {"round": "stochastic", "seed": SEED}
SIZES = (1, 7, 8, 255, 256, 257, 65536 + 257)
SHAPES = ((), (257,), (9, 31), (2, 3, 70))
DTYPES = (torch.bfloat16, torch.float16)
MATRIX_RULES = tuple(name for name, home in HOMES.items() if home == "modern.matrix_rules")
LINE_RULES = ("Adafactor", "SM3")  # an element depends on sums of its row and column
ELEMENTWISE = [
    *(("optim", name) for name in KINDS if name not in (*MATRIX_RULES, *LINE_RULES, "SparseAdam")),
    *(("tensorflow", name) for name in tensorflow.__all__),
]
ARGUMENTS: dict[tuple[str, str], dict[str, Any]] = {
    ("optim", "SGD"): {"momentum": 0.9},
    ("optim", "AdafactorHF"): {"relative_step": False},
    ("tensorflow", "AdamW"): {"weight_decay": 0.01},
    ("tensorflow", "MomentumW"): {"weight_decay": 0.01},
    ("tensorflow", "RMSprop"): {"momentum": 0.9, "centered": True},
}
FAST_RULES = ("SGD", "AdamW", "Lion")  # kernels take long to compile


def maker(module: str, name: str, **overrides: Any) -> Callable[[Any], Any]:
    """Return a function that creates an optimizer of parameters."""
    cls = getattr(optim if module == "optim" else tensorflow, name)
    arguments = {"lr": 0.01, **ARGUMENTS.get((module, name), {}), **RANDOM, **overrides}
    return lambda params: cls(params, **arguments)


def params_of(dtype: torch.dtype, shapes: Sequence[Any] = SHAPES) -> list[Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def give(params: Sequence[Tensor], step: int, skipped: Any = ()) -> None:
    for index, param in enumerate(params):
        generator = torch.Generator().manual_seed(1000 * step + index)
        grad = (torch.randn(param.shape, generator=generator) / 8).to(param.dtype)
        param.grad = None if index in skipped else grad


def params(opt: Any) -> list[Tensor]:
    return [param for group in opt.param_groups for param in group["params"]]


def tensors_of(opt: Any) -> list[Tensor]:
    """Return copies of the parameters and of all tensors of their state."""
    states = [opt.state[param] for param in params(opt)]
    slots = [tensor for state in states for tensor in state.values() if isinstance(tensor, Tensor)]
    tensors = [tensor.detach().clone() for tensor in (*params(opt), *slots)]
    return [tensor.int() if tensor.dtype == torch.uint8 else tensor for tensor in tensors]


def run_steps(opt: Any, count: int, first: int = 0, is_careful: bool = False) -> Any:
    for step in range(first, first + count):
        give(params(opt), step)
        if is_careful:
            opt.step_cache.forget_replay()
            opt.step_cache.rebind_target = None
            for part in (*opt.step_cache.parts.values(),):
                part.plans.last = None
        opt.step()
    return opt


def train(
    make: Any,
    dtype: torch.dtype,
    shapes: Any = SHAPES,
    engine: str = "cpu",
    count: int = 5,
    **options: Any,
) -> Any:
    with thalweg.engine(engine):
        return run_steps(make(params_of(dtype, shapes)), count, **options)


# The same bits


@pytest.fixture
def threads() -> Any:
    previous_count = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(previous_count)


@pytest.mark.parametrize(
    ("module", "name", "dtype"),
    [
        slow_unless(dtype == DTYPES[0] and name in FAST_RULES, module, name, dtype)
        for place, (module, name) in enumerate(ELEMENTWISE)
        for dtype in (DTYPES if name in FAST_RULES else DTYPES[place % 2 :][:1])
        if name != "RuleOptimizer"
    ],
    ids=lambda argument: str(argument).removeprefix("torch."),
)
def test_threads_and_replay_agree(module: str, name: str, dtype: torch.dtype, threads: Any) -> None:
    """Compare all bits of parameters and slots; rounding to nearest differences."""
    make = maker(module, name)
    expected = train(make, dtype, SIZES, "reference")
    for count in (1, 2):
        threads(count)
        replayed = train(make, dtype, SIZES)
        assert_same(tensors_of(replayed), tensors_of(expected))
        # Neither replays: TensorFlow's Nadam has a 16-bit scalar, Prodigy sums before it updates.
        is_careful = (module, name) in (("tensorflow", "Nadam"), ("optim", "Prodigy"))
        assert count_replays(replayed) == (0 if is_careful else 3)
        careful = train(make, dtype, SIZES, is_careful=True)
        assert_same(tensors_of(careful), tensors_of(expected))
        assert count_replays(careful) == 0
    nearest = train(maker(module, name, round=None, seed=0), dtype, SIZES)
    diffs = [not torch.equal(a, b) for a, b in zip(params(nearest), params(expected), strict=True)]
    assert diffs[-1]


@pytest.mark.parametrize(
    "name", [slow_unless(x in ("Muon", "SM3"), x) for x in (*MATRIX_RULES, *LINE_RULES)]
)
def test_engines_agree_on_matrix_rules(name: str) -> None:
    shapes, make = ((24, 16), (300, 257)), maker("optim", name)
    actual, expected = (
        train(make, torch.bfloat16, shapes, engine) for engine in ("cpu", "reference")
    )
    assert_same(tensors_of(actual), tensors_of(expected))


@pytest.mark.parametrize("shape", [(3, 70_000), (70_000, 3), (5, 3, 3, 3), (1, 257), (257, 1)])
@pytest.mark.parametrize(
    ("dtype", "slot_dtype"), [(torch.bfloat16, None), (torch.float32, "bfloat16")]
)
@pytest.mark.one_in(3)
def test_rows_and_columns_of_any_length_draw_reference_bits(
    shape: tuple[int, ...], dtype: torch.dtype, slot_dtype: str | None, threads: Any
) -> None:
    """Rows span several chunks and blocks, chunks span several rows."""
    state = {"state_dtype": getattr(torch, slot_dtype)} if slot_dtype else {}
    make = maker("optim", "SM3", momentum=0.9, **state)
    expected = train(make, dtype, [shape, (9, 31)], "reference")
    for count in (1, 2):
        threads(count)
        assert_same(tensors_of(train(make, dtype, [shape, (9, 31)])), tensors_of(expected))


OTHER_OPTIONS: list[dict[str, Any]] = [
    {"clip_grad_norm": 0.5},
    {"clip_grad_value": 0.05},
    {"fused_unscale": True},
    {"lookahead": 2},
    {"ema_decay": 0.9},
    {"masters": True},
    {"masters": True, "state_dtype": torch.bfloat16},
    {"state_dtype": torch.float16},
    {"state_dtype": torch.float32},
    {"accumulate": 2},
    {"accumulate": 2, "wide_sums": True},
    {"cautious": True},
    {"cautious_decay": True},
    {"trust_ratio": True},
    {"sphere": True},
    {"state_storage": "8bit"},
    {"gradients": "flat"},
]
BY_TORCH = ("cautious_decay", "state_storage")  # options that are tried with torch's rules alone


@pytest.mark.parametrize(
    ("module", "options"), [*zip(cycle(("optim", "tensorflow")), OTHER_OPTIONS)], ids=str
)
@pytest.mark.one_in(3)
def test_engines_agree_with_other_options(module: str, options: dict[str, Any]) -> None:
    if not {*options}.isdisjoint(BY_TORCH):
        module = "optim"
    shapes = (*SHAPES, (4096 + 7,))
    make = maker(module, "Adam" if module == "tensorflow" else "AdamW", **options)
    results: list[list[Tensor]] = []
    for engine, is_careful in (("cpu", False), ("cpu", True), ("reference", False)):
        with thalweg.engine(engine):
            opt = make(params_of(torch.bfloat16, shapes))
            for step in range(8):
                if "gradients" in options:
                    for index, param in enumerate(params(opt)):
                        (param * (step - index - 0.5) / 64).square().sum().backward()
                else:
                    give(params(opt), step)
                if is_careful:
                    opt.step_cache.forget_replay()
                opt.step()
                if "gradients" in options:
                    opt.zero_grad()
        results.append(tensors_of(opt))
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])


def test_params_with_masters_round_to_nearest() -> None:
    """Slots of 16 bits beside master weights are still rounded by random bits."""
    with_masters = train(maker("optim", "AdamW", masters=True), torch.bfloat16)
    nearest = train(maker("optim", "AdamW", masters=True, round=None, seed=0), torch.bfloat16)
    assert_same(tensors_of(with_masters), tensors_of(nearest))
    options = {"masters": True, "state_dtype": torch.bfloat16}
    stochastic = train(maker("optim", "AdamW", **options), torch.bfloat16)
    nearest_opt = train(maker("optim", "AdamW", **options, round=None, seed=0), torch.bfloat16)
    for param, twin in zip(params(stochastic), params(nearest_opt), strict=True):
        assert_same([param.detach()], [stochastic.state[param]["master"].bfloat16()])
        if param.dim():
            slots = stochastic.state[param]["exp_avg"], nearest_opt.state[twin]["exp_avg"]
            assert not torch.equal(*slots)


def test_skipped_step_draws_no_bits() -> None:
    make = maker("optim", "AdamW")
    expected = run_steps(make(params_of(torch.bfloat16)), 4)
    for options in ({}, {"fused_unscale": True}):
        opt = maker("optim", "AdamW", **options)(params_of(torch.bfloat16))
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
        taken_steps = 0
        for step in range(5):
            give(params(opt), taken_steps)
            for param in params(opt):
                assert param.grad is not None
                param.grad *= scaler.get_scale() if step != 2 else float("inf")
            scaler.scale(torch.zeros(()))  # initializes the scaler
            scaler.step(opt)
            scaler.update()
            taken_steps += step != 2
        assert_same(tensors_of(opt), tensors_of(expected))


# Dependence of the bits


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("module", ["optim", "tensorflow"])
def test_bits_do_not_depend_on_other_params(module: str, index: int) -> None:
    """Leave out gradients of other parameters, and add others later."""
    shapes, make = ((300,), (300,), (40,)), maker(module, "Adam")
    expected = train(make, torch.bfloat16, shapes, count=6)
    opt = make(params_of(torch.bfloat16, shapes))
    extended = make(params_of(torch.bfloat16, shapes)[: index + 1])
    for step in range(6):
        give(params(opt), step, skipped={0, 1, 2} - {index} if step % 2 else {(index + 1) % 3})
        opt.step()
        if step == 3 and index < 2:
            extended.add_param_group({"params": params_of(torch.bfloat16, shapes)[index + 1 :]})
        give(params(extended), step)
        extended.step()
    param = params(expected)[index].detach()
    assert_same([params(opt)[index].detach(), params(extended)[index].detach()], [param, param])


def test_bits_depend_on_steps_of_the_param() -> None:
    """A parameter whose gradients begin later has the bits of one that is added later."""
    shapes = ((300,), (300,))
    complete = maker("optim", "SGD", momentum=0)(params_of(torch.bfloat16, shapes))
    extended = maker("optim", "SGD", momentum=0)(params_of(torch.bfloat16, shapes[:1]))
    extended.add_param_group({"params": params_of(torch.bfloat16, shapes)[1:]})
    for step in range(4):
        for opt in (complete, extended):
            give(params(opt), step, skipped={1} if step < 2 else ())
            opt.step()
    assert_same(tensors_of(complete), tensors_of(extended))


@pytest.mark.parametrize("module", ["optim", "tensorflow"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)], ids=str)
def test_bits_do_not_depend_on_order_of_gradients(module: str, order: Sequence[int]) -> None:
    opt = maker(module, "Adam", in_backward=True)(params_of(torch.bfloat16))
    ref = maker(module, "Adam")(params_of(torch.bfloat16))
    for step in range(5):
        for index in order:
            (params(opt)[index] * (step - index - 0.5) / 64).sum().backward()
        for index in range(4):
            (params(ref)[index] * (step - index - 0.5) / 64).sum().backward()
        for stepped in (opt, ref):
            stepped.step()
            stepped.zero_grad()
    assert_same(tensors_of(opt), tensors_of(ref))


def test_params_and_seeds_draw_different_bits() -> None:
    """Update equal parameters with equal gradients, in one group, in two, and with other seeds."""

    def moved_params(groups: int, seed: int) -> list[Tensor]:
        equal_params = [Parameter(torch.ones(4096, dtype=torch.bfloat16)) for _ in range(4)]
        param_groups = [{"params": equal_params[k::groups]} for k in range(groups)]
        opt = optim.SGD(param_groups, lr=2.0**-9, round="stochastic", seed=seed)
        for param in equal_params:
            param.grad = torch.ones_like(param)
        opt.step()
        return [param.detach() for param in params(opt)]

    draws = [*moved_params(1, 1), *moved_params(1, 2), *moved_params(1, 1 << 24)]
    for k, first in enumerate(draws):
        for second in draws[k + 1 :]:
            assert 0.3 < (first == second).float().mean() < 0.7
    assert_same(moved_params(2, 1), draws[:4])  # index among all parameters


def test_slots_draw_uncorrelated_bits() -> None:
    """Compare slots with each other and with their parameter."""
    param = Parameter(torch.ones(4096, dtype=torch.bfloat16))
    param.grad = torch.full_like(param, 0.7)
    opt = optim.Adam([param], lr=2.0**-9, **RANDOM)
    opt.step()
    slots = opt.state[param]
    tensors = [tensor.detach().float() for tensor in (param, slots["exp_avg"], slots["exp_avg_sq"])]
    above_mean = torch.stack([(tensor > tensor.mean()).float() for tensor in tensors])
    correlation = torch.corrcoef(above_mean) - torch.eye(3)
    assert correlation.abs().max() < 5 / 64


# Purpose


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("module", ["optim", "tensorflow"])
def test_small_steps_add_up(module: str, dtype: torch.dtype) -> None:
    """A weight of 1 that rounds to nearest does not change by steps of 1e-4."""
    means: list[float] = []
    for options in (RANDOM, {"round": None, "seed": 0}):
        param = Parameter(torch.ones(4096, dtype=dtype))
        opt = maker(module, "SGD", **{"lr": 1e-4, "momentum": 0.0, **options})([param])
        for _ in range(100):
            param.grad = torch.ones_like(param)
            opt.step()
        means.append(param.double().mean().item())
    assert abs(means[0] - 0.99) < 5e-4
    assert means[1] == 1.0


def test_small_decay_adds_up() -> None:
    """TensorFlow's classes decay before the rule, and round both together."""
    for cls, lr, decay in ((tensorflow.AdamW, 1e-3, 1e-4), (optim.AdamW, 1e-3, 0.1)):
        param = Parameter(torch.ones(4096, dtype=torch.bfloat16))
        opt = cls([param], lr=lr, weight_decay=decay, **RANDOM)
        for _ in range(100):
            param.grad = torch.zeros_like(param)
            opt.step()
        assert abs(param.double().mean().item() - (1 - 1e-4) ** 100) < 5e-4


# States


def by_state_dict(source: Any, make: Any, folder: Path) -> Any:
    loaded = make([Parameter(param.detach().clone()) for param in params(source)])
    loaded.load_state_dict(copy.deepcopy(source.state_dict()))
    return loaded


def by_torch_save(source: Any, make: Any, folder: Path) -> Any:
    torch.save(source.state_dict(), folder / "state.pt")
    loaded = make([Parameter(param.detach().clone()) for param in params(source)])
    loaded.load_state_dict(torch.load(folder / "state.pt"))
    return loaded


def by_copy(source: Any, make: Any, folder: Path) -> Any:
    return copy.deepcopy(source)


def by_pickle(source: Any, make: Any, folder: Path) -> Any:
    return pickle.loads(pickle.dumps(source))


def by_checkpoint(source: Any, make: Any, folder: Path) -> Any:
    named_params = dict(zip("abcd", params(source), strict=True))
    checkpoint.save(folder / "ckpt", optimizer=source, variables=named_params)
    fresh_params = dict(zip("abcd", params_of(torch.bfloat16), strict=True))
    loaded = make(list(fresh_params.values()))
    checkpoint.restore(folder / "ckpt", optimizer=loaded, variables=fresh_params)
    return loaded


RESUMERS = (by_state_dict, by_torch_save, by_copy, by_pickle, by_checkpoint)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("resume", RESUMERS)
@pytest.mark.parametrize("module", ["optim", "tensorflow"])
def test_resumed_training_has_the_same_bits(module: str, resume: Any, tmp_path: Path) -> None:
    make = maker(module, "Adam")
    expected = train(make, torch.bfloat16, count=6)
    opt = train(make, torch.bfloat16, count=3)
    resumed = resume(opt, make, tmp_path)
    assert_same(tensors_of(run_steps(resumed, 3, 3)), tensors_of(expected))
    assert_same(tensors_of(run_steps(opt, 3, 3)), tensors_of(expected))
    for group in resumed.param_groups:
        assert {name: group[name] for name in RANDOM} == RANDOM


@pytest.mark.parametrize("module", ["optim", "tensorflow"])
def test_state_dict_groups_have_round_and_seed(module: str) -> None:
    for seed in (0, SEED):
        opt = train(maker(module, "Adam", seed=seed), torch.bfloat16, count=1)
        opt.add_param_group({"params": params_of(torch.bfloat16)[:1]})
        for group in (*opt.state_dict()["param_groups"], *opt.param_groups):
            assert (group["round"], group["seed"]) == ("stochastic", seed)
    nearest = train(maker(module, "Adam", round=None, seed=0), torch.bfloat16, count=1)
    for group in (*nearest.state_dict()["param_groups"], *nearest.param_groups):
        assert not {"round", "seed"} & {*group}


# Options of the saving and the loading optimizer, and the error message (None: loading succeeds).
SAVED_AND_LOADED: list[tuple[dict[str, Any], dict[str, Any], str | None]] = [
    (RANDOM, {**RANDOM, "seed": 8}, f"'seed' of group 0 is {SEED}, here 8; .*convert=True"),
    (
        RANDOM,
        {},
        f"'round' of group 0 is 'stochastic', here None; .*'seed' of group 0 is {SEED}, here 0",
    ),
    ({"round": "stochastic"}, {}, "'round' of group 0 is 'stochastic', here None; "),
    ({"round": "stochastic"}, RANDOM, f"'seed' of group 0 is 0, here {SEED}; "),
    ({}, RANDOM, None),  # a training that continues with random bits
]


@pytest.mark.parametrize(("saved_kwargs", "loaded_kwargs", "message"), SAVED_AND_LOADED)
@pytest.mark.parametrize("module", ["optim", "tensorflow"])
def test_load_checks_round_and_seed(
    module: str,
    saved_kwargs: dict[str, Any],
    loaded_kwargs: dict[str, Any],
    message: str | None,
    tmp_path: Path,
) -> None:
    defaults = {"round": None, "seed": 0}
    make, make_loaded = (
        maker(module, "Adam", **{**defaults, **kwargs}) for kwargs in (saved_kwargs, loaded_kwargs)
    )
    state = copy.deepcopy(train(make, torch.bfloat16, count=2).state_dict())
    opt = train(make_loaded, torch.bfloat16, count=1)
    previous = tensors_of(opt)
    if message is not None:
        with pytest.raises(CheckpointMismatchError, match=f"(?s){message}.*Nothing was loaded"):
            opt.load_state_dict(state)
        assert_same(tensors_of(opt), previous)
        opt.load_state_dict(copy.deepcopy(state), convert=True)
    else:
        opt.load_state_dict(copy.deepcopy(state))
    recorded = {"seed": 0, **loaded_kwargs} if loaded_kwargs else {}
    group = opt.param_groups[0]
    assert {name: group[name] for name in ("round", "seed") if name in group} == recorded
    continued = run_steps(opt, 2, 2)
    ref = make_loaded([Parameter(param) for param in previous[: len(SHAPES)]])
    ref.load_state_dict(state, convert=True)
    assert_same(tensors_of(run_steps(ref, 2, 2)), tensors_of(continued))


@pytest.mark.parametrize("module", ["optim", "tensorflow"])
def test_full_precision_drops_round_and_has_float32_slots(module: str) -> None:
    opt = train(maker(module, "Adam"), torch.bfloat16, count=2)
    state = optim.full_precision(opt)
    assert not {"round", "seed"} & {*state["param_groups"][0]}
    dtypes = {x.dtype for slots in state["state"].values() for x in slots.values() if x.dim()}
    assert dtypes == {torch.float32}
    assert "master" not in state["state"][0]
    wide_optimizer = maker(module, "Adam", round=None, seed=0)(params_of(torch.float32))
    wide_optimizer.load_state_dict(state)
    run_steps(wide_optimizer, 2, 1)


def test_restore_rejects_other_round_or_seed(tmp_path: Path) -> None:
    opt = train(maker("optim", "Adam"), torch.bfloat16, count=2)
    named_params = dict(zip("abcd", params(opt), strict=True))
    checkpoint.save(tmp_path / "ckpt", optimizer=opt, variables=named_params)
    for options, message in (
        ({"seed": 8}, f"seed is 8, in the file {SEED}"),
        ({"round": None, "seed": 0}, "round is None, in the file 'stochastic'"),
    ):
        fresh = dict(zip("abcd", params_of(torch.bfloat16), strict=True))
        loaded = maker("optim", "Adam", **options)(list(fresh.values()))
        previous = tensors_of(loaded)
        with pytest.raises(CheckpointMismatchError, match=message):
            checkpoint.restore(tmp_path / "ckpt", optimizer=loaded, variables=fresh)
        assert_same(tensors_of(loaded), previous)


def test_torch_loads_the_state() -> None:
    opt = train(maker("optim", "AdamW"), torch.bfloat16, count=2)
    torch_optimizer = torch.optim.AdamW([Parameter(x.detach().clone()) for x in params(opt)])
    torch_optimizer.load_state_dict(copy.deepcopy(opt.state_dict()))
    give(params(torch_optimizer), 3)
    torch_optimizer.step()


# Errors


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"round": "up"}, ValueError, "round must be None or 'stochastic', not 'up'"),
        ({"round": True}, ValueError, "round must be None or 'stochastic', not True"),
        ({"seed": 1}, ValueError, "seed=1 is of random bits, which round='stochastic' alone draws"),
        ({**RANDOM, "seed": -1}, ValueError, r"seed must be from 0 to 2\*\*48 - 1, not -1"),
        ({**RANDOM, "seed": 1 << 48}, ValueError, r"seed must be from 0 to 2\*\*48 - 1, not 28147"),
        ({**RANDOM, "seed": 1.0}, TypeError, r"seed must be an integer, not 1\.0"),
        ({**RANDOM, "seed": True}, TypeError, "seed must be an integer, not True"),
        ({**RANDOM, "seed": None}, TypeError, "seed must be an integer, not None"),
        (
            {**RANDOM, "state_device": "cpu"},
            ValueError,
            "round='stochastic' and state_device='cpu'",
        ),
    ],
)
@pytest.mark.parametrize("cls", [optim.SGD, tensorflow.Adam])
def test_bad_option_raises(cls: Any, options: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        cls(params_of(torch.bfloat16), lr=0.1, **options)


@pytest.mark.parametrize("cls", [optim.Adam, tensorflow.Adam])
def test_float64_param_with_16_bit_slots_raises(cls: Any) -> None:
    options = {"lr": 0.1, "state_dtype": torch.bfloat16, **RANDOM}
    message = "is float64, and slot '(exp_avg|m)' of it bfloat16: round='stochastic' rounds numbers"
    with pytest.raises(TypeError, match=message):
        cls([("w", params_of(torch.float64)[1])], **options)
    opt = cls(params_of(torch.float32), **options)
    previous = repr(opt.state_dict())
    with pytest.raises(TypeError, match=message):
        opt.add_param_group({"params": params_of(torch.float64)})
    assert repr(opt.state_dict()) == previous
    run_steps(opt, 2)
    wide_optimizer = cls(params_of(torch.float64), lr=0.1, **RANDOM)  # has nothing to round
    nearest = cls(params_of(torch.float64), lr=0.1)
    assert_same(tensors_of(run_steps(wide_optimizer, 3)), tensors_of(run_steps(nearest, 3)))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("cls", [optim.SGD, optim.Adagrad, tensorflow.Adam, tensorflow.LazyAdam])
def test_sparse_gradient_raises(cls: Any, accumulate: int) -> None:
    table = Parameter(torch.ones(9, 4))
    opt = cls([("table", table)], lr=0.1, accumulate=accumulate, **RANDOM)
    previous = [
        table.detach().clone(),
        *(tensor.clone() for name, tensor in opt.state[table].items() if name != "gradient_sum"),
    ]
    for k in range(accumulate):
        rows = torch.tensor([[1, 3]])
        table.grad = torch.sparse_coo_tensor(rows, torch.ones(2, 4), (9, 4), check_invariants=True)
        if k == accumulate - 1:
            with pytest.raises(
                NotImplementedError, match="gradient of 'table' is sparse, and round='stochastic'"
            ):
                opt.step()
        else:
            opt.step()
    weights = [tensor for name, tensor in opt.state[table].items() if "gradient" not in name]
    assert_same([table.detach(), *weights], previous)


def test_differentiable_step_raises() -> None:
    opt = optim.AdamW(params_of(torch.bfloat16), differentiable=True, **RANDOM)
    previous = tensors_of(opt)
    with pytest.raises(
        NotImplementedError, match="AdamW with round, seed takes steps on real, dense"
    ):
        run_steps(opt, 1)
    assert_same(tensors_of(opt), previous)


def test_compiled_step_has_the_same_bits() -> None:
    make = maker("optim", "AdamW")
    opt, ref = make(params_of(torch.bfloat16)), make(params_of(torch.bfloat16))
    step = torch.compile(lambda: opt.step(), backend="eager")
    for number in range(5):
        give(params(opt), number)
        step()
    assert_same(tensors_of(opt), tensors_of(run_steps(ref, 5)))


def test_groups_of_several_rules_draw_reference_bits() -> None:
    weights = params_of(torch.bfloat16)
    groups = [
        {"params": weights[:2], "rule": "Adam"},
        {"params": weights[2:], "rule": "Lion", "lr": 0.01},
    ]
    opt = run_steps(optim.Mixed(groups, **RANDOM), 5)
    adam = run_steps(optim.Adam(params_of(torch.bfloat16)[:2], **RANDOM), 5)
    assert_same([*map(Tensor.detach, params(opt)[:2])], [*map(Tensor.detach, params(adam))])
    with thalweg.engine("reference"):
        ref_weights = params_of(torch.bfloat16)
        pairs = zip(groups, (ref_weights[:2], ref_weights[2:]), strict=True)
        ref = optim.Mixed([{**group, "params": weights} for group, weights in pairs], **RANDOM)
        assert_same(tensors_of(run_steps(ref, 5)), tensors_of(opt))


def test_repr_shows_round_and_seed() -> None:
    assert Rounding().on == {}
    assert Rounding(round="stochastic").on == {"round": "stochastic"}
    assert "round: stochastic\n    seed: 8\n" in repr(
        maker("optim", "SGD", seed=8)(params_of(torch.bfloat16))
    )
