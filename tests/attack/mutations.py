"""States as they come from damaged files and careless code: one random change at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Unreadable(Tensor):
    """A tensor that fails whatever is done with it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("unreadable")


class Unwritten(Tensor):
    """A tensor that can be looked at and not be copied from."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "copy_":
            raise RuntimeError("unwritten")
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapper(Tensor):
    """A tensor whose operations are all its own, and fail."""

    @staticmethod
    def __new__(cls, wrapped: Tensor) -> Any:
        return Tensor._make_wrapper_subclass(cls, wrapped.shape, dtype=wrapped.dtype)  # pyright: ignore

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("wrapped")


def freed(tensor: Tensor) -> Tensor:
    tensor_copy = tensor.clone()
    tensor_copy.untyped_storage().resize_(0)
    return tensor_copy


def cut(tensor: Tensor) -> Tensor:
    tensor_copy = torch.cat([tensor.flatten(), tensor.flatten()]).clone()[: tensor.numel()]
    tensor_copy = tensor_copy.reshape(tensor.shape)
    tensor_copy.untyped_storage().resize_(max(0, tensor.numel() * tensor.element_size() - 1))
    return tensor_copy


def nested(tensor: Tensor) -> Tensor:
    return torch.nested.nested_tensor([tensor.flatten()], layout=torch.jagged)


CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "freed": freed,
    "cut": cut,
    "meta": lambda tensor: tensor.to("meta"),
    "sparse": lambda tensor: tensor.to_sparse() if tensor.dim() else tensor.to("meta"),
    "nested": nested,
    "double": lambda tensor: tensor.double(),
    "half": lambda tensor: tensor.half(),
    "integers": lambda tensor: tensor.to(torch.int32),
    "bool": lambda tensor: tensor.bool(),
    "complex": lambda tensor: tensor.to(torch.complex64),
    "conjugate": lambda tensor: tensor.to(torch.complex64).conj(),
    "negative": lambda tensor: -1 - tensor,
    "negated": lambda tensor: torch.complex(tensor.float(), -tensor.float()).conj().imag,
    "nan": lambda tensor: torch.full_like(tensor.float(), float("nan")),
    "longer": lambda tensor: torch.cat([tensor.flatten(), tensor.flatten()]),
    "flat": lambda tensor: tensor.flatten(),
    "transposed": lambda tensor: tensor.mT if tensor.dim() > 1 else tensor[None],
    "strided": lambda tensor: torch.stack([tensor, tensor], -1)[..., 0],
    "spread": lambda tensor: tensor.flatten()[0].expand(tensor.shape),
    "first": lambda tensor: tensor.flatten()[0],
    "trained": lambda tensor: torch.nn.Parameter(tensor.float()),
    "unreadable": lambda tensor: tensor.as_subclass(Unreadable),
    "unwritten": lambda tensor: tensor.as_subclass(Unwritten),
    "wrapper": Wrapper,
    "list": lambda tensor: tensor.tolist(),
    "array": lambda tensor: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(),
    "number": lambda tensor: tensor.flatten()[0].item(),
}
JUNK: list[Any] = [
    None, True, False, "", "m", b"m", 0, 1, -1, 2, 2**31, 2**63, -(2**63) - 1, 2**64, 10**400,
    -(10**400), 10**5000, 0.0, 0.5, -0.5, 1e39, 1e308, float("nan"), float("inf"), -float("inf"),
    1j, [], [1.0], (1,), {}, {"m": 1}, {"m": torch.zeros(3)}, set(), object(), len, int,
    np.float32(0.5), np.float64(0.5), np.int64(3), np.bool_(True), np.ones(3, "f4"),
    np.array("m"), np.array([None]), torch.tensor(0.5), torch.tensor(3), torch.tensor(True),
    torch.zeros(0), torch.zeros(3),
]  # fmt: skip
NAMES: list[Any] = ["", "w", "a", "a:0", "a/m", "m", "é", "a:0#1", 0, None, True, (1,), 1.5, b"m"]


def _own(value: Any) -> Any:
    return value.clone() if type(value) is Tensor else value


def places(state: Any) -> Iterator[tuple[dict[Any, Any], Any]]:
    """Yield every dictionary in a state with each of its keys."""
    for key, value in state.items():
        yield state, key
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, dict):
                yield from places(entry)


def mutated(state: dict[str, Any], dice: random.Random) -> str:
    return mutated_at(state, dice)[0]


def mutated_at(state: dict[str, Any], dice: random.Random) -> tuple[str, list[Any]]:
    """Mutate the state in one place; return a description and the changed keys."""
    locations = list(places(state))
    home, key = dice.choice(locations)
    value = home[key]
    kind = dice.choice(
        ["change", "change", "change", "junk", "junk", "drop", "add", "rename", "swap"]
    )
    if kind == "change" and isinstance(value, Tensor):
        name = dice.choice(list(CHANGES))
        try:
            home[key] = CHANGES[name](value)
        except (RuntimeError, NotImplementedError):  # of rows, of which torch makes no such thing
            home[key] = CHANGES[name](value.to_dense())
        return f"{key}: {name}", [key]
    keys = [key]
    if kind == "drop":
        del home[key]
    elif kind == "add":
        keys = [dice.choice(NAMES)]
        home[keys[0]] = _own(dice.choice([*JUNK, value]))
    elif kind == "rename":
        keys.append(dice.choice(NAMES))
        home[keys[1]] = home.pop(key)
    elif kind == "swap":
        second_home, name = dice.choice(locations)
        home[key], second_home[name] = second_home[name], home[key]
        keys.append(name)
    else:
        home[key] = _own(dice.choice(JUNK))
    return f"{key}: {kind}", keys
