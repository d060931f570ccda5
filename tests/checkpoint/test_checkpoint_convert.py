"""`restore(..., convert=True)` into an optimizer that keeps its state otherwise."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from rulebook import assert_same
from thalweg import checkpoint, optim
from thalweg.errors import CheckpointMismatchError, CheckpointWarning
from thalweg.optim import tensorflow

SIZES = {"small": 10, "w": 4096, "b": 4097}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "8bit": {"state_storage": "8bit"},
    "round": {"round": "stochastic", "seed": 7},
    "split": {"weights": "split"},
    "both": {"weights": "split", "state_storage": "dynamic8"},
}
Own = tuple[dict[str, torch.nn.Parameter], Any]


def made(names: Any = SIZES, fill: float | None = None, make: Any = optim.AdamW, **how: Any) -> Own:
    drawn = torch.Generator().manual_seed(1)
    values = {name: torch.randn(SIZES[name], generator=drawn) for name in SIZES}
    params = {
        name: torch.nn.Parameter((values[name] if fill is None else values[name] * fill).bfloat16())
        for name in names
    }
    return params, make(params.items(), lr=1e-3, **how)


def trained(own: Own, steps: int = 3) -> Own:
    drawn = torch.Generator().manual_seed(2)
    for _ in range(steps):
        for name in SIZES:
            own[0][name].grad = torch.randn(SIZES[name], generator=drawn).bfloat16()
        own[1].step()
    return own


def restored(own: Own, other: Own, path: Path, **how: Any) -> Own:
    checkpoint.save(path, optimizer=own[1], variables=own[0])
    checkpoint.restore(path, optimizer=other[1], variables=other[0], **how)
    return other


def dtypes(own: Own) -> list[list[torch.dtype]]:
    found = [own[1].state[own[0][name]] for name in SIZES]
    return [[each[name].dtype for name in sorted(each)] for each in found]


def states(own: Own) -> list[torch.Tensor]:
    """All of the state, bytes as numbers."""
    found = [own[1].state[own[0][name]] for name in SIZES]
    return [each[name].float() for each in found for name in sorted(each)]


@pytest.mark.parametrize("make", [optim.AdamW, tensorflow.Adam])
@pytest.mark.parametrize(("theirs", "ours"), [*itertools.permutations(OPTIONS, 2)])
@pytest.mark.filterwarnings("ignore:.*lower bits of weights")
def test_a_file_is_converted_as_a_state_is(
    theirs: str, ours: str, make: Any, tmp_path: Path
) -> None:
    """Of parameters in another order, and of other values until they are loaded."""
    own = trained(made(make=make, **OPTIONS[theirs]))
    other = made([*SIZES][::-1], 3.0, make, **OPTIONS[ours])
    if {theirs, ours} != {"plain", "round"} or ours == "plain":
        with pytest.raises(CheckpointMismatchError, match=r"restore\(\.\.\., convert=True\)"):
            restored(own, other, tmp_path / "file")
    restored(own, other, tmp_path / "file", convert=True)
    wanted = made(make=make, **OPTIONS[ours])
    with torch.no_grad():
        for name, param in wanted[0].items():
            param.copy_(own[0][name])
    wanted[1].load_state_dict(own[1].state_dict(), convert=True)
    assert_same([other[0][name].detach() for name in SIZES], [*map(detached, own[0].values())])
    assert dtypes(other) == dtypes(wanted)
    assert_same(states(other), states(wanted))
    trained(other, 1)


def detached(each: torch.Tensor) -> torch.Tensor:
    return each.detach()


def test_masters_are_decoded_beside_the_parameters_of_the_file(tmp_path: Path) -> None:
    own = trained(made(weights="split"))
    other = restored(own, made(fill=3.0, masters=True), tmp_path / "a", convert=True)
    wanted = optim.full_precision(own[1], masters=True)["state"]
    assert_same(
        [other[1].state[param]["master"] for param in other[0].values()],
        [each["master"] for each in wanted.values()],
    )
    trained(other, 1)
    back = restored(other, made(fill=3.0, weights="split"), tmp_path / "b", convert=True)
    again = optim.full_precision(back[1], masters=True)["state"]
    for param, each in zip(other[0].values(), again.values(), strict=True):
        # 16 digits, of which the last may be one too low where torch rounds a tie up
        torch.testing.assert_close(
            each["master"], other[1].state[param]["master"], rtol=2**-15, atol=0
        )


@pytest.mark.parametrize("make", [optim.AdamW, tensorflow.Adam])
def test_what_a_file_lacks_begins_at_the_parameters(make: Any, tmp_path: Path) -> None:
    own, other = trained(made(make=make)), made(make=make, ema_decay=0.9)
    with pytest.raises(CheckpointMismatchError, match=r"ema_decay is .*check_arguments=False\) "):
        restored(own, other, tmp_path / "file", convert=True)
    with pytest.raises(CheckpointMismatchError, match="small/ema' is missing"):
        restored(own, other, tmp_path / "file", check_arguments=False)
    with pytest.warns(CheckpointWarning, match="no 'ema', which begins at the parameters"):
        restored(own, other, tmp_path / "file", check_arguments=False, convert=True)
    trained(other, 1)
    averages = [other[1].state[each]["ema"].bfloat16() for each in other[0].values()]
    assert_same(averages, [*map(detached, other[0].values())])


def test_managers_convert(tmp_path: Path) -> None:
    own = trained(made(state_storage="8bit"))
    manager = checkpoint.CheckpointManager(tmp_path)
    manager.save(1, optimizer=own[1], variables=own[0])
    for restore in (manager.restore, manager.restore_or_initialize):
        other = made()
        with pytest.raises(CheckpointMismatchError, match=r"\(\.\.\., convert=True\) goes on"):
            restore(optimizer=other[1], variables=other[0])
        restore(optimizer=other[1], variables=other[0], convert=True)
        assert other[1].state[other[0]["w"]]["exp_avg"].dtype == torch.bfloat16
        trained(other, 1)


def test_what_differs_besides_is_refused(tmp_path: Path) -> None:
    own, other = trained(made(state_storage="8bit")), made(clip_grad_norm=1.0)
    ways = r"check_arguments=False, convert=True\) goes on with yours"
    with pytest.raises(CheckpointMismatchError, match=ways):
        restored(own, other, tmp_path / "file")
    restored(own, other, tmp_path / "file", check_arguments=False, convert=True)
