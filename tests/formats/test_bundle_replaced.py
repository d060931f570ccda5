"""Replacement of a TensorFlow checkpoint: files and error messages after a failure."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from thalweg._formats import bundle, stored_tensor
from thalweg.errors import CheckpointWriteError, DataLossError

OLD, NEW = ({"w": stored_tensor.of_tensor(torch.full((3,), value))} for value in (1.0, 2.0))
CALLS = [(name, number) for name in ("open", "write", "fsync", "replace") for number in range(6)]


def _failing(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> list[None]:
    """Make one call fail; the returned counter grows with each call."""
    real, calls = getattr(os, name), list[None]()

    def call(*args: Any, **options: Any) -> Any:
        calls.append(None)
        if len(calls) == number + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **options)

    monkeypatch.setattr(os, name, call)
    return calls


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "number"), CALLS)
@pytest.mark.parametrize("has_old", [True, False])
def test_errors_describe_the_remaining_files(
    name: str, number: int, has_old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ckpt"
    if has_old:
        bundle.write(path, OLD)
    message, calls = "", list[None]()
    with monkeypatch.context() as patch:
        calls = _failing(patch, name, number)
        try:
            bundle.write(path, NEW)
        except CheckpointWriteError as error:
            message = str(error)
    if not message:
        assert len(calls) <= number or name == "open"
        assert bundle.read(path).tensors["w"].tensor()[0] == 2
    elif "the previous checkpoint is intact" in message:
        assert has_old
        assert bundle.read(path).tensors["w"].tensor()[0] == 1
    elif "nothing was saved" in message:
        assert not has_old
        assert not bundle.is_bundle(path)
    elif "there is no checkpoint to be read" in message:
        assert (name, number) == ("replace", 1)
        with pytest.raises(DataLossError):
            bundle.read(path)
    else:
        assert "the new checkpoint is in its place" in message
        assert bundle.read(path).tensors["w"].tensor()[0] == 2
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
    bundle.write(path, NEW)
    assert bundle.read(path).tensors["w"].tensor()[0] == 2
