"""Run attacks and print a line of figures for each; exit 1 if anything failed.

python tests/attack/run.py [NAME ...] [--long] [--minutes M] [--seed N]
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]


def main() -> int:
    sys.path[:1] = [str(TESTS), str(TESTS / "support")]
    import kernel_cache

    kernel_cache.use_test_folder()
    from attack import ATTACKS, clock, load
    from attack.server import Server

    def used() -> float:
        """Return seconds of processors that this process, its children and servers have had."""
        return sum(os.times()[:4]) + Server.used

    parser = argparse.ArgumentParser(description="Attacks on the library, with figures.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ATTACKS)}")
    parser.add_argument("--long", action="store_true", help="as many cases as a night holds")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="no new cases after so many, in each attack"
    )
    parser.add_argument("--seed", type=int, default=0, help="chooses the cases; 0 by default")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(ATTACKS):
        parser.error(f"no attack is called {', '.join(sorted(unknown))}")
    failed = False
    for name in arguments.names or ATTACKS:
        attack, begin, busy = load(name), time.perf_counter(), used()
        clock.allow(arguments.minutes)
        figures = attack.attack(arguments.long, arguments.seed)
        seconds, busy = time.perf_counter() - begin, used() - busy
        sys.stdout.write(
            f"{name}: {attack.SUMMARY}: {figures.line()}; seed {arguments.seed}, {seconds:.0f} s,"
            f" {busy:.0f} s of processors\n"
        )
        sys.stdout.flush()
        for failure in figures.failures[:20]:
            sys.stderr.write(f"  {failure}\n")
        failed = failed or bool(figures.failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
