"""Write a page for each optimizer class, from its docstring and from the rule that it runs.

The pages lie in `docs/classes`, which git ignores. Formulas and sources are read from the rules, as
`thalweg show` prints them; arguments, defaults, state and sparse gradients are read from the
classes, which may differ from their rules. `tests/test_class_pages.py` compares both.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from thalweg import optim
from thalweg._cli import registry
from thalweg._cli.class_facts import describe_sparse_update, numbers_of
from thalweg._cli.commands.rules import formula_source, sweep_words
from thalweg.formula import Rule
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.optim import tensorflow
from thalweg.optim.step_options import KEYWORDS

FOLDER = "classes"
# Arguments that say what a slot begins at.
_STARTS = {
    "eta": ("lr",),
    "step_size": ("lr",),
    "sum": ("initial_accumulator_value",),
    "accum": ("initial_accumulator_value",),
    "accumulator": ("initial_accumulator_value",),
    "gradient_squared_accumulator": (
        "initial_accumulator_value",
        "initial_gradient_squared_accumulator_value",
    ),
}
# Slots that formulas set to the variable in the first step.
_COPIES = ("z", "p0")
# Arguments that choose another rule, of classes that the catalogue does not name.
_VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "SGD": ({}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}),
    "Momentum": ({}, {"nesterov": True}),
    "MomentumW": ({}, {"nesterov": True}),
    "Adam": ({}, {"amsgrad": True}),
    "RMSprop": (
        {},
        {"centered": True},
        {"momentum": 0.9},
        {"momentum": 0.9, "centered": True},
    ),
    "Ftrl": ({}, {"learning_rate_power": -0.6}),
}


@dataclass(frozen=True)
class Page:
    """A class, and the rules that it runs, each by the arguments that choose it."""

    module: str
    cls: type[Any]
    rules: tuple[tuple[Mapping[str, Any], Rule], ...]

    @property
    def name(self) -> str:
        """What users call the class."""
        return self.cls.__name__


@dataclass(frozen=True)
class Face:
    """Classes that one import brings."""

    folder: str
    title: str
    about: str
    pages: tuple[Page, ...] = field(default_factory=tuple)


def faces() -> tuple[Face, ...]:
    """All faces, with all of their classes."""
    named = {**registry.by_rule(), **registry.by_class()}
    by_class: dict[type[Any], list[tuple[Mapping[str, Any], Rule]]] = {}
    for each in named.values():
        rules = by_class.setdefault(each.cls, [])
        if each.rule not in [rule for _, rule in rules]:
            rules.append((each.options, each.rule))
    keras, v1 = [], []
    for cls, rules in by_class.items():
        if cls is NovoGrad:
            continue
        if cls.__module__.startswith("thalweg.keras"):
            keras.append(Page("thalweg.keras.optimizers", cls, tuple(rules)))
        elif "contrib" in cls.__module__:
            v1.append(Page("thalweg.v1.contrib.opt", cls, tuple(rules)))
        else:
            v1.append(Page("thalweg.v1.train", cls, tuple(rules)))
    novograd = Page("thalweg.openseq2seq.optimizers.novograd", NovoGrad, tuple(by_class[NovoGrad]))
    return (
        Face(
            "optim",
            "thalweg.optim",
            "Torch's classes with torch's numerics, and [more](../../optimizers.md). All take"
            " [the same options](../../options.md).",
            tuple(_of_optim()),
        ),
        Face(
            "tensorflow",
            "thalweg.optim.tensorflow",
            "TensorFlow's rules and numerics, in torch's form:"
            " [groups, state and files](../../torch.md#tensorflow-numerics).",
            tuple(_of_tensorflow()),
        ),
        Face(
            "keras",
            "thalweg.keras.optimizers",
            "Keras' OptimizerV2. [The base class](../../optimizer.md) has the common methods.",
            tuple(keras),
        ),
        Face(
            "v1",
            "thalweg.v1.train",
            "`tf.train` and `tf.contrib.opt` of TensorFlow 1. [The base class](../../optimizer.md)"
            " has the common methods.",
            tuple(v1),
        ),
        Face(
            "openseq2seq",
            "thalweg.openseq2seq",
            "OpenSeq2Seq's addition to TensorFlow 1's optimizers."
            " [Its page](../../migrate-from-openseq2seq.md) has `optimize_loss`.",
            (novograd,),
        ),
    )


def _of_optim() -> Iterator[Page]:
    found: dict[str, list[tuple[Mapping[str, Any], Rule]]] = {}
    for name, each in registry.by_torch().items():
        if name.startswith(registry.OPTIM):
            found.setdefault(each.cls.factory.__name__, []).append((each.options, each.cls.rule))
    found["AdamW"] += [variant for variant in found["Adam"] if variant[0]]
    for name in sorted(found, key=str.lower):
        yield Page("thalweg.optim", getattr(optim, name), tuple(found[name]))


def _of_tensorflow() -> Iterator[Page]:
    for name in tensorflow.__all__:
        cls = getattr(tensorflow, name)
        given = _VARIANTS.get(name, ({},))
        rules = tuple(
            (each, cls([torch.nn.Parameter(torch.ones(2))], **each).rule) for each in given
        )
        yield Page("thalweg.optim.tensorflow", cls, rules)


def page_text(face: Face, page: Page) -> str:
    """Return the page of a class in Markdown."""
    # In no table of contents: 80 more lines beside every page help nobody and double the build.
    parts = [
        "---\norphan: true\n---",
        f"# {page.name}",
        f"`from {page.module} import {page.name}` · [all of {face.title}](index.md)",
        f"```{{eval-rst}}\n.. autoclass:: {page.module}.{page.name}\n```",
    ]
    (options, first), *others = page.rules
    parts += _rule_text(page, options, first, "## Formula", set())
    said = set(_blocks(page, options, first))
    for arguments, rule in others:
        chosen = {name: value for name, value in arguments.items() if options.get(name) != value}
        title = ", ".join(f"{name}={value!r}" for name, value in chosen.items())
        parts += _rule_text(page, arguments, rule, f"## With `{title}`", said)
    return "\n\n".join(parts) + "\n"


def _blocks(page: Page, options: Mapping[str, Any], rule: Rule) -> list[str]:
    """Return the parts of the text about a rule: functions, then tables and sentences."""
    dense = getattr(page.cls, "_dense", "")
    return [
        *formula_source(rule).split("\n\n\n"),
        _numbers_table(page, rule),
        _state_table(page, options, rule),
        f"**Sweeps over memory**: {sweep_words(rule)}.",
        f"**Sparse gradients**: {describe_sparse_update(rule, page.cls, options)}.",
        f"**Dense gradients**: refused; `step` raises RuntimeError: {dense}." if dense else "",
        f"**Compared with torch.optim**: {rule.differs}" if rule.differs else "",
        f"**Source**: {rule.source}" if rule.source else "",
    ]


def _rule_text(
    page: Page, options: Mapping[str, Any], rule: Rule, heading: str, said: set[str]
) -> Iterator[str]:
    """Yield a rule's heading and the parts of its text that are not among those already said."""
    blocks = _blocks(page, options, rule)
    functions, sentences = blocks[:-7], blocks[-7:]
    yield heading
    new = [function for function in functions if function not in said]
    if len(new) < len(functions):
        yield "Functions that it calls, and numbers that are not listed, are those above."
    if new:
        yield "```python\n{}\n```".format("\n\n\n".join(new))
    yield from (sentence for sentence in sentences if sentence and sentence not in said)


def _state_table(page: Page, options: Mapping[str, Any], rule: Rule) -> str:
    """Return the table of the state: the slots of the rule, and what the class keeps beside."""
    slots = {slot.name: slot for slot in rule.slots}
    beside = _kept_beside(page.cls, options, rule)
    rows = [f"| `{name}` | {start:g} | one number for each variable |" for name, start in beside]
    rows += [
        f"| `{name}` | {_start_words(page, slot)} | {_shape_words(slot)} |"
        for name, slot in slots.items()
    ]
    if not rows:
        return "**State**: none."
    title = "state of a matrix" if getattr(page.cls, "_rule_by_shape", None) else "state"
    return "\n".join([f"| {title} | begins at | shape |", "|---|---|---|", *rows])


def _kept_beside(cls: type[Any], options: Mapping[str, Any], rule: Rule) -> list[tuple[str, float]]:
    """Return the numbers in the state of a class in torch's form that are not slots."""
    if not issubclass(cls, torch.optim.Optimizer):
        return []
    if hasattr(cls, "_torch"):
        return [("step", 0.0)] if getattr(cls, "_counts", False) else []
    param = torch.nn.Parameter(torch.ones(2, 2))
    known = [*(slot.name for slot in rule.slots), *rule.powers]
    state = cls([param], **options).state[param]
    return [(name, float(value)) for name, value in state.items() if name not in known]


def _start_words(page: Page, slot: Any) -> str:
    """Return what a slot begins at, and the argument that changes it."""
    parameters = inspect.signature(page.cls).parameters
    for argument in _STARTS.get(slot.name, ()):
        if argument in parameters:
            return f"{_number(parameters[argument].default)} (`{argument}`)"
    return "the variable" if slot.name in _COPIES else f"{slot.initial:g}"


def _shape_words(slot: Any) -> str:
    """Return the shape of a slot in words."""
    if slot.per:
        return f"one number for each {slot.per}"
    if slot.scalar:
        return "one number for each variable"
    return "its own" if slot.shape else "the variable's"


def _numbers_table(page: Page, rule: Rule) -> str:
    """Return the table of a rule's hyperparameters, as the constructor of the class takes them."""
    rows = ["| number | argument, if named otherwise | default | what it is |", "|---|---|---|---|"]
    for hyper, argument, default, doc in numbers_of(rule, page.cls):
        title = "" if argument in (None, hyper.name) else f"`{argument}`"
        value = "required" if default is inspect.Parameter.empty else _number(default)
        if argument is None:
            value = "set by the class" + (f": {value}" if default is not None else "")
        rows.append(f"| `{hyper.name}` | {title} | {value} | {doc.partition(';')[0]} |")
    for power, hyper in rule.powers.items():
        rows.append(f"| `{power}` | | | `{hyper}` to the power of the step |")
    return "\n".join(rows)


def _number(value: object) -> str:
    """Return a number as it is read best, and other values as code."""
    return (
        f"{value:g}"
        if isinstance(value, int | float) and not isinstance(value, bool)
        else f"`{value}`"
    )


def face_text(face: Face) -> str:
    """The table of a face's classes, in Markdown."""
    rows = ["| class | what it is |", "|---|---|"]
    for page in sorted(face.pages, key=lambda page: page.name.lower()):
        first = (inspect.getdoc(page.cls) or "").partition("\n")[0]
        rows.append(f"| [{page.name}]({page.name}.md) | {first} |")
    return "\n\n".join([f"# {face.title}", face.about, "\n".join(rows)]) + "\n"


def texts() -> dict[str, str]:
    """Every page by its path below the folder."""
    made: dict[str, str] = {}
    for face in faces():
        made[f"{face.folder}/index.md"] = face_text(face)
        made |= {f"{face.folder}/{page.name}.md": page_text(face, page) for page in face.pages}
    return made


def write(app: Any) -> None:
    """Write all pages whose text has changed, and remove those that are no more."""
    folder = Path(app.srcdir) / FOLDER
    made = texts()
    for path in folder.rglob("*.md"):
        if str(path.relative_to(folder)) not in made:
            path.unlink()
    for name, text in made.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def shorten(
    app: Any,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str | None,
    returns: str | None,
) -> tuple[str, str | None] | None:
    """The signature of a class that has a page: no types, and one word for the options of all."""
    if not any(obj is page.cls for page in _PAGES):
        return None
    given = inspect.signature(obj).parameters.values()
    own = [each.replace(annotation=each.empty) for each in given]
    if issubclass(obj, torch.optim.Optimizer):
        own = [each for each in own if each.name not in KEYWORDS]
        own.append(inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD))
    return str(inspect.Signature(own)), None


def skip(app: Any, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Leave a class that has a page of its own to that page."""
    return True if any(obj is page.cls for page in _PAGES) else None


_PAGES = [page for face in faces() for page in face.pages]


def setup(app: Any) -> dict[str, bool]:
    """What Sphinx calls."""
    app.connect("builder-inited", write)
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
