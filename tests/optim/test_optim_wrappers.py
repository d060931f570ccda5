"""Wrappers of steps as options: `cautious`, `cautious_decay`, `sphere` and others."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from case_batches import many
from modern_inputs import BESIDE, TABLE, gradients_of, params_of, train
from rulebook import assert_same
from thalweg import optim
from thalweg.errors import CheckpointMismatchError, NumericsWarning, RuleError
from thalweg.optim import tensorflow
from thalweg.rules import wrappers

GOLDENS = Path(__file__).parents[1] / "goldens" / "modern.npz"
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
MOVEMENT = 1e-6  # of which two orders of the same operations differ
WRAPPERS = ("cautious", "trust_ratio", "sphere", "radial_brake", "cautious_decay")
OWN = {  # a class for each that does the same by itself
    "cautious": (("AdamW", {}), ("CautiousAdamW", {})),
    "cautious_decay": (("AdamW", {}), ("AdamWCautiousDecay", {})),
    "trust_ratio": (("Adam", {"eps": 1e-6}), ("LAMB", {"always_adapt": True})),
    "sphere": (("Adam", {}), ("AdamH", {})),
}
RULES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    ("Adam", {"maximize": True, "amsgrad": True}),
    ("AdamW", {"weight_decay": 0.1}),
    ("RMSprop", {"centered": True, "momentum": 0.9}),
    ("Adagrad", {}),
    ("Adadelta", {}),
    ("Adamax", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("ASGD", {"lambd": 0.0}),
    ("Rprop", {}),
    ("Lion", {"weight_decay": 0.1}),
    ("NAdamW", {}),
    ("LaProp", {}),
    ("AdEMAMix", {}),
    ("ADOPT", {}),
    ("Adan", {}),
]
OF_MATRICES = ["Muon", "NorMuon", "SOAP", "KLSOAP"]
TENSORFLOWS = ["SGD", "Momentum", "MomentumW", "Adam", "AdamW", "RMSprop", "Adagrad", "Nadam"]
MEASURED = [each for each in WRAPPERS if each != "cautious_decay"]
CASES = [
    *((optim, name, own, each) for name, own in RULES for each in MEASURED),
    *((optim, name, {}, each) for name in OF_MATRICES for each in MEASURED),
    *((tensorflow, name, {}, each) for name in TENSORFLOWS for each in MEASURED),
    *((optim, n, {}, "cautious_decay") for n in ("AdamW", "Adam", "RAdam", "Lion", "StableAdamW")),
    *((optim, name, {}, "cautious_decay") for name in ("NAdamW", "AdEMAMix", "Muon", "NorMuon")),
    *((tensorflow, name, {}, "cautious_decay") for name in ("AdamW", "MomentumW")),
]
MEASURING: list[tuple[str, dict[str, Any]]] = [
    ("LAMB", {"weight_decay": 0.0}),
    ("AdamH", {}),
    ("StableAdamW", {"weight_decay": 0.0}),
    ("CautiousAdamW", {"weight_decay": 0.0}),
    ("MARS", {}),
    ("Prodigy", {"d0": 1e-3}),
    ("Adafactor", {}),
    ("SM3", {}),
]
WITH_ROWS = [  # whose matrices' rows have floors
    *RULES,
    *((name, {}) for name in (*OF_MATRICES, "Adafactor", "SM3")),
]
STACKED = ["cautious", "radial_brake"]
AROUND = [*BESIDE, {"state_device": "cpu"}, {"cautious_decay": True}]


def flat(params: Any) -> Any:
    return torch.cat([each.detach().double().ravel() for each in params])


def steps(made: Any, params: Any, count: int = 4, first: int = 0) -> Any:
    for step in range(first, first + count):
        given = gradients_of(step, params[0].dtype)
        for param in params:
            # The last has no gradient at first, and the third has none in between.
            place = next(k for k, g in enumerate(given) if g.shape == param.shape)
            skips = (place == 5 and step == 0) or (place == 2 and step == 2)
            param.grad = None if skips else given[place]
        made.step()
    return made


def matrices(params: Any, name: str) -> Any:
    return params[2:] if name in OF_MATRICES else params


def kept(made: Any, params: Any) -> list[torch.Tensor]:
    own = [each for param in params for each in made.state[param].values()]
    return [*(p.detach() for p in params), *(x for x in own if isinstance(x, torch.Tensor))]


@pytest.mark.parametrize("option", OWN)
def test_as_the_class_that_does_it_by_itself(option: str) -> None:
    (name, given), (other, its) = OWN[option]
    decay = {} if option in ("sphere", "trust_ratio") else {"weight_decay": 0.1}
    its = {**its, "weight_decay": 0.0} if option == "trust_ratio" else {**its, **decay}
    found: list[Any] = []
    for cls, own in ((name, {**given, **decay, option: True}), (other, its)):
        params = params_of(torch.float32)
        found.append(flat(train(getattr(optim, cls)(params, lr=0.01, **own), params, 0.01)))
    got, wanted = found
    movement = (wanted - flat(params_of(torch.float32))).norm()
    assert (got - wanted).norm() <= MOVEMENT * movement


@pytest.mark.parametrize(
    ("key", "cls", "option"),
    [
        ("CautiousAdamW", "AdamW", "cautious"),
        ("AdamWCautiousDecay", "AdamW", "cautious_decay"),
        ("AdamH", "Adam", "sphere"),
    ],
)
def test_as_the_authors_package(key: str, cls: str, option: str) -> None:
    for name in (name for name in TABLE if TABLE[name][0].cls == key):
        case, decay = TABLE[name]
        own = {} if option == "sphere" else {"weight_decay": decay}
        params = params_of(torch.float32)
        made = getattr(optim, cls)(params, lr=case.lr, **{option: True}, **own)
        got, wanted = flat(train(made, params, case.lr)), torch.from_numpy(np.load(GOLDENS)[name])
        movement = (wanted - flat(params_of(torch.float32))).norm()
        assert (got - wanted).norm() <= 5e-6 * movement


class ByHand:
    """What an option makes of the steps of an optimizer without it, in float64."""

    def __init__(self, plain: Any, params: Any, option: str) -> None:
        self.plain, self.params, self.option = plain, params, option
        self.rate = plain.param_groups[0]["lr"]
        self.radius = [param.detach().norm() for param in params]

    def step(self) -> None:
        before = [param.detach().clone() for param in self.params]
        self.plain.step()
        for place, (param, old) in enumerate(zip(self.params, before, strict=True)):
            if param.grad is None:
                continue
            with torch.no_grad():
                step = param - old
                if self.option == "cautious":
                    mask = (step * param.grad < 0).double()
                    step *= mask / mask.mean().clamp(min=1e-3)
                elif self.option == "radial_brake":
                    pass
                elif step.norm() > 0:
                    length = self.radius[place] if self.option == "sphere" else old.norm()
                    step *= self.rate * length / step.norm()
                param.copy_(old + step)
                if self.option == "sphere":
                    param *= self.radius[place] / param.norm()
                elif self.option == "radial_brake" and param.norm() > old.norm():
                    param *= (old.norm() + 0.5 * (param.norm() - old.norm())) / param.norm()


@pytest.mark.parametrize("option", MEASURED)
@pytest.mark.parametrize(("name", "own"), RULES[:2] + RULES[4:12])
def test_as_a_loop_around_torchs_own(name: str, own: dict[str, Any], option: str) -> None:
    """The decay of these is a part of the gradient."""
    params, others = params_of(torch.float64), params_of(torch.float64)
    made = getattr(optim, name)(params, lr=0.02, **own, **{option: True})
    plain = ByHand(getattr(torch.optim, name)(others, lr=0.02, **own), others, option)
    steps(made, params, 6)
    steps(plain, others, 6)
    torch.testing.assert_close(flat(params), flat(others), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("option", MEASURED)
@pytest.mark.parametrize(("name", "own"), MEASURING)
def test_as_a_loop_around_what_measures_by_itself(
    name: str, own: dict[str, Any], option: str
) -> None:
    params, others = params_of(torch.float64)[2:], params_of(torch.float64)[2:]
    own = {"lr": 0.02, **own}
    if name in {"sphere": ("AdamH", "Prodigy"), "trust_ratio": ("Prodigy",)}.get(option, ()):
        with pytest.raises(RuleError, match=r"already|by itself"):
            getattr(optim, name)(params, **own, **{option: True})
        return
    made = getattr(optim, name)(params, **own, **{option: True})
    plain = ByHand(getattr(optim, name)(others, **own), others, option)
    steps(made, params, 6)
    steps(plain, others, 6)
    torch.testing.assert_close(flat(params), flat(others), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("option", STACKED)
@pytest.mark.parametrize(("name", "own"), MEASURING)
@many("dtype", DTYPES)
def test_engines_agree_on_what_measures_by_itself(
    name: str, own: dict[str, Any], option: str, dtype: torch.dtype
) -> None:
    check_engines(optim, name, own, option, dtype)


def floored(old: Any, step: Any, rate: float, least: float) -> Any:
    """What a step in NumPy's float64 becomes, by the formula of its source."""
    lengths = [np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-8)
               for x in (old, step / rate)]  # fmt: skip
    return old + step * np.maximum(least * lengths[0] / lengths[1], 1)


def braked(old: Any, new: Any, kept: float) -> Any:
    """What a step leads to, likewise."""
    before, after = np.linalg.norm(old), np.linalg.norm(new)
    share = kept if after > before else 1.0
    return new * (before + share * (after - before)) / after if after else new


@pytest.mark.parametrize("share", [True, 0.05, 3.0], ids=str)
@pytest.mark.parametrize(("option", "name"), [
    ("row_floor", "SGD"), ("row_floor", "Adam"), ("row_floor", "Adagrad"), ("row_floor", "Muon"),
    ("radial_brake", "SGD"), ("radial_brake", "Adam"), ("radial_brake", "AdamW"),
])  # fmt: skip
def test_as_the_formula_of_its_source(option: str, name: str, share: float) -> None:
    number = {"row_floor": 0.3825, "radial_brake": 0.5}[option] if share is True else share
    if option == "radial_brake":
        share, number = (share, number) if share is True else (share / 3, share / 3)
    decay = {"weight_decay": 0.1} if name == "AdamW" else {}
    params, others = ([p for p in params_of(torch.float64) if p.dim() == 2] for _ in range(2))
    own = {"lr": 0.02, **({"weight_decay": 0.0} if name == "Muon" else decay)}
    made = getattr(optim, name)(params, **own, **{option: share})
    plain = getattr(optim, name)(others, **own)
    for number_of_step in range(5):
        before = [param.detach().numpy().copy() for param in others]
        for each, ours in ((made, params), (plain, others)):
            steps(each, ours, 1, number_of_step)
        for old, param in zip(before, others, strict=True):
            new = param.detach().numpy()
            if (new == old).all():
                continue
            if option == "row_floor":
                new[:] = floored(old, new - old, 0.02, number)
            else:
                new[:] = braked(old * (1 - 0.02 * decay.get("weight_decay", 0.0)), new, number)
    torch.testing.assert_close(flat(params), flat(others), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "own"), WITH_ROWS)
@many("dtype", DTYPES)
def test_engines_agree_on_floors_of_rows(
    name: str, own: dict[str, Any], dtype: torch.dtype
) -> None:
    both: list[Any] = []
    for engine in ("cpu", "reference"):
        params = [param for param in params_of(dtype) if param.dim() == 2]
        with thalweg.engine(engine):
            made = getattr(optim, name)(params, lr=0.01, **own, row_floor=True)
            both.append(kept(steps(made, params), params))
    assert_same(*both)
    assert all(each.isfinite().all() for each in both[0])


@pytest.mark.parametrize(
    "options",
    [
        *AROUND,
        {"cautious": True},
        {"sphere": True},
        {"cautious": True, "trust_ratio": True, "radial_brake": 0.0},
        {"clip_grad_norm": 0.5, "cautious": True, "radial_brake": True, "masters": True},
    ],
    ids=str,
)
def test_floors_of_rows_beside_others(options: dict[str, Any]) -> None:
    both: list[Any] = []
    for engine in ("cpu", "reference"):
        params = [param for param in params_of(torch.bfloat16) if param.dim() == 2]
        with thalweg.engine(engine):
            made = optim.AdamW(params, lr=0.01, weight_decay=0.1, row_floor=1.0, **options)
            both.append(kept(steps(made, params, 4), params))
    assert_same(*both)


def test_zeros_have_floors_and_brakes() -> None:
    for options in ({"row_floor": True}, {"radial_brake": True}):
        param = torch.zeros(4, 3, requires_grad=True)
        made = optim.SGD([param], lr=0.5, **options)
        for grad in (torch.zeros(4, 3), torch.eye(4, 3)):
            param.grad = grad
            made.step()
        wanted = -0.5 * torch.eye(4, 3) * (0.5 if "radial_brake" in options else 1.0)
        torch.testing.assert_close(param.detach(), wanted)
    param = torch.ones(2, 2, requires_grad=True)
    param.grad = torch.ones(2, 2)
    optim.SGD([param], lr=0.0, row_floor=True).step()
    assert_same([param.detach()], [torch.ones(2, 2)])


@pytest.mark.parametrize("option", WRAPPERS)
def test_uphill(option: str) -> None:
    """The steps that the opposite gradients would make."""
    params, others = params_of(torch.float32), params_of(torch.float32)
    made = optim.AdamW(params, lr=0.01, maximize=True, **{option: True})
    other = optim.AdamW(others, lr=0.01, **{option: True})
    for step in range(4):
        given = gradients_of(step, torch.float32)
        for param, twin, grad in zip(params, others, given, strict=True):
            param.grad, twin.grad = -grad, grad
        made.step()
        other.step()
    assert_same(*([each.detach() for each in own] for own in (params, others)))


@pytest.mark.parametrize(("home", "name", "own", "option"), CASES)
@many("dtype", DTYPES)
def test_engines_agree(
    home: Any, name: str, own: dict[str, Any], option: str, dtype: torch.dtype
) -> None:
    check_engines(home, name, own, option, dtype)


def check_engines(
    home: Any, name: str, own: dict[str, Any], option: str, dtype: torch.dtype
) -> None:
    """Raise unless both engines take the same steps."""
    both: list[Any] = []
    for engine in ("cpu", "reference"):
        params = matrices(params_of(dtype), name)
        with thalweg.engine(engine):
            made = getattr(home, name)(params, lr=0.01, **own, **{option: True})
            both.append(kept(steps(made, params), params))
    assert_same(*both)
    assert all(each.isfinite().all() for each in both[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("option", WRAPPERS)
@pytest.mark.parametrize("kind", [optim.AdamW, optim.NAdam, tensorflow.AdamW], ids=str)
@many("options", AROUND)
def test_beside_others(kind: Any, option: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    if "cautious_decay" in (option, *options) and (kind is optim.NAdam or option == "sphere"):
        with pytest.raises(ValueError, match="no decay"):
            kind(params_of(dtype), lr=0.01, **{**options, option: True})
        return
    both: list[Any] = []
    for engine in ("cpu", "reference"):
        params = params_of(dtype)
        with thalweg.engine(engine):
            made = kind(params, lr=0.01, weight_decay=0.1, **{**options, option: True})
            both.append(kept(steps(made, params, 4), params))
    assert_same(*both)


@pytest.mark.parametrize("option", WRAPPERS)
def test_an_average_is_that_of_what_was_wrapped(option: str) -> None:
    params, others = params_of(torch.float32), params_of(torch.float32)
    made = optim.AdamW(params, lr=0.01, ema_decay=0.75, **{option: True})
    plain = optim.AdamW(others, lr=0.01, **{option: True})
    means = [other.detach().clone() for other in others]
    for step in range(4):
        for each, own in ((made, params), (plain, others)):
            for param, grad in zip(own, gradients_of(step, torch.float32), strict=True):
                param.grad = grad
            each.step()
        for place, other in enumerate(others):
            weight = 1.0 if step == 0 else 0.25
            means[place] += weight * (other.detach() - means[place])
    assert_same([p.detach() for p in params], [p.detach() for p in others])
    torch.testing.assert_close([made.state[p]["ema"] for p in params], means)
    before = [param.detach().clone() for param in params]
    with made.swapped():
        torch.testing.assert_close([p.detach() for p in params], means)
    assert_same([p.detach() for p in params], before)


@pytest.mark.parametrize("option", WRAPPERS)
@pytest.mark.parametrize("kind", [optim.AdamW, tensorflow.AdamW], ids=str)
def test_in_the_backward_pass(kind: Any, option: str) -> None:
    found: list[Any] = []
    for in_backward in (False, True):
        params = params_of(torch.float32)
        made = kind(params, lr=0.01, in_backward=in_backward, **{option: True})
        for step in range(4):
            for place, param in enumerate(params):
                (param * (step - place - 0.5)).square().sum().backward()
            made.step()
            made.zero_grad()
        found.append([param.detach() for param in params])
    assert_same(*found)


@pytest.mark.parametrize("option", MEASURED)
@pytest.mark.parametrize("kind", [optim.SGD, optim.Adagrad, tensorflow.LazyAdam], ids=str)
def test_rows_are_made_dense(kind: Any, option: str) -> None:
    found: list[Any] = []
    for is_sparse in (False, True):
        param = params_of(torch.float32)[5]
        made = kind([param], lr=0.1, **{option: True})
        for step in range(4):
            grad = torch.zeros(300, 5)
            grad[[1, 7, 200]] = gradients_of(step, torch.float32)[5][:3]
            param.grad = grad.to_sparse(1) if is_sparse else grad
            made.step()
        found.append([param.detach()])
    assert_same(*found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("option", WRAPPERS)
@pytest.mark.parametrize("kind", [optim.AdamW, optim.NAdam, tensorflow.AdamW], ids=str)
def test_a_training_goes_on_from_its_state(kind: Any, option: str, dtype: torch.dtype) -> None:
    if kind is optim.NAdam and (option == "cautious_decay" or dtype == torch.bfloat16):
        return  # which torch's loader has round its numbers
    params = params_of(dtype)
    made = steps(kind(params, lr=0.01, **{option: True}), params)
    own = [param.detach().clone().requires_grad_() for param in params]
    other = kind(own, lr=0.01, **{option: True})
    other.load_state_dict(copy.deepcopy(made.state_dict()))
    again = pickle.loads(pickle.dumps(made))
    others = [param for group in again.param_groups for param in group["params"]]
    found = [kept(steps(x, y, 3, 4), y) for x, y in ((made, params), (other, own), (again, others))]
    assert_same(*found[:2])
    assert_same(*found[1:])


def test_a_state_without_a_radius_takes_the_norm_that_it_finds() -> None:
    params = params_of(torch.float32)
    plain = steps(optim.Adam(params, lr=0.01), params)
    norms = [param.detach().norm() for param in params]
    made = optim.Adam(params, lr=0.01, sphere=True)
    made.load_state_dict(copy.deepcopy(plain.state_dict()))
    steps(made, params, 3, 4)
    torch.testing.assert_close([made.state[param]["radius"] for param in params], norms)
    torch.testing.assert_close([param.detach().norm() for param in params], norms)
    torchs = torch.optim.Adam(params, lr=0.01)
    torchs.load_state_dict(made.state_dict())
    steps(torchs, params, 1)
    strict = tensorflow.Adam(params, lr=0.01, sphere=True)
    with pytest.raises(CheckpointMismatchError, match="radius' is missing"):
        strict.load_state_dict(tensorflow.Adam(params, lr=0.01).state_dict())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize(
    ("name", "options"), [*(("AdamW", {option: True}) for option in WRAPPERS), ("AdamH", {})]
)
def test_complex_numbers_are_pairs(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    dice = torch.Generator().manual_seed(0)
    param = torch.randn(4, 3, dtype=dtype, generator=dice).requires_grad_()
    pairs = torch.view_as_real(param.detach()).clone().requires_grad_()
    made = getattr(optim, name)([param], lr=0.1, **options)
    other = getattr(optim, name)([pairs], lr=0.1, **options)
    for _ in range(3):
        param.grad = torch.randn(4, 3, dtype=dtype, generator=dice)
        pairs.grad = torch.view_as_real(param.grad).clone()
        made.step()
        other.step()
        made.load_state_dict(copy.deepcopy(made.state_dict()))
    assert_same([torch.view_as_real(param.detach())], [pairs.detach()])
    assert {*made.state[param]} == {*other.state[pairs]}
    if "radius" in made.state[param]:
        assert_same([made.state[param]["radius"]], [other.state[pairs]["radius"]])


@pytest.mark.parametrize("radius", [torch.ones(3), torch.ones(1), 3.0, "long"], ids=str)
@pytest.mark.parametrize(("name", "options"), [("AdamW", {"sphere": True}), ("AdamH", {})])
def test_a_state_whose_radius_is_no_number_is_refused(
    name: str, options: dict[str, Any], radius: Any
) -> None:
    params = params_of(torch.float32)
    made = steps(getattr(optim, name)(params, lr=0.01, **options), params)
    before = kept(made, params)
    state = copy.deepcopy(made.state_dict())
    state["state"][2]["radius"] = radius
    with pytest.raises(CheckpointMismatchError, match="'2/radius' is"):
        made.load_state_dict(state)
    assert_same(kept(made, params), before)


def test_several_rules_in_one_step() -> None:
    params = params_of(torch.float32)
    groups = [
        {"params": params[:2], "rule": "SGD", "momentum": 0.9},
        {"params": params[2:3], "rule": "Muon"},
        {"params": params[3:], "rule": "AdamW"},
    ]
    made = optim.Mixed([{**each, "lr": 0.01} for each in groups], sphere=True)
    norms = [param.detach().norm() for param in params]
    steps(made, params)
    torch.testing.assert_close([param.detach().norm() for param in params], norms)


@pytest.mark.parametrize("kind", [optim.AdamW, tensorflow.Adam, optim.Mixed], ids=str)
def test_what_begins_at_zero_has_no_sphere(kind: Any, recwarn: Any) -> None:
    zero, other, twin = torch.zeros(16, 24), params_of(torch.float32)[2], torch.zeros(16, 24)
    named = [("up.weight", other), ("down.weight", zero.requires_grad_())]
    if kind is optim.Mixed:
        made = kind([{"params": named, "rule": "AdamW", "lr": 0.01}], sphere=True)
    else:
        made = kind(named, lr=0.01, sphere=True)
    plain = (optim.AdamW if kind is optim.Mixed else kind)([twin.requires_grad_()], lr=0.01)
    for step in range(6):
        other.grad, zero.grad = gradients_of(step, torch.float32)[2:4]
        twin.grad = zero.grad
        for each in (made, plain):
            each.step()
        if step == 2:
            made.load_state_dict(copy.deepcopy(made.state_dict()))
    said = "'down.weight' is 0 and has no sphere, so sphere=True leaves its steps as they are."
    assert [(each.category, str(each.message)) for each in recwarn] == [(NumericsWarning, said)]
    assert_same([zero.detach()], [twin.detach()])
    assert made.state[zero]["radius"] == 0
    assert abs(other.norm() / made.state[other]["radius"] - 1) < 1e-6


@pytest.mark.parametrize(
    ("name", "own"), [each for each in RULES if each[0] not in ("SparseAdam", "ASGD")]
)
def test_decay_leaves_no_sphere(name: str, own: dict[str, Any]) -> None:
    params = params_of(torch.float64)
    norms = [param.detach().norm() for param in params]
    decay = {} if name == "Rprop" else {"weight_decay": 0.5}
    steps(getattr(optim, name)(params, lr=0.1, sphere=True, **{**own, **decay}), params)
    torch.testing.assert_close([param.detach().norm() for param in params], norms)


def test_a_parameter_stays_on_its_sphere_where_nothing_moves() -> None:
    param = params_of(torch.float32)[2]
    before = param.detach().clone()
    made = optim.AdamW([param], lr=0.01, weight_decay=0.5, sphere=True)
    param.grad = torch.zeros_like(param)
    made.step()
    assert_same([param.detach()], [before])


@pytest.mark.parametrize("option", MEASURED)
def test_nan_stays_where_it_is_seen(option: str) -> None:
    param = torch.ones(4, requires_grad=True)
    param.grad = torch.tensor([1.0, -1.0, torch.nan, 1.0])
    optim.SGD([param], lr=0.1, **{option: True}).step()
    assert param.isnan()[2]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("SGD", {"cautious": 1}, "cautious must be a bool, not 1"),
        ("SGD", {"sphere": None}, "sphere must be a bool, not None"),
        ("SGD", {"trust_ratio": True, "sphere": True}, "trust_ratio and sphere cannot"),
        ("SGD", {"radial_brake": True, "sphere": True}, "on a sphere no norm grows"),
        ("SGD", {"radial_brake": 1.5}, "radial_brake must be from 0 to 1, not 1.5"),
        ("SGD", {"radial_brake": "much"}, "radial_brake must be a number, not 'much'"),
        ("SGD", {"row_floor": -1.0}, "row_floor must be a positive number, not -1.0"),
        ("SGD", {"row_floor": 10**400}, "row_floor must be a positive number, not an integer"),
        ("SGD", {"row_floor": True}, "has shape .*, and row_floor is for parameters of two"),
        ("AdamW", {"cautious_decay": True, "sphere": True}, "cautious_decay and sphere cannot"),
        (
            "SGD",
            {"cautious_decay": True},
            "decoupled weight decay, .* 'SGD' has none: leave",
        ),
        (
            "AdamWCoupled",
            {"cautious_decay": True},
            "decoupled weight decay, .* 'AdamWCoupled' has none: leave",
        ),
        ("ScheduleFreeSGD", {"cautious": True}, "ScheduleFreeSGD with cautious: parameters go w"),
        ("AdamH", {"sphere": True}, "Rule 'AdamH' is on a sphere already"),
        ("Prodigy", {"trust_ratio": True}, "Rule 'Prodigy' with a trust ratio: it finds by itself"),
    ],
)
def test_refused_by_name(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        getattr(optim, name)(params_of(torch.float32), lr=0.1, **options)


def test_a_group_that_is_refused_is_not_added() -> None:
    params = params_of(torch.float32)
    made = optim.Mixed([{"params": params[:2], "rule": "AdamW"}], sphere=True)
    with pytest.raises(RuleError, match="'AdamH' is on a sphere already"):
        made.add_param_group({"params": params[2:], "rule": "AdamH"})
    assert len(made.param_groups) == 1
    steps(made, params[:2])


@pytest.mark.parametrize("option", MEASURED)
def test_an_option_is_the_wrapper_of_the_same_name(option: str) -> None:
    rule = thalweg.rules.ADAM
    params, others = params_of(torch.float32), params_of(torch.float32)
    made = optim.RuleOptimizer(params, rule, **{option: True})
    other = optim.RuleOptimizer(others, getattr(wrappers, option)(rule))
    for each, own in ((made, params), (other, others)):
        steps(each, own)
    assert_same([x.detach() for x in params], [x.detach() for x in others])


@pytest.mark.parametrize("option", WRAPPERS)
def test_in_a_compiled_graph(option: str) -> None:
    found: list[Any] = []
    for is_compiled in (False, True):
        params = params_of(torch.float32)
        made = optim.AdamW(params, lr=0.01, **{option: True})
        step = torch.compile(lambda: made.step(), backend="eager") if is_compiled else made.step  # noqa: B023
        for number in range(4):
            for param, grad in zip(params, gradients_of(number, torch.float32), strict=True):
                param.grad = grad
            step()
        found.append([param.detach() for param in params])
    assert_same(*found)
