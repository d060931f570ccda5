"""Disks that are full, read-only or limited: a save says so, and what was there is intact."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import without_torch

SAVE = """
import json, os, resource
from thalweg.errors import ThalwegError
from thalweg._formats import container, atomic_write as disk
from thalweg._formats.stored_tensor import StoredTensor

path, size, limits, user = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4])

def save(size):
    container.write(path, {"w": StoredTensor("U8", (size,), memoryview(bytes(size)))}, {})

from thalweg._formats import checksum
checksum._SMALL = 10**9  # NumPy and LLVM are not there
if not os.path.exists(path):
    save(100)
before = open(path, "rb").read()
for prepare in json.loads(sys.argv[5]):
    os.chmod(os.path.dirname(path), prepare)
if user:
    os.setgid(user)
    os.setuid(user)
for name, most in limits.items():
    number = getattr(resource, "RLIMIT_" + name)
    resource.setrlimit(number, (most, resource.getrlimit(number)[1]))
try:
    save(size)
    said = "saved"
except ThalwegError as error:
    said = [type(error).__name__, error.errno, str(error)]
for name in limits:
    number = getattr(resource, "RLIMIT_" + name)
    resource.setrlimit(number, (resource.getrlimit(number)[1],) * 2)
left = [each for each in os.listdir(os.path.dirname(path)) if each.endswith(".tmp")]
print(json.dumps([said, open(path, "rb").read() == before, left]))
"""
NOBODY = 65534
SIZE = 1 << 21


@dataclass(frozen=True)
class Case:
    """A disk.

    Attributes:
        title: What is wrong with it.
        says: What the error says.
        limit: A limit of the process.
        mode: The permissions of the folder, for a user that is not root.
        mount: How a file system of its own is mounted there, if it is.
        once: Whether that is made read-only after a first save.
    """

    title: str
    says: str
    limit: tuple[str, int] | None = None
    mode: int | None = None
    mount: str = ""
    once: bool = False


NONE, INTACT = "after 0.0 of 2.1 MB; ", "the previous checkpoint is intact."
CASES = (
    Case("files of at most 0 bytes", f"File too large {NONE}{INTACT}", limit=("FSIZE", 0)),
    Case("files of at most 1,000 bytes", f"File too large {NONE}{INTACT}", limit=("FSIZE", 1000)),
    Case("files of at most 1.5 MB", "File too large after 1.5 of 2.1", limit=("FSIZE", 1_500_000)),
    Case("no more open files", f"Too many open files {NONE}", limit=("NOFILE", 3)),
    Case("a folder that is read-only", f"Permission denied {NONE}{INTACT}", mode=0o555),
    Case("a disk of 1 MB", r"No space left on device after [01]\.\d of 2.1 MB", mount="size=1m"),
    Case("no more names", f"No space left on device {NONE}{INTACT}", mount="nr_inodes=2"),
    Case("a disk that is read-only", f"Read-only file system {NONE}", mount="size=9m", once=True),
)


def outcome(case: Case) -> str:
    """Save to a failing disk; return "intact", "unavailable", or the failure."""
    root = Path(tempfile.mkdtemp())
    try:
        root.chmod(0o755)
        return _outcome(case, root)
    finally:
        if (root / "disk").exists():
            (root / "disk").chmod(0o755)
        shutil.rmtree(root, ignore_errors=True)


def _outcome(case: Case, root: Path) -> str:
    folder = root / "disk"
    folder.mkdir()
    path = str(folder / "ckpt")
    is_root = not os.geteuid()
    user = NOBODY if case.mode is not None and is_root else 0
    modes = json.dumps([] if case.mode is None else [case.mode])
    limits = dict([case.limit]) if case.limit else {}
    arguments = [path, str(SIZE), json.dumps(limits), str(user), modes]
    command = without_torch.command(SAVE, *arguments)
    if case.mount and not can_mount():
        return "unavailable"
    if case.mount:
        command = _mounted(case, folder, command)
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        return f"exit {process.returncode}: {process.stderr[-300:]}"
    error_lines, is_intact, leftovers = json.loads(process.stdout)
    if not isinstance(error_lines, list) or error_lines[0] != "CheckpointWriteError":
        return f"it said {error_lines}"
    if not re.match(re.escape(path) + ": " + case.says, error_lines[2]):
        return f"the message is {error_lines[2]!r}"
    return "intact" if is_intact and not leftovers else f"intact: {is_intact}, left: {leftovers}"


def _mounted(case: Case, folder: Path, command: list[str]) -> list[str]:
    """Return the command in a file system of its own."""
    script = f'mount -t tmpfs -o {case.mount} none "$0"; '
    if case.once:
        script += '"$@" > /dev/null; mount -o remount,ro "$0"; '
    return [*_apart(), "sh", "-ec", f'{script} exec "$@"', str(folder), *command]


def _apart() -> list[str]:
    return ["unshare", "--mount", *(["--user", "--map-root-user"] if os.geteuid() else [])]


@functools.cache
def can_mount() -> bool:
    """Return whether this user may mount a file system for one command."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*_apart(), "mount", "-t", "tmpfs", "none", folder]
        try:
            return not subprocess.run(command, capture_output=True, check=False).returncode
        except FileNotFoundError:
            return False


def cases() -> Iterator[tuple[str, str]]:
    for case in CASES:
        yield case.title, outcome(case)
