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
    FLAT_STATES,
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
Reports = list[dict[str, Any]]


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    folder = shared_folder(request.config, tmp_path_factory, f"shares-{request.param}")
    reports = run_ranks_once(folder, SCRIPT, request.param, str(folder))
    return [{**report, "folder": str(folder)} for report in reports]


@pytest.mark.parametrize("name", MAKERS)
def test_data_parallel_ranks_equal_one_process(name: str, reports: Reports) -> None:
    for report in reports[1:]:
        assert reports[0]["ddp"][name] == report["ddp"][name]
    module = model()
    optimizer = MAKERS[name](module.parameters())
    steps(module, optimizer, data())
    pairs = zip(reports[0]["ddp"][name], as_lists(numbers(module, optimizer)), strict=True)
    if len(reports) == 2:  # else parts of batches are of several sizes
        for actual, single in pairs:
            torch.testing.assert_close(
                torch.tensor(actual), torch.tensor(single), rtol=1e-3, atol=1e-4
            )


REDUCING = {
    "shards, False": {"LAMB", "clipped", "Prodigy", "trust_ratio"},
    "shards, True": {"LAMB", "clipped", "Prodigy", "trust_ratio"},
    "whole, False": {"LAMB", "trust_ratio"},
    "whole, True": set[str](),
}


@pytest.mark.parametrize("kind", REDUCING)
def test_flat_parameters_raise_where_a_rule_reduces_over_them(kind: str, reports: Reports) -> None:
    for report in reports:
        rows = report["flat_buffers"][kind]
        assert {name for name, row in rows.items() if isinstance(row, str)} == REDUCING[kind]
        torch.testing.assert_close(*(torch.tensor(rows[name]) for name in ("AdamW", "torch")))
        assert all("is a flat buffer of FullySharded" in rows[name] for name in REDUCING[kind])


def test_zero_redundancy_state_equals_full_state(reports: Reports) -> None:
    for report in reports:
        for matches, slot_count in report["zero"].values():
            assert all(matches)
            assert slot_count < 4


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", MAKERS)
def test_rank_checkpoints_resume_on_ranks_and_one_process(name: str, reports: Reports) -> None:
    assert all(report["saved_together"][name] for report in reports)
    module = model()
    optimizer = MAKERS[name](module.parameters())
    steps(module, optimizer, data())
    target, resumed = loaded(MAKERS[name], Path(reports[0]["folder"]) / name)
    steps(target, resumed, data()[4:])
    assert_same_training((target, resumed), (module, optimizer))


@pytest.mark.parametrize("name", SHARDED)
def test_sharded_parameters_equal_whole_ones(name: str, reports: Reports) -> None:
    """Train uneven and empty parts; save and load; norms may differ in their last bits."""
    has_norms = any(word in name for word in ("clipped", "sphere", "trust ratio", "Prodigy"))
    bound = 4 * torch.finfo(torch.float32).eps if has_norms else 0.0
    for report in reports:
        assert max(report["sharded"][name]) <= bound


@pytest.mark.parametrize("name", FLAT_STATES)
def test_sharded_parameters_resume_from_flat_states(name: str, reports: Reports) -> None:
    for report in reports:
        assert len(report["sharded_flat_states"][name]) > 4
        assert all(report["sharded_flat_states"][name])


@pytest.mark.parametrize("name", DIAGNOSED)
def test_sharded_diagnostics_equal_whole_ones(name: str, reports: Reports) -> None:
    tables, references = zip(*(report["diagnosed"][name] for report in reports), strict=True)
    for column, expected in references[0].items():
        for table in tables:
            actual = np.array(table[column])
            np.testing.assert_array_equal(actual, np.array(tables[0][column]))
            if column.endswith("_norm") or column in ("ratio", "cosine", "clip"):
                np.testing.assert_allclose(actual, np.array(expected), rtol=1e-6)
            else:
                np.testing.assert_array_equal(actual, np.array(expected), err_msg=column)


def test_diagnostics_are_dropped_if_one_rank_cannot_measure(reports: Reports) -> None:
    for rank, report in enumerate(reports):
        first, second = report["diagnosed_but_for_one"]
        assert first == (None if rank == 1 else [False] * 4)
        assert second == [True] * 4


@pytest.mark.parametrize("cls", [optim.AdamW, optim.tensorflow.Adam])
@pytest.mark.parametrize("name", ["cut", "not cut", "across"])
def test_shards_draw_the_bits_of_the_whole(name: str, cls: Any, reports: Reports) -> None:
    expected = as_lists(bfloat_steps(cls, bfloat_params()))
    for report in reports:
        assert report["rounded_in_parts"][f"{cls.__module__.split('.')[-1]} {name}"] == expected


@pytest.mark.slow
def test_shards_on_four_ranks_draw_the_bits_of_the_whole(tmp_path: Path) -> None:
    expected = {
        f"{cls.__module__.split('.')[-1]} {name}": as_lists(bfloat_steps(cls, bfloat_params()))
        for cls in (optim.AdamW, optim.tensorflow.Adam)
        for name in ("cut", "not cut", "across")
    }
    reports = run_ranks(SCRIPT, tmp_path, 4, str(tmp_path), "rounded_in_parts")
    assert len(reports) == 4
    for report in reports:
        assert report["rounded_in_parts"].items() >= expected.items()


def test_pending_sums_raise_for_random_bits(reports: Reports) -> None:
    for report in reports:
        for kind in ("classes", "tensorflow"):
            message = report["rounded_in_parts"][f"{kind} pending"]
            assert "is a DTensor with the placements (P(sum)); round='stochastic' is def" in message


def test_unsupported_options_of_shards_raise(reports: Reports) -> None:
    for report in reports:
        for message, name in zip(
            report["not_for_parts"],
            ["accumulate", "in_backward", "gradients='flat'"] * 2,
        ):
            assert f"{name} is not defined for parameters that are DTensors" in message
