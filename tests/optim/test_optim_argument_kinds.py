"""Arguments of constructors as NumPy's and torch's scalars, arrays and sequences."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from thalweg import optim
from thalweg.optim import tensorflow
from thalweg.optim.rule_names import KINDS
from thalweg.optim.step_options import KEYWORDS

CLASSES = [*((optim, name) for name in KINDS), *((tensorflow, name) for name in tensorflow.__all__)]
NUMBERS: dict[str, Callable[[float], Any]] = {
    "float32": np.float32,
    "int64": np.int64,
    "array of shape ()": lambda value: np.array(float(value)),
    "tensor of shape ()": lambda value: torch.tensor(float(value)),
    "array of two": lambda value: np.ones(2),
    "a list": lambda value: [value],
    "complex64": lambda value: np.complex64(value + 0.5j),
}
PAIRS: dict[str, Callable[[tuple[float, ...]], Any]] = {
    "float32": lambda values: tuple(map(np.float32, values)),
    "arrays of shape ()": lambda values: tuple(np.array(float(tensor)) for tensor in values),
    "an array": np.array,
    "a tensor": torch.tensor,
    "a number": lambda values: np.float32(0.5),
    "too few": lambda values: values[:1],
    "arrays of shape (1,)": lambda values: tuple(np.array([float(tensor)]) for tensor in values),
}


# No step reads these with the other defaults, and torch's constructor takes what it can of them.
UNREAD = {("SGD", "dampening"), ("Adagrad", "initial_accumulator_value")}


def _kinds_of(default: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(default, tuple) and all(isinstance(tensor, float | int) for tensor in default):
        yield from ((name, make(default)) for name, make in PAIRS.items())
    elif type(default) in (float, int) and default != float("inf"):
        yield from ((name, make(default)) for name, make in NUMBERS.items())


def _step(opt: Any, param: torch.Tensor) -> None:
    grad = torch.ones(2, 3)
    param.grad = grad.to_sparse(1) if isinstance(opt, optim.SparseAdam) else grad
    opt.step()


@pytest.mark.filterwarnings("ignore:Conversion of an array", "ignore:Casting complex")
@pytest.mark.parametrize(("module", "name"), CLASSES)
@pytest.mark.one_in(7)
def test_arguments_are_accepted_and_saved_or_raise_with_their_name(module: Any, name: str) -> None:
    cls = getattr(module, name)
    for argument, parameter in inspect.signature(cls).parameters.items():
        if argument in KEYWORDS or (name, argument) in UNREAD:
            continue
        for kind, value in _kinds_of(parameter.default):
            param = torch.nn.Parameter(torch.ones(2, 3))
            try:
                opt = cls([param], **{argument: value})
                _step(opt, param)
            except (TypeError, ValueError, RuntimeError):
                continue
            assert kind not in ("complex64", "array of two", "too few"), (argument, kind)
            opt.load_state_dict(copy.deepcopy(opt.state_dict()))
            _step(opt, param)


COEFFICIENTS: dict[str, Any] = {
    "numbers": tuple(map(np.float32, (3.0, -4.5, 2.0))),
    "arrays of shape ()": tuple(map(np.array, (3.0, -4.5, 2.0))),
    "tensors of shape ()": tuple(map(torch.tensor, (3.0, -4.5, 2.0))),
    "an array": np.array([3.0, -4.5, 2.0]),
    "a list": [3.0, -4.5, 2.0],
    "a tensor": torch.tensor([3.0, -4.5, 2.0]),
    "integers for one": (np.int64(3), -4.5, 2),
    "an array of triples": np.array([[3.0, -4.5, 2.0]] * 5),
    "triples": ((np.float64(3), -4.5, 2.0),),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["Muon", "NorMuon", "AdaMuon", "MuonH"])
@pytest.mark.parametrize("kind", COEFFICIENTS)
def test_coefficients_are_numbers_of_any_kind(name: str, kind: str) -> None:
    results: list[torch.Tensor] = []
    for value in (COEFFICIENTS[kind], (3.0, -4.5, 2.0)):
        param = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
        opt = getattr(optim, name)([param], ns_coefficients=value, ns_steps=np.int64(4))
        _step(opt, param)
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))
        results.append(param.detach())
    assert torch.equal(*results)


INPUTS_WITHOUT_VALUE: list[Any] = [
    np.float32(0.5), np.int64(1), np.bool_(True), np.array(0.5), torch.tensor(0.5), np.ones(2),
    torch.ones(2), (), ((),), (1.0, (1.0, 2.0, 3.0)), (2**200, 1.0, 1.0), (1e39, 1.0, 1.0), 0.5,
]  # fmt: skip


@pytest.mark.parametrize("name", ["Muon", "NorMuon", "AdaMuon", "MuonH"])
@pytest.mark.parametrize("value", INPUTS_WITHOUT_VALUE, ids=repr)
def test_coefficients_that_are_not_triples_raise(name: str, value: Any) -> None:
    param = torch.nn.Parameter(torch.ones(2, 3))
    with pytest.raises(ValueError, match="ns_coefficients must be three numbers"):
        getattr(optim, name)([param], ns_coefficients=value)
