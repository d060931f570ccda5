"""The parts of `benchmarks/gpu.py` on the CPU, with small shapes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from thalweg.bench import shapes

FILE = Path(__file__).parent.parent / "benchmarks/gpu.py"
SMALL = shapes.of("small", [(3, 4), (5,)])


@pytest.fixture(scope="module")
def cuda() -> Any:
    spec = importlib.util.spec_from_file_location("benchmark_for_cuda", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


KINDS = ["adam", "pipeline", "masters", "narrow", "measuring", "rows", "state_on_the_cpu"]


@pytest.mark.parametrize("kind", KINDS)
def test_steps_run(cuda: Any, kind: str) -> None:
    makers = cuda.rows("cpu", 20, 5) if kind == "rows" else getattr(cuda, kind)(SMALL, "cpu")
    assert cuda.OWN in makers
    for name, make in makers.items():
        if name != "torch.compile":  # it needs a compiler
            step = make()
            step()
            step()


def test_a_table_says_what_became_of_its_target(cuda: Any) -> None:
    table = cuda.Table("Adam, small", {}, 4 * 10**6, 0.5)
    found = {"thalweg": cuda.Measured(1.2, 1.0, 20, 1, 0)}
    found["torch fused"] = cuda.Measured(1.6, 1.6, 30, 4, 0)
    assert cuda.lines(table, found, 8e9) == [
        "Adam, small",
        "  thalweg                      1.200 ms  busy    1.000  host       20 us      1 launches"
        "    0 waits"
        "    50% of a copy's bandwidth",
        "  torch fused                  1.600 ms  busy    1.600  host       30 us      4 launches"
        "    0 waits"
        "    31% of a copy's bandwidth",
        "  busy 0.62 of torch fused, target at most 0.5: MISSED; from an idle start 0.75",
    ]


def test_shapes_are_those_of_the_model(cuda: Any) -> None:
    made = cuda.llama_1b()
    assert (len(made.shapes), made.parameters) == (146, 1_235_814_400)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_says_that_it_needs_a_gpu(cuda: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cuda.main([]) == 2
    assert capsys.readouterr().err == "benchmarks/gpu.py needs a GPU, and torch sees none.\n"
