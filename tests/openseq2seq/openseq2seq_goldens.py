"""What OpenSeq2Seq computed: its recorded numbers, which have as many digits as float32 needs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from golden_files import cases_of

cases = partial(cases_of, "openseq2seq")


def by_case(*prefixes: str) -> pytest.MarkDecorator:
    """Parametrise a test over the cases whose ids start with one of the prefixes, as `case`."""
    found = {name: case for name, case in cases().items() if name.startswith(prefixes)}
    assert found
    return pytest.mark.parametrize("case", list(found.values()), ids=list(found))


def float32(recorded: Any) -> Any:
    """A recorded number, or a nest of them; infinities and NaN are strings."""
    return np.array(recorded, dtype=object).astype(np.float32)


def assert_bits(got: Any, recorded: Any, what: str = "") -> None:
    """Fail unless two float32 are the same; NaN is NaN."""
    got, wanted = np.float32(got), np.float32(float(recorded))
    same = got == wanted or (np.isnan(got) and np.isnan(wanted))
    assert same, f"{what}: got {float(got).hex()}, recorded {float(wanted).hex()}"
