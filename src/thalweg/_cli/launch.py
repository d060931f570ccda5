"""Start of a command on several ranks of this machine, with torch's launcher."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable
from typing import Any

import click

from thalweg.errors import ReplicaLostError, ReplicaMismatchError, ThalwegError


def launch_ranks(count: int, function: Callable[..., Any], *args: object) -> Any:
    """Call `function(*args)` in `count` processes and wait; each process is a rank of one group.

    Args:
        function: A function at the top of its module, with a picklable result.
        args: Picklable arguments, equal on every rank.

    Returns:
        The result of `function` on rank 0.

    Raises:
        click.ClickException: A rank has failed. The message is the error of the rank.
        KeyboardInterrupt: Ctrl-C.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # With port 0, the system selects a free port.
    config = LaunchConfig(
        1, 1, count, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id=uuid.uuid4().hex,
        max_restarts=0,
    )  # fmt: skip
    try:
        outcomes: dict[int, tuple[Any, tuple[bool, str] | None]] = elastic_launch(
            config, _call_on_rank
        )(function, args)
    except SignalException as error:
        raise (KeyboardInterrupt if error.sigval == signal.SIGINT else click.Abort) from error
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise click.ClickException(
            f"rank {rank} of {count} ended with exit code {failure.exitcode}."
        ) from error
    # Errors about a lost rank sort last: they follow from another rank's failure.
    failed = sorted(error for _, error in outcomes.values() if error is not None)
    if failed:
        raise click.ClickException(failed[0][1])
    return outcomes[0][0]


def _call_on_rank(
    function: Callable[..., Any], args: tuple[object, ...]
) -> tuple[Any, tuple[bool, str] | None]:
    """Call `function(*args)`; return (result, None).

    After an error, return (None, (True if another rank failed, message of the error)).
    """
    try:
        return function(*args), None
    except (ReplicaLostError, ReplicaMismatchError) as error:
        return None, (True, str(error))
    except click.ClickException as error:
        return None, (False, error.format_message())
    except ThalwegError as error:
        return None, (False, str(error))
    except Exception as error:
        return None, (False, f"{type(error).__name__}: {error}")
