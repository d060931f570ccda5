"""Saves that are killed, fail or lose their power at any point: the old file is there or the new.

Each system call of a save is killed and failed in turn; disks are full, read-only and limited; and
of what a save has asked for, any part may have reached the disk when the power fails.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from attack import disks, power, syscalls
from attack.figures import Figures
from storage_files import DOCUMENT, counting_tensor
from thalweg._formats import container

SUMMARY = (
    "saves: each system call killed or failed (strace), full and read-only disks, and the states"
    " in which a power loss may leave a disk"
)
GOOD = ("old", "new", "intact", "unavailable")
OLD = b"old" * 1000


def attack(long: bool, seed: int) -> Figures:
    """Try everything once: nothing is left to chance."""
    figures = Figures()
    if syscalls.unavailable():
        figures.note("strace", "unavailable", is_good=True)
    else:
        with syscalls.Place() as place:
            for title, outcome in syscalls.cases(place, lambda call: True):
                figures.note(title, outcome, outcome in GOOD)
    for title, outcome in disks.cases():
        figures.note(title, outcome, outcome in GOOD)
    _power(figures)
    return figures


def _power(figures: Figures) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ckpt"
        path.write_bytes(OLD)
        tensors = {f"w{i}": counting_tensor("U8", (600 * (i + 1),), i) for i in range(4)}
        log = power.recorded(lambda: container.write(path, tensors, DOCUMENT))
        new = path.read_bytes()
        for number, (has_ended, content) in enumerate(power.contents(log, path, OLD)):
            kind = "new" if content == new else "old" if content == OLD else "broken"
            figures.note(
                f"state {number} of the disk",
                kind,
                kind == "new" or (kind == "old" and not has_ended),
            )
