"""Hostile bundles: parts of TensorFlow's files changed, with checksums that fit and that do not.

A change of bytes alone is refused, or is none. Where the checksums of what was changed are made to
fit, whatever is read has the bytes that its shape asks for, and all together no more than the files
have. Nothing raises but what `thalweg._formats.bundle` says it does, nothing takes two seconds, and
nothing takes memory that the files do not.
"""

from __future__ import annotations

import random
import resource
import tempfile
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import bundle_examples
from attack.figures import Figures
from attack.server import figures_of
from bundle_files import BUNDLES, DATA, GOLDENS, add_checksum, block, footer, handle
from thalweg._formats import bundle, stored_tensor
from thalweg._formats.bundle import object_graph, proto, tensors
from thalweg._formats.bundle.errors import CorruptFileError
from thalweg._formats.bundle.table import encoded_table, iterate_entries
from thalweg._formats.checksum import crc32c, mask_checksum
from thalweg._formats.stored_tensor import ITEM_BYTES
from thalweg.errors import (
    DataLossError,
    MissingFileError,
    UnsafeCheckpointError,
    UnsupportedCheckpointError,
)

SUMMARY = "bundles of TensorFlow with one to three changes each, and its file `checkpoint`"
CASES = {False: 500, True: 20_000}
GOOD = ("read", "refused")
BATCH = 250
SECONDS, MEGABYTES = 2.0, 64  # that a case may take
DOCUMENTED = (DataLossError, MissingFileError, UnsafeCheckpointError, UnsupportedCheckpointError)

Files = dict[str, bytes]  # what stands behind the prefix, and the content
Items = list[tuple[bytes, bytes]]

SEEDS: list[Files] = []
NUMBERS = [
    0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 14, 19, 20, 24, 100, 127, 128, 255, 1000, 4096, 10_001, 2**16,
    2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -1, -2, -(2**31),
]  # fmt: skip
KEYS = [
    b"", b"\0", b"\0\0\1", b"a", b"\xff", b"\xff" * 9, b"../x", b"w" * 5000, b"\xc3\xa9", b"\x80",
    object_graph.KEY.encode(),
]  # fmt: skip
TEXTS = [
    '"', "'", "\\", "\n", ":", "[", "]", ",", "#", "\0", "/", "..", "../", "/etc/passwd", "1e999",
    "model_checkpoint_path: ", "\\377", "\\ud800", "é", '""', "link/", "-", "x" * 9999,
]  # fmt: skip


def warm() -> None:
    """Read the recorded bundles and write others; add the bytes of their files to `SEEDS`."""
    prefixes = [path.with_suffix("") for path in sorted(GOLDENS.glob("ckpt_v*/*/*.index"))]
    prefixes += [path.with_suffix("") for path in sorted(BUNDLES.glob("*/*.index"))]
    prefixes.remove(BUNDLES / "variant" / "model.ckpt")  # which is refused as it is
    for prefix in prefixes:
        paths = sorted(prefix.parent.glob(f"{prefix.name}.*"))
        SEEDS.append({path.name[len(prefix.name) :]: path.read_bytes() for path in paths})
    first = (BUNDLES / "version_1" / "model.ckpt").read_bytes()
    SEEDS.extend([{"": first}] * 2)
    with tempfile.TemporaryDirectory() as home:
        tensors = bundle_examples.by_name()
        for place, name in enumerate(tensors):
            if len(SEEDS) < 20:
                path = Path(home, str(place))
                bundle.write(path, {name: tensors[name], "other": tensors["bits"]})
                SEEDS.append({s: Path(f"{path}{s}").read_bytes() for s in (".index", DATA)})
    crc32c(b"\0" * 10_000)
    stored_tensor.StoredTensor("F32", (), memoryview(b"\0" * 4)).tensor()


# Changes. Each takes the files and a source of chance, and returns other files.


def spoiled(data: bytes, dice: random.Random) -> bytes:
    """Return bytes with a few of them flipped, cut out, doubled, or overwritten."""
    begin, kind = dice.randrange(len(data) + 1), dice.randrange(6)
    count = dice.choice([1, 1, 2, 4, 8, 100])
    if kind == 0:
        return data[:begin]
    if kind == 1:
        return data[:begin] + data[begin + count :]
    if kind == 2:
        return data[:begin] + dice.randbytes(count) + data[begin:]
    if kind == 3:
        return data[:begin] + data[dice.randrange(len(data) + 1) :][:count] + data[begin + count :]
    buffer = bytearray(data or b"\0")
    for _ in range(dice.choice([1, 1, 1, 3])):
        place = dice.randrange(len(buffer))
        buffer[place] = dice.choice([buffer[place] ^ (1 << dice.randrange(8)), 0, 0xFF, 0x80, 0x7F])
    return bytes(buffer)


def message(data: bytes, dice: random.Random, depth: int = 0) -> bytes:
    """Return a message with one field changed, dropped, doubled or added, nested ones too."""
    try:
        fields: list[tuple[int, int, Any]] = list(proto.iterate_fields(data))
    except CorruptFileError:
        return spoiled(data, dice)
    if not fields or dice.random() < 0.1:
        fields.append((dice.randrange(1, 9), dice.choice([0, 0, 2, 5]), 0))
    index = dice.randrange(len(fields))
    field, kind, value = fields[index]
    choice = dice.randrange(6)
    if choice == 0:
        del fields[index]
    elif choice == 1:
        fields.insert(dice.randrange(len(fields)), fields[index])
    elif kind == proto.BYTES and isinstance(value, bytes) and depth < 3 and dice.random() < 0.9:
        fields[index] = field, kind, message(value, dice, depth + 1)
    elif choice == 2:
        fields[index] = dice.randrange(1, 9), kind, value
    else:
        close = value + dice.choice([-8, -1, 1, 8]) if isinstance(value, int) else 1
        fields[index] = (
            field,
            dice.choice([kind, kind, kind, 0, 5]),
            dice.choice([*NUMBERS, close]),
        )
    return b"".join(written(*parts) for parts in fields)


def written(field: int, kind: int, value: Any) -> bytes:
    head = proto.encode_varint(field << 3 | kind)
    if kind == proto.BYTES:
        data = value if isinstance(value, bytes) else b""
        return head + proto.encode_varint(len(data)) + data
    number = value if isinstance(value, int) else 1
    if kind == proto.VARINT:
        return head + proto.encode_varint(number)
    return head + (number % 2**32).to_bytes(8 if kind == proto.FIXED64 else 4, "little")


def main_of(files: Files) -> str:
    """Return the file that is a table: all there is in the first format."""
    return ".index" if ".index" in files else ""


def items_of(files: Files) -> Items:
    index = files[main_of(files)]
    return list(iterate_entries(lambda offset, size: index[offset : offset + size], len(index)))


def table(items: Items, dice: random.Random) -> bytes:
    """Return a table whose blocks are what they are said to be, and whose order may be any."""
    cut = dice.randrange(len(items) + 1) if items and dice.random() < 0.3 else len(items)
    file, handles = b"", []
    for part in (items[:cut], items[cut:]):
        if part:
            encoded = block([(0, key, value) for key, value in part])
            handles.append((0, max(key for key, _ in part), handle(len(file), len(encoded))))
            file += add_checksum(encoded)
    remarks = add_checksum(block(()))
    places = [0, len(b"\0\0\0") + len(handles[0][1]) + len(handles[0][2])] if handles else [0]
    listing = block(handles, places[: len(handles) or 1])
    ends = footer(handle(len(file), len(remarks) - 5), handle(len(file + remarks), len(listing)))
    return file + remarks + add_checksum(listing) + ends


def bytes_of_a_file(files: Files, dice: random.Random) -> Files:
    name = dice.choice(sorted(files))
    return {**files, name: spoiled(files[name], dice)}


def entry(files: Files, dice: random.Random) -> Files:
    items = items_of(files)
    for _ in range(dice.choice([1, 1, 2])):
        position = dice.randrange(len(items))
        items[position] = items[position][0], message(items[position][1], dice)
    return {**files, main_of(files): encoded_table(items)}


def keys(files: Files, dice: random.Random) -> Files:
    """Drop, double, rename, spoil or swap keys, or exchange their values."""
    items = items_of(files)
    position, swapped_with = dice.randrange(len(items)), dice.randrange(len(items))
    kind = dice.randrange(6)
    if kind == 0:
        items[position], items[swapped_with] = items[swapped_with], items[position]
    elif kind == 1:
        items.insert(swapped_with, items[position])
    elif kind == 2:
        del items[position]
    elif kind == 3:
        items[position] = dice.choice(KEYS), items[position][1]
    elif kind == 4:
        items[position] = spoiled(items[position][0], dice), items[position][1]
    else:
        items[position] = items[position][0], items[swapped_with][1]
    if dice.random() < 0.7 and kind > 1:
        return {**files, main_of(files): encoded_table(sorted(dict(items).items()))}
    return {**files, main_of(files): table(items, dice)}


def inside_a_block(files: Files, dice: random.Random) -> Files:
    """Return the bytes of a block, the block that lists blocks, or the end, with new checksums."""
    content = block([(0, key, value) for key, value in items_of(files)])
    remarks = block(())
    index = block([(0, b"\xff" * 12, handle(0, len(content)))])
    variant = dice.randrange(4)
    if variant == 0:
        content = spoiled(content, dice)
        index = block([(0, b"\xff" * 12, handle(0, len(content)))])
    elif variant == 1:
        places = [dice.choice(NUMBERS) for _ in range(dice.randrange(1, 4))]
        index = block([
            (0, b"\xff" * (9 + number), handle(place, dice.choice([len(content), *NUMBERS])))
            for number, place in enumerate(places)
        ])  # fmt: skip
    elif variant == 2:
        index = spoiled(index, dice)
    else:
        count = dice.choice([0, 1, 2, 1000, 2**30, 2**32 - 1])
        content = block([(0, b"", b"")], [dice.choice([0, 1, 3, 2**31])] * dice.randrange(4), count)
    file = add_checksum(content) + add_checksum(remarks)
    ends = handle(len(add_checksum(content)), len(remarks)), handle(len(file), len(index))
    if dice.random() < 0.1:
        ends = handle(dice.choice(NUMBERS), dice.choice(NUMBERS)), ends[1]
    return {
        **files,
        main_of(files): file + add_checksum(index) + footer(*(end[:20] for end in ends)),
    }


def strings_of_a_tensor(files: Files, dice: random.Random) -> Files:
    """Return the strings of a tensor, such as the graph of objects, with new checksums."""
    items = items_of(files)
    texts = [place for place, (key, value) in enumerate(items) if key and value[:2] == b"\x08\7"]
    if not texts or DATA not in files:
        return entry(files, dice)
    position = dice.choice(texts)
    fields = {field: value for field, _, value in proto.iterate_fields(items[position][1])}
    begin, size = int(fields.get(4, 0)), int(fields.get(5, 0))
    try:
        values = tensors.decode_strings(files[DATA][begin : begin + size], 1)[0]
    except CorruptFileError:  # it has several
        values = [b"text", b""]
    encoded, checksum = tensors.encoded_strings([message(string, dice) for string in values])
    if dice.random() < 0.2:
        encoded = spoiled(encoded, dice)
    shape = b"\x12\0" if dice.random() < 0.8 else b"\x12\x04\x12\x02\x08\x02"
    head = b"\x08\7" + shape + proto.number_field(4, begin) + proto.number_field(5, len(encoded))
    items[position] = items[position][0], head + proto.fixed32_field(6, mask_checksum(checksum))
    # In a bundle of objects, their graph comes last.
    return {**files, main_of(files): encoded_table(items), DATA: files[DATA][:begin] + encoded}


def names_of_files(files: Files, dice: random.Random) -> Files:
    """Drop, empty or exchange a file."""
    new_files = dict(files)
    name = dice.choice(sorted(new_files))
    kind = dice.randrange(3)
    if kind == 0:
        del new_files[name]
    elif kind == 1:
        new_files[name] = b""
    else:
        new_files[name] = new_files[dice.choice(sorted(new_files))]
    return new_files


CHANGES: list[Callable[[Files, random.Random], Files]] = [
    bytes_of_a_file, bytes_of_a_file, entry, entry, entry, entry, keys, keys, inside_a_block,
    strings_of_a_tensor, names_of_files,
]  # fmt: skip


def attempt(seed: int, number: int) -> str:
    """Change and read one bundle; return "read", "refused", or the failure."""
    dice = random.Random(f"{seed}/{number}")
    memory_before, begin = memory(), time.process_time()
    with tempfile.TemporaryDirectory() as home:
        outcome = of_state(Path(home), dice) if number % 10 == 9 else of_files(Path(home), dice)
    seconds, growth = time.process_time() - begin, memory() - memory_before
    if seconds > SECONDS:
        return f"{outcome} after {seconds:.1f} s"
    return outcome if growth < MEGABYTES else f"{outcome} with {growth:.0f} MB"


def memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def of_files(home: Path, dice: random.Random) -> str:
    seed_files = dice.choice(SEEDS)
    change = dice.choice(CHANGES)
    files = change(seed_files, dice)
    is_byte_change = change is bytes_of_a_file
    if not is_byte_change:
        for _ in range(dice.choice([0, 0, 1, 2])):
            if is_table(files):
                files = dice.choice([entry, keys])(files, dice)
    put(home / "ckpt", files)
    names = sorted(home.iterdir())
    outcome = judged(home, files, seed_files if is_byte_change else None)
    return outcome if sorted(home.iterdir()) == names else f"{outcome}, and files were changed"


def is_table(files: Files) -> bool:
    try:
        return bool(items_of(files))
    except (CorruptFileError, KeyError):
        return False


def put(prefix: Path, files: Files) -> None:
    for suffix, data in files.items():
        Path(f"{prefix}{suffix}").write_bytes(data)


def judged(home: Path, files: Files, seed_files: Files | None) -> str:
    """Read a bundle; if `seed_files` is given, it must be refused or have the same values."""
    try:
        bundle.describe(home / "ckpt")
        content = bundle.read(home / "ckpt")
    except DOCUMENTED:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    sizes = [tensor.data.nbytes for tensor in content.tensors.values()]
    needed = [prod(tensor.shape) * ITEM_BYTES[tensor.dtype] for tensor in content.tensors.values()]
    if sizes != needed:
        return "another size"
    # In the first format a number of eight bytes may be written with one.
    total = sum(len(data) * (1 if name else 8) for name, data in files.items() if name != ".index")
    if sum(sizes) > total:
        return "more bytes than the files have"
    for tensor in content.tensors.values():
        if tensor.tensor().shape != tensor.shape:
            return "another shape"
    if seed_files is not None:
        put(home / "whole", seed_files)
        is_unchanged = shown(content) == shown(bundle.read(home / "whole"))
        for path in home.glob("whole*"):
            path.unlink()
        if not is_unchanged:
            return "other values"
    return "read"


def shown(content: bundle.Bundle) -> Any:
    tensors = {
        key: (tensor.dtype, tensor.shape, bytes(tensor.data))
        for key, tensor in content.tensors.items()
    }
    return tensors, content.strings, content.graph


def of_state(home: Path, dice: random.Random) -> str:
    """Change the file `checkpoint`: all paths that it names must lie in its folder."""
    run_folder = home / "run"
    run_folder.mkdir()
    (run_folder / "link").symlink_to("/etc")
    paths = [str(run_folder / name) for name in ("model.ckpt-5", "link/x", "sub/é", "a b")]
    text = f'model_checkpoint_path: "model.ckpt-5"\nall_model_checkpoint_paths: "{paths[0]}"\n'
    text += f"all_model_checkpoint_timestamps: 1.5\n# {paths[1]}\nlast_preserved_timestamp: 2\n"
    for _ in range(dice.choice([1, 2, 5])):
        begin = dice.randrange(len(text))
        piece = dice.choice([*TEXTS, *paths])
        text = text[:begin] + piece + text[begin + dice.choice([0, 0, len(piece), 1]) :]
    (run_folder / "checkpoint").write_bytes(
        text.encode() if dice.random() < 0.7 else spoiled(text.encode(), dice)
    )
    try:
        state = bundle.read_state(run_folder)
    except DOCUMENTED:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if state is None:
        return "nothing"
    for path in (state.model_checkpoint_path, *state.all_model_checkpoint_paths):
        if path and not Path(path).resolve().is_relative_to(run_folder.resolve()):
            return f"outside: {path!r}"
    return "read"


def attack(long: bool, seed: int) -> Figures:
    return figures_of(__name__, seed, CASES[long], BATCH, GOOD)
