"""Lines of handwritten digits, labelled without the positions of the digits.

A line is 3 to 6 of scikit-learn's 1,797 digit images of 8 x 8 side by side, with 0 to 3 empty
columns before each. Time runs along the columns, 8 pixels to a frame, as in speech; the labels are
the digits in their order, and CTC aligns the two. The test lines are made of images
that no training line contains. The images: E. Alpaydin and C. Kaynak, "Optical Recognition of
Handwritten Digits", UCI Machine Learning Repository 1998, CC BY 4.0,
https://doi.org/10.24432/C50P49.
"""

# scikit-learn has no types, and torch does not annotate `from_numpy` and `tolist`.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
from __future__ import annotations

from itertools import groupby
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from thalweg._cli.race.errors import need_modules
from thalweg._cli.race.problems.problem import CHUNK, Examples, Problem, Scores

FRAMES = 72
FEATURES = 8
MIN_DIGITS, MAX_DIGITS = 3, 6
GAP = 3
BLANK = 0  # the class of no label; digit d is class d + 1
CLASSES = 11
TRAIN_LINES = 4_096
TEST_LINES = 512
SAMPLE = 512
OPTIMIZERS = ("SGD", "Adam", "Adamax", "Nadam", "Adagrad", "Adadelta", "RMSprop", "Ftrl")


class DigitLines(Problem):
    """Problem with CTC loss. The accuracy is 1 minus the label error rate, at least 0."""

    def loss(self, model: nn.Module, rows: Tensor) -> Tensor:
        """Return the loss per label, averaged over the lines of a batch."""
        return line_loss(model(self.train.inputs[rows]), self.train.targets[rows])

    def scores(self, model: nn.Module) -> Scores:
        """Measure the losses and the accuracy of a model."""
        train_loss, _ = measured(model, self.train_sample)
        test_loss, errors = measured(model, self.test)
        return Scores(train_loss, test_loss, max(0.0, 1 - errors))

    def test_loss(self, model: nn.Module) -> float:
        """Return the mean loss per label on the test lines, without decoding."""
        return measured(model, self.test, decodes=False)[0]


def load(seed: int, train_lines: int = TRAIN_LINES, test_lines: int = TEST_LINES) -> DigitLines:
    """Load the problem; the seed decides the test images and the digits of each line."""
    need_modules("sklearn")
    from sklearn.datasets import load_digits

    pixels, labels = cast("tuple[np.ndarray, np.ndarray]", load_digits(return_X_y=True))
    images = (pixels.reshape(-1, FEATURES, 8) / 16).astype(np.float32)
    random = np.random.default_rng(seed)
    order = random.permutation(len(labels))
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    examples = lines(images[train], labels[train], train_lines, random)
    return DigitLines(
        name="lines",
        description=f"{train_lines:,} lines of 3 to 6 handwritten digits; CTC, accuracy is 1 -"
        " label error rate",
        train=examples,
        train_sample=Examples(examples.inputs[:SAMPLE], examples.targets[:SAMPLE]),
        test=lines(images[test], labels[test], test_lines, random),
        make_model=LineReader,
        batch_size=32,
        epochs=3,
        output="classes.*",
    )


def lines(
    images: np.ndarray, labels: np.ndarray, count: int, random: np.random.Generator
) -> Examples:
    """Compose random lines of digit images.

    Args:
        images: Shape (n, 8, 8), rows before columns.
        labels: The digit in each image.

    Returns:
        Inputs of shape (count, 8, FRAMES), and classes of shape (count, 6). After the last digit of
        a line, classes are BLANK.
    """
    inputs = np.zeros((count, FEATURES, FRAMES), np.float32)
    targets = np.full((count, MAX_DIGITS), BLANK, np.int64)
    for line in range(count):
        indices = random.integers(len(images), size=random.integers(MIN_DIGITS, MAX_DIGITS + 1))
        gaps = random.integers(GAP + 1, size=len(indices))
        column = 0
        for image, gap in zip(images[indices], gaps, strict=True):
            column += gap
            inputs[line, :, column : column + 8] = image
            column += 8
        targets[line, : len(indices)] = labels[indices] + 1
    return Examples(torch.from_numpy(inputs), torch.from_numpy(targets))


class LineReader(nn.Module):
    """Three convolutions along the columns, each with batch normalization; 38,816 parameters.

    Args:
        dtype: Dtype of the convolutions' weights and of what flows between layers. Products are
            added up in float32, as in the matrix units of GPUs; batch normalization and the scores
            that come out are float32.
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.dtype = dtype
        widths = (FEATURES, 48, 64, 64)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(width, next_width, 5, stride, padding=2, bias=False)
            for width, next_width, stride in zip(widths, widths[1:], (1, 2, 1))
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in widths[1:])
        self.classes = nn.Conv1d(widths[-1], CLASSES, 1, bias=False)
        for layer in (*self.convolutions, self.classes):
            layer.to(dtype)

    def forward(self, frames: Tensor) -> Tensor:
        """Return log probabilities of the classes, (batch, 11, FRAMES / 2), float32."""
        values = frames.to(self.dtype)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            products = self._convolved(convolution, values).to(self.dtype)
            values = torch.relu(norm(products.float())).to(self.dtype)
        return self._convolved(self.classes, values).log_softmax(1)

    def _convolved(self, layer: Any, values: Tensor) -> Tensor:
        weight = layer.weight.float()
        return functional.conv1d(values.float(), weight, None, layer.stride, layer.padding)


def line_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the CTC loss per label, averaged over lines.

    Args:
        scores: The output of `LineReader`.
        targets: Classes of shape (batch, 6), BLANK after the last digit of a line.
    """
    batch, _, frames = scores.shape
    counts = (targets != BLANK).sum(1)
    lengths = torch.full((batch,), frames, dtype=torch.int64, device=targets.device)
    return functional.ctc_loss(scores.permute(2, 0, 1), targets, lengths, counts, blank=BLANK)


def read(scores: Tensor) -> list[list[int]]:
    """Return the most likely label of each frame, without repeats and blanks."""
    best = cast("list[list[int]]", scores.argmax(1).tolist())
    return [[label for label, _ in groupby(line) if label != BLANK] for line in best]


def distance(labels: list[int], target: list[int]) -> int:
    """Return the edit distance of two lists: the fewest insertions, deletions and replacements."""
    row = list(range(len(target) + 1))
    for count, label in enumerate(labels, 1):
        diagonal, row[0] = row[0], count
        for column, target_label in enumerate(target, 1):
            cost = min(row[column] + 1, row[column - 1] + 1, diagonal + (label != target_label))
            diagonal, row[column] = row[column], cost
    return row[-1]


@torch.no_grad()
def measured(model: nn.Module, examples: Examples, decodes: bool = True) -> tuple[float, float]:
    """Return (mean loss per label, label error rate). If `decodes` is False, the rate is 0."""
    loss, edits, labels = 0.0, 0, 0
    model.eval()
    for inputs, targets in zip(
        torch.split(examples.inputs, CHUNK), torch.split(examples.targets, CHUNK), strict=True
    ):
        scores = model(inputs)
        loss += line_loss(scores, targets).item() * len(targets)
        target_lines = cast("list[list[int]]", targets.tolist())
        pairs = zip(read(scores), target_lines, strict=True) if decodes else ()
        for predicted, line in pairs:
            target = [label for label in line if label != BLANK]
            edits, labels = edits + distance(predicted, target), labels + len(target)
    model.train()
    return loss / len(examples.targets), edits / labels if decodes else 0.0
