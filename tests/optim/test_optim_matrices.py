"""Rules of matrices beside their formulas in float64 and what their authors' packages have made."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from matrix_inputs import MATRIX_CASES, MATRIX_TABLE, MatrixCase
from modern_inputs import BESIDE, train
from rulebook import assert_same
from thalweg import checkpoint, optim
from thalweg._engines import layout
from thalweg.errors import CheckpointMismatchError, InvalidArgumentError, InvalidTypeError

GOLDENS = Path(__file__).parents[1] / "goldens" / "matrices.npz"
OF_FORMULA, OF_BFLOAT16 = 1e-5, 5e-2  # of the movement; products of packages are in bfloat16
WIDE = ("MuonH", "SOAP")  # whose packages compute in float32
EXTRAS = {"MuonH": {"nesterov": True, "ns_coefficients": "original"}}  # as the records have them
CASES, TABLE = MATRIX_CASES, MATRIX_TABLE

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def flat(params: Any) -> Any:
    return torch.cat([each.detach().double().ravel() for each in params])


def made_of(case: MatrixCase, params: Any, decay: float = 0.1, **options: Any) -> Any:
    given = {**EXTRAS.get(case.cls, {}), **case.arguments(decay, for_own_class=True), **options}
    return getattr(optim, case.cls)(params, **given)


def recorded(name: str) -> Any:
    with np.load(GOLDENS) as found:
        return torch.from_numpy(found[name]).double() if name in found.files else None


@pytest.mark.parametrize("name", TABLE)
def test_as_the_formula_in_float64_and_the_package(name: str) -> None:
    case, decay = TABLE[name]
    params = case.params_of(torch.float32)
    start = flat(params)
    got = flat(train(made_of(case, params, decay), params, case.lr, case.gradients_of))
    wanted, package = recorded(f"{name}-float64"), recorded(name)
    movement = (wanted - start).norm()
    assert (got - wanted).norm() <= OF_FORMULA * movement
    if case.package:
        bound = OF_FORMULA if case.cls in WIDE else OF_BFLOAT16
        assert (got - package).norm() <= bound * movement


@pytest.mark.parametrize("name", [name for name in TABLE if "SOAP" not in name])
def test_products_of_bfloat16_are_as_near_as_those_of_packages(name: str) -> None:
    case, decay = TABLE[name]
    found: list[torch.Tensor] = []
    for dtype in ("bfloat16", "float32", None):
        params = case.params_of(torch.float32)
        start = flat(params)
        made = made_of(case, params, decay, ns_dtype=dtype)
        found.append(flat(train(made, params, case.lr, case.gradients_of)))
    narrow, wide, usual = found
    wanted = recorded(f"{name}-float64")
    movement = (wanted - start).norm()
    assert 1e-5 * movement < (narrow - wanted).norm() <= OF_BFLOAT16 * movement
    assert torch.equal(wide, usual)


@pytest.mark.parametrize("kind", ["Muon", "NorMuon", "MuonH"])
def test_products_of_another_type_are_refused(kind: str) -> None:
    params = [torch.ones(4, 4, requires_grad=True)]
    with pytest.raises(ValueError, match="ns_dtype is 'float16'; it may be None, 'float32' or"):
        getattr(optim, kind)(params, ns_dtype="float16")


@pytest.mark.parametrize("name", [name for name in TABLE if "SOAP" not in name])
def test_parameters_of_bfloat16_are_rounded_once_a_step(name: str) -> None:
    """And nothing else is. One that falls to the other side moves others by Newton-Schulz."""
    case, decay = TABLE[name]
    params = case.params_of(torch.bfloat16)
    start = flat(params)
    made = made_of(case, params, decay, state_dtype=torch.float32)
    got = flat(train(made, params, case.lr, case.gradients_of))
    wanted = recorded(f"{name}-float64-bfloat16")
    assert (got - wanted).norm() <= OF_BFLOAT16 * (wanted - start).norm()


def test_factors_of_kl_soap_are_others() -> None:
    names = [f"{kind}-max_precondition_dim=16-0.0-float64" for kind in ("SOAP", "KLSOAP")]
    soap, klsoap = map(recorded, names)
    assert (soap - klsoap).norm() > 1e-3 * soap.norm()


def steps(case: MatrixCase, dtype: torch.dtype, count: int = 4, **options: Any) -> Any:
    params = case.params_of(dtype)
    made = made_of(case, params, **options)
    for step in range(count):
        for param, grad in zip(params, case.gradients_of(step, dtype), strict=True):
            # The last has no gradient at first, and the second has none in between.
            own = (param is params[-1] and step == 0) or (param is params[1] and step == 2)
            param.grad = None if own else grad
        made.step()
    return params, made


def kept(made: Any, params: Any) -> list[torch.Tensor]:
    states = [made.state[param] for param in params]
    return [each for own in states for each in own.values() if isinstance(each, torch.Tensor)]


@pytest.mark.parametrize("options", BESIDE, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@each_case
def test_engines_agree_under_every_option(
    case: MatrixCase, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    both: list[Any] = []
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine):
            params, made = steps(case, dtype, **options)
        both.append([*(param.detach() for param in params), *kept(made, params)])
    assert_same(*both)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@each_case
def test_a_training_goes_on_from_its_state(case: MatrixCase, dtype: torch.dtype) -> None:
    params, made = steps(case, dtype)
    for copied in (copy.deepcopy(made.state_dict()), pickle.loads(pickle.dumps(made.state_dict()))):
        copies = [param.detach().clone().requires_grad_() for param in params]
        other = made_of(case, copies)
        other.load_state_dict(copied)
        assert_same(kept(other, copies), kept(made, params))
        mine = [param.detach().clone() for param in params]
        for each, grad in zip(copies, case.gradients_of(4, dtype), strict=True):
            each.grad = grad
        other.step()
        assert not torch.equal(flat(copies), flat(mine))
    for param, grad in zip(params, case.gradients_of(4, dtype), strict=True):
        param.grad = grad
    made.step()
    assert_same([each.detach() for each in params], [each.detach() for each in copies])


def test_a_state_of_another_shape_is_refused() -> None:
    params, made = steps(CASES[6], torch.float32)
    assert type(made).__name__ == "NorMuon"
    saved = copy.deepcopy(made.state_dict())
    saved["state"][0]["second_momentum_buffer"] = torch.zeros(24, 2)
    before = kept(made, params)
    with pytest.raises(CheckpointMismatchError, match=r"float32 \(24, 2\), here float32 \(24, 1\)"):
        made.load_state_dict(saved)
    assert_same(kept(made, params), before)


@each_case
def test_one_rule_among_others_is_that_alone(case: MatrixCase) -> None:
    """Beside AdamW, in one step."""
    params, alone = case.params_of(torch.float32), case.params_of(torch.float32)
    bias, only = torch.ones(7, requires_grad=True), torch.ones(7, requires_grad=True)
    given = {**EXTRAS.get(case.cls, {}), **case.arguments(0.0, for_own_class=True)}
    groups = [{"params": params, "rule": case.cls, **given}, {"params": [bias], "rule": "AdamW"}]
    mixed = optim.Mixed(groups)
    apart = [getattr(optim, case.cls)(alone, **given), optim.AdamW([only])]
    for step in range(4):
        for both in zip((*params, bias), (*alone, only), strict=True):
            grad = torch.full(both[0].shape, 0.5) if both[0] is bias else None
            for each in both:
                each.grad = grad
        for own in (params, alone):
            for each, grad in zip(own, case.gradients_of(step, torch.float32), strict=True):
                each.grad = grad
        for made in (mixed, *apart):
            made.step()
    assert_same([x.detach() for x in (*params, bias)], [x.detach() for x in (*alone, only)])


MUONS = ("Muon", "NorMuon", "MuonH")
BAD: list[tuple[dict[str, Any], str]] = [
    ({"ns_coefficients": "septic"}, "ns_coefficients is 'septic'; known are 'original'"),
    ({"ns_coefficients": (1.0, 2.0)}, "ns_coefficients must be three numbers each"),
    ({"ns_steps": 0}, "ns_steps must be a whole number from 1 to 99, not 0"),
    ({"ns_steps": 2.5}, "ns_steps must be a whole number"),
    ({"lr": -1.0}, "Invalid lr value: -1"),
    ({"momentum": 1.0}, "Invalid momentum value: 1"),
    ({"eps": -1e-7}, "Invalid eps value"),
]


@pytest.mark.parametrize(("given", "said"), BAD, ids=[said for _, said in BAD])
@pytest.mark.parametrize("kind", MUONS)
def test_options_that_choose_no_rule_are_refused(kind: str, given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        getattr(optim, kind)([torch.zeros(2, 2, requires_grad=True)], **given)


def test_options_of_some_are_refused_by_name() -> None:
    params = [torch.zeros(2, 2, requires_grad=True)]
    with pytest.raises(ValueError, match="adjust_lr_fn is 'no'; known are 'original'"):
        optim.Muon(params, adjust_lr_fn="no")
    with pytest.raises(ValueError, match="update_scale is 'no'; known are 'preserve_norm'"):
        optim.NorMuon(params, update_scale="no")
    for name in ("precondition_frequency", "max_precondition_dim"):
        with pytest.raises(ValueError, match=f"{name} must be a positive integer, not 0"):
            optim.SOAP(params, **{name: 0})
    made = optim.Muon(params)
    saved = made.state_dict()
    saved["param_groups"][0]["ns_coefficients"] = "no"
    with pytest.raises(CheckpointMismatchError, match="ns_coefficients is 'no'"):
        made.load_state_dict(saved)
    made.param_groups[0]["ns_steps"] = None
    params[0].grad = torch.ones(2, 2)
    with pytest.raises(ValueError, match="ns_steps must be a whole number"):
        made.step()
    assert not params[0].any()


@pytest.mark.parametrize("kind", [*MUONS, "SOAP", "KLSOAP"])
def test_what_is_no_matrix_is_refused_when_it_is_added(kind: str) -> None:
    cls, matrix = getattr(optim, kind), torch.zeros(2, 2, requires_grad=True)
    wrong = {
        (7,): (torch.float32, InvalidArgumentError, f"'bias' has shape .7,., and {kind} is for"),
        (): (torch.float32, InvalidArgumentError, "select another rule for it, such as AdamW"),
        (3, 3): (torch.float16, InvalidTypeError, f"'bias' is float16, and {kind} is for float32"),
        (4, 3): (torch.complex64, InvalidTypeError, "'bias' is complex64"),
    }
    for shape, (dtype, error, said) in wrong.items():
        named = [("bias", torch.zeros(shape, dtype=dtype, requires_grad=True))]
        with pytest.raises(error, match=said):
            cls(named)
        made = cls([("weight", matrix)])
        with pytest.raises(error, match=said):
            made.add_param_group({"params": named})
        assert len(made.param_groups) == 1
        with pytest.raises(error, match=said):
            optim.Mixed([{"params": named, "rule": kind}])


def test_rows_are_refused() -> None:
    for kind in (*MUONS, "SOAP", "KLSOAP"):
        (param,) = params = [torch.zeros(2, 2, requires_grad=True)]
        param.grad = torch.ones(2, 2).to_sparse()
        with pytest.raises(RuntimeError, match=f"{kind} does not support sparse gradients"):
            getattr(optim, kind)(params).step()


def test_coefficients_may_be_told_in_several_ways() -> None:
    triple = (3.4445, -4.7750, 2.0315)
    found: list[Any] = []
    for given in ("original", triple, [*triple], (triple,), [[*triple]] * 5):
        params = CASES[0].params_of(torch.float32)
        made = optim.Muon(params, ns_coefficients=given)
        found.append(flat(train(made, params, 0.02, CASES[0].gradients_of)))
    assert_same(found[1:], [found[0]] * 4)


def test_a_step_over_a_batch_is_that_over_each() -> None:
    """For products of one shape: others may be summed in another order."""
    together = [torch.randn(16, 24).requires_grad_() for _ in range(3)]
    alone = [each.detach().clone().requires_grad_() for each in together]
    both = [optim.Muon(together), *(optim.Muon([each]) for each in alone)]
    for _ in range(3):
        for one, other in zip(together, alone, strict=True):
            one.grad = torch.randn(16, 24)
            other.grad = one.grad.clone()
        for made in both:
            made.step()
    torch.testing.assert_close(torch.stack(together), torch.stack(alone), rtol=1e-5, atol=1e-6)


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.up = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 9, bias=False)
        self.head.weight = self.wte.weight


def test_vectors_and_embeddings_are_for_other_rules_unless_they_are_named() -> None:
    model = Tied()
    with pytest.raises(
        InvalidArgumentError, match=r"'up\.bias' has shape .4,., and Muon, the rule"
    ):
        optim.groups(model, rules={"wte.weight": "AdamW", ...: "Muon"})
    for selector in (2, "wte", torch.nn.Linear, "head.*"):
        with pytest.raises(
            InvalidArgumentError, match=r"'wte\.weight' is an embedding, or tied to"
        ):
            optim.groups(
                model, rules={selector: optim.NorMuon, "up": "AdamW", 1: "AdamW", ...: "SGD"}
            )
    rest = {"up.weight": "Muon", "bias": "AdamW"}
    hidden = optim.hidden_matrices(model, output=(), allow="wte.weight")
    for selector in ("wte.weight", "head.weight", hidden):
        made = optim.groups(model, rules={selector: "Muon", **rest} if selector != hidden else
                            {hidden: "Muon", ...: "AdamW"})  # fmt: skip
        optimizer = optim.Mixed(made)
        assert sum(len(g["params"]) for g in optimizer.param_groups if g["rule"] == "Muon") == 2


@pytest.mark.parametrize("kind", ["SOAP", "KLSOAP"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_a_first_gradient_without_eigenvectors_is_that_parameters_own(
    kind: str, value: float
) -> None:
    params = [torch.ones(4, 4).requires_grad_() for _ in range(3)]
    alone = [torch.ones(4, 4).requires_grad_()]
    made, other = getattr(optim, kind)(params), getattr(optim, kind)(alone)
    for step in range(3):
        grads = [torch.randn(4, 4) for _ in params]
        if not step:
            grads[1][2, 3] = value
        for param, grad in zip((*params, *alone), (*grads, grads[0]), strict=True):
            param.grad = grad
        made.step()
        other.step()
    torch.testing.assert_close(params[0], alone[0], rtol=1e-5, atol=1e-6)
    assert params[2].isfinite().all()


def test_options_are_refused_whatever_was_made_before() -> None:
    params = [torch.zeros(2, 2, requires_grad=True)]
    optim.Muon(params, ns_steps=5)
    optim.SOAP(params, precondition_frequency=10)
    with pytest.raises(ValueError, match="ns_steps must be a whole number"):
        optim.Muon(params, ns_steps=5.0)  # pyright: ignore
    with pytest.raises(ValueError, match="precondition_frequency must be a positive integer"):
        optim.SOAP(params, precondition_frequency=10.0)  # pyright: ignore
    for kind, name in ((optim.NorMuon, "beta2"), (optim.SOAP, "shampoo_beta")):
        with pytest.raises(ValueError, match=f"Invalid {name} value: 7"):
            kind(params, **{name: 7.0})
    for wrong in (("a", "b", "c"), (1.0, 2.0, float("nan"))):
        with pytest.raises(ValueError, match="must be three numbers each"):
            optim.Muon(params, ns_coefficients=wrong)


@pytest.mark.parametrize(("kind", "name"), [("NorMuon", "beta2"), ("SOAP", "shampoo_beta")])
def test_bits_are_those_of_a_group_whatever_others_have(kind: str, name: str) -> None:
    found: list[Any] = []
    for other in (0.95, 0.5):
        params = [torch.ones(16, 16).requires_grad_() for _ in range(2)]
        groups = [{"params": [params[0]]}, {"params": [params[1]], name: other}]
        made = getattr(optim, kind)(groups, lr=0.003)
        dice = torch.Generator().manual_seed(0)
        for _ in range(4):
            for param in params:
                param.grad = torch.randn(16, 16, generator=dice)
            made.step()
        found.append(params[0].detach())
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["AdamH", "MuonH"])
def test_numbers_are_where_they_were_whatever_the_default_device_is(kind: str) -> None:
    (param,) = params = [torch.ones(3, 3, requires_grad=True)]
    made = getattr(optim, kind)(params)
    with torch.device("meta"):
        param.grad = torch.ones(3, 3, device="cpu")
        made.step()
    assert made.state[param]["radius"].device.type == "cpu"
    assert made.last_step.count == 1


def test_rules_that_no_group_has_any_more_are_let_go() -> None:
    params = [torch.ones(4, 4).requires_grad_()]
    made = optim.Muon(params)
    for count in range(3, 9):
        made.param_groups[0]["ns_steps"] = count
        params[0].grad = torch.randn(4, 4)
        made.step()
    assert len(made._cache.parts) == 1


class Weights(torch.nn.Module):
    def __init__(self, params: Any) -> None:
        super().__init__()
        own = [torch.nn.Parameter(each.detach().clone()) for each in params]
        self.own = torch.nn.ParameterList(own)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_mixed", [False, True])
@each_case
def test_a_training_goes_on_from_a_file(
    case: MatrixCase, is_mixed: bool, dtype: torch.dtype, tmp_path: Path
) -> None:
    given = {**EXTRAS.get(case.cls, {}), **case.arguments(0.0, for_own_class=True)}

    def make(model: Any, **others: Any) -> Any:
        named = [*model.named_parameters()]
        if not is_mixed:
            return getattr(optim, case.cls)(named, **{**given, **others})
        return optim.Mixed([{"params": named, "rule": case.cls, **given, **others}])

    def step(model: Any, made: Any, number: int) -> None:
        for param, grad in zip(model.own, case.gradients_of(number, dtype), strict=True):
            param.grad = grad
        made.step()

    model, other = (Weights(case.params_of(dtype)) for _ in range(2))
    # What numbers of options are is read from the file, on which shapes may depend.
    far = {"max_precondition_dim": 7} if "max_precondition_dim" in given else {}
    made, again = make(model), make(other, **far)
    for number in range(3):
        step(model, made, number)
    checkpoint.save(tmp_path / "c", module=model, optimizer=made)
    checkpoint.restore(tmp_path / "c", module=other, optimizer=again)
    for number in range(3, 5):
        step(model, made, number)
        step(other, again, number)
    assert_same([*other.parameters()], [*model.parameters()])
    assert_same(kept(again, [*other.parameters()]), kept(made, [*model.parameters()]))


def test_matrices_are_where_their_state_is(monkeypatch: pytest.MonkeyPatch) -> None:
    (param,) = params = [torch.ones(4, 4, requires_grad=True)]
    optim.Muon(params, state_device="cpu")  # which it is, here
    monkeypatch.setattr(layout, "is_far", lambda tensor, device: tensor is param)
    rule = optim.Muon._choose_rule(optim.Muon([torch.ones(2, 2)]).param_groups[0])
    for make in (optim.Muon, lambda own, **o: optim.RuleOptimizer(own, rule, **o),
                 lambda own, **o: optim.Mixed([{"params": own, "rule": "SOAP"}], **o)):  # fmt: skip
        with pytest.raises(NotImplementedError, match="leave out state_device='cpu'"):
            make(params, state_device="cpu")


@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize("kind", ["Muon", "NorMuon", "SOAP", "KLSOAP"])
def test_heads_are_matrices_of_their_own(kind: str, engine: Any) -> None:
    """A fused projection as the three that it is made of, beside one that is not cut."""
    dice = torch.Generator().manual_seed(0)
    fused = torch.randn(3, 8, 6, generator=dice)
    (param,) = params = [fused.reshape(24, 6).clone().requires_grad_()]
    alone = [each.clone().requires_grad_() for each in fused]
    other, beside = (torch.ones(5, 4).requires_grad_() for _ in range(2))
    cls, options = getattr(optim, kind), {"lr": 0.02, "weight_decay": 0.1}
    with thalweg.engine(engine):
        made = cls([{"params": params, "heads": 3}, {"params": [other]}], **options)
        apart = cls([*alone, beside], **options)
        for _ in range(5):
            other.grad = beside.grad = torch.randn(5, 4, generator=dice)
            grads = torch.randn(3, 8, 6, generator=dice)
            param.grad = grads.reshape(24, 6)
            for each, grad in zip(alone, grads, strict=True):
                each.grad = grad
            made.step()
            apart.step()
    wanted = torch.stack([each.detach() for each in alone]).reshape(24, 6)
    torch.testing.assert_close(param.detach(), wanted, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(other, beside, rtol=1e-4, atol=1e-6)
    for name, value in made.state[param].items():
        if value.dim():
            its = torch.cat([apart.state[each][name] for each in alone])
            torch.testing.assert_close(value, its, rtol=1e-3, atol=1e-4)
    again = cls([{"params": params, "heads": 3}, {"params": [other]}], **options)
    again.load_state_dict(copy.deepcopy(made.state_dict()))
    assert [group["heads"] for group in again.param_groups] == [3, None]


@pytest.mark.parametrize("kind", [*MUONS, "SOAP", "KLSOAP"])
def test_heads_that_do_not_divide_the_rows_are_refused(kind: str) -> None:
    cls, params = getattr(optim, kind), [("qkv", torch.ones(10, 4, requires_grad=True))]
    said = rf"'qkv' has shape \(10, 4\), whose 10 rows heads=3 of {kind} does not cut into equal"
    with pytest.raises(InvalidArgumentError, match=said):
        cls(params, heads=3)
    with pytest.raises(InvalidArgumentError, match=said):
        optim.Mixed([{"params": params, "rule": kind, "heads": 3}])
    for wrong in (0, 2.0, True, "three"):
        with pytest.raises(ValueError, match="heads must be a positive integer"):
            cls(params, heads=wrong)
    made = cls(params)
    made.param_groups[0]["heads"] = 4
    params[0][1].grad = torch.ones(10, 4)
    with pytest.raises(InvalidArgumentError, match="whose 10 rows heads=4 of rule"):
        made.step()
    assert params[0][1].eq(1).all()


def test_a_state_without_heads_is_one_of_torchs() -> None:
    theirs, ours = (torch.ones(6, 4, requires_grad=True) for _ in range(2))
    torchs, made = torch.optim.Muon([theirs]), optim.Muon([ours], heads=3)
    theirs.grad = ours.grad = torch.ones(6, 4)
    torchs.step()
    made.load_state_dict(torchs.state_dict())
    assert made.param_groups[0]["heads"] == 3
    made.step()
    assert made.state[ours]["momentum_buffer"].shape == (6, 4)
