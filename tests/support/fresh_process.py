"""Processes that begin with what takes seconds to import, and with nothing of thalweg.

A server that has imported torch and its compiler forks them, where that is possible.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from busy import read_load, scale_to_load

_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
context: Any = multiprocessing.get_context(_METHOD)
if _METHOD == "forkserver":
    context.set_forkserver_preload(["torch", "torch._dynamo"])


@cache
def _bytecode() -> tempfile.TemporaryDirectory[str]:
    """Return a folder of compiled Python that the processes of this test run share."""
    return tempfile.TemporaryDirectory(prefix="thalweg-bytecode-")


class Fresh:
    """A program in a process of its own; ends with the `with` block.

    Args:
        program: Its text, the path of a script, or the name of a module after "-m ".
        arguments: What it finds in `sys.argv`.
        environment: What is added to the environment of this process.
    """

    def __init__(self, program: str | Path, *arguments: str, **environment: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._outputs = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        environ = {**os.environ, **environment}
        self._process = context.Process(
            target=_main, args=(program, arguments, environ, self._outputs, _bytecode().name)
        )
        self._process.start()

    def __enter__(self) -> Fresh:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self._folder.cleanup()

    def done(self, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Return the outcome of the process; wait for its end.

        Args:
            timeout: The limit in seconds on an idle machine; a busy one has more.

        Raises:
            TimeoutError: If the process has not ended by then.
        """
        start = time.monotonic()
        while self._process.exitcode is None and time.monotonic() - start < scale_to_load(timeout):
            self._process.join(min(1.0, timeout))
        texts = [path.read_text() if path.exists() else "" for path in self._outputs]
        if self._process.exitcode is None:
            raise TimeoutError(
                f"A process had not ended after {time.monotonic() - start:.0f} s,"
                f" at a load of {read_load():.1f} on {os.cpu_count()} processors."
                f" Its output: {''.join(texts) or 'none'}"
            )
        return subprocess.CompletedProcess([], self._process.exitcode, *texts)


def run(
    program: str | Path, *arguments: str, timeout: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; the arguments are those of `Fresh`."""
    with Fresh(program, *arguments, **environment) as process:
        return process.done(timeout)


def _main(
    program: str | Path,
    arguments: tuple[str, ...],
    environment: Mapping[str, str],
    outputs: Any,
    bytecode: str,
) -> None:
    for number, path in enumerate(outputs, start=1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    sys.dont_write_bytecode, sys.pycache_prefix = False, bytecode
    sys.argv[:] = [str(program), *arguments]
    if isinstance(program, Path):
        runpy.run_path(str(program), run_name="__main__")
    elif program.startswith("-m "):
        runpy.run_module(program.removeprefix("-m "), run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), vars(sys.modules["__main__"]))
