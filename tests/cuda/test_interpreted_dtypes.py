"""Programs for GPUs give the bits of the reference for every combination of dtypes."""

from __future__ import annotations

import pytest

from pairwise import cover_pairs
from rulebook import FIRST, KINDS, label, slow_unless
from test_dtypes import CASES, FORMS, QUICK, SIGNATURES, equal_measures, equal_steps

BY_FORM = pytest.mark.parametrize("form", FORMS)
KIND_CASES = [case for case in FIRST if case.rule.name in KINDS]
# Dtypes of variable, gradient, slots and copy are columns of their own.
QUICK_ROWS = cover_pairs(
    (case, form, *signature) for case in CASES for form in FORMS for signature in QUICK
)
ROWS = cover_pairs(
    (case, form, *signature) for case in KIND_CASES for form in FORMS for signature in SIGNATURES
)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("case", "signature", "form"),
    [
        slow_unless(case in CASES, case, tuple(signature), form)
        for case, form, *signature in [*QUICK_ROWS, *ROWS]
    ],
    ids=label,
)
def test_steps_of_all_dtypes_equal_the_reference(case, signature, form):
    equal_steps(case, signature, form, "cuda")


@pytest.mark.parametrize(
    "signature", [slow_unless(signature in QUICK, signature) for signature in SIGNATURES], ids=label
)
@BY_FORM
def test_measures_of_all_dtypes_equal_the_reference(signature, form):
    equal_measures(signature, form, "cuda")
