"""Files that are cut off, flipped or of another kind: messages of all readers and commands.

Every message names the file, its apparent format, and the accepted formats or the right reader.
"""

from __future__ import annotations

import gzip
import io
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save

from golden_files import FOLDER as GOLDENS
from thalweg import ThalwegError, Variable, checkpoint
from thalweg._cli.main import main
from thalweg._formats import bundle, container, header, keras_files
from thalweg.checkpoint import inspection, tensorflow
from thalweg.errors import DataLossError, UnsafeCheckpointError, UnsupportedCheckpointError
from thalweg.keras.optimizers import Adam
from thalweg.v1 import train

SAVER = GOLDENS / "checkpoints" / "ckpt_v1" / "adam" / "model.ckpt-5"
DATA = ".data-00000-of-00001"
KERAS = GOLDENS / "keras_files"


def written(write: Callable[[Any], object]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def zipped(file: Any) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("notes.txt", "hello")


TORCH = {"w": torch.ones(200)}
UNSAFE = (UnsafeCheckpointError, r"a pickle.*execute what is in it.*torch\.load\(weights_only=True")
READ = r"`thalweg inspect` lists it, `thalweg convert` turns it .* thalweg\.checkpoint\.tensorflow"

# What no reader takes: the bytes, the error, what is said of all of them, and of their first half.
FOREIGN: dict[str, tuple[Callable[[], bytes], tuple[type[ThalwegError], str]]] = {
    "torch.save": (lambda: written(lambda file: torch.save(TORCH, file)), UNSAFE),
    "torch.save before 1.6": (
        lambda: written(lambda file: torch.save(TORCH, file, _use_new_zipfile_serialization=False)),
        UNSAFE,
    ),
    "pickle": (lambda: pickle.dumps({"w": np.ones(20)}), UNSAFE),
    "pickle, protocol 0": (lambda: pickle.dumps(np.ones(20), 0), UNSAFE),
    "pickle, protocol 1": (lambda: pickle.dumps({"w": 1, "v": list(range(9))}, 1), UNSAFE),
    "safetensors": (
        lambda: save({"w": torch.ones(20)}),
        (DataLossError, r"safetensors that another library wrote\. safetensors\.torch\.load_file"),
    ),
    "npz": (
        lambda: written(lambda file: np.savez(file, a=np.ones(30))),
        (DataLossError, r"NumPy's arrays\. numpy\.load reads it"),
    ),
    "npy": (
        lambda: written(lambda file: np.save(file, np.ones(30))),
        (DataLossError, r"an array of NumPy's\. numpy\.load reads it"),
    ),
    "zip": (lambda: written(zipped), (DataLossError, r"zip archive.*'notes\.txt'.*Unpack it")),
    "gzip": (lambda: gzip.compress(bytes(99)), (DataLossError, r"compressed by gzip\. Unpack")),
    "JSON": (lambda: b'{"w": [1.0, 2.0]}', (DataLossError, r"text, JSON perhaps\. There are no")),
    "web page": (lambda: b"<!DOCTYPE html><html>404", (DataLossError, r"web page\. What was down")),
    "git LFS": (
        lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:1234\nsize 99\n",
        (DataLossError, r"a pointer of git LFS.*`git lfs pull`"),
    ),
    "zeros": (lambda: bytes(300), (DataLossError, r"zeros alone.*power failure\. Copy it anew")),
    "text": (
        lambda: b"hello, this is no checkpoint",
        (DataLossError, r"first bytes are damaged: b'hello, t'\. `thalweg inspect` reads"),
    ),
    "data of a bundle": (
        lambda: Path(f"{SAVER}{DATA}").read_bytes(),
        (DataLossError, r"first bytes are damaged.*TensorFlow \(by what all names of its files"),
    ),
    "index of a bundle": (
        lambda: Path(f"{SAVER}.index").read_bytes(),
        (ThalwegError, r"(an|the) index of .*under another name.*model\.data-00000-of-00001"),
    ),
}


def of_thalweg(folder: Path) -> bytes:
    w, optimizer = Variable([1.0, 2.0], name="w"), Adam(0.1)
    optimizer.apply_gradients([([1.0, 1.0], w)])
    checkpoint.save(folder / "made", optimizer=optimizer, variables=[w])
    return (folder / "made").read_bytes()


KINDS = "checkpoint of thalweg, TensorFlow or Keras"
READERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "container.read": (container.read, "file of thalweg"),
    "container.describe": (container.describe, "file of thalweg"),
    "container.verify": (container.verify, "file of thalweg"),
    "bundle.read": (lambda path: bundle.read(str(path)), "checkpoint of TensorFlow"),
    "bundle.describe": (lambda path: bundle.describe(str(path)), "checkpoint of TensorFlow"),
    "listing": (inspection.list_file, KINDS),
    "verified": (inspection.list_verified, KINDS),
    "contents": (inspection.read_tensors, KINDS),
    "tensorflow.load": (tensorflow.load, KINDS),
    "tensorflow.restore": (lambda path: tensorflow.restore(path, {}), KINDS),
    "convert": (lambda path: tensorflow.convert(path, path.with_name("out")), KINDS),
    "convert to": (lambda path: tensorflow.convert(path, path.with_name("out"), to="tf"), KINDS),
    "restore": (lambda path: checkpoint.restore(path, variables=False), KINDS),
    "Checkpoint.restore": (lambda path: train.Checkpoint().restore(path), KINDS),
    "NewCheckpointReader": (train.NewCheckpointReader, KINDS),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("is_complete", [True, False], ids=["whole", "half"])
def test_readers_identify_foreign_files(kind: str, is_complete: bool, tmp_path: Path) -> None:
    make, (error, pattern) = FOREIGN[kind]
    content = make()
    path = tmp_path / "it"
    path.write_bytes(content if is_complete else content[: len(content) // 2])
    for name, (read, format_name) in READERS.items():
        if (kind, name) == ("torch.save", "listing"):
            # Listed, see the tests of the command `inspect`.
            continue
        with pytest.raises(error) as raised:
            read(path)
        text = str(raised.value)
        assert text.startswith(f"{path}"), name
        assert re.search(pattern, text) or _is_of_bundles(kind, name, text), (name, text)
        if not _is_of_bundles(kind, name, text):
            assert f"It is no {format_name}" in text, (name, text)
    with pytest.raises(ThalwegError, match=re.escape(str(path))):
        keras_files.read(path)
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


def _is_of_bundles(kind: str, name: str, text: str) -> bool:
    """Return True for a table of TensorFlow's, whose messages are more specific."""
    return kind == "index of a bundle" and (
        "the index of a later checkpoint" in text or "checkpoint of TensorFlow" in text
    )


def _is_of_optimizers(kind: str, command: str, text: str) -> bool:
    """Return True for what `convert` says of files of torch, which may hold a state."""
    is_told = "holds no state dict" in text or "TensorFlow has no torch-style optimizers" in text
    return kind.startswith("torch.save") and command == "convert" and is_told


FOREIGN_FILES: dict[str, tuple[Path, str]] = {
    "keras": (KERAS / "adam.keras", "a `.keras` file"),
    "weights.h5": (KERAS / "adam_weights.weights.h5", "an HDF5 file, as Keras writes"),
    "h5": (KERAS / "adam.h5", "an HDF5 file, as Keras writes"),
}


@pytest.mark.parametrize("kind", FOREIGN_FILES)
def test_readers_name_the_function_that_opens_a_file(kind: str, tmp_path: Path) -> None:
    source, looks = FOREIGN_FILES[kind]
    path = tmp_path / "it"
    shutil.copy(source, path)
    for read, title in (READERS["container.read"], READERS["bundle.read"]):
        with pytest.raises(UnsupportedCheckpointError, match=f"no {title}: it is {looks}. {READ}"):
            read(path)
    with pytest.raises(UnsupportedCheckpointError, match=f"is a checkpoint of Keras: {READ}"):
        checkpoint.restore(path)


def test_restore_identifies_a_tensorflow_checkpoint() -> None:
    with pytest.raises(UnsupportedCheckpointError, match=f"is a checkpoint of TensorFlow: {READ}"):
        checkpoint.restore(SAVER)


def test_other_readers_identify_a_thalweg_file(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_bytes(of_thalweg(tmp_path))
    for read in (bundle.read, keras_files.read):
        with pytest.raises(UnsupportedCheckpointError, match=r"a file of thalweg\. `thalweg insp"):
            read(str(path))
    with pytest.raises(UnsupportedCheckpointError, match=r"thalweg\.checkpoint\.restore reads it"):
        tensorflow.load(path)


# Files that are damaged

DAMAGED: dict[str, tuple[dict[str, Path], tuple[str, ...]]] = {
    "keras": ({"": KERAS / "adam.keras"}, ("listing", "tensorflow.load")),
    "weights.h5": ({"": KERAS / "adam_weights.weights.h5"}, ("listing", "tensorflow.load")),
    "h5": ({"": KERAS / "adam.h5"}, ("listing", "tensorflow.load")),
    "bundle": (
        {".index": Path(f"{SAVER}.index"), DATA: Path(f"{SAVER}{DATA}")},
        ("verified", "tensorflow.load", "bundle.read", "Checkpoint.restore"),
    ),
    "ours": ({}, ("listing", "restore", "container.read")),
}
CUTS = (0, 1, 7, 9, 30, 0.5, 0.9, -20, -1)


@pytest.mark.parametrize("kind", DAMAGED)
def test_truncated_files_are_identified(kind: str, tmp_path: Path) -> None:
    sources, readers = DAMAGED[kind]
    parts = {end: path.read_bytes() for end, path in sources.items()} or {"": of_thalweg(tmp_path)}
    path = tmp_path / "it"
    for ending, content in parts.items():
        for cut in CUTS:
            for other_ending, bytes_ in parts.items():
                Path(f"{path}{other_ending}").write_bytes(bytes_)
            length = int(cut * len(content)) if isinstance(cut, float) else cut % len(content)
            Path(f"{path}{ending}").write_bytes(content[: length if cut else 0])
            for name in readers:
                with pytest.raises(ThalwegError, match=re.escape(str(path))) as error:
                    READERS[name][0](path)
                text = str(error.value)
                pattern = "cut off|It is no|ends at|does not end|should follow|beyond the end|first"
                assert re.search(pattern, text), (ending, cut, name, text)
                assert "pickle" not in text, (ending, cut, name, text)


@pytest.mark.parametrize("kind", DAMAGED)
def test_files_with_a_flipped_bit_are_identified(kind: str, tmp_path: Path) -> None:
    sources, readers = DAMAGED[kind]
    parts = {end: path.read_bytes() for end, path in sources.items()} or {"": of_thalweg(tmp_path)}
    path = tmp_path / "it"
    for ending, content in parts.items():
        places = [*range(12), *np.linspace(12, len(content) - 1, 20, dtype=int).tolist()]
        for place in places:
            for other_ending, bytes_ in parts.items():
                Path(f"{path}{other_ending}").write_bytes(bytes_)
            flipped = bytearray(content)
            flipped[place] ^= 16
            Path(f"{path}{ending}").write_bytes(flipped)
            for name in readers:
                message = _error(lambda name=name: READERS[name][0](path))
                assert message is None or str(path) in message, (ending, place, name, message)


def _error(read: Callable[[], Any]) -> str | None:
    try:
        read()
    except ThalwegError as error:
        return str(error)
    return None


# Commands

COMMANDS = (("inspect",), ("verify",), ("diff",), ("convert",), ("convert", "--to", "tf"))


@pytest.mark.parametrize("kind", FOREIGN)
def test_commands_identify_foreign_files(kind: str, tmp_path: Path) -> None:
    make, (_, pattern) = FOREIGN[kind]
    path, new = tmp_path / "it", tmp_path / "out"
    path.write_bytes(make())
    for command, *options in COMMANDS[kind == "torch.save" :]:
        args = {"diff": [path, SAVER], "convert": [*options, path, new]}.get(command, [path])
        outcome = CliRunner().invoke(main, [command, *map(str, args)])
        text = " ".join(outcome.output.split())
        assert outcome.exit_code == 1, (command, outcome.output)
        assert "it" in text, command
        is_specific = _is_of_bundles(kind, command, text) or _is_of_optimizers(kind, command, text)
        assert re.search(pattern, text) or is_specific, (command, text)
        assert "Traceback" not in text, command
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


@pytest.mark.parametrize("place", range(8, 8 + len(header.FIRST)))
def test_thalweg_file_with_flipped_bit_is_not_foreign(place: int, tmp_path: Path) -> None:
    path = tmp_path / "run"
    checkpoint.save(path, variables={"w": torch.ones(2)})
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    for read in (checkpoint.restore, container.read, inspection.list_file):
        with pytest.raises(DataLossError, match="run: The beginning of its header is damaged"):
            read(path)
