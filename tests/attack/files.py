"""Hostile files of ours: mutated bytes, and mutated headers and manifests under right checksums.

What is read of a file must be all that it holds and what its checksums are of; safetensors must
see the same in it.
"""

from __future__ import annotations

import copy
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

import storage_files
from attack import watched
from attack.figures import Figures
from attack.server import figures_of
from storage_files import counting_tensor
from thalweg._formats import checksum, container
from thalweg._formats.stored_tensor import ITEM_BYTES
from thalweg.errors import (
    CheckpointMismatchError,
    DataLossError,
    InvalidConfigError,
    UnsafeCheckpointError,
    UnsupportedCheckpointError,
)

SUMMARY = "our files with mutated bytes, or mutated headers under right checksums"
CASES = {False: 500, True: 20_000}
GOOD = ("refused", "taken", "same")
BATCH = 50
DOCUMENTED = (
    CheckpointMismatchError, DataLossError, InvalidConfigError, UnsafeCheckpointError,
    UnsupportedCheckpointError,
)  # fmt: skip

Dice = random.Random
_folder: list[Path] = []
_seeds: list[bytes] = []


def seeds() -> list[bytes]:
    """Return twenty files of all dtypes, many shapes and several documents."""
    dice, files = random.Random(0), list[bytes]()
    documents: list[dict[str, Any]] = [
        {},
        storage_files.DOCUMENT,
        {"a": [[[[1]]]]},
        {"x": "y" * 99},
    ]
    path = _folder[0] / "seed"
    for number in range(20):
        tensors = {
            dice.choice(["w", "w/Adam", "ä", "", "../x"]) + str(index): counting_tensor(
                dice.choice(list(ITEM_BYTES)),
                tuple(dice.choices((0, 1, 2, 5), k=dice.randrange(4))),
            )
            for index in range(number % 6)
        }
        container.write(path, tensors, documents[number % 4])
        files.append(path.read_bytes())
    return files


# Mutations of bytes.


def flipped(raw: bytearray, dice: Dice) -> None:
    for _ in range(dice.choice([1, 1, 2, 30])):
        raw[dice.randrange(len(raw))] ^= 1 << dice.randrange(8)


def truncated(raw: bytearray, dice: Dice) -> None:
    del raw[dice.randrange(len(raw)) :]


def inserted(raw: bytearray, dice: Dice) -> None:
    place = dice.randrange(len(raw) + 1)
    raw[place:place] = dice.choice([b"\0", b"{", b'"', dice.randbytes(8), bytes(1000)])


def deleted(raw: bytearray, dice: Dice) -> None:
    place = dice.randrange(len(raw))
    del raw[place : place + dice.choice([1, 8, 100])]


def repeated(raw: bytearray, dice: Dice) -> None:
    place, size = dice.randrange(len(raw)), dice.choice([1, 8, 100])
    raw[place:place] = raw[place : place + size]


def other_length(raw: bytearray, dice: Dice) -> None:
    length = dice.choice([0, 1, 7, 8, len(raw), len(raw) - 8, 100_000_001, 2**31, 2**63, 2**64 - 1])
    raw[:8] = length.to_bytes(8, "little")


def spliced(raw: bytearray, dice: Dice) -> None:
    donor = dice.choice(_seeds)
    place = dice.randrange(min(len(raw), len(donor)))
    raw[place:] = donor[place:]


BYTES: tuple[Callable[[bytearray, Dice], None], ...] = (
    flipped, flipped, truncated, inserted, deleted, repeated, other_length, spliced,
)  # fmt: skip

# Mutations of what a header says.

VALUES: tuple[Any, ...] = (
    None, True, 0, 1, -1, 2, 8, 2**31, 2**32 - 1, 2**63, 2**64, 10**80, 0.0, 1.5, -0.0, 1e308, "",
    "F32", "U8", "C64", "C128", "F4", "pickle", "\0", "../../etc/passwd", "cos\nsystem\n", "ä" * 50,
    [], [0], [1], [2, 3], [-1], [2**40, 2**40], [0, 2**63], [[]], {}, {"": {}}, ["F32", [2], 0],
    {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
)  # fmt: skip
TEXTS = (
    "NaN", "Infinity", "1e999", "-1e999", "1" * 5000, "[" * 5000, "[" * 300 + "]" * 300,
    '"\\ud800"', '{"a":1,"a":2}', "[1,]", "01", "\x00", "'a'", '"\\x"', "tru",
    '"' + "x" * 100_000 + '"', "[" + "0," * 100_000 + "0]",
)  # fmt: skip
MARK = "a place that no seed has"


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return container and key, or index, of each place in nested dictionaries and lists."""
    locations: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            locations += [(value, key), *_places(value[key])]
    return locations


def _changed(value: Any, dice: Dice) -> None:
    places = _places(value)
    if not places:
        return
    holder, key = dice.choice(places)
    kind = dice.randrange(5)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[dice.choice(["", "x", "a" * 300, "__metadata__", "dtype"])] = holder.pop(key)
    elif kind == 2:
        parent, place = dice.choice(places)
        if place in parent if isinstance(parent, dict) else place < len(parent):
            holder[key] = copy.deepcopy(parent[place])
    elif kind == 3 and type(holder[key]) is int:
        holder[key] += dice.choice([-8, -1, 1, 2, 8])
    else:
        holder[key] = copy.deepcopy(dice.choice(VALUES))


def rewritten(raw: bytes, dice: Dice) -> bytes:
    """Return the file with changes in its header and manifest, under the right checksums."""
    header, manifest, data = storage_files.parts(raw)
    metadata = header.pop("__metadata__")
    for _ in range(dice.choice([1, 1, 2, 3])):
        _changed(dice.choice([header, manifest, manifest.get("document")]), dice)
    if dice.random() < 0.3:
        _both(header, manifest, dice)
    if dice.random() < 0.2:
        data = data[: dice.randrange(len(data) + 1)] + bytes(dice.choice([0, 1, 8]))
    if dice.random() < 0.5:
        _resum(header, manifest, data)
    text, target = json.dumps(manifest), dice.random()
    if target < 0.15:
        text = _with_text(manifest, dice)
    encoded = json.dumps(
        {"__metadata__": {**metadata, "manifest": text}, **header}, separators=(",", ":")
    )
    if 0.15 <= target < 0.3 and header:
        header = {"__metadata__": {**metadata, "manifest": text}, **header}
        name = dice.choice(list(header))
        value = json.dumps(header[name], separators=(",", ":"))
        encoded = encoded[:-1] + f",{json.dumps(name)}:{dice.choice([*TEXTS, value])}}}"
    return storage_files.make_file(encoded, data)


def _both(header: dict[str, Any], manifest: dict[str, Any], dice: Dice) -> None:
    """Write the same into header and manifest, true or not."""
    tensors, place = manifest.get("tensors"), 0
    if not isinstance(tensors, dict):
        return
    for name, spec in tensors.items():
        if isinstance(spec, list) and len(spec) == 3 and str(spec[0]) in ITEM_BYTES:
            shape = dice.choice([spec[1], [0], [2], [1, 3], [2**62, 4], [2**33, 2**33], [-1]])
            size = ITEM_BYTES[spec[0]]
            for length in shape if isinstance(shape, list) else []:
                size *= length if isinstance(length, int) else 1
            spec[1] = shape
            header[name] = {"dtype": spec[0], "shape": shape, "data_offsets": [place, place + size]}
            place += size


def _resum(header: dict[str, Any], manifest: dict[str, Any], data: bytes) -> None:
    """Write the checksums of the bytes at the offsets where they can be computed."""
    tensors = manifest.get("tensors")
    for name, entry in tensors.items() if isinstance(tensors, dict) else ():
        try:
            begin, end = header[name]["data_offsets"]
            entry[2] = checksum.crc32c(data[begin:end])
        except (KeyError, TypeError, ValueError, IndexError):
            continue


def _with_text(manifest: dict[str, Any], dice: Dice) -> str:
    """Return the manifest with something in it that is no JSON, or not quite."""
    places = _places(manifest)
    if not places:
        return dice.choice(TEXTS)
    holder, key = dice.choice(places)
    holder[key] = MARK
    return json.dumps(manifest).replace(json.dumps(MARK), dice.choice(TEXTS), 1)


# What is read of it.


def attempt(seed: int, number: int) -> str:
    """Change and read one file; return "refused", "taken", "same", or the failure."""
    dice = random.Random(f"{seed}/{number}")
    original = _seeds[number % len(_seeds)]
    is_sealed = dice.random() < 0.6
    if is_sealed:
        raw = rewritten(original, dice)
    else:
        damaged = bytearray(original)
        dice.choice(BYTES)(damaged, dice)
        raw = bytes(damaged)
    path = _folder[0] / "case"
    path.write_bytes(raw)
    if raw == original:
        return "same"
    return watched.watched(lambda: _read(path, raw, is_sealed), _folder[0])


def _read(path: Path, raw: bytes, is_sealed: bool) -> str:
    try:
        contents = container.read(path)
    except DOCUMENTED:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    if not is_sealed and raw not in _seeds:
        return "damage was not noticed"
    wrong = _inconsistent(contents, raw) or _elsewhere(path, contents)
    return wrong or "taken"


def _inconsistent(contents: container.Contents, raw: bytes) -> str:
    """Compare the contents with a second parser; return the difference or ""."""
    header, manifest, data = storage_files.parts(raw)
    sizes = sum(tensor.data.nbytes for tensor in contents.tensors.values())
    if contents.document != manifest["document"] or sizes != len(data):
        return "not all of the file was read"
    for name, tensor in contents.tensors.items():
        begin, end = header[name]["data_offsets"]
        actual = checksum._by_table(memoryview(data[begin:end]), 0)
        if bytes(tensor.data) != data[begin:end] or actual != manifest["tensors"][name][2]:
            return f"{name!r} has other bytes"
        if tensor.dtype != "BOOL" or max(tensor.data, default=0) < 2:
            tensor.tensor()
    return ""


def _elsewhere(path: Path, contents: container.Contents) -> str:
    """Compare the names with those that safetensors reads; return the difference or ""."""
    try:
        with safe_open(path, "np") as file:
            names = set(file.keys())
    except SafetensorError as error:
        return f"safetensors says {error}"
    return "" if names == set(contents.tensors) else "safetensors sees other names"


def warm() -> None:
    _folder.append(Path(tempfile.mkdtemp()))
    _seeds.extend(seeds())
    path = _folder[0] / "case"
    path.write_bytes(_seeds[5])
    _read(path, _seeds[5], True)
    watched.begin()


def attack(long: bool, seed: int) -> Figures:
    return figures_of(__name__, seed, CASES[long], BATCH, GOOD)
