"""Packages that look for a TensorFlow of their own: they are to find none.

They would take `thalweg.tf` for the whole of TensorFlow, and call what training code never does.
OpenSeq2Seq's training, of which thalweg has its own, is found under its name.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

_PACKAGES = {
    "accelerate",
    "datasets",
    "einops",
    "huggingface_hub",
    "jax",
    "keras",
    "lightning",
    "pytorch_lightning",
    "sklearn",
    "tensorboard",
    "torch",
    "torchmetrics",
    "transformers",
    "wandb",
}
OPENSEQ2SEQ = "open_seq2seq"
_ASKS_TENSORBOARD = "tensorboard.compat.notf"  # whether it has to do without TensorFlow
_ASKS_KERAS = "keras.src.utils.module_utils"


def openseq2seq(fullname: str, path: str, loader: Any) -> ModuleSpec | None:
    """Return the spec of a module of OpenSeq2Seq that shows the one of thalweg; None if it is
    installed.

    Args:
        fullname: The module that is imported.
        path: Its name below the package, "" for that itself.
        loader: Makes a `View`.

    Raises:
        ImportError: thalweg has no such module.
    """
    if importlib.machinery.PathFinder.find_spec(OPENSEQ2SEQ) is not None:
        return None
    own = f"thalweg.openseq2seq.{path}".rstrip(".")
    try:
        shown = importlib.import_module(own)
    except ModuleNotFoundError as error:
        if error.name != own:
            raise
        raise ImportError(
            f"Cannot import {fullname}: thalweg has open_seq2seq.optimizers, which trains. Models,"
            " data and losses are torch's.",
            name=fullname,
        ) from error
    return ModuleSpec(fullname, loader, loader_state=shown, origin=own, is_package=True)


def is_neighbour(module: str) -> bool:
    """Return True if a module, given by its name, belongs to one of the listed packages."""
    return module.partition(".")[0] in _PACKAGES


def answer(fullname: str, path: Sequence[str] | None, empty: Any) -> ModuleSpec | None:
    """Return the spec of a module by which one of them learns that there is no TensorFlow, or None.

    Args:
        fullname: The module that is imported.
        path: Where its package lies.
        empty: The loader of a module without contents.
    """
    if fullname == _ASKS_TENSORBOARD:
        return ModuleSpec(fullname, empty)
    if fullname != _ASKS_KERAS:
        return None
    spec = importlib.machinery.PathFinder.find_spec(fullname, path)
    if spec is not None and spec.loader is not None:
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _hide_tensorflow(module)

        spec.loader.exec_module = exec_module
    return spec


def settle() -> None:
    """Tell those that are imported already."""
    if _ASKS_KERAS in sys.modules:
        _hide_tensorflow(sys.modules[_ASKS_KERAS])


class _NoTensorFlow:
    """What Keras has for TensorFlow where it asks only because the name is in `sys.modules`."""

    def executing_eagerly(self) -> bool:
        return True  # Keras is in no graph of TensorFlow

    def __getattr__(self, name: str) -> NoReturn:
        raise ImportError(f"tensorflow.{name} requires the tensorflow module.", name="tensorflow")


def _hide_tensorflow(module_utils: ModuleType) -> None:
    lazy = getattr(module_utils, "tensorflow", None)
    if lazy is not None:
        lazy._available, lazy.module = False, _NoTensorFlow()
