"""Flat buffers of several parameters, as FSDP1 and DeepSpeed ZeRO make them.

The oracle is the step itself: a class is elementwise if a step over one flat buffer has the bits of
a step over the parameters in it. Such a class takes flat buffers; every other one raises an error.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bit_comparison import assert_same
from thalweg import Variable, optim
from thalweg._core import flat_buffers
from thalweg.errors import InvalidArgumentError
from thalweg.formula import Rule, variable_squares
from thalweg.keras.optimizers import RuleOptimizer as KerasRuleOptimizer

SHAPES = ((3, 4), (5,))
STEPS = 3
Make = Callable[[Sequence[Tensor]], Any]
PUBLIC = {name: getattr(optim, name) for name in optim.__all__}
CLASSES = [
    name
    for name, cls in PUBLIC.items()
    if isinstance(cls, type)
    and issubclass(cls, torch.optim.Optimizer)
    and name not in ("Optimizer", "Mixed", "RuleOptimizer", "SparseAdam", "LBFGS")
]
OF_MATRICES = ("Muon", "NorMuon", "AdaMuon", "MuonH", "SOAP", "KLSOAP")
OF_VECTORS = [name for name in CLASSES if name not in OF_MATRICES]
SUMMING_RULES = ("Prodigy",)  # sums over all parameters, which one rank has


def shrink(var: Any, grad: Any, *, learning_rate: Any, size: Any) -> tuple[Any]:
    return (var - learning_rate * grad / (1 + size),)


def read_size(*, size: Any) -> dict[str, Any]:
    return {"size": size}


MEASURING = Rule(
    name="Measuring", update=shrink, measures={"size": variable_squares}, per_variable=read_size
)
OTHER_MAKERS: dict[str, Make] = {
    "a rule": lambda params: optim.RuleOptimizer(params, MEASURING),
    "a rule in Mixed": lambda params: optim.Mixed([{"params": params, "rule": MEASURING}]),
    "Mixed": lambda params: optim.Mixed([{"params": params, "rule": "LAMB"}]),
    "trust_ratio": lambda params: optim.SGD(params, lr=0.1, trust_ratio=True),
    "cautious": lambda params: optim.AdamW(params, lr=0.1, cautious=True),
    "radial_brake": lambda params: optim.AdamW(params, lr=0.1, radial_brake=0.5),
    "sphere": lambda params: optim.AdamW(params, lr=0.1, weight_decay=0.0, sphere=True),
    "tensorflow": lambda params: optim.tensorflow.Adam(params),
    "cautious_decay": lambda params: optim.AdamW(params, lr=0.1, cautious_decay=True),
    "ema_decay": lambda params: optim.AdamW(params, lr=0.1, ema_decay=0.9),
    "clip_grad_value": lambda params: optim.AdamW(params, lr=0.1, clip_grad_value=0.5),
    "masters": lambda params: optim.AdamW(params, lr=0.1, masters=True),
}
MAKERS: dict[str, Make] = {**{name: PUBLIC[name] for name in OF_VECTORS}, **OTHER_MAKERS}


def params_of(shapes: Sequence[tuple[int, ...]] = SHAPES) -> list[nn.Parameter]:
    dice = torch.Generator().manual_seed(3)
    params = [nn.Parameter(torch.randn(shape, generator=dice)) for shape in shapes]
    give_gradients(params, 0)
    return params


def give_gradients(params: Sequence[Tensor], step: int) -> None:
    """Set gradients with changing signs and sizes, equal for flat and separate parameters."""
    dice = torch.Generator().manual_seed(step)
    sizes = [param.numel() for param in params]
    grad = torch.randn(sum(sizes), generator=dice) * 10.0**step
    grad[12:] *= 10
    for param, flat_grad in zip(params, grad.split(sizes), strict=True):
        param.grad = flat_grad.reshape(param.shape).clone()


def flattened(params: Sequence[Tensor]) -> nn.Parameter:
    flat = nn.Parameter(torch.cat([param.detach().ravel() for param in params]))
    give_gradients([flat], 0)
    return flat


def take_steps(optimizer: Any, params: Sequence[Tensor]) -> Tensor:
    for step in range(STEPS):
        give_gradients(params, step)
        optimizer.step()
    return torch.cat([param.detach().ravel() for param in params])


def stepped(make: Make, params: Sequence[Tensor]) -> Tensor:
    return take_steps(make(params), params)


def is_elementwise(name: str, make: Make) -> bool:
    flat_result, separate_result = (
        stepped(make, [flattened(params_of())]),
        stepped(make, params_of()),
    )
    if name in SUMMING_RULES:
        return torch.allclose(flat_result, separate_result, rtol=1e-5)
    return torch.equal(flat_result, separate_result)


def mark_fsdp(param: Any) -> None:
    param._is_flat_param = True


def mark_fsdp_view(param: Any) -> None:
    param._fsdp_flattened = True


def mark_zero3(param: Any) -> None:
    param.ds_id = "0_1"


MARKS = {"FSDP": mark_fsdp, "ZeRO-3": mark_zero3}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", MAKERS)
def test_rules_that_reduce_raise_and_elementwise_ones_step(name: str) -> None:
    make = MAKERS[name]
    expected, is_supported = stepped(make, [flattened(params_of())]), is_elementwise(name, make)
    if (
        is_supported
        and name in CLASSES
        and (torchs := getattr(torch.optim, name, None)) is not None
    ):
        torch_out = stepped(lambda params: torchs(params, foreach=False), [flattened(params_of())])
        torch.testing.assert_close(torch_out, expected, rtol=1e-6, atol=1e-7)
    for mark in MARKS.values():
        if mark is mark_zero3 and name in SUMMING_RULES:
            continue  # which it steps over a part at a time
        for is_early in (True, False):
            flat = flattened(params_of())
            previous = flat.detach().clone()
            if is_early:
                mark(flat)
            if is_early and not is_supported:
                with pytest.raises(InvalidArgumentError, match="is a flat buffer of"):
                    make([flat])
                continue
            optimizer = make([flat])
            mark(flat)
            if not is_supported:
                state = copy.deepcopy(optimizer.state_dict())
                with pytest.raises(InvalidArgumentError, match="is a flat buffer of"):
                    optimizer.step()
                assert_same([flat.detach()], [previous])
                assert str(optimizer.state_dict()) == str(state)
                continue
            assert_same([take_steps(optimizer, [flat])], [expected])


def test_rule_table_has_elementwise_and_reducing_rules() -> None:
    kinds = {name: is_elementwise(name, make) for name, make in MAKERS.items()}
    elementwise = {"SGD", "AdamW", "Lion", "Prodigy", "cautious_decay", "tensorflow", "masters"}
    assert elementwise <= {name for name, is_supported in kinds.items() if is_supported}
    reducing = {"LAMB", "Adafactor", "SM3", "AdamH", "a rule", "trust_ratio", "sphere", "cautious"}
    assert reducing <= {name for name, is_supported in kinds.items() if not is_supported}


@pytest.mark.parametrize("name", OF_MATRICES)
def test_rules_of_matrices_name_the_flat_buffer(name: str) -> None:
    for mark in (*MARKS.values(), mark_fsdp_view):
        mark(flat := flattened(params_of()))
        with pytest.raises(InvalidArgumentError, match="'weights' is a flat buffer of"):
            PUBLIC[name]([("weights", flat)])


def replace_params(optimizer: Any) -> Tensor:
    """Put one flat buffer into the group, as DeepSpeed ZeRO-1 and 2 do."""
    flat = flattened(optimizer.param_groups[0]["params"])
    partition = flat.detach().clone().requires_grad_()
    give_gradients([partition], 0)
    optimizer.param_groups[0]["params"] = [partition]
    return partition


@pytest.mark.one_in(3)
@pytest.mark.parametrize("steps", [0, STEPS])
@pytest.mark.parametrize("name", [*MAKERS, *OF_MATRICES])
def test_parameters_replaced_by_a_flat_buffer_raise(name: str, steps: int) -> None:
    make = MAKERS.get(name) or PUBLIC[name]
    params = params_of(((3, 4), (5, 2)) if name in OF_MATRICES else SHAPES)
    optimizer = make(params)
    for _ in range(steps):
        optimizer.step()
    values = torch.cat([param.detach().ravel() for param in params])
    partition = replace_params(optimizer)
    if name not in OF_MATRICES and is_elementwise(name, make):
        assert not torch.equal(take_steps(optimizer, [partition]), values)
        return
    with pytest.raises(InvalidArgumentError, match="is a flat buffer of DeepSpeed ZeRO"):
        optimizer.step()
    assert_same([partition.detach()], [values])
    assert partition not in optimizer.state


def with_vectors_taken_away(params: list[nn.Parameter]) -> Any:
    optimizer = optim.LAMB(params)
    del optimizer.param_groups[0]["params"][0]
    return optimizer


def with_another_parameter(params: list[nn.Parameter]) -> Any:
    optimizer = optim.LAMB(params)
    optimizer.param_groups[0]["params"] = params_of(((5,),))
    return optimizer


def with_views_of_whole_parameters(params: list[nn.Parameter]) -> Any:
    for param in params:  # as FSDP1 without shards has them
        mark_fsdp_view(param)
    return optim.LAMB([{"params": [param]} for param in reversed(params)])


def with_plain_tensors(params: list[nn.Parameter]) -> Any:
    tensors = [param.detach().clone().ravel().requires_grad_() for param in params]
    for tensor, param in zip(tensors, params, strict=True):
        tensor.grad = None if param.grad is None else param.grad.ravel()
    return copy.deepcopy(optim.LAMB(tensors))


@pytest.mark.parametrize(
    "make",
    [
        optim.LAMB, with_vectors_taken_away, with_another_parameter, with_plain_tensors,
        with_views_of_whole_parameters,
    ],
)  # fmt: skip
def test_whole_parameters_are_no_flat_buffers(make: Callable[..., Any]) -> None:
    optimizer = make(params_of())
    params = [param for group in optimizer.param_groups for param in group["params"]]
    previous = [param.detach().clone() for param in params]
    optimizer.step()
    for param, previous_param in zip(params, previous, strict=True):
        assert param.grad is None or not torch.equal(param.detach(), previous_param)


def test_views_of_shards_raise_once_all_groups_are_known() -> None:
    params = params_of(((7,), (5,)))
    optimizer = optim.LAMB(params)
    for param in params:
        mark_fsdp_view(param)
    with pytest.raises(InvalidArgumentError, match="of FullyShardedDataParallel"):
        optimizer.step()
    for groups in (params, [{"params": [param]} for param in params]):
        with pytest.raises(InvalidArgumentError, match="of FullyShardedDataParallel"):
            optim.LAMB(groups)
    optim.AdamW(params).step()
    opt = optim.LAMB(params_of())
    mark_fsdp(flat := flattened(params))
    with pytest.raises(InvalidArgumentError, match="of FullyShardedDataParallel"):
        opt.add_param_group({"params": [flat]})
    assert len(opt.param_groups) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda params: optim.AdamW(params, clip_grad_norm=1.0), "all gradients of the model"),
        (lambda params: optim.Prodigy(params), "all parameters of the model"),
        (
            lambda params: optim.Mixed(
                [{"params": params[:1], "rule": "AdamW"}, {"params": params[1:], "rule": "Lion"}],
                clip_grad_norm=1.0,
            ),
            "all gradients of the model",
        ),
    ],
)
def test_sums_over_all_parameters_need_all_ranks(
    make: Make, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flats() -> list[Any]:
        return [flattened(params_of()) for _ in range(2)]

    mark_fsdp((params := flats())[0])
    make(params).step()  # of one rank, which has all
    mark_zero3((params := flats())[0])
    with pytest.raises(InvalidArgumentError, match=message):
        make(params)  # one of several calls
    monkeypatch.setattr(flat_buffers, "_has_other_ranks", lambda: True)
    for mark in MARKS.values():
        params, marked_params = flats(), flats()
        optimizer = make(params)
        mark(marked_params[0])
        with pytest.raises(InvalidArgumentError, match=message):
            make(marked_params)
        previous = [param.detach().clone() for param in params]
        mark(params[0])
        with pytest.raises(InvalidArgumentError, match=message):
            optimizer.step()
        assert_same(previous, [param.detach() for param in params])
    params_of_rank: Any = flats()
    for param in params_of_rank:
        param._is_flat_param, param._unpadded_unsharded_size = True, param.shape
    make(params_of_rank).step()


def test_zero3_cannot_count_calls_of_step() -> None:
    optimizer = optim.AdamW([flat := flattened(params_of())], accumulate=2)
    optimizer.step()
    mark_zero3(flat)
    with pytest.raises(InvalidArgumentError, match="calls step for each of its buffers"):
        optimizer.step()


def test_keras_optimizers_name_flat_variables() -> None:
    var = Variable([3.0, 4.0], name="flat")
    mark_fsdp(var)
    with pytest.raises(InvalidArgumentError, match=r"'flat:0' is a flat buffer of"):
        KerasRuleOptimizer(MEASURING).apply_gradients([(torch.ones(2), var)])
    assert var.detach().tolist() == [3.0, 4.0]


def test_steps_of_torch_itself_raise_as_well() -> None:
    mark_fsdp(flat := flattened(params_of()))
    optimizer = optim.Adafactor([param := flattened(params_of())], foreach=False)
    optimizer.step()
    optimizer.param_groups[0]["params"] = [flat]
    plain_step = optimizer._step_of_torch
    with pytest.raises(InvalidArgumentError, match="is a flat buffer of"):
        plain_step()
    assert not torch.equal(flat.detach(), param.detach())
