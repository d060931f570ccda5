"""Run TensorFlow's own tests of optimizers against Thalweg, from checkouts of their sources.

    python tools/tensorflow_tests.py ~/tensorflow ~/tf-keras
    python tools/tensorflow_tests.py ~/tensorflow --only training/adam_test --report FILE

The first checkout is TensorFlow 1.15, the last release with `tensorflow/contrib`; the second is
github.com/keras-team/tf-keras. `absl-py` and `six` must be installed, TensorFlow must not. Each
file runs in a process of its own: those of Keras as TensorFlow 2, all others as TensorFlow 1.
Files about features that Thalweg does not offer are listed, but do not run; single tests about
them run, but do not count (`tensorflow_test_files.py` has both). A test that uses a name which
Thalweg does not have, mostly one that is private to TensorFlow, is "lacking".
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
import unittest
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Any

from tensorflow_test_files import FILES, get_excluded_feature
from tensorflow_test_modules import Finder

from thalweg.tf.install import install_as_tensorflow

SECONDS_PER_TEST, SECONDS_PER_FILE = 300, 3600

Outcomes = dict[str, tuple[str, str]]


class Recorder(unittest.TestResult):
    """Writes one line of JSON per outcome: the test, its outcome and a traceback or a reason."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def write(self, name: str, status: str, text: str = "") -> None:
        """Add a line to the file."""
        with open(self.path, "a") as file:
            file.write(json.dumps([name, status, text]) + "\n")

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.write(test.id(), "failed", "The process ended during the test.")
        signal.alarm(SECONDS_PER_TEST)

    def stopTest(self, test: unittest.TestCase) -> None:
        signal.alarm(0)
        super().stopTest(test)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.write(test.id(), "passed")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.write(test.id(), *describe(err[1]))

    addError = addFailure

    def addSubTest(self, test: unittest.TestCase, subtest: Any, err: Any) -> None:
        if err is not None:
            self.write(test.id(), *describe(err[1]))

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.write(test.id(), "passed")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.write(test.id(), "failed", "The test passed, and a failure was expected.")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.write(test.id(), "skipped", reason)


def describe(error: BaseException) -> tuple[str, str]:
    """Return the outcome of a test that raised, and a line about the error with its traceback.

    The outcome is "lacking" if Thalweg does not have a name that the test uses, else "failed".
    """
    is_lacking = isinstance(error, AttributeError | ImportError) and "halweg has no " in str(error)
    title = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    lines = [title, *traceback.format_exception(error)]
    return "lacking" if is_lacking else "failed", "\n".join(lines)


def raise_timeout(*args: object) -> None:
    """Raise TimeoutError, as the handler of a signal."""
    raise TimeoutError(f"The test took more than {SECONDS_PER_TEST} s.")


def run_file(path: Path, version: int, roots: list[Path], report: str) -> None:
    """Run the tests of a file in this process, with their outcomes as lines of `report`."""
    install_as_tensorflow(version)
    sys.meta_path.insert(0, Finder(roots))
    signal.signal(signal.SIGALRM, raise_timeout)
    recorder = Recorder(report)
    module = ModuleType("tests_of_tensorflow")
    sys.modules[module.__name__] = module
    try:
        exec(compile(path.read_text(), str(path), "exec"), vars(module))
    except BaseException as error:
        recorder.write("import", *describe(error))
        return
    for value in list(vars(module).values()):
        is_case = isinstance(value, type) and issubclass(value, unittest.TestCase)
        if is_case and value.__module__ == module.__name__:
            tests = unittest.defaultTestLoader.loadTestsFromTestCase(value)
            # An inherited method, which opens a session, has the name of a test.
            suite: Any = tests
            chosen = [test for test in suite if not test.id().endswith(".test_session")]
            unittest.TestSuite(chosen).run(recorder)


def run_and_exit(*args: Any) -> None:
    """Call `run_file` and end the process, without waiting for threads that tests have left."""
    run_file(*args)
    sys.stdout.flush()
    os._exit(0)


def find_files(roots: list[Path], patterns: list[str]) -> Iterator[tuple[Path, str]]:
    """Yield the files whose names match a pattern, each with its name in the checkout."""
    for root in roots:
        for path in sorted({path for pattern in FILES for path in root.glob(pattern)}):
            name = path.relative_to(root).as_posix()
            if any(fnmatch(name, f"*{pattern}*") for pattern in patterns):
                yield path, name


def run_separately(path: Path, version: int, roots: list[Path]) -> Outcomes:
    """Run a file in a process of its own; return the outcome and text of each test."""
    with tempfile.NamedTemporaryFile("r") as report:
        args = (path, version, roots, report.name)
        # A fork has imported Thalweg already.
        process = multiprocessing.get_context("fork").Process(target=run_and_exit, args=args)
        process.start()
        process.join(SECONDS_PER_FILE)
        if process.is_alive():
            process.kill()
            process.join()
        lines = [json.loads(line) for line in report]
    if process.exitcode:
        lines.append(["process", "failed", f"The process ended with {process.exitcode}."])
    return {name.partition(".")[2] or name: (outcome, text) for name, outcome, text in lines}


def show(name: str, outcomes: Outcomes) -> collections.Counter[str]:
    """Print and return the counts of a file, and print its failing tests."""
    counts = collections.Counter[str]()
    failing = list[str]()
    for test, (outcome, text) in outcomes.items():
        feature = get_excluded_feature(name, test)
        counts[f"excluded ({feature})" if feature else outcome] += 1
        if outcome in ("failed", "lacking") and not feature:
            failing.append(f"  {outcome} {test}: {text.partition(chr(10))[0][:200]}")
    print(name, ", ".join(f"{counts[outcome]} {outcome}" for outcome in sorted(counts)))
    print("\n".join(failing), end="\n" if failing else "", flush=True)
    return counts


def main() -> None:
    """Print the counts of each file and of all, and the failing tests."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--only", nargs="*", default=[""], help="parts or patterns of names")
    parser.add_argument("--report", type=Path, help="a file for all outcomes and tracebacks")
    parser.add_argument("--resume", action="store_true", help="keep the outcomes of the report")
    arguments = parser.parse_args()
    totals, report = collections.Counter[str](), dict[str, Outcomes]()
    if arguments.resume and arguments.report.exists():
        report = json.loads(arguments.report.read_text())
    for path, name in find_files(arguments.checkouts, arguments.only):
        feature = get_excluded_feature(name)
        if feature:
            print(name, f"excluded: {feature}")
            totals["excluded files"] += 1
            continue
        if name not in report:
            version = 2 if "keras" in name else 1
            report[name] = run_separately(path, version, arguments.checkouts)
        totals.update(show(name, report[name]))
        if arguments.report:
            arguments.report.write_text(json.dumps(report, indent=1))
    print(", ".join(f"{totals[outcome]} {outcome}" for outcome in sorted(totals)))


if __name__ == "__main__":
    main()
