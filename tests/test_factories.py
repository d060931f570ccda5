"""Every call in the source that allocates a tensor names its device and its dtype."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("without_collector")
LINT: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "factories.py"))


def test_tensor_factories_pass_device_and_dtype(capsys: pytest.CaptureFixture[str]) -> None:
    assert LINT["main"]() == 0, capsys.readouterr().out


COMPLETE = 'dtype=torch.int64, device="cpu"'


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("torch.zeros(3)", "torch.zeros without device= and dtype="),
        ("torch.zeros(3, dtype=torch.int64)", "torch.zeros without device="),
        ('torch.arange(3, device="cpu")', "torch.arange without dtype="),
        ("torch.full((), 1.0, **options)", "torch.full without device= and dtype="),
        ("torch.Tensor(3)", "torch.Tensor without a dtype: call torch.tensor or torch.empty"),
        ("torch.Generator()", "torch.Generator without device="),
        ("partial(torch.empty, 3)", "torch.empty without device= and dtype="),
        ("list(map(torch.tensor, rows))", "torch.tensor passed on, to be called without keywords"),
        ("from torch import ones; ones(3)", "torch.ones without device= and dtype="),
        ("import torch as t; t.eye(3)", "torch.eye without device= and dtype="),
        (f"torch.zeros(3, {COMPLETE})", None),
        (f"partial(torch.empty, 3, {COMPLETE})", None),
        ("torch.frombuffer(data, dtype=torch.uint8)", None),
        ('torch.Generator(device="cpu")', None),
        ("torch.zeros_like(x); x.new_zeros(3); torch.from_numpy(a); np.zeros(3)", None),
        ("def f(x: torch.Tensor) -> torch.Tensor: return x", None),
    ],
)
def test_incomplete_factory_calls_are_detected(call: str, problem: str | None) -> None:
    problems = [message for _, message in LINT["find_incomplete"](call)]
    assert problems == ([] if problem is None else [problem])
