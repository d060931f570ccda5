"""Numbers per optimizer and sums over all variables, of a rule of one's own in every face."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from rulebook import assert_same
from thalweg import Hyper, Rule, Slot, Variable, optim, sqrt
from thalweg.errors import LayoutError, RuleError
from thalweg.formula import gradient_squares, narrow
from thalweg.keras.optimizers import RuleOptimizer

RATE, STEPS = 0.5, 4


def prepare(*, total: Any) -> Any:
    return {"before": total}


def moved_by(var: Any, grad: Any, *, before: Any) -> Any:
    return grad * (before + 1)


def per_optimizer(*, squares: Any, products: Any, total: Any, learning_rate: Any) -> Any:
    total = 0.5 * total + squares
    return {"total": total, "count": products, "common_rate": np.max(learning_rate) / sqrt(total)}


def per_variable(*, squares: Any, common_rate: Any) -> Any:
    return {"own_rate": common_rate + 0 * narrow(squares, like=common_rate)}


def update(var: Any, grad: Any, *, own_rate: Any) -> Any:
    return (var - own_rate * grad,)


RULE = Rule(
    name="Normed",
    update=update,
    prepare=prepare,
    measures={"squares": gradient_squares, "products": moved_by},
    per_optimizer=per_optimizer,
    per_variable=per_variable,
    hypers=(Hyper("learning_rate", RATE),),
    slots=(Slot("total", per="optimizer"), Slot("count", -1.0, per="optimizer")),
)
SHAPES = ((3,), (2, 5), (), (70,))


def gradients(step: int) -> list[torch.Tensor | None]:
    grads: list[torch.Tensor | None] = [
        torch.linspace(-1, 1 + step, int(np.prod(shape))).reshape(shape) for shape in SHAPES
    ]
    if step == 0:
        grads[3] = None
    if step == 2:
        grads[1] = None
    return grads


def wanted() -> tuple[list[torch.Tensor], float, float]:
    """Compute the expected values in float64."""
    params = [torch.ones(shape, dtype=torch.float64) for shape in SHAPES]
    total = count = 0.0
    for step in range(STEPS):
        pairs = [
            (g.double(), v) for g, v in zip(gradients(step), params, strict=True) if g is not None
        ]
        count = sum(float((g * (total + 1)).sum()) for g, _ in pairs)
        total = 0.5 * total + sum(float(g.square().sum()) for g, _ in pairs)
        for g, v in pairs:
            v -= RATE / total**0.5 * g
    return params, total, count


def keras(dtype: torch.dtype) -> Any:
    model = [Variable(torch.ones(s, dtype=dtype), name=f"w{k}") for k, s in enumerate(SHAPES)]
    opt = RuleOptimizer(RULE)
    for step in range(STEPS):
        pairs = zip(gradients(step), model, strict=True)
        opt.apply_gradients([(None if g is None else g.to(dtype), v) for g, v in pairs])
    return model, [[opt.get_slot(v, name).item() for name in ("total", "count")] for v in model]


def of_torchs_kind(make: Callable[..., Any]) -> Callable[[torch.dtype], Any]:
    def train(dtype: torch.dtype) -> Any:
        params = [torch.ones(shape, dtype=dtype, requires_grad=True) for shape in SHAPES]
        opt = make(params)
        for step in range(STEPS):
            for grad, param in zip(gradients(step), params, strict=True):
                param.grad = None if grad is None else grad.to(dtype)
            opt.step()
        return params, [[opt.state[p][name].item() for name in ("total", "count")] for p in params]

    return train


def mixed(params: Any) -> Any:
    return optim.Mixed([{"params": params[:2], "rule": RULE}, {"params": params[2:], "rule": RULE}])


FACES: dict[str, Callable[[torch.dtype], Any]] = {
    "keras": keras,
    "RuleOptimizer": of_torchs_kind(lambda params: optim.RuleOptimizer(params, RULE)),
    "in groups": of_torchs_kind(
        lambda params: optim.RuleOptimizer([{"params": params[:2]}, {"params": params[2:]}], RULE)
    ),
    "Mixed": of_torchs_kind(mixed),
}


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("face", FACES)
def test_every_front_end_has_shared_scalars_and_sums(
    face: str, dtype: torch.dtype, engine: Any
) -> None:
    with thalweg.engine(engine):
        variables, numbers = FACES[face](dtype)
    expected, total, count = wanted()
    close = 1e-13 if dtype == torch.float64 else 1e-5
    for var, expected_var in zip(variables, expected, strict=True):
        torch.testing.assert_close(var.detach().double(), expected_var, rtol=close, atol=close)
    assert [number == numbers[0] for number in numbers] == [True] * len(SHAPES)
    assert abs(numbers[0][0] / total - 1) < close
    assert abs(numbers[0][1] / count - 1) < close


@pytest.mark.parametrize("place", range(4))
def test_truncated_scalar_raises_and_changes_nothing(place: int) -> None:
    params = [torch.ones(shape, requires_grad=True) for shape in SHAPES]
    optimizer = mixed(params)
    for step in range(2):
        for param in params[: 4 - step]:
            param.grad = torch.ones_like(param)
        params[3].grad = None if step else params[3].grad
        optimizer.step()
    for param in params:  # out of the block that they share
        optimizer.state[param]["total"] = optimizer.state[param]["total"].clone()
    params_before = [param.detach().clone() for param in params]
    optimizer.state[params[place]]["total"].untyped_storage().resize_(0)
    with pytest.raises(LayoutError, match="'total' of"):
        optimizer.step()
    assert_same([param.detach() for param in params], params_before)


def test_per_optimizer_result_of_wrong_shape_raises() -> None:
    def of_each(*, squares: Any, learning_rate: Any) -> Any:
        return {"own_rate": learning_rate * squares}

    rule = Rule(
        name="Apart",
        update=update,
        measures={"squares": gradient_squares},
        per_optimizer=of_each,
    )
    params = [torch.ones(shape, requires_grad=True) for shape in SHAPES]
    groups = [{"params": params[:2], "lr": 0.1}, {"params": params[2:], "lr": 0.2}]
    optimizer = optim.RuleOptimizer(groups, rule)
    for param in params:
        param.grad = torch.ones_like(param)
    with pytest.raises(RuleError, match="per_optimizer of rule 'Apart' made own_rate of") as raised:
        optimizer.step()
    assert "no variable and no slot has changed" in raised.value.__notes__[-1]
    assert_same([param.detach() for param in params], [torch.ones(shape) for shape in SHAPES])
