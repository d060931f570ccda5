"""`thalweg.engine(check_numerics=True)`: gradients that are not finite are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thalweg
from keras_table import both_engines
from thalweg import IndexedSlices, Variable, keras, v1
from thalweg.errors import InvalidArgumentError
from thalweg.openseq2seq.optimizers import optimize_loss

FACES = {
    "keras": lambda: keras.optimizers.Adam(0.1),
    "keras_clipped": lambda: keras.optimizers.Adam(0.1, global_clipnorm=1.0),
    "keras_whole": lambda: keras.optimizers.RuleOptimizer(thalweg.rules.NOVOGRAD, clipnorm=1.0),
    "v1": lambda: v1.train.AdamOptimizer(0.1),
}
KINDS = {"NaN": float("nan"), "Inf": float("inf"), "-Inf": -float("inf")}


def _sparse(values: torch.Tensor) -> Any:
    return IndexedSlices(values[:2], torch.tensor([1, 1]), (4, 3))


@pytest.mark.one_in(3)
@both_engines
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("face", FACES)
def test_nonfinite_gradient_raises(
    face: str, sparse: bool, kind: str, steps: int, engine: Any
) -> None:
    a, b = Variable(torch.ones(5), name="a"), Variable(torch.ones(4, 3), name="b")
    convert = _sparse if sparse else torch.Tensor.clone
    good, bad = torch.full((4, 3), 0.5), torch.full((4, 3), 0.5)
    bad[1, 2] = KINDS[kind]
    opt: Any = FACES[face]()
    with thalweg.engine(engine, check_numerics=True):
        for _ in range(steps):
            opt.apply_gradients([(torch.ones(5), a), (convert(good), b)])
        initial = a.detach().clone(), b.detach().clone()
        match = f"gradient of 'b:0' : Tensor had {kind.lstrip('-')} values"
        with pytest.raises(InvalidArgumentError, match=match) as excinfo:
            opt.apply_gradients([(torch.ones(5), a), (convert(bad), b)])
        assert "no variable and no slot has changed" in excinfo.value.__notes__[0]
        assert torch.equal(a, initial[0])
        assert torch.equal(b, initial[1])
        opt.apply_gradients([(torch.ones(5), a), (convert(good), b)])
        assert not torch.equal(b, initial[1])


@both_engines
def test_large_finite_gradients_pass(engine: Any) -> None:
    w = Variable(torch.zeros(2, dtype=torch.float64))
    with thalweg.engine(engine, check_numerics=True):
        keras.optimizers.SGD(1.0).apply_gradients([(torch.full_like(w, 1e300), w)])
    assert w.tolist() == [-1e300] * 2


def test_loss_scaler_handles_nonfinite_gradients() -> None:
    w = Variable(torch.ones(2, dtype=torch.float16), name="w")
    step = optimize_loss(
        lambda: (w.float() * float("inf")).sum(),
        "Momentum",
        {"momentum": 0.9},
        lambda global_step: 0.1,
        var_list=[w],
        dtype="mixed",
        loss_scaling="Backoff",
    )
    with thalweg.engine(check_numerics=True):
        step()
    assert w.tolist() == [1.0, 1.0]


def test_check_numerics_is_off_by_default() -> None:
    w = Variable(torch.ones(1))
    with thalweg.engine(check_numerics=True), thalweg.engine("cpu", check_numerics=False):
        keras.optimizers.SGD(1.0).apply_gradients([(torch.tensor([float("nan")]), w)])
    assert w.isnan().all()
    with pytest.raises(TypeError, match="check_numerics must be a bool, not 'yes'"):
        thalweg.engine(check_numerics="yes")  # pyright: ignore
