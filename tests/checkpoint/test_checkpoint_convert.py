"""`restore(..., convert=True)` into an optimizer with another form of state."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rulebook import assert_same
from thalweg import checkpoint, optim
from thalweg._core import quantized_slots
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
Pair = tuple[dict[str, torch.nn.Parameter], Any]


def made(names: Any = SIZES, fill: float | None = None, make: Any = optim.AdamW, **kw: Any) -> Pair:
    generator = torch.Generator().manual_seed(1)
    values = {name: torch.randn(SIZES[name], generator=generator) for name in SIZES}
    params = {
        name: torch.nn.Parameter((values[name] if fill is None else values[name] * fill).bfloat16())
        for name in names
    }
    return params, make(params.items(), lr=1e-3, **kw)


def trained(training: Pair, steps: int = 3) -> Pair:
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        for name in SIZES:
            training[0][name].grad = torch.randn(SIZES[name], generator=generator).bfloat16()
        training[1].step()
    return training


def restored(source: Pair, target: Pair, path: Path, **options: Any) -> Pair:
    checkpoint.save(path, optimizer=source[1], variables=source[0])
    checkpoint.restore(path, optimizer=target[1], variables=target[0], **options)
    return target


def dtypes(training: Pair) -> list[list[torch.dtype]]:
    param_states = [training[1].state[training[0][name]] for name in SIZES]
    return [[state[name].dtype for name in sorted(state)] for state in param_states]


def states(training: Pair) -> list[torch.Tensor]:
    """Return all tensors of the state as float32."""
    param_states = [training[1].state[training[0][name]] for name in SIZES]
    return [state[name].float() for state in param_states for name in sorted(state)]


@pytest.mark.one_in(7)
@pytest.mark.parametrize("make", [optim.AdamW, tensorflow.Adam])
@pytest.mark.parametrize(("source_case", "target_case"), [*itertools.permutations(OPTIONS, 2)])
@pytest.mark.filterwarnings("ignore:.*lower bits of weights")
def test_converting_a_file_equals_converting_a_state(
    source_case: str, target_case: str, make: Any, tmp_path: Path
) -> None:
    """Convert parameters in another order, with other values until they are loaded."""
    source = trained(made(make=make, **OPTIONS[source_case]))
    target = made([*SIZES][::-1], 3.0, make, **OPTIONS[target_case])
    if {source_case, target_case} != {"plain", "round"} or target_case == "plain":
        with pytest.raises(CheckpointMismatchError, match=r"restore\(\.\.\., convert=True\)"):
            restored(source, target, tmp_path / "file")
    restored(source, target, tmp_path / "file", convert=True)
    expected = made(make=make, **OPTIONS[target_case])
    with torch.no_grad():
        for name, param in expected[0].items():
            param.copy_(source[0][name])
    expected[1].load_state_dict(source[1].state_dict(), convert=True)
    assert_same([target[0][name].detach() for name in SIZES], [*map(detached, source[0].values())])
    assert dtypes(target) == dtypes(expected)
    assert_same(states(target), states(expected))
    trained(target, 1)


def detached(tensor: Tensor) -> torch.Tensor:
    return tensor.detach()


def test_masters_are_decoded_beside_the_parameters_of_the_file(tmp_path: Path) -> None:
    source = trained(made(weights="split"))
    target = restored(source, made(fill=3.0, masters=True), tmp_path / "a", convert=True)
    expected = optim.full_precision(source[1], masters=True)["state"]
    assert_same(
        [target[1].state[param]["master"] for param in target[0].values()],
        [state["master"] for state in expected.values()],
    )
    trained(target, 1)
    round_trip = restored(target, made(fill=3.0, weights="split"), tmp_path / "b", convert=True)
    decoded = optim.full_precision(round_trip[1], masters=True)["state"]
    for param, state in zip(target[0].values(), decoded.values(), strict=True):
        # 16 digits, of which the last may be one too low where torch rounds a tie up
        torch.testing.assert_close(
            state["master"], target[1].state[param]["master"], rtol=2**-15, atol=0
        )


@pytest.mark.parametrize("make", [optim.AdamW, tensorflow.Adam])
def test_missing_state_starts_at_the_parameters(make: Any, tmp_path: Path) -> None:
    source, target = trained(made(make=make)), made(make=make, ema_decay=0.9)
    with pytest.raises(CheckpointMismatchError, match=r"ema_decay is .*check_arguments=False\) "):
        restored(source, target, tmp_path / "file", convert=True)
    with pytest.raises(CheckpointMismatchError, match="small/ema' is missing"):
        restored(source, target, tmp_path / "file", check_arguments=False)
    with pytest.warns(CheckpointWarning, match="no 'ema', which begins at the parameters"):
        restored(source, target, tmp_path / "file", check_arguments=False, convert=True)
    trained(target, 1)
    averages = [target[1].state[param]["ema"].bfloat16() for param in target[0].values()]
    assert_same(averages, [*map(detached, target[0].values())])


def test_checkpoint_managers_convert_state(tmp_path: Path) -> None:
    source = trained(made(state_storage="8bit"))
    manager = checkpoint.CheckpointManager(tmp_path)
    manager.save(1, optimizer=source[1], variables=source[0])
    for restore in (manager.restore, manager.restore_or_initialize):
        target = made()
        with pytest.raises(CheckpointMismatchError, match=r"\(\.\.\., convert=True\) goes on"):
            restore(optimizer=target[1], variables=target[0])
        restore(optimizer=target[1], variables=target[0], convert=True)
        assert target[1].state[target[0]["w"]]["exp_avg"].dtype == torch.bfloat16
        trained(target, 1)


@pytest.mark.parametrize("make", [optim.AdamW, tensorflow.Adam])
def test_float32_slots_of_meshes_are_encoded(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(quantized_slots, "LEAST", 5000)  # as on a mesh: nothing is encoded
        source = trained(made(make=make, state_storage="8bit"))
    target = trained(made(make=make, state_storage="8bit"), 1)
    previous = [state.clone() for state in states(target)]
    with pytest.raises(CheckpointMismatchError, match=r"'w/.* is float32 .*convert=True encodes"):
        restored(source, target, tmp_path / "file")
    assert_same(states(target), previous)
    restored(source, target, tmp_path / "file", convert=True)
    expected = made(make=make, state_storage="8bit")
    expected[1].load_state_dict(source[1].state_dict(), convert=True)
    assert dtypes(target) == dtypes(expected)
    assert_same(states(target), states(expected))
    trained(target, 1)


def test_unconvertible_differences_raise(tmp_path: Path) -> None:
    source, target = trained(made(state_storage="8bit")), made(clip_grad_norm=1.0)
    ways = r"check_arguments=False, convert=True\) goes on with yours"
    with pytest.raises(CheckpointMismatchError, match=ways):
        restored(source, target, tmp_path / "file")
    restored(source, target, tmp_path / "file", check_arguments=False, convert=True)
