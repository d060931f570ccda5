"""Small models of several widths, for tests of `width_scale` and the recording of mup's numbers."""

from __future__ import annotations

from torch import nn

# Width of the hidden layers, and number of hidden units of the block.
WIDTHS = ((4, 6), (12, 6), (12, 30), (2, 3))
DELTA = (5, 7)  # another model, which differs from the first one in all widths


def model(width: int, hidden_width: int, device: str = "cpu") -> nn.Module:
    """Return a model with an embedding, a convolution, a fused projection, and an output."""
    layers = {
        "embedding": nn.Embedding(10, width),
        "first": nn.Linear(7, width),
        "norm": nn.LayerNorm(width),
        "fused": nn.Linear(width, 3 * width),
        "up": nn.Linear(width, hidden_width),
        "down": nn.Linear(hidden_width, width, bias=False),
        "convolution": nn.Conv1d(width, hidden_width, 3),
        "output": nn.Linear(width, 10),
        "fixed": nn.Linear(3, 2),
    }
    return nn.ModuleDict(layers).to(device)
