"""Clipping by norms: the bits of a step depend neither on layouts nor on engines nor on history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thalweg
from rulebook import assert_same, slow_unless
from thalweg import Variable, keras, optim

SHAPES = ((6, 5), (4, 3, 5, 7), (11,))


def permuted(tensor: Tensor) -> Tensor:
    """A tensor whose memory has its dimensions in reverse order."""
    order = list(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def channels_last(tensor: Tensor) -> Tensor:
    is_image = tensor.dim() == 4
    return tensor.contiguous(memory_format=torch.channels_last) if is_image else permuted(tensor)


Layout = Callable[[Tensor], Tensor]
LAYOUTS: tuple[Layout, ...] = (torch.clone, permuted, channels_last)
FACES: dict[str, Callable[[list[Any]], Any]] = {
    "keras-clipnorm": lambda _: keras.optimizers.Adam(0.1, clipnorm=0.3),
    "keras-global_clipnorm": lambda _: keras.optimizers.SGD(0.1, 0.9, global_clipnorm=0.5),
    "optim-clip_grad_norm": lambda params: optim.AdamW(params, lr=0.1, clip_grad_norm=0.5),
    "optim-LAMB": lambda params: optim.LAMB(params, lr=0.1, clip_grad_norm=0.5),
    "optim-trust_ratio": lambda params: optim.SGD(params, lr=0.1, momentum=0.9, trust_ratio=True),
    "optim-Mixed": lambda params: optim.Mixed(
        [{"params": params[:1], "rule": "SGD"}, {"params": params[1:], "rule": "Lion"}],
        clip_grad_norm=0.5,
    ),
}


def numbers(step: int, place: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + place)
    return torch.randn(SHAPES[place], generator=generator, dtype=torch.float64)


def take_step(opt: Any, params: list[Any], step: int, layout: Layout) -> None:
    grads = [layout(numbers(step, place)) for place in range(len(params))]
    if isinstance(opt, torch.optim.Optimizer):
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        opt.step()
    else:
        opt.apply_gradients(list(zip(grads, params, strict=True)))


def trained(face: str, layouts: tuple[Layout, Layout], relay: Layout | None = None) -> list[Tensor]:
    """Return variables of float64, whose every bit shows the norms, after six steps.

    Args:
        face: One of `FACES`.
        layouts: Of the variables and of their gradients.
        later: Optional. The layout that the variables' data get after three steps.
    """
    of_variables, of_gradients = layouts
    values = [of_variables(numbers(999, place)) for place in range(len(SHAPES))]
    params: list[Any] = [Variable(value, f"w{k}") for k, value in enumerate(values)]
    if face.startswith("optim"):
        params = [torch.nn.Parameter(value) for value in values]
    opt = FACES[face](params)
    for step in range(6):
        if relay is not None and step == 3:
            for var in params:
                var.data = relay(var.detach())
        take_step(opt, params, step, of_gradients)
    return [var.detach().clone(memory_format=torch.contiguous_format) for var in params]


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore::thalweg.errors.PerformanceWarning")
@pytest.mark.parametrize(
    ("face", "engine"),
    [
        slow_unless(engine == "cpu", face, engine)
        for face in FACES
        for engine in ("cpu", "reference")
    ],
)
def test_norms_depend_on_values_alone(face: str, engine: str) -> None:
    expected = trained(face, (torch.clone, torch.clone))
    with thalweg.engine(engine):
        for of_variables in LAYOUTS:
            for of_gradients in LAYOUTS:
                assert_same(trained(face, (of_variables, of_gradients)), expected)
        for new_layout in LAYOUTS[1:]:
            assert_same(trained(face, (torch.clone, torch.clone), new_layout), expected)
            assert_same(trained(face, (new_layout, permuted), torch.clone), expected)


@pytest.mark.filterwarnings("ignore::thalweg.errors.PerformanceWarning")
@pytest.mark.parametrize("count", range(1, 5))
def test_norms_do_not_depend_on_slots_and_weights_that_were_set(count: int) -> None:
    """Slots of another layout leave a variable to the reference engine, among others."""

    def make(changes_slots: bool) -> list[Tensor]:
        params = [Variable(numbers(999, place), f"w{place}") for place in range(len(SHAPES))]
        opt = keras.optimizers.Nadam(0.1, global_clipnorm=0.5)
        for step in range(count):
            take_step(opt, params, step, torch.clone)
        if changes_slots:
            slot = opt.get_slot(params[1], "m")
            slot.data = permuted(slot.detach())
            opt.set_weights(opt.get_weights())
        for step in range(count, count + 3):
            take_step(opt, params, step, torch.clone)
        return [var.detach() for var in params]

    assert_same(make(True), make(False))
