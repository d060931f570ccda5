"""Slots of 8 bits in torch-style optimizers: steps, states, conversions and errors."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import thalweg
from rulebook import assert_same
from thalweg import Rule, Slot, checkpoint, optim
from thalweg._engines import engine
from thalweg._engines.codecs import CODECS
from thalweg.errors import CheckpointMismatchError, RuleError
from thalweg.optim import tensorflow

MIN_SIZE = 4096
SIZES = [MIN_SIZE - 1, MIN_SIZE, MIN_SIZE + 1, (1 << 16) + 257]
NATURAL = {"exp_avg": "softsign8", "exp_avg_sq": "root8"}
FLOAT32_SLOTS = dict.fromkeys(NATURAL, "float32")
Run = tuple[list[torch.nn.Parameter], Any]


def params_of(sizes: Any = (MIN_SIZE + 1, 10), dtype: torch.dtype = torch.float32) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(size, generator=generator).to(dtype)) for size in sizes]


def train(run: Run, steps: int = 5, seed: int = 2, prepare: Callable[[Any], Any] = bool) -> Run:
    """Take steps with random gradients; call a function with the optimizer before each step."""
    params, optimizer = run
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)
        prepare(optimizer)
        optimizer.step()
    return run


def adam(storage: Any = "8bit", sizes: Any = (MIN_SIZE + 1, 10), **options: Any) -> Run:
    params = params_of(sizes)
    return params, optim.AdamW(params, lr=0.01, state_storage=storage, **options)


def forget(optimizer: Any) -> None:
    """Discard the step plan."""
    optimizer.step_cache.forget_replay()
    optimizer.step_cache.rebind_target = None
    optimizer.step_cache.parts.clear()


def tensors_of(run: Run) -> list[torch.Tensor]:
    """Return parameters and slots, with bytes converted to floats."""
    params, optimizer = run
    tensors = [*params]
    for param in params:
        tensors += [x for x in optimizer.state[param].values() if isinstance(x, torch.Tensor)]
    return [x.detach().float() if x.dtype == torch.uint8 else x.detach() for x in tensors]


def assert_equal(first: Run, second: Run) -> None:
    assert_same(tensors_of(first), tensors_of(second))


CLASSES: list[tuple[Any, dict[str, Any]]] = [
    (optim.AdamW, {}),
    (optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    (optim.SGD, {"momentum": 0.9}),
    (optim.RMSprop, {"momentum": 0.9, "centered": True}),
    (optim.Adadelta, {}),
    (optim.Adamax, {}),
    (optim.NAdam, {}),
    (optim.RAdam, {}),
    (optim.Lion, {}),
    (optim.Adan, {}),
    (optim.AdEMAMix, {}),
    (optim.ADOPT, {}),
    (optim.LaProp, {}),
    (optim.ScheduleFreeAdamW, {}),
    (tensorflow.Adam, {}),
    (tensorflow.SGD, {"momentum": 0.9}),
]
by_class = pytest.mark.parametrize(
    ("cls", "options"), CLASSES, ids=lambda argument: getattr(argument, "__name__", "")
)


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    ("cls", "options", "dtype"),
    [(*case, (torch.float32, torch.bfloat16)[place % 2]) for place, case in enumerate(CLASSES)],
    ids=str,
)
def test_replay_equals_reference(cls: Any, options: dict[str, Any], dtype: torch.dtype) -> None:
    trainings: list[Run] = []
    for name, prepare in (("auto", bool), ("auto", forget), ("reference", bool)):
        params = params_of(SIZES, dtype)
        with engine(name):
            trainings.append(
                train(
                    (params, cls(params, lr=0.01, state_storage="8bit", **options)),
                    4,
                    prepare=prepare,
                )
            )
    assert trainings[0][1].step_cache.replay is not None
    assert_equal(trainings[0], trainings[1])
    assert_equal(trainings[0], trainings[2])


@by_class
def test_small_params_are_not_quantized(cls: Any, options: dict[str, Any]) -> None:
    trainings: list[Run] = []
    for storage in ({}, {"state_storage": "8bit"}):
        params = params_of([MIN_SIZE - 1, 7])
        trainings.append(train((params, cls(params, lr=0.01, **options, **storage))))
    assert_equal(*trainings)


@pytest.mark.parametrize(
    "storage", ["8bit", "softsign8", "linear8", "dynamic8", {"exp_avg_sq": "root8"}]
)
def test_slots_are_bytes_with_small_error(storage: Any) -> None:
    exact, quantized = train(adam(None), 20), train(adam(storage), 20)
    squares = {"linear8": "root8", "dynamic8": "dynamic8_positive"}
    codecs_by_option = {name: {"exp_avg": name, "exp_avg_sq": x} for name, x in squares.items()}
    codecs_by_option |= {"8bit": NATURAL, "softsign8": NATURAL}
    codecs = storage if isinstance(storage, dict) else codecs_by_option[storage]
    for param in quantized[0]:
        for name in NATURAL:
            slot, codec = quantized[1].state[param][name], codecs.get(name)
            if param.numel() < MIN_SIZE or codec is None:
                assert (slot.dtype, slot.shape) == (torch.float32, param.shape)
            else:
                assert slot.dtype == torch.uint8
                assert slot.shape == (CODECS[codec].bytes_of(param.numel()),)
    groups = quantized[1].state_dict()["param_groups"]
    assert [group["state_storage"] for group in groups] == [codecs]
    movement = (exact[0][0] - params_of()[0]).abs().max()
    assert (exact[0][0] - quantized[0][0]).abs().max() < movement / 10
    assert_same([exact[0][1]], [quantized[0][1]])


def test_slots_start_at_initial_value() -> None:
    params = params_of()
    options: dict[str, Any] = {"initial_accumulator_value": 0.3, "state_storage": "root8"}
    optimizer = optim.Adagrad(params, **options)
    for param in params:
        param.grad = torch.zeros_like(param)
    optimizer.step()
    slot = optim.full_precision(optimizer)["state"][0]["sum"]
    assert slot.unique().tolist() == [pytest.approx(0.3, rel=1e-6)]
    assert not optimizer.state[params[0]]["sum"][-31:].any()  # beyond the last element


OTHER_OPTIONS: list[dict[str, Any]] = [
    {"ema_decay": 0.9}, {"lookahead": 2}, {"accumulate": 2}, {"accumulate": 2, "wide_sums": True},
    {"clip_grad_norm": 0.5}, {"clip_grad_value": 0.5}, {"cautious_decay": True},
    {"gradients": "flat"}, {"in_backward": True}, {"masters": True},
]  # fmt: skip


@pytest.mark.parametrize("options", OTHER_OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.one_in(3)
def test_engines_agree_with_other_options(options: dict[str, Any], dtype: torch.dtype) -> None:
    trainings: list[Run] = []
    for name in ("auto", "reference"):
        params = params_of(dtype=dtype)
        optimizer = optim.AdamW(params, lr=0.01, state_storage="8bit", **options)
        with engine(name):
            for step in range(6):
                optimizer.zero_grad()
                generator = torch.Generator().manual_seed(step)
                grads = [torch.randn(p.shape, generator=generator).to(p.dtype) for p in params]
                sum((p * g).sum() for p, g in zip(params, grads, strict=True)).backward()
                optimizer.step()
        trainings.append((params, optimizer))
    assert_equal(*trainings)
    assert trainings[0][1].state[trainings[0][0][0]]["exp_avg"].dtype == torch.uint8
    slots = trainings[0][1].state[trainings[0][0][0]]
    dtypes = {k: x.dtype for k, x in slots.items() if isinstance(x, torch.Tensor)}
    assert all(
        dtypes.get(name, torch.float32) == torch.float32 for name in ("ema", "slow", "master")
    )


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (optim.AdamW, {"state_storage": "zip"}, "'zip'; expected: '8bit', 'softsign8'"),
        (optim.AdamW, {"state_storage": 8}, "not 8"),
        (optim.AdamW, {"state_storage": {"exp_avg": 8}}, "a text for each"),
        (optim.AdamW, {"state_storage": {"exp_avg": "8bit"}}, "'8bit'; expected: 'float32'"),
        (optim.AdamW, {"state_storage": {"m": "linear8"}}, "'m'; the slots of AdamW with"),
        (optim.AdamW, {"state_storage": "root8"}, "never negative, and slot 'exp_avg'"),
        (optim.Adagrad, {"state_storage": "8bit"}, "Adagrad has no slots .*too few for sum"),
        (optim.SGD, {"state_storage": "8bit"}, "SGD has no slots .* with these options there is"),
        (optim.SGD, {"state_storage": "root8", "in_backward": True}, "SGD has no slots"),
        *(
            (cls, {"state_storage": "8bit"}, f"^{cls.__name__} has no slots that state_storage may")
            for cls in (optim.Adafactor, optim.AdafactorHF, optim.SM3)
        ),
        (optim.Adafactor, {"state_storage": {"variance": "root8"}}, "Adafactor has no slots"),
        (optim.SparseAdam, {"state_storage": "8bit"}, "^SparseAdam cannot have state_storage: its"),
        (optim.SparseAdam, {"round": "stochastic"}, "^SparseAdam cannot have round: its gradients"),
        (optim.SparseAdam, {"gradients": "flat"}, "^SparseAdam cannot have gradients='flat': its"),
        (
            optim.AdamW,
            {"state_storage": "8bit", "row_floor": True},
            "^AdamW with row_floor .* reads its slot 'exp_avg', which must not be encoded",
        ),
        (optim.AdamW, {"state_storage": "8bit", "state_dtype": torch.float32}, "state_dtype=.*one"),
        (optim.AdamW, {"state_storage": "8bit", "state_device": "cpu"}, "state_device='cpu'.*one"),
    ],
)
def test_invalid_storage_raises(cls: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        cls([torch.nn.Parameter(torch.ones(64, 80))], **options)


@pytest.mark.parametrize("cls", [optim.Adafactor, optim.SM3, optim.SGD])
@pytest.mark.parametrize("sizes", [[(64, 80)], [(64, 80), (8,)], [(8,)]], ids=str)
def test_class_without_slots_raises_for_all_sizes(cls: Any, sizes: Any) -> None:
    with pytest.raises(ValueError, match=f"{cls.__name__} has no slots"):
        cls(params_of(sizes), lr=0.1, state_storage="8bit")


def test_group_without_slots_steps_beside_encoded_groups() -> None:
    groups: list[Any] = [{"params": [param]} for param in params_of([MIN_SIZE, MIN_SIZE])]
    optimizer = optim.SGD([groups[0], {**groups[1], "momentum": 0.9}], state_storage="8bit")
    train(([param for group in groups for param in group["params"]], optimizer), 1)
    groups = [
        {"params": group["params"], "rule": rule}
        for group, rule in zip(groups, ("Adam", "Adagrad"))
    ]
    optim.Mixed(groups, state_storage="8bit")
    groups = [{**group, "rule": rule} for group, rule in zip(groups, ("Adagrad", "SGD"))]
    with pytest.raises(ValueError, match="Adagrad and SGD have no slots"):
        optim.Mixed(groups, state_storage="8bit")


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64], ids=str)
def test_param_dtype_without_codec_raises(dtype: torch.dtype) -> None:
    params, optimizer = adam()
    param = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    with pytest.raises(TypeError, match=r"is (float64|complex64), .*'exp_avg' in softsign8"):
        optimizer.add_param_group({"params": [param]})
    assert len(optimizer.param_groups) == 1
    train((params, optimizer), 1)
    params[0].data = params[0].data.double()
    params[0].grad = torch.ones_like(params[0])
    previous = [tensor.clone() for tensor in tensors_of((params, optimizer))]
    with pytest.raises(TypeError, match="'parameter 0 of group 0' is float64, and slot 'exp_avg'"):
        optimizer.step()
    assert_same(tensors_of((params, optimizer)), previous)


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (tensorflow.Adam, {}, "slot 'm' .* give a dense gradient"),
        (optim.SGD, {"momentum": 0.9}, "SGD with state_storage takes dense ones: leave out"),
    ],
)
def test_sparse_gradient_raises(cls: Any, options: Any, message: str) -> None:
    params = [torch.nn.Parameter(torch.ones(100, 64))]
    optimizer = cls(params, lr=0.1, state_storage="8bit", **options)
    previous = [tensor.clone() for tensor in tensors_of((params, optimizer))]
    rows = torch.tensor([[3, 5]])
    params[0].grad = torch.sparse_coo_tensor(
        rows, torch.ones(2, 64), (100, 64), check_invariants=True
    )
    with pytest.raises(NotImplementedError, match=f"'parameter 0 of .* is sparse, and {message}"):
        optimizer.step()
    assert_same(tensors_of((params, optimizer)), previous)


@pytest.mark.parametrize("cut", ["short", "moved", "strided"])
def test_slot_of_other_layout_raises(cut: str) -> None:
    params, optimizer = train(adam(), 1)
    state = optimizer.state[params[0]]
    slot = state["exp_avg"]
    buffer = torch.zeros(2 * slot.numel() + 8, dtype=torch.uint8)
    slots = {
        "short": slot[:-36],
        "moved": buffer[1:][: slot.numel()],
        "strided": buffer[::2][: len(slot)],
    }
    state["exp_avg"] = slots[cut]
    previous = params[0].detach().clone()
    params[0].grad = torch.ones_like(params[0])
    with pytest.raises(ValueError, match="slot 'exp_avg' of"):
        optimizer.step()
    assert_same([params[0]], [previous])


# States


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def reload_from_file(run: Run) -> Run:
    params = [torch.nn.Parameter(param.detach().clone()) for param in run[0]]
    loaded = optim.AdamW(params, lr=0.01, state_storage="8bit")
    loaded.load_state_dict(through_a_file(run[1].state_dict()))
    return params, loaded


def deep_copy(run: Run) -> Run:
    return copy.deepcopy(run)


def repickle(run: Run) -> Run:
    return pickle.loads(pickle.dumps(run))


@pytest.mark.parametrize("resume", [reload_from_file, deep_copy, repickle])
def test_resumed_training_has_the_same_bits(resume: Callable[[Run], Run]) -> None:
    run = train(adam())
    resumed = resume(run)
    assert_equal(run, resumed)
    assert_equal(train(run, seed=9), train(resumed, seed=9))
    assert resumed[1].state[resumed[0][0]]["exp_avg"].dtype == torch.uint8


def test_checkpoint_keeps_bytes_and_rejects_other_storage(tmp_path: Path) -> None:
    run, target = train(adam()), adam()
    names = ("w", "b")
    file = tmp_path / "file"
    checkpoint.save(file, optimizer=run[1], variables=dict(zip(names, run[0])))
    checkpoint.restore(file, optimizer=target[1], variables=dict(zip(names, target[0])))
    assert_equal(train(run, seed=9), train(target, seed=9))
    # Records of both codecs are as long.
    for storage in (None, "linear8", dict.fromkeys(NATURAL, "softsign8")):
        third = adam(storage)
        targets = {"optimizer": third[1], "variables": dict(zip(names, third[0]))}
        with pytest.raises(CheckpointMismatchError, match="state_storage is"):
            checkpoint.restore(file, **targets)
        with pytest.raises(CheckpointMismatchError, match=r"'exp_avg.* is in \w+8, here in "):
            checkpoint.restore(file, **targets, check_arguments=False)


STORAGES = [None, "8bit", "dynamic8", "linear8", {"exp_avg_sq": "root8"}]


def load(run: Run, state: Any, **keywords: bool) -> Run:
    run[1].load_state_dict(state, **keywords)
    return run


@pytest.mark.one_in(3)
@pytest.mark.parametrize("source", STORAGES, ids=str)
@pytest.mark.parametrize("target", STORAGES, ids=str)
def test_load_rejects_or_converts_other_storage(source: Any, target: Any) -> None:
    run, loaded = train(adam(source)), train(adam(target), 2)
    state = run[1].state_dict()
    if source == target:
        load(loaded, state)
        return
    previous = [tensor.clone() for tensor in tensors_of(loaded)]
    with pytest.raises(CheckpointMismatchError, match=r"is in \w+, here in \w+.*convert=True"):
        load(loaded, state)
    assert_same(tensors_of(loaded), previous)
    load(loaded, state, convert=True)
    expected = optim.full_precision(run[1])["state"]
    actual = optim.full_precision(loaded[1])["state"]
    for key in expected:
        for name, value in expected[key].items():
            deviation = (actual[key][name] - value).abs().max()
            assert deviation <= value.abs().max() / 50, (key, name)
    train(loaded, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensorflow_states_are_converted_by_name(dtype: torch.dtype) -> None:
    sizes = {"small": 10, "w": MIN_SIZE, "b": MIN_SIZE + 1}
    source_params, params, back_params = (
        dict(zip(names, params_of([sizes[name] for name in names], dtype), strict=True))
        for names in ([*sizes], [*sizes][::-1], [*sizes])
    )
    source = tensorflow.Adam(source_params.items(), state_storage="8bit")
    train(([*source_params.values()], source))
    float_opt = tensorflow.Adam(params.items())
    float_opt.load_state_dict(source.state_dict(), convert=True)
    for name, param in params.items():
        assert float_opt.state[param]["m"].dtype == dtype
        assert float_opt.state[param]["m"].shape == source_params[name].shape
    train(([*params.values()], float_opt), 1)
    quantized = tensorflow.Adam(back_params.items(), state_storage="8bit")
    quantized.load_state_dict(float_opt.state_dict(), convert=True)
    assert quantized.state[back_params["w"]]["m"].dtype == torch.uint8
    train(([*back_params.values()], quantized), 1)


def test_torch_loads_full_precision() -> None:
    run = train(adam())
    state = optim.full_precision(run[1])
    assert "state_storage" not in state["param_groups"][0]
    for make in (torch.optim.AdamW, optim.AdamW):
        params = params_of()
        loaded = make(params, lr=0.5)
        loaded.load_state_dict(copy.deepcopy(state))
        for key, param in enumerate(params):
            for name in NATURAL:
                assert torch.equal(loaded.state[param][name], state["state"][key][name])
    reloaded = load(adam(), state, convert=True)
    for param, loaded in zip(run[0], reloaded[0], strict=True):
        for name in NATURAL:
            assert torch.equal(run[1].state[param][name], reloaded[1].state[loaded][name])


@pytest.mark.parametrize("argument", [{}, torch.optim.AdamW([torch.ones(1)]), None])
def test_full_precision_rejects_other_objects(argument: Any) -> None:
    with pytest.raises(
        TypeError, match=f"one of thalweg.optim, .* not a .*{type(argument).__name__}"
    ):
        optim.full_precision(argument)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("exp_avg", torch.zeros(35, dtype=torch.uint8), "exp_avg' is uint8"),
        ("exp_avg", torch.zeros(5), "exp_avg' is float32"),
        ("exp_avg", None, "exp_avg"),
    ],
)
def test_invalid_state_is_not_loaded(name: str, value: Any, message: str) -> None:
    run, loaded = train(adam()), adam()
    for convert in (False, True):
        state = copy.deepcopy(run[1].state_dict())
        state["state"][0][name] = value
        with pytest.raises(CheckpointMismatchError, match=message):
            load(loaded, state, convert=convert)
        assert not loaded[1].state
    for storage, pattern in (
        ({name: "zip"}, f"names 'zip' for '{name}', which is not a codec"),
        ({name: ["linear8"]}, f"for '{name}', which is not a codec"),
        ([name], "names no codecs"),
    ):
        state["param_groups"][0]["state_storage"] = storage
        with pytest.raises(CheckpointMismatchError, match=pattern):
            load(loaded, state)


def test_mixed_groups_have_separate_codecs() -> None:
    params = params_of([MIN_SIZE, MIN_SIZE])
    groups = [{"params": [params[0]], "rule": "AdamW"}, {"params": [params[1]], "rule": "SGD"}]
    groups[1]["momentum"] = 0.9
    run = train((params, optim.Mixed(groups, state_storage="8bit")))
    codecs = [group["state_storage"] for group in run[1].state_dict()["param_groups"]]
    assert codecs == [NATURAL, {"momentum_buffer": "softsign8"}]


# User-defined rules


def heavy(var: Any, grad: Any, m: Any, *, learning_rate: Any) -> Any:
    m = m * 0.9 + grad
    return var - learning_rate * m, m


@pytest.mark.parametrize(
    ("slot", "message"),
    [
        (Slot("m", storage="softsign8"), ""),
        (Slot("m", 0.5, positive=True, storage="root8"), ""),
        (Slot("m", storage="zip"), "'zip', which is no codec"),
        (Slot("m", storage="root8"), "never negative, and slot 'm'"),
        (Slot("m", storage="softsign8", exact=True), "slot 'm' has .*'softsign8', and exact"),
    ],
)
def test_rule_sets_storage_of_slots(slot: Slot, message: str) -> None:
    rule = Rule(name="Heavy", update=heavy, slots=(slot,))
    params = params_of()
    if message:
        with pytest.raises(RuleError, match=message):
            optim.RuleOptimizer(params, rule)
        return
    run = train((params, optim.RuleOptimizer(params, rule)))
    assert run[1].state[params[0]]["m"].dtype == torch.uint8
    state = through_a_file(run[1].state_dict())
    loaded = load((params_of(), optim.RuleOptimizer(params_of(), rule)), state)
    assert_same([loaded[1].state_dict()["state"][0]["m"]], [run[1].state_dict()["state"][0]["m"]])


@pytest.mark.parametrize("keywords", [{"scalar": True}, {"dtype": torch.float32}])
def test_storage_of_other_slot_shapes_raises(keywords: Any) -> None:
    with pytest.raises(thalweg.errors.RuleError, match="storage of Slot 'm'"):
        Slot("m", storage="softsign8", **keywords)
