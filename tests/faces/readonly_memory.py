"""Steps whose numbers lie in memory that may only be read; a wrong one ends the process.

`attempt` is called by `attack.server`, in a child.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recorded_kinds import TRAININGS, Training, by_grad, of_torch
from thalweg import optim
from thalweg.optim.rule_names import KINDS

MATRICES = ("Muon", "NorMuon", "AdaMuon", "MuonH", "SOAP", "KLSOAP")
TABLE: dict[str, Training] = dict(TRAININGS)
TABLE |= {
    f"optim-{name}": of_torch(getattr(optim, name), by_grad)
    for name in KINDS
    if name != "SparseAdam"
}
TABLE["optim-sphere"] = of_torch(optim.AdamW, by_grad, sphere=True)
TABLE["optim-accumulate"] = of_torch(optim.AdamW, by_grad, accumulate=2)
# Each updates its parameter before the next has a gradient.
IN_TURN = ("optim-AdamW-in_backward",)
# What wraps a step has averages that follow it.
UNCHECKED = ("v1-MovingAverageOptimizer",)


def begin(name: str) -> tuple[Any, list[Any], Training]:
    """Return an optimizer after some steps, the last of which may be repeated."""
    training = TABLE[name]
    shapes = ((4, 3),) if name.removeprefix("optim-") in MATRICES else ((4, 3), (6,))
    values = [torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape) for shape in shapes]
    variables = [
        training.variable(value.to(training.dtype), f"v{k}") for k, value in enumerate(values)
    ]
    optimizer = training.make(variables)
    for step in range(4):
        training.step(optimizer, variables, step)
    return optimizer, variables, training


def numbers_of(optimizer: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of one element that steps of an optimizer write."""
    if isinstance(optimizer, torch.optim.Optimizer):
        for place, slots in enumerate(optimizer.state.values()):
            for name, value in slots.items():
                if isinstance(value, Tensor) and value.numel() == 1:
                    yield f"{name}/{place}", value
        return
    inner = [optimizer, *(getattr(optimizer, n, None) for n in ("_opt", "_optimizer", "_ema"))]
    scale = getattr(optimizer, "_loss_scale", None)
    tensors: dict[int, tuple[str, Tensor]] = {}
    for wrapper in filter(None, inner):
        variables_of = wrapper.variables() if hasattr(wrapper, "variables") else []
        variables_of = variables_of() if callable(variables_of) else variables_of
        for var in [*variables_of, getattr(wrapper, "_global_step", None)]:
            if isinstance(var, Tensor) and var.numel() == 1:
                tensors[id(var)] = var.name, var
    scaler = getattr(scale, "scaler", scale)
    for var in {**getattr(scale, "_weights", {}), **getattr(scaler, "_variables", {})}.values():
        tensors[id(var)] = var.name, var
    yield from tensors.values()


def protect(tensor: Tensor, folder: str) -> Tensor:
    """Return a tensor over a file with the same numbers that is mapped for reading."""
    path = Path(folder, "numbers")
    tensor.detach().reshape(-1).view(torch.uint8).numpy().tofile(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that the array is not writable
        mapped = torch.from_numpy(np.memmap(path, np.uint8, "r"))
    return mapped.view(tensor.dtype).view(tensor.shape)


def count_numbers(name: str) -> int:
    return len(list(numbers_of(begin(name)[0])))


def attempt(name: str, place: int, replaces: bool) -> str:
    """Take a step with a number in read-only memory, and return what became of it.

    Args:
        name: Of the training.
        place: Of the number among `numbers_of`.
        is_replaced: Whether the state gets another tensor; else the tensor gets other memory.
    """
    optimizer, variables, training = begin(name)
    title, number = list(numbers_of(optimizer))[place]
    with tempfile.TemporaryDirectory() as folder:
        protected = protect(number, folder)
        if replaces:
            key, _, param = title.rpartition("/")
            list(optimizer.state.values())[int(param)][key] = protected
        else:
            number.data = protected
        initial = [var.detach().clone() for var in variables]
        try:
            for step in range(4, 6):
                training.step(optimizer, variables, step)
        except Exception as error:
            is_equal = all(map(torch.equal, initial, variables)) or name in IN_TURN + UNCHECKED
            return f"{'refused' if is_equal else 'changed'} {type(error).__name__}: {error}"
    return "taken"


def warm() -> None:
    """Set one thread, and no warnings."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
