"""Hide TensorFlow from packages that test for it, and provide OpenSeq2Seq's training.

These packages would call functions of TensorFlow that `thalweg.tf` lacks. OpenSeq2Seq's modules
for training are found under its name.
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
    "accelerate", "datasets", "einops", "huggingface_hub", "jax", "keras", "lightning",
    "pytorch_lightning", "sklearn", "tensorboard", "torch", "torchmetrics", "transformers", "wandb",
}  # fmt: skip
OPENSEQ2SEQ = "open_seq2seq"
# If this module can be imported, tensorboard does without TensorFlow.
_ASKS_TENSORBOARD = "tensorboard.compat.notf"
_ASKS_KERAS = "keras.src.utils.module_utils"


def openseq2seq(fullname: str, path: str, loader: Any) -> ModuleSpec | None:
    """Return the import spec of `open_seq2seq` or a submodule, as `thalweg.openseq2seq`.

    Return None if OpenSeq2Seq is installed.

    Args:
        fullname: Full name of the imported module.
        path: Name of the module below the package; "" for the package.
        loader: The loader of the spec, which returns a `View` of the spec's `loader_state`.

    Raises:
        ImportError: thalweg has no such module.
    """
    if importlib.machinery.PathFinder.find_spec(OPENSEQ2SEQ) is not None:
        return None
    native_name = f"thalweg.openseq2seq.{path}".rstrip(".")
    try:
        native_module = importlib.import_module(native_name)
    except ModuleNotFoundError as error:
        if error.name != native_name:
            raise
        raise ImportError(
            f"Cannot import {fullname}: thalweg has open_seq2seq.optimizers, which trains. Models,"
            " data and losses are torch's.",
            name=fullname,
        ) from error
    return ModuleSpec(
        fullname, loader, loader_state=native_module, origin=native_name, is_package=True
    )


def is_neighbour(module: str) -> bool:
    """Return True if a module name belongs to one of the listed packages."""
    return module.partition(".")[0] in _PACKAGES


def answer(fullname: str, path: Sequence[str] | None, empty: Any) -> ModuleSpec | None:
    """Return an import spec that hides TensorFlow from a module of tensorboard or Keras.

    Return None for modules that do not look for TensorFlow.

    Args:
        fullname: Name of the imported module.
        path: Search path of the module's package.
        empty: Loader of an empty module.
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
    """Hide TensorFlow from packages that are already imported."""
    if _ASKS_KERAS in sys.modules:
        _hide_tensorflow(sys.modules[_ASKS_KERAS])


class _NoTensorFlow:
    """Replacement of TensorFlow in modules of Keras."""

    def executing_eagerly(self) -> bool:
        # Keras builds no graph of TensorFlow.
        return True

    def __getattr__(self, name: str) -> NoReturn:
        raise ImportError(f"tensorflow.{name} requires the tensorflow module.", name="tensorflow")


def _hide_tensorflow(module_utils: ModuleType) -> None:
    lazy = getattr(module_utils, "tensorflow", None)
    if lazy is not None:
        lazy._available, lazy.module = False, _NoTensorFlow()
