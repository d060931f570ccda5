"""Options that are tensors with truncated storage; `attempt` runs in a child process."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from thalweg import optim
from thalweg.optim.step_options import KEYWORDS

CLASSES = ("AdamW", "SGD", "Muon", "Prodigy", "Adafactor", "ASGD", "ScheduleFreeAdamW", "MARS")
SHAPES: dict[str, Callable[[], Any]] = {
    "number": lambda: cut_tensor(()),
    "matrix": lambda: cut_tensor((4, 3)),
    "pair": lambda: (cut_tensor(()), cut_tensor(())),
}


def cut_tensor(shape: tuple[int, ...]) -> Tensor:
    tensor = torch.ones(shape)
    tensor.untyped_storage().resize_(0)
    return tensor


def make_param() -> Tensor:
    param = torch.nn.Parameter(torch.ones(4, 3))
    param.grad = torch.ones(4, 3)
    return param


def _construct(cls: Any, name: str, value: Any) -> None:
    optimizer = cls([make_param()], **{name: value})
    repr(optimizer)
    optimizer.step()


def _construct_group(cls: Any, name: str, value: Any) -> None:
    cls([{"params": [make_param()], name: value}]).step()


def _set(cls: Any, name: str, value: Any) -> None:
    optimizer = cls([make_param()])
    for _ in range(3):
        optimizer.step()
    optimizer.param_groups[0][name] = value
    repr(optimizer)
    optimizer.step()


def _add(cls: Any, name: str, value: Any) -> None:
    optimizer = cls([make_param()])
    optimizer.add_param_group({"params": [make_param()], name: value})


def _add_beside(cls: Any, name: str, value: Any) -> None:
    optimizer = cls([make_param()])
    optimizer.param_groups[0][name] = value
    optimizer.add_param_group({"params": [make_param()]})


def _load(cls: Any, name: str, value: Any, **how: Any) -> None:
    optimizer = cls([make_param()])
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0][name] = value
    optimizer.load_state_dict(state, **how)


def _convert(cls: Any, name: str, value: Any) -> None:
    _load(cls, name, value, convert=True)


ACTS = {
    act.__name__.strip("_"): act
    for act in (_construct, _construct_group, _set, _add, _add_beside, _load, _convert)
}


def cases() -> Iterator[tuple[str, str, str, str]]:
    """Yield classes, options, actions and shapes."""
    for title in CLASSES:
        names = [*inspect.signature(getattr(optim, title)).parameters]
        known_values = dict.fromkeys([*names[1:], *(KEYWORDS if title == "AdamW" else ())])
        for name in known_values:
            for act in ACTS:
                for shape in SHAPES:
                    yield title, name, act, shape


def attempt(title: str, name: str, act: str, shape: str) -> str:
    """Return "done" or the error of an action."""
    try:
        ACTS[act](getattr(optim, title), name, SHAPES[shape]())
    except (ValueError, TypeError, RuntimeError) as error:
        return f"refused {type(error).__name__}"
    return "done"


def warm() -> None:
    """Use one thread and ignore warnings."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
