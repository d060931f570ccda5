"""Programs for GPUs give the bits of the reference for every combination of dtypes."""

from __future__ import annotations

import pytest

from rulebook import FIRST, KINDS, label, slow_unless
from test_dtypes import CASES, FORMS, QUICK, SIGNATURES, equal_measures, equal_steps

BY_FORM = pytest.mark.parametrize("form", FORMS)
KIND_CASES = [case for case in FIRST if case.rule.name in KINDS]


@pytest.mark.parametrize(
    ("case", "signature"),
    [
        slow_unless(case in CASES and signature in QUICK, case, signature)
        for case in [*CASES, *KIND_CASES]
        for signature in SIGNATURES
    ],
    ids=label,
)
@BY_FORM
def test_steps_of_all_dtypes_equal_the_reference(case, signature, form):
    equal_steps(case, signature, form, "cuda")


@pytest.mark.parametrize(
    "signature", [slow_unless(signature in QUICK, signature) for signature in SIGNATURES], ids=label
)
@BY_FORM
def test_measures_of_all_dtypes_equal_the_reference(signature, form):
    equal_measures(signature, form, "cuda")
