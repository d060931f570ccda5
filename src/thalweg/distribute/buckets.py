"""Buckets (buffers that send several tensors in one message), and compression to 16 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from thalweg._base.context_managers import outside_inference
from thalweg._base.storage_use_count import count_holders
from thalweg.distribute.process_group import Pending, Ranks
from thalweg.distribute.tree_reduction import over_ranks

# Bytes per bucket, as in torch's DistributedDataParallel.
SIZE = 25 * 2**20


@dataclass
class Sending:
    """Settings of the transfer of gradients.

    Attributes:
        bucket_size: Bytes per bucket.
        ordered: True if gradients are added in the order of a tree over the ranks.
        compression: The 16-bit dtype in which gradients are sent; None does not compress.
        micro_batches: The argument of the last call of `Strategy.gradients`; None before a call.
    """

    bucket_size: int = SIZE
    ordered: bool = False
    compression: torch.dtype | None = None
    micro_batches: int | None = None

    def describe(self) -> list[str]:
        """Return one line "name: value" per setting that must be equal on all ranks.

        `micro_batches` and torch's number of threads are included only if `ordered`.
        """
        names = [
            field.name for field in fields(self) if self.ordered or field.name != "micro_batches"
        ]
        lines = [f"{name} of the strategy: {getattr(self, name)}" for name in names]
        threads = f"threads of torch: {torch.get_num_threads()}"
        return [*lines, threads] if self.ordered else lines


BucketT = TypeVar("BucketT")


class Bucket:
    """Contiguous buffer of several tensors, which is summed over the ranks in one message.

    Args:
        indices: The indices of the tensors.
        templates: The tensors, of one dtype and on one device; their values do not matter.

    Attributes:
        indices: The indices of the tensors.
        copies: {index: view of the buffer in the tensor's shape}.
        dtype: The dtype of the tensors.
    """

    # Sent instead of the buffer, divided by `_divisor`.
    _low_precision: Tensor | None = None
    _divisor = 1
    _pending: Pending | None = None

    def __init__(self, indices: Sequence[int], templates: Sequence[Tensor]) -> None:
        self.indices = list(indices)
        # Torch's collectives do not support complex numbers.
        reals = [
            torch.view_as_real(template) if template.is_complex() else template
            for template in templates
        ]
        # A later step outside of inference mode may refill the memory.
        with outside_inference():
            self._flat = reals[0].new_empty(sum(template.numel() for template in reals))
        slices = torch.split(self._flat, [template.numel() for template in reals])
        views = [copy.view(template.shape) for copy, template in zip(slices, reals, strict=True)]
        self.copies = {
            index: torch.view_as_complex(view) if template.is_complex() else view
            for index, view, template in zip(indices, views, templates, strict=True)
        }
        self.dtype = templates[0].dtype

    def put(self, indices: Sequence[int], tensors: Sequence[Tensor]) -> None:
        """Copy tensors into the buffer, at the indices `indices`."""
        copy_all([self.copies[index] for index in indices], tensors)

    def clear(self, index: int) -> None:
        """Set the copy of the tensor with this index to zeros."""
        self.copies[index].zero_()

    def compress(self, dtype: torch.dtype, count: int) -> list[Tensor]:
        """Make a 16-bit copy of the buffer for `send`; return the rounding errors.

        The copy is divided by `count`, so that the sum does not overflow. An element that is not
        finite in 16 bits has an error of 0.

        Args:
            dtype: The 16-bit dtype.
            count: The number of ranks.

        Returns:
            The rounding errors of each tensor in the bucket, in the tensor's shape.
        """
        if self._low_precision is None:
            with outside_inference():
                self._low_precision = torch.empty_like(self._flat, dtype=dtype)
        self._divisor = count
        residuals = self._flat / count
        # An error that is not finite would spoil the gradients of all later steps.
        residuals.copy_(self._low_precision.copy_(residuals))
        torch.sub(self._flat, residuals, alpha=count, out=residuals).nan_to_num_(0.0, 0.0, 0.0)
        copies = self.copies.values()
        parts = torch.split(residuals, [copy.numel() for copy in copies])
        return [part.view(copy.shape) for part, copy in zip(parts, copies, strict=True)]

    def send(self, ranks: Ranks, ordered: bool) -> None:
        """Start the sum over all ranks; `ordered` adds in the order of a tree of ranks."""
        if ordered:
            self._flat.copy_(over_ranks(self._flat, ranks))
        else:
            message = self._flat if self._low_precision is None else self._low_precision
            self._pending = ranks.begin_adding(message)

    def wait(self) -> None:
        """Wait for a pending transfer; do nothing if there is none."""
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
            if self._low_precision is not None:
                self._flat.copy_(self._low_precision).mul_(self._divisor)

    def wait_for_sums(self) -> dict[int, Tensor]:
        """Wait; return the sums by index, in the tensors' shapes, as views of the buffer."""
        self.wait()
        # New tensors at each call, so that `count_holders` detects a sum that a caller holds.
        return {index: copy.detach() for index, copy in self.copies.items()}

    def count_holders(self) -> int:
        """Return the number of references to the buffer, which grows if a caller holds a sum."""
        return holders_of(self._flat)


def holders_of(tensor: Tensor) -> int:
    """Return the number of tensors that share the storage of a tensor."""
    return count_holders(tensor.untyped_storage())


def plan_buckets(
    numbered_templates: Sequence[tuple[int, Tensor]],
    size: int,
    make_bucket: Callable[[Sequence[int], Sequence[Tensor]], BucketT],
) -> list[BucketT]:
    """Group tensors by dtype and device into buckets; return the buckets.

    Full buckets come first. Within a bucket, tensors keep the order of `numbered_templates`.

    Args:
        numbered_templates: (index, tensor) pairs, with equal shapes and dtypes on all ranks.
        size: The most bytes of a bucket. A larger tensor is alone in a bucket.
        make_bucket: `make_bucket(indices, tensors)` returns a bucket.
    """
    full: list[list[tuple[int, Tensor]]] = []
    filling: dict[tuple[torch.dtype, torch.device], tuple[list[tuple[int, Tensor]], int]] = {}
    for index, template in numbered_templates:
        key, nbytes = (template.dtype, template.device), template.numel() * template.element_size()
        members, filled_bytes = filling.get(key, ([], 0))
        if members and filled_bytes + nbytes > size:
            full.append(members)
            members, filled_bytes = [], 0
        filling[key] = ([*members, (index, template)], filled_bytes + nbytes)
    full += [members for members, _ in filling.values()]
    return [
        make_bucket([index for index, _ in members], [template for _, template in members])
        for members in full
    ]


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into the target at the same position, in place."""
    # The function of torch raises an error for empty lists.
    if targets:
        torch._foreach_copy_(list(targets), list(sources))  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_COMPRESSED = (torch.float32, torch.float64)


class Compression:
    """Rounding errors of 16-bit gradients, per variable of this rank, for error feedback.

    After "1-bit stochastic gradient descent and its application to data-parallel distributed
    training of speech DNNs" (Seide et al. 2014): the rounding error of a gradient is added to the
    variable's next gradient. A step without `commit_step` leaves the stored errors unchanged.

    Args:
        dtype: The 16-bit dtype; None does not compress.
        count: The number of ranks, by which each gradient is divided.
    """

    def __init__(self, dtype: torch.dtype | None, count: int) -> None:
        self._dtype, self._count = dtype, count
        # A WeakKeyDictionary would compare tensors with `==`, which is elementwise.
        self._residuals: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()
        # Residuals of a step that may still fail.
        self._next_residuals: dict[int, tuple[Tensor, Tensor]] = {}

    def begin_step(self) -> None:
        """Start a step; drop the rounding errors of a step without `commit_step`."""
        self._next_residuals = {}

    def compress(self, bucket: Bucket, variables: Sequence[Tensor]) -> None:
        """Add the last step's rounding errors to a bucket in place, and round a copy to 16 bits.

        The bucket then sends the copy. `commit_step` stores the new rounding errors.

        Args:
            bucket: The gradients. A bucket with a dtype other than float32 or float64 is unchanged.
            variables: The variables to which the bucket's indices refer. If a variable occurs
                twice, its second gradient has no error feedback.
        """
        if self._dtype is None or bucket.dtype not in _COMPRESSED:
            return
        bucket_vars = [variables[index] for index in bucket.indices]
        for copy, var in zip(bucket.copies.values(), bucket_vars, strict=True):
            residual = None if id(var) in self._next_residuals else self._residuals.get(var)
            layout = copy.shape, copy.device
            if residual is not None and (residual.shape, residual.device) == layout:
                copy.add_(residual)
        residuals = bucket.compress(self._dtype, self._count)
        for var, residual in zip(bucket_vars, residuals, strict=True):
            self._next_residuals.setdefault(id(var), (var, residual))

    def keep_errors_of(self, variables: Iterable[Tensor]) -> None:
        """Drop the new rounding errors of variables that are not in `variables`."""
        variable_ids = set(map(id, variables))
        self._next_residuals = {
            key: residual for key, residual in self._next_residuals.items() if key in variable_ids
        }

    def commit_step(self) -> None:
        """Keep the new rounding errors for the next step; called after the sums were applied."""
        for var, residual in self._next_residuals.values():
            self._residuals[var] = residual
        self._next_residuals = {}
