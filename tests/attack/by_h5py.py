"""The files of `keras_files`, read by h5py: whether it could take the place of our own reader.

python tests/attack/by_h5py.py [--count N] [--seed N]

Links to other places, arrays in other files, unknown filters and arrays that are too large for
their file are refused before h5py reads them, as our reader refuses them.
"""

from __future__ import annotations

import argparse
import io
import resource
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

RATIO = 1032  # of an array to its file: the best that deflate can do
FILTERS = (1, 2, 32000)  # deflate, shuffle, LZF


def walk(group: Any, addresses: set[int], size: int) -> None:
    """Read all arrays and attributes of a group."""
    import h5py

    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"{name!r} is a link")
        member = group[name]
        address = h5py.h5o.get_info(member.id).addr
        if address in addresses:
            raise ValueError(f"{name!r} is reached twice")
        addresses.add(address)
        list(member.attrs.items())
        if isinstance(member, h5py.Group):
            walk(member, addresses, size)
            continue
        settings = member.id.get_create_plist()
        used = {settings.get_filter(number)[0] for number in range(settings.get_nfilters())}
        is_elsewhere = member.is_virtual or member.external
        if is_elsewhere or used - {*FILTERS} or member.nbytes > RATIO * size:
            raise ValueError(f"{name!r} is refused")
        member[()]


def outcome(data: bytes) -> str:
    """Return the outcome of reading a file in a process that has two seconds."""
    import h5py

    from attack import keras_files

    resource.setrlimit(resource.RLIMIT_CPU, (int(keras_files.SECONDS), resource.RLIM_INFINITY))
    peak_before, outcome = keras_files.peak(), "read"
    try:
        if data.startswith(b"PK"):
            data = zipfile.ZipFile(io.BytesIO(data)).read(keras_files.WEIGHTS)
        with h5py.File(io.BytesIO(data), "r") as file:
            walk(file, set(), len(data))
    except Exception:
        outcome = "refused"
    growth = keras_files.peak() - peak_before
    return outcome if growth <= keras_files.MEGABYTES else "took too much memory"


def main() -> int:
    """Print how often it ended how."""
    sys.path[0] = str(Path(__file__).parents[1])
    from attack import keras_files
    from attack.server import in_child

    parser = argparse.ArgumentParser(description="How h5py ends on damaged files.")
    parser.add_argument("--count", type=int, default=2000, help="files; 2000 by default")
    parser.add_argument("--seed", type=int, default=0, help="chooses the files; 0 by default")
    arguments = parser.parse_args()
    ends: Counter[str] = Counter()
    for number in range(arguments.count):
        data = keras_files.mutated(arguments.seed, number)[1]
        end = in_child(lambda data=data: outcome(data))
        ends["did not end" if end == "exit -24" else end] += 1
    for end, count in sorted(ends.items()):
        sys.stdout.write(f"{end}: {count}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
