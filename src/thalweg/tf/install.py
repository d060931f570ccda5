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
    """Let `import tensorflow`, in all its forms, give `thalweg.tf` from now on in this process.

    Call it before anything imports tensorflow; `python -m thalweg.tf script.py` does so for a
    script. A name that thalweg has not says what to use instead, as an AttributeError or an
    ImportError. Of TensorFlow's private modules, `tensorflow.python`, there are those that
    optimizers import. Packages that look for a TensorFlow of their own, such as tensorboard, Keras
    and transformers, find none; Keras is given its torch backend, unless KERAS_BACKEND says
    otherwise. `open_seq2seq`, unless it is installed, is `thalweg.openseq2seq`.

    Args:
        version: 2 for `thalweg.tf` in eager mode; 1 for `thalweg.tf.compat.v1` in graph mode.

    Raises:
        InvalidArgumentError: `version` is neither.
        FailedPreconditionError: A real TensorFlow is installed or imported, or the other version
            was installed before. The same one again changes nothing.
    """
    if version not in _FACADES:
        raise InvalidArgumentError(f"version must be 1 or 2, not {show_value(version)}.")
    finder = next((each for each in sys.meta_path if isinstance(each, _TensorFlowFinder)), None)
    if finder is not None:
        if finder.version != version:
            raise FailedPreconditionError(
                f"thalweg stands for TensorFlow {finder.version} in this process already."
            )
        return
    _refuse_another()
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
        where = spec.origin or ", ".join(spec.submodule_search_locations or ())
        raise FailedPreconditionError(f"TensorFlow is installed, in {where}. {advice}")


class _TensorFlowFinder(MetaPathFinder, Loader):
    """Finds `tensorflow` and what is below it, for all but packages that mean another."""

    def __init__(self, version: int) -> None:
        self.version = version

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, rest = fullname.partition(".")
        if top == import_guard.OPENSEQ2SEQ:
            return import_guard.openseq2seq(fullname, rest, self)
        if top != "tensorflow":
            return import_guard.answer(fullname, path, self)
        importer, only_asks = _importer_of()
        if import_guard.is_neighbour(importer):
            return None
        try:
            shown = self._find_shown(fullname)
        except AttributeError as error:
            if only_asks:
                return None
            raise ImportError(f"Cannot import {fullname}: {error}", name=fullname) from error
        state = {"loader_state": shown, "origin": _FACADES[self.version], "is_package": True}
        return ModuleSpec(fullname, self, **state)

    def _find_shown(self, fullname: str) -> object:
        """What the module of that name shows; AttributeError if there is none."""
        path = fullname.split(".")[1:]
        if path[:1] in (["python"], ["core"]):
            return private_modules.module(fullname)
        shown: object = importlib.import_module(_FACADES[self.version])
        for name in path:
            shown = getattr(shown, name)
        if not hasattr(shown, "__name__") or isinstance(shown, type) or callable(shown):
            raise AttributeError(f"{fullname} is no module, but a name of one.")
        return shown

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return View(spec.name, spec.loader_state)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a view has no code."""


def _importer_of() -> tuple[str, bool]:
    """The module that imports, and whether it only asks, by `importlib.util.find_spec`."""
    frame, only_asks = sys._getframe(2), False
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith("importlib"):
            return name, only_asks
        only_asks = only_asks or frame.f_code is importlib.util.find_spec.__code__
        frame = frame.f_back
    return "", only_asks
