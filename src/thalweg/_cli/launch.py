"""A command on several ranks: processes that torch's launcher starts on this machine."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable

import click

from thalweg.errors import ReplicaLostError, ReplicaMismatchError, ThalwegError


def launch_ranks(count: int, function: Callable[..., None], *args: object) -> None:
    """Call a function on each of `count` ranks, which `Strategy()` then joins.

    Args:
        count: How many processes.
        function: A function at the top of its module.
        args: What it is given, on each rank; what can be pickled.

    Raises:
        click.ClickException: A rank has failed; says with what.
        KeyboardInterrupt: Ctrl-C.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        1, 1, count, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id=uuid.uuid4().hex,
        max_restarts=0,
    )  # fmt: skip
    try:
        told: dict[int, tuple[bool, str] | None] = elastic_launch(config, _call_on_rank)(
            function, args
        )
    except SignalException as error:
        raise (KeyboardInterrupt if error.sigval == signal.SIGINT else click.Abort) from error
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise click.ClickException(
            f"rank {rank} of {count} ended with exit code {failure.exitcode}."
        ) from error
    # That another rank was lost says least of what has happened.
    failed = sorted(each for each in told.values() if each is not None)
    if failed:
        raise click.ClickException(failed[0][1])


def _call_on_rank(
    function: Callable[..., None], args: tuple[object, ...]
) -> tuple[bool, str] | None:
    """Call it; a failure is whether it is about another rank, and a message."""
    try:
        function(*args)
    except (ReplicaLostError, ReplicaMismatchError) as error:
        return True, str(error)
    except click.ClickException as error:
        return False, error.format_message()
    except ThalwegError as error:
        return False, str(error)
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"
    return None
