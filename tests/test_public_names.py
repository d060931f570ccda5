"""`dir()` of each public module shows its public names, and no others."""

from __future__ import annotations

import importlib
from typing import get_type_hints

import pytest

MODULES = [
    "thalweg",
    "thalweg.autodiff",
    "thalweg.checkpoint",
    "thalweg.checkpoint.tensorflow",
    "thalweg.conform",
    "thalweg.distribute",
    "thalweg.keras",
    "thalweg.keras.optimizers",
    "thalweg.openseq2seq",
    "thalweg.openseq2seq.optimizers",
    "thalweg.openseq2seq.optimizers.lr_policies",
    "thalweg.openseq2seq.optimizers.optimizers",
    "thalweg.optim",
    "thalweg.optim.adamw",
    "thalweg.optim.options",
    "thalweg.optim.tensorflow",
    "thalweg.rules",
    "thalweg.rules.modern",
    "thalweg.rules.torch",
    "thalweg.rules.wrappers",
    "thalweg.schedules",
    "thalweg.v1",
    "thalweg.v1.contrib",
    "thalweg.v1.contrib.layers",
    "thalweg.v1.contrib.opt",
    "thalweg.v1.summary",
    "thalweg.v1.train",
    "thalweg.v1.train.experimental",
]
EXTRA_NAMES = {"thalweg": {"__version__", "tf"}}  # whose import lends names: no star asks for it


@pytest.mark.parametrize("name", MODULES)
def test_dir_lists_only_public_names(name: str) -> None:
    module = importlib.import_module(name)
    assert dir(module) == sorted({*module.__all__} | EXTRA_NAMES.get(name, set()))
    assert all(hasattr(module, name) for name in dir(module))


def test_annotations_of_options_are_resolved() -> None:
    options = importlib.import_module("thalweg.optim.options")
    for name in options.__all__:
        assert get_type_hints(getattr(options, name))


def test_keras_schedules_is_a_module() -> None:
    optimizers = importlib.import_module("thalweg.keras.optimizers")
    module = importlib.import_module("thalweg.keras.optimizers.schedules")
    assert module is optimizers.schedules is importlib.import_module("thalweg.schedules")
