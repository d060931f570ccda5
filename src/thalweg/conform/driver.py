"""Execution of a torch-style optimizer on fixed gradients."""

# torch does not annotate `from_numpy` and all of its random functions.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.conform.candidate import Candidate, ConformError

STEPS = 20
SHAPES: tuple[tuple[int, ...], ...] = ((), (7,), (24, 16), (16, 24), (6, 8, 3, 3))
MATRICES = tuple(shape for shape in SHAPES if len(shape) == 2)

Shapes = tuple[tuple[int, ...], ...]


class Model(torch.nn.Module):
    """Module with copies of parameters, for constructors that require a model."""

    def __init__(self, params: list[Tensor]) -> None:
        super().__init__()
        for index, param in enumerate(params):
            self.register_parameter(f"p{index}", torch.nn.Parameter(param.detach()))


# First arguments of constructors, with their description for messages.
KINDS = {"list": "a list of parameters", "groups": "groups", "model": "a model"}


@dataclass(frozen=True)
class StepProtocol:
    """Way to construct and step an optimizer.

    Attributes:
        kind: The first argument of the constructor: "list", "groups" or "model".
        shapes: The shapes of the parameters.
        closure: True if `step` needs a closure.
    """

    kind: str = "list"
    shapes: Shapes = SHAPES
    closure: bool = False

    def __str__(self) -> str:
        matrices = ", matrices only" if self.shapes == MATRICES else ""
        return f"{self.kind}{', closure' if self.closure else ''}{matrices}"


def find_ways(*sides: Candidate) -> list[StepProtocol]:
    """Return a list with a protocol for each candidate, by which the candidate can take a step.

    Parameters have several shapes. If this fails for a candidate, all protocols use only matrices.

    Raises:
        ConformError: A required argument is missing, or no protocol works; the message says why.
    """
    first: ConformError | None = None
    for shapes in (SHAPES, MATRICES):
        try:
            return [_find_way(side, shapes) for side in sides]
        except ConformError as error:
            first = first or error
    raise first or AssertionError


def _find_way(side: Candidate, shapes: Shapes) -> StepProtocol:
    """Take a step by each protocol in turn; return the first that works, or raise ConformError."""
    side.check_arguments()
    kinds = ["groups"] if side.group else ["model"] if side.wants_model() else list(KINDS)
    # The first message of each cause.
    causes: dict[str, str] = {}
    for kind in kinds:
        for closure in (False, True):
            protocol = StepProtocol(kind, shapes, closure)
            try:
                drive(side, protocol, 1)
            except ConformError as error:
                if not closure and (kind != "model" or side.wants_model()):
                    causes.setdefault(str(error.__cause__), str(error))
            else:
                return protocol
    raise ConformError(" ".join(causes.values()))


def drive(side: Candidate, protocol: StepProtocol, steps: int, seed: int = 0) -> list[list[Tensor]]:
    """Run an optimizer with warnings suppressed; return its parameters at the start and each step.

    Args:
        side: The constructor of the optimizer and its arguments.
        protocol: The way to construct and step the optimizer.
        seed: The seed of torch's CPU generator; the generator's state is restored afterwards.

    Returns:
        `steps` + 1 lists of copies of all parameters: at the start, then after each step.

    Raises:
        ConformError: The constructor or a step fails.
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # Warnings of other packages do not concern the comparison.
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        return _drive(side, protocol, steps)


def _drive(side: Candidate, protocol: StepProtocol, steps: int) -> list[list[Tensor]]:
    """Construct an optimizer and take `steps` steps; return its parameters as `drive` does."""
    params = params_of(protocol.shapes)
    argument: Any = params
    if protocol.kind == "groups":
        argument = [{"params": params, **side.group}]
    if protocol.kind == "model":
        argument = Model(params)
        params = list(argument.parameters())
    try:
        optimizer = side.make(argument, **side.arguments)
        set_training = getattr(optimizer, "train", None)
        # Schedule-free optimizers raise in `step` unless they are in training mode.
        if callable(set_training):
            set_training()
    except (Exception, SystemExit) as error:
        text = f"{side.name} cannot be made of {KINDS[protocol.kind]}"
        raise ConformError(f"{text}: {_describe(error)}.") from error
    if not callable(getattr(optimizer, "step", None)):
        raise ConformError(f"{side.name} makes a {type(optimizer).__name__}, which has no step.")
    snapshots = [[param.detach().clone() for param in params]]
    for step in range(steps):
        # Gradients do not depend on parameters: differences stay those of the optimizers alone.
        grads = gradients_of(step, protocol.shapes)

        def loss(grads: list[Tensor] = grads) -> Tensor:
            """Set the gradients and return a loss: the closure of `step`."""
            _set_gradients(params, grads)
            pairs = zip(params, grads, strict=True)
            return torch.stack([(param.detach() * grad).sum() for param, grad in pairs]).sum()

        _set_gradients(params, grads)
        try:
            optimizer.step(loss) if protocol.closure else optimizer.step()
        # Code of other packages may even call `sys.exit`.
        except (Exception, SystemExit) as error:
            raise ConformError(
                f"{side.name} fails in step {step + 1}: {_describe(error)}."
            ) from error
        snapshots.append([param.detach().clone() for param in params])
    return snapshots


def _set_gradients(params: list[Tensor], grads: list[Tensor]) -> None:
    """Set `grad` of each parameter to a copy."""
    for param, grad in zip(params, grads, strict=True):
        # A copy, since some optimizers write into gradients.
        param.grad = grad.clone()


def _describe(error: BaseException) -> str:
    """Return the class and message of an error in one line."""
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def params_of(shapes: Shapes) -> list[Tensor]:
    """Return parameters in [-1/8, 1/8], where float32 resolves steps of a small learning rate."""
    return [_values(shape, 1000 + index, 1024.0).requires_grad_()
            for index, shape in enumerate(shapes)]  # fmt: skip


def gradients_of(step: int, shapes: Shapes) -> list[Tensor]:
    """Return the gradients of a step, counted from 0; those of every third step are larger."""
    scale = 32.0 if step % 3 == 0 else 256.0
    return [_values(shape, 17 * step + index, scale) for index, shape in enumerate(shapes)]


def _values(shape: tuple[int, ...], seed: int, scale: float) -> Tensor:
    """Return a tensor of pseudorandom integers in [-128, 128], divided by `scale`."""
    # A linear congruence of integers has the same values on every machine and version.
    # Values are multiples of a power of 2, which float32 holds exactly.
    count = int(np.prod(shape, dtype=np.int64))
    mixed = (np.arange(count, dtype=np.uint64) + np.uint64(1000003 * (seed + 1))) * np.uint64(
        6364136223846793005
    )
    integers = (mixed >> np.uint64(40)) % np.uint64(257)
    return torch.from_numpy((integers.astype(np.float32) - 128) / np.float32(scale)).reshape(shape)
