"""Datasets: where the elements of an array are, and the array."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np

from thalweg._formats.hdf5 import filters, headers, types
from thalweg._formats.hdf5.attributes import TextAttribute
from thalweg._formats.hdf5.headers import HeaderMessage
from thalweg._formats.hdf5.trees import iterate_leaves
from thalweg._formats.source import FilePart, SourceFile
from thalweg._formats.stored_tensor import StoredTensor
from thalweg.errors import UnsafeCheckpointError

RATIO = 1032  # how many bytes a stored one may stand for: the best that deflate can do
_MOST = 2**60  # elements, and those that there would be if no extent were 0
_COMPACT, _CONTIGUOUS, _CHUNKED, _VIRTUAL = range(4)


class ArrayDataset:
    """An array of a file, not read yet.

    Args:
        source: The file.
        name: Its path.
        messages: Those of its header.
        attributes: Its attributes.

    Attributes:
        name: Its path.
        attributes: Its attributes by name.
        elements: The type of its elements.
        shape: Its shape.

    Raises:
        UnsafeCheckpointError: Its elements are in other files, or references.
        UnsupportedCheckpointError: They are no numbers, or were filtered by a plugin.
    """

    def __init__(
        self,
        source: SourceFile,
        name: str,
        messages: list[HeaderMessage],
        attributes: Mapping[str, TextAttribute],
    ) -> None:
        self.name, self.attributes, self._source = name, attributes, source
        bodies = dict(reversed(messages))
        if headers.EXTERNAL_FILES in bodies:
            raise self._unsafe_error(bodies[headers.EXTERNAL_FILES], "elements are in other files")
        self._layout = bodies[headers.LAYOUT]
        self._check_virtual()
        begin = self._layout.offset
        if headers.DATATYPE not in bodies or headers.DATASPACE not in bodies:
            raise source.data_loss_error(begin, f"{name!r} has no type or no shape")
        self.elements = types.parse_elements(bodies[headers.DATATYPE])
        shape = types.parse_shape(bodies[headers.DATASPACE])
        self._filters: list[int] = []
        if headers.FILTERS in bodies:
            self._filters = filters.filter_pipeline(bodies[headers.FILTERS])
        self.shape = (0,) if shape is None else shape
        self._count = math.prod(self.shape)
        if math.prod(extent or 1 for extent in self.shape) >= _MOST:
            raise source.data_loss_error(begin, f"{name!r} has the shape {self.shape}")

    def _unsafe_error(self, body: FilePart, text: str) -> UnsafeCheckpointError:
        return self._source.unsafe_error(body.offset, f"{self.name!r}: {text}")

    def _check_virtual(self) -> None:
        data = bytes(self._layout.data[:2])
        if data[:1] >= b"\4" and data[1:] == bytes([_VIRTUAL]):
            raise self._unsafe_error(self._layout, "a virtual dataset, elements are in other files")

    def read(self, dtype: str | None = None) -> StoredTensor:
        """Return the array, little-endian.

        Args:
            dtype: What bytes without a meaning are to be taken for.

        Raises:
            DataLossError: Its elements are not all there.
            UnsupportedCheckpointError: They are no numbers, or are stored as only later versions
                of HDF5 do.
        """
        kind = self.elements
        if kind.dtype in ("string", "text") or (kind.dtype == "opaque" and dtype is None):
            text = f"{self.name!r} has elements that are no numbers"
            raise self._source.unsupported_error(self._layout.offset, text)
        data = self._read_data(self._count * kind.size)
        if kind.is_swapped:
            swapped = np.frombuffer(data, f">u{kind.size}").astype(f"<u{kind.size}")
            data = swapped.data.cast("B")
        if kind.dtype == "BOOL" and np.frombuffer(data, np.uint8).max(initial=0) > 1:
            raise self._source.data_loss_error(
                self._layout.offset, f"{self.name!r} has no booleans"
            )
        return StoredTensor(
            dtype if dtype and kind.dtype == "opaque" else kind.dtype, self.shape, data
        )

    def _read_data(self, size: int) -> memoryview:
        body, source = self._layout, self._source
        begin = body.offset
        version = body.take_version((3, 4, 5), "layouts")
        kind = body.take_number(1)
        if kind == _COMPACT:
            return self._check_size(body.take_part(body.take_number(2)), size)
        if kind == _CONTIGUOUS:
            address, stored = body.take_address(), body.take_number(8)
            if not size:
                return memoryview(b"")
            if address is None or stored != size:
                raise self._size_error(size, 0 if address is None else stored)
            source.visit_once(address, f"the elements of {self.name!r}")
            return source.read_part(address, size, f"{self.name!r}").data
        if kind != _CHUNKED:
            raise source.data_loss_error(begin, f"{self.name!r} has a layout of class {kind}")
        if version == 3:
            return self._read_chunked(body, size)
        text = f"{self.name!r} has chunks as HDF5 1.10 stores them"
        raise source.unsupported_error(begin, f"{text}; copy the file with `h5repack -l CONTI`")

    def _check_size(self, part: FilePart, size: int) -> memoryview:
        if len(part.data) != size:
            raise self._size_error(size, len(part.data))
        return part.data

    def _size_error(self, size: int, stored: int) -> Exception:
        text = f"{self.name!r} should have {size} bytes, and {stored} are stored"
        return self._source.data_loss_error(self._layout.offset, text)

    def _read_chunked(self, body: FilePart, size: int) -> memoryview:
        """The elements, out of blocks of one shape that may stand out at the ends."""
        source, shape, width = self._source, self.shape, self.elements.size
        begin, rank = body.offset, body.take_number(1) - 1
        tree = body.take_address()
        chunk = tuple(body.take_number(4) for _ in range(max(rank, 0)))
        if rank != len(shape) or not rank or body.take_number(4) != width or 0 in chunk:
            raise source.data_loss_error(
                begin, f"{self.name!r} of shape {shape} has chunks of {chunk}"
            )
        if not size:
            return memoryview(b"")
        counts = [-(-extent // step) for extent, step in zip(shape, chunk, strict=True)]
        if tree is None:
            raise self._size_error(size, 0)
        found = list(iterate_leaves(source, tree, kind=1, width=8 + 8 * (rank + 1)))
        if len(found) != math.prod(counts):
            text = f"{self.name!r} has {len(found)} chunks and should have {math.prod(counts)}"
            raise source.data_loss_error(begin, text)
        whole = math.prod(chunk) * width
        stored = sum(int.from_bytes(key.data[:4], "little") for key, _ in found)
        if stored > source.size or max(size, len(found) * whole) > RATIO * stored:
            raise self._size_error(size, stored)
        made = np.empty(shape, f"V{width}")
        starts = itertools.product(*(range(count) for count in counts))
        for (key, address), places in zip(found, starts, strict=True):
            corner = tuple(place * step for place, step in zip(places, chunk, strict=True))
            block = self._read_chunk(key, address, corner, whole)
            made_part = tuple(slice(at, at + step) for at, step in zip(corner, chunk, strict=True))
            taken = tuple(
                slice(min(step, extent - at))
                for at, step, extent in zip(corner, chunk, shape, strict=True)
            )
            made[made_part] = np.frombuffer(block, f"V{width}").reshape(chunk)[taken]
        return made.view(np.uint8).reshape(-1).data

    def _read_chunk(
        self, key: FilePart, address: int, corner: tuple[int, ...], size: int
    ) -> memoryview:
        source, begin = self._source, key.offset
        stored, mask = key.take_number(4), key.take_number(4)
        given = tuple(key.take_number(8) for _ in corner)
        if given != corner:
            raise source.data_loss_error(
                begin, f"{self.name!r} has a chunk at {given} and not at {corner}"
            )
        source.visit_once(address, f"a chunk of {self.name!r}")
        data = source.read_part(address, stored, f"a chunk of {self.name!r}").data
        used = [each for bit, each in enumerate(self._filters) if not mask >> bit & 1]
        done = filters.undo_filters(source, address, data, used, size, self.elements.size)
        return memoryview(done)
