"""Try each class of `thalweg.optim` with each pair of options, and print what fails.

    python tools/option_pairs.py --out FILE                 all cases; two hours on one core
    python tools/option_pairs.py --out FILE --cover         each option with each class and with
                                                            each other option; ten minutes
    python tools/option_pairs.py --out FILE --sample 100    as many as 100 seconds allow
    python tools/option_pairs.py --out FILE --only Muon     the cases whose name has the pattern
    python tools/option_pairs.py                            all, without steps; minutes

A case passes if the constructor raises and docs/options.md lists the combination, or if it does not
list it and these are equal to the bit: planned and replayed steps, those of the reference engine,
and those after the state was saved and loaded. FILE has a line per case and may be outside of the
repository; a run continues there. Cases come in an order that mixes classes and options, so that a
sample has some of each.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import inspect
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import thalweg
from thalweg import optim, rules
from thalweg.optim import tensorflow
from thalweg.optim.diagnostics import Spikes
from thalweg.optim.rule_names import KINDS

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
STEPS, STEPS_BEFORE_SAVE = 6, 3


def take_step(warning: object) -> None:
    """Take a step in spite of a warning: norms of another optimizer are no usual ones."""


def shared_spikes() -> Spikes:
    """Return a detector that judges the steps of several optimizers one after the other."""
    spikes = Spikes(take_step)
    vars(spikes.judge)["attach_to"] = partial(setattr, spikes.judge, "_source")
    return spikes


OPTIONS: dict[str, dict[str, Any]] = {
    "clip_grad_norm": {"clip_grad_norm": 1.0},
    "clip_grad_value": {"clip_grad_value": 0.25},
    "fused_unscale": {"fused_unscale": True},
    "accumulate": {"accumulate": 2},
    "wide_sums": {"accumulate": 2, "wide_sums": True},
    "in_backward": {"in_backward": True},
    "gradients": {"gradients": "flat"},
    "cautious_decay": {"cautious_decay": True},
    "row_floor": {"row_floor": 0.3},
    "cautious": {"cautious": True},
    "trust_ratio": {"trust_ratio": True},
    "sphere": {"sphere": True},
    "radial_brake": {"radial_brake": True},
    "state_storage": {"state_storage": "8bit"},
    "lookahead": {"lookahead": 2},
    "ema_decay": {"ema_decay": 0.9},
    "masters": {"masters": True},
    "weights": {"weights": "split"},
    "state_dtype": {"state_dtype": torch.bfloat16},
    "state_device": {"state_device": "cpu"},
    "round": {"round": "stochastic", "seed": 7},
    "diagnostics": {"diagnostics": 1},
    "spikes": {"spikes": shared_spikes()},
}
MATRIX_CLASSES = ("Muon", "NorMuon", "AdaMuon", "MuonH", "SOAP", "KLSOAP")
# Torch's loader casts float32 numbers of these classes to the dtype of the parameter.
CAST_BY_LOADERS = ("ASGD", "NAdam")
# The first has enough elements for 8-bit slots.
MATRIX_SHAPES = ((66, 64), (12, 8))


class Case(NamedTuple):
    """An optimizer class with one or two options."""

    cls: str
    options: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the name, a class and its options."""
        return f"{self.cls} {'+'.join(self.options)}"


class Exceptions(NamedTuple):
    """Combinations that docs/options.md lists.

    Attributes:
        lacking: For each option the classes that lack it.
        other_classes: For each option the only classes that have it.
        excluded: For pairs of options that exclude each other the classes that accept both.
    """

    lacking: Mapping[str, set[str]]
    other_classes: Mapping[str, set[str]]
    excluded: Mapping[frozenset[str], set[str]]

    def lists(self, case: Case) -> bool:
        """Return whether the page lists a combination of class and options."""
        # `wide_sums` does nothing without `accumulate`.
        options = {"accumulate" if name == "wide_sums" else name for name in case.options}
        accepting = self.excluded.get(frozenset(options))
        if accepting is not None and case.cls not in accepting:
            return True
        return any(
            case.cls in self.lacking.get(option, ())
            or (option in self.other_classes and case.cls not in self.other_classes[option])
            for option in options
        )


def read_page(text: str) -> Exceptions:
    """Return the exceptions in the table of the section "Exceptions"."""
    section = text.split("\n## Exceptions\n")[1].split("\n## ")[0]
    lacking: dict[str, set[str]] = {}
    other_classes: dict[str, set[str]] = {}
    excluded: dict[frozenset[str], set[str]] = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| `"):
            continue
        accepting = re.findall(r"`(\w+)` \(except in ([^)]*)\)", cells[1])
        cell = re.sub(r" \(except in [^)]*\)", "", cells[1])
        options, names = (set(re.findall(r"`([\w.]+)[^`]*`", text)) for text in (cells[0], cell))
        for option in options:
            excluded |= {frozenset((option, name)): set() for name in names & OPTIONS.keys()}
            for name, classes in accepting:
                excluded[frozenset((option, name))] = set(re.findall(r"`(\w+)`", classes))
            if "every class except" in cell:
                other_classes[option] = names
            else:
                lacking.setdefault(option, set()).update(names - OPTIONS.keys())
    return Exceptions(lacking, other_classes, excluded)


def cases() -> list[Case]:
    """Return all cases, in an order that depends on their names alone."""
    classes = [*KINDS, "RuleOptimizer", "Mixed", *map("tensorflow.{}".format, tensorflow.__all__)]
    groups = [*((option,) for option in OPTIONS), *combinations(OPTIONS, 2)]
    all_cases = [Case(cls, options) for cls in classes for options in groups]
    return sorted(all_cases, key=lambda case: hashlib.sha256(case.name.encode()).digest())


def covering_cases() -> list[Case]:
    """Return cases that have each class with each option, and each pair of options, once."""
    accepted = [case for case in cases() if not page_exceptions().lists(case)]
    covering: list[Case] = []
    covered: set[tuple[str, ...]] = set()
    # First those cases that cover the most.
    for min_items in (3, 2, 1):
        for case in accepted:
            items = {case.options, *((case.cls, option) for option in case.options)} - covered
            if len(items) >= min_items:
                covering.append(case)
                covered |= items
    return covering


def make_params(case: Case) -> list[nn.Parameter]:
    """Return new parameters, of bfloat16 if an option needs it."""
    is_narrow = not {"masters", "weights", "round"}.isdisjoint(case.options)
    has_vector = case.cls not in MATRIX_CLASSES and "row_floor" not in case.options
    generator = torch.Generator().manual_seed(1)
    shapes = (*MATRIX_SHAPES, (7,)) if has_vector else MATRIX_SHAPES
    tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    dtype = torch.bfloat16 if is_narrow else torch.float32
    return [nn.Parameter(tensor.to(dtype)) for tensor in tensors]


def draw_gradients(case: Case, params: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return the gradients of all steps."""
    generator = torch.Generator().manual_seed(2)
    steps: list[list[Tensor]] = []
    for _ in range(STEPS):
        grads = [torch.randn(param.shape, generator=generator).to(param.dtype) for param in params]
        if case.cls == "SparseAdam":
            rows = torch.tensor([[0, 5, 3]])
            grads = [
                torch.sparse_coo_tensor(rows, grad[rows[0]], grad.shape, check_invariants=False)
                for grad in grads
            ]
        steps.append(grads)
    return steps


def make_optimizer(case: Case, params: Sequence[Tensor]) -> Any:
    """Return an optimizer of a case."""
    keywords: dict[str, Any] = {"lr": 0.01}
    for option in case.options:
        keywords |= OPTIONS[option]
    if case.cls == "Mixed":
        groups = [
            {"params": [params[0]], "rule": "Muon"},
            {"params": list(params[1:]), "rule": "AdamW"},
        ]
        rate = keywords.pop("lr")
        return optim.Mixed([{**group, "lr": rate} for group in groups], **keywords)
    if case.cls == "RuleOptimizer":
        return optim.RuleOptimizer(params, rules.NESTEROV_BALL, **keywords)
    namespace, _, name = case.cls.rpartition(".")
    if name == "AdafactorHF":
        keywords["relative_step"] = False
    cls = getattr(tensorflow if namespace else optim, name)
    if "cautious_decay" in case.options and "weight_decay" in inspect.signature(cls).parameters:
        keywords["weight_decay"] = 0.1
    return cls(params, **keywords)


def train(case: Case, optimizer: Any, params: Sequence[Any], steps: Sequence[list[Tensor]]) -> None:
    """Take steps with the given gradients."""
    has_backward = not {"in_backward", "gradients"}.isdisjoint(case.options)
    enabled = "fused_unscale" in case.options
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=enabled)
    # The first call makes the scale.
    scaler.scale(torch.zeros(()))
    for grads in steps:
        for param, grad in zip(params, grads, strict=True):
            if has_backward:
                torch.autograd.backward([param], [grad])
            else:
                param.grad = grad.clone()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def contents(optimizer: Any, params: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return copies of parameters and state by name."""
    tensors = {f"param {place}": param.detach().clone() for place, param in enumerate(params)}
    for key, entries in optimizer.state_dict()["state"].items():
        for name, entry in entries.items():
            entry = torch.as_tensor(float("nan") if entry is None else entry)
            tensors[f"state {key} {name}"] = entry.detach().clone()
    return tensors


def bits_of(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor."""
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    return dense.reshape(-1).contiguous().view(torch.uint8)


def first_difference(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    """Return the name of the first tensor whose bits differ, or ""."""
    if actual.keys() != expected.keys():
        return f"the names {sorted(actual.keys() ^ expected.keys())}"
    for name, tensor in actual.items():
        expected_tensor = expected[name]
        if (tensor.dtype, tensor.shape) != (expected_tensor.dtype, expected_tensor.shape):
            return f"{name} in dtype or shape"
        if not torch.equal(bits_of(tensor), bits_of(expected_tensor)):
            return name
    return ""


def run_case(case: Case, exceptions: Exceptions, takes_steps: bool = True) -> str:
    """Return the outcome of a case; that of one that fails begins with a capital letter."""
    params = make_params(case)
    try:
        optimizer = make_optimizer(case, params)
    # A constructor may raise any error.
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return f"rejected: {reason}" if exceptions.lists(case) else f"Not listed: {reason}"
    if exceptions.lists(case):
        return "Listed, but the constructor accepts it"
    try:
        if not takes_steps:
            return "accepted"
        return compare(case, optimizer, params)
    except Exception as error:
        return f"Raised {type(error).__name__}: {str(error).splitlines()[0]}"


def compare(case: Case, optimizer: Any, params: list[nn.Parameter]) -> str:
    """Return "equal", or which steps differ."""
    steps = draw_gradients(case, params)
    train(case, optimizer, params, steps[:STEPS_BEFORE_SAVE])
    loaded_params = [nn.Parameter(param.detach().clone()) for param in params]
    loaded = make_optimizer(case, loaded_params)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(case, optimizer, params, steps[STEPS_BEFORE_SAVE:])
    actual = contents(optimizer, params)
    with thalweg.engine("reference"):
        reference_params = make_params(case)
        reference = make_optimizer(case, reference_params)
        train(case, reference, reference_params, steps)
    if name := first_difference(actual, contents(reference, reference_params)):
        return f"Differs from the reference: {name}"
    is_cast = params[0].dtype == torch.bfloat16 and "masters" not in case.options
    if is_cast and case.cls in CAST_BY_LOADERS:
        return "equal, apart from a load, which casts numbers as torch does"
    train(case, loaded, loaded_params, steps[STEPS_BEFORE_SAVE:])
    if name := first_difference(actual, contents(loaded, loaded_params)):
        return f"Differs after a load: {name}"
    return "equal"


@cache
def page_exceptions() -> Exceptions:
    """Return the exceptions of docs/options.md."""
    return read_page(PAGE.read_text())


def results(todo: Sequence[Case], time_limit: float | None) -> Iterator[tuple[Case, str]]:
    """Yield cases and their outcomes until the time is over."""
    start = time.monotonic()
    for case in todo:
        if time_limit is not None and time.monotonic() - start > time_limit:
            return
        yield case, run_case(case, page_exceptions())


def main() -> int:
    """Run the cases that a file lacks; return 1 if any case of the file failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sample", type=float, metavar="SECONDS")
    parser.add_argument("--only", default="", metavar="PATTERN")
    parser.add_argument("--cover", action="store_true")
    arguments = parser.parse_args()
    candidates = covering_cases() if arguments.cover else cases()
    candidates = [case for case in candidates if re.search(arguments.only, case.name)]
    if arguments.out is None:
        return report({case.name: run_case(case, page_exceptions(), False) for case in candidates})
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    outcomes = dict(line.split("\t", 1) for line in lines)
    todo = [case for case in candidates if case.name not in outcomes]
    with arguments.out.open("a") as file:
        for count, (case, outcome) in enumerate(results(todo, arguments.sample), 1):
            outcomes[case.name] = outcome
            file.write(f"{case.name}\t{outcome}\n")
            file.flush()
            if outcome[0].isupper() or count % 100 == 0:
                sys.stdout.write(f"{count} of {len(todo)}: {case.name}: {outcome}\n")
                sys.stdout.flush()
    return report(outcomes)


def report(outcomes: Mapping[str, str]) -> int:
    """Print the cases that failed; return 1 if there are any, else 0."""
    failed = [f"{name}: {outcome}" for name, outcome in outcomes.items() if outcome[0].isupper()]
    sys.stdout.write("\n".join([*failed, f"{len(outcomes)} cases, {len(failed)} failed\n"]))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
