"""Every optimizer by name: its class, accepted spellings, and errors for unknown names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import thalweg
from thalweg._cli import registry
from thalweg.errors import NotFoundError
from thalweg.rules import KERAS_RULES, RULES

NAMES = registry.names()


@pytest.mark.parametrize("name", NAMES)
def test_optimizer_names_are_case_insensitive(name: str) -> None:
    assert registry.spelled(name.upper()) == registry.spelled(name.lower()) == name
    entry = registry.named(name)
    optimizer = entry.make(0.25)
    assert type(optimizer) is entry.cls
    assert entry.cls is registry.by_class()[entry.of].cls
    assert float(getattr(optimizer, registry.rate_name(optimizer) or "")) == 0.25


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_name_finds_its_optimizer(rule: thalweg.Rule) -> None:
    entry = registry.by_rule()[rule.name]
    assert entry.rule is rule
    assert (entry.of in registry.KERAS) == (rule in KERAS_RULES)


def test_registry_names_are_rule_and_class_names() -> None:
    assert NAMES[: len(RULES)] == [rule.name for rule in RULES]
    assert set(registry.KERAS) < set(NAMES)
    prefixes = [name.partition(":")[0] for name in NAMES[len(RULES) :]]
    assert prefixes == ["v1"] * (len(prefixes) - 1) + ["openseq2seq"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("admm", "there is no rule 'admm'; near it: Adam, Nadam"),
        ("xyz", "there is no rule 'xyz'; all are listed by `thalweg rules`."),
        ("v1:optimizer", "'v1:Optimizer' cannot be named here: it is the base class"),
    ],
)
def test_unknown_names_raise(name: str, message: str) -> None:
    with pytest.raises(NotFoundError) as raised:
        registry.spelled(name)
    assert str(raised.value).startswith(message)


def test_step_measurement_does_not_import_race() -> None:
    paths = [*Path(thalweg.__file__).parent.glob("_cli/bench/*.py")]
    assert paths
    for path in paths:
        assert "thalweg._cli.race" not in path.read_text()


@pytest.mark.parametrize("name", ["Muon", "NorMuon", "AdaMuon", "MuonH", "SOAP", "KLSOAP"])
def test_rules_of_matrices_take_kernels_of_conv1d(name: str) -> None:
    variable = torch.nn.Parameter(torch.ones(3, 2, 4))
    optimizer = registry.named(f"optim:{name}").make(0.1)
    for _ in range(2):  # the first step of SOAP moves nothing
        optimizer.apply_gradients([(torch.arange(24.0).reshape(3, 2, 4), variable)])
    assert not torch.equal(variable.detach(), torch.ones(3, 2, 4))
