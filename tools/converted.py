"""Print the differences of docs/migrate-optimizers.md: of converted trainings from the authors'.

python tools/converted.py
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from converted_cases import (  # pyright: ignore[reportMissingImports]
    CASES,
    ZERO,
    continue_training,
    continue_zero,
)


def main() -> None:
    """Print one line for each case."""
    warnings.simplefilter("ignore")
    for cases, difference in ((CASES, continue_training), (ZERO, continue_zero)):
        for name in cases:
            sys.stdout.write(f"{name:24} {difference(name):.1e}\n")


if __name__ == "__main__":
    main()
