"""Digests of parameters and state after six steps, over optimizers, options, dtypes and layouts.

    python tools/step_digests.py --record FILE    runs all cases and writes their digests
    python tools/step_digests.py --check FILE     runs all cases; prints those that differ, grouped
    python tools/step_digests.py --check FILE --sample 90    checks a random part for 90 seconds

The cases are a pairwise covering array: each pair of values of two factors (optimizer, option,
dtype, layout of gradients, inputs, threads) occurs in a case, if both can occur together.
Each case runs on the engines "cpu" and "reference". A case that raises has the class and the first
line of its error as its digest. Inputs depend on the name of the case alone. A NaN counts as one
NaN: processors differ in its bits. Another torch or processor may give other digests, in matrix
products for example: the file names both, and a check on others is skipped. A record prints the
cases whose engines differ. `SyncReplicasOptimizer` is missing, because it runs in graphs alone.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import platform
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations, groupby, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from step_trainings import FAMILIES, Family, run_family
from torch import Tensor

INPUTS = ("ordinary", "extreme", "nonfinite")
THREADS = (1, 2)
ENGINES = ("cpu", "reference")
CANDIDATES = 240  # random rows of which a greedy step takes the one with the most new pairs
JOBS = 2
PLACES = r" \([^ ]+\.py:[0-9]+\)| at 0x[0-9a-f]+"  # in source files or in memory


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

    def pairs(self) -> list[tuple[tuple[str, object], ...]]:
        """Return the pairs of values of two factors, arguments apart, that the case covers."""
        values = self._asdict()
        del values["arguments"]
        return list(combinations(values.items(), 2))


def hash_text(text: str) -> int:
    """Return a number that depends on a text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def possible_cases(optimizer: str, option: str, family: Family) -> list[Case]:
    """Return all cases of an optimizer with an option."""
    layouts = family.layouts_of(optimizer, option)
    variants = range(len(family.optimizers[optimizer]))
    dtypes = family.dtypes_of(optimizer, option)
    rows = product([optimizer], variants, [option], dtypes, layouts, INPUTS, THREADS)
    return [Case(*row) for row in rows]


def list_cases() -> list[Case]:
    """Return the covering array, built greedily: a row for each optimizer and option."""
    covered: set[tuple[tuple[str, object], ...]] = set()
    cases: dict[Case, None] = {}
    for family in FAMILIES:
        for optimizer in family.optimizers:
            for option in [*family.options, *["plain"] * family.plain_rows]:
                possible = [
                    case for case in possible_cases(optimizer, option, family) if case not in cases
                ]
                draw = random.Random(hash_text(f"{optimizer} {option}"))
                candidates = draw.sample(possible, min(CANDIDATES, len(possible)))
                # Contiguous gradients are preferred: only their steps are replayed natively.
                best = max(
                    candidates,
                    key=lambda case: (
                        len(set(case.pairs()) - covered),
                        case.layout == "contiguous",
                    ),
                )
                covered.update(best.pairs())
                cases[best] = None
    return list(cases)


def update_digest(digest: Any, value: object) -> None:
    """Add the bits of tensors, and other values as text, to a digest."""
    if isinstance(value, Tensor):
        tensor = value.detach().as_subclass(Tensor).contiguous().resolve_conj().resolve_neg()
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        if tensor.is_floating_point():
            tensor = tensor.masked_fill(tensor.isnan(), float("nan"))
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            digest.update(repr(key).encode())
            update_digest(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(str(len(value)).encode())
        for item in value:
            update_digest(digest, item)
    else:
        digest.update(repr(value).encode())


def describe_error(error: Exception) -> str:
    """Return the class and the first line of an error, without places in files and memory."""
    line = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {re.sub(PLACES, '', line)}"


def digest_case(case: Case, engine: str) -> str:
    """Return the digest of a case on an engine; that of an error begins with "!"."""
    digest, mark = hashlib.sha256(), ""
    torch.set_num_threads(case.threads)
    try:
        update_digest(digest, run_family(case, engine, random_seed=hash_text(case.name)))
    except Exception as error:
        digest, mark = hashlib.sha256(describe_error(error).encode()), "!"
    return mark + digest.hexdigest()[:10]


def digest_cases(cases: Sequence[Case], seconds: float = float("inf")) -> dict[str, list[str]]:
    """Return the digests of cases on both engines by name; stop when the seconds are over."""
    warnings.simplefilter("ignore")
    end = time.monotonic() + seconds
    digests: dict[str, list[str]] = {}
    for case in cases:
        if time.monotonic() > end:
            break
        digests[case.name] = [digest_case(case, engine) for engine in ENGINES]
    return digests


def digest_all(cases: Sequence[Case], jobs: int) -> dict[str, list[str]]:
    """Return the digests of all cases, computed in several processes."""
    parts = [list(part) for _, part in groupby(cases, key=lambda case: case.optimizer)]
    digests: dict[str, list[str]] = {}
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for part in pool.map(digest_cases, parts):
            digests |= part
    return digests


def describe_machine() -> str:
    """Return the version of torch and the features of the processor that results depend on."""
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    vectors = [name for name in sorted(features) if features[name]]
    vectors = [name for name in vectors if name.startswith(("avx", "amx", "fma", "neon", "sve"))]
    capability = torch.backends.cpu.get_cpu_capability()
    return " ".join(["torch", torch.__version__, platform.machine(), capability, *vectors])


def write_record(path: Path, digests: Mapping[str, Sequence[str]]) -> None:
    """Write a line for the machine, then one per case; the engines' digest once if it is equal."""
    lines = [f"{name} {' '.join(dict.fromkeys(pair))}" for name, pair in sorted(digests.items())]
    path.write_text("\n".join([f"# {describe_machine()}", *lines, ""]))


def read_record(path: Path) -> tuple[str, dict[str, list[str]]]:
    """Return the machine of a record, and its digests on both engines by name."""
    machine, *lines = path.read_text().splitlines()
    digests: dict[str, list[str]] = {}
    for line in lines:
        words = line.split()
        digests[" ".join(words[:6])] = [words[6], words[-1]]
    return machine.removeprefix("# "), digests


def describe_names(title: str, names: Iterable[str]) -> str:
    """Return the names of cases in one text, with counts by optimizer and by option."""
    names = sorted(names)
    lines = [f"{title}: {len(names)}", *(f"  {name}" for name in names)]
    for index, factor in enumerate(("optimizer", "option")):
        counts = Counter(name.split()[index].partition("#")[0] for name in names)
        lines.append(f"  by {factor}: {', '.join(f'{k} {n}' for k, n in counts.most_common())}")
    return "\n".join(lines) + "\n"


def check_record(
    path: Path, cases: Sequence[Case], name_part: str, sample: float | None, jobs: int
) -> int:
    """Compare digests with a record, print the differences, and return the exit status."""
    machine, old_digests = read_record(path)
    if machine != describe_machine():
        sys.stdout.write(f"skipped: recorded with {machine}; this is {describe_machine()}\n")
        return 0
    if sample is None:
        digests = digest_all(cases, jobs)
    else:
        digests = digest_cases(sorted(cases, key=lambda case: hash_text(case.name)), sample)
    names = {case.name for case in cases}
    problems = {
        "different digests": [n for n in digests if old_digests.get(n, digests[n]) != digests[n]],
        "not in the record": names - set(old_digests),
        "only in the record": {n for n in set(old_digests) - names if name_part in n},
    }
    for title, problem_names in problems.items():
        if problem_names:
            sys.stdout.write(describe_names(title, problem_names))
    sys.stdout.write(f"checked {2 * len(digests)} of {2 * len(cases)} cases\n")
    return int(any(problems.values()))


def main() -> int:
    """Record or check digests."""
    parser = argparse.ArgumentParser(description="Digests of steps.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--record", type=Path, metavar="FILE")
    action.add_argument("--check", type=Path, metavar="FILE")
    parser.add_argument("--sample", type=float, metavar="SECONDS", nargs="?", const=90.0)
    parser.add_argument("--only", metavar="TEXT", default="", help="a part of the cases' names")
    parser.add_argument("--jobs", type=int, default=JOBS, help="processes of a full run")
    options = parser.parse_args()
    begin = time.monotonic()
    cases = [case for case in list_cases() if options.only in case.name]
    if options.check:
        return check_record(options.check, cases, options.only, options.sample, options.jobs)
    digests = digest_all(cases, options.jobs)
    write_record(options.record, digests)
    different_names = [name for name, pair in digests.items() if len(set(pair)) > 1]
    sys.stdout.write(describe_names("engines differ", different_names))
    errors = sum(pair[0].startswith("!") for pair in digests.values())
    seconds = time.monotonic() - begin
    sys.stdout.write(f"{2 * len(digests)} cases, {2 * errors} raise an error, {seconds:.0f} s\n")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    sys.exit(main())
