"""Ranks of torch's own: DistributedDataParallel, ZeRO, sharded parameters, checkpoints of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parallel_workers import run_ranks, run_ranks_once, shared_folder
from rank_cases import (
    DIAGNOSED,
    MAKERS,
    SHARDED,
    as_lists,
    bfloat_params,
    bfloat_steps,
    loaded,
    steps,
)
from thalweg import optim
from training import assert_same_training, data, model, numbers

SCRIPT = Path(__file__).with_name("rank_cases.py")
Told = list[dict[str, Any]]


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = shared_folder(request.config, tmp_path_factory, f"shares-{request.param}")
    found = run_ranks_once(folder, SCRIPT, request.param, str(folder))
    return [{**each, "folder": str(folder)} for each in found]


@pytest.mark.parametrize("name", MAKERS)
def test_ranks_that_share_batches_have_the_same_numbers(name: str, told: Told) -> None:
    for other in told[1:]:
        assert told[0]["ddp"][name] == other["ddp"][name]
    module = model()
    optimizer = MAKERS[name](module.parameters())
    steps(module, optimizer, data())
    pairs = zip(told[0]["ddp"][name], as_lists(numbers(module, optimizer)), strict=True)
    if len(told) == 2:  # else parts of batches are of several sizes
        for found, alone in pairs:
            torch.testing.assert_close(
                torch.tensor(found), torch.tensor(alone), rtol=1e-3, atol=1e-4
            )


REDUCING = {
    "shards, False": {"LAMB", "clipped", "Prodigy", "trust_ratio"},
    "shards, True": {"LAMB", "clipped", "Prodigy", "trust_ratio"},
    "whole, False": {"LAMB", "trust_ratio"},
    "whole, True": set[str](),
}


@pytest.mark.parametrize("kind", REDUCING)
def test_flat_parameters_raise_where_a_rule_reduces_over_them(kind: str, told: Told) -> None:
    for each in told:
        own = each["flat_buffers"][kind]
        assert {name for name, found in own.items() if isinstance(found, str)} == REDUCING[kind]
        torch.testing.assert_close(*(torch.tensor(own[name]) for name in ("AdamW", "torch")))
        assert all("is a flat buffer of FullySharded" in own[name] for name in REDUCING[kind])


def test_a_share_of_the_state_gives_the_numbers_of_all(told: Told) -> None:
    for each in told:
        for alike, kept in each["zero"].values():
            assert all(alike)
            assert kept < 4


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", MAKERS)
def test_what_ranks_saved_goes_on_there_and_alone(name: str, told: Told) -> None:
    assert all(each["saved_together"][name] for each in told)
    module = model()
    optimizer = MAKERS[name](module.parameters())
    steps(module, optimizer, data())
    again, resumed = loaded(MAKERS[name], Path(told[0]["folder"]) / name)
    steps(again, resumed, data()[4:])
    assert_same_training((again, resumed), (module, optimizer))


@pytest.mark.parametrize("name", SHARDED)
def test_parameters_in_parts_have_the_numbers_of_whole_ones(name: str, told: Told) -> None:
    """Uneven and empty parts; saved and loaded; norms may differ in their last bits."""
    has_norms = any(each in name for each in ("clipped", "sphere", "trust ratio", "Prodigy"))
    bound = 4 * torch.finfo(torch.float32).eps if has_norms else 0.0
    for each in told:
        assert max(each["sharded"][name]) <= bound


@pytest.mark.parametrize("name", DIAGNOSED)
def test_diagnostics_of_parts_are_those_of_whole_parameters(name: str, told: Told) -> None:
    """Largest magnitudes and counts are the same, and all ranks have the same sums."""
    tables, whole = zip(*(each["diagnosed"][name] for each in told), strict=True)
    for column, wanted in whole[0].items():
        for table in tables:
            given = np.array(table[column])
            np.testing.assert_array_equal(given, np.array(tables[0][column]))
            if column.endswith("_norm") or column in ("ratio", "cosine", "clip"):
                np.testing.assert_allclose(given, np.array(wanted), rtol=1e-6)
            else:
                np.testing.assert_array_equal(given, np.array(wanted), err_msg=column)


def test_no_rank_has_sums_that_another_one_could_not_measure(told: Told) -> None:
    for rank, each in enumerate(told):
        lost, later = each["diagnosed_but_for_one"]
        assert lost == (None if rank == 1 else [False] * 4)
        assert later == [True] * 4


@pytest.mark.parametrize("cls", [optim.AdamW, optim.tensorflow.Adam])
@pytest.mark.parametrize("name", ["cut", "not cut"])
def test_parts_draw_the_bits_of_the_whole(name: str, cls: Any, told: Told) -> None:
    """On any number of ranks, with parts that begin anywhere."""
    wanted = as_lists(bfloat_steps(cls, bfloat_params()))
    for each in told:
        assert each["rounded_in_parts"][f"{cls.__module__.split('.')[-1]} {name}"] == wanted


@pytest.mark.slow
def test_four_ranks_draw_the_bits_of_the_whole(tmp_path: Path) -> None:
    wanted = {
        f"{cls.__module__.split('.')[-1]} {name}": as_lists(bfloat_steps(cls, bfloat_params()))
        for cls in (optim.AdamW, optim.tensorflow.Adam)
        for name in ("cut", "not cut")
    }
    told = run_ranks(SCRIPT, tmp_path, 4, str(tmp_path), "rounded_in_parts")
    assert len(told) == 4
    for each in told:
        assert each["rounded_in_parts"].items() >= wanted.items()


def test_parts_of_another_dimension_draw_no_bits(told: Told) -> None:
    for each in told:
        for kind in ("classes", "tensorflow"):
            message = each["rounded_in_parts"][f"{kind} across"]
            assert "is a DTensor with the placements (S(1)); round='stochastic' is def" in message


def test_what_is_not_defined_for_parts_is_refused(told: Told) -> None:
    for each in told:
        for message, what in zip(
            each["not_for_parts"], ["accumulate", "in_backward", "masters", "gradients='flat'"] * 2
        ):
            assert f"{what} is not defined for parameters that are DTensors" in message
