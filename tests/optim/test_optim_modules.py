"""Modules of `torch.optim` under the names of this package: a search and replace is enough."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import pytest
import torch

import fresh_process
from thalweg import optim
from torch_inputs import CLASSES

MODULES = [each.name for each in pkgutil.iter_modules(torch.optim.__path__)]
OURS = {name.lower(): name for name in CLASSES} | {
    "sparse_adam": "SparseAdam",
    "_muon": "Muon",
    "_adafactor": "Adafactor",
}
del OURS["sparseadam"], OURS["adafactor"]
TORCHS = sorted({*MODULES} - {*OURS} - {"_stateless"})  # which is new, and private


@pytest.mark.parametrize("name", TORCHS)
def test_modules_without_a_class_of_ours_are_torchs(name: str) -> None:
    module = importlib.import_module(f"thalweg.optim.{name}")
    assert module is importlib.import_module(f"torch.optim.{name}")
    assert getattr(optim, name) is module


@pytest.mark.parametrize("name", sorted({*OURS} & {*MODULES}))
def test_modules_of_a_class_have_ours_and_all_else_of_torchs(name: str) -> None:
    module = importlib.import_module(f"thalweg.optim.{name}")
    theirs = importlib.import_module(f"torch.optim.{name}")
    for each in vars(theirs):
        if each.startswith("__"):
            continue
        is_ours = each in {*CLASSES, "Muon"}
        wanted = getattr(optim, each) if is_ours else getattr(theirs, each)
        assert getattr(module, each) is wanted, each
    assert {*module.__all__} == {*theirs.__all__}
    assert dir(module) == sorted(module.__all__)
    with pytest.raises(
        AttributeError, match=rf"module 'thalweg\.optim\.{name}' has no .* 'nothing'"
    ):
        _ = module.nothing


STATEMENTS = """
from torch.optim.lr_scheduler import StepLR, LRScheduler, _LRScheduler
from torch.optim.swa_utils import AveragedModel, SWALR
from torch.optim.optimizer import Optimizer, required
from torch.optim.adamw import AdamW
from torch.optim.sgd import SGD, sgd
from torch.optim.lbfgs import LBFGS
from torch.optim import Optimizer, lr_scheduler
from torch.optim import *
import torch.optim.lr_scheduler as schedules
import torch.optim.adam
import torch.optim as o
"""


@pytest.mark.parametrize("statement", STATEMENTS.strip().splitlines())
def test_statements_with_the_name_replaced_do_the_same(statement: str) -> None:
    theirs: dict[str, object] = {}
    ours: dict[str, object] = {}
    exec(statement, theirs)
    exec(statement.replace("torch.optim", "thalweg.optim"), ours)
    assert {*theirs} - {"__builtins__", "torch"} <= {*ours}
    for name in {*theirs} - {"__builtins__", "torch", *CLASSES, "Muon", "o", "tensorflow"}:
        assert ours[name] is theirs[name], name


def test_modules_load_nothing_that_the_package_has_not_loaded() -> None:
    names = [name for name in OURS if name not in ("_muon", "_adafactor")] + TORCHS
    program = f"""
import sys
from thalweg import optim
before = set(sys.modules)
for name in {names}:
    __import__("thalweg.optim." + name)
new = {{name for name in set(sys.modules) - before if not name.startswith("thalweg.optim.")}}
assert new <= {{"torch.optim._multi_tensor"}}, new
"""
    done = fresh_process.run(program)
    assert done.returncode == 0, done.stderr


def test_the_package_shows_its_public_names_alone() -> None:
    assert dir(optim) == sorted(optim.__all__)
    assert {"lr_scheduler", "swa_utils", "Optimizer", "LBFGS"} <= {*dir(optim)}


def test_a_schedule_of_either_name_is_one_class() -> None:
    optimizer = optim.adamw.AdamW([torch.nn.Parameter(torch.ones(2))], lr=1.0)
    schedule = sys.modules["thalweg.optim.lr_scheduler"].StepLR(optimizer, 1, 0.5)
    assert isinstance(schedule, torch.optim.lr_scheduler.LRScheduler)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
