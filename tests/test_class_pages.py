"""The page of each class says what the class does: defaults, state, steps of sparse gradients."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from case_batches import many
from thalweg import IndexedSlices, Variable
from thalweg._cli import registry
from thalweg.v1 import train

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "extensions"))
class_pages: Any = importlib.import_module("class_pages")

SHAPE = (6, 4)
FIRST, SECOND = [2, 1], [4]  # the rows that the gradients of two steps name


class Section(NamedTuple):
    """A rule on the page of a class, with the arguments that choose the rule."""

    face: str
    page: Any
    options: Mapping[str, Any]
    text: str

    @property
    def name(self) -> str:
        """Return the name of a test case."""
        return "-".join([self.face, self.page.name, *map(str, self.options.values())])

    def sentence(self, title: str) -> str:
        """Return what the section says under a title, or "" if it says nothing."""
        match = re.search(rf"^\*\*{title}\*\*: (.*)$", self.text, re.MULTILINE)
        return match[1] if match else ""

    def table(self, title: str) -> list[list[str]]:
        """Return the rows of the first table whose first heading begins with a title."""
        match = re.search(rf"^\| {title}.*\n\|---.*\n((?:\|.*\n?)*)", self.text, re.MULTILINE)
        rows = match[1].splitlines() if match else []
        return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


@cache
def sections() -> list[Section]:
    """Return all sections of all pages; what a section leaves out is that of the page's first."""
    page_sections: list[Section] = []
    for face in class_pages.faces():
        for page in face.pages:
            _, *parts = class_pages.page_text(face, page).split("\n## ")
            for (options, _), part in zip(page.rules, parts, strict=True):
                text = f"{part}\n\n{parts[0]}" if part is not parts[0] else part
                page_sections.append(Section(face.folder, page, options, text))
    return page_sections


each_section = many("section", sections(), ids=lambda section: section.name)


def make(section: Section, param: Any, **options: Any) -> Any:
    """Return an optimizer of the class of a section over one parameter."""
    cls = section.page.cls
    kwargs = {**section.options, **options}
    if issubclass(cls, torch.optim.Optimizer):
        return cls([param], **{"lr": 0.1, **kwargs})
    if issubclass(cls, train.AdagradDAOptimizer):
        kwargs["global_step"] = Variable(np.int64(0), "global_step", trainable=False)
    return cls(**{"learning_rate": 0.1, **kwargs})


def new_param(section: Section) -> Any:
    """Return a parameter as the class of a section takes it."""
    values = torch.linspace(-1.0, 2.0, SHAPE[0] * SHAPE[1]).reshape(SHAPE)
    if issubclass(section.page.cls, torch.optim.Optimizer):
        return torch.nn.Parameter(values)
    return Variable(values.numpy(), "w")


def take_step(optimizer: Any, param: Any, rows: list[int], values: torch.Tensor) -> None:
    """Take a step with a sparse gradient, or with a dense one if `rows` is empty."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        grad = IndexedSlices(values, torch.tensor(rows), SHAPE) if rows else values
        registry.applied(optimizer)([(grad, param)])
        return
    indices = torch.tensor([rows])
    param.grad = (
        torch.sparse_coo_tensor(indices, values, SHAPE, check_invariants=True) if rows else values
    )
    optimizer.step()


def state_of(optimizer: Any, param: Any) -> dict[str, Any]:
    """Return the slots of a parameter, and the numbers that are kept beside them, by name."""
    if isinstance(optimizer, torch.optim.Optimizer):
        return dict(optimizer.state[param])
    return {name: optimizer.get_slot(param, name) for name in optimizer.get_slot_names()}


def changed_rows(old: list[torch.Tensor], new: list[torch.Tensor]) -> set[int]:
    """Return the rows in which tensors of the parameter's shape differ."""
    pairs = zip(old, new, strict=True)
    return {row for a, b in pairs for row in (a != b).any(1).nonzero().flatten().tolist()}


def tensors_of(optimizer: Any, param: Any) -> list[torch.Tensor]:
    """Return copies of the parameter and of the slots that have its shape."""
    slots = [value for value in state_of(optimizer, param).values() if torch.is_tensor(value)]
    dense = [value.to_dense() if value.is_sparse else value for value in [param, *slots]]
    return [value.detach().clone() for value in dense if value.shape == SHAPE]


def values_for(rows: list[int]) -> torch.Tensor:
    """Return the values of a gradient."""
    count = len(rows) or SHAPE[0]
    return torch.randn(count, SHAPE[1], generator=torch.Generator().manual_seed(count))


@each_section
def test_page_describes_sparse_gradients(section: Section) -> None:
    words = section.sentence("Sparse gradients").partition("; with `weight_decay`")[0].rstrip(".")
    param = new_param(section)
    optimizer = make(section, param)
    if message := re.match(r"refused; `step` raises RuntimeError: (.*)", words):
        initial = param.detach().clone()
        with pytest.raises(RuntimeError, match=f"^{re.escape(message[1])}"):
            take_step(optimizer, param, FIRST, values_for(FIRST))
        assert torch.equal(param, initial)
        return
    take_step(optimizer, param, FIRST, values_for(FIRST))
    initial = tensors_of(optimizer, param)
    take_step(optimizer, param, SECOND, values_for(SECOND))
    final = tensors_of(optimizer, param)
    rows = changed_rows(initial, final)
    if words.startswith("touched rows of the variable, all rows of "):
        assert changed_rows(initial[:1], final[:1]) == {*SECOND}
        assert rows == {*FIRST, *SECOND}  # a slot that begins at 0 cannot decay elsewhere
    elif words.startswith("touched rows"):
        assert rows == {*SECOND}
    elif words.startswith("torch's own step updates every row that a gradient has named so far"):
        assert rows == {*FIRST, *SECOND}
    else:
        assert words.startswith("all rows")
        assert rows >= {*FIRST, *SECOND}


def fill_tensors(optimizer: Any, param: Any) -> None:
    """Set a parameter to its first values, and each slot to values below the slot before it.

    `vhat` of AMSGrad then follows `v`, and the variance of a centered RMSprop is positive.
    """
    slots = [value for value in state_of(optimizer, param).values() if torch.is_tensor(value)]
    with torch.no_grad():
        param.copy_(torch.linspace(-1.0, 2.0, param.numel()).reshape(SHAPE))
        for place, slot in enumerate(slot for slot in slots if slot.shape == SHAPE):
            if not slot.is_sparse:
                slot.copy_(torch.linspace(1.0, 1.5, slot.numel()).reshape(SHAPE) / 4 ** (place + 1))


def rows_by_name(section: Section, **options: Any) -> dict[str, tuple[set[int], torch.Tensor]]:
    """Return the changes that a sparse gradient makes after a dense one, by tensor.

    Returns:
        For "the variable" and each slot of its shape, the rows that changed and the new values.
    """
    param = new_param(section)
    optimizer = make(section, param, **options)
    rows = list(range(SHAPE[0])) if section.sentence("Dense gradients") else []
    take_step(optimizer, param, rows, values_for(rows))
    fill_tensors(optimizer, param)

    def tensors() -> dict[str, torch.Tensor]:
        entries = {"the variable": param, **state_of(optimizer, param)}
        dense = {
            name: value.to_dense() if value.is_sparse else value
            for name, value in entries.items()
            if torch.is_tensor(value)
        }
        return {
            name: value.detach().clone() for name, value in dense.items() if value.shape == SHAPE
        }

    initial = tensors()
    take_step(optimizer, param, SECOND, values_for(SECOND))
    final = tensors()
    return {name: (changed_rows([initial[name]], [final[name]]), final[name]) for name in initial}


@each_section
def test_page_describes_changed_rows(section: Section) -> None:
    words = section.sentence("Sparse gradients").partition(";")[0].rstrip(".")
    if words.startswith("refused"):
        return
    gradient_rows, everything = {*SECOND}, {*range(SHAPE[0])}
    changes = {name: rows for name, (rows, _) in rows_by_name(section).items()}
    if parts := re.match(r"touched rows of the variable, all rows of ([^,]*)", words):
        expected = dict.fromkeys(changes, gradient_rows) | dict.fromkeys(
            parts[1].split(" and "), everything
        )
    elif words.startswith("touched rows"):
        expected = dict.fromkeys(changes, gradient_rows)
    else:
        # The dense gradient before has named every row for torch's own step.
        assert words.startswith(("all rows", "torch's own step"))
        expected = dict.fromkeys(changes, everything)
    assert changes == expected


@each_section
def test_page_describes_decayed_rows(section: Section) -> None:
    words = section.sentence("Sparse gradients")
    takes_decay = "weight_decay" in inspect.signature(section.page.cls).parameters
    if words.startswith("refused") or "they are refused" in words or not takes_decay:
        assert "weight decay" not in words
        return
    (_, undecayed), (_, with_decay) = (
        rows_by_name(section, weight_decay=decay)["the variable"] for decay in (0.0, 0.1)
    )
    expected = {*SECOND} if words.startswith("touched rows") else {*range(SHAPE[0])}
    if "weight decay in touched rows only" in words:
        expected = {*SECOND}
    elif "no weight decay" in words:
        expected = set()
    assert changed_rows([undecayed], [with_decay]) == expected


@each_section
def test_page_describes_summing_of_rows(section: Section) -> None:
    words = section.sentence("Sparse gradients")
    if words.startswith("refused"):
        return
    row_values = values_for([1, 1])
    results: list[torch.Tensor] = []
    dense = torch.zeros(SHAPE)
    dense[1] = row_values[0] + row_values[1]
    for rows, values in (([1, 1], row_values), ([1], row_values.sum(0, keepdim=True)), ([], dense)):
        param = new_param(section)
        if rows or "made dense" in words:
            take_step(make(section, param), param, rows, values)
            results.append(param.detach().clone())
    if not words.startswith("torch's own step"):
        assert torch.equal(results[0], results[1]) == ("one by one" not in words)
    assert all(torch.equal(results[0], dense) for dense in results[2:])


@each_section
def test_page_describes_decay_with_sparse_gradients(section: Section) -> None:
    words = section.sentence("Sparse gradients")
    takes_decay = "weight_decay" in inspect.signature(section.page.cls).parameters
    if words.startswith("refused") or not takes_decay:
        assert "with `weight_decay`" not in words
        return
    param = new_param(section)
    optimizer = make(section, param, weight_decay=0.1)
    if "with `weight_decay` they are refused" in words:
        with pytest.raises(RuntimeError):
            take_step(optimizer, param, FIRST, values_for(FIRST))
    else:
        take_step(optimizer, param, FIRST, values_for(FIRST))


@each_section
def test_page_describes_dense_gradient_support(section: Section) -> None:
    words = section.sentence("Dense gradients").rstrip(".")
    param = new_param(section)
    optimizer = make(section, param)
    if not words:
        take_step(optimizer, param, [], values_for([]))
        return
    message = words.removeprefix("refused; `step` raises RuntimeError: ")
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}"):
        take_step(optimizer, param, [], values_for([]))


def default_of(argument: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    """Return the default of an argument, such as `betas[0]`, as pages print it."""
    name, _, place = argument.rstrip("]").partition("[")
    default: Any = parameters[name].default
    if default is inspect.Parameter.empty:
        return "required"
    value = default[int(place)] if place and default is not None else default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:g}" if is_number else f"`{value}`"


@each_section
def test_a_page_has_the_defaults_of_the_signature(section: Section) -> None:
    parameters = inspect.signature(section.page.cls).parameters
    is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for number, argument, default, doc in section.table("number"):
        if not default:  # such as `beta1_power`, which follows from `beta1`
            assert doc.endswith("to the power of the step")
            continue
        name = (argument or number).strip("`")
        if default.startswith("set by the class"):
            assert name not in parameters
        elif name == "schedule_decay":
            assert is_open
            assert f"{make(section, None).get_config()['decay']:g}" == default
            assert make(section, None, schedule_decay=0.5).get_config()["decay"] == 0.5
        else:
            assert default == default_of(name, parameters), number


@each_section
def test_a_page_has_every_number_that_the_constructor_takes(section: Section) -> None:
    parameters = inspect.signature(section.page.cls).parameters
    numbers = {
        name
        for name, parameter in parameters.items()
        if type(parameter.default) in (int, float)
        and name not in class_pages.KEYWORDS
        and not section.page.name.endswith(("Muon", "MuonH", "SOAP"))
    }
    arguments = {
        (argument or number).strip("`").partition("[")[0]
        for number, argument, *_ in section.table("number")
    }
    arguments |= {*re.findall(r"\(`(\w+)`\)", section.text)}
    allowed = {"slice_p", "learning_rate_power", "momentum", "dampening"}  # these choose a rule
    assert numbers - arguments <= allowed


@each_section
def test_a_page_lists_the_state(section: Section) -> None:
    param = new_param(section)
    optimizer = make(section, param)
    rows = [] if section.sentence("Dense gradients") else None
    if rows is None:
        take_step(optimizer, param, [], values_for([]))
    else:
        take_step(optimizer, param, FIRST, values_for(FIRST))
    state = state_of(optimizer, param)
    table = {row[0].strip("`"): row[2] for row in section.table("state")}
    powers = {row[0].strip("`") for row in section.table("number") if not row[2]}
    assert table.keys() == state.keys() - powers
    for name, shape in table.items():
        value = state[name]
        if shape == "the variable's":
            assert tuple(value.shape) == SHAPE, name
        elif shape in ("one number for each variable", "one number for each optimizer"):
            assert not torch.is_tensor(value) or value.numel() == 1, name
        elif shape in ("one number for each row", "one number for each column"):
            assert value.numel() == SHAPE[shape.endswith("column")], name
        else:
            assert shape == "its own"
            assert tuple(value.shape) != SHAPE, name


def starts_of(section: Section, **options: Any) -> dict[str, Any]:
    """Return the state before the first step, or after one of gradients that are 0."""
    param = new_param(section)
    if "weight_decay" in inspect.signature(section.page.cls).parameters:
        options.setdefault("weight_decay", 0.0)
    optimizer = make(section, param, **options)
    if isinstance(optimizer, train.Optimizer):
        optimizer._create_slots([param])
    elif not isinstance(optimizer, torch.optim.Optimizer):
        optimizer._create_all_weights([param])
    elif section.face == "optim":
        rows = FIRST if section.sentence("Dense gradients") else []
        take_step(optimizer, param, rows, torch.zeros_like(values_for(rows)))
    return state_of(optimizer, param)


@each_section
def test_page_lists_initial_state_values(section: Section) -> None:
    state = starts_of(section)
    covered: set[str] = set()
    for title, words, shape in section.table("state"):
        name = title.strip("`")
        start, _, argument = words.rstrip("`)").partition(" (`")
        if argument:
            covered.add(argument)
            value = torch.as_tensor(starts_of(section, **{argument: 0.25})[name])
            assert torch.allclose(value.float(), torch.tensor(0.25), rtol=1e-4), name
            parameters = inspect.signature(section.page.cls).parameters
            assert start == default_of(argument, parameters)
        elif start == "the variable":
            assert torch.equal(state[name], new_param(section))
        elif section.face != "optim" or (shape == "the variable's" and name != "ax"):
            # `ax` of ASGD becomes the parameter after the first step; epsilon is in Adamax's norm.
            value = torch.as_tensor(state[name]).double()
            assert torch.allclose(value, torch.tensor(float(start)).double(), atol=2e-8), name
    initial = {name for name in inspect.signature(section.page.cls).parameters if "initial" in name}
    assert initial <= covered
