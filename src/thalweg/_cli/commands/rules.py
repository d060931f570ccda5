"""`thalweg rules` lists the update rules; `thalweg show` prints one: formula, slots, defaults."""

from __future__ import annotations

import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from thalweg import optim
from thalweg._base.literals import names_file
from thalweg._cli import registry, rule_loader
from thalweg._cli.class_facts import describe_sparse_update, numbers_of
from thalweg._cli.console import make_console
from thalweg._cli.registry import OPTIM, by_class, torch_rules
from thalweg._engines.pass_updates import sweeps_in_order
from thalweg.errors import NotFoundError
from thalweg.formula import FORMULAS, Rule, Slot
from thalweg.rules import RULES


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def rules(as_json: bool) -> None:
    """List the update rules, one line each.

    \b
    Examples:
      thalweg rules
      thalweg rules --json
    """
    if as_json:
        click.echo(json.dumps([_describe_rule(rule) for rule in RULES], indent=2))
        return

    # A line per rule in 80 columns, also for grep; `thalweg show` prints the details.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("rule", style="bold", overflow="fold")
    for heading in ("slots", "a sparse gradient updates"):
        table.add_column(heading, overflow="fold")
    for rule in RULES:
        table.add_row(
            rule.name,
            ", ".join(slot.name for slot in rule.slots) or "-",
            describe_sparse_update(rule),
        )
    console = make_console()
    console.print(table)
    classic = [name for name in by_class() if ":" in name]
    for note in (
        f"Optimizers of TensorFlow 1, with its arguments: {', '.join(classic)}.",
        f"Rules of thalweg.optim: {', '.join(torch_rules())}; with torch: before"
        " them torch's own, where it has them, can race and be timed.",
        "Formula, hyperparameters with defaults, and source of one: thalweg show RULE",
    ):
        console.print(note, style="dim", highlight=False)


@click.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def show(name: str, as_json: bool) -> None:
    """Print the rule NAME, or your own as file.py:NAME: formula, slots, defaults, differences.

    NAME may also be an optimizer of TensorFlow 1, whose rule is printed, or a rule of torch.optim
    with optim: before it. If TensorFlow and torch have rules of the same name, both formulas are
    printed, side by side if there is room. `thalweg rules` lists all names.

    \b
    Examples:
      thalweg show Adam
      thalweg show ftrl
      thalweg show v1:LARSOptimizer
      thalweg show optim:Adam
      thalweg show mine.py:MyRule
    """
    rule, cls = _find_rule(name)
    torchs = _of_torch(rule)
    if as_json:
        description = {**_describe_rule(rule, cls), "formula": formula_source(rule)}
        if torchs is not None:
            _, its_class = _find_rule(torchs.name)
            torch_description = _describe_rule(torchs, its_class)
            description["torch"] = {**torch_description, "formula": formula_source(torchs)}
        click.echo(json.dumps(description, indent=2))
        return
    _print_rule(make_console(), rule, torchs, cls)


def _print_code(console: Console, text: str) -> Any:
    if not console.is_terminal or console.no_color:
        return Text(text)
    return Syntax(text, "python", background_color="default", theme="ansi_dark", word_wrap=True)


_HOSTS = ("prepare", "per_optimizer", "per_variable")


def sweep_words(rule: Rule) -> str:
    """Return a description of the sweeps of a step over memory, with the purpose of each."""
    *pass_names, _ = sweeps_in_order(rule)
    parts = [
        f"{' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))}" for names in pass_names
    ]
    return f"{len(parts) + 1} a step: {'; '.join([*parts, 'the update'])}"


def _slot_words(slot: Slot) -> str:
    """Describe the initial value and the other attributes of a slot."""
    words = [f"starts at {slot.initial:g}"]
    words += ["in a shape of its own"] * bool(slot.shape)
    words += [f"one for each {slot.per}"] * bool(slot.per)
    words += ["never negative"] * slot.positive
    words += ["8 bits are too few"] * slot.exact
    words += [f"kept in {slot.storage}"] * bool(slot.storage)
    return ", ".join(words)


def _unwrap(function: Any) -> Any:
    """Return the function of a partial object; return anything else itself."""
    return getattr(function, "func", function)


def _name_of(function: Any) -> str:
    return getattr(_unwrap(function), "__name__", repr(function))


def _made_by(pre_pass: Any) -> tuple[str, ...]:
    """Return the names of the results of a pass; empty if the pass has no `makes`."""
    names = getattr(pre_pass, "makes", ())
    return (names,) if isinstance(names, str) else tuple(names)


def formula_source(rule: Rule) -> str:
    """Return the source text of a rule's formulas and of every function that a formula calls.

    A function without available source is represented by a comment.
    """
    attributes = ((part, getattr(rule, part)) for part in (*_HOSTS, *FORMULAS))
    parts = [
        (part, function) for part, attribute in attributes for function in _functions_of(attribute)
    ]
    all_measures = (rule.measures, *(level.measures for level in rule.levels))
    reductions = [reduction for measures in all_measures for reduction in measures.values()]
    sums = [function for reduction in reductions for function in _functions_of(reduction)]
    pass_functions = [_unwrap(pre_pass.function) for pre_pass in rule.passes]
    known = [function for _, function in parts]
    pass_functions += [function for function in sums if function not in known]
    parts[1:1] = [(function.__name__, function) for function in dict.fromkeys(pass_functions)]
    parts += [("per_variable", _unwrap(level.per_variable)) for level in rule.levels]
    formulas = [(part, function) for part, function in parts if function is not None]
    helpers = _helpers_of([function for _, function in formulas])
    texts: list[str] = []
    for part, function in [*formulas, *((helper.__name__, helper) for helper in helpers)]:
        try:
            texts.append(textwrap.dedent(inspect.getsource(function)).strip())
        except OSError:
            texts.append(f"# {part}: the source text of {function!r} is not available")
    return "\n\n\n".join(texts)


def _functions_of(formula: Any) -> list[Any]:
    """Return the functions of a formula: itself, or the two functions of a combined formula."""
    formulas = getattr(formula, "both", None)
    return (
        [formula]
        if formulas is None
        else [function for inner in formulas for function in _functions_of(inner)]
    )


def _helpers_of(functions: list[object]) -> list[Any]:
    """Return functions that `functions` call, also indirectly, except functions of libraries."""
    helpers: list[Any] = []
    pending = list(filter(inspect.isfunction, functions))
    while pending:
        variables = inspect.getclosurevars(pending.pop(0))
        for function in (*variables.nonlocals.values(), *variables.globals.values()):
            if (
                inspect.isfunction(function)
                and not _is_known(function)
                and function not in functions + helpers
            ):
                helpers.append(function)
                pending.append(function)
    return helpers


def _is_known(function: object) -> bool:
    """Return True if a function belongs to a library, whose source is not printed."""
    package, *submodules = function.__module__.split(".")
    if package == "thalweg":
        return submodules[:1] != ["rules"]
    return package in sys.stdlib_module_names or package in ("numpy", "torch")


def _defaults_of(rule: Rule, cls: type[Any] | None) -> list[tuple[str, Any, str]]:
    """Return (name, default, description) of each hyperparameter of `rule`, or of `cls` if set."""
    if cls is None:
        return [(hyper.name, hyper.default, hyper.doc) for hyper in rule.hypers]
    return [
        (hyper_facts.hyper.name, hyper_facts.default, hyper_facts.doc)
        if hyper_facts.argument or hyper_facts.default is not None
        else (hyper_facts.hyper.name, hyper_facts.hyper.default, hyper_facts.doc)
        for hyper_facts in numbers_of(rule, cls)
    ]


def _describe_rule(rule: Rule, cls: type[Any] | None = None) -> dict[str, object]:
    """Return a rule as JSON values, with the defaults of `cls`, or of `rule` if `cls` is None."""
    return {
        "name": rule.name,
        "slots": [
            {key: getattr(slot, key) for key in ("name", "initial", "positive", "exact", "storage")}
            for slot in rule.slots
        ],
        "passes": [
            {"kind": type(x).__name__, "function": _name_of(x.function), "makes": _made_by(x)}
            for x in rule.passes
        ],
        "hypers": [
            {"name": name, "default": default, "doc": doc}
            for name, default, doc in _defaults_of(rule, cls)
        ],
        "powers": dict(rule.powers),
        "sweeps": len(sweeps_in_order(rule)),
        "sparse": describe_sparse_update(rule, cls),
        "source": rule.source,
        "differs": rule.differs,
    }


def _find_rule(name: str) -> tuple[Rule, type[Any] | None]:
    """Find a rule by its name, by a registered name such as `optim:Adam`, or by `file.py:NAME`.

    Return (rule, class). The class is the class of `thalweg.optim` with the name, or None.
    """
    rules_by_name = {rule.name.lower(): rule for rule in RULES}
    if name.lower() in rules_by_name:
        return rules_by_name[name.lower()], None
    names_by_rule = {rule.name.lower(): label for label, rule in registry.torch_rules().items()}
    label = names_by_rule.get(name.lower(), name)
    if names_file(label):
        return rule_loader.load_rule(label), None
    try:
        entry = registry.named(registry.spelled(label))
        # Facts of torch's classes are those of thalweg.optim's classes of the same name.
        original = getattr(entry.cls, "factory", None)
        return entry.rule, original and getattr(optim, original.__name__, None)
    except NotFoundError as error:
        raise click.UsageError(str(error)) from None


def _of_torch(rule: Rule) -> Rule | None:
    """Return torch's rule of the same name as a rule of TensorFlow, or None."""
    # A user-defined rule may have the name of a built-in one.
    if rule not in RULES:
        return None
    torch_rules_by_name = {label.lower(): torch_rule for label, torch_rule in torch_rules().items()}
    torch_rule_ = torch_rules_by_name.get((OPTIM + rule.name).lower())
    return None if torch_rule_ is rule else torch_rule_


def _print_rule(console: Console, rule: Rule, torchs: Rule | None, cls: type[Any] | None) -> None:
    """Print a rule: formula, slots, passes over memory, defaults, and effect of sparse gradients.

    Args:
        torchs: Optional. Torch's rule of equal name; its formula is printed, too.
        cls: Optional. The class of `thalweg.optim` that runs the rule.
    """
    console.print(Text(rule.name, style="bold green"))
    if rule.source:
        console.print(rule.source, markup=False, highlight=False, soft_wrap=True)
    formulas = {"Formula": rule}
    if torchs is not None:
        formulas = {"TensorFlow's formula": rule, "torch.optim's formula": torchs}
    _print_formulas(
        console, {label: formula_source(shown_rule) for label, shown_rule in formulas.items()}
    )
    for label, lines in _sections_of(rule, cls):
        console.print(Text(f"\n{label}", style="bold"))
        for line in lines:
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


def _print_formulas(console: Console, texts: dict[str, str]) -> None:
    """Print {title: formula}: side by side if the console is wide enough, else in sequence."""
    widths = [max(map(len, text.splitlines())) for text in texts.values()]
    if len(texts) > 1 and sum(widths) + 3 <= console.width:
        table = Table(box=None, padding=(0, 3, 0, 0), show_edge=False)
        for label in texts:
            table.add_column(label, header_style="bold", no_wrap=True)
        table.add_row(*(_print_code(console, text) for text in texts.values()))
        console.print()
        console.print(table)
        return
    for label, text in texts.items():
        console.print(Text(f"\n{label}", style="bold"))
        console.print(_print_code(console, text), soft_wrap=True)


def _sections_of(rule: Rule, cls: type[Any] | None) -> Iterator[tuple[str, list[str]]]:
    """Yield (title, lines) of each section that `thalweg show` prints below the formulas."""
    slots = [f"{slot.name:<14} {_slot_words(slot)}" for slot in rule.slots]
    yield "Slots", slots or ["none"]
    passes: list[str] = []
    for pre_pass in rule.passes:
        names = ", ".join(_made_by(pre_pass))
        words = f"{type(pre_pass).__name__} of {_name_of(pre_pass.function)}"
        passes.append(f"{words}, makes {names}" if names else words)
    if passes:
        yield "Before the update", passes
    yield "Sweeps over memory", [sweep_words(rule)]
    defaults: list[str] = []
    for name, default, doc in _defaults_of(rule, cls):
        value = f"{default:g}" if isinstance(default, int | float) else str(default)
        defaults.append(f"{name:<20} {value:<8} {doc}")
    for power, hyper in rule.powers.items():
        defaults.append(f"{power:<20} {hyper} to the power of the step")
    yield "Defaults", defaults
    yield "Sparse gradient", [describe_sparse_update(rule, cls)]
    yield "Differs from torch.optim", [rule.differs or "nothing noted"]
