"""`thalweg` and `python -m thalweg`: the command, which the extra `cli` brings."""

from __future__ import annotations

import sys

from thalweg._cli.race.errors import MissingExtraError, need_modules


def main() -> None:
    """Run the command; without the packages it needs, say so and exit with status 2."""
    try:
        need_modules("click", "rich", extra="cli")
    except MissingExtraError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(2)
    from thalweg._cli.main import main as command

    command(prog_name="thalweg")


if __name__ == "__main__":
    main()
