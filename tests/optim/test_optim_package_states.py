"""States of other packages: five steps of the author's class, conversion, five steps here."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from converted_cases import CASES, FOLDER, ZERO, continue_training, continue_zero, resumed, state_of
from thalweg import checkpoint, optim
from thalweg._cli.main import main
from thalweg.checkpoint.deepspeed import read_zero
from thalweg.errors import CheckpointMismatchError, CheckpointWarning, InvalidArgumentError
from thalweg.optim.package_states.conversion import recognize


def assert_same(value: Any, expected: Any) -> None:
    if isinstance(value, Tensor):
        assert torch.equal(value, expected)
    elif isinstance(value, dict):
        assert value.keys() == expected.keys()
        for key, item in value.items():
            assert_same(item, expected[key])
    elif isinstance(value, list | tuple):
        assert len(value) == len(expected)
        for item, expected_item in zip(value, expected, strict=True):
            assert_same(item, expected_item)
    else:
        assert value == expected


def everything(params: list[nn.Parameter], optimizer: Any) -> Any:
    return copy.deepcopy(([param.detach() for param in params], optimizer.state_dict()))


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore::thalweg.errors.CheckpointWarning")
@pytest.mark.parametrize("name", CASES)
def test_continued_training_equals_the_authors(name: str) -> None:
    assert continue_training(name) <= CASES[name].tolerance


@pytest.mark.parametrize("name", ZERO)
def test_partitions_of_all_ranks_are_joined(name: str) -> None:
    assert continue_zero(name) <= 1e-5


@pytest.mark.filterwarnings("ignore::thalweg.errors.CheckpointWarning")
@pytest.mark.parametrize("name", CASES)
def test_states_of_this_library_are_of_no_package(name: str) -> None:
    _, optimizer = resumed(name)
    assert recognize(state_of(name)) is not None
    optimizer.load_state_dict(state_of(name), convert=True)
    assert recognize(optimizer.state_dict()) is None


def test_codes_of_bitsandbytes_are_those_of_dynamic8() -> None:
    params, optimizer = resumed("bitsandbytes_adamw8bit")
    state = state_of("bitsandbytes_adamw8bit")
    saved_state = state["state"][0]["__bnb_optimizer_quant_state__"]
    optimizer.load_state_dict(state, convert=True)
    # Records are a scale of four bytes and 256 codes, which are signed in the first slot.
    for number, slot in enumerate(("exp_avg", "exp_avg_sq"), 1):
        records = optimizer.state[params[0]][slot].view(16, 260)
        shift = 127 if number == 1 else 0
        assert torch.equal(records[:, 4:] + shift, saved_state[f"state{number}"])
        scales = records[:, :4].contiguous().view(torch.float32).view(-1)
        assert torch.equal(scales, saved_state[f"absmax{number}"])
    params, optimizer = resumed("bitsandbytes_adamw8bit", "AdamW", lr=1.0)
    optimizer.load_state_dict(state, convert=True)
    decoded = saved_state["qmap1"][saved_state["state1"].int()] * saved_state["absmax1"].view(16, 1)
    assert torch.equal(optimizer.state[params[0]]["exp_avg"], decoded)


def test_rounding_warns_and_loss_needs_permission() -> None:
    params, optimizer = resumed("timm_lamb")
    state = state_of("timm_lamb")
    for group in state["param_groups"]:
        group["max_grad_norm"] = 0.5
    previous_bits = everything(params, optimizer)
    with pytest.raises(CheckpointMismatchError, match=r"max_grad_norm.*0\.5.*allow_loss=True"):
        optimizer.load_state_dict(state, convert=True)
    assert_same(everything(params, optimizer), previous_bits)
    with pytest.warns(CheckpointWarning, match="lost: max_grad_norm"):
        optimizer.load_state_dict(state, convert=True, allow_loss=True)
    _, clipping = resumed("timm_lamb", clip_grad_norm=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clipping.load_state_dict(state, convert=True)
    _, eight = resumed("bitsandbytes_adamw8bit", "AdamW", state_storage="8bit")
    with pytest.warns(CheckpointWarning, match="rounded: exp_avg, encoded as softsign8"):
        eight.load_state_dict(state_of("bitsandbytes_adamw8bit"), convert=True)


def test_eval_mode_moves_parameters_to_the_training_point() -> None:
    params, optimizer = resumed("schedulefree_adamw")
    average = params[0].detach().clone()
    optimizer.load_state_dict(state_of("schedulefree_adamw"), convert=True)
    assert not torch.equal(params[0], average)
    with optimizer.swapped():
        assert torch.allclose(params[0], average, atol=1e-6)


def test_sorted_parameters_of_distributed_muon_are_matched_by_shape() -> None:
    shapes = ((2, 3), (4, 5), (2, 4))
    params = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    order = sorted(range(3), key=lambda place: shapes[place], reverse=True)
    states = {
        rank: {"momentum_buffer": torch.full(shapes[n], n + 1.0)} for rank, n in enumerate(order)
    }
    group = {"lr": 0.02, "weight_decay": 0.0, "momentum": 0.95, "params": [0, 1, 2]}
    optimizer: Any = optim.Muon(params)
    with pytest.warns(CheckpointWarning, match="bfloat16"):
        optimizer.load_state_dict({"state": states, "param_groups": [group]}, convert=True)
    assert [optimizer.state[p]["momentum_buffer"].max() for p in params] == [1.0, 2.0, 3.0]


def _cut(state: Any) -> None:
    state["state"][0]["exp_avg_sq"] = torch.zeros(3)


def _text(state: Any) -> None:
    state["state"][1]["step"] = "five"


def _codes(state: Any) -> None:
    slots = state["state"][0]["__bnb_optimizer_quant_state__"]
    slots["state1"] = slots["state1"][:3]


def _map(state: Any) -> None:
    state["state"][0]["__bnb_optimizer_quant_state__"]["qmap1"] = torch.zeros(7)


def _scales(state: Any) -> None:
    state["state"][0]["__bnb_optimizer_quant_state__"]["absmax1"] = torch.zeros(1 << 14)


def _pair(state: Any) -> None:
    state["param_groups"][0]["betas"] = 0.9


def _matrix(state: Any) -> None:
    state["state"][0]["Q"] = [torch.zeros(4, 4)]


def _group(state: Any) -> None:
    state["param_groups"][0]["params"] = [0, 1]


def _choice(state: Any) -> None:
    state["param_groups"][0]["mars_type"] = 0


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("ademamix", _cut, r"'0/exp_avg_sq' is float32 \(3,\), not of shape \(4, 6\)"),
        ("ademamix", _text, "'1/step' is 'five', not a number"),
        ("bitsandbytes_adamw8bit", _codes, "'0/state1' has 768 codes, and the parameter 4096"),
        ("bitsandbytes_adamw8bit", _map, "map"),
        ("bitsandbytes_adamw8bit", _scales, "scales"),
        ("prodigyopt_prodigy", _pair, "beta3|betas"),
        ("soap", _matrix, "'0/Q' is .* not a list of 2"),
        ("timm_mars", _choice, "mars_type must be 'adamw' or .*, not 0"),
        ("muon", _group, r"groups have \[2, 1\] parameters, those here \[1, 1\]"),
    ],
)  # fmt: skip
def test_unfit_states_are_named_and_change_nothing(name: str, damage: Any, words: str) -> None:
    params, optimizer = resumed(name)
    state, previous_bits = state_of(name), everything(params, optimizer)
    damage(state)
    with pytest.raises(CheckpointMismatchError, match=words):
        optimizer.load_state_dict(state, convert=True, allow_loss=True)
    assert_same(everything(params, optimizer), previous_bits)


def test_other_classes_are_refused_by_name() -> None:
    _, optimizer = resumed("adan", "AdamW", lr=0.1)
    with pytest.raises(
        CheckpointMismatchError, match="is of Adan, which Adan continues, here AdamW"
    ):
        optimizer.load_state_dict(state_of("adan"), convert=True)


class Malicious:
    def __reduce__(self) -> Any:
        return (print, ("executed",))


def test_files_execute_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state": {}, "param_groups": [Malicious()]}, tmp_path / "file.pt")
    with pytest.raises(InvalidArgumentError, match="cannot be read as plain data"):
        checkpoint.read_state(tmp_path / "file.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Malicious()))
    with pytest.raises(InvalidArgumentError):
        checkpoint.read_state(tmp_path / "plain.pt")
    assert "executed" not in capsys.readouterr().out


def test_ranks_must_be_complete(tmp_path: Path) -> None:
    for file in (FOLDER / "zero2").iterdir():
        if not file.name.startswith("zero_pp_rank_1"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(InvalidArgumentError, match=r"1 files are there, and 'partition_count' is"):
        checkpoint.read_state(tmp_path)


def test_groups_of_zero_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    states = {
        1: {"step": 5, "exp_avg": torch.ones(2)},
        0: {"step": 3, "exp_avg": torch.zeros(1)},
    }
    optimizer = {
        "zero_stage": 1,
        "base_optimizer_state": {"state": states, "param_groups": [{}, {}]},
        "single_partition_of_fp32_groups": [torch.zeros(1), torch.ones(2)],
    }
    contents = {
        "zero_pp_rank_0_mp_rank_00_optim_states.pt": {"optimizer_state_dict": optimizer},
        "mp_rank_00_model_states.pt": {"param_shapes": [{"a": (1,)}, {"b": (2,)}]},
    }
    for name in contents:
        (tmp_path / name).touch()
    read_states = read_zero(tmp_path, lambda path: contents[path.name])["state"]
    entries = {
        index: (state["step"], len(state["exp_avg"])) for index, state in read_states.items()
    }
    assert entries == {0: (3, 1), 1: (5, 2)}


def test_command_converts_and_reports(tmp_path: Path) -> None:
    target_path = str(tmp_path / "out.safetensors")
    outcome = CliRunner().invoke(main, ["convert", str(FOLDER / "soap.pt"), target_path])
    assert outcome.exit_code == 0, outcome.output
    assert "rounded: exp_avg, rotated out of the basis\n" in outcome.output
    _, optimizer = resumed("soap")
    optimizer.load_state_dict(checkpoint.read_state(target_path))
    _, converted_optimizer = resumed("soap")
    with pytest.warns(CheckpointWarning):
        converted_optimizer.load_state_dict(state_of("soap"), convert=True)
    assert_same(optimizer.state_dict(), converted_optimizer.state_dict())
    failure = CliRunner().invoke(main, ["convert", str(FOLDER / "zero2"), f"{target_path}2"])
    assert failure.exit_code == 1
    assert "--allow-loss" in failure.output
    assert not Path(f"{target_path}2").exists()
