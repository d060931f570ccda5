"""Damaged states in both faces: what is wrong is named at the load, and what is nobody's stays."""

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
from test_optim_loading import assert_refused, of_one, step, taken_by
from thalweg import checkpoint, optim
from thalweg.errors import CheckpointMismatchError
from thalweg.optim import tensorflow

FACES = {"torch": optim, "tensorflow": tensorflow}
NAN = float("nan")
Change = Callable[[dict[str, Any], dict[Any, Any]], Any]  # is given a group, and the states


def state(name: str, value: Any) -> Change:
    """A change of the state of the parameter."""
    return lambda _, states: states[0].update({name: value})


def option(name: str, value: Any) -> Change:
    """A change of the group."""
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


def damaged(optimizer: Any, change: Change) -> dict[str, Any]:
    given = copy.deepcopy(optimizer.state_dict())
    change(given["param_groups"][0], given["state"])
    return given


@pytest.mark.parametrize("case", DAMAGES)
@pytest.mark.parametrize("face", FACES)
def test_what_is_damaged_is_named_at_the_load(face: str, case: str) -> None:
    options, change, message = DAMAGES[case]
    made = step(of_one(FACES[face], "Adam", **options), 2)
    assert_refused(made, damaged(made, change), message)
    step(made, 2)


@pytest.mark.parametrize("steps", [NAN, float("inf"), -float("inf"), -0.5])
def test_steps_are_counted_from_0(steps: float) -> None:
    made = step(of_one(optim, "Adam"), 2)
    assert_refused(made, damaged(made, state("step", torch.tensor(steps))), "steps count from 0")


@pytest.mark.parametrize("steps", [0.5, 2.25])
def test_a_fraction_of_steps_has_torchs_numbers(steps: float) -> None:
    both = [step(of_one(module, "Adam"), 2) for module in (optim, torch.optim)]
    for each in both:
        each.load_state_dict(damaged(each, state("step", torch.tensor(steps))))
    assert_same(*([step(each).param_groups[0]["params"][0].detach()] for each in both))


BETAS = [(2.0, 2.0), (1.0, 1.0), (-1.0, -1.0), (NAN, 0.9)]


@pytest.mark.parametrize("betas", BETAS, ids=str)
@pytest.mark.parametrize("name", ["Adam", "RAdam", "NAdam", "Adamax"])
def test_options_of_any_size_are_followed_where_torch_follows_them(name: str, betas: Any) -> None:
    """Else the step names them, whoever set them."""
    ours, torchs = (step(of_one(module, name), 2) for module in (optim, torch.optim))
    for each in (ours, torchs):
        each.load_state_dict(damaged(each, option("betas", betas)))
    wanted = taken_by(torchs, torchs.state_dict())
    if wanted is not None:
        torch.testing.assert_close(
            step(ours).param_groups[0]["params"][0].detach(), wanted, equal_nan=True
        )
        return
    with pytest.raises(
        ValueError, match=rf"Group 0 takes no step with .*betas=\({betas[0]}"
    ) as error:
        step(ours)
    assert "The step was not taken" in "".join(error.value.__notes__)
    assert re.search(r"beta\d is \S+, and must be at least 0 and below 1", str(error.value))
    assert "complex" not in str(error.value)


@pytest.mark.parametrize("passes", ["x", NAN, -1])
def test_passes_that_were_set_by_hand_are_named(passes: Any) -> None:
    made = step(of_one(optim, "Adam", accumulate=2), 1)
    made.param_groups[0]["folded"] = passes
    with pytest.raises(ValueError, match=r"'folded' of group 0 is .*, no number") as error:
        step(made)
    assert "The step was not taken" in "".join(error.value.__notes__)
    made.param_groups[0]["folded"] = 1
    step(made)
    assert made.last_step.taken


@pytest.mark.parametrize("value", [5, "text", {"ema": 1, "gradient_sum": 2}], ids=str)
@pytest.mark.parametrize("options", [{}, SUMS, AVERAGES, {"state_device": "cpu"}], ids=str)
@pytest.mark.parametrize("face", FACES)
def test_keys_of_the_users_stay(face: str, options: dict[str, Any], value: Any) -> None:
    made = step(of_one(FACES[face], "Adam", **options), 2)
    made.state["mine"] = value
    step(made, 2)
    if options == AVERAGES:
        with made.swapped():
            pass
    other = of_one(FACES[face], "Adam", **options)
    other.load_state_dict(copy.deepcopy(made.state_dict()))
    for each in (copy.deepcopy(made), other):
        assert each.state["mine"] == value
        step(each, 2)
        assert each.state["mine"] == value


def test_tensors_of_the_users_are_loaded_whole() -> None:
    for options in ({}, {"state_device": "cpu"}):
        made = step(of_one(optim, "Adam", **options), 2)
        made.state["mine"] = {"table": torch.ones(4)}
        made.load_state_dict(copy.deepcopy(made.state_dict()))
        assert torch.equal(made.state["mine"]["table"], torch.ones(4))


def test_a_class_of_the_users_that_fails_is_not_torchs_fault() -> None:
    class Failing(optim.Adam):
        def __setstate__(self, state: dict[str, Any]) -> None:
            raise LookupError("of my own")

    made = Failing([torch.nn.Parameter(torch.ones(3))])
    with pytest.raises(CheckpointMismatchError, match="LookupError while it was loaded: of my own"):
        made.load_state_dict(made.state_dict())


def rows(optimizer: Any, count: int) -> Any:
    (param,) = optimizer.param_groups[0]["params"]
    for number in range(count):
        param.grad = torch.sparse_coo_tensor(
            [[number % 3, 0]], torch.ones(2, 2), (3, 2), check_invariants=True
        )
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("face", FACES)
def test_sums_of_rows_are_loaded_and_looked_at(face: str, count: int) -> None:
    made = rows(of_one(FACES[face], "Adagrad", accumulate=2), count)
    given, other = made.state_dict(), of_one(FACES[face], "Adagrad", accumulate=2)
    wrong = copy.deepcopy(given)
    wrong["state"][0]["gradient_sum"]._indices()[0, 0] = 3
    assert_refused(other, wrong, r"'0/gradient_sum'.*indices\[0\] = \[3\] is not in it")
    other.load_state_dict(copy.deepcopy(given))
    params = [each.param_groups[0]["params"][0] for each in (other, made)]
    with torch.no_grad():
        params[0].copy_(params[1])
    for each in (other, made):
        rows(each, 1)
        assert each.last_step.taken
    assert_same([params[0].detach()], [params[1].detach()])


@pytest.mark.parametrize("name", ["Adam", "SGD", "SparseAdam", "RAdam"])
@pytest.mark.parametrize("value", ["m", None, [], torch.zeros(3)], ids=str)
def test_what_is_neither_true_nor_false_is_refused(name: str, value: Any) -> None:
    made = step(of_one(optim, name), 2)
    given = damaged(made, option("maximize", value))
    assert_refused(made, given, "'maximize' of group 0 is .*, neither true nor false")
    made.load_state_dict(damaged(made, option("maximize", 1)))
    step(made)


@pytest.mark.parametrize(
    "rule", [10**5000, torch.ones(2), ["Adam"]], ids=["large", "tensor", "list"]
)
def test_a_rule_is_a_name(rule: Any) -> None:
    made = of_one(tensorflow, "Adam")
    assert_refused(made, damaged(made, option("rule", rule)), "its rule is a .*, here 'Adam'")


def test_tensors_that_torch_only_notes_as_negated_are_loaded() -> None:
    both = [step(of_one(module, "Adam"), 2) for module in (optim, torch.optim)]
    for each in both:
        value = torch.complex(torch.ones(3, 2), torch.full((3, 2), -0.25)).conj().imag
        each.load_state_dict(damaged(each, state("exp_avg", value)))
    ours, torchs = (step(each).param_groups[0]["params"][0].detach() for each in both)
    torch.testing.assert_close(ours, torchs, rtol=2e-5, atol=1e-6)


def _cut(own: dict[str, Any], _: Path) -> None:
    own["m"].untyped_storage().resize_(0)


def _map_for_reading(own: dict[str, Any], folder: Path) -> None:
    np.zeros((3, 2), np.float32).tofile(folder / "m")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that the array is not writable
        own["m"] = torch.from_numpy(np.memmap(folder / "m", np.float32, "r", shape=(3, 2)))


def _expand(own: dict[str, Any], _: Path) -> None:
    own["m"] = torch.zeros(()).expand(3, 2)


def _infer(own: dict[str, Any], _: Path) -> None:
    with torch.inference_mode():
        own["m"] = torch.zeros(3, 2)


def _share(own: dict[str, Any], _: Path) -> None:
    own["m"] = own["v"]


UNWRITABLE = {
    _cut: "'{}/m' has no memory of its own here",
    _map_for_reading: "cannot update '{}/m' in place: its memory may only be read",
    _expand: "'{}/m' has no memory of its own here",
    _infer: "'{}/m' has no memory of its own here",
    _share: "'{}/m' and '{}/v' share memory here, and are given different values",
}


@pytest.mark.parametrize("way", ["load_state_dict", "restore"])
@pytest.mark.parametrize("change", UNWRITABLE)
def test_slots_that_cannot_be_written_are_named(change: Any, way: str, tmp_path: Path) -> None:
    """To write to some of them would end the process, to others stop half way."""
    saved, made = (step(of_one(tensorflow, "Adam"), count) for count in (3, 2))
    (param,) = made.param_groups[0]["params"]
    named = {"w": saved.param_groups[0]["params"][0]}
    checkpoint.save(tmp_path / "run", optimizer=saved, variables=named)
    saved.param_groups[0]["lr"] = 0.5
    own = made.state[param]
    change(own, tmp_path)
    before = {name: own[name].clone() for name in ("step", "v")}
    place = {"optimizer": made, "variables": {"w": param}}
    title, load = {
        "load_state_dict": ("0", lambda: made.load_state_dict(saved.state_dict())),
        "restore": ("w", lambda: checkpoint.restore(tmp_path / "run", **place)),
    }[way]
    message = UNWRITABLE[change].replace("{}", title)
    with pytest.raises(CheckpointMismatchError, match=rf"{message}.*Nothing was loaded\.$"):
        load()
    assert made.param_groups[0]["lr"] == 0.1
    assert all(torch.equal(own[name], value) for name, value in before.items())


class Unreadable(torch.Tensor):
    """A tensor that fails whatever is done with it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise LookupError("unreadable")


@pytest.mark.parametrize(("face", "slot"), [("torch", "exp_avg"), ("tensorflow", "m")])
def test_a_tensor_that_cannot_be_read_is_named(face: str, slot: str) -> None:
    made = step(of_one(FACES[face], "Adam"), 2)
    given = damaged(made, state(slot, torch.zeros(3, 2).as_subclass(Unreadable)))
    assert_refused(made, given, f"'0/{slot}' cannot be read: unreadable")


KINDS = [torch.complex64, torch.int32, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("options", [{}, {"state_device": "cpu"}, {"masters": True}], ids=str)
def test_slots_of_other_kinds_are_named(options: Any, dtype: torch.dtype) -> None:
    made = step(of_one(optim, "Adamax", **options), 2)
    value = torch.ones(3, 2).to(dtype)
    assert_refused(made, damaged(made, state("exp_avg", value)), "'0/exp_avg' is .*, here float32")


def test_an_option_that_counts_steps_takes_no_none_for_their_number() -> None:
    made = step(of_one(optim, "SGD", lookahead=1), 2)
    assert_refused(made, damaged(made, state("step", None)), "'0/step' is None, no number")
