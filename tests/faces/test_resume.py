"""A training that is saved at any step goes on in another process as if nothing had been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fresh_process
import resumed
from resumed import FACES, STEPS, copy_everything, make_checkpoint
from rulebook import slow_unless


def differing(state: dict[str, Any], twin_state: dict[str, Any]) -> list[str]:
    """The names of values that are not the same to the bit."""
    if state.keys() != twin_state.keys():
        return sorted(state.keys() ^ twin_state.keys())
    return [name for name in state if not same(state[name], twin_state[name])]


def same(state: Any, twin: Any) -> bool:
    if not isinstance(state, torch.Tensor):
        return type(state) is type(twin) and state == twin
    if (state.dtype, state.shape) != (twin.dtype, twin.shape):
        return False
    return torch.equal(state.reshape(-1).view(torch.uint8), twin.reshape(-1).view(torch.uint8))


# The others differ from these by what is around the state, not by how it is written.
QUICK = ("keras", "v1")


@pytest.mark.parametrize("face", [slow_unless(face in QUICK, face) for face in FACES])
@pytest.mark.filterwarnings('ignore:dtype is "mixed", but nothing')
def test_training_resumes_in_another_process_from_every_step(face: str, tmp_path: Path) -> None:
    stops: dict[str, list[Any]] = {}
    ends: dict[str, dict[str, Any]] = {}
    for name, make in FACES[face].items():
        training = make()
        stops[name] = [make_checkpoint(training)]
        ends[name] = copy_everything(training)
        for number in range(STEPS):
            final = ends[name]
            training.step(number)
            ends[name] = copy_everything(training)
            assert differing(final, ends[name]), "to load nothing would do"
            stops[name].append(make_checkpoint(training))
    torch.save(stops, tmp_path / resumed.CHECKPOINT)
    process = fresh_process.run(Path(resumed.__file__), str(tmp_path))
    assert process.returncode == 0, process.stderr
    saved_states = torch.load(tmp_path / resumed.FINAL, weights_only=True)
    wrong = {
        (name, number): differing(state, ends[name])
        for name, states in saved_states.items()
        for number, state in enumerate(states)
        if differing(state, ends[name])
    }
    assert wrong == {}
    assert {name: len(states) for name, states in saved_states.items()} == dict.fromkeys(
        ends, STEPS + 1
    )
