"""Modern rules through Keras' `RuleOptimizer`: engines agree on every kind of gradient."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

import thalweg
from modern_inputs import gradients_of, params_of
from pairwise import cover_values
from rule_trainings import KINDS, train_rule
from rulebook import DTYPES, assert_same, label
from thalweg import Variable
from thalweg.errors import InvalidTypeError
from thalweg.keras.optimizers import RuleOptimizer
from thalweg.rules.modern import MODERN_RULES

OF_ELEMENTS = [rule for rule in MODERN_RULES if not rule.passes]
OF_MATRICES = [rule for rule in MODERN_RULES if rule.passes]


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize(
    ("rule", "dtype", "kind"),
    cover_values(product(OF_ELEMENTS, DTYPES, KINDS), 1),
    ids=lambda value: getattr(value, "name", label(value)),
)
def test_engines_agree_on_modern_rules(rule: Any, dtype: torch.dtype, kind: str) -> None:
    results: list[Any] = []
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine):
            results.append(train_rule(rule, dtype, kind))
    assert_same(*results)
    assert all(tensor.isfinite().all() for tensor in results[0])


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize(
    ("rule", "dtype", "kind"),
    cover_values(
        product(OF_MATRICES, (torch.float32, torch.float64, torch.bfloat16), ("dense", "none")), 2
    ),
    ids=lambda value: getattr(value, "name", label(value)),
)
def test_engines_agree_on_modern_matrix_rules(rule: Any, dtype: torch.dtype, kind: str) -> None:
    test_engines_agree_on_modern_rules(rule, dtype, kind)


@pytest.mark.parametrize("rule", OF_MATRICES, ids=lambda rule: rule.name)
def test_matrix_rule_rejects_sparse_rows_and_half_precision(rule: Any) -> None:
    if rule.is_whole:  # rows are added up to a matrix
        assert all(tensor.isfinite().all() for tensor in train_rule(rule, torch.float32, "sparse"))
    else:
        with pytest.raises(InvalidTypeError, match="The gradient of 'w0:0' is sparse"):
            train_rule(rule, torch.float32, "sparse")
    with pytest.raises(InvalidTypeError, match="'w0:0' is float16"):
        train_rule(rule, torch.float16, "dense")


@pytest.mark.parametrize("rule", MODERN_RULES, ids=lambda rule: rule.name)
def test_a_rule_names_its_source(rule: Any) -> None:
    assert rule.source
    assert rule.differs
    thalweg.check_rule(rule)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rule", OF_MATRICES, ids=lambda rule: rule.name)
def test_matrix_rule_resumes_from_a_file_and_from_weights(rule: Any, tmp_path: Any) -> None:
    def made() -> tuple[Any, Any]:
        variables = [Variable(tensor.detach().clone(), f"w{place}")
               for place, tensor in enumerate(params_of(torch.float32)[2:4])]  # fmt: skip
        return variables, RuleOptimizer(rule, learning_rate=0.05)

    def step(variables: Any, opt: Any, number: int) -> None:
        grads = gradients_of(number, torch.float32)[2:4]
        opt.apply_gradients(zip(grads, variables, strict=True))

    (variables, opt), twins = made(), [made(), made()]
    for number in range(3):
        step(variables, opt, number)
    thalweg.checkpoint.save(tmp_path / "c", variables=variables, optimizer=opt)
    (first, restored_opt), (second, loaded_opt) = twins
    thalweg.checkpoint.restore(tmp_path / "c", variables=first, optimizer=restored_opt)
    step(second, loaded_opt, 0)
    loaded_opt.set_weights(opt.get_weights())
    for var, value in zip(second, variables, strict=True):
        var.assign(value)
    for variables_of_run, optimizer in ((variables, opt), *twins):
        step(variables_of_run, optimizer, 3)
    for variables_of_run, _ in twins:
        assert_same(variables_of_run, variables)
