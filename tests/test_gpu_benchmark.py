"""Parts of `benchmarks/gpu.py` on the CPU, with small shapes."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from thalweg._cli.bench import shapes

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
def test_benchmark_steps_run(cuda: Any, kind: str) -> None:
    makers = cuda.rows("cpu", 20, 5) if kind == "rows" else getattr(cuda, kind)(SMALL, "cpu")
    assert cuda.OWN_NAME in makers
    for name, make in makers.items():
        if name != "torch.compile":  # it needs a compiler
            step = make()
            step()
            step()


def test_benchmark_table_reports_its_target(cuda: Any) -> None:
    table = cuda.Table("Adam, small", {}, 4 * 10**6, 0.5)
    measurements = {"thalweg": cuda.Measured(1.2, 1.0, 20, 1, 0)}
    measurements["torch fused"] = cuda.Measured(1.6, 1.6, 30, 4, 0)
    assert cuda.lines(table, measurements, 8e9) == [
        "Adam, small",
        "  thalweg                      1.200 ms  busy    1.000  host       20 us      1 launches"
        "    0 waits"
        "    50% of a copy's bandwidth",
        "  torch fused                  1.600 ms  busy    1.600  host       30 us      4 launches"
        "    0 waits"
        "    31% of a copy's bandwidth",
        "  busy 0.62 of torch fused, target at most 0.5: MISSED; from an idle start 0.75",
    ]


def test_shapes_equal_the_model(cuda: Any) -> None:
    llama = cuda.llama_1b()
    assert (len(llama.shapes), llama.parameters) == (146, 1_235_814_400)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_benchmark_without_gpu_reports_that_one_is_needed(
    cuda: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cuda.main([]) == 2
    assert capsys.readouterr().err == "benchmarks/gpu.py needs a GPU, and torch sees none.\n"


ROOT = FILE.parent.parent
# The rows of the table in docs/cuda.md, and the tables that the benchmark printed.
PRINTED = {
    "Adam, GPT-2": "Adam, gpt2",
    "Adam, Llama of 1 B": "Adam, llama-1B",
    "Adam, ResNet-50": "Adam, resnet50",
    "Adam, 2,000 tensors of 1,000": "Adam, 2,000 x 1,000",
    "Adam over bfloat16 with masters": "Adam with masters, gpt2",
    "AdamW, scaler and clipping": "AdamW pipeline, gpt2",
    "lazy Adam": "Sparse rows, 100,000 of 1,000,000 x 64",
    "Muon": "Muon, GPT-2's hidden matrices",
    "Adafactor, GPT-2": "Adafactor and others, gpt2",
    "Adafactor, ResNet-50": "Adafactor and others, resnet50",
}


def printed(title: str) -> list[float]:
    """Return the numbers of a row of docs/cuda.md as the benchmark printed them.

    Args:
        title: The first line of the benchmark's table, of which the first one counts.
    """
    text = (ROOT / "benchmarks" / "gpu_h200.txt").read_text()
    block = text.partition(f"\n{title}\n")[2].partition("\n\n")[0]
    line = r"^  {} .*?busy +(\S+)  host +(\d+) us.*?(?:(\d+)% of a copy.*)?$"
    row = re.search(line.format("thalweg"), block, re.MULTILINE)
    peer = re.search(line.format(r"torch \w+"), block, re.MULTILINE)
    ratio = re.search(r"busy (\S+) of torch", block)
    assert row is not None
    assert peer is not None
    assert ratio is not None
    share = [float(row[3])] if row[3] else []
    return [*map(float, (row[1], peer[1], ratio[1])), *share, int(row[2]) / 1e3, int(peer[2]) / 1e3]


def test_page_has_the_printed_benchmark_results() -> None:
    page = (ROOT / "docs" / "cuda.md").read_text()
    table = page.partition("| a step | busy, ms |")[2].partition("\n\n")[0]
    lines = table.splitlines()[2:]
    assert len(lines) == len(PRINTED)
    for line in lines:
        label, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        numbers = [float(cell.removesuffix(" %")) for cell in cells if cell]
        (title,) = [title for start, title in PRINTED.items() if label.startswith(start)]
        assert numbers == pytest.approx(printed(title), rel=0, abs=0.0051), label


def test_readme_has_the_printed_benchmark_results() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    sentence = (
        r"Adam's step for GPT-2 takes (\S+) of the time .*?"
        r" and reaches (\d+) % of the bandwidth of a plain memory copy"
    )
    match = re.search(sentence, readme)
    assert match is not None
    _, _, ratio, share, *_ = printed("Adam, gpt2")
    assert [float(match[1]), float(match[2])] == [ratio, share]
