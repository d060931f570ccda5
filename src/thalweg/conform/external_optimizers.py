"""An optimizer class of any package, by `PACKAGE:CLASS`; the package is imported, that is run."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from types import ModuleType
from typing import Any

from thalweg.conform.candidate import Candidate
from thalweg.conform.errors import ConformError
from thalweg.errors import did_you_mean


def load_class(name: str) -> tuple[Candidate, str]:
    """Return the class that `PACKAGE:CLASS` or `file.py:CLASS` names; what was left out to import
    it.

    A package of optimizers whose parents need what is not installed is imported without them: see
    `_import_alone`, which is for a process of its own.

    Raises:
        ConformError: There is no such module, it fails while it is imported, or it has no class of
            that name which takes steps.
    """
    if ".py:" in name:
        from thalweg._cli.race.entry import load as load_file
        from thalweg._cli.race.errors import EntryError, RaceError

        try:
            return _as_optimizer(load_file(name), name), ""
        except (EntryError, RaceError) as error:
            raise ConformError(str(error)) from error
    package, colon, cls = name.partition(":")
    if not (package and colon and cls):
        raise ConformError(f"'{name}' is not PACKAGE:CLASS, such as torch.optim:Adam.")
    module, left_out = _import_module(package)
    found: Any = getattr(module, cls, None)
    if found is None:
        raise ConformError(
            f"'{package}' has no '{cls}'. {did_you_mean(cls, _list_classes(module))}".rstrip()
        )
    return _as_optimizer(found, name), left_out


def _import_module(package: str) -> tuple[ModuleType, str]:
    try:
        return importlib.import_module(package), ""
    except ModuleNotFoundError as error:
        missing = error.name or ""
    except (Exception, SystemExit) as error:
        raise ConformError(_describe_failure(package, error)) from error
    told = f"'{package}' needs '{missing}', which is not installed"
    top = package.partition(".")[0]
    if top != package and not _is_within(missing, package):
        try:
            return _import_alone(package, top), f"imported without {top} itself, for {told}"
        except ModuleNotFoundError as error:
            if error.name != missing:
                missing = error.name or ""
        except (Exception, SystemExit) as error:
            raise ConformError(_describe_failure(package, error)) from error
    if _is_within(missing, package):
        raise ConformError(f"there is no module '{missing}' here.")
    raise ConformError(f"{told}.")


def _is_within(missing: str, package: str) -> bool:
    return package == missing or package.startswith(f"{missing}.")


def _describe_failure(package: str, error: BaseException) -> str:
    return f"'{package}' failed while it was imported: {type(error).__name__}: {error}"


# What modules take from siblings that an import without their parents lacks.
_SIBLINGS = {"timm.optim": {"timm.models": ("group_parameters",)}}


def _import_alone(package: str, top: str) -> ModuleType:
    """The module, with empty ones in place of its parent, which stay: it may import more later."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_within(top, name)}
    spec = importlib.util.find_spec(top)
    bare = ModuleType(top)
    bare.__path__ = list((spec and spec.submodule_search_locations) or [])
    sys.modules[top] = bare
    for sibling, names in _SIBLINGS.get(package, {}).items():
        sys.modules[sibling] = ModuleType(sibling)
        vars(sys.modules[sibling]).update(dict.fromkeys(names))
    try:
        return importlib.import_module(package)
    except BaseException:
        for name in [name for name in sys.modules if _is_within(top, name)]:
            del sys.modules[name]
        sys.modules.update(before)
        raise


def _as_optimizer(thing: object, name: str) -> Candidate:
    title = name.rpartition(":")[2]
    if not inspect.isclass(thing):
        raise ConformError(f"'{name}' is {_with_article(type(thing).__name__)}, not a class.")
    if not callable(getattr(thing, "step", None)):
        raise ConformError(f"'{name}' is no optimizer class: it has no step.")
    return Candidate(thing, title)


def _with_article(word: str) -> str:
    return f"{'an' if word[0].lower() in 'aeiou' else 'a'} {word}"


def _list_classes(module: ModuleType) -> list[str]:
    return [name for name, each in vars(module).items() if inspect.isclass(each)]
