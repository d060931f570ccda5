"""`install_as_tensorflow`: scripts that import tensorflow find `thalweg.tf`.

TensorFlow is hidden from packages that test for it: they would call functions of TensorFlow that
`thalweg.tf` lacks. OpenSeq2Seq's modules for training are found under its name.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, NoReturn

from thalweg import _graph
from thalweg._base.execution_context import process
from thalweg._base.showing import show_value
from thalweg.errors import FailedPreconditionError, InvalidArgumentError
from thalweg.tf import private_modules
from thalweg.tf.module_views import View

_PACKAGES = {
    "accelerate", "datasets", "einops", "huggingface_hub", "jax", "keras", "lightning",
    "pytorch_lightning", "sklearn", "tensorboard", "torch", "torchmetrics", "transformers", "wandb",
}  # fmt: skip
_OPENSEQ2SEQ = "open_seq2seq"
# If this module can be imported, tensorboard does without TensorFlow.
_ASKS_TENSORBOARD = "tensorboard.compat.notf"
_ASKS_KERAS = "keras.src.utils.module_utils"
_FACADES = {1: "thalweg.tf.compat.v1", 2: "thalweg.tf"}


def install_as_tensorflow(version: int = 2) -> None:
    """Make all forms of `import tensorflow` return `thalweg.tf` in this process.

    Call this function before the first import of tensorflow. `python -m thalweg.tf script.py` calls
    it for a script. Missing names raise AttributeError or ImportError with a replacement. Modules
    of `tensorflow.python` that optimizers import exist. Packages that test for TensorFlow, such
    as tensorboard, Keras and transformers, find none. Keras uses its torch backend unless
    KERAS_BACKEND is set. `open_seq2seq` is `thalweg.openseq2seq`, unless OpenSeq2Seq is installed.

    Args:
        version: 2 for `thalweg.tf` in eager mode; 1 for `thalweg.tf.compat.v1` in graph mode.

    Raises:
        InvalidArgumentError: `version` is neither 1 nor 2.
        FailedPreconditionError: TensorFlow is installed or imported, or an earlier call had a
            different version.
    """
    if version not in _FACADES:
        raise InvalidArgumentError(f"version must be 1 or 2, not {show_value(version)}.")
    finder = next(
        (candidate for candidate in sys.meta_path if isinstance(candidate, _TensorFlowFinder)), None
    )
    if finder is not None:
        if finder.version != version:
            raise FailedPreconditionError(
                f"thalweg stands for TensorFlow {finder.version} in this process already."
            )
        return
    # Called before the finder is installed, because the search would find it.
    _refuse_another()
    # Keras reads the variable once, at its import.
    if "keras" not in sys.modules:
        os.environ.setdefault("KERAS_BACKEND", "torch")
    sys.meta_path.insert(0, _TensorFlowFinder(version))
    if _ASKS_KERAS in sys.modules:
        _hide_tensorflow(sys.modules[_ASKS_KERAS])
    _graph.disable_eager_execution() if version == 1 else _graph.enable_eager_execution()
    process.resource_variables = version == 2


def _refuse_another() -> None:
    advice = "Use `import thalweg.tf as tf` beside it, or an environment without it."
    if "tensorflow" in sys.modules:
        raise FailedPreconditionError(f"tensorflow is imported already. {advice}")
    spec = importlib.util.find_spec("tensorflow")
    if spec is not None:
        location = spec.origin or ", ".join(spec.submodule_search_locations or ())
        raise FailedPreconditionError(f"TensorFlow is installed, in {location}. {advice}")


class _TensorFlowFinder(MetaPathFinder, Loader):
    """Import finder of `tensorflow`. Packages that test for TensorFlow do not find it."""

    def __init__(self, version: int) -> None:
        self.version = version

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, submodule = fullname.partition(".")
        if top == _OPENSEQ2SEQ:
            return _openseq2seq_spec(fullname, submodule, self)
        if top != "tensorflow":
            return _hiding_spec(fullname, path, self)
        importer, is_query = _importer_of()
        if importer.partition(".")[0] in _PACKAGES:
            return None
        try:
            module = self._find_shown(fullname)
        except AttributeError as error:
            if is_query:
                return None
            raise ImportError(f"Cannot import {fullname}: {error}", name=fullname) from error
        state = {"loader_state": module, "origin": _FACADES[self.version], "is_package": True}
        return ModuleSpec(fullname, self, **state)

    def _find_shown(self, fullname: str) -> object:
        """Return the module under TensorFlow's name `fullname`; raise AttributeError if missing."""
        path = fullname.split(".")[1:]
        if path[:1] in (["python"], ["core"]):
            return private_modules.module(fullname)
        target: object = importlib.import_module(_FACADES[self.version])
        for name in path:
            target = getattr(target, name)
        # Classes and functions have a `__name__`, too, but cannot be imported as modules.
        if not hasattr(target, "__name__") or isinstance(target, type) or callable(target):
            raise AttributeError(f"{fullname} is no module, but a name of one.")
        return target

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return View(spec.name, spec.loader_state)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a view has no code."""


def _importer_of() -> tuple[str, bool]:
    """Return (name of the importing module, True if it only called `importlib.util.find_spec`)."""
    frame, is_query = sys._getframe(2), False
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith("importlib"):
            return name, is_query
        is_query = is_query or frame.f_code is importlib.util.find_spec.__code__
        frame = frame.f_back
    return "", is_query


def _openseq2seq_spec(fullname: str, path: str, loader: Any) -> ModuleSpec | None:
    """Return the import spec of `open_seq2seq` or a submodule, as `thalweg.openseq2seq`.

    Return None if OpenSeq2Seq is installed.

    Args:
        fullname: Full name of the imported module.
        path: Name of the module below the package; "" for the package.
        loader: The loader of the spec, which returns a `View` of the spec's `loader_state`.

    Raises:
        ImportError: thalweg has no such module.
    """
    if PathFinder.find_spec(_OPENSEQ2SEQ) is not None:
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


def _hiding_spec(fullname: str, path: Sequence[str] | None, empty: Any) -> ModuleSpec | None:
    """Return an import spec that hides TensorFlow from a module of tensorboard or Keras.

    Return None for modules that do not look for TensorFlow. `path` is the search path of the
    module's package, and `empty` is a loader of an empty module.
    """
    if fullname == _ASKS_TENSORBOARD:
        return ModuleSpec(fullname, empty)
    if fullname != _ASKS_KERAS:
        return None
    spec = PathFinder.find_spec(fullname, path)
    if spec is not None and spec.loader is not None:
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _hide_tensorflow(module)

        spec.loader.exec_module = exec_module
    return spec


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
