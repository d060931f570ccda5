"""Write the tables of figures in README.md and benchmarks/README.md from `figures.json`.

    python benchmarks/tables.py

`figures.py --write` does this after it has measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Formatter

import record
from figure import Figure
from record import Record

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"

# What was measured, its figures, and the baseline that they are relative to.
README_ROWS = (
    (
        "step time of Adam: GPT-2 (124 M) · ResNet-50 · 2,000 tensors of 1,000 elements",
        "{adam_gpt2} · {adam_resnet50} · {adam_small2000}",
        "`torch.optim.Adam(fused=True)`",
    ),
    (
        "step time of AdamW with unscaling, overflow check and clipping by the global norm:"
        " ResNet-50 · GPT-2",
        "{swept_adamw_resnet50} · {swept_adamw_gpt2}",
        "`GradScaler.unscale_`, `clip_grad_norm_` and `AdamW(fused=True)`",
    ),
    (
        "step time of momentum with unscaling, overflow check and LARC: ResNet-50 · GPT-2",
        "{swept_larc_resnet50} · {swept_larc_gpt2}",
        "the same computation in torch's `_foreach_` functions",
    ),
    (
        "memory bandwidth on ResNet-50 (more is better): slowest rule of `thalweg.keras` · slowest"
        " rule of `thalweg.v1`",
        "{keras} · {tensorflow1}",
        "one addition over the same tensors",
    ),
    (
        "speed with a sparse gradient of 8,192 entries in 1,000,000 rows (more is better):"
        " Adagrad · LazyAdam",
        "{sparse_adagrad_vs_torch} · {sparse_lazy_adam_vs_torch}",
        "`torch.optim.Adagrad` · `torch.optim.SparseAdam`",
    ),
    (
        "step time of Adam in a small training loop",
        "{training_loop}",
        "`torch.optim.Adam(fused=True)`",
    ),
    (
        "processor time of `optim.Adam` on one thread, new gradients at each step: 1 · 10 · 100"
        " tensors of 64 elements",
        "{steady_optim_new_1x64} · {steady_optim_new_10x64} · {steady_optim_new_100x64}",
        "`torch.optim.Adam(fused=True)`",
    ),
    (
        "processor time of `optim.Adam` on one thread, cold caches (64 MB written before each"
        " step): 1 · 10 · 100 tensors of 64 elements",
        "{steady_optim_cold_1x64} · {steady_optim_cold_10x64} · {steady_optim_cold_100x64}",
        "`torch.optim.Adam(fused=True)`",
    ),
    (
        "processor time with a new learning rate at each step, `optim.AdamW` with `LambdaLR`:"
        " 1 · 10 · 100 tensors of 64 elements",
        "{changing_lambda_1} · {changing_lambda_10} · {changing_lambda_100}",
        "`torch.optim.AdamW(fused=True)` with `LambdaLR`",
    ),
    (
        "processor time with a new learning rate at each step, Adam of `thalweg.keras` with"
        " `ExponentialDecay`: 1 · 10 · 100 tensors of 64 elements",
        "{changing_keras_1} · {changing_keras_10} · {changing_keras_100}",
        "`torch.optim.AdamW(fused=True)` with a constant rate",
    ),
    (
        "processor time with a new learning rate at each step, Adam of `thalweg.v1` with"
        " `exponential_decay`: 1 · 10 · 100 tensors of 64 elements",
        "{changing_v1_1} · {changing_v1_10} · {changing_v1_100}",
        "`torch.optim.AdamW(fused=True)` with a constant rate",
    ),
    (
        "processor time if some parameters have no gradient, and each step leaves out others,"
        " `optim.AdamW`, 100 tensors of 64 elements: one parameter in turn · alternating halves ·"
        " a random half",
        "{changing_rotating_100} · {changing_halves_100} · {changing_random_100}",
        "`torch.optim.AdamW(fused=True)` with the same gradients",
    ),
    (
        "processor time in seconds, beyond `import torch`: `from thalweg import optim` · first step"
        " with nothing compiled · first step with kernels from the disk",
        "{import_optim} · {cold_optim_AdamW} · {disk_optim_AdamW}",
        "none",
    ),
)


def shown(figure: Figure) -> str:
    """Format the value, with a question mark if other processes disturbed its measurement."""
    return f"{figure.value:.3g}" + "?" * (figure.met == "?")


def few(measurements: Record) -> str:
    """Return the README's table of the main figures.

    Rows with a disturbed figure are omitted.
    """
    values = {name: shown(figure) for name, figure in measurements.figures.items()}
    values["keras"] = _lowest(measurements.groups["rules"], "roofline_")
    values["tensorflow1"] = _lowest(measurements.groups["v1-rules"], "v1_roofline_")
    lines = ["| measured | ratio | baseline |", "|---|---|---|"]
    omitted = 0
    for title, text, peer in README_ROWS:
        names = {name for _, name, _, _ in Formatter().parse(text) if name}
        if not values.keys() >= names:
            continue
        if any("?" in values[name] for name in names):
            omitted += 1
            continue
        lines.append(f"| {title}{_mark(measurements, text)} | {text.format_map(values)} | {peer} |")
    run = " of one run" * measurements.is_one_run
    note = " Rows that were measured beside other processes are left out." if omitted else ""
    return "\n".join([*lines, "", f"Medians{run}. {measurements.place}{note}"])


def all_of(measurements: Record) -> str:
    """Return the table of benchmarks/README.md: all figures with targets and sources."""
    lines = ["| figure | measured | target | met | from |", "|---|---|---|---|---|"]
    for figure in measurements.figures.values():
        cells = (figure.name, figure.measured, figure.wanted, figure.met, figure.origin)
        lines.append(f"| {' | '.join(cells)} |")
    text = f"{measurements.place}{_doubts(measurements.figures.values())}"
    return "\n".join([text, "", *lines])


def _mark(measurements: Record, text: str) -> str:
    """Return the groups of a text's figures that were measured on another machine, in brackets."""
    elsewhere = [
        f" (`{group}`)"
        for group in measurements.elsewhere
        if any(f"{{{figure.name}}}" in text for figure in measurements.groups.get(group, ()))
    ]
    return "".join(elsewhere)


def _lowest(figures: Iterable[Figure], prefix: str) -> str:
    lowest = min(figures, key=lambda figure: figure.value)
    return f"{shown(lowest)} ({lowest.name.removeprefix(prefix)})"


def _doubts(figures: Iterable[Figure]) -> str:
    doubtful = any(figure.met == "?" for figure in figures)
    return " `?`: other processes were running, so the figure says little." if doubtful else ""


def tables(measurements: Record) -> Mapping[Path, str]:
    """Return the text of the tables by file."""
    return {
        ROOT / "README.md": few(measurements),
        ROOT / "benchmarks" / "README.md": all_of(measurements),
    }


def between(path: Path) -> tuple[str, str, str]:
    """Return a file's text before, between and after the two markers.

    Raises:
        ValueError: A marker is missing.
    """
    head, begin, body_and_tail = path.read_text().partition(BEGIN)
    body, end, tail = body_and_tail.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no {BEGIN.strip()} ... {END.strip()} to write between.")
    return head + begin, body, end + tail


def write(measurements: Record) -> None:
    """Write the tables between their markers."""
    for path, text in tables(measurements).items():
        head, _, tail = between(path)
        path.write_text(f"{head}{text}\n{tail}")


if __name__ == "__main__":
    write(record.load())
