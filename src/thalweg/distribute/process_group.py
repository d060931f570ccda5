"""Process group with detection of lost ranks."""

# torch does not annotate its collectives.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

import atexit
import contextlib
import os
import textwrap
import weakref
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from thalweg._base.context_managers import no_grad
from thalweg.errors import (
    CheckpointWriteError,
    FailedPreconditionError,
    InvalidTypeError,
    ReplicaLostError,
)

_UNDER_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Ranks:
    """Ranks of a process group of torch.distributed, or this process alone.

    All ranks must make the same calls in the same order. After the loss of a rank, every later call
    raises ReplicaLostError.

    Args:
        group: Optional. A process group; by default the default group. Without a default group,
            join the group of `torchrun`, or use this process alone.
        timeout: Optional. Seconds to wait for other ranks; by default the group's timeout.
        single: True for this process alone, even if process groups exist.

    Attributes:
        rank: The number of this process in the group.
        size: The number of ranks.
        device: The device of short messages: NCCL sends GPU memory only.

    Raises:
        InvalidTypeError: `group` is not a process group.
    """

    def __init__(
        self, group: Any = None, timeout: float | None = None, single: bool = False
    ) -> None:
        if group is not None and not _is_group(group):
            raise InvalidTypeError(
                "group must be a process group of torch.distributed or None, not"
                f" {type(group).__name__}."
            )
        self._timeout = None if timeout is None else timedelta(seconds=timeout)
        self._loss_message: str | None = None
        # Torch holds a group until it is destroyed; a reference here would keep its threads.
        self._group_ref = None if group is None else weakref.ref(group)
        if group is None and not single and not has_group():
            _join_torchrun(self._timeout)
        is_single = single or (group is None and not has_group())
        self.rank = 0 if is_single else distributed.get_rank(group)
        self.size = 1 if is_single else distributed.get_world_size(group)
        self.device = torch.device("cpu")
        backend = "" if is_single else distributed.get_backend(group)
        self._is_gloo = backend == "gloo"
        if backend == "nccl":
            self.device = torch.device("cuda", torch.cuda.current_device())

    @property
    def _group(self) -> Any:
        """Process group, or None for the default group.

        Raise FailedPreconditionError if the group was destroyed.
        """
        group = None if self._group_ref is None else self._group_ref()
        if group is None and self._group_ref is not None:
            raise FailedPreconditionError(
                "The process group of this strategy was destroyed. Make a strategy for a new group."
            )
        return group

    @property
    def is_alone(self) -> bool:
        """True if there is no other rank."""
        return self.size == 1

    def global_numbers(self) -> list[int]:
        """Return the numbers of these ranks in the default group, by rank."""
        return distributed.get_process_group_ranks(self._group)

    def take_maximum(self, tensor: Tensor) -> None:
        """Replace each element by its maximum over all ranks, in place."""
        self.begin_maximum(tensor).wait()

    def add(self, tensor: Tensor) -> None:
        """Replace each element by its sum over all ranks, in place."""
        self.begin_adding(tensor).wait()

    def begin_adding(self, tensor: Tensor) -> Pending:
        """Start an in-place all-reduce of sums; return the transfer."""
        return self._begin(distributed.all_reduce, tensor)

    def begin_maximum(self, tensor: Tensor) -> Pending:
        """Start an in-place all-reduce of maxima; return the transfer."""
        return self._begin(distributed.all_reduce, tensor, distributed.ReduceOp.MAX)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, by rank; all have the same shape."""
        tensors = [torch.empty_like(tensor) for _ in range(self.size)]
        self._begin(distributed.all_gather, tensors, tensor).wait()
        return tensors

    def begin_exchanging(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Pending:
        """Start an all-to-all exchange of tensors; return the transfers.

        Args:
            inputs: `inputs[r]` is sent to rank r, except to this rank. Do not change inputs before
                the transfers end.
            outputs: `outputs[r]` is overwritten with the tensor from rank r, of equal size.
                `outputs[self.rank]` is unchanged.
        """
        if not outputs[self.rank].is_cpu:
            # The collective also writes this rank's output, which must stay unchanged.
            destinations = list(outputs)
            destinations[self.rank] = torch.empty_like(inputs[self.rank])
            return self._begin(distributed.all_to_all, destinations, list(inputs))
        other_ranks = [rank for rank in range(self.size) if rank != self.rank]
        # Gloo's all_to_all takes 1.5 times as long as single messages.
        with self._detect_loss():
            works = [
                distributed.irecv(outputs[rank], group=self._group, group_src=rank)
                for rank in other_ranks
                if outputs[rank].numel()
            ]
            works += [
                distributed.isend(inputs[rank], group=self._group, group_dst=rank)
                for rank in other_ranks
                if inputs[rank].numel()
            ]
        return Pending(self, works)

    def begin_sharing(self, tensors: Sequence[Tensor]) -> Pending:
        """Start to send `tensors[self.rank]` to all ranks; return the transfers.

        Args:
            tensors: `tensors[r]` has the same shape on all ranks. Every rank but r overwrites it
                with the tensor of rank r.
        """
        # Gloo's all_gather takes 4 times as long as broadcasts.
        if self._is_gloo or tensors[self.rank].is_cpu:
            works = [
                self._begin_collective(distributed.broadcast, tensor, group_src=rank)
                for rank, tensor in enumerate(tensors)
                if tensor.numel()
            ]
            return Pending(self, works)
        local = tensors[self.rank]
        return self._begin(distributed.all_gather, list(tensors), local)

    def collect(self, tensors: Sequence[Tensor]) -> None:
        """Send `tensors[self.rank]` to rank 0, and wait for the transfer.

        Args:
            tensors: `tensors[r]` has the same shape on all ranks. Rank 0 overwrites it with the
                tensor of rank r.
        """
        # Rank 0 receives all other tensors; each other rank sends its own tensor.
        with self._detect_loss():
            works = [
                distributed.irecv(tensor, group=self._group, group_src=rank)
                if not self.rank
                else distributed.isend(tensor, group=self._group, group_dst=0)
                for rank, tensor in enumerate(tensors)
                if tensor.numel() and (rank == self.rank) != (not self.rank)
            ]
        Pending(self, works).wait()

    def broadcast(self, tensors: Sequence[Tensor], source: int = 0) -> None:
        """Overwrite tensors with the tensors of rank `source`; all ranks must call this method."""
        for tensor in tensors:
            contiguous = tensor.detach().contiguous()
            # All backends support bytes.
            byte_view = contiguous.view(-1).view(torch.uint8)
            self._begin(distributed.broadcast, byte_view, group_src=source).wait()
            # `contiguous` returns a copy of a tensor with other strides.
            if contiguous.data_ptr() != tensor.data_ptr():
                with no_grad():
                    tensor.copy_(contiguous)

    def gather_texts(self, text: str) -> list[str]:
        """Return [text of rank 0, text of rank 1, ...]; an empty text becomes a space."""
        buffer = bytearray(text.encode() or b" ")
        encoded = torch.frombuffer(buffer, dtype=torch.uint8).to(self.device)
        size = torch.tensor([len(encoded)], dtype=torch.int64, device=self.device)
        sizes = self.all_gather(size)
        # An all-gather needs one size on all ranks.
        padded = encoded.new_zeros(int(torch.stack(sizes).max()))
        padded[: len(encoded)] = encoded
        pairs = zip(self.all_gather(padded), sizes, strict=True)
        return [
            encoded_text[: int(size)].cpu().numpy().tobytes().decode()
            for encoded_text, size in pairs
        ]

    def write_once(self, write: Callable[[], None], path: str) -> None:
        """Call `write()` on rank 0 only; every rank then waits until the file is complete.

        Args:
            write: `write()` writes the file.
            path: The file's path, for messages.

        Raises:
            CheckpointWriteError: `write` failed on rank 0. Rank 0 raises the error of `write`.
            ReplicaLostError: A rank did not answer.
        """
        trouble: BaseException | None = None
        if not self.rank:
            try:
                write()
            except BaseException as error:
                trouble = error
        errors = self.gather_texts(
            "" if trouble is None else f"{type(trouble).__name__}: {trouble}"
        )
        if trouble is not None:
            raise trouble
        if errors[0].strip():
            raise CheckpointWriteError(f"Rank 0 has not written {path}. {errors[0]}")

    def _begin(self, function: object, *args: object, **kwargs: object) -> Pending:
        """Start a collective of torch.distributed; return the transfer."""
        return Pending(self, [self._begin_collective(function, *args, **kwargs)])

    def _begin_collective(self, function: Any, *args: Any, **kwargs: Any) -> object:
        """Call a function of torch.distributed with `async_op=True`; return its work handle.

        Raises:
            ValueError: A tensor is not contiguous.
            ReplicaLostError: A rank is lost.
        """
        for arg in args:
            # Gloo would send consecutive bytes from the tensor's first element on.
            if isinstance(arg, Tensor) and not arg.is_contiguous():
                raise ValueError(f"a tensor of strides {arg.stride()} cannot be sent")
        with self._detect_loss():
            return function(*args, group=self._group, async_op=True, **kwargs)

    def _finish_work(self, work: Any) -> None:
        """Wait for a collective; raise ReplicaLostError if a rank is lost."""
        if self._timeout is None:
            work.wait()
        else:
            work.wait(self._timeout)

    @contextlib.contextmanager
    def _detect_loss(self) -> Generator[None]:
        """Raise ReplicaLostError if torch.distributed raises RuntimeError in the `with` block.

        After any error in the `with` block, later calls of this method raise ReplicaLostError.
        """
        if self._loss_message is not None:
            raise ReplicaLostError(self._loss_message)
        try:
            yield
        # Torch raises a timeout or a closed connection as a RuntimeError.
        except RuntimeError as error:
            cause = _first_line(error)
            self._loss_message = f"{self._describe_silence()}: {cause}."
            raise ReplicaLostError(self._loss_message) from error
        # The other ranks may still wait for messages that this rank did not send.
        except BaseException:
            self.give_up(f"rank {self.rank} was interrupted while it sent messages to the others.")
            raise

    def give_up(self, reason: str) -> None:
        """Make every later call raise ReplicaLostError; `reason` is a sentence."""
        self._loss_message = self._loss_message or reason

    def _describe_silence(self) -> str:
        """Return a phrase about the ranks that did not answer."""
        other_ranks = sorted({*range(self.size)} - {self.rank})
        if len(other_ranks) == 1:
            silent_ranks = f"rank {other_ranks[0]}"
        else:
            silent_ranks = f"one of the ranks {', '.join(map(str, other_ranks))}"
        limit = "" if self._timeout is None else f" within {self._timeout.total_seconds():g} s"
        return f"{silent_ranks} did not answer rank {self.rank}{limit}"

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.size}>"


class Pending:
    """Transfers in progress."""

    def __init__(self, ranks: Ranks, works: Sequence[object]) -> None:
        self._ranks, self._works = ranks, works

    def wait(self) -> None:
        """Wait for the transfers; raise ReplicaLostError if a rank is lost."""
        with self._ranks._detect_loss():  # pyright: ignore[reportPrivateUsage]
            for work in self._works:
                self._ranks._finish_work(work)  # pyright: ignore[reportPrivateUsage]


def _is_group(group: object) -> bool:
    return distributed.is_available() and isinstance(group, distributed.ProcessGroup)


def has_group() -> bool:
    """Return True if torch.distributed has a default group."""
    return distributed.is_available() and distributed.is_initialized()


def default_group() -> Any:
    """Return the default group of torch.distributed."""
    return distributed.group.WORLD


# The groups of `ranks_of`, by default group, with which they are released.
_subgroups: weakref.WeakKeyDictionary[Any, dict[tuple[int, ...], Ranks]] = (
    weakref.WeakKeyDictionary()
)


def ranks_of(global_ranks: Sequence[int]) -> Ranks:
    """Return the `Ranks` of a subset of the default group.

    The first call creates the subset's process group; all ranks of the subset must make the call.
    Later calls return the cached group.

    Args:
        global_ranks: The numbers of the ranks in the default group, in ascending order.
    """
    if len(global_ranks) == 1:
        return Ranks(single=True)
    if len(global_ranks) == distributed.get_world_size():
        return Ranks()
    subgroups = _subgroups.setdefault(default_group(), {})
    key = tuple(global_ranks)
    if key not in subgroups:
        # By default all ranks of the default group, not just the subset, would have to call this.
        group = distributed.new_group([*global_ranks], use_local_synchronization=True)
        subgroups[key] = Ranks(group)
    return subgroups[key]


def _join_torchrun(timeout: timedelta | None) -> None:
    """Join the process group of `torchrun`, and select this rank's GPU; do nothing elsewhere."""
    if distributed.is_available() and all(name in os.environ for name in _UNDER_TORCHRUN):
        device = os.environ.get("LOCAL_RANK", "0")
        if torch.cuda.is_available():
            torch.cuda.set_device(int(device) % torch.cuda.device_count())
        # NCCL cannot send tensors on the CPU.
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend, timeout=timeout, **_rendezvous_options())
        if backend == "gloo":
            atexit.register(_leave_group, weakref.ref(default_group()), os.getpid())


def _leave_group(group_ref: weakref.ref[object], process: int) -> None:
    """Destroy the default group, so that no thread of Gloo outlives the interpreter.

    Do nothing unless `group_ref()` is the default group and `process` is the id of this process. A
    thread that held a tensor would abort (https://github.com/pytorch/pytorch/pull/179291).
    """
    # A forked process does not have the threads.
    is_same_process = os.getpid() == process
    if is_same_process and has_group() and default_group() is group_ref():
        distributed.destroy_process_group()


def _rendezvous_options() -> dict[str, Any]:
    """Return arguments of `init_process_group` for `torchrun`: a store, rank and world size.

    The store has keys of this restart only. Without it, the store of `torchrun` would return
    addresses of ended ranks (https://github.com/pytorch/pytorch/issues/135712). Return {} without
    `torchrun`, or with several machines, whose numbers of restarts may differ.
    """
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if restarts is None or os.environ.get("GROUP_WORLD_SIZE") != "1":
        return {}
    rendezvous = next(distributed.rendezvous("env://"))  # pyright: ignore[reportPrivateImportUsage]
    store, rank, size = rendezvous
    name = f"thalweg/restart_{restarts}"
    store = distributed.PrefixStore(name, store)  # pyright: ignore[reportPrivateImportUsage]
    return {"store": store, "rank": rank, "world_size": size}


def _first_line(error: BaseException) -> str:
    """Return the first line of an error message."""
    line = str(error).strip().partition("\n")[0]
    return textwrap.shorten(line, 300, placeholder=" ...").rstrip(".")
