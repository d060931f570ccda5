"""Import of optimizer classes of other packages by `PACKAGE:CLASS`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from types import ModuleType
from typing import Any

from thalweg.conform.candidate import Candidate, ConformError
from thalweg.errors import did_you_mean


def load_class(name: str) -> tuple[Candidate, str]:
    """Import `PACKAGE:CLASS` or `file.py:CLASS`; return (candidate, note).

    The note is usually "". If the top-level package needs a module that is not installed, only the
    module of the class is imported. The note then says so, and `sys.modules` keeps an empty module
    as the top-level package. Raise ConformError if the import fails or the class is missing.
    """
    if ".py:" in name:
        from thalweg._cli.race.entry import load as load_file
        from thalweg._cli.race.errors import EntryError, RaceError

        try:
            return _as_optimizer(load_file(name), name), ""
        except (EntryError, RaceError) as error:
            raise ConformError(str(error)) from error
    package, colon, class_name = name.partition(":")
    if not (package and colon and class_name):
        raise ConformError(f"'{name}' is not PACKAGE:CLASS, such as torch.optim:Adam.")
    module, note = _import_module(package)
    candidate: Any = getattr(module, class_name, None)
    if candidate is None:
        classes = [key for key, attribute in vars(module).items() if inspect.isclass(attribute)]
        raise ConformError(
            f"'{package}' has no '{class_name}'. {did_you_mean(class_name, classes)}".rstrip()
        )
    return _as_optimizer(candidate, name), note


def _import_module(package: str) -> tuple[ModuleType, str]:
    """Import the module `package`; return (module, note) as `load_class` does.

    Raise ConformError if the import fails.
    """
    try:
        return importlib.import_module(package), ""
    except ModuleNotFoundError as error:
        missing = error.name or ""
    except (Exception, SystemExit) as error:
        raise ConformError(_describe_failure(package, error)) from error
    text = f"'{package}' needs '{missing}', which is not installed"
    top = package.partition(".")[0]
    if top != package and not _is_within(missing, package):
        try:
            return _import_alone(package, top), f"imported without {top} itself, for {text}"
        except ModuleNotFoundError as error:
            if error.name != missing:
                missing = error.name or ""
        except (Exception, SystemExit) as error:
            raise ConformError(_describe_failure(package, error)) from error
    if _is_within(missing, package):
        raise ConformError(f"there is no module '{missing}' here.")
    raise ConformError(f"{text}.")


def _is_within(missing: str, package: str) -> bool:
    """Return True if the missing module is a package or one of its parents."""
    return package == missing or package.startswith(f"{missing}.")


def _describe_failure(package: str, error: BaseException) -> str:
    """Return a message about a failed import."""
    return f"'{package}' failed while it was imported: {type(error).__name__}: {error}"


# Names that a module imports from siblings, replaced by None in an import without the parent.
_SIBLINGS = {"timm.optim": {"timm.models": ("group_parameters",)}}


def _import_alone(package: str, top: str) -> ModuleType:
    """Return the module `package`, imported with an empty module `top` as its top-level parent.

    The empty parent stays in `sys.modules`. If the import fails, `sys.modules` is restored.
    """
    # The parent package needs what is not installed, but not all of its modules do.
    names = [name for name in sys.modules if _is_within(top, name)]
    saved_modules = {name: sys.modules.pop(name) for name in names}
    # The search path of the parent makes its modules importable without its `__init__`.
    spec = importlib.util.find_spec(top)
    parent = ModuleType(top)
    parent.__path__ = list((spec and spec.submodule_search_locations) or [])
    sys.modules[top] = parent
    for sibling, names in _SIBLINGS.get(package, {}).items():
        sys.modules[sibling] = ModuleType(sibling)
        vars(sys.modules[sibling]).update(dict.fromkeys(names))
    try:
        return importlib.import_module(package)
    except BaseException:
        for name in [name for name in sys.modules if _is_within(top, name)]:
            del sys.modules[name]
        sys.modules.update(saved_modules)
        raise


def _as_optimizer(candidate: object, name: str) -> Candidate:
    """Return the candidate of a class; raise ConformError unless it is an optimizer."""
    class_name = name.rpartition(":")[2]
    if not inspect.isclass(candidate):
        raise ConformError(f"'{name}' is {_with_article(type(candidate).__name__)}, not a class.")
    if not callable(getattr(candidate, "step", None)):
        raise ConformError(f"'{name}' is not an optimizer class: it has no step.")
    return Candidate(candidate, class_name)


def _with_article(word: str) -> str:
    """Return a word with "a" or "an"."""
    return f"{'an' if word[0].lower() in 'aeiou' else 'a'} {word}"
