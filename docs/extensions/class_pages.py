"""Write a page for each optimizer class, from its docstring and from the rule that it runs.

The pages lie in `docs/classes`, which git ignores: formulas, slots, defaults and sources are read
from the rules, as `thalweg show` prints them, so that a page cannot differ from the code.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from thalweg import catalogue, optim
from thalweg.cli.rules import formula_source, sparse_words, sweep_words
from thalweg.formula import Rule
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.optim import tensorflow
from thalweg.optim.step_options import KEYWORDS

FOLDER = "classes"
# What constructors call the numbers that formulas name.
_ARGUMENTS = {
    "learning_rate": ("lr",),
    "epsilon": ("eps",),
    "beta1": ("beta_1", "betas"),
    "beta2": ("beta_2", "betas"),
    "beta3": ("betas",),
    "l1": ("l1_regularization_strength",),
    "l2": ("l2_regularization_strength",),
    "l2_shrinkage": ("l2_shrinkage_regularization_strength",),
}
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
    named = {**catalogue.by_rule(), **catalogue.by_class()}
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
            "Torch's classes with torch's numbers, and those that torch lacks. All take"
            " [the same options](../../torch.md#options-of-a-constructor).",
            tuple(_of_optim()),
        ),
        Face(
            "tensorflow",
            "thalweg.optim.tensorflow",
            "TensorFlow's rules and numbers, in torch's form:"
            " [groups, state and files](../../torch.md#tensorflows-numbers).",
            tuple(_of_tensorflow()),
        ),
        Face(
            "keras",
            "thalweg.keras.optimizers",
            "Keras' OptimizerV2. What all of them have is told by"
            " [the base class](../../optimizer.md).",
            tuple(keras),
        ),
        Face(
            "v1",
            "thalweg.v1.train",
            "`tf.train` and `tf.contrib.opt` of TensorFlow 1. What all of them have is told by"
            " [the base class](../../optimizer.md).",
            tuple(v1),
        ),
        Face(
            "openseq2seq",
            "thalweg.openseq2seq",
            "What OpenSeq2Seq adds to TensorFlow 1's optimizers;"
            " [its page](../../migrate-from-openseq2seq.md) has `optimize_loss`.",
            (novograd,),
        ),
    )


def _of_optim() -> Iterator[Page]:
    found: dict[str, list[tuple[Mapping[str, Any], Rule]]] = {}
    for name, each in catalogue.by_torch().items():
        if name.startswith(catalogue.OPTIM):
            found.setdefault(each.cls.made_of.__name__, []).append((each.options, each.cls.rule))
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
    """One class, in Markdown."""
    # In no table of contents: 80 more lines beside every page help nobody and double the build.
    parts = [
        "---\norphan: true\n---",
        f"# {page.name}",
        f"`from {page.module} import {page.name}` · [all of {face.title}](index.md)",
        f"```{{eval-rst}}\n.. autoclass:: {page.module}.{page.name}\n```",
    ]
    (given, first), *others = page.rules
    parts += _rule_text(page, first, "## Formula", set())
    for arguments, rule in others:
        chosen = {name: value for name, value in arguments.items() if given.get(name) != value}
        said = ", ".join(f"{name}={value!r}" for name, value in chosen.items())
        parts += _rule_text(page, rule, f"## With `{said}`", set(_blocks(page, first)))
    return "\n\n".join(parts) + "\n"


def _blocks(page: Page, rule: Rule) -> list[str]:
    """What there is to say of a rule, each part by itself."""
    return [
        *formula_source(rule).split("\n\n\n"),
        _numbers_table(page, rule),
        _state_table(rule),
        f"**Sweeps over memory**: {sweep_words(rule)}.",
        f"**Sparse gradients**: {sparse_words(rule)}.",
        f"**Beside torch.optim**: {rule.differs}" if rule.differs else "",
        f"**Source**: {rule.source}" if rule.source else "",
    ]


def _rule_text(page: Page, rule: Rule, heading: str, known: set[str]) -> Iterator[str]:
    """A rule under a heading, but what the page has said already."""
    *functions, numbers, state, sweeps, sparse, differs, source = _blocks(page, rule)
    yield heading
    own = [each for each in functions if each not in known]
    if len(own) < len(functions):
        yield "Functions that it calls, and numbers that are not listed, are those above."
    if own:
        yield "```python\n{}\n```".format("\n\n\n".join(own))
    yield from (
        each
        for each in (numbers, state, sweeps, sparse, differs, source)
        if each and each not in known
    )


def _state_table(rule: Rule) -> str:
    if not rule.slots:
        return "**State**: none."
    rows = [f"| `{slot.name}` | {slot.initial:g} | {_shape_words(slot)} |" for slot in rule.slots]
    return "\n".join(["| state | begins at | shape |", "|---|---|---|", *rows])


def _shape_words(slot: Any) -> str:
    if slot.per:
        return f"one number for each {slot.per}"
    if slot.scalar:
        return "one number for each variable"
    return "its own" if slot.shape else "the variable's"


def _numbers_table(page: Page, rule: Rule) -> str:
    signature = inspect.signature(page.cls)
    rows = ["| number | argument, if named otherwise | default | what it is |", "|---|---|---|---|"]
    for hyper in rule.hypers:
        argument, default = _argument_of(hyper.name, signature)
        value = _number(hyper.default) if argument is None else default
        said = "" if argument in (None, hyper.name) else f"`{argument}`"
        rows.append(f"| `{hyper.name}` | {said} | {value} | {hyper.doc.partition(';')[0]} |")
    for power, hyper in rule.powers.items():
        rows.append(f"| `{power}` | | | `{hyper}` to the power of the step |")
    return "\n".join(rows)


def _argument_of(name: str, signature: inspect.Signature) -> tuple[str | None, str]:
    """What the constructor calls a number, and its default there."""
    for candidate in (name, *_ARGUMENTS.get(name, ())):
        if candidate not in signature.parameters:
            continue
        default = signature.parameters[candidate].default
        if candidate == "betas":
            place = int(name[-1]) - 1
            if not isinstance(default, tuple) or place >= len(default):
                continue
            return f"betas[{place}]", _number(default[place])
        if default is inspect.Parameter.empty:
            return candidate, "required"
        return candidate, _number(default)
    return None, ""


def _number(value: object) -> str:
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
