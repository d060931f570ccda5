"""`tf.app`: `run` parses the flags and calls `main`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from thalweg.tf.compat.v1 import flags


def run(
    main: Callable[[list[str]], object] | None = None, argv: Sequence[str] | None = None
) -> NoReturn:
    """Parse the flags, call `main` with what is left of the arguments, and exit with its result.

    Args:
        main: By default that of the script.
        argv: By default `sys.argv`; flags that were not defined are left for `main`.

    Raises:
        ImportError: absl-py is not installed.
        SystemExit: Always, when `main` has returned.
    """

    def parse(given: Sequence[str]) -> list[str]:
        return flags.FLAGS(list(given), known_only=True)

    called = main or vars(sys.modules["__main__"])["main"]
    arguments = None if argv is None else list(argv)
    flags.absl("app").run(called, argv=arguments, flags_parser=parse)
    sys.exit()
