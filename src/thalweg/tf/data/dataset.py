"""`tf.data.Dataset`: sequences of elements."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch

from thalweg._base.execution_context import executing_eagerly, is_symbolic, resolve
from thalweg._base.lazy import lazy
from thalweg._core.nest import leaves_of, mapped
from thalweg._graph.feeds_and_fetches import exported
from thalweg.errors import FailedPreconditionError, InvalidArgumentError, did_you_mean
from thalweg.tf.data import spec as specs
from thalweg.tf.data.iterators import Iterator as EagerIterator
from thalweg.tf.data.iterators import make_initializable_iterator, make_one_shot_iterator
from thalweg.tf.data.transformations import (
    as_int,
    batches,
    checked,
    draw_below,
    padded,
    shuffle_elements,
)
from thalweg.variable import as_dtype

# The number of elements of an endless dataset.
_INFINITE = math.inf
Values = dict[Any, Any]
Start = Callable[[Values], Iterator[Any]]


class Dataset:
    """Sequence of elements: tensors, or tuples and dicts of tensors.

    The thread that iterates reads the dataset. Functions run eagerly, as plain Python, also for an
    iterator of a graph. `from_tensor_slices` and `from_tensors` accept symbolic tensors. Their
    values are computed in the run that initializes the iterator.

    Example:
        >>> dataset = Dataset.from_tensor_slices([1, 2, 3, 4, 5]).map(lambda x: x * 10).batch(2)
        >>> [each.tolist() for each in dataset]
        [[10, 20], [30, 40], [50]]
    """

    def __init__(
        self,
        start: Start,
        spec: Callable[[], object],
        symbols: tuple[object, ...] = (),
        count: float | None = None,
    ) -> None:
        self._start, self._find_spec, self._symbols = start, spec, symbols
        # None for an unknown number of elements.
        self._count = count

    @lazy
    def element_spec(self) -> Any:
        """Nest of a `TensorSpec` for each tensor of an element."""
        return self._find_spec()

    def _begin_iteration(self) -> Iterator[Any]:
        return self._start({symbol: resolve(symbol) for symbol in self._symbols})

    def _add_step(
        self,
        step: Callable[[Iterator[Any]], Iterator[Any]],
        spec: Any = None,
        count_after: Callable[[int], float | None] = int,
    ) -> Dataset:
        """Return a dataset with the elements of `step(iterator over this dataset)`.

        `spec()` returns the new `element_spec`; None leaves it unchanged. `count_after(n)` returns
        the new number of elements, None if unknown, if this dataset has n; by default it returns n.
        """
        find = spec or (lambda: self.element_spec)
        count = self._count
        if count is not None and count != _INFINITE:
            count = count_after(int(count))
        return Dataset(lambda values: step(self._start(values)), find, self._symbols, count)

    def _add_sized_step(
        self,
        argument: str,
        size: object,
        step: Callable[[Iterator[Any], int], Iterator[object]],
        spec: Any = None,
        count_after: Callable[[int], float | None] = int,
    ) -> Dataset:
        """Return a dataset with the elements of `step(iterator over this dataset, size)`.

        `size` is an integer above 0, or a symbolic tensor that is evaluated when a run initializes
        the iterator. `argument` names it in messages. See `_add_step` for `spec` and `count_after`.
        """
        if not is_symbolic(size):
            size = checked(argument, size)
            return self._add_step(lambda elements: step(elements, size), spec, count_after)
        return Dataset(
            lambda values: step(self._start(values), checked(argument, values[size])),
            spec or (lambda: self.element_spec),
            (*self._symbols, size),
        )

    @classmethod
    def _of_elements(
        cls, tensors: object, elements: Callable[[Any], Iterator[object]], spec: Any, count_of: Any
    ) -> Dataset:
        tensors = specs.converted(tensors)
        symbols = tuple(leaf for leaf in leaves_of(tensors) if is_symbolic(leaf))

        def start(values: Values) -> Iterator[Any]:
            run_values = mapped(lambda leaf: values[leaf] if is_symbolic(leaf) else leaf, tensors)
            return elements(mapped(torch.Tensor.detach, run_values))

        count = None if symbols else count_of(next(leaves_of(tensors)))
        return cls(start, lambda: mapped(spec, specs.spec_of(tensors)), symbols, count)

    @staticmethod
    def from_tensor_slices(tensors: object, name: str | None = None) -> Dataset:
        """Return a dataset with one element for each row of the tensors.

        Raises:
            InvalidArgumentError: Raised by iteration: tensors have different numbers of rows.
        """

        def rows(nest: object) -> Iterator[object]:
            counts = {len(leaf) for leaf in leaves_of(nest)}
            if len(counts) != 1:
                raise InvalidArgumentError(f"All must have as many rows, not {sorted(counts)}.")
            (count,) = counts
            return (mapped(operator.itemgetter(place), nest) for place in range(count))

        return Dataset._of_elements(tensors, rows, specs.row, len)

    @staticmethod
    def from_tensors(tensors: object, name: str | None = None) -> Dataset:
        """Return a dataset with a single element."""
        return Dataset._of_elements(
            tensors, lambda nest: iter([nest]), lambda spec: spec, lambda _: 1
        )

    @staticmethod
    def from_generator(
        generator: Callable[..., Any],
        output_types: object = None,
        output_shapes: object = None,
        args: tuple[object, ...] = (),
        output_signature: object = None,
        name: str | None = None,
    ) -> Dataset:
        """Return a dataset of the values that `generator(*args)` yields.

        Each iteration calls `generator`. An element is described by `output_types`, optionally with
        `output_shapes`, or by `output_signature`, a nest of `TensorSpec`. Raise TypeError if both
        are missing, or if `generator` is not callable.
        """
        if not callable(generator):
            raise TypeError("generator must be callable.")
        if output_types is None and output_signature is None:
            raise TypeError("Either output_types or output_signature must be given.")
        if isinstance(output_types, list):
            output_types = tuple(output_types)
        spec = output_signature
        if spec is None:
            spec = specs.pair_specs(output_types, output_shapes)
        dtypes = mapped(lambda tensor_spec: tensor_spec.dtype, spec)
        generator_args = [np.asarray(arg) for arg in args]

        def start(_: Values) -> Iterator[Any]:
            for element in generator(*generator_args):
                element = tuple(element) if isinstance(dtypes, tuple) else element
                yield specs.converted(element, dtypes)

        return Dataset(start, lambda: spec)

    @staticmethod
    def range(*args: int, output_type: object = torch.int64, name: str | None = None) -> Dataset:
        """Return a dataset of the numbers of Python's `range`."""
        kind = as_dtype(output_type)
        values = range(*map(int, args))
        return Dataset(
            lambda _: (torch.tensor(value, dtype=kind, device="cpu") for value in values),
            lambda: specs.TensorSpec((), kind),
            count=len(values),
        )

    @staticmethod
    def zip(*args: Any, datasets: Any = None, name: str | None = None) -> Dataset:
        """Return a dataset of tuples with one element of each dataset, as Python's `zip`."""
        datasets_or_one = args[0] if datasets is None and len(args) == 1 else datasets or args
        sources = (
            [datasets_or_one] if isinstance(datasets_or_one, Dataset) else list(datasets_or_one)
        )
        symbols = tuple(symbol for source in sources for symbol in source._symbols)
        counts: list[Any] = [source._count for source in sources]
        return Dataset(
            lambda values: zip(*(source._start(values) for source in sources)),
            lambda: tuple(source.element_spec for source in sources),
            symbols,
            None if None in counts else min(counts),
        )

    def concatenate(self, dataset: Dataset, name: str | None = None) -> Dataset:
        """Return a dataset of the elements of this dataset, then the elements of `dataset`."""
        counts: list[Any] = [self._count, dataset._count]
        return Dataset(
            lambda values: itertools.chain(
                self._start(values),
                # Deferred: the second dataset starts when the first one has ended.
                (element for source in [dataset] for element in source._start(values)),
            ),
            lambda: self.element_spec,
            self._symbols + dataset._symbols,
            None if None in counts else sum(counts),
        )

    def map(
        self, map_func: Callable[..., object], num_parallel_calls: object = None, **options: object
    ) -> Dataset:
        """Return a dataset of `map_func(element)`, or `map_func(*element)` for tuples.

        All other arguments are ignored: there is one thread.
        """

        def call(element: object) -> Any:
            return specs.converted(_call_with_element(map_func, element))

        def step(elements: Iterator[object]) -> Iterator[object]:
            return map(call, elements)

        def spec() -> Any:
            return specs.after(call, self.element_spec, lambda: step(self._begin_iteration()))

        return self._add_step(step, spec)

    def flat_map(self, map_func: Callable[..., object], name: str | None = None) -> Dataset:
        """Return a dataset of the elements of each dataset `map_func(element)`, in order."""

        def inner(element: object) -> Dataset:
            child = _call_with_element(map_func, element)
            if not isinstance(child, Dataset):
                raise TypeError(f"map_func must return a Dataset, not {type(child).__name__}.")
            return child

        def step(elements: Iterator[object]) -> Iterator[object]:
            return (
                inner_element
                for element in elements
                for inner_element in inner(element)._begin_iteration()
            )

        def spec() -> Any:
            first = next(self._begin_iteration(), None)
            if first is None:
                raise InvalidArgumentError("Nothing is known of a flat_map over no elements.")
            return inner(first).element_spec

        return self._add_step(step, spec, lambda _: None)

    def filter(self, predicate: Callable[..., object], name: str | None = None) -> Dataset:
        """Return a dataset of the elements for which the predicate is true."""

        def step(elements: Iterator[object]) -> Iterator[object]:
            return (x for x in elements if bool(_call_with_element(predicate, x)))

        return self._add_step(step, count_after=lambda _: None)

    def take(self, count: int, name: str | None = None) -> Dataset:
        """Return the first elements, all for a negative count."""
        size = as_int("count", count)
        end = size if size >= 0 else None
        prefix = self._slice_elements(0, end)
        if self._count == _INFINITE and end is not None:
            prefix._count = end
        return prefix

    def skip(self, count: int, name: str | None = None) -> Dataset:
        """Return a dataset without the first elements, empty for a negative count."""
        begin = as_int("count", count)
        return self._slice_elements(0, 0) if begin < 0 else self._slice_elements(begin)

    def shard(self, num_shards: int, index: int, name: str | None = None) -> Dataset:
        """Return a dataset of each `num_shards`-th element, from `index` on.

        Raise InvalidArgumentError if `num_shards` is below 1, or `index` not in [0, num_shards).
        """
        shard_count, begin = checked("num_shards", num_shards), as_int("index", index)
        if not 0 <= begin < shard_count:
            raise InvalidArgumentError(f"index must be in [0, {num_shards}), not {index}.")
        return self._slice_elements(begin, None, shard_count)

    def _slice_elements(self, begin: int, end: int | None = None, step: int = 1) -> Dataset:
        return self._add_step(
            lambda elements: itertools.islice(elements, begin, end, step),
            count_after=lambda count: len(range(count)[begin:end:step]),
        )

    def enumerate(self, start: int = 0, name: str | None = None) -> Dataset:
        """Return a dataset of pairs of an int64 number and the element."""
        index_spec = specs.TensorSpec((), torch.int64)
        as_tensor = partial(torch.tensor, dtype=torch.int64, device="cpu")
        return self._add_step(
            lambda elements: ((as_tensor(i), x) for i, x in enumerate(elements, int(start))),
            lambda: (index_spec, self.element_spec),
        )

    def batch(self, batch_size: object, drop_remainder: bool = False, **options: object) -> Dataset:
        """Return a dataset of batches of stacked elements.

        The last batch may be smaller; `drop_remainder` drops a smaller batch. `batch_size` may be a
        symbolic tensor, evaluated in the run that initializes the iterator.
        """

        def step(elements: Iterator[object], size: int) -> Iterator[object]:
            return batches(elements, size, drop_remainder)

        def spec(size: int | None) -> Any:
            return mapped(lambda each: specs.batch(each, size), self.element_spec)

        return self._add_batching(batch_size, drop_remainder, step, spec)

    def _add_batching(
        self,
        batch_size: object,
        drop_remainder: bool,
        step: Callable[[Iterator[Any], int], Iterator[object]],
        spec: Callable[[int | None], object],
    ) -> Dataset:
        """Return a dataset of the batches of `step(iterator, batch_size)`.

        `spec(size)` returns the specification of a batch; a size of None means different sizes.
        """
        size = None if is_symbolic(batch_size) else checked("batch_size", batch_size)

        def count_batches(count: int) -> int:
            return count // (size or 1) if drop_remainder else -(-count // (size or 1))

        fixed_size = size if drop_remainder else None
        return self._add_sized_step(
            "batch_size", batch_size, step, lambda: spec(fixed_size), count_batches
        )

    def padded_batch(
        self,
        batch_size: object,
        padded_shapes: object = None,
        padding_values: object = None,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Return a dataset of batches of tensors, padded at the end to one shape per batch.

        Args:
            batch_size, drop_remainder: As in `batch`.
            padded_shapes: A shape for each tensor of an element. A size of None or -1, or a shape
                of None, means the largest size in a batch.
            padding_values: A number for each tensor, or a single number; None is 0.

        Raises:
            InvalidArgumentError: Iteration fails: a tensor is larger than its shape, an argument
                lacks the structure of an element, or a padding value is symbolic.
            TypeError: Iteration fails: a padding value does not fit a tensor's dtype.
        """

        def sizes() -> list[Any]:
            return specs.shapes_for(self.element_spec, padded_shapes)

        def step(elements: Iterator[object], size: int) -> Iterator[object]:
            values = specs.values_for(self.element_spec, padding_values)
            return batches(elements, size, drop_remainder, padded(sizes(), values))

        def spec(size: int | None) -> Any:
            shapes = iter(sizes())
            return mapped(lambda each: specs.padded(each, size, next(shapes)), self.element_spec)

        return self._add_batching(batch_size, drop_remainder, step, spec)

    def repeat(self, count: int | None = None, name: str | None = None) -> Dataset:
        """Return a dataset of the elements repeated `count` times.

        None or a negative count repeats forever.
        """
        times = _INFINITE if count is None else as_int("count", count)
        times = _INFINITE if times < 0 else times

        def start(values: Values) -> Iterator[Any]:
            for _ in itertools.count() if times == _INFINITE else range(int(times)):
                is_empty = True
                for element in self._start(values):
                    is_empty = False
                    yield element
                # To repeat an empty dataset for ever would never return.
                if is_empty:
                    return

        # The product of 0 and infinity would be NaN.
        total = 0 if not times or self._count == 0 else self._count and self._count * times
        return Dataset(start, lambda: self.element_spec, self._symbols, total)

    def shuffle(
        self,
        buffer_size: object,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = None,
        name: str | None = None,
    ) -> Dataset:
        """Return a dataset in random order, drawn from a buffer of `buffer_size` elements.

        Without `seed`, random numbers follow `tf.random.set_seed`. Each iteration has a new order,
        unless `reshuffle_each_iteration` is False. `buffer_size` may be a symbolic tensor.
        """
        generators: list[torch.Generator] = []

        def step(elements: Iterator[object], size: int) -> Iterator[object]:
            # Iterations share one generator, so that each has another order.
            if not generators:
                begin = draw_below(2**31) if seed is None else int(seed)
                generators.append(torch.Generator(device="cpu").manual_seed(begin))
            if reshuffle_each_iteration is False:
                generators[0].manual_seed(generators[0].initial_seed())
            yield from shuffle_elements(elements, size, generators[0])

        return self._add_sized_step("buffer_size", buffer_size, step)

    def cache(self, filename: str = "", name: str | None = None) -> Dataset:
        """Return a dataset that stores the elements of its first complete iteration in memory.

        Raise NotImplementedError if `filename` is given.
        """
        if filename:
            raise NotImplementedError("cache() keeps elements in memory only: name no file.")
        shared: Values = {}

        def start(values: Values) -> Iterator[Any]:
            # With symbolic inputs, elements may differ between runs of the initializer.
            caches = values if self._symbols else shared
            if dataset not in caches:
                elements = []
                for element in self._start(values):
                    elements.append(element)
                    yield element
                caches[dataset] = elements
            else:
                yield from caches[dataset]

        dataset = Dataset(start, lambda: self.element_spec, self._symbols, self._count)
        return dataset

    def prefetch(self, buffer_size: Any, name: str | None = None) -> Dataset:
        """Return the dataset unchanged: elements are computed on demand.

        Raise InvalidArgumentError if `buffer_size` is below -1, which is `AUTOTUNE`.
        """
        if buffer_size is not None and not is_symbolic(buffer_size) and int(buffer_size) < -1:
            raise InvalidArgumentError(f"buffer_size must be at least -1, not {buffer_size}.")
        return self

    def with_options(self, options: object, name: str | None = None) -> Dataset:
        """Return the dataset unchanged."""
        return self

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """Return the result of a function of the dataset."""
        return transformation_func(self)

    make_one_shot_iterator = make_one_shot_iterator
    make_initializable_iterator = make_initializable_iterator
    output_types = property(specs.get_output_types)
    output_shapes = property(specs.get_output_shapes)

    def cardinality(self) -> int:
        """Return the number of elements; -1 for infinite datasets, -2 if unknown."""
        return -2 if self._count is None else -1 if self._count == _INFINITE else int(self._count)

    def __len__(self) -> int:
        if self.cardinality() < 0:
            raise TypeError("The dataset has no end, or its length is not known.")
        return self.cardinality()

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> EagerIterator:
        if not executing_eagerly():
            raise FailedPreconditionError(
                "A dataset is iterated in eager mode only; in a graph use make_one_shot_iterator"
                " or make_initializable_iterator."
            )
        return EagerIterator(self._begin_iteration(), self)

    def as_numpy_iterator(self) -> Iterator[Any]:
        """Yield the elements as arrays."""
        return (mapped(exported, element) for element in self)

    def __getattr__(self, name: str) -> NoReturn:
        suggestion = did_you_mean(name, vars(Dataset))
        raise AttributeError(
            f"Dataset has no {name!r}; {suggestion or 'use from_generator, or torch.utils.data.'}",
            name=name,
        )


def _call_with_element(function: Callable[..., object], element: object) -> object:
    return function(*element) if isinstance(element, tuple) else function(element)
