"""Entry point of `thalweg` and `python -m thalweg`, for the extra `cli`."""

from __future__ import annotations

import sys

from thalweg._cli.race.errors import MissingExtraError, need_modules


def main() -> None:
    """Run the command line; exit with status 2 if a package of the extra `cli` is missing."""
    try:
        need_modules("click", "rich", extra="cli")
    except MissingExtraError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(2)
    from thalweg._cli.main import main as command

    command(prog_name="thalweg")


if __name__ == "__main__":
    main()
