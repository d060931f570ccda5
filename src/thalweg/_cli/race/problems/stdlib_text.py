"""Problem of the next token in Python's standard library: large table, sparse gradients.

Four tokens of context give seven features: the tokens themselves, the last two and the middle two
as pairs, and the last three as a triple. Each token has a row of the embedding table; pairs and
triples are hashed into the remaining ones of 65,536 rows. The target is one of the 2,000 most
frequent tokens; positions followed by a rarer token are omitted.
"""

# torch does not annotate `from_numpy`.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import re
import sysconfig
from collections import Counter
from collections.abc import Sequence, Sized
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from thalweg._cli.race.errors import RaceError
from thalweg._cli.race.problems.problem import Examples, Problem

PACKAGES = """
argparse ast collections contextlib csv dataclasses enum functools http json logging pathlib random
shutil socket statistics string subprocess tempfile threading traceback
"""
SKIPPED = {"test", "tests", "site-packages", "__pycache__"}
TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\n|\S")
CONTEXT = 4
ROWS = 65_536
CLASSES = 2_000
WIDTH = 32
HIDDEN = 64
FEATURES = 7
TEST_FRACTION = 0.1
SAMPLE = 4_096
FEWEST_TOKENS = 100_000
OPTIMIZERS = ("SGD", "Adam", "Adamax", "Adagrad", "Adadelta", "Ftrl")


def load(seed: int) -> Problem:
    """Load the problem; the seed decides the test files."""
    texts = [TOKEN.findall(path.read_text("utf-8", "replace")) for path in files()]
    check_sources("stdlib", texts, FEWEST_TOKENS)
    frequent = Counter(token for text in texts for token in text).most_common()
    vocabulary = {token: index for index, (token, _) in enumerate(frequent[: ROWS // 2])}
    random = np.random.default_rng(seed)
    test_indices = set(random.permutation(len(texts))[: int(len(texts) * TEST_FRACTION)].tolist())
    train = _examples([text for i, text in enumerate(texts) if i not in test_indices], vocabulary)
    test = _examples([text for i, text in enumerate(texts) if i in test_indices], vocabulary)
    return Problem(
        name="stdlib",
        description=f"next token in {len(texts)} files of Python's own library; "
        f"sparse {ROWS:,} x {WIDTH} table",
        train=train,
        train_sample=_sample(train, random),
        test=_sample(test, random),
        make_model=NextToken,
        batch_size=512,
        epochs=1,
        output="scores.*",
    )


def check_sources(problem: str, texts: Sequence[Sized], fewest: int) -> None:
    """Raise RaceError if texts of the standard library have too few tokens or characters."""
    if sum(map(len, texts)) < fewest:
        raise RaceError(
            f"problem '{problem}' found {len(texts)} .py files of the standard library in"
            f" {root()}; this Python comes without its sources. Race on --problem digits."
        )


def root() -> Path:
    """Return the folder of the standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def files() -> list[Path]:
    """Return the source files, in an order that is equal on all machines."""
    paths: list[Path] = []
    for name in PACKAGES.split():
        module, package = root() / f"{name}.py", root() / name
        if module.is_file():
            paths.append(module)
        inner = sorted(package.rglob("*.py")) if package.is_dir() else []
        paths += [path for path in inner if not SKIPPED & set(path.relative_to(root()).parts)]
    return paths


def _examples(texts: Sequence[Sequence[str]], vocabulary: dict[str, int]) -> Examples:
    # The rarest token represents all tokens outside of the vocabulary.
    unknown = len(vocabulary) - 1
    inputs: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    for text in texts:
        if len(text) > CONTEXT:
            tokens = np.array([vocabulary.get(token, unknown) for token in text], np.int64)
            next_tokens = tokens[CONTEXT:]
            is_frequent = next_tokens < CLASSES
            inputs.append(_features(tokens, len(vocabulary))[is_frequent])
            targets.append(next_tokens[is_frequent])
    return Examples(
        torch.from_numpy(np.concatenate(inputs)), torch.from_numpy(np.concatenate(targets))
    )


def _features(tokens: np.ndarray, used: int) -> np.ndarray:
    """Return the table rows of each position with `CONTEXT` previous tokens, the last first."""
    count = len(tokens) - CONTEXT
    previous = [
        tokens[CONTEXT - 1 - distance : CONTEXT - 1 - distance + count]
        for distance in range(CONTEXT)
    ]
    groups = [previous[:2], previous[1:3], previous[:3]]
    return np.stack([*previous, *(_hash(group, used) for group in groups)], axis=1)


def _hash(group: Sequence[np.ndarray], used: int) -> np.ndarray:
    mixed = np.full(len(group[0]), len(group), np.uint64)
    for tokens in group:
        mixed = (mixed ^ tokens.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return (mixed % np.uint64(ROWS - used)).astype(np.int64) + used


def _sample(examples: Examples, random: np.random.Generator) -> Examples:
    rows = torch.from_numpy(random.permutation(len(examples.targets))[:SAMPLE])
    return Examples(examples.inputs[rows], examples.targets[rows])


class NextToken(nn.Module):
    """Model with concatenated embeddings of the features, one hidden layer, a score per token."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH, sparse=True)
        nn.init.normal_(self.table.weight, std=0.1)
        self.hidden = nn.Linear(FEATURES * WIDTH, HIDDEN)
        self.scores = nn.Linear(HIDDEN, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        """Return scores of the next token."""
        embedded = self.table(features).flatten(1)
        return self.scores(torch.relu(self.hidden(embedded)))
