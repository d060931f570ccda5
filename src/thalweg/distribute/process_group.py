"""The ranks of a process group, what they send one another, and what it means if one is silent."""

from __future__ import annotations

import atexit
import contextlib
import os
import textwrap
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from thalweg._base.context_managers import no_grad
from thalweg.errors import CheckpointWriteError, InvalidTypeError, ReplicaLostError

_UNDER_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Ranks:
    """The ranks of a process group of torch.distributed, or this process alone.

    All of them make the same calls in the same order. Once one has failed the others cannot tell
    what those that are left will send, so every later call fails, too.

    Args:
        group: A process group; None takes the default one. Where none is initialised, that of
            `torchrun` is joined, or this process is alone.
        timeout: Seconds that a rank may take to answer; None takes the group's own.

    Attributes:
        rank: This process' number in it.
        size: How many there are.
        device: Where short messages lie: NCCL sends what is on a GPU alone.

    Raises:
        InvalidTypeError: `group` is something else.
    """

    def __init__(self, group: Any = None, timeout: float | None = None) -> None:
        if group is not None and not _is_group(group):
            raise InvalidTypeError(
                "group must be a process group of torch.distributed or None, not"
                f" {type(group).__name__}."
            )
        self._timeout = None if timeout is None else timedelta(seconds=timeout)
        self._lost: str | None = None
        self._group = group
        if group is None and not has_group():
            _join_torchrun(self._timeout)
        is_one = group is None and not has_group()
        self.rank = 0 if is_one else distributed.get_rank(group)
        self.size = 1 if is_one else distributed.get_world_size(group)
        self.device = torch.device("cpu")
        backend = "" if is_one else distributed.get_backend(group)
        self._is_gloo = backend == "gloo"
        if backend == "nccl":
            self.device = torch.device("cuda", torch.cuda.current_device())

    @classmethod
    def none(cls) -> Ranks:
        """Return this process alone, whatever groups there are."""
        made = cls.__new__(cls)
        made._group, made._timeout, made._lost, made.rank, made.size = None, None, None, 0, 1
        made.device, made._is_gloo = torch.device("cpu"), False
        return made

    @property
    def is_alone(self) -> bool:
        """True if there is no other rank."""
        return self.size == 1

    def global_numbers(self) -> list[int]:
        """Return the numbers that these ranks have in the default group."""
        return distributed.get_process_group_ranks(self._group)

    def take_maximum(self, tensor: Tensor) -> None:
        """Set each element to the largest one of all ranks."""
        self._run_collective(distributed.all_reduce, tensor, distributed.ReduceOp.MAX)

    def add(self, tensor: Tensor) -> None:
        """Set each element to the sum over all ranks."""
        self._run_collective(distributed.all_reduce, tensor, distributed.ReduceOp.SUM)

    def begin_adding(self, tensor: Tensor) -> Pending:
        """Begin to add a tensor over all ranks as `add` does, and return the pending result."""
        return Pending(self, [self._begin_collective(distributed.all_reduce, tensor)])

    def begin_maximum(self, tensor: Tensor) -> Pending:
        """Begin to take a maximum over all ranks as `take_maximum` does, and return the pending
        result.
        """
        return Pending(
            self, [self._begin_collective(distributed.all_reduce, tensor, distributed.ReduceOp.MAX)]
        )

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, which have one shape."""
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        self._run_collective(distributed.all_gather, found, tensor)
        return found

    def begin_exchanging(self, parts: Sequence[Tensor], found: Sequence[Tensor]) -> Pending:
        """Begin to send each rank its part, and to set tensors to what they send to this one.

        Args:
            parts: One for each rank, of lengths that all ranks have alike; this rank's own stays.
            found: One for each rank, as long as this rank's part; its own is left alone.
        """
        if not found[self.rank].is_cpu:
            taken = list(found)
            taken[self.rank] = torch.empty_like(parts[self.rank])
            return Pending(
                self, [self._begin_collective(distributed.all_to_all, taken, list(parts))]
            )
        others = [rank for rank in range(self.size) if rank != self.rank]
        with self._detect_loss():  # gloo's all_to_all takes half as long again
            works = [
                distributed.irecv(found[rank], group=self._group, group_src=rank)
                for rank in others
                if found[rank].numel()
            ]
            works += [
                distributed.isend(parts[rank], group=self._group, group_dst=rank)
                for rank in others
                if parts[rank].numel()
            ]
        return Pending(self, works)

    def begin_sharing(self, tensors: Sequence[Tensor]) -> Pending:
        """Begin to send this rank's tensor to all, and to set the others to those of their ranks.

        Args:
            tensors: One for each rank; all ranks give the same shapes.
        """
        if self._is_gloo or tensors[self.rank].is_cpu:  # gloo's all_gather takes four times as long
            several = [
                self._begin_collective(distributed.broadcast, each, group_src=rank)
                for rank, each in enumerate(tensors)
                if each.numel()
            ]
            return Pending(self, several)
        own = tensors[self.rank]
        return Pending(self, [self._begin_collective(distributed.all_gather, list(tensors), own)])

    def collect(self, tensors: Sequence[Tensor]) -> None:
        """Send this rank's tensor to rank 0, which sets its others to those of their ranks.

        Args:
            tensors: One for each rank; all ranks give the same shapes.
        """
        with self._detect_loss():
            works = [
                distributed.irecv(each, group=self._group, group_src=rank)
                if not self.rank
                else distributed.isend(each, group=self._group, group_dst=0)
                for rank, each in enumerate(tensors)
                if each.numel() and (rank == self.rank) != (not self.rank)
            ]
        Pending(self, works).wait()

    def broadcast(self, tensors: Sequence[Tensor], source: int = 0) -> None:
        """Set tensors to those of one rank."""
        for tensor in tensors:
            whole = tensor.detach().contiguous()
            sent = whole.view(-1).view(torch.uint8)  # which all backends know
            self._run_collective(distributed.broadcast, sent, group_src=source)
            if whole.data_ptr() != tensor.data_ptr():
                with no_grad():
                    tensor.copy_(whole)

    def gather_texts(self, own: str) -> list[str]:
        """Return the texts of all ranks."""
        data = torch.frombuffer(bytearray(own.encode() or b" "), dtype=torch.uint8).to(self.device)
        size = torch.tensor([len(data)], dtype=torch.int64, device=self.device)
        sizes = self.all_gather(size)
        padded = data.new_zeros(int(torch.stack(sizes).max()))
        padded[: len(data)] = data
        parts = zip(self.all_gather(padded), sizes, strict=True)
        return [part[: int(size)].cpu().numpy().tobytes().decode() for part, size in parts]

    def write_once(self, write: Callable[[], None], path: str) -> None:
        """Write a file on rank 0; all ranks call this, and go on when it is there.

        Args:
            write: Writes it.
            path: The file.

        Raises:
            CheckpointWriteError: Rank 0 cannot write it; what it has raised, on rank 0.
            ReplicaLostError: A rank did not answer.
        """
        trouble: BaseException | None = None
        if not self.rank:
            try:
                write()
            except BaseException as error:
                trouble = error
        said = self.gather_texts("" if trouble is None else f"{type(trouble).__name__}: {trouble}")
        if trouble is not None:
            raise trouble
        if said[0].strip():
            raise CheckpointWriteError(f"Rank 0 has not written {path}. {said[0]}")

    def _run_collective(self, function: object, *args: object, **kwargs: object) -> None:
        work = self._begin_collective(function, *args, **kwargs)
        with self._detect_loss():
            self._finish_work(work)

    def _begin_collective(self, function: Any, *args: Any, **kwargs: Any) -> object:
        for each in args:
            # Gloo would take as many bytes from where it begins.
            if isinstance(each, Tensor) and not each.is_contiguous():
                raise ValueError(f"a tensor of strides {each.stride()} cannot be sent")
        with self._detect_loss():
            return function(*args, group=self._group, async_op=True, **kwargs)

    def _finish_work(self, work: Any) -> None:
        if self._timeout is None:
            work.wait()
        else:
            work.wait(self._timeout)

    @contextlib.contextmanager
    def _detect_loss(self) -> Iterator[None]:
        if self._lost is not None:
            raise ReplicaLostError(self._lost)
        try:
            yield
        except RuntimeError as error:
            said = _first_line(error)
            self._lost = f"{self._describe_silence()}: {said}."
            raise ReplicaLostError(self._lost) from error
        except BaseException:
            self.give_up(f"rank {self.rank} was interrupted while it sent messages to the others.")
            raise

    def give_up(self, why: str) -> None:
        """Make every later call fail: this rank cannot go on with the others.

        Args:
            why: A sentence.
        """
        self._lost = self._lost or why

    def _describe_silence(self) -> str:
        others = sorted({*range(self.size)} - {self.rank})
        if len(others) == 1:
            who = f"rank {others[0]}"
        else:
            who = f"one of the ranks {', '.join(map(str, others))}"
        limit = "" if self._timeout is None else f" within {self._timeout.total_seconds():g} s"
        return f"{who} did not answer rank {self.rank}{limit}"

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.size}>"


class Pending:
    """Messages under way."""

    def __init__(self, ranks: Ranks, works: Sequence[object]) -> None:
        self._ranks, self._works = ranks, works

    def wait(self) -> None:
        """Return when they have arrived.

        Raises:
            ReplicaLostError: They will not.
        """
        with self._ranks._detect_loss():
            for work in self._works:
                self._ranks._finish_work(work)


def _is_group(given: object) -> bool:
    return distributed.is_available() and isinstance(given, distributed.ProcessGroup)


def has_group() -> bool:
    """Return True if torch.distributed has a default group."""
    return distributed.is_available() and distributed.is_initialized()


def default_group() -> Any:
    """Return the default group of torch.distributed."""
    return distributed.group.WORLD


def _join_torchrun(timeout: timedelta | None) -> None:
    """Join the ranks that `torchrun` has started, if it has."""
    if distributed.is_available() and all(name in os.environ for name in _UNDER_TORCHRUN):
        device = os.environ.get("LOCAL_RANK", "0")
        if torch.cuda.is_available():
            torch.cuda.set_device(int(device) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend, timeout=timeout, **_rendezvous_options())
        if backend == "gloo":
            atexit.register(_leave_group, weakref.ref(default_group()), os.getpid())


def _leave_group(joined: weakref.ref[object], process: int) -> None:
    """End Gloo's threads at exit: one with a tensor in hand would abort the interpreter's end.

    (https://github.com/pytorch/pytorch/pull/179291)
    """
    is_own = os.getpid() == process  # a fork has no such threads
    if is_own and has_group() and default_group() is joined():
        distributed.destroy_process_group()


def _rendezvous_options() -> dict[str, Any]:
    """Where ranks meet, if not where torch has them meet.

    `torchrun` keeps one store over all restarts, with the addresses of ranks that are no more in it
    (https://github.com/pytorch/pytorch/issues/135712). All ranks of one machine know how many
    restarts there were; those of several may not.
    """
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if restarts is None or os.environ.get("GROUP_WORLD_SIZE") != "1":
        return {}
    met = next(distributed.rendezvous("env://"))  # pyright: ignore[reportPrivateImportUsage]
    store, rank, size = met
    name = f"thalweg/restart_{restarts}"
    store = distributed.PrefixStore(name, store)  # pyright: ignore[reportPrivateImportUsage]
    return {"store": store, "rank": rank, "world_size": size}


def _first_line(error: BaseException) -> str:
    line = str(error).strip().partition("\n")[0]
    return textwrap.shorten(line, 300, placeholder=" ...").rstrip(".")
