"""Parameters of bfloat16 whose lower parts are in the state: kept, saved, converted and refused."""

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
Own = tuple[list[torch.nn.Parameter], Any]


def params_of(sizes: Any = (4097, 10), dtype: torch.dtype = torch.bfloat16) -> list[Any]:
    made = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(size, generator=made).to(dtype)) for size in sizes]


def trained(own: Own, steps: int = 5, seed: int = 2, each: Callable[[Any], Any] = bool) -> Own:
    """Steps over random gradients, before each of which something is done to the optimizer."""
    params, optimizer = own
    made = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for param in params:
            drawn = torch.randn(param.shape, generator=made).to(torch.bfloat16)
            param.grad = drawn.to(param.dtype)
        each(optimizer)
        optimizer.step()
    return own


def forget(optimizer: Any) -> None:
    """Have the next step planned anew."""
    optimizer._cache.forget_replay()
    optimizer._cache.rebind_target = None
    optimizer._cache.parts.clear()


def adam(sizes: Any = (4097, 10), **options: Any) -> Own:
    params = params_of(sizes)
    return params, optim.AdamW(params, lr=1e-4, **{"weights": "split", **options})


def tensors_of(own: Own) -> list[torch.Tensor]:
    """All that steps write, bytes as numbers."""
    params, optimizer = own
    found = [*params]
    for param in params:
        found += [x for x in optimizer.state[param].values() if isinstance(x, torch.Tensor)]
    return [x.detach().float() if x.dtype == torch.uint8 else x.detach() for x in found]


def assert_equal(one: Own, other: Own) -> None:
    assert_same(tensors_of(one), tensors_of(other))


def weights_of(own: Own) -> list[torch.Tensor]:
    """Weights of 24 bits."""
    params, optimizer = own
    return [
        decode_tensor(SPLIT8, optimizer.state[param]["correction"], param.detach())
        for param in params
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


@pytest.mark.parametrize(("cls", "own"), CLASSES, ids=lambda each: getattr(each, "__name__", None))
@pytest.mark.parametrize("round_", [None, "stochastic"])
def test_steps_in_one_call_are_those_of_the_reference(
    cls: Any, own: dict[str, Any], round_: str | None
) -> None:
    made: list[Own] = []
    for name, each in (("auto", bool), ("auto", forget), ("reference", bool)):
        params = params_of(SIZES)
        with engine(name):
            optimizer = cls(params, lr=1e-3, weights="split", round=round_, **own)
            made.append(trained((params, optimizer), 4, each=each))
    assert made[0][1]._cache.replay is not None
    assert_equal(made[0], made[1])
    assert_equal(made[0], made[2])


@pytest.mark.parametrize("round_", [None, "stochastic"])
def test_any_number_of_threads_has_the_same_bits(round_: str | None) -> None:
    made: list[Own] = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            made.append(trained(adam([(1 << 20) + 257, 33], state_storage="8bit", round=round_)))
    finally:
        torch.set_num_threads(before)
    assert_equal(made[0], made[1])
    assert_equal(made[0], made[2])


@pytest.mark.parametrize(
    ("cls", "rate"), [(optim.AdamW, 1e-4), (optim.SGD, 3e-4), (optim.Lion, 1e-4)]
)
def test_weights_are_those_of_float32_but_for_little(cls: Any, rate: float) -> None:
    """Steps of a thousandth of a number, of which bfloat16 alone has next to nothing left."""
    made: list[Own] = []
    for dtype, options in (
        (torch.float32, {}), (torch.bfloat16, {"weights": "split"}), (torch.bfloat16, {}),
    ):  # fmt: skip
        params = params_of(dtype=torch.bfloat16)
        params = [torch.nn.Parameter(param.detach().to(dtype)) for param in params]
        made.append(trained((params, cls(params, lr=rate, **options)), 20))
    exact, split, plain = made
    for k, (start, whole) in enumerate(zip(params_of(), weights_of(split), strict=True)):
        moved = (exact[0][k] - start).norm()
        assert (whole - exact[0][k]).norm() < 0.1 * moved  # steps of 3 codes, rounded 20 times
        assert (plain[0][k] - exact[0][k]).norm() > 0.5 * moved
        size = split[0][k].detach().float().abs()
        place = torch.exp2(torch.floor(torch.log2(size)) - 7)
        assert ((split[0][k] - whole).abs() <= place / 2).all()


def test_what_is_kept() -> None:
    params, optimizer = trained(adam(state_storage="8bit"))
    own = [optimizer.state[param] for param in params]
    assert [each["correction"].shape for each in own] == [(4097,), (10,)]
    assert {each["correction"].dtype for each in own} == {torch.uint8}
    assert [each["exp_avg"].dtype for each in own] == [torch.uint8, torch.float32]
    told = optimizer.state_dict()["param_groups"][0]["state_storage"]
    assert told == {"exp_avg": "softsign8", "exp_avg_sq": "root8", "correction": "split8"}
    taken = sum(x.nbytes for x in own[0].values() if x.dim()) / 4097
    assert 3.25 < taken < 3.27  # 1 + 2 * 1.125, and the last blocks
    # Without codecs slots are of float32, where small changes of averages count.
    assert trained(adam())[1].state_dict()["state"][0]["exp_avg"].dtype == torch.float32
    wide = trained(adam(state_dtype=torch.bfloat16))[1].state_dict()["state"][0]
    assert wide["exp_avg"].dtype == torch.bfloat16


BESIDE: list[dict[str, Any]] = [
    {"ema_decay": 0.9}, {"lookahead": 2}, {"accumulate": 2}, {"accumulate": 2, "wide_sums": True},
    {"clip_grad_norm": 0.5}, {"clip_grad_value": 0.5}, {"cautious_decay": True},
    {"cautious": True}, {"gradients": "flat"}, {"in_backward": True}, {"state_storage": "8bit"},
    {"state_storage": "8bit", "round": "stochastic", "seed": 3}, {"foreach": True},
]  # fmt: skip


@pytest.mark.parametrize("beside", BESIDE, ids=str)
def test_other_options_have_the_bits_of_the_reference(beside: dict[str, Any]) -> None:
    made: list[Own] = []
    for name in ("auto", "reference"):
        own = adam(**beside)
        with engine(name):
            for step in range(6):
                own[1].zero_grad()
                drawn = torch.Generator().manual_seed(step)
                given = [torch.randn(p.shape, generator=drawn).to(p.dtype) for p in own[0]]
                sum((p * g).sum() for p, g in zip(own[0], given, strict=True)).backward()
                own[1].step()
        made.append(own)
    assert_equal(*made)
    assert made[0][1].state[made[0][0][0]]["correction"].any()


def test_an_average_is_of_weights_and_not_of_parameters() -> None:
    """Of steps that are far too small for bfloat16."""
    params = [torch.nn.Parameter(torch.ones(5000, dtype=torch.bfloat16))]
    optimizer = optim.SGD(params, lr=2.0**-14, weights="split", ema_decay=0.5)
    for _ in range(3):
        params[0].grad = torch.ones_like(params[0])
        optimizer.step()
    assert (params[0] == 1).all()
    assert (optimizer.state[params[0]]["ema"] < 1).all()
    assert weights_of((params, optimizer))[0].unique().tolist() == [1 - 3 * 2.0**-14]


def test_what_users_write_is_the_weight_but_for_half_a_place() -> None:
    params, optimizer = trained(adam())
    correction = optimizer.state[params[0]]["correction"].view(torch.int8)
    with torch.no_grad():
        params[0][:1000] = 0
        params[0][1000:2000] = float("inf")
        params[0][2000:3000] = 2
    whole = weights_of((params, optimizer))[0]
    assert (whole[:1000] == 0).all()
    assert whole[1000:2000].isinf().all()
    codes = correction[2000:3000].float()  # finer below a power of two
    wanted = 2 + codes * torch.where(codes < 0, 2.0**-15, 2.0**-14)
    assert torch.equal(whole[2000:3000], wanted)
    for param in params:
        param.grad = torch.zeros_like(param)
    optimizer.param_groups[0].update(lr=0.0)
    before = copy.deepcopy(params)
    optimizer.step()
    assert_same([x.detach() for x in params], [x.detach() for x in before])


def test_steps_below_a_code_are_lost_unless_random_bits_round() -> None:
    moved: list[float] = []
    for options in ({}, {"round": "stochastic"}):
        params = [torch.nn.Parameter(torch.full((65536,), 1.5, dtype=torch.bfloat16))]
        optimizer = optim.SGD(params, lr=2.0**-19, weights="split", **options)
        for _ in range(64):
            params[0].grad = torch.ones_like(params[0])
            optimizer.step()
        moved.append(float(1.5 - weights_of((params, optimizer))[0].double().mean()))
    assert moved[0] == 0
    assert moved[1] == pytest.approx(64 * 2.0**-19, rel=0.02)


def test_sparse_gradients_are_made_dense() -> None:
    made: list[Own] = []
    for is_sparse in (False, True):
        params = params_of([(100, 64)])
        own = params, tensorflow.Adam(params, weights="split")
        grad = torch.zeros(100, 64, dtype=torch.bfloat16)
        grad[[3, 5]] = 1
        params[0].grad = grad.to_sparse(1) if is_sparse else grad
        own[1].step()
        made.append(own)
    assert_equal(*made)


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (optim.AdamW, {"weights": "both"}, "None or 'split', not 'both'"),
        (optim.AdamW, {"weights": 8}, "None or 'split', not 8"),
        (optim.AdamW, {"masters": True}, "weights='split' and masters cannot be together"),
        (optim.AdamW, {"state_device": "cpu"}, "weights='split' and state_device cannot"),
        (optim.Adafactor, {}, "'Adafactor', which measures rows or columns"),
        (optim.SM3, {}, "measures rows or columns"),
    ],
)
def test_what_cannot_be_together_is_refused_by_name(
    cls: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        cls([torch.nn.Parameter(torch.ones(8, 8, dtype=torch.bfloat16))],
            **{"weights": "split", **options})  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_other_parameters_are_refused_and_nothing_changes(dtype: torch.dtype) -> None:
    own = trained(adam(), 1)
    params, optimizer = own
    other = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    with pytest.raises(TypeError, match=r"is float.*for parameters of bfloat16"):
        optimizer.add_param_group({"params": [other]})
    assert len(optimizer.param_groups) == 1
    params[0].data = params[0].data.to(dtype)
    params[0].grad = torch.ones_like(params[0])
    before = [each.clone() for each in tensors_of(own)]
    with pytest.raises(TypeError, match=r"is float.*'correction'.* lower part of a bfloat16"):
        optimizer.step()
    assert_same(tensors_of(own), before)


def test_bytes_that_do_not_fit_are_refused() -> None:
    own = trained(adam(), 1)
    own[1].state[own[0][0]]["correction"] = torch.zeros(4096, dtype=torch.uint8)
    before = own[0][0].detach().clone()
    with pytest.raises(ValueError, match="slot 'correction' of"):
        trained(own, 1)
    assert torch.equal(own[0][0], before)


def test_a_grad_scaler_skips_and_unscales() -> None:
    params, optimizer = own = trained(adam(clip_grad_norm=1.0), 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(sum((p.float() * 2).sum() for p in params)).backward()
    params[0].grad[0] = float("inf")
    before = [each.clone() for each in tensors_of(own)]
    scaler.step(optimizer)
    scaler.update()
    assert_same(tensors_of(own), before)


# States


def renewed(own: Own) -> Own:
    file = io.BytesIO()
    torch.save(own[1].state_dict(), file)
    file.seek(0)
    params = [torch.nn.Parameter(param.detach().clone()) for param in own[0]]
    made = optim.AdamW(params, lr=1e-4, weights="split")
    made.load_state_dict(torch.load(file))
    return params, made


def pickled(own: Own) -> Own:
    return pickle.loads(pickle.dumps(own))


@pytest.mark.parametrize("how", [renewed, copy.deepcopy, pickled])
def test_a_training_goes_on_with_the_same_bits(how: Callable[[Own], Own]) -> None:
    own = trained(adam())
    other = how(own)
    assert_equal(own, other)
    assert_equal(trained(own, seed=9), trained(other, seed=9))


def test_files_hold_the_bytes(tmp_path: Path) -> None:
    own, other = trained(adam()), adam()
    given = [dict(zip(("w", "b"), each[0], strict=True)) for each in (own, other)]
    checkpoint.save(tmp_path / "file", optimizer=own[1], variables=given[0])
    checkpoint.restore(tmp_path / "file", optimizer=other[1], variables=given[1])
    assert_equal(trained(own, seed=9), trained(other, seed=9))


def loaded(own: Own, options: dict[str, Any], state: Any, **keywords: bool) -> Own:
    params = [torch.nn.Parameter(param.detach().clone()) for param in own[0]]
    optimizer = optim.AdamW(params, lr=1e-4, **options)
    optimizer.load_state_dict(copy.deepcopy(state), **keywords)
    return params, optimizer


def test_a_state_without_corrections_is_refused_or_begins_at_parameters() -> None:
    own = trained(adam(weights=None))
    state = own[1].state_dict()
    with pytest.raises(
        CheckpointMismatchError, match=r"the state has no corrections, .*convert=True"
    ):
        loaded(own, {"weights": "split"}, state)
    other = loaded(own, {"weights": "split"}, state, convert=True)
    assert_same(weights_of(other), [param.detach().float() for param in own[0]])
    assert other[1].state[other[0][0]]["exp_avg"].dtype == torch.float32
    trained(other, 1)


def test_a_state_with_corrections_is_refused_or_loses_them() -> None:
    own = trained(adam())
    with pytest.raises(CheckpointMismatchError, match=r"the state has corrections .*convert=True"):
        loaded(own, {}, own[1].state_dict())
    with pytest.warns(CheckpointWarning, match="lower bits of weights, .* are left behind"):
        other = loaded(own, {}, own[1].state_dict(), convert=True)
    assert "correction" not in other[1].state[other[0][0]]
    trained(other, 1)


@pytest.mark.parametrize("how", ["full_precision", "convert"])
def test_masters_have_the_same_weights_there_and_back(how: str) -> None:
    own = trained(adam())
    is_full = how == "full_precision"
    state = optim.full_precision(own[1], masters=True) if is_full else own[1].state_dict()
    other = loaded(own, {"masters": True}, state, convert=not is_full)
    masters = [other[1].state[param]["master"] for param in other[0]]
    assert_same(masters, weights_of(own))
    back = loaded(other, {"weights": "split"}, other[1].state_dict(), convert=True)
    assert_same(weights_of(back), masters)
    assert_equal(trained(own, seed=9), trained(back, seed=9))


@pytest.mark.parametrize("make", [torch.optim.AdamW, optim.AdamW])
def test_a_float32_model_goes_on_with_the_weights_of_a_split_one(make: Any) -> None:
    own = trained(adam())
    plain = optim.full_precision(own[1])
    assert all({*each} == {"step", "exp_avg", "exp_avg_sq"} for each in plain["state"].values())
    state = optim.full_precision(own[1], masters=True)
    params = [torch.nn.Parameter(each.pop("master")) for each in state["state"].values()]
    assert_same([param.detach() for param in params], weights_of(own))
    other = make(params, lr=1e-4)
    other.load_state_dict(state)  # without a word
    trained((params, other), 1)
    assert {*other.state[params[0]]} == {"step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize(
    "value", [torch.zeros(4096, dtype=torch.uint8), torch.zeros(4097), torch.zeros(64, 64)]
)
def test_states_that_do_not_fit_are_refused_whole(value: torch.Tensor) -> None:
    own, other = trained(adam()), adam()
    state = copy.deepcopy(own[1].state_dict())
    state["state"][0]["correction"] = value
    with pytest.raises(CheckpointMismatchError, match="correction"):
        other[1].load_state_dict(state)
    assert not other[1].state


def test_groups_of_mixed_rules_have_corrections_each() -> None:
    params = params_of([4096, 4096])
    groups = [{"params": [params[0]], "rule": "AdamW"}, {"params": [params[1]], "rule": "SGD"}]
    own = trained((params, optim.Mixed(groups, weights="split")))
    assert all("correction" in own[1].state[param] for param in params)
