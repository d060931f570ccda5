"""Initializers and random operations; random numbers come from torch's generators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thalweg._base.execution_context import current_session, graph_of
from thalweg._graph.default_graph import get_default_graph
from thalweg._graph.ops import creation_node
from thalweg.errors import InvalidArgumentError
from thalweg.variable import as_dtype, to_tensor

# Generators of eager mode by their seeds.
_of_eager_mode: dict[int, torch.Generator] = {}

Draw = Callable[[torch.Tensor, torch.Generator | None], torch.Tensor]


def set_random_seed(seed: int | None) -> None:
    """Set the seed of the default graph, which new random operations depend on.

    Also restart the sequences of eager operations with a seed.
    """
    get_default_graph().seed = seed
    _of_eager_mode.clear()


def numbers_of(seed: int | None) -> Callable[[], torch.Generator | None]:
    """Return a function without arguments that returns a random operation's `torch.Generator`.

    If neither `seed` nor the graph's seed is set, the function returns None, for torch's default
    generator. With a seed, each session creates a generator that starts with the seed. In eager
    mode, all operations with equal seeds share one generator.
    """
    graph = graph_of()
    if seed is None and graph is not None and graph.seed is not None:
        # By its index each operation of a seeded graph draws other numbers.
        seed = graph.seed * 1_000_003 + len(graph.get_operations())
    key = object()

    def generator() -> torch.Generator | None:
        session = current_session()
        if seed is None:
            return None
        if session is None:
            if seed not in _of_eager_mode:
                _of_eager_mode[seed] = torch.Generator(device="cpu").manual_seed(seed)
            return _of_eager_mode[seed]
        return session.generator(key, seed)

    return generator


def _random_node(draw: Draw, shape: object, dtype: object, seed: int | None, name: str) -> object:
    """Return a tensor of random numbers; in graph mode, each run draws new numbers.

    `draw(tensor, generator)` fills an empty tensor in place. For `seed` see `numbers_of`.
    """
    generator = numbers_of(seed)

    def draw_values(size: Sequence[int], kind: torch.dtype) -> torch.Tensor:
        source, device = generator(), torch.get_default_device()
        # A seeded generator draws on its own device, unless only the shape is asked for.
        has_own_device = source is not None and device.type != "meta"
        draw_device = source.device if source is not None and has_own_device else device
        return draw(torch.empty(tuple(size), dtype=kind, device=draw_device), source).to(device)

    return creation_node(draw_values, shape, dtype, name)


def random_normal(
    shape: object,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: object = torch.float32,
    seed: int | None = None,
    name: str | None = "random_normal",
) -> Any:
    """Return a tensor of normal random numbers; in a graph each run draws new ones."""
    name = name or "random_normal"
    return _random_node(lambda t, g: t.normal_(mean, stddev, generator=g), shape, dtype, seed, name)


def truncated_normal(
    shape: object,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: object = torch.float32,
    seed: int | None = None,
    name: str | None = "truncated_normal",
) -> Any:
    """Return a tensor of normal random numbers, redrawn beyond two `stddev` from `mean`."""

    def draw_truncated(tensor: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        low, high = mean - 2 * stddev, mean + 2 * stddev
        return torch.nn.init.trunc_normal_(tensor, mean, stddev, low, high, generator=generator)

    return _random_node(draw_truncated, shape, dtype, seed, name or "truncated_normal")


def random_uniform(
    shape: object,
    minval: float = 0,
    maxval: float | None = None,
    dtype: object = torch.float32,
    seed: int | None = None,
    name: str | None = "random_uniform",
) -> Any:
    """Return a tensor of random numbers in [minval, maxval); `maxval` is 1.0 by default.

    Raise InvalidArgumentError if `maxval` is missing for an integer dtype.
    """
    name = name or "random_uniform"
    if as_dtype(dtype).is_floating_point:
        high = 1.0 if maxval is None else maxval
        return _random_node(
            lambda t, g: t.uniform_(minval, high, generator=g), shape, dtype, seed, name
        )
    if maxval is None:
        raise InvalidArgumentError("Must specify maxval for integer dtypes.")
    low, end = int(minval), int(maxval)
    return _random_node(lambda t, g: t.random_(low, end, generator=g), shape, dtype, seed, name)


class Initializer:
    """Base class of initializers: `initializer(shape, dtype)` returns the initial value.

    Subclasses override `__call__` or `_make`. The attribute `dtype` is the default of `dtype`.
    """

    dtype: Any = torch.float32

    def __call__(
        self, shape: Sequence[int], dtype: object = None, partition_info: object = None
    ) -> Any:
        """Return the initial value; `partition_info` is the `SaveSliceInfo` of a shard."""
        return self._make(shape, dtype or self.dtype, partition_info)

    def _make(self, shape: Sequence[int], kind: Any, info: object) -> Any:
        """Return an initial value; `info` is the position of a partitioned variable's part."""
        raise NotImplementedError


class Constant(Initializer):
    """Initializer that fills a tensor with one number, or reshapes several numbers."""

    def __init__(self, value: object = 0, dtype: object = torch.float32) -> None:
        self.value, self.dtype = value, dtype

    def _make(self, shape: Sequence[int], kind: Any, info: object) -> Any:
        def make(size: Sequence[int], kind: torch.dtype) -> torch.Tensor:
            values = to_tensor(self.value, kind)
            return values.expand(size).clone() if values.dim() == 0 else values.reshape(size)

        return creation_node(make, shape, kind, "Const")


class Zeros(Constant):
    """Initializer of zeros."""

    def __init__(self, dtype: object = torch.float32) -> None:
        super().__init__(0, dtype)


class Ones(Constant):
    """Initializer of ones."""

    def __init__(self, dtype: object = torch.float32) -> None:
        super().__init__(1, dtype)


@dataclass(eq=False, repr=False)
class RandomNormal(Initializer):
    """Initializer with normal random numbers."""

    mean: float = 0.0
    stddev: float = 1.0
    seed: int | None = None
    dtype: Any = torch.float32
    _draw = staticmethod(random_normal)

    def _make(self, shape: Sequence[int], kind: Any, info: object) -> Any:
        return self._draw(shape, self.mean, self.stddev, kind, self.seed)


class TruncatedNormal(RandomNormal):
    """Initializer with normal random numbers, redrawn beyond two `stddev` from `mean`."""

    _draw = staticmethod(truncated_normal)


@dataclass(eq=False, repr=False)
class RandomUniform(Initializer):
    """Initializer with uniform random numbers in [minval, maxval)."""

    minval: float = 0
    maxval: float | None = None
    seed: int | None = None
    dtype: Any = torch.float32

    def _make(self, shape: Sequence[int], kind: Any, info: object) -> Any:
        return random_uniform(shape, self.minval, self.maxval, kind, self.seed)


class GlorotUniform(Initializer):
    """Initializer with uniform numbers in [-r, r), r = sqrt(6 / (inputs + outputs)).

    (Glorot & Bengio 2010.) Inputs and outputs are the sizes of the last two dimensions, multiplied
    by the sizes of all earlier dimensions.
    """

    def __init__(self, seed: int | None = None, dtype: object = torch.float32) -> None:
        self.seed, self.dtype = seed, dtype

    def _make(self, shape: Sequence[int], kind: Any, info: object) -> Any:
        # The parts of a partitioned variable are drawn as those of the whole.
        inputs, outputs = fans(tuple(getattr(info, "full_shape", shape)))
        limit = math.sqrt(3.0 / max(1.0, (inputs + outputs) / 2.0))
        return random_uniform(shape, -limit, limit, kind, self.seed)


def as_initializer(initializer: Any, dtype: torch.dtype) -> Any:
    """Return an initializer unchanged, or an instance of a class.

    For None return Glorot's uniform distribution for floats, and zeros for other dtypes.
    """
    if initializer is None:
        return GlorotUniform() if dtype.is_floating_point else Zeros()
    return initializer() if isinstance(initializer, type) else initializer


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """Return the numbers of inputs and outputs that a kernel of this shape connects."""
    if len(shape) < 2:
        return math.prod(shape), math.prod(shape)
    field = math.prod(shape[:-2])
    return shape[-2] * field, shape[-1] * field


zeros_initializer = Zeros
ones_initializer = Ones
constant_initializer = Constant
random_normal_initializer = RandomNormal
random_uniform_initializer = RandomUniform
truncated_normal_initializer = TruncatedNormal
glorot_uniform_initializer = GlorotUniform
