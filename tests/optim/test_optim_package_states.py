"""States of other packages: five steps of the author's class, conversion, five steps here."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from converted_cases import CASES, STEPS, Case, group_dicts, make_params, set_gradients
from thalweg import optim
from thalweg.errors import CheckpointMismatchError, CheckpointWarning
from thalweg.checkpoint import read_state

FOLDER = Path(__file__).parents[1] / "goldens/converted"
VALUES = np.load(FOLDER / "values.npz")
MIXED = ({"rule": "Muon", "ns_dtype": "bfloat16"}, {"rule": "AdamW"})


def resumed(name: str) -> tuple[list[nn.Parameter], Any]:
    """Return the parameters after five steps, and a new optimizer for them."""
    case = CASES[name]
    params = make_params(case)
    for place, param in enumerate(params):
        param.data = torch.from_numpy(VALUES[f"{name}|5|{place}"].copy())
    groups = group_dicts(case, params)
    if case.name == "Mixed":
        groups = [{"params": [p], **rule} for p, rule in zip(params, MIXED, strict=True)]
    return params, getattr(optim, case.name)(groups, **case.ours)


def state_of(name: str) -> dict[str, Any]:
    return read_state(FOLDER / f"{name}.pt")


@pytest.mark.filterwarnings("ignore::thalweg.errors.CheckpointWarning")
@pytest.mark.parametrize("name", CASES)
def test_continued_training_equals_the_authors(name: str) -> None:
    params, optimizer = resumed(name)
    optimizer.load_state_dict(state_of(name), convert=True)
    for step in range(STEPS, 2 * STEPS):
        set_gradients(params, step)
        optimizer.step()
    for place, param in enumerate(params):
        before, after = (VALUES[f"{name}|{count}|{place}"] for count in (5, 10))
        difference = np.abs(param.detach().numpy() - after).max()
        assert difference <= CASES[name].tolerance * np.abs(after - before).max()


def everything(params: list[nn.Parameter], optimizer: Any) -> Any:
    return copy.deepcopy(([param.detach() for param in params], optimizer.state_dict()))
