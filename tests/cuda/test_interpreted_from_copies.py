"""Programs for GPUs begin at what others wrote to copies of 16 bits."""

from __future__ import annotations

import pytest
import torch

from rulebook import FIRST, KEEP, KINDS, label, slow_unless
from test_dtypes import CASES
from test_from_copies import (
    BY_KIND,
    FORMS,
    PATTERNS,
    adam,
    assert_begun,
    equal_measures,
    equal_steps,
    equal_ties,
    problem_of,
)

BY_FORM = pytest.mark.parametrize("form", FORMS)


@pytest.mark.parametrize(
    "case",
    [slow_unless(c in CASES or c.rule.name in KINDS, c) for c in [*CASES, *FIRST]],
    ids=label,
)
@BY_FORM
def test_steps_from_copies_equal_the_reference(case, form):
    equal_steps(case, form, "cuda")


@BY_KIND
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=label)
def test_all_16_bit_patterns_equal_the_reference(kind, dtype):
    copy = PATTERNS.view(kind)
    problem = problem_of(adam(), copy, dtype, None)
    assert_begun(adam(), problem, copy, KEEP._replace(name="cuda"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=label)
def test_all_bfloat16_ties_equal_the_reference(dtype):
    equal_ties(dtype, "cuda", stride=13)


@BY_KIND
@BY_FORM
def test_measures_from_copies_equal_the_reference(kind, form):
    equal_measures(kind, form, "cuda")
