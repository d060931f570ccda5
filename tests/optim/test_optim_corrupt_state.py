"""Damaged states: errors are reported at load, unknown entries are kept."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rulebook import assert_same
from test_optim_loading import assert_refused, load_and_step, of_one, step
from thalweg import checkpoint, optim
from thalweg.errors import CheckpointMismatchError, LayoutError
from thalweg.optim import tensorflow

MODULES = {"torch": optim, "tensorflow": tensorflow}
NAN = float("nan")
Change = Callable[[dict[str, Any], dict[Any, Any]], Any]  # called with a group and the states


def state(name: str, value: Any) -> Change:
    """Return a change of the parameter's state."""
    return lambda _, states: states[0].update({name: value})


def option(name: str, value: Any) -> Change:
    """Return a change of the group."""
    return lambda group, _: group.update({name: value})


SUMS, AVERAGES = {"accumulate": 2}, {"ema_decay": 0.9}
DAMAGES: dict[str, tuple[dict[str, Any], Change, str]] = {
    "a state is a number": ({}, lambda _, s: s.update({0: 5}), "the state of '0' is 5, no dict"),
    "and has no average": (
        AVERAGES,
        lambda _, s: s.update({0: 5}),
        "the state of '0' is 5, no dict",
    ),
    "average of another shape": (
        AVERAGES,
        state("ema", torch.ones(2)),
        r"'0/ema' is float32 \(2,\), here float32 \(3, 2\)",
    ),
    "sum of another shape": (
        SUMS,
        state("gradient_sum", torch.ones(2)),
        r"'0/gradient_sum' is float32 \(2,\), here float32 \(3, 2\)",
    ),
    "sum of integers": (
        SUMS,
        state("gradient_sum", torch.ones(3, 2, dtype=torch.int64)),
        "'0/gradient_sum' is int64",
    ),
    "complex sum": (
        SUMS,
        state("gradient_sum", torch.ones(3, 2, dtype=torch.complex64)),
        "'0/gradient_sum' is complex64",
    ),
    "sum is a number": (SUMS, state("gradient_sum", 3.0), "'0/gradient_sum' is 3.0 and no tensor"),
    "passes are text": (SUMS, option("folded", "x"), "'folded' of group 0 is 'x', no number of gr"),
    "passes are nan": (SUMS, option("folded", NAN), "'folded' of group 0 is nan, no number of gr"),
    "passes below 0": (SUMS, option("folded", -3), "'folded' of group 0 is -3, no number of grad"),
    "passes are true": (SUMS, option("folded", True), "'folded' of group 0 is True, no number of"),
    "steps below 0": ({}, state("step", torch.tensor(-1)), "'0/step' is -1.*, and steps count"),
    "steps are text": ({}, state("step", "1"), "'0/step' is '1'"),
    "a flag is none": ({}, option("fused", "m"), "'fused' of group 0 is 'm', neither true nor fal"),
    "names are a number": ({}, option("param_names", 5), "'param_names' of group 0 is 5, no list"),
    "names are of others": (
        {},
        option("param_names", ["a", "b"]),
        "'param_names' of group 0 has 2 names for 1 parameters",
    ),
    "names are lists": ({}, option("param_names", [["a"]]), "'param_names' of group 0 has a list"),
    "keys are lists": ({}, option("params", [[0]]), "'params' of group 0 has a list, which names"),
}  # fmt: skip


def damage(optimizer: Any, change: Change) -> dict[str, Any]:
    damaged_state = copy.deepcopy(optimizer.state_dict())
    change(damaged_state["param_groups"][0], damaged_state["state"])
    return damaged_state


@pytest.mark.parametrize("case", DAMAGES)
@pytest.mark.parametrize("face", MODULES)
def test_damage_is_reported_at_load(face: str, case: str) -> None:
    options, change, message = DAMAGES[case]
    opt = step(of_one(MODULES[face], "Adam", **options), 2)
    assert_refused(opt, damage(opt, change), message)
    step(opt, 2)


@pytest.mark.parametrize("steps", [NAN, float("inf"), -float("inf"), -0.5])
def test_negative_step_count_raises(steps: float) -> None:
    opt = step(of_one(optim, "Adam"), 2)
    assert_refused(opt, damage(opt, state("step", torch.tensor(steps))), "steps count from 0")


@pytest.mark.parametrize("steps", [0.5, 2.25])
def test_fractional_step_count_matches_torch(steps: float) -> None:
    optimizers = [step(of_one(module, "Adam"), 2) for module in (optim, torch.optim)]
    for opt in optimizers:
        opt.load_state_dict(damage(opt, state("step", torch.tensor(steps))))
    assert_same(*([step(opt).param_groups[0]["params"][0].detach()] for opt in optimizers))


BETAS = [(2.0, 2.0), (1.0, 1.0), (-1.0, -1.0), (NAN, 0.9)]


@pytest.mark.parametrize("betas", BETAS, ids=str)
@pytest.mark.parametrize("name", ["Adam", "RAdam", "NAdam", "Adamax"])
def test_extreme_betas_behave_as_in_torch(name: str, betas: Any) -> None:
    """Options that torch cannot use raise in the step."""
    opt, torch_opt = (step(of_one(module, name), 2) for module in (optim, torch.optim))
    for target in (opt, torch_opt):
        target.load_state_dict(damage(target, option("betas", betas)))
    expected = load_and_step(torch_opt, torch_opt.state_dict())
    if expected is not None:
        torch.testing.assert_close(
            step(opt).param_groups[0]["params"][0].detach(), expected, equal_nan=True
        )
        return
    with pytest.raises(
        ValueError, match=rf"Group 0 takes no step with .*betas=\({betas[0]}"
    ) as error:
        step(opt)
    assert "The step was not taken" in "".join(error.value.__notes__)
    assert re.search(r"beta\d is \S+, and must be at least 0 and below 1", str(error.value))
    assert "complex" not in str(error.value)


@pytest.mark.parametrize("passes", ["x", NAN, -1])
def test_invalid_pass_count_raises(passes: Any) -> None:
    opt = step(of_one(optim, "Adam", accumulate=2), 1)
    opt.param_groups[0]["folded"] = passes
    with pytest.raises(ValueError, match=r"'folded' of group 0 is .*, no number") as error:
        step(opt)
    assert "The step was not taken" in "".join(error.value.__notes__)
    opt.param_groups[0]["folded"] = 1
    step(opt)
    assert opt.last_step.taken


@pytest.mark.parametrize("value", [5, "text", {"ema": 1, "gradient_sum": 2}], ids=str)
@pytest.mark.parametrize("options", [{}, SUMS, AVERAGES, {"state_device": "cpu"}], ids=str)
@pytest.mark.parametrize("face", MODULES)
def test_user_keys_are_kept(face: str, options: dict[str, Any], value: Any) -> None:
    opt = step(of_one(MODULES[face], "Adam", **options), 2)
    opt.state["mine"] = value
    step(opt, 2)
    if options == AVERAGES:
        with opt.swapped():
            pass
    loaded = of_one(MODULES[face], "Adam", **options)
    loaded.load_state_dict(copy.deepcopy(opt.state_dict()))
    for resumed in (copy.deepcopy(opt), loaded):
        assert resumed.state["mine"] == value
        step(resumed, 2)
        assert resumed.state["mine"] == value


def test_user_tensors_are_loaded() -> None:
    for options in ({}, {"state_device": "cpu"}):
        opt = step(of_one(optim, "Adam", **options), 2)
        opt.state["mine"] = {"table": torch.ones(4)}
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))
        assert torch.equal(opt.state["mine"]["table"], torch.ones(4))


def test_error_of_user_class_is_reported() -> None:
    class Failing(optim.Adam):
        def __setstate__(self, state: dict[str, Any]) -> None:
            raise LookupError("of my own")

    opt = Failing([torch.nn.Parameter(torch.ones(3))])
    with pytest.raises(CheckpointMismatchError, match="LookupError while it was loaded: of my own"):
        opt.load_state_dict(opt.state_dict())


def step_with_rows(optimizer: Any, count: int) -> Any:
    (param,) = optimizer.param_groups[0]["params"]
    for number in range(count):
        param.grad = torch.sparse_coo_tensor(
            [[number % 3, 0]], torch.ones(2, 2), (3, 2), check_invariants=True
        )
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("face", MODULES)
def test_sparse_gradient_sums_are_validated(face: str, count: int) -> None:
    opt = step_with_rows(of_one(MODULES[face], "Adagrad", accumulate=2), count)
    damaged_state, loaded = opt.state_dict(), of_one(MODULES[face], "Adagrad", accumulate=2)
    wrong = copy.deepcopy(damaged_state)
    wrong["state"][0]["gradient_sum"]._indices()[0, 0] = 3
    assert_refused(loaded, wrong, r"'0/gradient_sum'.*indices\[0\] = \[3\] is not in it")
    loaded.load_state_dict(copy.deepcopy(damaged_state))
    params = [resumed.param_groups[0]["params"][0] for resumed in (loaded, opt)]
    with torch.no_grad():
        params[0].copy_(params[1])
    for resumed in (loaded, opt):
        step_with_rows(resumed, 1)
        assert resumed.last_step.taken
    assert_same([params[0].detach()], [params[1].detach()])


@pytest.mark.parametrize("name", ["Adam", "SGD", "SparseAdam", "RAdam"])
@pytest.mark.parametrize("value", ["m", None, [], torch.zeros(3)], ids=str)
def test_flag_that_is_not_a_bool_raises(name: str, value: Any) -> None:
    opt = step(of_one(optim, name), 2)
    damaged_state = damage(opt, option("maximize", value))
    assert_refused(opt, damaged_state, "'maximize' of group 0 is .*, neither true nor false")
    opt.load_state_dict(damage(opt, option("maximize", 1)))
    step(opt)


@pytest.mark.parametrize(
    "rule", [10**5000, torch.ones(2), ["Adam"]], ids=["large", "tensor", "list"]
)
def test_rule_that_is_not_a_name_raises(rule: Any) -> None:
    opt = of_one(tensorflow, "Adam")
    assert_refused(opt, damage(opt, option("rule", rule)), "its rule is a .*, here 'Adam'")


def test_lazily_negated_tensors_are_loaded() -> None:
    optimizers = [step(of_one(module, "Adam"), 2) for module in (optim, torch.optim)]
    for opt in optimizers:
        value = torch.complex(torch.ones(3, 2), torch.full((3, 2), -0.25)).conj().imag
        opt.load_state_dict(damage(opt, state("exp_avg", value)))
    actual, expected = (step(opt).param_groups[0]["params"][0].detach() for opt in optimizers)
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=1e-6)


def _cut(slots: dict[str, Any], _: Path) -> None:
    slots["m"].untyped_storage().resize_(0)


def _map_for_reading(slots: dict[str, Any], folder: Path) -> None:
    np.zeros((3, 2), np.float32).tofile(folder / "m")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that the array is not writable
        slots["m"] = torch.from_numpy(np.memmap(folder / "m", np.float32, "r", shape=(3, 2)))


def _expand(slots: dict[str, Any], _: Path) -> None:
    slots["m"] = torch.zeros(()).expand(3, 2)


def _infer(slots: dict[str, Any], _: Path) -> None:
    with torch.inference_mode():
        slots["m"] = torch.zeros(3, 2)


def _share(slots: dict[str, Any], _: Path) -> None:
    slots["m"] = slots["v"]


UNWRITABLE = {
    _cut: "'{}/m' has no memory of its own here",
    _map_for_reading: "cannot update '{}/m' in place: its memory may only be read",
    _expand: "'{}/m' has no memory of its own here",
    _infer: "'{}/m' has no memory of its own here",
    _share: "'{}/m' and '{}/v' share memory here, and are given different values",
}


@pytest.mark.parametrize("loader", ["load_state_dict", "restore"])
@pytest.mark.parametrize("change", UNWRITABLE)
def test_unwritable_slots_raise(change: Any, loader: str, tmp_path: Path) -> None:
    """Writing to such memory would kill the process, or stop half way."""
    source, opt = (step(of_one(tensorflow, "Adam"), count) for count in (3, 2))
    (param,) = opt.param_groups[0]["params"]
    variables = {"w": source.param_groups[0]["params"][0]}
    checkpoint.save(tmp_path / "run", optimizer=source, variables=variables)
    source.param_groups[0]["lr"] = 0.5
    slots = opt.state[param]
    change(slots, tmp_path)
    previous = {name: slots[name].clone() for name in ("step", "v")}
    place = {"optimizer": opt, "variables": {"w": param}}
    title, load = {
        "load_state_dict": ("0", lambda: opt.load_state_dict(source.state_dict())),
        "restore": ("w", lambda: checkpoint.restore(tmp_path / "run", **place)),
    }[loader]
    message = UNWRITABLE[change].replace("{}", title)
    with pytest.raises(CheckpointMismatchError, match=rf"{message}.*Nothing was loaded\.$"):
        load()
    assert opt.param_groups[0]["lr"] == 0.1
    assert all(torch.equal(slots[name], value) for name, value in previous.items())


class Unreadable(torch.Tensor):
    """Tensor whose operations all raise."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise LookupError("unreadable")


@pytest.mark.parametrize(("face", "slot"), [("torch", "exp_avg"), ("tensorflow", "m")])
def test_unreadable_tensor_raises(face: str, slot: str) -> None:
    opt = step(of_one(MODULES[face], "Adam"), 2)
    damaged_state = damage(opt, state(slot, torch.zeros(3, 2).as_subclass(Unreadable)))
    assert_refused(opt, damaged_state, f"'0/{slot}' cannot be read: unreadable")


ON_META = [("Prodigy", "d"), ("Prodigy", "k"), ("Prodigy", "step"), ("Adam", "step"),
           ("Adam", "exp_avg")]  # fmt: skip


@pytest.mark.parametrize(("name", "slot"), ON_META)
def test_state_on_meta_raises(name: str, slot: str) -> None:
    opt = step(of_one(optim, name), 2)
    (param,) = opt.param_groups[0]["params"]
    opt.state[param][slot] = torch.as_tensor(opt.state[param][slot]).to("meta")
    previous = param.detach().clone()
    with pytest.raises(LayoutError, match=f"'{slot}' of '.*' is on meta.* the parameter is on cpu"):
        step(opt)
    assert torch.equal(param, previous)


KINDS = [torch.complex64, torch.int32, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("options", [{}, {"state_device": "cpu"}, {"masters": True}], ids=str)
def test_slots_of_other_dtypes_raise(options: Any, dtype: torch.dtype) -> None:
    opt = step(of_one(optim, "Adamax", **options), 2)
    value = torch.ones(3, 2).to(dtype)
    assert_refused(opt, damage(opt, state("exp_avg", value)), "'0/exp_avg' is .*, here float32")


def test_step_count_none_raises() -> None:
    opt = step(of_one(optim, "SGD", lookahead=1), 2)
    assert_refused(opt, damage(opt, state("step", None)), "'0/step' is None, no number")
