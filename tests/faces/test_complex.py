"""Complex variables are pairs of real numbers under linear rules, complex numbers under rules of
arithmetic and roots, as in TensorFlow's kernels, and refused under others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thalweg
from bit_comparison import assert_same
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


@pytest.mark.one_in(3)
@both_engines
@pytest.mark.parametrize("kind", ["dense", "sparse", "conjugate"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", MAKERS.values(), ids=MAKERS)
def test_complex_steps_equal_real_pairs(
    options: dict[str, Any], dtype: torch.dtype, kind: str, engine: Any
) -> None:
    w, real_var = Variable(_numbers((5, 3), dtype, 0), name="w"), Variable(torch.ones(4))
    real = Variable(torch.view_as_real(w.detach().clone()))
    opt, plain_opt = keras.optimizers.SGD(0.1, **options), keras.optimizers.SGD(0.1, **options)
    with thalweg.engine(engine, check_numerics=True):
        for step in range(1, 5):
            grad, as_real = _gradient(kind, dtype, step)
            opt.apply_gradients([(grad, w), (torch.ones(4), real_var)])
            plain_opt.apply_gradients([(as_real, real)])
            assert_same([torch.view_as_real(w.detach())], [real])
    assert opt.iterations.item() == 4
    for name in opt.get_slot_names():
        slot = opt.get_slot(w, name)
        assert slot.dtype == dtype
        assert_same([torch.view_as_real(slot.detach())], [plain_opt.get_slot(real, name)])


def test_complex_state_resumes() -> None:
    def made() -> tuple[Any, Any]:
        return keras.optimizers.SGD(0.1, momentum=0.9), Variable(_numbers((3,), torch.complex64, 0))

    (opt, w), (new_opt, copy) = made(), made()
    for step in range(3):
        opt.apply_gradients([(_numbers((3,), torch.complex64, step), w)])
    copy.assign(w)
    new_opt.load_state_dict(opt.state_dict(), [copy])
    grad = _numbers((3,), torch.complex64, 9)
    opt.apply_gradients([(grad, w)]), new_opt.apply_gradients([(grad, copy)])
    assert torch.equal(w, copy)


Arrays = tuple[Any, ...]


# Keras keeps hyperparameters as float32.
RHO, DECAY, BETA2, MOMENTUM = (float(np.float32(number)) for number in (0.95, 0.9, 0.999, 0.8))


def _adagrad(var: Any, grad: Any, accumulator: Any) -> Arrays:
    accumulator = accumulator + grad**2
    return var - 0.5 * grad / (np.sqrt(accumulator) + 1e-7), accumulator


def _adadelta(var: Any, grad: Any, of_grad: Any, of_var: Any) -> Arrays:
    of_grad = RHO * of_grad + (1 - RHO) * grad**2
    step = np.sqrt(of_var + 1e-7) / np.sqrt(of_grad + 1e-7) * grad
    return var - 0.5 * step, of_grad, RHO * of_var + (1 - RHO) * step**2


def _rmsprop(var: Any, grad: Any, rms: Any) -> Arrays:
    rms = DECAY * rms + (1 - DECAY) * grad**2
    return var - 0.5 * grad / (np.sqrt(rms) + 1e-7), rms


def _centered(var: Any, grad: Any, rms: Any, mean: Any) -> Arrays:
    rms, mean = DECAY * rms + (1 - DECAY) * grad**2, DECAY * mean + (1 - DECAY) * grad
    return var - 0.5 * grad / (np.sqrt(rms - mean**2) + 1e-7), rms, mean


def _with_momentum(var: Any, grad: Any, rms: Any, speed: Any) -> Arrays:
    rms = DECAY * rms + (1 - DECAY) * grad**2
    speed = MOMENTUM * speed + 0.5 * grad / np.sqrt(rms + 1e-7)
    return var - speed, rms, speed


def _adam(t: int, var: Any, grad: Any, m: Any, v: Any) -> Arrays:
    m, v = DECAY * m + (1 - DECAY) * grad, BETA2 * v + (1 - BETA2) * grad**2
    rate = 0.5 * np.sqrt(1 - BETA2**t) / (1 - DECAY**t)
    return var - rate * m / (np.sqrt(v) + 1e-7), m, v


ANALYTIC: dict[str, tuple[Any, Any, list[float]]] = {
    "Adagrad": (lambda: keras.optimizers.Adagrad(0.5), _adagrad, [0.1]),
    "Adadelta": (lambda: keras.optimizers.Adadelta(0.5), _adadelta, [0, 0]),
    "RMSprop": (lambda: keras.optimizers.RMSprop(0.5), _rmsprop, [0]),
    "centered": (lambda: keras.optimizers.RMSprop(0.5, centered=True), _centered, [0, 0]),
    "momentum": (lambda: keras.optimizers.RMSprop(0.5, momentum=0.8), _with_momentum, [0, 0]),
    "Adam": (lambda: keras.optimizers.Adam(0.5), _adam, [0, 0]),
}


@pytest.mark.one_in(3)
@both_engines
@pytest.mark.parametrize("kind", ["dense", "sparse", "conjugate"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ANALYTIC)
def test_complex_steps_equal_complex_arithmetic(
    name: str, dtype: torch.dtype, kind: str, engine: Any
) -> None:
    make, update, starts = ANALYTIC[name]
    w, real = Variable(_numbers((5, 3), dtype, 0), name="w"), Variable(torch.ones(4))
    expected = w.detach().numpy().astype("c16"), *(np.full((5, 3), x, "c16") for x in starts)
    opt = make()
    with thalweg.engine(engine, check_numerics=True):
        for step in range(1, 5):
            grad, _ = _gradient(kind, dtype, step)
            opt.apply_gradients([(grad, w), (torch.ones(4), real)])
            if isinstance(grad, IndexedSlices):
                dense = torch.zeros((5, 3), dtype=dtype).index_add_(0, grad.indices, grad.values)
                grad, mask = dense, np.isin(np.arange(5), [0, 1, 3])
            else:
                mask = np.full(5, True)
            numbers = (step,) if name == "Adam" else ()
            var, *slots = expected
            new_values = update(*numbers, var, grad.resolve_conj().numpy().astype("c16"), *slots)
            if name in ("Adadelta", "Adagrad", "momentum"):  # the rest of the rows stay as they are
                new_values = tuple(
                    np.where(mask[:, None], new, old)
                    for new, old in zip(new_values, expected, strict=True)
                )
            expected = new_values
    precision = 1e-4 if dtype == torch.complex64 else 1e-9
    np.testing.assert_allclose(w.detach().numpy(), expected[0], rtol=precision, atol=precision)
    for slot, target in zip(opt.get_slot_names(), expected[1:], strict=True):
        slot_value = opt.get_slot(w, slot)
        assert slot_value.dtype == dtype
        np.testing.assert_allclose(slot_value.numpy(), target, rtol=precision, atol=precision)


def test_rows_may_be_numbered_by_int32() -> None:
    weights = []
    for kind in (torch.int32, torch.int64):
        w, opt = Variable(_numbers((3, 2), torch.complex64, 0)), keras.optimizers.RMSprop(0.1)
        rows = torch.tensor([2, 0, 2], dtype=kind)
        opt.apply_gradients(
            [(IndexedSlices(_numbers((3, 2), torch.complex64, 1), rows, (3, 2)), w)]
        )
        weights.append(w.detach())
    assert torch.equal(*weights)


def test_embedding_lookup_has_sparse_complex_gradients() -> None:
    table = Variable(_numbers((4, 3), torch.complex128, 0))
    initial = table.detach().clone()

    def loss() -> Tensor:
        rows = thalweg.embedding_lookup(table, [2, 0, 2])
        return (rows * rows.conj()).real.sum()

    with thalweg.GradientTape() as tape:
        value = loss()
    grad = tape.gradient(value, table)
    assert isinstance(grad, IndexedSlices)
    expected = torch.zeros_like(initial)
    expected[0], expected[2] = 2 * initial[0], 4 * initial[2]
    assert torch.equal(grad.to_dense(), expected)
    keras.optimizers.SGD(0.25).minimize(loss, [table])
    assert torch.equal(table.detach(), initial - 0.25 * expected)


def test_nadam_keeps_a_real_product() -> None:
    """Its momentum schedule is one number, whichever variable comes first."""
    weights = []
    for first in (True, False):
        w, real = Variable(_numbers((3,), torch.complex64, 0)), Variable(torch.ones(3))
        opt = keras.optimizers.Nadam(0.1)
        for step in range(1, 4):
            grad = _numbers((3,), torch.complex64, step)
            pairs = [(grad, w), (grad.real.clone(), real)]
            opt.apply_gradients(pairs if first else pairs[::-1])
        weights.append((w.detach(), real.detach()))
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))
    real_w, real_opt = Variable(torch.ones(3)), keras.optimizers.Nadam(0.1)
    for step in range(1, 4):
        real_opt.apply_gradients([(_numbers((3,), torch.complex64, step).real.clone(), real_w)])
    assert torch.equal(real_w, weights[0][1])


def test_failed_step_does_not_change_complex_variables() -> None:
    w, real = Variable(_numbers((3,), torch.complex64, 0)), Variable(torch.ones(2))
    initial = w.detach().clone()

    class Failing(keras.optimizers.Adagrad):
        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
            if var is real:
                raise RuntimeError("no")
            return super()._resource_apply_dense(grad, var, apply_state)

    opt = Failing(0.5)
    with pytest.raises(RuntimeError, match="no"):
        opt.apply_gradients([(_numbers((3,), torch.complex64, 1), w), (torch.ones(2), real)])
    assert torch.equal(w, initial)
    assert opt.get_slot(w, "accumulator").tolist() == pytest.approx([0.1] * 3)


INVALID: dict[str, tuple[Any, str]] = {
    "Ftrl": (lambda: keras.optimizers.Ftrl(), "Ftrl is not defined for complex variables"),
    "Adamax": (lambda: keras.optimizers.Adamax(), "Adamax is not defined for complex variables"),
    "amsgrad": (lambda: keras.optimizers.Adam(amsgrad=True), "is not defined for complex"),
    "clipped": (
        lambda: keras.optimizers.SGD(clipnorm=1.0),
        "Clipping is not defined for complex gradients",
    ),
    "v1": (lambda: v1.train.GradientDescentOptimizer(0.1), "Invalid type .*complex64"),
}


@pytest.mark.parametrize(("make", "match"), INVALID.values(), ids=INVALID)
def test_undefined_complex_operations_raise(make: Any, match: str) -> None:
    w, real = Variable(torch.ones(2, dtype=torch.complex64), name="w"), Variable(torch.ones(2))
    pairs = [(torch.ones(2), real), (torch.ones(2, dtype=torch.complex64), w)]
    with pytest.raises(InvalidTypeError, match=match):
        make().apply_gradients(pairs)
    assert real.tolist() == w.tolist() == [1, 1]


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
def test_mismatched_complex_gradients_raise(grad: Any, error: Any, match: str) -> None:
    w = Variable(torch.ones(2, dtype=torch.complex64), name="w")
    with pytest.raises(error, match=match):
        keras.optimizers.SGD(0.1).apply_gradients([(grad, w)])
    assert w.tolist() == [1, 1]


def test_complex_nan_gradient_raises_with_its_name() -> None:
    w = Variable(torch.ones(2, dtype=torch.complex64), name="w")
    grad = torch.complex(torch.ones(2), torch.tensor([0.0, float("nan")]))
    with (
        thalweg.engine(check_numerics=True),
        pytest.raises(InvalidArgumentError, match="gradient of 'w:0' : Tensor had NaN values"),
    ):
        keras.optimizers.SGD(0.1).apply_gradients([(grad, w)])
