"""Paths of checkpoints, and errors for paths that lead to none."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from golden_files import FOLDER as GOLDENS
from thalweg import Variable, checkpoint
from thalweg._formats import bundle
from thalweg._formats.path_resolution import PathKind, locate_checkpoint
from thalweg.checkpoint import CheckpointManager, inspection, tensorflow
from thalweg.errors import DataLossError, MissingFileError, ThalwegError, UnsafeCheckpointError
from thalweg.tf.io import gfile
from thalweg.v1 import train
from thalweg.v1.summary import FileWriter

SAVER = GOLDENS / "checkpoints" / "ckpt_v1" / "adam" / "model.ckpt-5"
DATA = ".data-00000-of-00001"


def _copied(folder: Path) -> Path:
    for ending in (".index", DATA):
        shutil.copy(f"{SAVER}{ending}", f"{folder / SAVER.name}{ending}")
    return folder / SAVER.name


@pytest.mark.parametrize("ending", ["", ".index", DATA, ".meta"])
def test_bundle_is_located_by_any_of_its_files(ending: str, tmp_path: Path) -> None:
    prefix = _copied(tmp_path)
    Path(f"{prefix}.meta").write_bytes(b"a graph")
    place = locate_checkpoint(f"{prefix}{ending}")
    assert (place.path, place.kind, place.writer) == (str(prefix), PathKind.BUNDLE, "tensorflow")


def test_thalweg_file_is_located_with_and_without_suffix(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "run.safetensors", variables={"w": torch.ones(2)})
    for name in ("run", "run.safetensors"):
        location = locate_checkpoint(tmp_path / name)
        assert (location.path, location.kind) == (str(tmp_path / "run.safetensors"), PathKind.OURS)


@pytest.mark.parametrize("ending", ["", ".safetensors"])
def test_thalweg_file_takes_precedence_over_tensorflow(ending: str, tmp_path: Path) -> None:
    prefix = _copied(tmp_path)
    checkpoint.save(f"{prefix}{ending}", variables={"w": torch.ones(2)})
    w = torch.zeros(2)
    checkpoint.restore(prefix, variables={"w": w})
    assert w.tolist() == [1.0, 1.0]
    assert list(inspection.read_tensors(prefix)) == ["variables/w"]
    assert train.NewCheckpointReader(prefix).get_variable_to_shape_map() == {"variables/w": [2]}
    with pytest.raises(ThalwegError, match=r"of thalweg: .* beside it is .*model\.ckpt-5\.index"):
        tensorflow.load(prefix)
    assert locate_checkpoint(f"{prefix}.index").kind is PathKind.BUNDLE
    assert tensorflow.load(f"{prefix}.index").step == 5


def test_keras_file_is_not_hidden_by_its_conversion(tmp_path: Path) -> None:
    path = tmp_path / "it.keras"
    shutil.copy(GOLDENS / "keras_files" / "adam.keras", path)
    checkpoint.save(f"{path}.safetensors", variables={"w": torch.ones(2)})
    assert locate_checkpoint(path).kind is PathKind.KERAS


def _made(kind: str, folder: Path) -> Path:
    path = folder / "it"
    match kind:
        case "nothing":
            pass
        case "a name that is nearly right":
            checkpoint.save(folder / "items.safetensors", variables={"w": torch.ones(2)})
            return folder / "item.safetensors"
        case "data alone":
            path = _copied(folder)
            Path(f"{path}.index").unlink()
        case "a folder":
            _copied(folder)
            return folder
        case "a list" | "a folder with a list":
            _copied(folder)
            text = f'model_checkpoint_path: "{SAVER.name}"\n'
            (folder / "checkpoint").write_text(text)
            return folder / "checkpoint" if kind == "a list" else folder
        case "empty":
            path.touch()
        case "a circle" | "a link":
            path.symlink_to("it" if kind == "a circle" else "gone")
        case "text":
            path.write_text("hello")
        case "a pickle":
            path.write_bytes(pickle.dumps({"w": 1}))
        case "of torch":
            torch.save({"w": torch.ones(2)}, path)
        case "of others":
            save_file({"w": torch.ones(2)}, path)
    return path


INVALID_PATHS = {
    "nothing": (
        MissingFileError,
        r"it does not exist: there is no file .* with \.safetensors or \.index after it",
    ),
    "a name that is nearly right": (MissingFileError, r"Did you mean 'items\.safetensors'\?"),
    "data alone": (MissingFileError, r"model\.ckpt-5\.index does not exist: without it the data"),
    "a folder": (MissingFileError, r"is a folder: give .* such as .*/model\.ckpt-5\."),
    "a folder with a list": (MissingFileError, r"is a folder: .*/model\.ckpt-5, the newest\."),
    "a list": (MissingFileError, r"checkpoint lists the checkpoints .*/model\.ckpt-5, the newest"),
    "empty": (DataLossError, r"it: It is no checkpoint of .*: it is empty"),
    "a circle": (MissingFileError, r"it is a link to 'it', and leads to no file\."),
    "a link": (MissingFileError, r"it is a link to 'gone', and leads to no file\."),
    "text": (DataLossError, r"it: It is no checkpoint of thalweg, TensorFlow or Keras.*b'hello'"),
    "a pickle": (
        UnsafeCheckpointError,
        r"it: It is no checkpoint.*a pickle.*torch\.load\(weights_only=True\)",
    ),
    "of torch": (
        UnsafeCheckpointError,
        r"it: It is no checkpoint.*a pickle.*torch\.load\(weights_only=True\)",
    ),
    "of others": (DataLossError, r"it: It is no checkpoint.*safetensors\.torch\.load_file"),
}


READERS = {
    "load": tensorflow.load,
    "list_file": inspection.list_file,
    "list_verified": inspection.list_verified,
    "read_tensors": inspection.read_tensors,
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", INVALID_PATHS)
def test_readers_agree_about_non_checkpoints(kind: str, name: str, tmp_path: Path) -> None:
    cls, message = INVALID_PATHS[kind]
    path = _made(kind, tmp_path)
    if (kind, name) == ("of torch", "list_file"):  # the one reader that lists these
        assert inspection.list_file(path).kind == "torch"
        return
    with pytest.raises(cls, match=message):
        READERS[name](path)


@pytest.mark.parametrize("kind", INVALID_PATHS)
def test_savers_and_object_checkpoints_reject_non_checkpoints(kind: str, tmp_path: Path) -> None:
    path = _made(kind, tmp_path)
    cls, message = INVALID_PATHS[kind]
    if locate_checkpoint(path).kind is not PathKind.MISSING:  # there a saver has TensorFlow's words
        with pytest.raises(cls, match=message):
            train.NewCheckpointReader(path)
    if not path.suffix:  # which a Checkpoint leaves off
        with pytest.raises(cls, match=message):
            train.Checkpoint().restore(path)


LOOPED: dict[str, Callable[[str], Any]] = {
    "a list": train.latest_checkpoint,
    "rules": lambda path: tensorflow.restore(SAVER, {}, path),
    "events": FileWriter,
    "a bundle": lambda path: bundle.read(Path(path, "ckpt")),
    "a folder": lambda path: CheckpointManager(Path(path, "run")),
    "a new bundle": lambda path: tensorflow.save(Path(path, "ckpt"), None, {"w": Variable(1.0)}),
    "a file of text": gfile.GFile,
}


@pytest.mark.parametrize("case", LOOPED)
def test_circular_links_raise_with_their_name(case: str, tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    with pytest.raises(ThalwegError, match=str(tmp_path / "one")):
        LOOPED[case](str(tmp_path / "one"))
    assert train.get_checkpoint_mtimes([tmp_path / "one", tmp_path / "one" / "ckpt"]) == []
    train.remove_checkpoint(tmp_path / "one" / "ckpt")
    assert sorted(os.listdir(tmp_path)) == ["one", "other"]


def test_saver_identifies_keras_files() -> None:
    path = next((GOLDENS / "keras_files").glob("*.keras"))
    for read in (train.NewCheckpointReader, train.Checkpoint().restore):
        with pytest.raises(ThalwegError, match=r"is a file of Keras, which thalweg\.checkpoint"):
            read(path)


def test_converting_tensorflow_to_tensorflow_raises(tmp_path: Path) -> None:
    with pytest.raises(ThalwegError, match=r"is a checkpoint of TensorFlow, and only one of thal"):
        tensorflow.convert(SAVER, tmp_path / "out", to="tf")
