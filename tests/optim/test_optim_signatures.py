"""Order of constructor arguments: the reference's first, then options in the order of the docs."""

from __future__ import annotations

import inspect
import re
import runpy
from inspect import Parameter
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from thalweg import optim
from thalweg.optim import tensorflow
from thalweg.optim.rule_names import KINDS
from thalweg.optim.step_options import KEYWORDS

ROOT = Path(__file__).parents[2]
STUBS = runpy.run_path(str(ROOT / "tools" / "stubs.py"))
PAGE = (ROOT / "docs" / "options.md").read_text()
HEAD = "| option | type | default | effect |\n|---|---|---|---|\n"
# Positional arguments after `params` of the classes that torch lacks: those of the reference in
# docs/optimizers.md, without the ones that it has for another implementation.
REFERENCES = {
    "ADOPT": "lr betas eps clip_exp weight_decay decoupled",
    "AdEMAMix": "lr betas weight_decay alpha eps alpha_warmup beta3_warmup",
    "AdafactorHF": (
        "lr eps clip_threshold decay_rate beta1 weight_decay scale_parameter relative_step"
        " warmup_init"
    ),
    "AdaMuon": "lr weight_decay momentum nesterov ns_steps eps ns_coefficients",
    "AdamH": "lr betas eps",
    "AdamWCautiousDecay": "lr betas eps weight_decay",
    "AdamWCoupled": "lr betas eps weight_decay",
    "AdamWDecoupled": "lr betas eps weight_decay",
    "AdamWIndependent": "lr betas eps weight_decay",
    "Adan": "lr betas eps weight_decay no_prox",
    "CautiousAdamW": "lr betas eps weight_decay",
    "KLSOAP": "lr betas shampoo_beta eps weight_decay precondition_frequency max_precondition_dim",
    "LAMB": "lr betas eps weight_decay trust_clip always_adapt",
    "LaProp": "lr betas eps weight_decay",
    "Lion": "lr betas weight_decay",
    "MARS": "lr betas eps weight_decay gamma mars_type optimize_1d lr_1d_factor betas_1d caution",
    "Mixed": "",
    # Torch before 2.9 lacks it.
    "Muon": "lr weight_decay momentum nesterov ns_coefficients eps ns_steps adjust_lr_fn",
    "MuonH": "lr momentum nesterov ns_coefficients eps ns_steps",
    "NAdamW": "lr betas eps weight_decay",
    "NorMuon": (
        "lr weight_decay momentum beta2 nesterov ns_coefficients eps ns_steps adjust_lr_fn"
        " update_scale"
    ),
    "Prodigy": (
        "lr betas beta3 eps weight_decay decouple use_bias_correction safeguard_warmup d0 d_coef"
        " growth_rate fsdp_in_use slice_p"
    ),
    "SM3": "lr momentum beta eps",
    "SOAP": "lr betas shampoo_beta eps weight_decay precondition_frequency max_precondition_dim",
    "ScheduleFreeAdamW": "lr betas eps weight_decay warmup_steps r weight_lr_power",
    "ScheduleFreeSGD": "lr momentum weight_decay warmup_steps r weight_lr_power",
    "StableAdamW": "lr betas weight_decay eps",
    "RuleOptimizer": "rule lr",
    "tensorflow.Adadelta": "lr rho eps",
    "tensorflow.Adagrad": "lr initial_accumulator_value eps",
    "tensorflow.AdagradDA": "lr initial_accumulator_value l1 l2",
    "tensorflow.Adam": "lr betas eps amsgrad",
    "tensorflow.AdamW": "lr betas eps weight_decay",
    "tensorflow.Adamax": "lr betas eps",
    "tensorflow.Ftrl": ("lr learning_rate_power initial_accumulator_value l1 l2 l2_shrinkage beta"),
    "tensorflow.LazyAdam": "lr betas eps",
    "tensorflow.Momentum": "lr momentum nesterov",
    "tensorflow.MomentumW": "lr momentum weight_decay nesterov",
    "tensorflow.Nadam": "lr betas eps decay",
    "tensorflow.ProximalAdagrad": "lr initial_accumulator_value l1 l2",
    "tensorflow.ProximalGradientDescent": "lr l1 l2",
    "tensorflow.RMSprop": "lr rho momentum eps centered",
    "tensorflow.SGD": "lr momentum nesterov",
}
NAMES = [
    name
    for name in (*optim.__all__, *(f"tensorflow.{name}" for name in tensorflow.__all__))
    if isinstance(cls := attrgetter(name)(optim), type)
    and issubclass(cls, torch.optim.Optimizer)
    and cls.__module__.startswith("thalweg.")
]
OF_TORCH = [name for name in NAMES if hasattr(torch.optim, name)]


class Row(NamedTuple):
    """An option in the table of docs/options.md."""

    name: str
    type: str
    default: str


def read_table() -> dict[str, list[Row]]:
    """Return the rows of the table of options, by the titles of their groups."""
    table = PAGE.partition(HEAD)[2].partition("\n\n")[0].replace(r"\|", "\0")
    groups: dict[str, list[Row]] = {}
    for line in table.splitlines():
        cells = [cell.strip().replace("\0", "|") for cell in line.strip("|").split("|")]
        if title := re.fullmatch(r"\*\*(.+)\*\*", cells[0]):
            rows = groups[title[1]] = []
            continue
        rows.append(Row(*(cell.strip("`") for cell in cells[:3])))
    return groups


SOME_CLASSES = "Only in some classes"
GROUPS = read_table()
ROWS = {row.name: row for row in chain(*GROUPS.values())}


def split_parameters(name: str) -> tuple[list[Parameter], list[Parameter]]:
    """Return the parameters of a class's reference, and the ones that Thalweg adds."""
    parameters = [*inspect.signature(attrgetter(name)(optim)).parameters.values()]
    if name in OF_TORCH:
        count = len(inspect.signature(getattr(torch.optim, name)).parameters)
    else:
        count = 1 + len(REFERENCES[name].split())
    return parameters[:count], parameters[count:]


def test_every_class_has_a_signature_reference() -> None:
    assert {*KINDS} < {*NAMES}
    assert {*NAMES} == {*OF_TORCH, *REFERENCES}
    assert len(OF_TORCH) > 10


@pytest.mark.parametrize("name", OF_TORCH)
def test_torch_arguments_come_first_in_torch_order(name: str) -> None:
    reference = inspect.signature(getattr(torch.optim, name), eval_str=True)
    for parameter, torch_parameter in zip(
        split_parameters(name)[0], reference.parameters.values(), strict=True
    ):
        assert (parameter.name, parameter.kind, parameter.default) == (
            torch_parameter.name,
            torch_parameter.kind,
            torch_parameter.default,
        )
        assert type(parameter.default) is type(torch_parameter.default)


@pytest.mark.parametrize("name", REFERENCES)
def test_reference_arguments_come_first_and_positional(name: str) -> None:
    first, _ = split_parameters(name)
    assert [param.name for param in first] == ["params", *REFERENCES[name].split()]
    assert {param.kind for param in first} == {Parameter.POSITIONAL_OR_KEYWORD}


@pytest.mark.parametrize("name", NAMES)
def test_options_are_keywords_in_the_order_of_the_table(name: str) -> None:
    _, options = split_parameters(name)
    if name == "RuleOptimizer":
        assert options.pop(0).name == "initial"
        assert options.pop().kind is Parameter.VAR_KEYWORD
    assert {param.kind for param in options} == {Parameter.KEYWORD_ONLY}
    names = [param.name for param in options]
    assert names == [option for option in ROWS if option in names]
    assert [*KEYWORDS] == names[len(names) - len(KEYWORDS) :]


@pytest.mark.parametrize("name", NAMES)
def test_the_table_has_the_types_and_defaults_of_all_options(name: str) -> None:
    for parameter in split_parameters(name)[1]:
        if parameter.name == "initial" or parameter.kind is Parameter.VAR_KEYWORD:
            continue
        row = ROWS[parameter.name]
        assert row.type == STUBS["_typed"](parameter.annotation)
        assert row.default == STUBS["_written"](parameter.default)


def test_the_table_lists_each_option_once() -> None:
    names = [row.name for row in chain(*GROUPS.values())]
    assert len({*names}) == len(names)
    assert names == [*(row.name for row in GROUPS[SOME_CLASSES]), *KEYWORDS]
    assert next(iter(GROUPS)) == SOME_CLASSES


@pytest.mark.parametrize("option", GROUPS[SOME_CLASSES], ids=lambda row: row.name)
def test_options_of_some_classes_are_not_in_all(option: Row) -> None:
    classes = [
        name for name in NAMES if any(p.name == option.name for p in split_parameters(name)[1])
    ]
    assert 0 < len(classes) < len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_option_by_position_raises(name: str) -> None:
    first, (option, *_) = split_parameters(name)
    if name == "RuleOptimizer":
        arguments: list[Any] = [optim.tensorflow.SGD([new_param()]).rule, 0.1]
    else:
        arguments = [p.default for p in first[1:] if p.kind is not Parameter.KEYWORD_ONLY]
    param = new_param()
    previous = param.detach().clone()
    with pytest.raises(TypeError, match=rf"positional|{option.name}"):
        attrgetter(name)(optim)([param], *arguments, option.default)
    assert torch.equal(param, previous)


def new_param() -> torch.nn.Parameter:
    """Return a matrix that is trained."""
    return torch.nn.Parameter(torch.ones(2, 2))
