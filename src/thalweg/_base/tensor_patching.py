"""TensorFlow's names on torch's own classes: lent to a program that wants them, and taken back.

`thalweg.tf` wants them, and so does a program that builds a graph; any other asks for them by
`lend_names`. All threads share torch's classes, and so what is lent.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from thalweg._base.locks import Lock
from thalweg._base.tensorflow_names import NAMES, OVER_TORCHS

_NOTHING = object()
# CPython's flag Py_TPFLAGS_HEAPTYPE, of classes that Python code makes.
_HEAP_TYPE = 1 << 9


class _Borrower:
    """Who wants the names, until it says that it has done with them."""

    is_done = False


_PROGRAM = _Borrower()
_lock = Lock()
_borrowers: set[_Borrower] = set()
_before: dict[tuple[type, str], object] = {}  # what the classes themselves had where a name is lent
# Names that replace torch's own as long as any are lent: those of `thalweg.tf`, if it is imported.
_replacements: list[tuple[type, str, Any]] = []


def lend_names() -> ExitStack:
    """Give torch's classes the names of TensorFlow that they lack.

    An optimizer written for TensorFlow says `grad.dtype.base_dtype`, `grad.get_shape().as_list()`
    and `var.assign_sub(...)` of whatever its hooks are given, and those are torch's tensors and a
    module's parameters. A name that torch has stays torch's, but for `Parameter.name`, a
    `Parameter.scatter_add` of slices and, where `thalweg.tf` is imported, `Tensor.__eq__` beside an
    array. Importing `thalweg.tf` and building a graph of `thalweg.v1` lend the names, too.

    Returns:
        What ends it: in a `with` statement at the end of the block, else by its `close`. The names
        stay as long as anybody else wants them.

    Example:
        >>> import torch
        >>> with lend_names():
        ...     print(torch.zeros(2, 3).get_shape().as_list())
        [2, 3]
    """
    borrower, lent = _Borrower(), ExitStack()
    lent.callback(_end, borrower)
    _lend(borrower)
    return lent


def lend_for_good(replacements: Sequence[tuple[type, str, Any]] = ()) -> None:
    """Lend the names to the whole program.

    Args:
        replacements: Further names (class, name, value), lent even where torch has them.
    """
    if _PROGRAM not in _borrowers or replacements:
        _replacements.extend(replacements)
        _lend(_PROGRAM)


def take_back_names() -> ExitStack:
    """Take the names back from all that wanted them: torch's classes are as they were before.

    What somebody else has put in the place of a name meanwhile stays there.

    Returns:
        What lends them again, to those who had them and still want them: in a `with` statement at
        the end of the block, else by its `close`.

    Example:
        >>> import torch
        >>> with take_back_names():
        ...     print(hasattr(torch.float32, "base_dtype"))
        False
    """
    returned = ExitStack()
    with _lock:
        returned.callback(_lend, *_borrowers)
        _borrowers.clear()
        _take_back()
    return returned


def hint(error: AttributeError) -> list[str]:
    """Return advice for a missing name of TensorFlow that has not been lent, in a list; else []."""
    missing = any(isinstance(error.obj, cls) and error.name in names for cls, names in NAMES)
    return [f"thalweg.lend_names() gives torch's classes TensorFlow's '{error.name}'."] * missing


def _lend(*borrowers: _Borrower) -> None:
    with _lock:
        _borrowers.update(each for each in borrowers if not each.is_done)
        if _borrowers:
            for cls, name, value in _names():
                own = vars(cls).get(name, _NOTHING)
                is_over = (cls, name) in OVER_TORCHS or (cls, name, value) in _replacements
                if own is not value and (is_over or not hasattr(cls, name)):
                    _before[cls, name] = own
                    _put(cls, name, value)


def _end(borrower: _Borrower) -> None:
    with _lock:
        borrower.is_done = True
        _borrowers.discard(borrower)
        if not _borrowers:
            _take_back()


def _take_back() -> None:
    for cls, name, value in _names():
        if (cls, name) in _before and vars(cls).get(name) is value:
            _put(cls, name, _before[cls, name])
        _before.pop((cls, name), None)


def _names() -> list[tuple[type, str, Any]]:
    own = [(cls, name, value) for cls, names in NAMES for name, value in names.items()]
    return [*own, *_replacements]


def _put(cls: type, name: str, value: object) -> None:
    """Set an attribute of a class, or delete it, also of a class in C, which takes none.

    CPython lets attributes into the dictionary behind a class in C, and has to be told to forget
    what it looked up before. Operators of other classes need an assignment, which sets their slot.
    """
    if cls.__flags__ & _HEAP_TYPE:
        delattr(cls, name) if value is _NOTHING else setattr(cls, name, value)
        return
    (own,) = (each for each in gc.get_referents(vars(cls)) if type(each) is dict)
    if value is _NOTHING:
        del own[name]
    else:
        own[name] = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))
