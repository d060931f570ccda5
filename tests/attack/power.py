"""Power that fails: what may be on a disk after it, by the log of what was asked of the system.

Of what was not yet forced to the disk any part may be there: any of the writes, the last of them up
to any of its sectors, and any of the changes of names. What was forced is there.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from thalweg._formats import atomic_write, syscalls

SECTOR = 512
Content = bytes | None  # None: there is no file


@dataclass(frozen=True)
class Op:
    """One thing that was asked for.

    Attributes:
        kind: "make", "write", "sync", "rename" or "unlink".
        path: The file or folder.
        to: The new name.
        begin: Where in the file `data` go.
        data: What is written.
    """

    kind: str
    path: str
    to: str = ""
    begin: int = 0
    data: bytes = b""


class Recorder:
    """Stands for `os`, does what it does, and notes what matters to a disk."""

    def __init__(self) -> None:
        self.log: list[Op] = []
        self._paths: dict[int, str] = {}
        self._places: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        file = os.open(path, flags, mode)
        self._paths[file], self._places[file] = path, 0
        if flags & os.O_CREAT:
            self.log.append(Op("make", path))
        return file

    def write(self, descriptor: int, data: Any) -> int:
        count = os.write(descriptor, data)
        chunk = bytes(memoryview(data)[:count])
        self.log.append(
            Op("write", self._paths[descriptor], begin=self._places[descriptor], data=chunk)
        )
        self._places[descriptor] += count
        return count

    def lseek(self, descriptor: int, place: int, whence: int) -> int:
        self._places[descriptor] = os.lseek(descriptor, place, whence)
        return self._places[descriptor]

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)
        self.log.append(Op("sync", self._paths[descriptor]))

    def replace(self, path: str, target: str) -> None:
        os.replace(path, target)
        self.log.append(Op("rename", path, target))

    def unlink(self, path: str) -> None:
        os.unlink(path)
        self.log.append(Op("unlink", path))


def recorded(work: Callable[[], None]) -> list[Op]:
    """Return the system calls that `disk` makes during some work."""
    recorder = Recorder()
    with ExitStack() as stack:
        for module in (atomic_write, syscalls):
            stack.enter_context(patch.object(module, "os", recorder))
        work()
    return recorder.log


@dataclass
class _Disk:
    """Certain and possible contents of the disk. Files are numbered."""

    files: list[bytes]
    names: dict[str, int]
    writes: dict[int, list[Op]] = field(default_factory=dict[int, list[Op]])
    changes: list[tuple[str, int | None]] = field(default_factory=list[tuple[str, int | None]])
    now: dict[str, int] = field(default_factory=dict[str, int])

    def take(self, op: Op) -> None:
        if op.kind == "make":
            self.files.append(b"")
            self._change(op.path, len(self.files) - 1)
        elif op.kind == "write":
            self.writes.setdefault(self.now[op.path], []).append(op)
        elif op.kind == "rename":
            self._change(op.to, self.now[op.path])
            self._change(op.path, None)
        elif op.kind == "unlink":
            self._change(op.path, None)
        elif op.path in self.now:
            number = self.now[op.path]
            self.files[number] = _written(self.files[number], self.writes.pop(number, []))
        else:  # the folder
            self.names = dict(self.now)
            self.changes = []

    def _change(self, path: str, number: int | None) -> None:
        self.changes.append((path, number))
        self.now = {name: number for name, number in self.now.items() if name != path}
        if number is not None:
            self.now[path] = number

    def contents(self, path: str) -> Iterator[Content]:
        """Yield the contents of a file if the power fails now, once for each state of the disk."""
        pending = [(number, op) for number, ops in self.writes.items() for op in ops]
        for subset in _subsets(self.changes):
            number = {**self.names, **dict(subset)}.get(path)
            for subset in _subsets(pending):
                for writes in _torn(subset):
                    writes_of_file = [op for file, op in writes if file == number]
                    yield None if number is None else _written(self.files[number], writes_of_file)


def contents(log: Sequence[Op], path: Path, old: Content) -> Iterator[tuple[bool, Content]]:
    """Yield the possible contents of a file after a power failure at any time of a log.

    Args:
        log: What was asked for.
        path: The file.
        old: What it held before.

    Yields:
        Whether it failed after all was done, and the content.
    """
    for count in range(len(log) + 1):
        name = str(path)
        names = {} if old is None else {name: 0}
        disk = _Disk([old or b""], names, now=dict(names))
        for op in log[:count]:
            disk.take(op)
        for content in disk.contents(name):
            yield count == len(log), content


def _subsets(items: Sequence[Any]) -> Iterator[list[Any]]:
    for choice in itertools.product((True, False), repeat=len(items)):
        yield [item for item, is_chosen in zip(items, choice, strict=True) if is_chosen]


def _torn(writes: list[tuple[int, Op]]) -> Iterator[list[tuple[int, Op]]]:
    """Writes to files, and again with each beginning of the last one."""
    yield writes
    if writes:
        number, tail_op = writes[-1]
        for size in range(0, len(tail_op.data), SECTOR):
            part = Op("write", tail_op.path, begin=tail_op.begin, data=tail_op.data[:size])
            yield [*writes[:-1], (number, part)]


def _written(content: bytes, writes: Sequence[Op]) -> bytes:
    buffer = bytearray(content)
    for op in writes:
        if op.data and len(buffer) < op.begin:
            buffer += bytes(op.begin - len(buffer))
        buffer[op.begin : op.begin + len(op.data)] = op.data
    return bytes(buffer)
