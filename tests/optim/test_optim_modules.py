"""Modules of `torch.optim` under the names of this package, for search and replace."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import pytest
import torch

import fresh_process
from thalweg import optim
from torch_inputs import CLASSES

MODULES = [module.name for module in pkgutil.iter_modules(torch.optim.__path__)]
CLASS_MODULES = {name.lower(): name for name in CLASSES} | {
    "sparse_adam": "SparseAdam",
    "_muon": "Muon",
    "_adafactor": "Adafactor",
}
del CLASS_MODULES["sparseadam"], CLASS_MODULES["adafactor"]
TORCHS = sorted({*MODULES} - {*CLASS_MODULES} - {"_stateless"})  # which is new, and private


@pytest.mark.parametrize("name", TORCHS)
def test_modules_without_replaced_class_are_torch_modules(name: str) -> None:
    module = importlib.import_module(f"thalweg.optim.{name}")
    assert module is importlib.import_module(f"torch.optim.{name}")
    assert getattr(optim, name) is module


@pytest.mark.parametrize("name", sorted({*CLASS_MODULES} & {*MODULES}))
def test_modules_replace_only_the_optimizer_classes(name: str) -> None:
    module = importlib.import_module(f"thalweg.optim.{name}")
    torch_module = importlib.import_module(f"torch.optim.{name}")
    for key in vars(torch_module):
        if key.startswith("__"):
            continue
        is_class = key in {*CLASSES, "Muon"}
        expected = getattr(optim, key) if is_class else getattr(torch_module, key)
        assert getattr(module, key) is expected, key
    assert {*module.__all__} == {*torch_module.__all__}
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
def test_imports_with_replaced_package_name_work(statement: str) -> None:
    torch_names: dict[str, object] = {}
    names: dict[str, object] = {}
    exec(statement, torch_names)
    exec(statement.replace("torch.optim", "thalweg.optim"), names)
    assert {*torch_names} - {"__builtins__", "torch"} <= {*names}
    for name in {*torch_names} - {"__builtins__", "torch", *CLASSES, "Muon", "o", "tensorflow"}:
        assert names[name] is torch_names[name], name


def test_modules_load_nothing_that_the_package_has_not_loaded() -> None:
    names = [name for name in CLASS_MODULES if name not in ("_muon", "_adafactor")] + TORCHS
    program = f"""
import sys
from thalweg import optim
before = set(sys.modules)
for name in {names}:
    __import__("thalweg.optim." + name)
new = {{name for name in set(sys.modules) - before if not name.startswith("thalweg.optim.")}}
assert new <= {{"torch.optim._multi_tensor"}}, new
"""
    process = fresh_process.run(program)
    assert process.returncode == 0, process.stderr


def test_dir_lists_only_public_names() -> None:
    assert dir(optim) == sorted(optim.__all__)
    assert {"lr_scheduler", "swa_utils", "Optimizer", "LBFGS"} <= {*dir(optim)}


def test_scheduler_imported_by_either_name_is_one_class() -> None:
    optimizer = optim.adamw.AdamW([torch.nn.Parameter(torch.ones(2))], lr=1.0)
    schedule = sys.modules["thalweg.optim.lr_scheduler"].StepLR(optimizer, 1, 0.5)
    assert isinstance(schedule, torch.optim.lr_scheduler.LRScheduler)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
