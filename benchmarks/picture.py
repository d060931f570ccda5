"""Draw the main figures beside their peers: docs/figures.svg, from `figures.json`.

    python benchmarks/picture.py

`figures.py --write` writes what this reads. Matplotlib comes with `thalweg[race]`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import record
from figure import Figure
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Picture
from record import Record

FILE = Path(__file__).parents[1] / "docs" / "figures.svg"
OWN_KEY, LIMIT = "thalweg", "roofline"

# The figure, what its step does, and the peer.
ROWS = (
    ("adam_gpt2", "Adam\nGPT-2 (124 M)", "torch.optim.Adam(fused=True)"),
    ("adam_resnet50", "Adam\nResNet-50", "torch.optim.Adam(fused=True)"),
    ("adam_small2000", "Adam\n2,000 tensors of 1,000", "torch.optim.Adam(fused=True)"),
    ("training_loop", "Adam\nin a small training loop", "torch.optim.Adam(fused=True)"),
    ("swept_adamw_gpt2", "unscale, check, clip, AdamW\nGPT-2", "GradScaler, AdamW(fused=True)"),
    (
        "swept_adamw_resnet50",
        "unscale, check, clip, AdamW\nResNet-50",
        "GradScaler, AdamW(fused=True)",
    ),
    ("swept_larc_gpt2", "unscale, check, LARC, momentum\nGPT-2", "torch._foreach functions"),
    (
        "swept_larc_resnet50",
        "unscale, check, LARC, momentum\nResNet-50",
        "torch._foreach functions",
    ),
    ("sparse_adagrad_vs_torch", "Adagrad\n8,192 entries, 1,000,000 rows", "torch.optim.Adagrad"),
    (
        "sparse_lazy_adam_vs_torch",
        "LazyAdam\n8,192 entries, 1,000,000 rows",
        "torch.optim.SparseAdam",
    ),
)
# Legible on white and on black.
INK, BLUE, GRAY, RED = "#777777", "#3b82c4", "#a0a0a0", "#d0553a"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "thalweg",  # the same figures give the same file
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def relative(figure: Figure) -> float:
    """Return the step time in units of the peer's."""
    return figure.value if figure.sense == "<=" else 1 / figure.value


def picture(measurements: Record) -> Picture:
    """Return a picture with pairs of bars: thalweg's step, and the peer's, which is 1."""
    canvas = Picture(figsize=(8.5, 0.58 * len(ROWS) + 0.9), layout="constrained")
    axes = canvas.add_subplot(facecolor="none")
    for index, (name, _, peer) in enumerate(ROWS):
        _pair(axes, index, measurements.figures[name], peer)
    axes.set_yticks(range(len(ROWS)), [title for _, title, _ in ROWS])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(ROWS) - 0.4, -0.6)
    axes.set_xlim(0, 1.8)  # room for the names of the peers
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_xlabel(f"step time in units of the peer's, less is better; {measurements.place}")
    axes.spines[["top", "right", "left"]].set_visible(False)
    canvas.legend(loc="outside upper left", ncols=3, frameon=False)
    return canvas


def _pair(axes: Any, row: int, figure: Figure, peer: str) -> None:
    (peer_key,) = figure.times.keys() - {OWN_KEY, LIMIT}
    own_time, peer_time, ratio = figure.times[OWN_KEY], figure.times[peer_key], relative(figure)
    upper, lower = row - 0.19, row + 0.19
    first = row == 0  # which names the colors
    axes.barh(upper, ratio, 0.34, color=BLUE, label="Thalweg" if first else None)
    axes.barh(lower, 1, 0.34, color=GRAY, label="the peer" if first else None)
    if LIMIT in figure.times:
        limit = ratio * figure.times[LIMIT] / own_time
        label = "one addition over the same memory" if first else None
        axes.plot([limit] * 2, [row - 0.38, row], color=RED, linewidth=1.5, label=label)
    axes.text(ratio + 0.01, upper, f"{ratio:.2f}   {own_time:.3g} ms", va="center", color=BLUE)
    axes.text(1.01, lower, f"{peer}   {peer_time:.3g} ms", va="center")


def main() -> None:
    """Write the file."""
    with mpl.rc_context(STYLE):
        canvas = picture(record.load())
        FigureCanvasSVG(canvas)
        canvas.savefig(FILE, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
