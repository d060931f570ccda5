"""Digests of parameters and state after six steps, over optimizers, options, dtypes and layouts.

    python tools/step_digests.py --record FILE    runs all cases and writes their digests
    python tools/step_digests.py --check FILE     runs all cases and prints those that differ
    python tools/step_digests.py --check FILE --sample 90    checks as many as 90 seconds allow

The cases are a pairwise covering array: each pair of values of two factors (optimizer, option,
dtype, layout of gradients, inputs, threads) occurs in a case, if both can occur together.
Each case runs on the engines "cpu" and "reference". A case that raises has the error's class as
its digest. Inputs depend on the name of the case alone. A NaN counts as one NaN: processors
differ in its bits. Matrix products depend on torch and on the processor, so the file names both,
and a check on others is skipped. A record is written as it goes to FILE.part: an interrupted one
continues there; delete it to begin again. It ends with the cases whose engines differ.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import multiprocessing
import os
import random
import re
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

# Two threads share small tensors, too; waiting threads leave the processor to other processes.
os.environ |= {"THALWEG_TUNING": "serial=0", "OMP_WAIT_POLICY": "passive"}

import torch
from llvmlite import binding
from step_trainings import FACTORS, LIMITS, OPTIMIZERS, OPTIONS, run_training
from torch import Tensor

ENGINES = ("cpu", "reference")
PLAIN_ROWS = 2  # cases of each optimizer without an option
CASE_SECONDS = 900  # after which a process ends, with a traceback of what hangs
CHUNK = 16  # consecutive cases of a process: most are of one optimizer and share its kernels


class Case(NamedTuple):
    """A training: an optimizer with an option, and its inputs.

    Attributes:
        arguments: The index of the constructor's arguments in the table of `step_trainings`.
    """

    optimizer: str
    arguments: int
    option: str
    dtype: str
    layout: str
    inputs: str
    threads: int

    @property
    def name(self) -> str:
        """Return the name, a line of six words."""
        return " ".join([f"{self.optimizer}#{self.arguments}", *map(str, self[2:])])

    def pairs(self) -> list[tuple[tuple[int, object], ...]]:
        """Return the pairs of values of two factors, arguments apart, that the case covers."""
        return list(combinations(enumerate((self.optimizer, *self[2:])), 2))


def hash_text(text: str) -> int:
    """Return a number that depends on a text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def possible_cases(optimizer: str, option: str, arguments: int = 0) -> list[Case]:
    """Return all cases of an optimizer with an option."""
    values: dict[str, Sequence[Any]] = dict(FACTORS)
    for pattern, factor, allowed in LIMITS:
        if re.search(pattern, f"{optimizer} {option}"):
            values[factor] = [value for value in values[factor] if value in allowed.split()]
    return [Case(optimizer, arguments, option, *row) for row in product(*values.values())]


def list_cases() -> list[Case]:
    """Return the covering array, built greedily: a row for each optimizer and option."""
    covered: set[tuple[tuple[int, object], ...]] = set()
    cases: dict[Case, None] = {}
    for optimizer, variants in OPTIMIZERS.items():
        options = [*OPTIONS[optimizer.partition(".")[0]], *["plain"] * PLAIN_ROWS]
        for row, option in enumerate(options):
            possible = possible_cases(optimizer, option, row % len(variants))
            possible = [case for case in possible if case not in cases]
            random.Random(hash_text(f"{optimizer} {row}")).shuffle(possible)
            # Contiguous gradients are preferred: only their steps are replayed natively.
            possible.sort(key=lambda case: case.layout != "contiguous")
            if not possible:
                continue
            best = max(possible, key=lambda case: len(set(case.pairs()) - covered))
            covered.update(best.pairs())
            cases[best] = None
    return list(cases)


def update_digest(digest: Any, value: object) -> None:
    """Add the bits of tensors, and other values as text, to a digest."""
    if isinstance(value, Tensor) and value.is_sparse:
        update_digest(digest, [tuple(value.shape), value._indices(), value._values()])
    elif isinstance(value, Tensor):
        tensor = value.detach().as_subclass(Tensor).contiguous().resolve_conj().resolve_neg()
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        if tensor.is_floating_point():
            tensor = tensor.masked_fill(tensor.isnan(), float("nan"))
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        update_digest(digest, sorted(value.items(), key=lambda item: repr(item[0])))
    elif isinstance(value, list | tuple):
        digest.update(str(len(value)).encode())
        for item in value:
            update_digest(digest, item)
    else:
        digest.update(repr(value).encode())


def digest_on_engine(case: Case, engine: str) -> str:
    """Return the digest of a case on an engine, or the class of the error that it raises."""
    try:
        result = run_training(case, engine, random_seed=hash_text(case.name))
    except Exception as error:
        return type(error).__name__
    digest = hashlib.sha256()
    update_digest(digest, result)
    return digest.hexdigest()[:10]


def digest_case(case: Case) -> str:
    """Return the digests of a case on the engines, one word if they are equal."""
    faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
    warnings.simplefilter("ignore")
    torch.set_num_threads(case.threads)
    digests = dict.fromkeys(digest_on_engine(case, engine) for engine in ENGINES)
    faulthandler.cancel_dump_traceback_later()
    return " ".join(digests)


def digest_cases(cases: Sequence[Case], jobs: int) -> Iterator[tuple[str, str]]:
    """Yield the name and the digests of each case, computed in several processes."""
    names = [case.name for case in cases]
    if jobs == 1:
        yield from zip(names, map(digest_case, cases), strict=True)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from zip(names, pool.map(digest_case, cases, chunksize=CHUNK), strict=True)


def describe_machine() -> str:
    """Return the version of torch and the processor, which results of matrix products depend on."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__} on {binding.get_host_cpu_name()} {capability}"


def read_record(path: Path) -> tuple[str, dict[str, str]]:
    """Return the machine of a record, and its digests by name."""
    machine, *lines = path.read_text().splitlines()
    rows = [line.split(" ", 6) for line in lines]
    return machine.removeprefix("# "), {" ".join(row[:6]): row[6] for row in rows}


def print_names(title: str, names: Sequence[str]) -> None:
    """Print the number of cases and their names."""
    sys.stdout.write("\n  ".join([f"{title}: {len(names)}", *sorted(names)]) + "\n")


def write_record(path: Path, cases: Sequence[Case], jobs: int) -> None:
    """Record the digests of cases, and print those whose engines differ.

    Raises:
        ValueError: The file of an interrupted record is of another machine.
    """
    part, machine = path.with_name(f"{path.name}.part"), describe_machine()
    if not part.exists():
        part.write_text(f"# {machine}\n")
    recorded_machine, digests = read_record(part)
    if recorded_machine != machine:
        raise ValueError(f"{part} was recorded with {recorded_machine}; delete it to begin again.")
    with part.open("a") as file:
        for name, words in digest_cases([c for c in cases if c.name not in digests], jobs):
            digests[name] = words
            file.write(f"{name} {words}\n")
            file.flush()
    part.replace(path)
    print_names("engines differ", [name for name, words in digests.items() if " " in words])
    errors = sum("Error" in words for words in digests.values())
    sys.stdout.write(f"recorded {len(digests)} cases, of which {errors} raise an error\n")


def check_record(path: Path, cases: Sequence[Case], jobs: int, seconds: float | None) -> int:
    """Compare digests with a record, print the differences, and return the exit status.

    Args:
        seconds: The time for a sample, which is computed in this process; None: no limit.
    """
    machine, old_digests = read_record(path)
    if machine != describe_machine():
        sys.stdout.write(f"skipped: recorded with {machine}; this is {describe_machine()}\n")
        return 0
    end, digests = time.monotonic() + (seconds or float("inf")), {}
    if seconds is not None:
        cases, jobs = sorted(cases, key=lambda case: hash_text(case.name)), 1
    for name, words in digest_cases(cases, jobs):
        digests[name] = words
        if time.monotonic() > end:
            break
    sys.stdout.write(f"checked {len(digests)} of {len(cases)} cases on {len(ENGINES)} engines\n")
    different = [name for name, words in digests.items() if old_digests.get(name) != words]
    print_names("different digests", different)
    return int(bool(different))


def main() -> int:
    """Record or check digests."""
    parser = argparse.ArgumentParser(description="Digests of steps.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--record", type=Path, metavar="FILE")
    action.add_argument("--check", type=Path, metavar="FILE")
    parser.add_argument("--sample", type=float, metavar="SECONDS", nargs="?", const=90.0)
    parser.add_argument("--only", metavar="TEXT", default="", help="a part of the cases' names")
    parser.add_argument("--jobs", type=int, default=2, help="processes of a full run")
    options = parser.parse_args()
    begin = time.monotonic()
    cases = [case for case in list_cases() if options.only in case.name]
    status = 0
    if options.record:
        write_record(options.record, cases, options.jobs)
    else:
        status = check_record(options.check, cases, options.jobs, options.sample)
    sys.stdout.write(f"{time.monotonic() - begin:.0f} seconds\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
