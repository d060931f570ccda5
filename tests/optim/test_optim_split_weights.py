"""bfloat16 parameters with lower bits in the state: steps, states, conversions and errors."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rulebook import assert_same
from thalweg import checkpoint, optim
from thalweg._engines import engine
from thalweg._engines.codecs.records import decode_tensor
from thalweg._engines.codecs.split8 import SPLIT8
from thalweg.errors import CheckpointMismatchError, CheckpointWarning
from thalweg.optim import tensorflow

SIZES: list[Any] = [1, 33, (64, 64), 4097, (1 << 16) + 257]
Run = tuple[list[torch.nn.Parameter], Any]


def params_of(sizes: Any = (4097, 10), dtype: torch.dtype = torch.bfloat16) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(size, generator=generator).to(dtype)) for size in sizes]


def train(run: Run, steps: int = 5, seed: int = 2, prepare: Callable[[Any], Any] = bool) -> Run:
    """Take steps with random gradients; call a function with the optimizer before each step."""
    params, opt = run
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for param in params:
            grad = torch.randn(param.shape, generator=generator).to(torch.bfloat16)
            param.grad = grad.to(param.dtype)
        prepare(opt)
        opt.step()
    return run


def forget(opt: Any) -> None:
    """Discard the step plan."""
    opt.step_cache.forget_replay()
    opt.step_cache.rebind_target = None
    opt.step_cache.parts.clear()


def adam(sizes: Any = (4097, 10), **options: Any) -> Run:
    params = params_of(sizes)
    return params, optim.AdamW(params, lr=1e-4, **{"weights": "split", **options})


def tensors_of(run: Run) -> list[torch.Tensor]:
    """Return parameters and slots, with bytes converted to floats."""
    params, opt = run
    tensors = [*params]
    for param in params:
        tensors += [x for x in opt.state[param].values() if isinstance(x, torch.Tensor)]
    return [x.detach().float() if x.dtype == torch.uint8 else x.detach() for x in tensors]


def assert_equal(first: Run, second: Run) -> None:
    assert_same(tensors_of(first), tensors_of(second))


def weights_of(run: Run) -> list[torch.Tensor]:
    """Return the weights of 24 bits."""
    params, opt = run
    return [
        decode_tensor(SPLIT8, opt.state[param]["correction"], param.detach()) for param in params
    ]


CLASSES: list[tuple[Any, dict[str, Any]]] = [
    (optim.AdamW, {}),
    (optim.AdamW, {"maximize": True}),
    (optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    (optim.SGD, {}),
    (optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (optim.RMSprop, {"momentum": 0.9, "centered": True}),
    (optim.Rprop, {}),
    (optim.Adagrad, {}),
    (optim.Adadelta, {}),
    (optim.Adamax, {}),
    (optim.ASGD, {}),
    (optim.NAdam, {}),
    (optim.RAdam, {}),
    (optim.Lion, {}),
    (optim.Adan, {}),
    (optim.AdEMAMix, {}),
    (optim.ADOPT, {}),
    (optim.LAMB, {}),
    (optim.ScheduleFreeAdamW, {}),
    (tensorflow.Adam, {}),
    (tensorflow.Ftrl, {}),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("cls", "options", "round_"),
    [(*case, (None, "stochastic")[place % 2]) for place, case in enumerate(CLASSES)],
    ids=str,
)
def test_replay_equals_reference(cls: Any, options: dict[str, Any], round_: str | None) -> None:
    trainings: list[Run] = []
    for name, prepare in (("auto", bool), ("auto", forget), ("reference", bool)):
        params = params_of(SIZES)
        with engine(name):
            opt = cls(params, lr=1e-3, weights="split", round=round_, **options)
            trainings.append(train((params, opt), 4, prepare=prepare))
    assert trainings[0][1].step_cache.replay is not None
    assert_equal(trainings[0], trainings[1])
    assert_equal(trainings[0], trainings[2])


@pytest.mark.parametrize("round_", [None, "stochastic"])
def test_thread_count_does_not_change_bits(round_: str | None) -> None:
    trainings: list[Run] = []
    thread_count = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            trainings.append(train(adam([(1 << 20) + 257, 33], state_storage="8bit", round=round_)))
    finally:
        torch.set_num_threads(thread_count)
    assert_equal(trainings[0], trainings[1])
    assert_equal(trainings[0], trainings[2])


@pytest.mark.parametrize(
    ("cls", "rate"), [(optim.AdamW, 1e-4), (optim.SGD, 3e-4), (optim.Lion, 1e-4)]
)
def test_weights_are_close_to_float32(cls: Any, rate: float) -> None:
    """Take steps that bfloat16 alone rounds away almost completely."""
    trainings: list[Run] = []
    for dtype, options in (
        (torch.float32, {}), (torch.bfloat16, {"weights": "split"}), (torch.bfloat16, {}),
    ):  # fmt: skip
        params = params_of(dtype=torch.bfloat16)
        params = [torch.nn.Parameter(param.detach().to(dtype)) for param in params]
        trainings.append(train((params, cls(params, lr=rate, **options)), 20))
    exact, split, bfloat16 = trainings
    for k, (start, weight) in enumerate(zip(params_of(), weights_of(split), strict=True)):
        movement = (exact[0][k] - start).norm()
        assert (weight - exact[0][k]).norm() < 0.1 * movement  # steps of 3 codes, rounded 20 times
        assert (bfloat16[0][k] - exact[0][k]).norm() > 0.5 * movement
        size = split[0][k].detach().float().abs()
        unit = torch.exp2(torch.floor(torch.log2(size)) - 7)
        assert ((split[0][k] - weight).abs() <= unit / 2).all()


def test_state_and_storage() -> None:
    params, opt = train(adam(state_storage="8bit"))
    states = [opt.state[param] for param in params]
    assert [state["correction"].shape for state in states] == [(4097,), (10,)]
    assert {state["correction"].dtype for state in states} == {torch.uint8}
    assert [state["exp_avg"].dtype for state in states] == [torch.uint8, torch.float32]
    storage = opt.state_dict()["param_groups"][0]["state_storage"]
    assert storage == {"exp_avg": "softsign8", "exp_avg_sq": "root8", "correction": "split8"}
    byte_count = sum(x.nbytes for x in states[0].values() if x.dim()) / 4097
    assert 3.25 < byte_count < 3.27  # 1 + 2 * 1.125, and the last blocks
    # Without codecs slots are of float32, where small changes of averages count.
    assert train(adam())[1].state_dict()["state"][0]["exp_avg"].dtype == torch.float32
    wide = train(adam(state_dtype=torch.bfloat16))[1].state_dict()["state"][0]
    assert wide["exp_avg"].dtype == torch.bfloat16


OTHER_OPTIONS: list[dict[str, Any]] = [
    {"ema_decay": 0.9}, {"lookahead": 2}, {"accumulate": 2}, {"accumulate": 2, "wide_sums": True},
    {"clip_grad_norm": 0.5}, {"clip_grad_value": 0.5}, {"cautious_decay": True},
    {"cautious": True}, {"gradients": "flat"}, {"in_backward": True}, {"state_storage": "8bit"},
    {"state_storage": "8bit", "round": "stochastic", "seed": 3}, {"foreach": True},
]  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", OTHER_OPTIONS, ids=str)
def test_engines_agree_with_other_options(options: dict[str, Any]) -> None:
    trainings: list[Run] = []
    for name in ("auto", "reference"):
        run = adam(**options)
        with engine(name):
            for step in range(6):
                run[1].zero_grad()
                generator = torch.Generator().manual_seed(step)
                grads = [torch.randn(p.shape, generator=generator).to(p.dtype) for p in run[0]]
                sum((p * g).sum() for p, g in zip(run[0], grads, strict=True)).backward()
                run[1].step()
        trainings.append(run)
    assert_equal(*trainings)
    assert trainings[0][1].state[trainings[0][0][0]]["correction"].any()


def test_ema_averages_weights() -> None:
    params = [torch.nn.Parameter(torch.ones(5000, dtype=torch.bfloat16))]
    opt = optim.SGD(params, lr=2.0**-14, weights="split", ema_decay=0.5)
    for _ in range(3):
        params[0].grad = torch.ones_like(params[0])
        opt.step()
    assert (params[0] == 1).all()
    assert (opt.state[params[0]]["ema"] < 1).all()
    assert weights_of((params, opt))[0].unique().tolist() == [1 - 3 * 2.0**-14]


def test_user_writes_keep_corrections() -> None:
    params, opt = train(adam())
    correction = opt.state[params[0]]["correction"].view(torch.int8)
    with torch.no_grad():
        params[0][:1000] = 0
        params[0][1000:2000] = float("inf")
        params[0][2000:3000] = 2
    weight = weights_of((params, opt))[0]
    assert (weight[:1000] == 0).all()
    assert weight[1000:2000].isinf().all()
    codes = correction[2000:3000].float()  # finer below a power of two
    expected = 2 + codes * torch.where(codes < 0, 2.0**-15, 2.0**-14)
    assert torch.equal(weight[2000:3000], expected)
    for param in params:
        param.grad = torch.zeros_like(param)
    opt.param_groups[0].update(lr=0.0)
    previous = copy.deepcopy(params)
    opt.step()
    assert_same([x.detach() for x in params], [x.detach() for x in previous])


def test_tiny_steps_need_stochastic_rounding() -> None:
    movements: list[float] = []
    for options in ({}, {"round": "stochastic"}):
        params = [torch.nn.Parameter(torch.full((65536,), 1.5, dtype=torch.bfloat16))]
        opt = optim.SGD(params, lr=2.0**-19, weights="split", **options)
        for _ in range(64):
            params[0].grad = torch.ones_like(params[0])
            opt.step()
        movements.append(float(1.5 - weights_of((params, opt))[0].double().mean()))
    assert movements[0] == 0
    assert movements[1] == pytest.approx(64 * 2.0**-19, rel=0.02)


def test_sparse_gradients_become_dense() -> None:
    trainings: list[Run] = []
    for is_sparse in (False, True):
        params = params_of([(100, 64)])
        run = params, tensorflow.Adam(params, weights="split")
        grad = torch.zeros(100, 64, dtype=torch.bfloat16)
        grad[[3, 5]] = 1
        params[0].grad = grad.to_sparse(1) if is_sparse else grad
        run[1].step()
        trainings.append(run)
    assert_equal(*trainings)


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (optim.AdamW, {"weights": "both"}, "None or 'split', not 'both'"),
        (optim.AdamW, {"weights": 8}, "None or 'split', not 8"),
        (optim.AdamW, {"masters": True}, "weights='split' and masters cannot be together"),
        (optim.AdamW, {"state_device": "cpu"}, "weights='split' and state_device cannot"),
        (optim.Adafactor, {}, "'Adafactor', which measures rows or columns"),
        (optim.AdafactorHF, {}, "measures rows or columns"),
        (optim.SM3, {}, "measures rows or columns"),
    ],
)
def test_invalid_combination_raises(cls: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        cls([torch.nn.Parameter(torch.ones(8, 8, dtype=torch.bfloat16))],
            **{"weights": "split", **options})  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_other_param_dtype_raises(dtype: torch.dtype) -> None:
    run = train(adam(), 1)
    params, opt = run
    param = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    with pytest.raises(TypeError, match=r"is float.*for parameters of bfloat16"):
        opt.add_param_group({"params": [param]})
    assert len(opt.param_groups) == 1
    params[0].data = params[0].data.to(dtype)
    params[0].grad = torch.ones_like(params[0])
    previous = [tensor.clone() for tensor in tensors_of(run)]
    with pytest.raises(TypeError, match=r"is float.*'correction'.* lower part of a bfloat16"):
        opt.step()
    assert_same(tensors_of(run), previous)


def test_correction_of_other_size_raises() -> None:
    run = train(adam(), 1)
    run[1].state[run[0][0]]["correction"] = torch.zeros(4096, dtype=torch.uint8)
    previous = run[0][0].detach().clone()
    with pytest.raises(ValueError, match="slot 'correction' of"):
        train(run, 1)
    assert torch.equal(run[0][0], previous)


def test_grad_scaler_skips_overflowing_step() -> None:
    params, opt = run = train(adam(clip_grad_norm=1.0), 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(sum((p.float() * 2).sum() for p in params)).backward()
    params[0].grad[0] = float("inf")
    previous = [tensor.clone() for tensor in tensors_of(run)]
    scaler.step(opt)
    scaler.update()
    assert_same(tensors_of(run), previous)


# States


def reload_from_file(run: Run) -> Run:
    file = io.BytesIO()
    torch.save(run[1].state_dict(), file)
    file.seek(0)
    params = [torch.nn.Parameter(param.detach().clone()) for param in run[0]]
    loaded = optim.AdamW(params, lr=1e-4, weights="split")
    loaded.load_state_dict(torch.load(file))
    return params, loaded


def repickle(run: Run) -> Run:
    return pickle.loads(pickle.dumps(run))


@pytest.mark.parametrize("resume", [reload_from_file, copy.deepcopy, repickle])
def test_resumed_training_has_the_same_bits(resume: Callable[[Run], Run]) -> None:
    run = train(adam())
    resumed = resume(run)
    assert_equal(run, resumed)
    assert_equal(train(run, seed=9), train(resumed, seed=9))


def test_checkpoint_keeps_bytes(tmp_path: Path) -> None:
    run, target = train(adam()), adam()
    variables = [dict(zip(("w", "b"), side[0], strict=True)) for side in (run, target)]
    checkpoint.save(tmp_path / "file", optimizer=run[1], variables=variables[0])
    checkpoint.restore(tmp_path / "file", optimizer=target[1], variables=variables[1])
    assert_equal(train(run, seed=9), train(target, seed=9))


def load(run: Run, options: dict[str, Any], state: Any, **keywords: bool) -> Run:
    params = [torch.nn.Parameter(param.detach().clone()) for param in run[0]]
    opt = optim.AdamW(params, lr=1e-4, **options)
    opt.load_state_dict(copy.deepcopy(state), **keywords)
    return params, opt


def test_load_of_state_without_corrections() -> None:
    run = train(adam(weights=None))
    state = run[1].state_dict()
    with pytest.raises(
        CheckpointMismatchError, match=r"the state has no corrections, .*convert=True"
    ):
        load(run, {"weights": "split"}, state)
    converted_pair = load(run, {"weights": "split"}, state, convert=True)
    assert_same(weights_of(converted_pair), [param.detach().float() for param in run[0]])
    assert converted_pair[1].state[converted_pair[0][0]]["exp_avg"].dtype == torch.float32
    train(converted_pair, 1)


def test_load_of_state_with_unused_corrections() -> None:
    run = train(adam())
    with pytest.raises(CheckpointMismatchError, match=r"the state has corrections .*convert=True"):
        load(run, {}, run[1].state_dict())
    with pytest.warns(CheckpointWarning, match="lower bits of weights, .* are left behind"):
        converted_pair = load(run, {}, run[1].state_dict(), convert=True)
    assert "correction" not in converted_pair[1].state[converted_pair[0][0]]
    train(converted_pair, 1)


@pytest.mark.parametrize("conversion", ["full_precision", "convert"])
def test_masters_and_corrections_convert_exactly(conversion: str) -> None:
    run = train(adam())
    is_full = conversion == "full_precision"
    state = optim.full_precision(run[1], masters=True) if is_full else run[1].state_dict()
    with_masters = load(run, {"masters": True}, state, convert=not is_full)
    masters = [with_masters[1].state[param]["master"] for param in with_masters[0]]
    assert_same(masters, weights_of(run))
    split = load(with_masters, {"weights": "split"}, with_masters[1].state_dict(), convert=True)
    assert_same(weights_of(split), masters)
    assert_equal(train(run, seed=9), train(split, seed=9))


@pytest.mark.parametrize("make", [torch.optim.AdamW, optim.AdamW])
def test_float32_model_loads_full_weights(make: Any) -> None:
    run = train(adam())
    export = optim.full_precision(run[1])
    assert all({*state} == {"step", "exp_avg", "exp_avg_sq"} for state in export["state"].values())
    state = optim.full_precision(run[1], masters=True)
    params = [torch.nn.Parameter(slots.pop("master")) for slots in state["state"].values()]
    assert_same([param.detach() for param in params], weights_of(run))
    opt = make(params, lr=1e-4)
    opt.load_state_dict(state)  # without a warning
    train((params, opt), 1)
    assert {*opt.state[params[0]]} == {"step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize(
    "value", [torch.zeros(4096, dtype=torch.uint8), torch.zeros(4097), torch.zeros(64, 64)]
)
def test_invalid_correction_is_not_loaded(value: torch.Tensor) -> None:
    run, loaded = train(adam()), adam()
    state = copy.deepcopy(run[1].state_dict())
    state["state"][0]["correction"] = value
    with pytest.raises(CheckpointMismatchError, match="correction"):
        loaded[1].load_state_dict(state)
    assert not loaded[1].state


def test_mixed_groups_have_corrections() -> None:
    params = params_of([4096, 4096])
    groups = [{"params": [params[0]], "rule": "AdamW"}, {"params": [params[1]], "rule": "SGD"}]
    run = train((params, optim.Mixed(groups, weights="split")))
    assert all("correction" in run[1].state[param] for param in params)
