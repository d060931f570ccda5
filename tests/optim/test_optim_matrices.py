"""Matrix rules, compared with formulas in float64 and with their authors' packages."""

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
from matrix_inputs import MATRIX_CASES, MATRIX_TABLE, MatrixCase
from modern_inputs import BESIDE, train
from pairwise import cover_values
from rulebook import assert_same, slow_unless
from thalweg import checkpoint, optim
from thalweg._engines import layout
from thalweg.errors import CheckpointMismatchError, InvalidArgumentError, InvalidTypeError
from thalweg.rules.modern import newton_schulz

GOLDENS = Path(__file__).parents[1] / "goldens" / "matrices.npz"
FORMULA_BOUND, BFLOAT16_BOUND = 1e-5, 5e-2  # relative to the movement
FLOAT32_CLASSES = ("MuonH", "SOAP")  # packages compute in float32
EXTRAS = {"MuonH": {"nesterov": True, "ns_coefficients": "original"}}  # as in the golden records
CASES, TABLE = MATRIX_CASES, MATRIX_TABLE
WITHOUT_SOAP = [name for name in TABLE if "SOAP" not in name]

by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def flat_of(params: Any) -> Any:
    return torch.cat([param.detach().double().ravel() for param in params])


def create(case: MatrixCase, params: Any, decay: float = 0.1, **options: Any) -> Any:
    kwargs = {**EXTRAS.get(case.cls, {}), **case.arguments(decay, for_own_class=True), **options}
    return getattr(optim, case.cls)(params, **kwargs)


def load_golden(name: str) -> Any:
    with np.load(GOLDENS) as goldens:
        return torch.from_numpy(goldens[name]).double() if name in goldens.files else None


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", TABLE)
def test_matches_formula_in_float64_and_package(name: str) -> None:
    case, decay = TABLE[name]
    params = case.params_of(torch.float32)
    start = flat_of(params)
    actual = flat_of(train(create(case, params, decay), params, case.lr, case.gradients_of))
    expected, package = load_golden(f"{name}-float64"), load_golden(name)
    movement = (expected - start).norm()
    assert (actual - expected).norm() <= FORMULA_BOUND * movement
    if case.package:
        bound = FORMULA_BOUND if case.cls in FLOAT32_CLASSES else BFLOAT16_BOUND
        assert (actual - package).norm() <= bound * movement


@pytest.mark.parametrize(
    "name", [slow_unless(k % 2 == 0, name) for k, name in enumerate(WITHOUT_SOAP)]
)
@pytest.mark.one_in(7)
def test_bfloat16_products_are_as_close_as_packages(name: str) -> None:
    case, decay = TABLE[name]
    flats: list[torch.Tensor] = []
    for dtype in ("bfloat16", "float32", None):
        params = case.params_of(torch.float32)
        start = flat_of(params)
        opt = create(case, params, decay, ns_dtype=dtype)
        flats.append(flat_of(train(opt, params, case.lr, case.gradients_of)))
    narrow, wide, default = flats
    expected = load_golden(f"{name}-float64")
    movement = (expected - start).norm()
    assert 1e-5 * movement < (narrow - expected).norm() <= BFLOAT16_BOUND * movement
    assert_same([wide], [default])


@pytest.mark.parametrize("cls_name", ["Muon", "NorMuon", "AdaMuon", "MuonH"])
def test_other_product_dtype_raises(cls_name: str) -> None:
    params = [torch.ones(4, 4, requires_grad=True)]
    with pytest.raises(ValueError, match="ns_dtype is 'float16'; it may be None, 'float32' or"):
        getattr(optim, cls_name)(params, ns_dtype="float16")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", WITHOUT_SOAP)
def test_bfloat16_params_are_rounded_once_per_step(name: str) -> None:
    """An element rounded to the other side changes others through Newton-Schulz, so use a bound."""
    case, decay = TABLE[name]
    params = case.params_of(torch.bfloat16)
    start = flat_of(params)
    opt = create(case, params, decay, state_dtype=torch.float32)
    actual = flat_of(train(opt, params, case.lr, case.gradients_of))
    expected = load_golden(f"{name}-float64-bfloat16")
    assert (actual - expected).norm() <= BFLOAT16_BOUND * (expected - start).norm()


def test_klsoap_differs_from_soap() -> None:
    names = [f"{name}-max_precondition_dim=16-0.0-float64" for name in ("SOAP", "KLSOAP")]
    soap, klsoap = map(load_golden, names)
    assert (soap - klsoap).norm() > 1e-3 * soap.norm()


def train_steps(case: MatrixCase, dtype: torch.dtype, count: int = 4, **options: Any) -> Any:
    params = case.params_of(dtype)
    opt = create(case, params, **options)
    for step in range(count):
        for param, grad in zip(params, case.gradients_of(step, dtype), strict=True):
            # The last has no gradient at first, and the second has none in between.
            is_missing = (param is params[-1] and step == 0) or (param is params[1] and step == 2)
            param.grad = None if is_missing else grad
        opt.step()
    return params, opt


def slots_of(opt: Any, params: Any) -> list[torch.Tensor]:
    states = [opt.state[param] for param in params]
    return [slot for state in states for slot in state.values() if isinstance(slot, torch.Tensor)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("case", "options", "dtype"),
    cover_values(product(CASES, BESIDE, (torch.float32, torch.bfloat16)), 1),
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_engines_agree_with_other_options(
    case: MatrixCase, options: dict[str, Any], dtype: torch.dtype
) -> None:
    states: list[Any] = []
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine):
            params, opt = train_steps(case, dtype, **options)
        states.append([*(param.detach() for param in params), *slots_of(opt, params)])
    assert_same(*states)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@by_case
def test_training_continues_from_state(case: MatrixCase, dtype: torch.dtype) -> None:
    params, opt = train_steps(case, dtype)
    for state in (copy.deepcopy(opt.state_dict()), pickle.loads(pickle.dumps(opt.state_dict()))):
        copies = [param.detach().clone().requires_grad_() for param in params]
        loaded = create(case, copies)
        loaded.load_state_dict(state)
        assert_same(slots_of(loaded, copies), slots_of(opt, params))
        previous = [param.detach().clone() for param in params]
        for copied_param, grad in zip(copies, case.gradients_of(4, dtype), strict=True):
            copied_param.grad = grad
        loaded.step()
        assert not torch.equal(flat_of(copies), flat_of(previous))
    for param, grad in zip(params, case.gradients_of(4, dtype), strict=True):
        param.grad = grad
    opt.step()
    assert_same([param.detach() for param in params], [param.detach() for param in copies])


def test_load_rejects_state_of_other_shape() -> None:
    params, opt = train_steps(CASES[6], torch.float32)
    assert type(opt).__name__ == "NorMuon"
    state = copy.deepcopy(opt.state_dict())
    state["state"][0]["second_momentum_buffer"] = torch.zeros(24, 2)
    previous = slots_of(opt, params)
    with pytest.raises(CheckpointMismatchError, match=r"float32 \(24, 2\), here float32 \(24, 1\)"):
        opt.load_state_dict(state)
    assert_same(slots_of(opt, params), previous)


@pytest.mark.one_in(3)
@by_case
def test_rule_in_mixed_equals_its_class(case: MatrixCase) -> None:
    params, refs = case.params_of(torch.float32), case.params_of(torch.float32)
    bias, ref_bias = torch.ones(7, requires_grad=True), torch.ones(7, requires_grad=True)
    kwargs = {**EXTRAS.get(case.cls, {}), **case.arguments(0.0, for_own_class=True)}
    groups = [{"params": params, "rule": case.cls, **kwargs}, {"params": [bias], "rule": "AdamW"}]
    mixed = optim.Mixed(groups)
    references = [getattr(optim, case.cls)(refs, **kwargs), optim.AdamW([ref_bias])]
    for step in range(4):
        for pair in zip((*params, bias), (*refs, ref_bias), strict=True):
            grad = torch.full(pair[0].shape, 0.5) if pair[0] is bias else None
            for x in pair:
                x.grad = grad
        for tensors in (params, refs):
            for x, grad in zip(tensors, case.gradients_of(step, torch.float32), strict=True):
                x.grad = grad
        for opt in (mixed, *references):
            opt.step()
    assert_same([x.detach() for x in (*params, bias)], [x.detach() for x in (*refs, ref_bias)])


MUON_CLASSES = ("Muon", "NorMuon", "AdaMuon", "MuonH")
INVALID_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"ns_coefficients": "septic"}, "ns_coefficients is 'septic'; known are 'original'"),
    ({"ns_coefficients": (1.0, 2.0)}, "ns_coefficients must be three numbers each"),
    ({"ns_steps": 0}, "ns_steps must be a whole number from 1 to 99, not 0"),
    ({"ns_steps": 2.5}, "ns_steps must be a whole number"),
    ({"lr": -1.0}, "Invalid lr value: -1"),
    ({"momentum": 1.0}, "Invalid momentum value: 1"),
    ({"eps": -1e-7}, "Invalid eps value"),
]


@pytest.mark.parametrize(
    ("options", "message"), INVALID_OPTIONS, ids=[message for _, message in INVALID_OPTIONS]
)
@pytest.mark.parametrize("cls_name", MUON_CLASSES)
def test_invalid_options_raise(cls_name: str, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(optim, cls_name)([torch.zeros(2, 2, requires_grad=True)], **options)


def test_invalid_options_of_single_classes_raise() -> None:
    params = [torch.zeros(2, 2, requires_grad=True)]
    with pytest.raises(ValueError, match="adjust_lr_fn is 'no'; known are 'original'"):
        optim.Muon(params, adjust_lr_fn="no")
    with pytest.raises(ValueError, match="update_scale is 'no'; known are 'preserve_norm'"):
        optim.NorMuon(params, update_scale="no")
    for name in ("precondition_frequency", "max_precondition_dim"):
        with pytest.raises(ValueError, match=f"{name} must be a positive integer, not 0"):
            optim.SOAP(params, **{name: 0})
    opt = optim.Muon(params)
    state = opt.state_dict()
    state["param_groups"][0]["ns_coefficients"] = "no"
    with pytest.raises(CheckpointMismatchError, match="ns_coefficients is 'no'"):
        opt.load_state_dict(state)
    opt.param_groups[0]["ns_steps"] = None
    params[0].grad = torch.ones(2, 2)
    with pytest.raises(ValueError, match="ns_steps must be a whole number"):
        opt.step()
    assert not params[0].any()


@pytest.mark.parametrize("cls_name", [*MUON_CLASSES, "SOAP", "KLSOAP"])
def test_non_matrix_param_raises(cls_name: str) -> None:
    cls, matrix = getattr(optim, cls_name), torch.zeros(2, 2, requires_grad=True)
    wrong = {
        (7,): (
            torch.float32,
            InvalidArgumentError,
            f"'bias' has shape .7,., and {cls_name} is for",
        ),
        (): (torch.float32, InvalidArgumentError, "select another rule for it, such as AdamW"),
        (3, 3): (
            torch.float16,
            InvalidTypeError,
            f"'bias' is float16, and {cls_name} is for float32",
        ),
        (4, 3): (torch.complex64, InvalidTypeError, "'bias' is complex64"),
    }
    for shape, (dtype, error, message) in wrong.items():
        params = [("bias", torch.zeros(shape, dtype=dtype, requires_grad=True))]
        with pytest.raises(error, match=message):
            cls(params)
        opt = cls([("weight", matrix)])
        with pytest.raises(error, match=message):
            opt.add_param_group({"params": params})
        assert len(opt.param_groups) == 1
        with pytest.raises(error, match=message):
            optim.Mixed([{"params": params, "rule": cls_name}])


def test_sparse_gradient_raises() -> None:
    for cls_name in (*MUON_CLASSES, "SOAP", "KLSOAP"):
        (param,) = params = [torch.zeros(2, 2, requires_grad=True)]
        param.grad = torch.ones(2, 2).to_sparse()
        with pytest.raises(RuntimeError, match=f"{cls_name} does not support sparse gradients"):
            getattr(optim, cls_name)(params).step()


def test_coefficients_have_several_forms() -> None:
    triple = (3.4445, -4.7750, 2.0315)
    flats: list[Any] = []
    for coefficients in ("original", triple, [*triple], (triple,), [[*triple]] * 5):
        params = CASES[0].params_of(torch.float32)
        opt = optim.Muon(params, ns_coefficients=coefficients)
        flats.append(flat_of(train(opt, params, 0.02, CASES[0].gradients_of)))
    assert_same(flats[1:], [flats[0]] * 4)


def test_batched_step_equals_single_steps() -> None:
    batch = [torch.randn(16, 24).requires_grad_() for _ in range(3)]
    singles = [param.detach().clone().requires_grad_() for param in batch]
    optimizers = [optim.Muon(batch), *(optim.Muon([param]) for param in singles)]
    for _ in range(3):
        for param, single in zip(batch, singles, strict=True):
            param.grad = torch.randn(16, 24)
            single.grad = param.grad.clone()
        for opt in optimizers:
            opt.step()
    torch.testing.assert_close(torch.stack(batch), torch.stack(singles), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(7, 6, 4), (7, 4, 6), (5, 4, 4), (0, 4, 6)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_iteration_in_pieces_equals_single_matrices(
    dtype: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrices = torch.randn(shape)
    arguments = newton_schulz.triples("original", 5), 1e-7, dtype, 0.3
    singles = [newton_schulz.orthogonal(matrix[None], *arguments) for matrix in matrices]
    for size in (1, 1 << 9, 1 << 30):
        for name in ("_CACHE", "_CACHE_OF_16_BITS"):
            monkeypatch.setattr(newton_schulz, name, size)
        result = newton_schulz.orthogonal(matrices, *arguments)
        assert torch.equal(result, torch.cat([matrices[:0], *singles]))


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.up = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 9, bias=False)
        self.head.weight = self.wte.weight


def test_groups_rejects_vectors_and_embeddings() -> None:
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
    rules = {"up.weight": "Muon", "bias": "AdamW"}
    matrices = optim.hidden_matrices(model, output=(), allow="wte.weight")
    for selector in ("wte.weight", "head.weight", matrices):
        groups = optim.groups(model, rules={selector: "Muon", **rules} if selector != matrices else
                            {matrices: "Muon", ...: "AdamW"})  # fmt: skip
        opt = optim.Mixed(groups)
        assert sum(len(g["params"]) for g in opt.param_groups if g["rule"] == "Muon") == 2


@pytest.mark.parametrize("cls_name", ["SOAP", "KLSOAP"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_bad_first_gradient_affects_only_its_param(cls_name: str, value: float) -> None:
    params = [torch.ones(4, 4).requires_grad_() for _ in range(3)]
    ref_params = [torch.ones(4, 4).requires_grad_()]
    opt, reference = getattr(optim, cls_name)(params), getattr(optim, cls_name)(ref_params)
    for step in range(3):
        grads = [torch.randn(4, 4) for _ in params]
        if not step:
            grads[1][2, 3] = value
        for param, grad in zip((*params, *ref_params), (*grads, grads[0]), strict=True):
            param.grad = grad
        opt.step()
        reference.step()
    torch.testing.assert_close(params[0], ref_params[0], rtol=1e-5, atol=1e-6)
    assert params[2].isfinite().all()


def test_options_are_validated_despite_cached_rules() -> None:
    params = [torch.zeros(2, 2, requires_grad=True)]
    optim.Muon(params, ns_steps=5)
    optim.SOAP(params, precondition_frequency=10)
    with pytest.raises(ValueError, match="ns_steps must be a whole number"):
        optim.Muon(params, ns_steps=5.0)  # pyright: ignore
    with pytest.raises(ValueError, match="precondition_frequency must be a positive integer"):
        optim.SOAP(params, precondition_frequency=10.0)  # pyright: ignore
    for cls, name in ((optim.NorMuon, "beta2"), (optim.SOAP, "shampoo_beta")):
        with pytest.raises(ValueError, match=f"Invalid {name} value: 7"):
            cls(params, **{name: 7.0})
    for wrong in (("a", "b", "c"), (1.0, 2.0, float("nan"))):
        with pytest.raises(ValueError, match="must be three numbers each"):
            optim.Muon(params, ns_coefficients=wrong)


@pytest.mark.parametrize(("cls_name", "name"), [("NorMuon", "beta2"), ("SOAP", "shampoo_beta")])
def test_group_does_not_depend_on_other_groups(cls_name: str, name: str) -> None:
    trained: list[Any] = []
    for coefficient in (0.95, 0.5):
        params = [torch.ones(16, 16).requires_grad_() for _ in range(2)]
        groups = [{"params": [params[0]]}, {"params": [params[1]], name: coefficient}]
        opt = getattr(optim, cls_name)(groups, lr=0.003)
        generator = torch.Generator().manual_seed(0)
        for _ in range(4):
            for param in params:
                param.grad = torch.randn(16, 16, generator=generator)
            opt.step()
        trained.append(params[0].detach())
    torch.testing.assert_close(*trained, rtol=0, atol=0)


@pytest.mark.parametrize("cls_name", ["AdamH", "MuonH"])
def test_default_device_does_not_move_radius(cls_name: str) -> None:
    (param,) = params = [torch.ones(3, 3, requires_grad=True)]
    opt = getattr(optim, cls_name)(params)
    with torch.device("meta"):
        param.grad = torch.ones(3, 3, device="cpu")
        opt.step()
    assert opt.state[param]["radius"].device.type == "cpu"
    assert opt.last_step.count == 1


def test_unused_rules_are_freed() -> None:
    params = [torch.ones(4, 4).requires_grad_()]
    opt = optim.Muon(params)
    for count in range(3, 9):
        opt.param_groups[0]["ns_steps"] = count
        params[0].grad = torch.randn(4, 4)
        opt.step()
    assert len(opt.step_cache.parts) == 1


class Weights(torch.nn.Module):
    def __init__(self, params: Any) -> None:
        super().__init__()
        copies = [torch.nn.Parameter(param.detach().clone()) for param in params]
        self.params = torch.nn.ParameterList(copies)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_mixed", [False, True])
@by_case
def test_training_continues_from_checkpoint(
    case: MatrixCase, is_mixed: bool, dtype: torch.dtype, tmp_path: Path
) -> None:
    kwargs = {**EXTRAS.get(case.cls, {}), **case.arguments(0.0, for_own_class=True)}

    def make(model: Any, **overrides: Any) -> Any:
        params = [*model.named_parameters()]
        if not is_mixed:
            return getattr(optim, case.cls)(params, **{**kwargs, **overrides})
        return optim.Mixed([{"params": params, "rule": case.cls, **kwargs, **overrides}])

    def step(model: Any, opt: Any, index: int) -> None:
        for param, grad in zip(model.params, case.gradients_of(index, dtype), strict=True):
            param.grad = grad
        opt.step()

    model, target = (Weights(case.params_of(dtype)) for _ in range(2))
    # Shapes may depend on options, whose values are read from the file.
    overrides = {"max_precondition_dim": 7} if "max_precondition_dim" in kwargs else {}
    opt, loaded = make(model), make(target, **overrides)
    for number in range(3):
        step(model, opt, number)
    checkpoint.save(tmp_path / "c", module=model, optimizer=opt)
    checkpoint.restore(tmp_path / "c", module=target, optimizer=loaded)
    for number in range(3, 5):
        step(model, opt, number)
        step(target, loaded, number)
    assert_same([*target.parameters()], [*model.parameters()])
    assert_same(slots_of(loaded, [*target.parameters()]), slots_of(opt, [*model.parameters()]))


def test_matrix_rules_with_state_device_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    (param,) = params = [torch.ones(4, 4, requires_grad=True)]
    optim.Muon(params, state_device="cpu")  # parameters are on the CPU, too
    monkeypatch.setattr(layout, "is_far", lambda tensor, device: tensor is param)
    rule = optim.Muon._choose_rule(optim.Muon([torch.ones(2, 2)]).param_groups[0])
    for make in (optim.Muon, lambda p, **o: optim.RuleOptimizer(p, rule, **o),
                 lambda p, **o: optim.Mixed([{"params": p, "rule": "SOAP"}], **o)):  # fmt: skip
        with pytest.raises(NotImplementedError, match="leave out state_device='cpu'"):
            make(params, state_device="cpu")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize("cls_name", ["Muon", "NorMuon", "SOAP", "KLSOAP"])
def test_heads_are_separate_matrices(cls_name: str, engine: Any) -> None:
    """Compare a fused projection with its three parts, next to a matrix without heads."""
    generator = torch.Generator().manual_seed(0)
    fused = torch.randn(3, 8, 6, generator=generator)
    (param,) = params = [fused.reshape(24, 6).clone().requires_grad_()]
    heads = [head.clone().requires_grad_() for head in fused]
    uncut, ref_uncut = (torch.ones(5, 4).requires_grad_() for _ in range(2))
    cls, options = getattr(optim, cls_name), {"lr": 0.02, "weight_decay": 0.1}
    with thalweg.engine(engine):
        opt = cls([{"params": params, "heads": 3}, {"params": [uncut]}], **options)
        reference = cls([*heads, ref_uncut], **options)
        for _ in range(5):
            uncut.grad = ref_uncut.grad = torch.randn(5, 4, generator=generator)
            grads = torch.randn(3, 8, 6, generator=generator)
            param.grad = grads.reshape(24, 6)
            for head, grad in zip(heads, grads, strict=True):
                head.grad = grad
            opt.step()
            reference.step()
    expected = torch.stack([head.detach() for head in heads]).reshape(24, 6)
    torch.testing.assert_close(param.detach(), expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(uncut, ref_uncut, rtol=1e-4, atol=1e-6)
    for name, value in opt.state[param].items():
        if value.dim():
            slots = torch.cat([reference.state[head][name] for head in heads])
            torch.testing.assert_close(value, slots, rtol=1e-3, atol=1e-4)
    loaded = cls([{"params": params, "heads": 3}, {"params": [uncut]}], **options)
    loaded.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert [group["heads"] for group in loaded.param_groups] == [3, None]


@pytest.mark.parametrize("name", [*MUON_CLASSES, "SOAP", "KLSOAP"])
def test_indivisible_heads_raise(name: str) -> None:
    cls, params = getattr(optim, name), [("qkv", torch.ones(10, 4, requires_grad=True))]
    message = rf"'qkv' of {name}: .*'rows=3' does not fit shape \(10, 4\): 3 blocks of rows do not"
    with pytest.raises(InvalidArgumentError, match=message):
        cls(params, heads=3)
    with pytest.raises(InvalidArgumentError, match=message):
        optim.Mixed([{"params": params, "rule": name, "heads": 3}])
    for wrong in (0, 2.0, True, "three"):
        with pytest.raises(ValueError, match="heads must be a positive integer"):
            cls(params, heads=wrong)
    opt = cls(params)
    opt.param_groups[0]["heads"] = 4
    params[0][1].grad = torch.ones(10, 4)
    with pytest.raises(InvalidArgumentError, match=r"of rule .* 4 blocks of rows do not"):
        opt.step()
    assert params[0][1].eq(1).all()


def test_torch_state_keeps_heads() -> None:
    torch_param, param = (torch.ones(6, 4, requires_grad=True) for _ in range(2))
    torch_opt, opt = torch.optim.Muon([torch_param]), optim.Muon([param], heads=3)
    torch_param.grad = param.grad = torch.ones(6, 4)
    torch_opt.step()
    opt.load_state_dict(torch_opt.state_dict())
    assert opt.param_groups[0]["heads"] == 3
    opt.step()
    assert opt.state[param]["momentum_buffer"].shape == (6, 4)
