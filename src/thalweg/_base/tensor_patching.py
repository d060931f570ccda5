"""TensorFlow's names on torch's own classes, added and removed at run time.

`thalweg.tf` and graphs add the names; other programs call `lend_names`. All threads share torch's
classes, and so the names.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from thalweg._base.locks import Lock
from thalweg._base.tensorflow_names import NAMES, OVER_TORCHS

_MISSING = object()
# CPython's flag Py_TPFLAGS_HEAPTYPE, of classes that Python code makes.
_HEAP_TYPE = 1 << 9


class _Patch:
    """Request for TensorFlow's names. The classes have the names while a request is active."""

    is_finished = False


_PROGRAM_PATCH = _Patch()
_lock = Lock()
_patches: set[_Patch] = set()
# The previous attributes of the classes, or `_MISSING`.
_replaced_values: dict[tuple[type, str], object] = {}
# Names that replace torch's own as long as any are lent: those of `thalweg.tf`, if it is imported.
_replacements: list[tuple[type, str, Any]] = []


def lend_names() -> ExitStack:
    """Add TensorFlow's names that torch's classes lack.

    Hooks of an optimizer for TensorFlow call `grad.get_shape().as_list()` or `var.assign_sub(...)`
    on torch's tensors and parameters. The behaviour of torch's attributes changes in three cases:
    `Parameter.name`, `Parameter.scatter_add` with IndexedSlices and, after an import of
    `thalweg.tf`, `Tensor.__eq__` with an array. An import of `thalweg.tf`, or a graph of
    `thalweg.v1`, also adds the names.

    Returns:
        A context manager. Its end, or `close`, removes the names, unless another context manager
        or `thalweg.tf` needs them.

    Example:
        >>> import torch
        >>> with lend_names():
        ...     print(torch.zeros(2, 3).get_shape().as_list())
        [2, 3]
    """
    patch, stack = _Patch(), ExitStack()
    stack.callback(_end_patch, patch)
    _apply_patches(patch)
    return stack


def lend_for_good(replacements: Sequence[tuple[type, str, Any]] = ()) -> None:
    """Add the names for the whole program.

    Args:
        replacements: Further names (class, name, value), which replace torch's attributes.
    """
    if _PROGRAM_PATCH not in _patches or replacements:
        _replacements.extend(replacements)
        _apply_patches(_PROGRAM_PATCH)


def take_back_names() -> ExitStack:
    """Remove TensorFlow's names from torch's classes, whatever code added them.

    An attribute stays if other code has replaced its value.

    Returns:
        A context manager. Its end, or `close`, adds the names again if they are still needed.

    Example:
        >>> import torch
        >>> with take_back_names():
        ...     print(hasattr(torch.float32, "base_dtype"))
        False
    """
    stack = ExitStack()
    with _lock:
        stack.callback(_apply_patches, *_patches)
        _patches.clear()
        _remove_patches()
    return stack


def hint(error: AttributeError) -> list[str]:
    """Return advice about a missing TensorFlow name, in a list; else an empty list."""
    missing = any(isinstance(error.obj, cls) and error.name in names for cls, names in NAMES)
    return [f"thalweg.lend_names() gives torch's classes TensorFlow's '{error.name}'."] * missing


def _apply_patches(*patches: _Patch) -> None:
    """Activate requests that are not finished; add the names if any request is then active."""
    with _lock:
        _patches.update(patch for patch in patches if not patch.is_finished)
        if _patches:
            for cls, name, value in _patch_entries():
                current = vars(cls).get(name, _MISSING)
                replaces = (cls, name) in OVER_TORCHS or (cls, name, value) in _replacements
                if current is not value and (replaces or not hasattr(cls, name)):
                    _replaced_values[cls, name] = current
                    _set_attribute(cls, name, value)


def _end_patch(patch: _Patch) -> None:
    """Finish a request. If no request is active now, restore torch's classes."""
    with _lock:
        patch.is_finished = True
        _patches.discard(patch)
        if not _patches:
            _remove_patches()


def _remove_patches() -> None:
    for cls, name, value in _patch_entries():
        if (cls, name) in _replaced_values and vars(cls).get(name) is value:
            _set_attribute(cls, name, _replaced_values[cls, name])
        _replaced_values.pop((cls, name), None)


def _patch_entries() -> list[tuple[type, str, Any]]:
    entries = [(cls, name, value) for cls, names in NAMES for name, value in names.items()]
    return [*entries, *_replacements]


def _set_attribute(cls: type, name: str, value: object) -> None:
    """Set an attribute of a class, or delete it if `value` is `_MISSING`.

    For a class in C, change its dict and invalidate CPython's lookup cache.
    """
    if cls.__flags__ & _HEAP_TYPE:
        delattr(cls, name) if value is _MISSING else setattr(cls, name, value)
        return
    # `vars` of a class in C is a read-only proxy; the garbage collector knows the dict behind it.
    (class_dict,) = (referent for referent in gc.get_referents(vars(cls)) if type(referent) is dict)  # pyright: ignore
    if value is _MISSING:
        del class_dict[name]
    else:
        class_dict[name] = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))
