"""Replacement of the flags that absl's own modules define by flags that the program defines.

Early releases of TensorFlow 1 parsed flags without absl, so that a script could define `log_dir`,
`verbosity` or `profile_file`. absl.logging and absl.app define flags of these names. Such a flag is
taken out of `absl.flags.FLAGS` when the program defines its own. The absl modules go on reading
theirs, with its default value.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


def absl(module: str) -> ModuleType:
    """Return the module `absl.flags` or `absl.app`, for `module` "flags" or "app".

    Raise ImportError if absl-py is not installed.
    """
    try:
        return importlib.import_module(f"absl.{module}")
    except ModuleNotFoundError as error:
        message = f"tf.{module} needs absl-py. Install it with: pip install 'thalweg[tf]'"
        raise ImportError(message, name="absl") from error


class _LibraryFlags:
    """Replacement of `absl.flags.FLAGS` in absl's modules, with the flags of `remove_absl_flag`."""

    def __init__(self) -> None:
        self.program_flags: dict[str, Any]
        vars(self)["program_flags"] = {}

    def __getitem__(self, name: str) -> Any:
        return self.program_flags[name] if name in self.program_flags else absl("flags").FLAGS[name]

    def __getattr__(self, name: str) -> Any:
        if name in self.program_flags:
            return self.program_flags[name].value
        return getattr(absl("flags").FLAGS, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.program_flags:
            self.program_flags[name].value = value
        else:
            setattr(absl("flags").FLAGS, name, value)

    def __call__(self, argv: list[str], known_only: bool = False) -> list[str]:
        return absl("flags").FLAGS(argv, known_only)


_library_flags = _LibraryFlags()


def remove_absl_flag(name: str) -> None:
    """Remove a flag of an absl module from `absl.flags.FLAGS`; absl still reads the removed flag.

    Do nothing if no absl module defines flag `name`.
    """
    app, flags = absl("app"), absl("flags")
    if name.startswith("help"):
        # absl defines these flags as late as in app.run.
        app.define_help_flags()
    module = flags.FLAGS.find_module_defining_flag(name) or ""
    if not module.startswith("absl."):
        return
    _library_flags.program_flags[name] = flags.FLAGS[name]
    delattr(flags.FLAGS, name)
    for reader in {"absl.app", "absl.logging", module} & sys.modules.keys():
        attributes = vars(sys.modules[reader])
        if attributes.get("FLAGS") is flags.FLAGS:
            attributes["FLAGS"] = _library_flags
        for holder in attributes.values():
            if isinstance(holder, flags.FlagHolder) and holder.name == name:
                holder._flagvalues = _library_flags
