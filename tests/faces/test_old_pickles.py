"""Pickles, states and files that an earlier release wrote: they are read, and go on alike.

What is pickled has the paths of classes in it, also of those that users never see: a class that
moves stays where it was found, too.
"""

from __future__ import annotations

import io
import json
import pickle
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from recorded_files import FILES
from recorded_kinds import OBJECTS, TRAININGS, contents, numbers

ARCHIVE = Path(__file__).parents[1] / "goldens" / "recorded.tar.xz"


@cache
def recorded() -> dict[str, bytes]:
    return contents(ARCHIVE)


def assert_told(state: Any, name: str) -> None:
    """As it was recorded, but for what another processor rounds otherwise."""
    assert_near(json.loads(json.dumps(numbers(state))), json.loads(recorded()[name]), "")


def assert_near(actual: Any, expected: Any, path: str) -> None:
    assert type(actual) is type(expected), path
    if isinstance(actual, dict):
        assert list(actual) == list(expected), path
        actual, expected = list(actual.values()), list(expected.values())
    if isinstance(actual, list):
        assert len(actual) == len(expected), path
        for index, (actual_part, right) in enumerate(zip(actual, expected, strict=True)):
            assert_near(actual_part, right, f"{path}/{index}")
    elif isinstance(actual, float):
        assert actual == pytest.approx(expected, rel=1e-6, abs=1e-9, nan_ok=True), path
    else:
        assert actual == expected, path


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("protocol", [2, 5])
def test_old_pickles_resume(name: str, protocol: int) -> None:
    unpickled = pickle.loads(recorded()[f"{name}/{protocol}.pickle"])
    assert_told(OBJECTS[name].tell(unpickled), f"{name}/told.json")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", TRAININGS)
def test_torch_save_state_resumes(name: str) -> None:
    state = torch.load(io.BytesIO(recorded()[f"{name}/state.pt"]), weights_only=True)
    training = TRAININGS[name]
    assert_told(training.gone_on(training.loaded(state)), f"{name}/after.json")


# Keras' variables lack the `copy` of NumPy's protocol.
@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("name", FILES)
def test_old_checkpoint_files_resume(name: str, tmp_path: Path) -> None:
    if name.startswith("keras3"):
        pytest.importorskip("keras", reason="Keras 3 is not installed")
        # Keras finds only classes of modules that the program has imported.
        import_module("thalweg.integrations.keras3")
    prefix = f"{name}/files/"
    for member, content in recorded().items():
        if member.startswith(prefix):
            path = tmp_path / member.removeprefix(prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    assert_told(FILES[name].tell(tmp_path), f"{name}/files.json")


def test_all_pickle_kinds_are_recorded() -> None:
    names = {name.partition("/")[0] for name in recorded()}
    assert names == {*OBJECTS, *TRAININGS, *FILES}
