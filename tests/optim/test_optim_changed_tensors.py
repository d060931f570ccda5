"""Gradients and parameters whose layout or dtype changes between steps, compared with torch."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from rulebook import assert_same, slow_unless
from thalweg import optim
from torch_inputs import CLASSES, INPUTS, ROWS, params_of, set_grads

# What the gradients of two parameters are in each step: dense, sparse, none; "w" widens the first
# parameter before, "n" makes it narrow again.
COURSES = ("dd ss ss", "ss dd ss", "dd sd ds dd", "ss s- -s ss", "dd wdd dd ndd dd", "ss wss nss")
Options = Sequence[dict[str, Any]]
QUICK = {"", "default", "default with weight_decay"}


def of_kinds(params: list[Any], step: int, kinds: str) -> None:
    """Set gradients of the given layouts."""
    for param, kind in zip(params, kinds[-2:], strict=True):
        set_grads([param], step, kind == "s")
        if kind == "-":
            param.grad = None


def run_course(module: Any, make: Any, course: str, options: Options = ()) -> list[Any]:
    """Return the error, values and state after each step of a course.

    Torch changes parameters before the one that raises; restore them after an error.
    """
    params, outcomes = params_of(torch.float32, ROWS), []
    opt = make(module, params)
    for step, kinds in enumerate(course.split()):
        if len(kinds) > 2:
            dtype = torch.float64 if kinds[0] == "w" else torch.float32
            params[0].grad = None
            params[0].data = params[0].data.to(dtype)
        if step < len(options):
            opt.param_groups[0].update(options[step])
        of_kinds(params, step, kinds)
        values = [param.detach().clone() for param in params]
        state = [copy.deepcopy(opt.state.get(param)) for param in params]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch's own sparse tensors
                opt.step()
            error_text = ""
        except RuntimeError as error:
            error_text = f"{type(error).__name__}: {error}"
            if module is torch.optim:
                put_back(opt, params, values, state)
        values = [param.detach().clone() for param in params]
        outcomes.append((error_text, values, copy.deepcopy(opt.state_dict()["state"])))
    return outcomes


def put_back(opt: Any, params: list[Any], values: list[Any], state: list[Any]) -> None:
    for param, value, slots in zip(params, values, state, strict=True):
        param.data = value
        opt.state.pop(param, None)
        if slots is not None:
            opt.state[param] = slots


def assert_as_torch(make: Any, course: str, options: Options = ()) -> int:
    """Compare a course with torch and return the number of steps that raised."""
    actual, expected_outcomes = (
        run_course(module, make, course, options) for module in (optim, torch.optim)
    )
    count = 0
    for (error_text, values, state), (expected, expected_values, expected_state) in zip(
        actual, expected_outcomes, strict=True
    ):
        if "is dense, and its momentum sparse" in error_text:
            assert "add(sparse, dense)" in expected
        else:
            assert error_text == expected
        count += bool(error_text)
        torch.testing.assert_close(values, expected_values, rtol=3e-6, atol=1e-7)
        for key, slot in state.items():
            for name, value in slot.items() if key in expected_state else ():
                torch.testing.assert_close(value, expected_state[key][name], rtol=3e-6, atol=1e-7)
    return count


@pytest.mark.one_in(3)
@pytest.mark.parametrize("course", COURSES)
@pytest.mark.parametrize(
    "case",
    [slow_unless(case.described in QUICK or case.name == "SGD", case) for case in INPUTS],
    ids=str,
)
def test_changed_tensors_are_detected_in_every_step(case: Any, course: str) -> None:
    assert_as_torch(case.make, course)


@pytest.mark.parametrize(
    ("name", "options", "error_step"),
    [
        ("SGD", [{}, {"weight_decay": 0.1}, {"weight_decay": 0.0}], 1),
        ("SGD", [{}, {}, {"momentum": 0.9}], 0),
        ("Adagrad", [{}, {}, {"weight_decay": 0.1}], 2),
        ("Adagrad", [{}, {"lr": 0.2}, {"eps": 0.1}], 0),
        ("SparseAdam", [{}, {"lr": 0.2}], 0),
    ],
)
def test_sparse_support_of_options_is_checked_in_every_step(
    name: str, options: list[dict[str, Any]], error_step: int
) -> None:
    count = assert_as_torch(
        lambda module, params: getattr(module, name)(params, lr=0.1), "ss ss ss ss", options
    )
    assert count == error_step


@pytest.mark.parametrize("course", ["dd dd sd dd", "dd dd ds dd", "ds ds dd ds"])
def test_changed_tensors_of_every_rule_are_detected(course: str) -> None:
    def make(module: Any, params: list[Any]) -> Any:
        return module.SGD([{"params": params[:1], "momentum": 0.9}, {"params": params[1:]}], lr=0.1)

    assert_as_torch(make, course)


DENSE_OPTIONS: dict[str, Any] = {
    "in_backward": True,
    "accumulate": 2,
    "ema_decay": 0.9,
    "clip_grad_norm": 1.0,
    "masters": True,
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("option", DENSE_OPTIONS)
@pytest.mark.parametrize(
    "name", [name for name in CLASSES if name not in ("SparseAdam", "Adagrad")]
)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_sparse_gradients_with_dense_options_raise(name: str, option: str) -> None:
    extra_kwargs = {"momentum": 0.9} if name == "SGD" else {}
    (param,) = params = params_of(torch.float32, ROWS[:1])
    opt = getattr(optim, name)(params, lr=0.1, **extra_kwargs, **{option: DENSE_OPTIONS[option]})
    table = torch.nn.functional.embedding

    def passed(sparse: bool) -> None:
        """Run a backward pass and take a step."""
        rows = table(torch.tensor([1, 1, 3]), param, sparse=sparse)
        rows.sum().backward()
        opt.step()
        param.grad = None

    passed(False), passed(False)
    previous = copy.deepcopy(opt.state_dict()["state"]), param.detach().clone()
    error = NotImplementedError if name == "SGD" else RuntimeError
    with pytest.raises(error, match=r"takes dense ones|does not support sparse"):
        passed(True), passed(True)
    assert_same([param.detach()], [previous[1]])
    slots = opt.state_dict()["state"][0]
    for entries in (slots, previous[0][0]):
        entries.pop("gradient_sum", None)
    torch.testing.assert_close({0: slots}, previous[0], rtol=0, atol=0)


def test_dense_gradient_after_sparse_raises_in_the_backward_pass() -> None:
    (param,) = params = params_of(torch.float32, ROWS[:1])
    opt = optim.SparseAdam(params, in_backward=True)
    torch.nn.functional.embedding(torch.tensor([1, 1]), param, sparse=True).sum().backward()
    previous = param.detach().clone()
    with pytest.raises(RuntimeError, match="SparseAdam does not support dense gradients"):
        param.sum().backward()
    assert_same([param.detach()], [previous])
    assert opt.state[param]["step"] == 1
