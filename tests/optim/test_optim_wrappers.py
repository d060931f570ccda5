"""Options that wrap a step: `cautious`, `cautious_decay`, `sphere` and others."""

from __future__ import annotations

import copy
import pickle
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from case_batches import many
from modern_inputs import BESIDE, TABLE, gradients_of, params_of, train
from pairwise import cover_pairs, cover_values
from rulebook import assert_same, slow_unless
from thalweg import optim
from thalweg.errors import CheckpointMismatchError, NumericsWarning, RuleError
from thalweg.optim import tensorflow
from thalweg.rules import wrappers

GOLDENS = Path(__file__).parents[1] / "goldens" / "modern.npz"
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
MOVEMENT = 1e-6  # relative difference between two orders of the same operations
WRAPPERS = ("cautious", "trust_ratio", "sphere", "radial_brake", "cautious_decay")
EQUIVALENT_CLASSES = {  # per option: a class to wrap, and the class with the option built in
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
MATRIX_RULES = ["Muon", "NorMuon", "AdaMuon", "SOAP", "KLSOAP"]
TENSORFLOW_RULES = ["SGD", "Momentum", "MomentumW", "Adam", "AdamW", "RMSprop", "Adagrad", "Nadam"]
SCALED_OPTIONS = [option for option in WRAPPERS if option != "cautious_decay"]
CASES = [
    *((optim, name, options, option) for name, options in RULES for option in SCALED_OPTIONS),
    *((optim, name, {}, option) for name in MATRIX_RULES for option in SCALED_OPTIONS),
    *((tensorflow, name, {}, option) for name in TENSORFLOW_RULES for option in SCALED_OPTIONS),
    *((optim, n, {}, "cautious_decay") for n in ("AdamW", "Adam", "RAdam", "Lion", "StableAdamW")),
    *((optim, n, {}, "cautious_decay") for n in ("NAdamW", "AdEMAMix", *MATRIX_RULES[:3])),
    *((tensorflow, name, {}, "cautious_decay") for name in ("AdamW", "MomentumW")),
]
SCALED_RULES: list[tuple[str, dict[str, Any]]] = [
    ("LAMB", {"weight_decay": 0.0}),
    ("AdamH", {}),
    ("StableAdamW", {"weight_decay": 0.0}),
    ("CautiousAdamW", {"weight_decay": 0.0}),
    ("MARS", {}),
    ("Prodigy", {"d0": 1e-3}),
    ("Adafactor", {}),
    ("SM3", {}),
]
ROW_FLOOR_RULES = [*RULES, *((name, {}) for name in (*MATRIX_RULES, "Adafactor", "SM3"))]
STACKED_OPTIONS = ["cautious", "radial_brake"]
CASES += [(optim, *rule, option) for rule in SCALED_RULES for option in STACKED_OPTIONS]
CASES += [(optim, *rule, "row_floor") for rule in ROW_FLOOR_RULES]
# Each rule, option and dtype; pairs are the matter of `OPTION_CASES` and of the loops below.
AGREEMENT_CASES = cover_values(
    (
        ((module, name, kwargs), option, dtype)
        for module, name, kwargs, option in CASES
        for dtype in DTYPES
    ),
    1,
)
OTHER_OPTIONS = [*BESIDE, {"state_device": "cpu"}, {"cautious_decay": True}]


def flat_of(params: Any) -> Any:
    return torch.cat([param.detach().double().ravel() for param in params])


def run_steps(opt: Any, params: Any, count: int = 4, first: int = 0) -> Any:
    for step in range(first, first + count):
        gradients = gradients_of(step, params[0].dtype)
        for param in params:
            # The last has no gradient at first, and the third has none in between.
            index = next(k for k, g in enumerate(gradients) if g.shape == param.shape)
            is_skipped = (index == 5 and step == 0) or (index == 2 and step == 2)
            param.grad = None if is_skipped else gradients[index]
        opt.step()
    return opt


def select_params(params: Any, name: str) -> Any:
    return params[2:] if name in MATRIX_RULES else params


def tensors_of(opt: Any, params: Any) -> list[torch.Tensor]:
    slots = [slot for param in params for slot in opt.state[param].values()]
    return [*(p.detach() for p in params), *(x for x in slots if isinstance(x, torch.Tensor))]


@pytest.mark.parametrize("option", EQUIVALENT_CLASSES)
def test_option_matches_equivalent_class(option: str) -> None:
    (name, kwargs), (cls_name, cls_kwargs) = EQUIVALENT_CLASSES[option]
    decay = {} if option in ("sphere", "trust_ratio") else {"weight_decay": 0.1}
    cls_kwargs = (
        {**cls_kwargs, "weight_decay": 0.0} if option == "trust_ratio" else {**cls_kwargs, **decay}
    )
    flats: list[Any] = []
    for cls, options in ((name, {**kwargs, **decay, option: True}), (cls_name, cls_kwargs)):
        params = params_of(torch.float32)
        flats.append(flat_of(train(getattr(optim, cls)(params, lr=0.01, **options), params, 0.01)))
    actual, expected = flats
    movement = (expected - flat_of(params_of(torch.float32))).norm()
    assert (actual - expected).norm() <= MOVEMENT * movement


@pytest.mark.parametrize(
    ("key", "cls", "option"),
    [
        ("CautiousAdamW", "AdamW", "cautious"),
        ("AdamWCautiousDecay", "AdamW", "cautious_decay"),
        ("AdamH", "Adam", "sphere"),
    ],
)
def test_option_matches_package_of_its_authors(key: str, cls: str, option: str) -> None:
    for name in (name for name in TABLE if TABLE[name][0].cls == key):
        case, decay = TABLE[name]
        options = {} if option == "sphere" else {"weight_decay": decay}
        params = params_of(torch.float32)
        opt = getattr(optim, cls)(params, lr=case.lr, **{option: True}, **options)
        actual, expected = (
            flat_of(train(opt, params, case.lr)),
            torch.from_numpy(np.load(GOLDENS)[name]),
        )
        movement = (expected - flat_of(params_of(torch.float32))).norm()
        assert (actual - expected).norm() <= 5e-6 * movement


class ByHand:
    """Optimizer whose steps are changed as an option would, in float64."""

    def __init__(self, opt: Any, params: Any, option: str) -> None:
        self.opt, self.params, self.option = opt, params, option
        self.rate = opt.param_groups[0]["lr"]
        self.radius = [param.detach().norm() for param in params]

    def step(self) -> None:
        previous_params = [param.detach().clone() for param in self.params]
        self.opt.step()
        for index, (param, old) in enumerate(zip(self.params, previous_params, strict=True)):
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
                    length = self.radius[index] if self.option == "sphere" else old.norm()
                    step *= self.rate * length / step.norm()
                param.copy_(old + step)
                if self.option == "sphere":
                    param *= self.radius[index] / param.norm()
                elif self.option == "radial_brake" and param.norm() > old.norm():
                    param *= (old.norm() + 0.5 * (param.norm() - old.norm())) / param.norm()


@pytest.mark.parametrize(
    ("rule", "option"), cover_values(product(RULES[:2] + RULES[4:12], SCALED_OPTIONS), 2)
)
@pytest.mark.one_in(7)
def test_matches_loop_around_torch(rule: tuple[str, dict[str, Any]], option: str) -> None:
    name, kwargs = rule
    params, ref_params = params_of(torch.float64), params_of(torch.float64)
    opt = getattr(optim, name)(params, lr=0.02, **kwargs, **{option: True})
    ref = ByHand(getattr(torch.optim, name)(ref_params, lr=0.02, **kwargs), ref_params, option)
    run_steps(opt, params, 6)
    run_steps(ref, ref_params, 6)
    torch.testing.assert_close(flat_of(params), flat_of(ref_params), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("rule", "option"), cover_values(product(SCALED_RULES, SCALED_OPTIONS), 2))
@pytest.mark.one_in(3)
def test_matches_loop_around_scaled_rules(rule: tuple[str, dict[str, Any]], option: str) -> None:
    params, ref_params = params_of(torch.float64)[2:], params_of(torch.float64)[2:]
    name, kwargs = rule[0], {"lr": 0.02, **rule[1]}
    if name in {"sphere": ("AdamH", "Prodigy"), "trust_ratio": ("Prodigy",)}.get(option, ()):
        with pytest.raises(RuleError, match=r"already|by itself"):
            getattr(optim, name)(params, **kwargs, **{option: True})
        return
    opt = getattr(optim, name)(params, **kwargs, **{option: True})
    ref = ByHand(getattr(optim, name)(ref_params, **kwargs), ref_params, option)
    run_steps(opt, params, 6)
    run_steps(ref, ref_params, 6)
    torch.testing.assert_close(flat_of(params), flat_of(ref_params), rtol=1e-9, atol=1e-12)


def apply_row_floor(old: Any, step: Any, rate: float, floor: float) -> Any:
    """Return parameters after a float64 step whose rows have minimum lengths."""
    lengths = [np.maximum(np.linalg.norm(tensor, axis=1, keepdims=True), 1e-8)
               for tensor in (old, step / rate)]  # fmt: skip
    return old + step * np.maximum(floor * lengths[0] / lengths[1], 1)


def brake(old: Any, new: Any, share_kept: float) -> Any:
    """Return parameters after a step that keeps only a share of the growth of their norm."""
    old_norm, new_norm = np.linalg.norm(old), np.linalg.norm(new)
    share = share_kept if new_norm > old_norm else 1.0
    return new * (old_norm + share * (new_norm - old_norm)) / new_norm if new_norm else new


@pytest.mark.parametrize("share", [True, 0.05, 3.0], ids=str)
@pytest.mark.parametrize(("option", "name"), [
    ("row_floor", "SGD"), ("row_floor", "Adam"), ("row_floor", "Adagrad"), ("row_floor", "Muon"),
    ("radial_brake", "SGD"), ("radial_brake", "Adam"), ("radial_brake", "AdamW"),
])  # fmt: skip
@pytest.mark.one_in(7)
def test_option_matches_published_formula(option: str, name: str, share: float) -> None:
    factor = {"row_floor": 0.3825, "radial_brake": 0.5}[option] if share is True else share
    if option == "radial_brake":
        share, factor = (share, factor) if share is True else (share / 3, share / 3)
    decay = {"weight_decay": 0.1} if name == "AdamW" else {}
    params, ref_params = ([p for p in params_of(torch.float64) if p.dim() == 2] for _ in range(2))
    kwargs = {"lr": 0.02, **({"weight_decay": 0.0} if name == "Muon" else decay)}
    opt = getattr(optim, name)(params, **kwargs, **{option: share})
    ref = getattr(optim, name)(ref_params, **kwargs)
    for step in range(5):
        previous_params = [param.detach().numpy().copy() for param in ref_params]
        for stepped, stepped_params in ((opt, params), (ref, ref_params)):
            run_steps(stepped, stepped_params, 1, step)
        for old, param in zip(previous_params, ref_params, strict=True):
            new = param.detach().numpy()
            if (new == old).all():
                continue
            if option == "row_floor":
                new[:] = apply_row_floor(old, new - old, 0.02, factor)
            else:
                new[:] = brake(old * (1 - 0.02 * decay.get("weight_decay", 0.0)), new, factor)
    torch.testing.assert_close(flat_of(params), flat_of(ref_params), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        *(slow_unless(k % 2 == 0, options) for k, options in enumerate(OTHER_OPTIONS)),
        {"sphere": True},
        {"cautious": True, "trust_ratio": True, "radial_brake": 0.0},
        {"clip_grad_norm": 0.5, "cautious": True, "radial_brake": True, "masters": True},
    ],
    ids=str,
)
@pytest.mark.one_in(3)
def test_row_floor_with_other_options(options: dict[str, Any]) -> None:
    states: list[Any] = []
    for engine in ("cpu", "reference"):
        params = [param for param in params_of(torch.bfloat16) if param.dim() == 2]
        with thalweg.engine(engine):
            opt = optim.AdamW(params, lr=0.01, weight_decay=0.1, row_floor=1.0, **options)
            states.append(tensors_of(run_steps(opt, params, 4), params))
    assert_same(*states)


def test_row_floor_and_radial_brake_on_zeros() -> None:
    for options in ({"row_floor": True}, {"radial_brake": True}):
        param = torch.zeros(4, 3, requires_grad=True)
        opt = optim.SGD([param], lr=0.5, **options)
        for grad in (torch.zeros(4, 3), torch.eye(4, 3)):
            param.grad = grad
            opt.step()
        expected = -0.5 * torch.eye(4, 3) * (0.5 if "radial_brake" in options else 1.0)
        torch.testing.assert_close(param.detach(), expected)
    param = torch.ones(2, 2, requires_grad=True)
    param.grad = torch.ones(2, 2)
    optim.SGD([param], lr=0.0, row_floor=True).step()
    assert_same([param.detach()], [torch.ones(2, 2)])


@pytest.mark.parametrize("option", WRAPPERS)
def test_maximize_equals_descent_on_negated_gradients(option: str) -> None:
    params, twins = params_of(torch.float32), params_of(torch.float32)
    opt = optim.AdamW(params, lr=0.01, maximize=True, **{option: True})
    descending = optim.AdamW(twins, lr=0.01, **{option: True})
    for step in range(4):
        gradients = gradients_of(step, torch.float32)
        for param, twin, grad in zip(params, twins, gradients, strict=True):
            param.grad, twin.grad = -grad, grad
        opt.step()
        descending.step()
    assert_same(*([tensor.detach() for tensor in pair] for pair in (params, twins)))


@pytest.mark.parametrize(("rule", "option", "dtype"), AGREEMENT_CASES)
@pytest.mark.one_in(7)
def test_engines_agree_on_wrappers(
    rule: tuple[Any, str, dict[str, Any]], option: str, dtype: torch.dtype
) -> None:
    module, name, kwargs = rule
    states: list[Any] = []
    for engine in ("cpu", "reference"):
        params = select_params(params_of(dtype), name)
        if option == "row_floor":
            params = [param for param in params if param.dim() == 2]
        with thalweg.engine(engine):
            opt = getattr(module, name)(params, lr=0.01, **kwargs, **{option: True})
            states.append(tensors_of(run_steps(opt, params), params))
    assert_same(*states)
    assert all(tensor.isfinite().all() for tensor in states[0])


def lacks_decay(cls: Any, option: str, options: dict[str, Any]) -> bool:
    """Return whether `cautious_decay` is requested where nothing decays beside the step."""
    return "cautious_decay" in (option, *options) and (cls is optim.NAdam or option == "sphere")


ADAM_CLASSES = (optim.AdamW, optim.NAdam, tensorflow.AdamW)
OPTION_PAIRS = list(product(ADAM_CLASSES, WRAPPERS, OTHER_OPTIONS))
OPTION_CASES = cover_pairs(
    (*case, dtype)
    for case in OPTION_PAIRS
    if not lacks_decay(*case)
    for dtype in (torch.float32, torch.bfloat16)
)


@pytest.mark.one_in(7)
@pytest.mark.parametrize(("cls", "option", "options", "dtype"), OPTION_CASES, ids=str)
def test_wrappers_with_other_options_agree_between_engines(
    cls: Any, option: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    states: list[Any] = []
    for engine in ("cpu", "reference"):
        params = params_of(dtype)
        with thalweg.engine(engine):
            opt = cls(params, lr=0.01, weight_decay=0.1, **{**options, option: True})
            states.append(tensors_of(run_steps(opt, params, 4), params))
    assert_same(*states)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@many("cls,option,options", [case for case in OPTION_PAIRS if lacks_decay(*case)])
def test_cautious_decay_without_decay_raises(
    cls: Any, option: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    with pytest.raises(ValueError, match="no decay"):
        cls(params_of(dtype), lr=0.01, **{**options, option: True})


@pytest.mark.parametrize("option", WRAPPERS)
def test_ema_averages_wrapped_steps(option: str) -> None:
    params, ref_params = params_of(torch.float32), params_of(torch.float32)
    opt = optim.AdamW(params, lr=0.01, ema_decay=0.75, **{option: True})
    ref = optim.AdamW(ref_params, lr=0.01, **{option: True})
    means = [param.detach().clone() for param in ref_params]
    for step in range(4):
        for stepped, stepped_params in ((opt, params), (ref, ref_params)):
            for param, grad in zip(stepped_params, gradients_of(step, torch.float32), strict=True):
                param.grad = grad
            stepped.step()
        for index, ref_param in enumerate(ref_params):
            weight = 1.0 if step == 0 else 0.25
            means[index] += weight * (ref_param.detach() - means[index])
    assert_same([param.detach() for param in params], [param.detach() for param in ref_params])
    torch.testing.assert_close([opt.state[param]["ema"] for param in params], means)
    previous_params = [param.detach().clone() for param in params]
    with opt.swapped():
        torch.testing.assert_close([param.detach() for param in params], means)
    assert_same([param.detach() for param in params], previous_params)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("option", WRAPPERS)
@pytest.mark.parametrize("cls", [optim.AdamW, tensorflow.AdamW], ids=str)
def test_wrapper_steps_in_the_backward_pass(cls: Any, option: str) -> None:
    trained_params: list[Any] = []
    for in_backward in (False, True):
        params = params_of(torch.float32)
        opt = cls(params, lr=0.01, in_backward=in_backward, **{option: True})
        for step in range(4):
            for index, param in enumerate(params):
                (param * (step - index - 0.5)).square().sum().backward()
            opt.step()
            opt.zero_grad()
        trained_params.append([param.detach() for param in params])
    assert_same(*trained_params)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("option", SCALED_OPTIONS)
@pytest.mark.parametrize("cls", [optim.SGD, optim.Adagrad, tensorflow.LazyAdam], ids=str)
def test_sparse_gradients_become_dense(cls: Any, option: str) -> None:
    trained_params: list[Any] = []
    for is_sparse in (False, True):
        param = params_of(torch.float32)[5]
        opt = cls([param], lr=0.1, **{option: True})
        for step in range(4):
            grad = torch.zeros(300, 5)
            grad[[1, 7, 200]] = gradients_of(step, torch.float32)[5][:3]
            param.grad = grad.to_sparse(1) if is_sparse else grad
            opt.step()
        trained_params.append([param.detach()])
    assert_same(*trained_params)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("option", WRAPPERS)
@pytest.mark.parametrize("cls", [optim.AdamW, optim.NAdam, tensorflow.AdamW], ids=str)
def test_training_continues_from_saved_state(cls: Any, option: str, dtype: torch.dtype) -> None:
    if cls is optim.NAdam and (option == "cautious_decay" or dtype == torch.bfloat16):
        return  # torch's loader rounds their scalars
    params = params_of(dtype)
    opt = run_steps(cls(params, lr=0.01, **{option: True}), params)
    copied_params = [param.detach().clone().requires_grad_() for param in params]
    loaded = cls(copied_params, lr=0.01, **{option: True})
    loaded.load_state_dict(copy.deepcopy(opt.state_dict()))
    unpickled = pickle.loads(pickle.dumps(opt))
    unpickled_params = [param for group in unpickled.param_groups for param in group["params"]]
    states = [
        tensors_of(run_steps(tensor, y, 3, 4), y)
        for tensor, y in ((opt, params), (loaded, copied_params), (unpickled, unpickled_params))
    ]
    assert_same(*states[:2])
    assert_same(*states[1:])


def test_missing_radius_becomes_present_norm() -> None:
    params = params_of(torch.float32)
    unprojected = run_steps(optim.Adam(params, lr=0.01), params)
    norms = [param.detach().norm() for param in params]
    opt = optim.Adam(params, lr=0.01, sphere=True)
    opt.load_state_dict(copy.deepcopy(unprojected.state_dict()))
    run_steps(opt, params, 3, 4)
    torch.testing.assert_close([opt.state[param]["radius"] for param in params], norms)
    torch.testing.assert_close([param.detach().norm() for param in params], norms)
    torch_optimizer = torch.optim.Adam(params, lr=0.01)
    torch_optimizer.load_state_dict(opt.state_dict())
    run_steps(torch_optimizer, params, 1)
    strict = tensorflow.Adam(params, lr=0.01, sphere=True)
    with pytest.raises(CheckpointMismatchError, match="radius' is missing"):
        strict.load_state_dict(tensorflow.Adam(params, lr=0.01).state_dict())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize(
    ("name", "options"), [*(("AdamW", {option: True}) for option in WRAPPERS), ("AdamH", {})]
)
def test_complex_params_are_pairs(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    param = torch.randn(4, 3, dtype=dtype, generator=generator).requires_grad_()
    pairs = torch.view_as_real(param.detach()).clone().requires_grad_()
    opt = getattr(optim, name)([param], lr=0.1, **options)
    pair_optimizer = getattr(optim, name)([pairs], lr=0.1, **options)
    for _ in range(3):
        param.grad = torch.randn(4, 3, dtype=dtype, generator=generator)
        pairs.grad = torch.view_as_real(param.grad).clone()
        opt.step()
        pair_optimizer.step()
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert_same([torch.view_as_real(param.detach())], [pairs.detach()])
    assert {*opt.state[param]} == {*pair_optimizer.state[pairs]}
    if "radius" in opt.state[param]:
        assert_same([opt.state[param]["radius"]], [pair_optimizer.state[pairs]["radius"]])


@pytest.mark.parametrize("radius", [torch.ones(3), torch.ones(1), 3.0, "long"], ids=str)
@pytest.mark.parametrize(("name", "options"), [("AdamW", {"sphere": True}), ("AdamH", {})])
def test_load_rejects_radius_tensor(name: str, options: dict[str, Any], radius: Any) -> None:
    params = params_of(torch.float32)
    opt = run_steps(getattr(optim, name)(params, lr=0.01, **options), params)
    previous = tensors_of(opt, params)
    state = copy.deepcopy(opt.state_dict())
    state["state"][2]["radius"] = radius
    with pytest.raises(CheckpointMismatchError, match="'2/radius' is"):
        opt.load_state_dict(state)
    assert_same(tensors_of(opt, params), previous)


def test_sphere_is_kept_with_several_rules() -> None:
    params = params_of(torch.float32)
    groups = [
        {"params": params[:2], "rule": "SGD", "momentum": 0.9},
        {"params": params[2:3], "rule": "Muon"},
        {"params": params[3:], "rule": "AdamW"},
    ]
    opt = optim.Mixed([{**group, "lr": 0.01} for group in groups], sphere=True)
    norms = [param.detach().norm() for param in params]
    run_steps(opt, params)
    torch.testing.assert_close([param.detach().norm() for param in params], norms)


@pytest.mark.parametrize("cls", [optim.AdamW, tensorflow.Adam, optim.Mixed], ids=str)
def test_zero_param_has_no_sphere(cls: Any, recwarn: Any) -> None:
    zero, nonzero, twin = torch.zeros(16, 24), params_of(torch.float32)[2], torch.zeros(16, 24)
    named_params = [("up.weight", nonzero), ("down.weight", zero.requires_grad_())]
    if cls is optim.Mixed:
        opt = cls([{"params": named_params, "rule": "AdamW", "lr": 0.01}], sphere=True)
    else:
        opt = cls(named_params, lr=0.01, sphere=True)
    unprojected = (optim.AdamW if cls is optim.Mixed else cls)([twin.requires_grad_()], lr=0.01)
    for step in range(6):
        nonzero.grad, zero.grad = gradients_of(step, torch.float32)[2:4]
        twin.grad = zero.grad
        for stepped in (opt, unprojected):
            stepped.step()
        if step == 2:
            opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    message = "'down.weight' is 0 and has no sphere, so sphere=True leaves its steps as they are."
    assert [(w.category, str(w.message)) for w in recwarn] == [(NumericsWarning, message)]
    assert_same([zero.detach()], [twin.detach()])
    assert opt.state[zero]["radius"] == 0
    assert abs(nonzero.norm() / opt.state[nonzero]["radius"] - 1) < 1e-6


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "kwargs"), [rule for rule in RULES if rule[0] not in ("SparseAdam", "ASGD")]
)
def test_decay_keeps_params_on_sphere(name: str, kwargs: dict[str, Any]) -> None:
    params = params_of(torch.float64)
    norms = [param.detach().norm() for param in params]
    decay = {} if name == "Rprop" else {"weight_decay": 0.5}
    run_steps(getattr(optim, name)(params, lr=0.1, sphere=True, **{**kwargs, **decay}), params)
    torch.testing.assert_close([param.detach().norm() for param in params], norms)


def test_zero_gradient_keeps_param_on_sphere() -> None:
    param = params_of(torch.float32)[2]
    previous = param.detach().clone()
    opt = optim.AdamW([param], lr=0.01, weight_decay=0.5, sphere=True)
    param.grad = torch.zeros_like(param)
    opt.step()
    assert_same([param.detach()], [previous])


@pytest.mark.parametrize("option", SCALED_OPTIONS)
def test_nan_gradient_gives_nan_param(option: str) -> None:
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
        ("SGD", {"cautious_decay": True}, "decoupled weight decay, .* 'SGD' has none: leave"),
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
def test_invalid_option_raises(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        getattr(optim, name)(params_of(torch.float32), lr=0.1, **options)


def test_invalid_group_is_not_added() -> None:
    params = params_of(torch.float32)
    opt = optim.Mixed([{"params": params[:2], "rule": "AdamW"}], sphere=True)
    with pytest.raises(RuleError, match="'AdamH' is on a sphere already"):
        opt.add_param_group({"params": params[2:], "rule": "AdamH"})
    assert len(opt.param_groups) == 1
    run_steps(opt, params[:2])


@pytest.mark.parametrize("option", SCALED_OPTIONS)
def test_option_equals_rule_wrapper(option: str) -> None:
    rule = thalweg.rules.ADAM
    params, ref_params = params_of(torch.float32), params_of(torch.float32)
    opt = optim.RuleOptimizer(params, rule, **{option: True})
    ref = optim.RuleOptimizer(ref_params, getattr(wrappers, option)(rule))
    for stepped, stepped_params in ((opt, params), (ref, ref_params)):
        run_steps(stepped, stepped_params)
    assert_same([param.detach() for param in params], [param.detach() for param in ref_params])
