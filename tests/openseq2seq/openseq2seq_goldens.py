"""Recorded numbers of OpenSeq2Seq, with as many digits as float32 needs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from golden_files import cases_of

cases = partial(cases_of, "openseq2seq")


def by_case(*prefixes: str) -> pytest.MarkDecorator:
    """Parametrise a test over the cases whose ids start with one of the prefixes, as `case`."""
    cases_by_id = {name: case for name, case in cases().items() if name.startswith(prefixes)}
    assert cases_by_id
    return pytest.mark.parametrize("case", list(cases_by_id.values()), ids=list(cases_by_id))


def float32(golden: Any) -> Any:
    """Return a recorded number, or a nest of them; infinities and NaN are strings."""
    return np.array(golden, dtype=object).astype(np.float32)


def assert_bits(got: Any, golden: Any, label: str = "") -> None:
    """Fail unless two float32 are the same; NaN is NaN."""
    got, expected = np.float32(got), np.float32(float(golden))
    is_equal = got == expected or (np.isnan(got) and np.isnan(expected))
    assert is_equal, f"{label}: got {float(got).hex()}, recorded {float(expected).hex()}"
