"""Record what users keep of a release: pickles, states of `torch.save`, files of each face.

    export PYTHONPATH=src:tests/faces:tests/support
    python tools/record_objects.py tests/goldens/recorded.tar.xz

adds the kinds of `recorded_kinds.py` and `recorded_files.py`, in `tests/faces`, that are not there
yet. What was recorded stays, as later releases have to read it.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import torch

from recorded_files import FILES
from recorded_kinds import OBJECTS, TRAININGS, Kind, Training, contents, numbers

PROTOCOLS = (2, 5)


def of_object(kind: Kind) -> dict[str, bytes]:
    """Return the pickles of an object and its results when it goes on."""
    instance = kind.make()
    members = {f"{protocol}.pickle": pickle.dumps(instance, protocol) for protocol in PROTOCOLS}
    return {**members, "told.json": told(kind.tell(instance))}


def of_training(training: Training) -> dict[str, bytes]:
    """Return the `state_dict` of a training, as `torch.save` writes it, and its next steps."""
    optimizer, variables_ = training.begun()
    file = io.BytesIO()
    variables = [each.detach().as_subclass(torch.Tensor) for each in variables_]
    torch.save({"variables": variables, "state": optimizer.state_dict()}, file)
    members = {"state.pt": file.getvalue()}
    return {**members, "after.json": told(training.gone_on((optimizer, variables_)))}


def of_files(write: Any, tell: Any) -> dict[str, bytes]:
    """All that is in a folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        members = {f"files/{path.relative_to(folder)}": path.read_bytes() for path in paths}
        return {**members, "files.json": told(tell(folder))}


def told(object_: Any) -> bytes:
    return json.dumps(numbers(object_)).encode()


def recorded(name: str) -> dict[str, bytes]:
    """All that there is of one kind."""
    members: dict[str, bytes] = {}
    if name in OBJECTS:
        members |= of_object(OBJECTS[name])
    if name in TRAININGS:
        members |= of_training(TRAININGS[name])
    if name in FILES:
        members |= of_files(*FILES[name])
    return {f"{name}/{member}": content for member, content in members.items()}


def archive(path: Path, members: Mapping[str, bytes]) -> None:
    """Write a reproducible archive of members."""
    with tarfile.open(path, "w:xz", preset=9) as file:
        for name in sorted(members):
            member = tarfile.TarInfo(name)
            member.size = len(members[name])
            file.addfile(member, io.BytesIO(members[name]))


def main(path: Path) -> None:
    members = contents(path) if path.exists() else {}
    recorded_names = {member.partition("/")[0] for member in members}
    for name in {**OBJECTS, **TRAININGS, **FILES}:
        if name not in recorded_names:
            members |= recorded(name)
    archive(path, members)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
