"""`layout=` of matrix rules: each matrix of a parameter is updated like a parameter of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from thalweg import Pass, Rule, Stage, optim
from thalweg._engines.matrix_blocks import Division
from thalweg.errors import InvalidArgumentError
from thalweg.formula import Slot

MATRIX_CLASSES = ("Muon", "NorMuon", "MuonH", "SOAP", "KLSOAP")


class LayoutCase(NamedTuple):
    """A layout with a function that divides a parameter of a shape as the layout describes."""

    layout: str
    shape: tuple[int, ...]
    split: Callable[[Tensor], list[Tensor]]


def split_pieces(x: Tensor) -> list[Tensor]:
    pieces = x.view(4, 12, 16)
    return [pieces[:, first:last].reshape(-1, 16) for first, last in ((0, 8), (8, 10), (10, 12))]


CASES = [
    LayoutCase("rows=24+8+8", (40, 16), lambda x: [*x.split([24, 8, 8])]),
    LayoutCase("rows=3", (36, 8), lambda x: [*x.chunk(3)]),
    LayoutCase("columns=3 transposed", (16, 48), lambda x: [part.T for part in x.chunk(3, 1)]),
    LayoutCase("transposed", (8, 12), lambda x: [x.T]),
    LayoutCase("batch=1", (3, 8, 6), lambda x: [*x]),
    LayoutCase("batch=1", (3, 4, 2, 3), lambda x: [part.reshape(4, 6) for part in x]),
    LayoutCase("batch=2", (2, 3, 8, 6), lambda x: [*x.flatten(0, 1)]),
    LayoutCase("batch=1 rows=2", (3, 8, 6), lambda x: [y for part in x for y in part.chunk(2)]),
    LayoutCase(
        "batch=1 columns=2 interleaved transposed",
        (3, 8, 12),
        lambda x: [y for part in x for y in (part[:, ::2].T, part[:, 1::2].T)],
    ),
    LayoutCase("rows=8+2+2 interleaved", (48, 16), split_pieces),
    LayoutCase(
        "rows=16+16 columns=32+16",
        (32, 48),
        lambda x: [y for part in x.chunk(2) for y in part.split([32, 16], 1)],
    ),
]
by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.layout} {case.shape}")


def train(optimizer: torch.optim.Optimizer, grads: list[list[Tensor]]) -> None:
    params = optimizer.param_groups[0]["params"]
    for step_grads in grads:
        for param, grad in zip(params, step_grads, strict=True):
            param.grad = grad.to(param.dtype).contiguous()
        optimizer.step()


def random_tensors(shape: tuple[int, ...], count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    return [torch.randn(shape, generator=generator) for _ in range(count)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MATRIX_CLASSES)
@by_case
def test_each_matrix_equals_a_parameter_of_its_own(
    case: LayoutCase, name: str, dtype: torch.dtype
) -> None:
    start, *grads = random_tensors(case.shape, 5)
    param = nn.Parameter(start.to(dtype))
    optimizer = getattr(optim, name)([param], lr=0.02, layout=case.layout)
    parts = [nn.Parameter(part.contiguous()) for part in case.split(start.to(dtype))]
    train(optimizer, [[grad] for grad in grads])
    train(getattr(optim, name)(parts, lr=0.02), [case.split(grad) for grad in grads])
    for index, (part, expected) in enumerate(zip(case.split(param.detach()), parts, strict=True)):
        assert torch.equal(part, expected), (case, name, index)


def test_sides_without_a_basis_have_empty_parts() -> None:
    case = CASES[0]
    start, *grads = random_tensors(case.shape, 4)
    param = nn.Parameter(start.clone())
    parts = [nn.Parameter(part.contiguous()) for part in case.split(start)]
    options = {"lr": 0.02, "max_precondition_dim": 4}
    optimizer = optim.SOAP([param], layout=case.layout, **options)
    train(optimizer, [[grad] for grad in grads])
    train(optim.SOAP(parts, **options), [case.split(grad) for grad in grads])
    assert torch.equal(param, torch.cat([part.detach() for part in parts]))
    assert optimizer.state[param]["row_basis"].shape == (0, 0)


@pytest.mark.parametrize("name", ["SOAP", "KLSOAP"])
def test_matrices_with_a_side_that_is_not_rotated_equal_parameters(name: str) -> None:
    start, *grads = random_tensors((3, 8, 6), 5)
    options = {"lr": 0.02, "max_precondition_dim": 7}
    param, *parts = [nn.Parameter(value.clone()) for value in (start, *start)]
    train(getattr(optim, name)([param], layout="batch=1", **options), [[grad] for grad in grads])
    train(getattr(optim, name)(parts, **options), [[*grad] for grad in grads])
    assert all(map(torch.equal, param, parts))


@pytest.mark.parametrize("name", MATRIX_CLASSES)
def test_training_with_layout_continues_from_state(name: str) -> None:
    case = CASES[0]
    start, *grads = random_tensors(case.shape, 5)
    params = [nn.Parameter(start.clone()) for _ in range(2)]
    layout = optim.MatrixLayout(rows=(24, 8, 8))
    optimizers = [getattr(optim, name)([x], lr=0.02, layout=layout) for x in params]
    train(optimizers[0], [[grad] for grad in grads[:2]])
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    params[1].data.copy_(params[0].data)
    for optimizer in optimizers:
        train(optimizer, [[grad] for grad in grads[2:]])
    assert torch.equal(*params)
    assert optimizers[1].param_groups[0]["layout"] == case.layout


def test_layout_in_mixed_and_in_groups_equals_the_class() -> None:
    model = nn.Sequential(nn.Linear(16, 40), nn.Linear(40, 3))
    start, *grads = random_tensors((40, 16), 4)
    rules = {"0.weight": {"rule": "NorMuon", "layout": CASES[0].layout}, ...: "AdamW"}
    groups = optim.groups(model, rules=rules)
    param = model.get_parameter("0.weight")
    param.data.copy_(start)
    mixed = optim.Mixed(groups)
    reference = nn.Parameter(start.clone())
    expected = optim.NorMuon([reference], layout=CASES[0].layout)
    for grad in grads:
        param.grad, reference.grad = grad.clone(), grad.clone()
        mixed.step()
        expected.step()
    assert torch.equal(param, reference)


@pytest.mark.parametrize(
    "options",
    [{"state_storage": "8bit"}, {"weights": "split"}, {"round": "stochastic"}, {"masters": True}],
    ids=str,
)
def test_layout_combines_with_storage_options(options: dict[str, Any]) -> None:
    """With a layout of one matrix the bits are those without one; others train."""
    start, *grads = random_tensors((96, 64), 4)
    results: list[Tensor] = []
    for layout in (None, "rows=1", "rows=64+16+16"):
        param = nn.Parameter(start.bfloat16())
        optimizer = optim.Muon([param], lr=0.02, layout=layout, **options)
        train(optimizer, [[grad] for grad in grads])
        results.append(param.detach())
    assert torch.equal(results[0], results[1])
    difference = (results[2].float() - results[0].float()).abs().max()
    assert 0 < difference < 0.2


def gradient(var, grad):
    return grad


def subtract(var, grad, step):
    return var - step


def test_stage_sees_each_shape_once() -> None:
    shapes: list[tuple[int, ...]] = []

    def center(*, step, means):
        shapes.append((*step.shape, *means.shape))
        mean = step.mean((1, 2), keepdim=True)
        return {"step": step - mean, "means": mean.view_as(means)}

    rule = Rule(
        name="Centered",
        passes=(Pass(gradient, makes=("step",)), Stage(center, layout="rows=4+2+2")),
        update=subtract,
        slots=(Slot("means", shape=lambda rows, columns: (1, 1)),),
    )
    grad = random_tensors((8, 3), 1)[0]
    param = nn.Parameter(torch.zeros(8, 3))
    optimizer = optim.RuleOptimizer([param], rule)
    shapes.clear()
    param.grad = grad
    optimizer.step()
    assert shapes == [(1, 4, 3, 1, 1, 1), (2, 2, 3, 2, 1, 1)]
    expected = torch.cat([part - part.mean() for part in grad.split([4, 2, 2])])
    torch.testing.assert_close(-param.detach(), expected)
    assert optimizer.state[param]["means"].shape == (3, 1)


@pytest.mark.parametrize(
    ("layout", "shape", "message"),
    [
        ("rows=5+4", (10, 4), r"'weight' of Muon: .* shape \(10, 4\): 5\+4 of rows do not add up"),
        ("columns=3", (6, 4), "3 blocks of columns do not add up to 4"),
        ("rows=2+1 interleaved", (8, 4), r"2\+1 of rows do not repeat evenly in 8"),
        ("batch=1", (8, 4), "needs 3 dimensions or more"),
        ("rows=0", (8, 4), "rows of a matrix layout must be a number of equal blocks"),
        ("interleaved", (8, 4), "is interleaved and has one block"),
        ("rows:2", (8, 4), "'rows:2' is not a matrix layout"),
        ("", (8, 4), "'' is not a matrix layout"),
        ("rows=2 rows=3", (8, 4), "is not a matrix layout"),
        (3, (9, 4), "layout must be an optim.MatrixLayout"),
    ],
)
@pytest.mark.parametrize("is_mixed", [False, True], ids=["Muon", "Mixed"])
def test_unfit_layout_raises_at_construction(
    layout: Any, shape: tuple[int, ...], message: str, is_mixed: bool
) -> None:
    params = [("weight", nn.Parameter(torch.zeros(shape)))]
    make = optim.Mixed if is_mixed else optim.Muon
    with pytest.raises(InvalidArgumentError, match=message):
        make([{"params": params, "layout": layout, **({"rule": "Muon"} if is_mixed else {})}])


@pytest.mark.parametrize("sizes", [(), [], (4,)])
@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_fewer_than_two_sizes_of_blocks_raise(axis: str, sizes: Any) -> None:
    with pytest.raises(ValueError, match=f"{axis} of a matrix layout .* two sizes or more, not"):
        optim.MatrixLayout(**{axis: sizes})


def test_both_heads_and_layout_raise() -> None:
    with pytest.raises(ValueError, match="both describe the matrices"):
        optim.Muon([torch.zeros(4, 4, requires_grad=True)], heads=2, layout="rows=2")


def test_heads_of_several_sizes_equal_a_layout() -> None:
    start, *grads = random_tensors((40, 16), 4)
    params = [nn.Parameter(start.clone()) for _ in range(2)]
    train(optim.Muon(params[:1], heads=(24, 8, 8)), [[grad] for grad in grads])
    train(optim.Muon(params[1:], layout="rows=24+8+8"), [[grad] for grad in grads])
    assert torch.equal(*params)


@st.composite
def layouts_with_shapes(draw: Any) -> tuple[optim.MatrixLayout, tuple[int, ...]]:
    """Return a layout, and a shape that it fits."""
    batch = draw(st.integers(0, 2))
    blocks = st.one_of(
        st.integers(1, 4), st.lists(st.integers(1, 4), min_size=2, max_size=4).map(tuple)
    )
    rows, columns = draw(blocks), draw(blocks)
    is_interleaved = draw(st.booleans()) and not rows == columns == 1
    layout = optim.MatrixLayout(batch, rows, columns, is_interleaved, draw(st.booleans()))
    shape = list(layout.smallest_shape)
    for axis in range(len(shape)):
        blocks_of_axis = (rows, columns)[axis - batch] if axis >= batch else 1
        if is_interleaved or isinstance(blocks_of_axis, int):
            shape[axis] *= draw(st.integers(1, 3))
    return layout, tuple(shape)


@given(layouts_with_shapes())
def test_blocks_cover_each_element_once(case: tuple[optim.MatrixLayout, tuple[int, ...]]) -> None:
    layout, shape = case
    assert optim.MatrixLayout.parse(str(layout)) == layout
    values = torch.arange(2 * torch.Size(shape).numel()).view(2, *shape)
    division, copied = Division(layout, shape), torch.full_like(values, -1)
    for group in division.groups:
        division.put(copied, group, division.take(values, group))
    assert torch.equal(copied, values)
