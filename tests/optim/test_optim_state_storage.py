"""Slots of 8 bits in optimizers of torch's kind: kept, told, saved, converted and refused."""

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

LEAST = 4096
SIZES = [LEAST - 1, LEAST, LEAST + 1, (1 << 16) + 257]
NATURAL = {"exp_avg": "softsign8", "exp_avg_sq": "root8"}
PLAIN = dict.fromkeys(NATURAL, "float32")
Own = tuple[list[torch.nn.Parameter], Any]


def params_of(sizes: Any = (LEAST + 1, 10), dtype: torch.dtype = torch.float32) -> list[Any]:
    made = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(size, generator=made).to(dtype)) for size in sizes]


def trained(own: Own, steps: int = 5, seed: int = 2, each: Callable[[Any], Any] = bool) -> Own:
    """Steps over random gradients, before each of which something is done to the optimizer."""
    params, optimizer = own
    made = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for param in params:
            param.grad = torch.randn(param.shape, generator=made).to(param.dtype)
        each(optimizer)
        optimizer.step()
    return own


def adam(storage: Any = "8bit", sizes: Any = (LEAST + 1, 10), **options: Any) -> Own:
    params = params_of(sizes)
    return params, optim.AdamW(params, lr=0.01, state_storage=storage, **options)


def forget(optimizer: Any) -> None:
    """Have the next step planned anew."""
    optimizer._cache.forget_replay()
    optimizer._cache.rebind_target = None
    optimizer._cache.parts.clear()


def tensors_of(own: Own) -> list[torch.Tensor]:
    """All that steps write, bytes as numbers."""
    params, optimizer = own
    found = [*params]
    for param in params:
        found += [x for x in optimizer.state[param].values() if isinstance(x, torch.Tensor)]
    return [x.detach().float() if x.dtype == torch.uint8 else x.detach() for x in found]


def assert_equal(one: Own, other: Own) -> None:
    assert_same(tensors_of(one), tensors_of(other))


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
    ("cls", "own"), CLASSES, ids=lambda each: getattr(each, "__name__", "")
)


@by_class
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_steps_in_one_call_are_those_of_the_reference(
    cls: Any, own: dict[str, Any], dtype: torch.dtype
) -> None:
    made: list[Own] = []
    for name, each in (("auto", bool), ("auto", forget), ("reference", bool)):
        params = params_of(SIZES, dtype)
        with engine(name):
            made.append(
                trained((params, cls(params, lr=0.01, state_storage="8bit", **own)), 4, each=each)
            )
    assert made[0][1]._cache.replay is not None
    assert_equal(made[0], made[1])
    assert_equal(made[0], made[2])


@by_class
def test_what_is_small_is_as_without_codecs(cls: Any, own: dict[str, Any]) -> None:
    pairs: list[Own] = []
    for storage in ({}, {"state_storage": "8bit"}):
        params = params_of([LEAST - 1, 7])
        pairs.append(trained((params, cls(params, lr=0.01, **own, **storage))))
    assert_equal(*pairs)


@pytest.mark.parametrize(
    "storage", ["8bit", "softsign8", "linear8", "dynamic8", {"exp_avg_sq": "root8"}]
)
def test_slots_are_bytes_and_what_is_lost_is_little(storage: Any) -> None:
    exact, own = trained(adam(None), 20), trained(adam(storage), 20)
    squares = {"linear8": "root8", "dynamic8": "dynamic8_positive"}
    kinds = {name: {"exp_avg": name, "exp_avg_sq": x} for name, x in squares.items()}
    kinds |= {"8bit": NATURAL, "softsign8": NATURAL}
    told = storage if isinstance(storage, dict) else kinds[storage]
    for param in own[0]:
        for name in NATURAL:
            slot, codec = own[1].state[param][name], told.get(name)
            if param.numel() < LEAST or codec is None:
                assert (slot.dtype, slot.shape) == (torch.float32, param.shape)
            else:
                assert slot.dtype == torch.uint8
                assert slot.shape == (CODECS[codec].bytes_of(param.numel()),)
    groups = own[1].state_dict()["param_groups"]
    assert [group["state_storage"] for group in groups] == [told]
    moved = (exact[0][0] - params_of()[0]).abs().max()
    assert (exact[0][0] - own[0][0]).abs().max() < moved / 10
    assert torch.equal(exact[0][1], own[0][1])


def test_slots_begin_at_their_numbers() -> None:
    params = params_of()
    options: dict[str, Any] = {"initial_accumulator_value": 0.3, "state_storage": "root8"}
    optimizer = optim.Adagrad(params, **options)
    held = optim.full_precision(optimizer)["state"][0]["sum"]
    assert held.unique().tolist() == [pytest.approx(0.3, rel=1e-6)]
    assert not optimizer.state[params[0]]["sum"][-31:].any()  # beyond the last element


# What lies around a step beside codecs.
BESIDE: list[dict[str, Any]] = [
    {"ema_decay": 0.9}, {"lookahead": 2}, {"accumulate": 2}, {"accumulate": 2, "wide_sums": True},
    {"clip_grad_norm": 0.5}, {"clip_grad_value": 0.5}, {"cautious_decay": True},
    {"gradients": "flat"}, {"in_backward": True}, {"masters": True},
]  # fmt: skip


@pytest.mark.parametrize("beside", BESIDE, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_other_options_have_the_bits_of_the_reference(
    beside: dict[str, Any], dtype: torch.dtype
) -> None:
    made: list[Own] = []
    for name in ("auto", "reference"):
        params = params_of(dtype=dtype)
        optimizer = optim.AdamW(params, lr=0.01, state_storage="8bit", **beside)
        with engine(name):
            for step in range(6):
                optimizer.zero_grad()
                drawn = torch.Generator().manual_seed(step)
                given = [torch.randn(p.shape, generator=drawn).to(p.dtype) for p in params]
                sum((p * g).sum() for p, g in zip(params, given, strict=True)).backward()
                optimizer.step()
        made.append((params, optimizer))
    assert_equal(*made)
    assert made[0][1].state[made[0][0][0]]["exp_avg"].dtype == torch.uint8
    kept = {k: x.dtype for k, x in made[0][1].state[made[0][0][0]].items()}
    assert all(kept.get(name, torch.float32) == torch.float32 for name in ("ema", "slow", "master"))


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
            for cls in (optim.Adafactor, optim.SM3)
        ),
        (optim.Adafactor, {"state_storage": {"variance": "root8"}}, "Adafactor has no slots"),
        (optim.SparseAdam, {"state_storage": "8bit"}, "^SparseAdam cannot have state_storage: its"),
        (optim.SparseAdam, {"round": "stochastic"}, "^SparseAdam cannot have round: its gradients"),
        (
            optim.AdamW,
            {"state_storage": "8bit", "row_floor": True},
            "^AdamW with row_floor cannot have .* measures rows or columns of its slot 'exp_avg'",
        ),
        (optim.AdamW, {"state_storage": "8bit", "state_dtype": torch.float32}, "state_dtype=.*one"),
        (optim.AdamW, {"state_storage": "8bit", "state_device": "cpu"}, "state_device='cpu'.*one"),
    ],
)
def test_what_cannot_be_together_is_refused_by_name(
    cls: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        cls([torch.nn.Parameter(torch.ones(64, 80))], **options)


@pytest.mark.parametrize("cls", [optim.Adafactor, optim.SM3, optim.SGD])
@pytest.mark.parametrize("sizes", [[(64, 80)], [(64, 80), (8,)], [(8,)]], ids=str)
def test_sizes_do_not_decide_whether_there_are_slots(cls: Any, sizes: Any) -> None:
    with pytest.raises(ValueError, match=f"{cls.__name__} has no slots"):
        cls(params_of(sizes), lr=0.1, state_storage="8bit")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weights": "split"}, "'correction' in split8: weights='split' is not"),
        ({"state_storage": "root8"}, ": state_storage is not"),
        (
            {"weights": "split", "state_storage": "root8"},
            ": state_storage and weights='split' is not",
        ),
    ],
)
def test_the_option_that_dtensors_cannot_have_is_named(
    options: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thalweg.optim.quantized_state.any_on_mesh", lambda _: True)
    with pytest.raises(NotImplementedError, match=f"'w' is a DTensor, .*{said}"):
        optim.Adadelta([("w", params_of(dtype=torch.bfloat16)[0])], **options)


def test_groups_without_slots_may_be_beside_others() -> None:
    groups: list[Any] = [{"params": [param]} for param in params_of([LEAST, LEAST])]
    optimizer = optim.SGD([groups[0], {**groups[1], "momentum": 0.9}], state_storage="8bit")
    trained(([param for group in groups for param in group["params"]], optimizer), 1)
    groups = [
        {"params": group["params"], "rule": rule}
        for group, rule in zip(groups, ("Adam", "Adagrad"))
    ]
    optim.Mixed(groups, state_storage="8bit")
    groups = [{**group, "rule": rule} for group, rule in zip(groups, ("Adagrad", "SGD"))]
    with pytest.raises(ValueError, match="Adagrad and SGD have no slots"):
        optim.Mixed(groups, state_storage="8bit")


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64], ids=str)
def test_parameters_that_no_codec_is_for_are_refused(dtype: torch.dtype) -> None:
    params, optimizer = adam()
    other = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    with pytest.raises(TypeError, match=r"is (float64|complex64), .*'exp_avg' in softsign8"):
        optimizer.add_param_group({"params": [other]})
    assert len(optimizer.param_groups) == 1
    trained((params, optimizer), 1)
    params[0].data = params[0].data.double()
    params[0].grad = torch.ones_like(params[0])
    before = [each.clone() for each in tensors_of((params, optimizer))]
    with pytest.raises(TypeError, match="'parameter 0 of group 0' is float64, and slot 'exp_avg'"):
        optimizer.step()
    assert_same(tensors_of((params, optimizer)), before)


@pytest.mark.parametrize(
    ("cls", "own", "said"),
    [
        (tensorflow.Adam, {}, "slot 'm' .* give a dense gradient"),
        (optim.SGD, {"momentum": 0.9}, "SGD with state_storage takes dense ones: leave out"),
    ],
)
def test_a_sparse_gradient_is_refused_and_nothing_changes(cls: Any, own: Any, said: str) -> None:
    params = [torch.nn.Parameter(torch.ones(100, 64))]
    optimizer = cls(params, lr=0.1, state_storage="8bit", **own)
    before = [each.clone() for each in tensors_of((params, optimizer))]
    rows = torch.tensor([[3, 5]])
    params[0].grad = torch.sparse_coo_tensor(
        rows, torch.ones(2, 64), (100, 64), check_invariants=True
    )
    with pytest.raises(NotImplementedError, match=f"'parameter 0 of .* is sparse, and {said}"):
        optimizer.step()
    assert_same(tensors_of((params, optimizer)), before)


@pytest.mark.parametrize("cut", ["short", "moved", "strided"])
def test_bytes_that_do_not_fit_are_refused(cut: str) -> None:
    params, optimizer = trained(adam(), 1)
    own = optimizer.state[params[0]]
    slot = own["exp_avg"]
    room = torch.zeros(2 * slot.numel() + 8, dtype=torch.uint8)
    places = {
        "short": slot[:-36],
        "moved": room[1:][: slot.numel()],
        "strided": room[::2][: len(slot)],
    }
    own["exp_avg"] = places[cut]
    before = params[0].detach().clone()
    params[0].grad = torch.ones_like(params[0])
    with pytest.raises(ValueError, match="slot 'exp_avg' of"):
        optimizer.step()
    assert torch.equal(params[0], before)


# States


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def renewed(own: Own) -> Own:
    params = [torch.nn.Parameter(param.detach().clone()) for param in own[0]]
    made = optim.AdamW(params, lr=0.01, state_storage="8bit")
    made.load_state_dict(through_a_file(own[1].state_dict()))
    return params, made


def copied(own: Own) -> Own:
    return copy.deepcopy(own)


def pickled(own: Own) -> Own:
    return pickle.loads(pickle.dumps(own))


@pytest.mark.parametrize("how", [renewed, copied, pickled])
def test_a_training_goes_on_with_the_same_bits(how: Callable[[Own], Own]) -> None:
    own = trained(adam())
    other = how(own)
    assert_equal(own, other)
    assert_equal(trained(own, seed=9), trained(other, seed=9))
    assert other[1].state[other[0][0]]["exp_avg"].dtype == torch.uint8


def test_files_hold_the_bytes_and_refuse_others(tmp_path: Path) -> None:
    own, other = trained(adam()), adam()
    names = ("w", "b")
    file = tmp_path / "file"
    checkpoint.save(file, optimizer=own[1], variables=dict(zip(names, own[0])))
    checkpoint.restore(file, optimizer=other[1], variables=dict(zip(names, other[0])))
    assert_equal(trained(own, seed=9), trained(other, seed=9))
    # Records of both codecs are as long.
    for storage in (None, "linear8", dict.fromkeys(NATURAL, "softsign8")):
        third = adam(storage)
        given = {"optimizer": third[1], "variables": dict(zip(names, third[0]))}
        with pytest.raises(CheckpointMismatchError, match="state_storage is"):
            checkpoint.restore(file, **given)
        with pytest.raises(CheckpointMismatchError, match=r"'exp_avg.* is in \w+8, here in "):
            checkpoint.restore(file, **given, check_arguments=False)


STORAGES = [None, "8bit", "dynamic8", "linear8", {"exp_avg_sq": "root8"}]


def loads(own: Own, state: Any, **keywords: bool) -> Own:
    own[1].load_state_dict(state, **keywords)
    return own


@pytest.mark.parametrize("theirs", STORAGES, ids=str)
@pytest.mark.parametrize("ours", STORAGES, ids=str)
def test_another_storage_is_refused_or_converted(theirs: Any, ours: Any) -> None:
    own, other = trained(adam(theirs)), trained(adam(ours), 2)
    state = own[1].state_dict()
    if theirs == ours:
        loads(other, state)
        return
    before = [each.clone() for each in tensors_of(other)]
    with pytest.raises(CheckpointMismatchError, match=r"is in \w+, here in \w+.*convert=True"):
        loads(other, state)
    assert_same(tensors_of(other), before)
    loads(other, state, convert=True)
    wanted = optim.full_precision(own[1])["state"]
    found = optim.full_precision(other[1])["state"]
    for key in wanted:
        for name, value in wanted[key].items():
            lost = (found[key][name] - value).abs().max()
            assert lost <= value.abs().max() / 50, (key, name)
    trained(other, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_of_tensorflows_are_converted_by_names(dtype: torch.dtype) -> None:
    sizes = {"small": 10, "w": LEAST, "b": LEAST + 1}
    own, other, back = (
        dict(zip(names, params_of([sizes[name] for name in names], dtype), strict=True))
        for names in ([*sizes], [*sizes][::-1], [*sizes])
    )
    saved = tensorflow.Adam(own.items(), state_storage="8bit")
    trained(([*own.values()], saved))
    plain = tensorflow.Adam(other.items())
    plain.load_state_dict(saved.state_dict(), convert=True)
    for name, param in other.items():
        assert plain.state[param]["m"].dtype == dtype
        assert plain.state[param]["m"].shape == own[name].shape
    trained(([*other.values()], plain), 1)
    again = tensorflow.Adam(back.items(), state_storage="8bit")
    again.load_state_dict(plain.state_dict(), convert=True)
    assert again.state[back["w"]]["m"].dtype == torch.uint8
    trained(([*back.values()], again), 1)


def test_full_precision_is_what_torchs_own_takes() -> None:
    own = trained(adam())
    state = optim.full_precision(own[1])
    assert "state_storage" not in state["param_groups"][0]
    for make in (torch.optim.AdamW, optim.AdamW):
        params = params_of()
        other = make(params, lr=0.5)
        other.load_state_dict(copy.deepcopy(state))
        for key, param in enumerate(params):
            for name in NATURAL:
                assert torch.equal(other.state[param][name], state["state"][key][name])
    again = loads(adam(), state, convert=True)
    for param, other in zip(own[0], again[0], strict=True):
        for name in NATURAL:
            assert torch.equal(own[1].state[param][name], again[1].state[other][name])


@pytest.mark.parametrize("given", [{}, torch.optim.AdamW([torch.ones(1)]), None])
def test_full_precision_is_of_optimizers_of_ours(given: Any) -> None:
    with pytest.raises(TypeError, match=f"one of thalweg.optim, .* not a .*{type(given).__name__}"):
        optim.full_precision(given)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("exp_avg", torch.zeros(35, dtype=torch.uint8), "exp_avg' is uint8"),
        ("exp_avg", torch.zeros(5), "exp_avg' is float32"),
        ("exp_avg", None, "exp_avg"),
    ],
)
def test_states_that_do_not_fit_are_refused_whole(name: str, value: Any, message: str) -> None:
    own, other = trained(adam()), adam()
    for convert in (False, True):
        state = copy.deepcopy(own[1].state_dict())
        state["state"][0][name] = value
        with pytest.raises(CheckpointMismatchError, match=message):
            loads(other, state, convert=convert)
        assert not other[1].state
    for told, said in (
        ({name: "zip"}, f"names 'zip' for '{name}', which is not a codec"),
        ({name: ["linear8"]}, f"for '{name}', which is not a codec"),
        ([name], "names no codecs"),
    ):
        state["param_groups"][0]["state_storage"] = told
        with pytest.raises(CheckpointMismatchError, match=said):
            loads(other, state)


def test_mixed_rules_have_their_own_codecs() -> None:
    params = params_of([LEAST, LEAST])
    groups = [{"params": [params[0]], "rule": "AdamW"}, {"params": [params[1]], "rule": "SGD"}]
    groups[1]["momentum"] = 0.9
    own = trained((params, optim.Mixed(groups, state_storage="8bit")))
    told = [group["state_storage"] for group in own[1].state_dict()["param_groups"]]
    assert told == [NATURAL, {"momentum_buffer": "softsign8"}]


# Rules of one's own


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
def test_rules_say_in_what_slots_are_kept(slot: Slot, message: str) -> None:
    rule = Rule(name="Heavy", update=heavy, slots=(slot,))
    params = params_of()
    if message:
        with pytest.raises(RuleError, match=message):
            optim.RuleOptimizer(params, rule)
        return
    own = trained((params, optim.RuleOptimizer(params, rule)))
    assert own[1].state[params[0]]["m"].dtype == torch.uint8
    state = through_a_file(own[1].state_dict())
    other = loads((params_of(), optim.RuleOptimizer(params_of(), rule)), state)
    assert torch.equal(other[1].state_dict()["state"][0]["m"], own[1].state_dict()["state"][0]["m"])


@pytest.mark.parametrize("keywords", [{"scalar": True}, {"dtype": torch.float32}])
def test_a_codec_is_for_slots_of_the_shape_of_variables(keywords: Any) -> None:
    with pytest.raises(thalweg.errors.RuleError, match="storage of Slot 'm'"):
        Slot("m", storage="softsign8", **keywords)
