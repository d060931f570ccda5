"""`MonitoredTrainingSession`: a session with hooks for checkpoints, summaries and logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thalweg.errors import InvalidArgumentError
from thalweg.v1.train.monitored.checkpoint_saver_hook import CheckpointSaverHook
from thalweg.v1.train.monitored.monitored_session import MonitoredSession
from thalweg.v1.train.monitored.scaffold import Scaffold
from thalweg.v1.train.monitored.session_manager import ChiefSessionCreator, Path
from thalweg.v1.train.monitored.session_run_hook import SessionRunHook
from thalweg.v1.train.monitored.summary_saver_hook import StepCounterHook, SummarySaverHook

# Default of intervals that were not given.
_DEFAULT: Any = object()
# Seconds between two checkpoints.
_SECONDS = 600
# Steps between two summaries.
_STEPS = 100

_NOT_CHIEF = (
    "is_chief=False: such a worker waits until the chief's variables, which they share on a"
    " server, are initialized, and here each session has its own. Workers are threads in the"
    " chief's session (SyncReplicasOptimizer), or processes with torch.distributed, each a chief"
    " of its own, of which one has a checkpoint_dir."
)


def MonitoredTrainingSession(
    master: str = "",
    is_chief: bool = True,
    checkpoint_dir: Path | None = None,
    scaffold: Scaffold | None = None,
    hooks: Sequence[SessionRunHook] | None = None,
    chief_only_hooks: Sequence[SessionRunHook] | None = None,
    save_checkpoint_secs: float | None = _DEFAULT,
    save_summaries_steps: int | None = _DEFAULT,
    save_summaries_secs: float | None = _DEFAULT,
    config: object = None,
    stop_grace_period_secs: float = 120,
    log_step_count_steps: int | None = 100,
    max_wait_secs: float = 7200,
    save_checkpoint_steps: int | None = _DEFAULT,
    summary_dir: Path | None = None,
    save_graph_def: bool = True,
) -> MonitoredSession:
    """Return a `MonitoredSession` with hooks for checkpoints, summaries and the step rate.

    Args:
        master, config: Ignored.
        is_chief: Must be True.
        checkpoint_dir: Optional. The folder of checkpoints. The newest checkpoint is restored, and
            new checkpoints are saved. With `torch.distributed`, pass it on rank 0 only.
        scaffold: Optional. A `Scaffold` with the operations that prepare the session.
        hooks: Optional. Further hooks, called last.
        chief_only_hooks: Optional. Further hooks, called first.
        save_checkpoint_secs: Seconds between two checkpoints; 600 by default, unless
            `save_checkpoint_steps` is given. 0 or None saves no checkpoints.
        save_summaries_steps: Steps between two summaries; 100 by default, unless
            `save_summaries_secs` is given. 0 or None saves no summaries.
        save_summaries_secs: Seconds between two summaries. Without a folder, none is saved.
        stop_grace_period_secs: As in `MonitoredSession`.
        log_step_count_steps: Steps between two logs of the step rate; needs a folder.
        max_wait_secs: Ignored.
        save_checkpoint_steps: Steps between two checkpoints.
        summary_dir: Optional. The folder of summaries; by default `checkpoint_dir`.
        save_graph_def: Ignored.

    Raises:
        ValueError: `is_chief` is False.
        RuntimeError: The graph has no global step, and checkpoints are saved.

    Example:
        >>> import tempfile
        >>> from thalweg import v1
        >>> folder = tempfile.mkdtemp()
        >>> for last_step in (3, 5):
        ...     with v1.Graph().as_default():
        ...         w = v1.get_variable("w", initializer=1.0)
        ...         step = v1.train.get_or_create_global_step()
        ...         train_op = v1.train.GradientDescentOptimizer(0.25).minimize(w * w, step)
        ...         hooks = [v1.train.StopAtStepHook(last_step=last_step)]
        ...         with MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks) as session:
        ...             while not session.should_stop():
        ...                 print(*session.run([step, w, train_op])[:2])
        0 1.0
        1 0.5
        2 0.25
        3 0.125
        4 0.0625

    Reference: tf.train.MonitoredTrainingSession
    """
    if not is_chief:
        raise InvalidArgumentError(_NOT_CHIEF)
    save_checkpoint_secs, save_checkpoint_steps = _with_default(
        save_checkpoint_secs, save_checkpoint_steps, _SECONDS
    )
    save_summaries_steps, save_summaries_secs = _with_default(
        save_summaries_steps, save_summaries_secs, _STEPS
    )
    scaffold = scaffold or Scaffold()
    session_hooks = list(chief_only_hooks or ())
    directory = summary_dir or checkpoint_dir
    if directory and log_step_count_steps is not None and log_step_count_steps > 0:
        session_hooks.append(StepCounterHook(log_step_count_steps, output_dir=directory))
    if directory and _is_any_positive(save_summaries_steps, save_summaries_secs):
        steps, seconds = save_summaries_steps, save_summaries_secs
        session_hooks.append(SummarySaverHook(steps, seconds, directory, scaffold=scaffold))
    if checkpoint_dir and _is_any_positive(save_checkpoint_secs, save_checkpoint_steps):
        intervals = save_checkpoint_secs, save_checkpoint_steps
        session_hooks.append(CheckpointSaverHook(checkpoint_dir, *intervals, scaffold=scaffold))
    creator = ChiefSessionCreator(scaffold, checkpoint_dir=checkpoint_dir)
    return MonitoredSession(creator, [*session_hooks, *(hooks or ())], stop_grace_period_secs)


def _is_any_positive(*intervals: float | None) -> bool:
    return any((interval or 0) > 0 for interval in intervals)


def _with_default(interval: Any, alternative: Any, default: float) -> tuple[Any, Any]:
    """Return (interval, alternative) with None for arguments that were not given.

    If both were not given, the first is `default`.
    """
    if interval is _DEFAULT:
        interval = default if alternative is _DEFAULT else None
    return interval, None if alternative is _DEFAULT else alternative
