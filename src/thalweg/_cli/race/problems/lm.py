"""Problem of the next character in Python's standard library: a small transformer.

An example has 64 characters from a random position. The target of each character is the next one.
Classes are the printable ASCII characters, the end of a line, and one class for all others.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from thalweg._cli.race.problems import stdlib_text
from thalweg._cli.race.problems.problem import Examples, Problem

CONTEXT = 64
BATCH = 16
STEPS = 400
TEST_EXAMPLES = 64
SAMPLE = 64
TEST_FRACTION = 0.1
FEWEST_CHARACTERS = 1_000_000
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
CLASSES = len(CHARACTERS) + 1
WIDTH = 64
HEAD_COUNT = 4
LAYERS = 2
OPTIMIZERS = (
    "optim:AdamW", "optim:NAdamW", "optim:ADOPT", "optim:Lion", "optim:ScheduleFreeAdamW",
    "optim:Muon", "optim:NorMuon", "optim:SOAP",
)  # fmt: skip


def load(seed: int) -> Problem:
    """Load the problem; the seed decides the test files and the positions of examples."""
    texts = [_encode(path.read_text("utf-8", "replace")) for path in stdlib_text.files()]
    stdlib_text.check_sources("lm", texts, FEWEST_CHARACTERS)
    random = np.random.default_rng(seed)
    test_indices = set(
        random.permutation(len(texts))[: max(1, round(len(texts) * TEST_FRACTION))].tolist()
    )
    train = np.concatenate([text for i, text in enumerate(texts) if i not in test_indices])
    test = np.concatenate([text for i, text in enumerate(texts) if i in test_indices])
    examples = _cut_examples(train, BATCH * STEPS, random)
    return Problem(
        name="lm",
        description=f"next character in {len(texts)} files of Python's own library; transformer of"
        f" {LAYERS} layers",
        train=examples,
        train_sample=Examples(examples.inputs[:SAMPLE], examples.targets[:SAMPLE]),
        test=_cut_examples(test, TEST_EXAMPLES, random),
        make_model=Transformer,
        batch_size=BATCH,
        epochs=1,
    )


def _encode(text: str) -> np.ndarray:
    """Return the class of each character."""
    table = np.full(128, CLASSES - 1, np.int64)
    table[[ord(character) for character in CHARACTERS]] = range(len(CHARACTERS))
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return table[np.minimum(codes, 127)]


def _cut_examples(text: np.ndarray, count: int, random: np.random.Generator) -> Examples:
    starts = random.integers(len(text) - CONTEXT, size=count)
    windows = torch.from_numpy(text[starts[:, None] + np.arange(CONTEXT + 1)])  # pyright: ignore[reportUnknownMemberType]
    return Examples(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())


class Transformer(nn.Module):
    """Transformer of two layers and width 64; 116,193 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(CLASSES, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.Sequential(*(TransformerLayer() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, CLASSES)

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding layer of characters."""
        return self.characters

    def get_output_embeddings(self) -> nn.Module:
        """Return the output layer."""
        return self.scores

    def forward(self, characters: Tensor) -> Tensor:
        """Return scores of the next characters, (batch, CLASSES, CONTEXT)."""
        values = self.characters(characters) + self.positions.weight[: characters.shape[1]]
        return self.scores(self.norm(self.layers(values))).transpose(1, 2)


class TransformerLayer(nn.Module):
    """Causal attention and a dense network, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        # Separate matrices, so that a rule for matrices treats each by itself.
        self.queries, self.keys, self.values, self.joined = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        """Return values of shape (batch, CONTEXT, WIDTH), the shape of the input."""
        normed = self.norms[0](values)
        projections = [
            projection(normed).unflatten(2, (HEAD_COUNT, -1)).transpose(1, 2)
            for projection in (self.queries, self.keys, self.values)
        ]
        attended = functional.scaled_dot_product_attention(*projections, is_causal=True)
        values = values + self.joined(attended.transpose(1, 2).flatten(2))
        return values + self.narrow(torch.relu(self.wide(self.norms[1](values))))
