"""`install_as_tensorflow`: scripts that import tensorflow find `thalweg.tf`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from thalweg import _graph
from thalweg._base.execution_context import process
from thalweg._base.showing import show_value
from thalweg.errors import FailedPreconditionError, InvalidArgumentError
from thalweg.tf import import_guard, private_modules
from thalweg.tf.module_views import View

_FACADES = {1: "thalweg.tf.compat.v1", 2: "thalweg.tf"}


def install_as_tensorflow(version: int = 2) -> None:
    """Make all forms of `import tensorflow` return `thalweg.tf` in this process.

    Call this function before the first import of tensorflow. `python -m thalweg.tf script.py` calls
    it for a script. Missing names raise AttributeError or ImportError with a replacement. Modules
    of `tensorflow.python` that optimizers import exist. Packages that test for TensorFlow, such
    as tensorboard, Keras and transformers, do not find it. Keras uses its torch backend unless
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
    import_guard.settle()
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
        if top == import_guard.OPENSEQ2SEQ:
            return import_guard.openseq2seq(fullname, submodule, self)
        if top != "tensorflow":
            return import_guard.answer(fullname, path, self)
        importer, is_query = _importer_of()
        if import_guard.is_neighbour(importer):
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
        """Return the object for a module name; raise AttributeError if there is no such module."""
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
    """Return (name of the importing module, True if it calls `find_spec` and does not import)."""
    frame, is_query = sys._getframe(2), False
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith("importlib"):
            return name, is_query
        is_query = is_query or frame.f_code is importlib.util.find_spec.__code__
        frame = frame.f_back
    return "", is_query
