"""Check of the versions of other libraries."""

from __future__ import annotations

import re
from importlib.metadata import version


def require_version(package: str, minimum: str) -> None:
    """Raise ImportError if a package is missing or older than `minimum`.

    Args:
        minimum: The first supported version, such as "5.1".
    """
    installed = version(package)
    installed_version, minimum_version = (
        [int(digits) for digits in re.findall(r"\d+", text)] for text in (installed, minimum)
    )
    if installed_version[: len(minimum_version)] < minimum_version:
        raise ImportError(
            f"thalweg.integrations supports {package} {minimum} and later, and {installed} is"
            f" installed: pip install '{package}>={minimum}'.",
            name=package,
        )
