"""`tf.initializers`: initial values, with random numbers of torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thalweg import _graph
from thalweg._graph import (
    Initializer,
    constant_initializer,
    global_variables_initializer,
    glorot_uniform_initializer,
    local_variables_initializer,
    ones_initializer,
    random_normal_initializer,
    random_uniform_initializer,
    truncated_normal_initializer,
    variables_initializer,
    zeros_initializer,
)
from thalweg._graph.initializers import fans
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.tf.convert import call
from thalweg.tf.missing import attribute_of
from thalweg.variable import as_dtype

# The standard deviation of a normal distribution that is cut at two deviations.
_CUT = 0.87962566103423978


class VarianceScaling(Initializer):
    """Initializer of random numbers with variance `scale` / n.

    Args:
        scale: A number above 0.
        mode: n is the number of inputs for "fan_in", the number of outputs for "fan_out", and the
            mean of inputs and outputs for "fan_avg".
        distribution: "truncated_normal" or "normal", "untruncated_normal", or "uniform".
        dtype: The default dtype of a call.

    Raises:
        InvalidArgumentError: An argument is not valid.
    """

    MODES = ("fan_in", "fan_out", "fan_avg")
    DISTRIBUTIONS = ("normal", "truncated_normal", "untruncated_normal", "uniform")

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: int | None = None,
        dtype: object = torch.float32,
    ) -> None:
        self.scale, self.mode, self.distribution = scale, mode.lower(), distribution.lower()
        if not scale > 0:
            raise InvalidArgumentError(f"scale must be above 0, not {scale}.")
        for choice, choices in ((self.mode, self.MODES), (self.distribution, self.DISTRIBUTIONS)):
            if choice not in choices:
                raise InvalidArgumentError(f"{choice!r} is none of {', '.join(choices)}.")
        self.seed, self.dtype = seed, dtype

    def _make(self, shape: Sequence[int], kind: Any, info: object) -> torch.Tensor:
        # Parts of a partitioned variable have the variance of the full variable.
        inputs, outputs = fans(tuple(getattr(info, "full_shape", shape)))
        size = {"fan_in": inputs, "fan_out": outputs, "fan_avg": (inputs + outputs) / 2}[self.mode]
        variance = self.scale / max(1.0, size)
        if self.distribution == "uniform":
            limit = math.sqrt(3 * variance)
            return _graph.random_uniform(shape, -limit, limit, kind, self.seed)
        if self.distribution == "untruncated_normal":
            return _graph.random_normal(shape, 0.0, math.sqrt(variance), kind, self.seed)
        return _graph.truncated_normal(shape, 0.0, math.sqrt(variance) / _CUT, kind, self.seed)


def _variance_scaling(
    scale: float, mode: str, distribution: str, doc_start: str
) -> Callable[..., Any]:
    def make(seed: int | None = None, dtype: object = torch.float32) -> VarianceScaling:
        return VarianceScaling(scale, mode, distribution, seed, dtype)

    make.__doc__ = f"{doc_start}: `VarianceScaling({scale}, {mode!r}, {distribution!r})`."
    return make


class Orthogonal(Initializer):
    """Initializer of an orthogonal matrix times `gain`; the last dimension is the columns.

    If there are more rows than columns, columns are orthogonal, otherwise rows.
    """

    def __init__(
        self, gain: float = 1.0, seed: int | None = None, dtype: object = torch.float32
    ) -> None:
        self.gain, self.seed, self.dtype = gain, seed, dtype

    def _make(self, shape: Sequence[int], kind: Any, info: object) -> torch.Tensor:
        if len(shape) < 2:
            raise InvalidArgumentError("An orthogonal tensor must have at least two dimensions.")
        rows, columns = math.prod(shape[:-1]), shape[-1]
        flat = (max(rows, columns), min(rows, columns))
        normal = _graph.random_normal(flat, 0.0, 1.0, kind, self.seed)

        def turn(matrix: object) -> torch.Tensor:
            q, r = torch.linalg.qr(matrix)
            # Without the signs, q would not be uniformly distributed over orthogonal matrices.
            q = q * torch.sign(torch.diagonal(r))
            return self.gain * (q.T if rows < columns else q).reshape(tuple(shape))

        return call(turn, normal, name="orthogonal")


class Identity(Initializer):
    """Initializer of an identity matrix times `gain`."""

    def __init__(self, gain: float = 1.0, dtype: object = torch.float32) -> None:
        self.gain, self.dtype = gain, dtype

    def _make(self, shape: Sequence[int], kind: Any, info: object) -> torch.Tensor:
        if len(shape) != 2:
            raise InvalidArgumentError("An identity matrix has two dimensions.")
        kind = as_dtype(kind)
        full_shape = getattr(info, "full_shape", shape)
        identity = torch.eye(*full_shape, dtype=kind, device=torch.get_default_device())
        # A part of a partitioned variable has its rows of the whole.
        for axis, start in enumerate(getattr(info, "var_offset", ())):
            identity = identity.narrow(axis, start, shape[axis])
        return _graph.constant(self.gain * identity)


class UniformUnitScaling(Initializer):
    """Initializer of uniform numbers in [-r, r), r = factor * sqrt(3 / inputs)."""

    def __init__(
        self, factor: float = 1.0, seed: int | None = None, dtype: object = torch.float32
    ) -> None:
        self.factor, self.seed, self.dtype = factor, seed, dtype

    def _make(self, shape: Sequence[int], kind: Any, info: object) -> torch.Tensor:
        full_shape = getattr(info, "full_shape", shape)
        limit = math.sqrt(3 / max(1.0, math.prod(full_shape[:-1]))) * self.factor
        return _graph.random_uniform(shape, -limit, limit, kind, self.seed)


_AVERAGE = (1.0, "fan_avg")
zeros = zeros_initializer
ones = ones_initializer
constant = constant_initializer
random_normal = random_normal_initializer
random_uniform = random_uniform_initializer
truncated_normal = truncated_normal_initializer
variance_scaling = VarianceScaling
orthogonal = Orthogonal
identity = Identity
uniform_unit_scaling = UniformUnitScaling
glorot_uniform = xavier_uniform = glorot_uniform_initializer
glorot_normal = _variance_scaling(
    *_AVERAGE, "truncated_normal", "Normal numbers (Glorot & Bengio 2010)"
)
he_normal = _variance_scaling(2.0, "fan_in", "truncated_normal", "Normal numbers (He et al. 2015)")
he_uniform = _variance_scaling(2.0, "fan_in", "uniform", "Uniform numbers (He et al. 2015)")
lecun_normal = _variance_scaling(1.0, "fan_in", "truncated_normal", "Normal numbers (LeCun 1998)")
lecun_uniform = _variance_scaling(1.0, "fan_in", "uniform", "Uniform numbers (LeCun 1998)")
global_variables = global_variables_initializer
local_variables = local_variables_initializer
variables = variables_initializer

_BY_NAME = (
    "zeros", "ones", "constant", "random_normal", "random_uniform", "truncated_normal",
    "variance_scaling", "orthogonal", "identity", "glorot_uniform", "glorot_normal", "he_normal",
    "he_uniform", "lecun_normal", "lecun_uniform",
)  # fmt: skip


def get(identifier: object) -> Any:
    """Make an initializer from a name or a class; return None or an initializer unchanged.

    Raises:
        InvalidArgumentError: No initializer has this name.
        InvalidTypeError: The identifier is neither a name, a class nor callable.
    """
    if isinstance(identifier, str):
        name = identifier.removesuffix("_initializer")
        if name not in _BY_NAME:
            raise InvalidArgumentError(f"{identifier!r} is none of {', '.join(_BY_NAME)}.")
        return globals()[name]()
    if isinstance(identifier, type):
        return identifier()
    if identifier is not None and not callable(identifier):
        raise InvalidTypeError(f"{identifier!r} is no initializer.")
    return identifier


__getattr__ = attribute_of("compat.v1.initializers")
