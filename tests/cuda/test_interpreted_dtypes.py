"""Programs for GPUs give the bits of the reference for every combination of dtypes."""

from __future__ import annotations

import pytest

from rulebook import label, slow_unless
from test_dtypes import FORMS, QUICK, ROWS, SIGNATURES, equal_measures, equal_steps

BY_FORM = pytest.mark.parametrize("form", FORMS)


@pytest.mark.parametrize(("case", "signature"), ROWS, ids=label)
@BY_FORM
def test_steps(case, signature, form):
    equal_steps(case, signature, form, "cuda")


@pytest.mark.parametrize(
    "signature", [slow_unless(each in QUICK, each) for each in SIGNATURES], ids=label
)
@BY_FORM
def test_measures(signature, form):
    equal_measures(signature, form, "cuda")
