"""The ranks of a process group, what they send one another, and what it means if one is silent."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from thalweg.errors import InvalidTypeError, ReplicaLostError

# torch 2.13 renamed it.
_joins = getattr(distributed, "all_gather_single", None) or getattr(
    distributed, "all_gather_into_tensor", None
)
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
            _join(self._timeout)
        is_one = group is None and not has_group()
        self.rank = 0 if is_one else distributed.get_rank(group)
        self.size = 1 if is_one else distributed.get_world_size(group)
        self.device = torch.device("cpu")
        if not is_one and distributed.get_backend(group) == "nccl":
            self.device = torch.device("cuda", torch.cuda.current_device())

    @classmethod
    def none(cls) -> Ranks:
        """This process alone, whatever groups there are."""
        made = cls.__new__(cls)
        made._group, made._timeout, made._lost, made.rank, made.size = None, None, None, 0, 1
        made.device = torch.device("cpu")
        return made

    @property
    def is_alone(self) -> bool:
        """Whether there is no other rank."""
        return self.size == 1

    def maximum(self, tensor: Tensor) -> None:
        """Set each element to the largest one of all ranks."""
        self._wait(distributed.all_reduce, tensor, distributed.ReduceOp.MAX)

    def add(self, tensor: Tensor) -> None:
        """Set each element to the sum over all ranks."""
        self._wait(distributed.all_reduce, tensor, distributed.ReduceOp.SUM)

    def begin_adding(self, tensor: Tensor) -> Pending:
        """As `add`, which is done when the result is waited for."""
        return Pending(self, self._begin(distributed.all_reduce, tensor))

    def begin_maximum(self, tensor: Tensor) -> Pending:
        """As `maximum`, likewise."""
        work = self._begin(distributed.all_reduce, tensor, distributed.ReduceOp.MAX)
        return Pending(self, work)

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which have one shape."""
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        self._wait(distributed.all_gather, found, tensor)
        return found

    def exchanged(self, tensor: Tensor) -> Tensor:
        """For each rank its part of this one's vector, and from each its part for this one."""
        found = torch.empty_like(tensor)
        self._wait(distributed.all_to_all_single, found, tensor)
        return found

    def joined(self, tensor: Tensor) -> Tensor:
        """The vectors of all ranks, one after the other."""
        found = tensor.new_empty(self.size * tensor.numel())
        self._wait(_joins, found, tensor)
        return found

    def spread(self, tensors: Sequence[Tensor], source: int = 0) -> None:
        """Set tensors to those of one rank."""
        for tensor in tensors:
            self._wait(distributed.broadcast, tensor, group_src=source)

    def texts(self, own: str) -> list[str]:
        """The texts of all ranks."""
        data = torch.frombuffer(bytearray(own.encode() or b" "), dtype=torch.uint8).to(self.device)
        sizes = self.gathered(torch.tensor([len(data)], device=self.device))
        padded = data.new_zeros(int(torch.stack(sizes).max()))
        padded[: len(data)] = data
        parts = zip(self.gathered(padded), sizes, strict=True)
        return [part[: int(size)].cpu().numpy().tobytes().decode() for part, size in parts]

    def _wait(self, function: Any, *args: Any, **kwargs: Any) -> None:
        work = self._begin(function, *args, **kwargs)
        with self._told():
            self._finish(work)

    def _begin(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        with self._told():
            return function(*args, group=self._group, async_op=True, **kwargs)

    def _finish(self, work: Any) -> None:
        if self._timeout is None:
            work.wait()
        else:
            work.wait(self._timeout)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        if self._lost is not None:
            raise ReplicaLostError(self._lost)
        try:
            yield
        except RuntimeError as error:
            self._lost = f"{self._silence()}: {_first_line(error)}."
            raise ReplicaLostError(self._lost) from error

    def _silence(self) -> str:
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
    """A message under way."""

    def __init__(self, ranks: Ranks, work: Any) -> None:
        self._ranks, self._work = ranks, work

    def wait(self) -> None:
        """Return when it has arrived.

        Raises:
            ReplicaLostError: It will not.
        """
        with self._ranks._told():
            self._ranks._finish(self._work)


def _is_group(given: Any) -> bool:
    return distributed.is_available() and isinstance(given, distributed.ProcessGroup)


def has_group() -> bool:
    """Whether torch.distributed has a default group."""
    return distributed.is_available() and distributed.is_initialized()


def default_group() -> Any:
    """The default group of torch.distributed."""
    return distributed.group.WORLD


def _join(timeout: timedelta | None) -> None:
    """Join the ranks that `torchrun` has started, if it has."""
    if distributed.is_available() and all(name in os.environ for name in _UNDER_TORCHRUN):
        device = os.environ.get("LOCAL_RANK", "0")
        if torch.cuda.is_available():
            torch.cuda.set_device(int(device) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend, timeout=timeout, **_meeting())


def _meeting() -> dict[str, Any]:
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
    return str(error).strip().splitlines()[0].rstrip(".")[:200]
