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


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The names of values that are not the same to the bit."""
    if one.keys() != other.keys():
        return sorted(one.keys() ^ other.keys())
    return [name for name in one if not same(one[name], other[name])]


def same(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return type(one) is type(other) and one == other
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


# The others differ from these by what is around the state, not by how it is written.
QUICK = ("keras", "v1")


@pytest.mark.parametrize("face", [slow_unless(face in QUICK, face) for face in FACES])
@pytest.mark.filterwarnings('ignore:dtype is "mixed", but nothing')
def test_every_stop_is_gone_on_from_in_another_process(face: str, tmp_path: Path) -> None:
    stops: dict[str, list[Any]] = {}
    ends: dict[str, dict[str, Any]] = {}
    for name, make in FACES[face].items():
        training = make()
        stops[name] = [make_checkpoint(training)]
        ends[name] = copy_everything(training)
        for number in range(STEPS):
            before = ends[name]
            training.step(number)
            ends[name] = copy_everything(training)
            assert differing(before, ends[name]), "to load nothing would do"
            stops[name].append(make_checkpoint(training))
    torch.save(stops, tmp_path / resumed.CHECKPOINT)
    done = fresh_process.run(Path(resumed.__file__), str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / resumed.FINAL, weights_only=True)
    wrong = {
        (name, number): differing(each, ends[name])
        for name, others in found.items()
        for number, each in enumerate(others)
        if differing(each, ends[name])
    }
    assert wrong == {}
    assert {name: len(others) for name, others in found.items()} == dict.fromkeys(ends, STEPS + 1)
