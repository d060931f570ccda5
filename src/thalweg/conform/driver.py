"""An optimizer of torch's kind, driven over fixed gradients."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thalweg.conform.candidate import Candidate
from thalweg.conform.errors import ConformError
from thalweg.conform.inputs import MATRICES, SHAPES, Shapes, gradients_of, params_of


class Model(torch.nn.Module):
    """A module of given parameters, for what is made of a model."""

    def __init__(self, params: list[Tensor]) -> None:
        super().__init__()
        for place, param in enumerate(params):
            self.register_parameter(f"p{place}", torch.nn.Parameter(param.detach()))


# What a constructor may want: its parameters in a list, in groups, or as a model has them.
KINDS = {"list": "a list of parameters", "groups": "groups", "model": "a model"}


@dataclass(frozen=True)
class StepProtocol:
    """Way in which an optimizer is driven.

    Attributes:
        kind: The argument of its constructor: "list", "groups" or "model".
        shapes: The shapes of the parameters.
        closure: Whether its step needs a closure.
    """

    kind: str = "list"
    shapes: Shapes = SHAPES
    closure: bool = False

    def __str__(self) -> str:
        matrices = ", matrices only" if self.shapes == MATRICES else ""
        return f"{self.kind}{', closure' if self.closure else ''}{matrices}"


def find_ways(*sides: Candidate) -> list[StepProtocol]:
    """Return ways to drive each side over the same parameters: all of them, or else matrices alone.

    Raises:
        ConformError: An argument is missing, or there is no such way; says what went wrong.
    """
    first: ConformError | None = None
    for shapes in (SHAPES, MATRICES):
        try:
            return [_find_way(side, shapes) for side in sides]
        except ConformError as error:
            first = first or error
    raise first or AssertionError


def _find_way(side: Candidate, shapes: Shapes) -> StepProtocol:
    side.check_arguments()
    kinds = ["groups"] if side.group else ["model"] if side.wants_model() else list(KINDS)
    causes: dict[str, str] = {}  # of each, what was said first
    for kind in kinds:
        for closure in (False, True):
            way = StepProtocol(kind, shapes, closure)
            try:
                drive(side, way, 1)
            except ConformError as error:
                if not closure and (kind != "model" or side.wants_model()):
                    causes.setdefault(str(error.__cause__), str(error))
            else:
                return way
    raise ConformError(" ".join(causes.values()))


def drive(side: Candidate, way: StepProtocol, steps: int, seed: int = 0) -> list[list[Tensor]]:
    """Return the parameters before the first step and after each.

    Args:
        side: What makes the optimizer.
        way: How it is made and called.
        steps: How many it takes.
        seed: Where torch's random numbers begin; they go on as before afterwards.

    Raises:
        ConformError: It cannot be made, or a step fails.
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages, which nobody asked for here
        torch.manual_seed(seed)
        return _drive(side, way, steps)


def _drive(side: Candidate, way: StepProtocol, steps: int) -> list[list[Tensor]]:
    params = params_of(way.shapes)
    handed: Any = params
    if way.kind == "groups":
        handed = [{"params": params, **side.group}]
    if way.kind == "model":
        handed = Model(params)
        params = list(handed.parameters())
    try:
        made = side.make(handed, **side.arguments)
        begin = getattr(made, "train", None)
        if callable(begin):  # as schedule-free optimizers want to be told
            begin()
    except (Exception, SystemExit) as error:
        what = f"{side.name} cannot be made of {KINDS[way.kind]}"
        raise ConformError(f"{what}: {_describe(error)}.") from error
    if not callable(getattr(made, "step", None)):
        raise ConformError(f"{side.name} makes a {type(made).__name__}, which has no step.")
    found = [[param.detach().clone() for param in params]]
    for step in range(steps):
        grads = gradients_of(step, way.shapes)

        def loss(grads: list[Tensor] = grads) -> Tensor:
            _set_gradients(params, grads)
            pairs = zip(params, grads, strict=True)
            return torch.stack([(param.detach() * grad).sum() for param, grad in pairs]).sum()

        _set_gradients(params, grads)
        try:
            made.step(loss) if way.closure else made.step()
        except (Exception, SystemExit) as error:
            raise ConformError(
                f"{side.name} fails in step {step + 1}: {_describe(error)}."
            ) from error
        found.append([param.detach().clone() for param in params])
    return found


def _set_gradients(params: list[Tensor], grads: list[Tensor]) -> None:
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad.clone()  # some write into what they are given


def _describe(error: BaseException) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
