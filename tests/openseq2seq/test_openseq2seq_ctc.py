"""The example that reads lines of digits: its data, its measure, trainings that must succeed."""

from __future__ import annotations

import importlib.util
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from thalweg._cli.race.problems import digit_lines

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None,
    reason="scikit-learn, which brings the data, is not installed",
)

PATH = Path(__file__).parents[2] / "examples" / "openseq2seq_ctc.py"
SCOPE = "Loss_Optimization/"


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("openseq2seq_ctc", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    thread_count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(thread_count)


class Record:
    """A writer of summaries that remembers all scalars."""

    def __init__(self) -> None:
        self.scalars: dict[str, list[float]] = defaultdict(list)

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars[tag].append(value)

    def add_histogram(self, tag: str, values: Any, step: int) -> None:
        raise AssertionError("no histogram was asked for")


@pytest.fixture(scope="module")
def small() -> digit_lines.DigitLines:
    return digit_lines.load(0, train_lines=1536, test_lines=256)


def test_test_lines_share_no_image_with_training_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    image_sets: list[set[bytes]] = []
    real = digit_lines.lines

    def spied(images: np.ndarray, *args: Any) -> Any:
        image_sets.append({image.tobytes() for image in images})
        return real(images, *args)

    monkeypatch.setattr(digit_lines, "lines", spied)
    digit_lines.load(0, train_lines=1, test_lines=1)
    train, test = image_sets
    assert len(test) == 359
    assert not train & test


def test_lines_hold_the_images_of_their_labels_in_order() -> None:
    images = np.stack([np.full((8, 8), digit + 1, np.float32) for digit in range(10)])
    batch = digit_lines.lines(images, np.arange(10), 50, np.random.default_rng(0))
    for frames, classes in zip(batch.inputs.numpy(), batch.targets.tolist(), strict=True):
        assert (frames == frames[0]).all()
        columns = frames[0][frames[0] > 0]
        assert columns.reshape(-1, 8)[:, 0].tolist() == [label for label in classes if label]
        assert len(columns) == 8 * np.count_nonzero(classes)
        assert 3 <= np.count_nonzero(classes) <= 6


@pytest.mark.parametrize(
    ("first", "second", "edits"),
    [
        ([], [], 0),
        ([], [1, 2], 2),
        ([1, 2, 3], [1, 2, 3], 0),
        ([1, 2, 3], [1, 3], 1),
        ([1, 3], [1, 2, 3], 1),
        ([1, 2, 3], [1, 4, 3], 1),
        ([1, 2, 3, 4], [2, 3, 4, 1], 2),
        ([5, 5, 5], [1, 2], 3),
    ],
)
def test_edit_distance_counts_edits(first: list[int], second: list[int], edits: int) -> None:
    assert digit_lines.distance(first, second) == edits


def test_ctc_decoding_drops_repeats_and_blanks() -> None:
    best = torch.tensor([[0, 3, 3, 0, 3, 4, 4, 0], [0] * 8])
    scores = torch.nn.functional.one_hot(best, digit_lines.CLASSES).permute(0, 2, 1).float()
    assert digit_lines.read(scores) == [[3, 3, 4], []]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_model_keeps_batch_normalization_in_float32(
    dtype: torch.dtype, small: digit_lines.DigitLines
) -> None:
    model = digit_lines.LineReader(dtype)
    kinds = {name.split(".")[0]: param.dtype for name, param in model.named_parameters()}
    assert kinds == {"convolutions": dtype, "norms": torch.float32, "classes": dtype}
    scores = model(small.train.inputs[:4])
    assert (scores.dtype, scores.shape) == (torch.float32, (4, 11, digit_lines.FRAMES // 2))
    digit_lines.line_loss(scores, small.train.targets[:4]).backward()
    assert all(param.grad is not None for param in model.parameters())


@pytest.mark.slow
def test_larc_training_in_mixed_precision_is_close_to_float32(
    example: ModuleType, small: digit_lines.DigitLines
) -> None:
    config = {**example.CONFIGS["larc"], "num_epochs": 3}
    record = Record()
    mixed = example.train(config, small, writer=record)
    full = example.train({**config, "dtype": torch.float32}, small)
    assert max(mixed.error_rate, full.error_rate) <= 0.1
    assert abs(mixed.error_rate - full.error_rate) <= 0.04
    assert mixed.skipped > full.skipped == 0
    assert len(full.losses) == 3 * 1536 // 32

    scales = record.scalars[f"{SCOPE}loss_scale"]
    assert scales[:3] == [2.0**24, 2.0**23, 2.0**22]
    assert len(scales) == len(mixed.losses)
    assert record.scalars["train_loss"] == mixed.losses
    rates = record.scalars["learning_rate"]
    assert rates[0] == 0
    assert max(rates) == pytest.approx(0.1)
    assert rates[-1] < 0.001
    norms = record.scalars[f"{SCOPE}global_gradient_norm"]
    assert sum(not np.isfinite(norm) for norm in norms) == mixed.skipped
    master = f"{SCOPE}FP32-master-copy/"
    assert {tag.split("/")[1] for tag in record.scalars if tag.startswith(SCOPE)} == {
        "global_gradient_norm",
        "gradient_norm",
        "larc_clip_on",
        "larc_final_lr",
        "larc_grad_update",
        "loss_scale",
        "variable_norm",
    }
    assert any(master in tag for tag in record.scalars)


@pytest.mark.slow
def test_trained_model_reads_nearly_all_digits(
    example: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    outcomes = example.main(["--config", "novograd", "--logdir", str(tmp_path)])
    rates = {kind: outcome.error_rate for kind, outcome in outcomes.items()}
    assert set(rates) == {"mixed", "float32"}
    assert max(rates.values()) <= 0.04
    assert abs(rates["mixed"] - rates["float32"]) <= 0.02
    assert capsys.readouterr().out.count("label error rate") == 2
    folders = {path.parent.name for path in tmp_path.rglob("events*")}
    assert folders == {"novograd-mixed", "novograd-float32"}
