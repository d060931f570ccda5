"""`tf.app`: `run` parses the flags and calls `main`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from thalweg.tf.compat.v1 import flags


def run(
    main: Callable[[list[str]], object] | None = None, argv: Sequence[str] | None = None
) -> NoReturn:
    """Parse the flags, call `main(remaining arguments)`, and exit with the returned status.

    Args:
        main: By default the script's function `main`.
        argv: By default `sys.argv`; unknown flags are left for `main`.

    Raises:
        ImportError: absl-py is not installed.
        SystemExit: Always, when `main` has returned.
    """

    def parse(arguments: Sequence[str]) -> list[str]:
        return flags.FLAGS(list(arguments), known_only=True)

    main_function = main or vars(sys.modules["__main__"])["main"]
    arguments = None if argv is None else list(argv)
    flags.absl("app").run(main_function, argv=arguments, flags_parser=parse)
    sys.exit()
