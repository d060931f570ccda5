"""Names that someone may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST = 6


def near(name: str, known: Iterable[str]) -> list[str]:
    """Known names that contain `name`, then those that it contains, then those that are like it.

    No more than six.
    """
    spelled = {each.lower(): each for each in known}
    lower = name.lower()
    found = [each for each in spelled if lower in each]
    found += [each for each in spelled if each in lower]
    found += difflib.get_close_matches(lower, spelled, n=3, cutoff=0.5)
    return [spelled[each] for each in dict.fromkeys(found)][:MOST]


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that there is not: names near it, and the command that lists all."""
    likely = near(name, known)
    nearby = f"near it: {', '.join(likely)}. All" if likely else "all"
    return f"there is no {what} '{name}'; {nearby} are listed by `thalweg rules`"
