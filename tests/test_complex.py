"""Complex variables are pairs of real numbers under linear rules, and refused under others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import thalweg
from keras_table import both_engines
from thalweg import IndexedSlices, Variable, keras, v1
from thalweg.errors import InvalidArgumentError, InvalidTypeError

MAKERS = {
    "SGD": {},
    "Momentum": {"momentum": 0.9},
    "Nesterov": {"momentum": 0.9, "nesterov": True},
    "decay": {"momentum": 0.9, "decay": 0.1},
}
DTYPES = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def _numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def _gradient(kind: str, dtype: torch.dtype, step: int) -> tuple[Any, Any]:
    """A gradient of a (5, 3) variable, and the same in real numbers."""
    if kind == "sparse":
        values, rows = _numbers((4, 3), dtype, step), torch.tensor([3, 0, 3, 1])
        return (
            IndexedSlices(values, rows, (5, 3)),
            IndexedSlices(torch.view_as_real(values), rows, (5, 3, 2)),
        )
    values = _numbers((5, 3), dtype, step)
    if kind == "conjugate":
        values = values.conj()
    return values, torch.view_as_real(values.resolve_conj())


@both_engines
@pytest.mark.parametrize("kind", ["dense", "sparse", "conjugate"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", MAKERS.values(), ids=MAKERS)
def test_bits_are_those_of_real_numbers(
    options: dict[str, Any], dtype: torch.dtype, kind: str, engine: Any
) -> None:
    w, beside = Variable(_numbers((5, 3), dtype, 0), name="w"), Variable(torch.ones(4))
    real = Variable(torch.view_as_real(w.detach().clone()))
    opt, plain = keras.optimizers.SGD(0.1, **options), keras.optimizers.SGD(0.1, **options)
    with thalweg.engine(engine, check_numerics=True):
        for step in range(1, 5):
            grad, as_real = _gradient(kind, dtype, step)
            opt.apply_gradients([(grad, w), (torch.ones(4), beside)])
            plain.apply_gradients([(as_real, real)])
            assert torch.equal(torch.view_as_real(w.detach()), real)
    assert opt.iterations.item() == 4
    for name in opt.get_slot_names():
        slot = opt.get_slot(w, name)
        assert slot.dtype == dtype
        assert torch.equal(torch.view_as_real(slot.detach()), plain.get_slot(real, name))


def test_a_state_goes_on() -> None:
    def made() -> tuple[Any, Any]:
        return keras.optimizers.SGD(0.1, momentum=0.9), Variable(_numbers((3,), torch.complex64, 0))

    (opt, w), (other, copy) = made(), made()
    for step in range(3):
        opt.apply_gradients([(_numbers((3,), torch.complex64, step), w)])
    copy.assign(w)
    other.load_state_dict(opt.state_dict(), [copy])
    grad = _numbers((3,), torch.complex64, 9)
    opt.apply_gradients([(grad, w)]), other.apply_gradients([(grad, copy)])
    assert torch.equal(w, copy)


REFUSED: dict[str, tuple[Any, str]] = {
    "Adam": (lambda: keras.optimizers.Adam(), "Adam is not defined for complex variables"),
    "clipped": (
        lambda: keras.optimizers.SGD(clipnorm=1.0),
        "Clipping is not defined for complex gradients",
    ),
    "v1": (lambda: v1.train.GradientDescentOptimizer(0.1), "Invalid type .*complex64"),
}


@pytest.mark.parametrize(("make", "match"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_defined_is_refused(make: Any, match: str) -> None:
    w, beside = Variable(torch.ones(2, dtype=torch.complex64), name="w"), Variable(torch.ones(2))
    pairs = [(torch.ones(2), beside), (torch.ones(2, dtype=torch.complex64), w)]
    with pytest.raises(InvalidTypeError, match=match):
        make().apply_gradients(pairs)
    assert beside.tolist() == w.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("grad", "error", "match"),
    [
        (torch.ones(2), InvalidTypeError, "'w:0' is float32 but the variable is complex64"),
        (torch.ones(3, dtype=torch.complex64), InvalidArgumentError, "has shape"),
        (
            IndexedSlices(torch.ones(1, dtype=torch.complex64), torch.tensor([2]), (2,)),
            InvalidArgumentError,
            "not in",
        ),
    ],
    ids=["real", "shape", "index"],
)
def test_gradients_that_do_not_fit_are_refused(grad: Any, error: Any, match: str) -> None:
    w = Variable(torch.ones(2, dtype=torch.complex64), name="w")
    with pytest.raises(error, match=match):
        keras.optimizers.SGD(0.1).apply_gradients([(grad, w)])
    assert w.tolist() == [1, 1]


def test_not_a_number_is_named() -> None:
    w = Variable(torch.ones(2, dtype=torch.complex64), name="w")
    grad = torch.complex(torch.ones(2), torch.tensor([0.0, float("nan")]))
    with (
        thalweg.engine(check_numerics=True),
        pytest.raises(InvalidArgumentError, match="gradient of 'w:0' : Tensor had NaN values"),
    ):
        keras.optimizers.SGD(0.1).apply_gradients([(grad, w)])
