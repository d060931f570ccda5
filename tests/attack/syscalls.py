"""Every system call of a save, killed or failed in turn by strace, in a process without torch."""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import without_torch
from thalweg._formats import atomic_write
from thalweg.errors import CheckpointWriteError

STRACE = ("strace", "-f", "-e", "trace=%file,%desc,getrandom,kill")
FAULTS = ("KILL", "ENOSPC", "EIO", "EINTR")
HARMLESS = {"mmap", "munmap"}  # of memory
ESSENTIAL = {"write", "fsync", "rename", "renameat", "renameat2", "lseek"}
SAVE = """
import json, os
from thalweg.errors import ThalwegError
from thalweg._formats import container
from thalweg._formats.stored_tensor import StoredTensor

def save(path, fill):
    tensors = {
        str(size): StoredTensor("U8", (size,), memoryview(bytes([fill]) * size))
        for size in (700, 1400, 2100)
    }
    container.write(path, tensors, {"fill": fill})

if len(sys.argv) > 1 and sys.argv[1] == "in place":
    from thalweg._formats import atomic_write as disk

    def in_place(path, parts, total, progress=None, *, reserved=0, make_head=None):
        with open(path, "wb", buffering=0) as file:
            file.seek(reserved)
            for part in parts:
                file.write(part)
            file.seek(0)
            file.write(make_head())

    disk.replace = in_place
    del sys.argv[1]
save("other/ckpt", 1)  # from here on all modules are there
if len(sys.argv) > 1:
    save(sys.argv[1], int(sys.argv[2]))
    sys.exit()
os.access("begin", 0)
try:
    save("here/ckpt", 2)
    said = "returned"
except ThalwegError as error:
    said = [type(error).__name__, error.errno, str(error)]
os.access("end", 0)
print(json.dumps(said))
"""
DEAD = 999_999_999  # above all numbers of processes that Linux gives


@dataclass(frozen=True)
class Call:
    """A system call of the save: its name, and which one of that name it is."""

    name: str
    number: int


@functools.cache
def unavailable() -> str:
    """Return the reason why strace cannot run here, or ""."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    process = subprocess.run(
        [*STRACE, "-o", os.devnull, "true"], capture_output=True, text=True, check=False
    )
    return f"strace cannot trace here: {process.stderr.strip()[:200]}" if process.returncode else ""


class Place:
    """A folder in which a process saves; use it in a `with` block.

    Args:
        in_place: Whether it writes files in place, which must be noticed.
    """

    def __init__(self, in_place: bool = False) -> None:
        self._arguments = ["in place"] if in_place else []
        self.root = Path(tempfile.mkdtemp())
        self.path = self.root / "here" / "ckpt"

    def __enter__(self) -> Place:
        (self.root / "here").mkdir()
        (self.root / "other").mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def left(self) -> list[str]:
        """Return the names of other files in the folder."""
        return sorted(name for name in os.listdir(self.path.parent) if name != "ckpt")

    def reset(self, content: bytes) -> None:
        """Put the old file there, and what a crashed writer left."""
        shutil.rmtree(self.path.parent)
        self.path.parent.mkdir()
        self.path.write_bytes(content)
        (self.path.parent / f".ckpt.{DEAD}-{'0' * 16}.tmp").write_bytes(b"half")

    def run(self, *options: str) -> tuple[Any, list[str]]:
        """Save under strace: what the process said, and the trace."""
        trace = self.root / "trace"
        command = [
            *STRACE,
            "-o",
            str(trace),
            *options,
            *without_torch.command(SAVE, *self._arguments),
        ]
        process = subprocess.run(
            command, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
        )
        answer = json.loads(process.stdout) if process.stdout else None
        lines = trace.read_text(errors="replace").splitlines()
        return answer, [line.lstrip("0123456789 ") for line in lines]

    def made(self, fill: int) -> bytes:
        target = self.root / "made"
        command = without_torch.command(SAVE, str(target), str(fill))
        subprocess.run(command, cwd=self.root, check=True)
        content = target.read_bytes()
        target.unlink()
        return content


def calls(trace: list[str]) -> list[Call]:
    """Return the system calls between the two marks of a trace."""
    calls_found: list[Call] = []
    counts: Counter[str] = Counter()
    has_begun = False
    for line in trace:
        name = line.partition("(")[0]
        if not re.fullmatch(r"[a-z0-9_]+", name):
            continue
        counts[name] += 1
        if line.startswith('access("end"'):
            return calls_found
        if has_begun and name not in HARMLESS:
            calls_found.append(Call(name, counts[name]))
        has_begun = has_begun or line.startswith('access("begin"')
    return calls_found


def tried(place: Place, call: Call, fault: str, old: bytes, new: bytes) -> str:
    """Save with one fault; return "old", "new", or the failure."""
    place.reset(old)
    action = "signal=KILL" if fault == "KILL" else f"error={fault}"
    answer, trace = place.run("-e", f"inject={call.name}:{action}:when={call.number}")
    if not any(line.startswith('access("begin"') for line in trace):
        return "the fault came too early"
    content, leftovers = place.path.read_bytes(), place.left()
    if content not in (old, new):
        return f"a broken file of {len(content)} bytes"
    wrong = (
        _of_killed(content == new, trace)
        if fault == "KILL"
        else _of_failed(call, fault, answer, content == new, leftovers)
    )
    atomic_write.replace(place.path, [b"next"], 4)
    if place.path.read_bytes() != b"next" or place.left():
        return f"the next save left {place.left()}"
    return wrong or ("new" if content == new else "old")


def _of_killed(is_new: bool, trace: list[str]) -> str:
    if "+++ killed by SIGKILL +++" not in trace:
        return "the process was not killed"
    is_renamed = any(re.match(r'rename.*here/ckpt"\) += 0$', line) for line in trace)
    return "" if is_renamed == is_new else f"the file is {'new' if is_new else 'old'}"


def _of_failed(call: Call, fault: str, answer: Any, is_new: bool, leftovers: list[str]) -> str:
    temporary = f".ckpt.{DEAD}-{'0' * 16}.tmp"  # what could not be looked at or deleted may stay
    if set(leftovers) - {temporary}:
        return f"{leftovers} were left"
    if answer == "returned":
        if call.name in ESSENTIAL and fault != "EINTR":
            return "the failure was not noticed"
        return "" if is_new else "the old file after all was done"
    if fault == "EINTR":
        return f"an interruption ended it: {answer}"
    old = "the previous checkpoint is intact|nothing was saved"
    state = "the new checkpoint is in its place" if is_new else old
    number = getattr(errno, fault)
    text = f"here/ckpt: {os.strerror(number)} after [0-9.]+ of 0.0 MB; ({state})"
    if not isinstance(answer, list) or answer[:2] != [CheckpointWriteError.__name__, number]:
        return f"it said {answer}"
    return "" if re.match(text, answer[2]) else f"the message is {answer[2]!r}"


def cases(place: Place, expected: Callable[[Call], bool]) -> Iterator[tuple[str, str]]:
    """Try each fault at each system call that is wanted; yields titles and outcomes."""
    old, new = place.made(1), place.made(2)
    place.reset(old)
    _, trace = place.run()
    for call in calls(trace):
        for fault in FAULTS:
            if expected(call):
                title = f"{fault} at {call.name} {call.number}"
                yield title, tried(place, call, fault, old, new)
