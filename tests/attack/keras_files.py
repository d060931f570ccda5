"""Damaged and hostile files of Keras: each is read, or refused by one of four errors, and soon.

What an archive holds is changed inside of it, under a checksum that fits, or the checksum would
refuse everything.
"""

from __future__ import annotations

import io
import random
import resource
import tempfile
import time
import zipfile
from functools import cache
from pathlib import Path

import h5py
import numpy as np

from attack.figures import Figures
from attack.planted import DEFECTS
from attack.server import figures_of
from golden_files import FOLDER
from thalweg._formats import source
from thalweg._formats.keras_files import is_keras_file, read
from thalweg.errors import (
    DataLossError,
    InvalidConfigError,
    UnsafeCheckpointError,
    UnsupportedCheckpointError,
)

SUMMARY = "files of Keras (.keras, .weights.h5, .h5) with one to four changes each"
CASES = {False: 500, True: 20_000}
GOOD = ("read", "refused")
BATCH = 100
REFUSALS = (
    DataLossError,
    InvalidConfigError,
    UnsafeCheckpointError,
    UnsupportedCheckpointError,
)
SECONDS, MEGABYTES = 2.0, 256
WEIGHTS = "model.weights.h5"


@cache
def seeds() -> list[tuple[str, bytes]]:
    """Return files as Keras writes them, and as h5py can."""
    folder = FOLDER / "keras_files"
    names = ["adam.keras", "mixed.keras", "adam_weights.weights.h5", "bfloat16.weights.h5"]
    names += ["adam.h5", "nadam.h5", "adam_conv.h5"]
    contents = [(name, (folder / name).read_bytes()) for name in names]
    settings: dict[str, dict[str, object]] = {
        "chunks": {},
        "ordered": {"track_order": True},
        "latest": {"libver": "latest"},
    }
    return contents + [(name, drawn(name, **options)) for name, options in settings.items()]


def drawn(name: str, **options: object) -> bytes:
    """Return a file with many layers and with what Keras itself does not use."""
    buffer, numbers = io.BytesIO(), np.random.default_rng(1)
    with h5py.File(buffer, "w", **options) as file:
        for number in range(12):
            group = file.create_group(f"layers/dense_{number}/vars")
            group.attrs["name"] = f"fc{number}"
            group["0"] = numbers.normal(size=(3, 4)).astype("f4")
        group = file.create_group("optimizer/vars")
        group["0"] = np.int64(5)
        group["1"] = np.arange(3, dtype=">f4")
        if name == "chunks":
            array = numbers.normal(size=(30, 20)).astype("f4")
            group.create_dataset("2", data=array, chunks=(7, 9), compression="gzip", shuffle=True)
            group.create_dataset("3", data=array, chunks=(7, 9), compression="lzf")
            group["4"] = np.array([True, False])
    return buffer.getvalue()


def words(size: int, place: int) -> list[int]:
    """Return misleading values for an address, a size or a count."""
    neighbors = [place, place - 8, place + 8, place & ~511, size, size - 1, size + 1]
    return [0, 1, 2, 8, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1, *neighbors]


def changed(data: bytes, dice: random.Random) -> bytes:
    """Return one change."""
    damaged, place = bytearray(data), dice.randrange(len(data))
    kind = dice.choice(["bit", "byte", "word", "word", "word", "copy", "copy", "cut", "insert"])
    if kind == "bit":
        damaged[place] ^= 1 << dice.randrange(8)
    elif kind == "byte":
        damaged[place] = dice.choice([0, 1, 2, 3, 7, 8, 127, 128, 255])
    elif kind == "word":
        width = dice.choice([2, 4, 8, 8])
        place -= place % width
        value = dice.choice([*words(len(data), place), dice.randrange(len(data))])
        damaged[place : place + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
    elif kind == "copy":
        size = dice.choice([4, 8, 16, 24, 40, 100, 500])
        source = dice.randrange(len(data))
        damaged[place & ~7 : (place & ~7) + size] = data[source & ~7 : (source & ~7) + size]
    elif kind == "cut":
        del damaged[place : place + dice.choice([1, 8, 100, len(data)])]
    else:
        damaged[place:place] = bytes(dice.randrange(256) for _ in range(dice.choice([1, 8, 100])))
    return bytes(damaged) or b"\0"


def repacked(data: bytes, dice: random.Random) -> bytes:
    """Return an archive whose weights, or description, have changed."""
    buffer = io.BytesIO()
    target = dice.choice(["config.json", WEIGHTS, WEIGHTS, WEIGHTS])
    method = dice.choice([zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w", method) as new:
        for name in old.namelist():
            inner = old.read(name)
            for _ in range(dice.choice([1, 1, 2, 4]) if name == target else 0):
                inner = changed(inner, dice)
            new.writestr(name, inner)
    return buffer.getvalue()


def mutated(seed: int, number: int) -> tuple[str, bytes]:
    dice = random.Random(f"{seed}/{number}")
    name, data = dice.choice(seeds())
    if name.endswith(".keras") and dice.random() < 0.8:
        return name, repacked(data, dice)
    for _ in range(dice.choice([1, 1, 2, 4])):
        data = changed(data, dice)
    return name, data


def attempt(seed: int, number: int) -> str:
    """Change and read one file; return "read", "refused", or the failure."""
    name, data = mutated(seed, number)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        path.write_bytes(data)
        begin, peak_before = time.process_time(), peak()
        is_keras_file(path)
        try:
            read(path)
            outcome = "read"
        except REFUSALS:
            outcome = "refused"
        except Exception as error:
            outcome = f"{name}: {type(error).__name__}: {error}"
        seconds, growth = time.process_time() - begin, peak() - peak_before
        if [path.name for path in Path(folder).iterdir()] != ["model"]:
            return f"{name}: other files are there"
    if seconds > SECONDS:
        return f"{name}: took {seconds:.1f} s"
    return f"{name}: took {growth} MB" if growth > MEGABYTES else outcome


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def warm() -> None:
    seeds()
    attempt(0, 0)


def attack(long: bool, seed: int) -> Figures:
    return figures_of(__name__, seed, CASES[long], BATCH, GOOD)


def _anywhere(self: source.SourceFile, begin: int, size: int, args: str) -> source.FilePart:
    return source.FilePart(self, self.read_uncounted(begin, min(size, self.size)), begin)


DEFECTS["what lies beyond the end is not looked for"] = lambda: setattr(
    source.SourceFile, "read_part", _anywhere
)
