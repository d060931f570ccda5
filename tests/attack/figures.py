"""Counts and failures of an attack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Figures:
    """Counts of cases by outcome, and the failures.

    Attributes:
        cases: How many cases were tried.
        kinds: How they ended, by name.
        failures: Those that went wrong, each in a line with what makes it again.
    """

    cases: int = 0
    kinds: Counter[str] = field(default_factory=Counter[str])
    failures: list[str] = field(default_factory=list[str])

    def note(self, title: str, kind: str, is_good: bool) -> None:
        self.cases += 1
        self.kinds[kind if is_good else "failed"] += 1
        if not is_good:
            self.failures.append(f"{title}: {kind}")

    def judge(self, titles: Iterable[str], outcomes: Iterable[str], good: Iterable[str]) -> None:
        """Count cases by their outcomes; those that are none of `good` have failed."""
        accepted = set(good)
        for title, outcome in zip(titles, outcomes, strict=True):
            self.note(title, outcome, outcome in accepted)

    def add(self, figures: Figures) -> None:
        self.cases += figures.cases
        self.kinds.update(figures.kinds)
        self.failures += figures.failures

    def line(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        return f"{self.cases} cases ({kinds}), {len(self.failures)} failed"
