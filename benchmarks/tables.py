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
CHOSEN = (
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
    """The value alone; with a question mark if it was measured beside other work."""
    return f"{figure.value:.3g}" + "?" * (figure.met == "?")


def few(made: Record) -> str:
    """Return the README's table: the figures that decide whether the library is worth a try.

    Rows with a figure that was measured beside other processes are left out.
    """
    values = {name: shown(figure) for name, figure in made.figures.items()}
    values["keras"] = _lowest(made.groups["rules"], "roofline_")
    values["tensorflow1"] = _lowest(made.groups["v1-rules"], "v1_roofline_")
    lines = ["| measured | ratio | baseline |", "|---|---|---|"]
    left_out = 0
    for what, text, peer in CHOSEN:
        names = {name for _, name, _, _ in Formatter().parse(text) if name}
        if not values.keys() >= names:
            continue
        if any("?" in values[name] for name in names):
            left_out += 1
            continue
        lines.append(f"| {what}{_mark(made, text)} | {text.format_map(values)} | {peer} |")
    run = " of one run" * made.is_one_run
    note = " Rows that were measured beside other processes are left out." if left_out else ""
    return "\n".join([*lines, "", f"Medians{run}. {made.place}{note}"])


def all_of(made: Record) -> str:
    """The table of benchmarks/README.md: every figure, with its target and what is behind it."""
    lines = ["| figure | measured | target | met | from |", "|---|---|---|---|---|"]
    for each in made.figures.values():
        cells = (each.name, each.measured, each.wanted, each.met, each.origin)
        lines.append(f"| {' | '.join(cells)} |")
    text = f"{made.place}{_doubts(made.figures.values())}"
    return "\n".join([text, "", *lines])


def _mark(made: Record, text: str) -> str:
    """Return the groups of a text's figures that were measured on another machine, in brackets."""
    elsewhere = [
        f" (`{group}`)"
        for group in made.elsewhere
        if any(f"{{{figure.name}}}" in text for figure in made.groups[group])
    ]
    return "".join(elsewhere)


def _lowest(figures: Iterable[Figure], prefix: str) -> str:
    least = min(figures, key=lambda figure: figure.value)
    return f"{shown(least)} ({least.name.removeprefix(prefix)})"


def _doubts(figures: Iterable[Figure]) -> str:
    doubtful = any(figure.met == "?" for figure in figures)
    return " `?`: other processes were running, so the figure says little." if doubtful else ""


def tables(made: Record) -> Mapping[Path, str]:
    """Where each table stands, and its text."""
    return {ROOT / "README.md": few(made), ROOT / "benchmarks" / "README.md": all_of(made)}


def between(path: Path) -> tuple[str, str, str]:
    """A file's text before, between and after the two markers.

    Raises:
        ValueError: If a marker is missing.
    """
    before, begin, rest = path.read_text().partition(BEGIN)
    inside, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no {BEGIN.strip()} ... {END.strip()} to write between.")
    return before + begin, inside, end + after


def write(made: Record) -> None:
    """Put the tables between their markers."""
    for path, text in tables(made).items():
        before, _, after = between(path)
        path.write_text(f"{before}{text}\n{after}")


if __name__ == "__main__":
    write(record.load())
