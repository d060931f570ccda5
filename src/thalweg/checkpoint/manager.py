"""`CheckpointManager`: a directory of numbered checkpoints."""

from __future__ import annotations

import math
import operator
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from thalweg._base.showing import show_value
from thalweg._formats import atomic_write, container
from thalweg._formats.atomic_write import Progress
from thalweg._formats.retention import Keeper
from thalweg.checkpoint.async_save import Saving
from thalweg.checkpoint.json_encoding import JsonReader
from thalweg.checkpoint.named_state import Variables
from thalweg.checkpoint.save_restore import Restored, restore, take_snapshot
from thalweg.errors import (
    CheckpointWarning,
    InvalidArgumentError,
    InvalidConfigError,
    MissingFileError,
    ThalwegError,
    UnsupportedCheckpointError,
    warn,
)

SUFFIX = ".safetensors"
_STEP_LIMIT = 10**18


@dataclass(frozen=True)
class Kept:
    """A readable checkpoint in a directory.

    Attributes:
        step: The step number of the checkpoint.
        path: The file.
        time: The time of the save, in seconds since 1970.
        metrics: The metrics that were passed to `CheckpointManager.save`.
    """

    step: int
    path: Path
    time: float
    metrics: Mapping[str, float]


def latest(directory: str | os.PathLike[str], name: str = "checkpoint") -> Path | None:
    """Return the path of the checkpoint that was saved last, or None if the directory has none.

    Args:
        directory: A directory that a `CheckpointManager` writes to.
        name: The first part of the file names, "checkpoint" in "checkpoint-12.safetensors".
    """
    checkpoints = _list_checkpoints(Path(directory), name)
    return checkpoints[-1].path if checkpoints else None


class CheckpointManager:
    """Directory of numbered checkpoints; retains the last, some older ones, and the best.

    Each save reads the existing files to decide which files to delete, so a restarted training
    continues as if uninterrupted. "Last" means last saved, whatever the step number: a training
    that went back to an earlier step continues from there.

    Args:
        directory: The directory; created if it does not exist.
        keep: The number of last checkpoints to retain; None retains all.
        keep_every: Optional. A time in seconds: one older checkpoint is retained per interval.
        best: Optional. The name of a metric whose best checkpoint is retained.
        mode: "min" if the lowest value is the best, "max" if the highest is.
        name: The first part of the file names, "checkpoint" in "checkpoint-12.safetensors".
        asynchronous: True to write the files in a thread while the training goes on.
        clock: `clock()` returns the time in seconds since 1970.

    Raises:
        InvalidArgumentError: `keep`, `keep_every`, `mode` or `name` is invalid.

    Example:
        >>> import tempfile, thalweg
        >>> from thalweg.keras.optimizers import SGD
        >>> manager = CheckpointManager(tempfile.mkdtemp(), keep=2, best="loss")
        >>> w, opt = thalweg.Variable([4.0], name="w"), SGD(0.25)
        >>> for step, loss in enumerate([0.1, 0.4, 0.3, 0.2]):
        ...     _ = opt.apply_gradients([([1.0], w)])
        ...     _ = manager.save(step, optimizer=opt, variables=[w], metrics={"loss": loss})
        >>> [each.step for each in manager.checkpoints()]
        [0, 2, 3]
        >>> _ = manager.restore(0, optimizer=opt, variables=[w])
        >>> w.item()
        3.75
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: int | None = 5,
        keep_every: float | None = None,
        best: str | None = None,
        mode: Literal["min", "max"] = "min",
        name: str = "checkpoint",
        asynchronous: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if keep is not None and (type(keep) is not int or keep < 1):
            raise InvalidArgumentError(f"keep must be 1 or more, or None, not {show_value(keep)}.")
        if keep_every is not None and not keep_every > 0:
            raise InvalidArgumentError(
                f"keep_every must be above 0 seconds, not {show_value(keep_every)}."
            )
        if mode not in ("min", "max"):
            raise InvalidArgumentError(f"mode must be 'min' or 'max', not {show_value(mode)}.")
        if not name or os.sep in name:
            raise InvalidArgumentError(f"name must be the name of a file, not {show_value(name)}.")
        self.directory = Path(directory)
        atomic_write.make_folder(self.directory)
        self._keep, self._keep_every = keep, keep_every
        self._best, self._mode = best, mode
        self._name, self._clock = name, clock
        self._asynchronous = asynchronous
        self._can_remove = True
        self._saving: Saving | None = None

    def save(
        self,
        step: int,
        *,
        optimizer: object = None,
        variables: Variables | None = None,
        module: torch.nn.Module | None = None,
        extra: object = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Path:
        """Save a training under a step number, and delete the checkpoints that are not retained.

        If slots are sharded over ranks, all ranks call this method, and rank 0 writes.

        Args:
            step: The step number, 0 or more.
            optimizer, variables, module, extra: The training, as for `thalweg.checkpoint.save`.
            metrics: Optional. {name: number}; must contain the manager's metric `best`, if set.

        Returns:
            The path of the file. With `asynchronous=True`, the file is complete only after `wait()`
            or the next `save`. If writing failed, the next `save` starts writing its own file, and
            then raises the error.

        Raises:
            InvalidArgumentError: `step` is not an integer of 0 or more, or `metrics` lacks `best`.
        """
        checked_step = _step_number(step)
        metric_values = dict(metrics or {})
        if self._best is not None and self._best not in metric_values:
            raise InvalidArgumentError(
                f"metrics must have {self._best!r}, by which the best is kept; given:"
                f" {metric_values}."
            )
        snapshot = take_snapshot(
            optimizer=optimizer,
            variables=variables,
            module=module,
            extra=extra,
            metrics=metric_values,
        )
        # An error of the previous save must not lose this one, so it is raised at the end.
        path = self.directory / f"{self._name}-{checked_step}{SUFFIX}"
        self._can_remove = snapshot.is_here()
        failure = self._wait_for_save()
        snapshot.document.update(step=checked_step, time=self._time_after_all())
        if self._asynchronous:
            self._saving = Saving(snapshot, path, None)
        else:
            snapshot.write(path)
            self._remove_old()
        if failure is not None:
            failure.add_note(f"That was the save before; {path} is being written.")
            raise failure
        return path

    def _time_after_all(self) -> float:
        """Return the present time; after a clock was set back, a time just after the last save."""
        present, newest = self._clock(), self.checkpoints()[-1:]
        return max([present, *(math.nextafter(checkpoint.time, math.inf) for checkpoint in newest)])

    def wait(self) -> None:
        """Wait until all files are complete.

        Raises:
            CheckpointWriteError: A file cannot be written.
        """
        failure = self._wait_for_save()
        if failure is not None:
            raise failure

    def _wait_for_save(self) -> Exception | None:
        """Wait for the save in progress; after a success, delete old checkpoints.

        Returns:
            The exception of a failed save, else None. In a forked process, return None without
            waiting for the save of the parent process.
        """
        saving, self._saving = self._saving, None
        if saving is None or saving.is_elsewhere():
            return None
        try:
            saving.wait()
        except Exception as error:
            return error
        self._remove_old()
        return None

    def restore(
        self,
        step: int | None = None,
        *,
        optimizer: object = None,
        variables: Variables | Literal[False] | None = None,
        module: torch.nn.Module | None = None,
        check_arguments: bool = True,
        convert: bool = False,
        progress: Progress | None = None,
    ) -> Restored:
        """Restore a training from the checkpoint `step`, or from the latest checkpoint.

        Args:
            step: Optional. The number of the checkpoint. A save in progress is completed first.
            optimizer: Optional. The optimizer to restore. By default, an optimizer is made if the
                file describes it. False ignores the file's optimizer.
            variables, module: The variables and module, named as in the file. `variables=False`
                without a module restores no variables.
            check_arguments: True to raise if arguments of `optimizer` differ from the saved
                arguments.
            convert: True to convert state of `thalweg.optim` to the storage format of `optimizer`.
            progress: Optional. `progress(bytes_read, total_bytes)` is called during reading.

        Returns:
            The optimizer, `extra`, the metrics, the step, and the names of parts not restored.

        Raises:
            InvalidArgumentError: `step` is not an integer of 0 or more.
            MissingFileError: There is no checkpoint, or no checkpoint `step`.
            ThalwegError: The checkpoint cannot be restored; see `thalweg.checkpoint.restore`.
                Without `step`, a damaged file raises if its number or modification time is the
                latest; others cause a warning. A file of a newer format version always raises.
        """
        self.wait()
        paths = _files_by_step(self.directory, self._name)
        path = self._newest_readable() if step is None else paths.get(_step_number(step))
        if path is None:
            contents = "no checkpoint" if step is None else f"no checkpoint {step}"
            raise MissingFileError(f"{self.directory} has {contents}; there are {sorted(paths)}.")
        options: Any = {"optimizer": optimizer, "variables": variables, "module": module}
        options |= {"check_arguments": check_arguments, "convert": convert, "progress": progress}
        return restore(path, **options)

    def restore_or_initialize(
        self,
        *,
        optimizer: object = None,
        variables: Variables | Literal[False] | None = None,
        module: torch.nn.Module | None = None,
        check_arguments: bool = True,
        convert: bool = False,
        progress: Progress | None = None,
    ) -> Restored | None:
        """Restore the latest checkpoint; return None and change nothing if there is none.

        Arguments and result are those of `restore`.

        Raises:
            ThalwegError: The latest checkpoint cannot be restored; see `restore`.

        Example:
            >>> import tempfile, thalweg
            >>> from thalweg.keras.optimizers import SGD
            >>> manager = CheckpointManager(tempfile.mkdtemp())
            >>> w, opt = thalweg.Variable([4.0], name="w"), SGD(0.25)
            >>> restored = manager.restore_or_initialize(optimizer=opt, variables=[w])
            >>> for step in range(restored.step + 1 if restored else 0, 3):
            ...     _ = opt.apply_gradients([([1.0], w)])
            ...     _ = manager.save(step, optimizer=opt, variables=[w])
            >>> manager.restore_or_initialize(optimizer=opt, variables=[w]).step
            2
        """
        self.wait()
        path = self._newest_readable()
        if path is None:
            return None
        options: Any = {"optimizer": optimizer, "variables": variables, "module": module}
        options |= {"check_arguments": check_arguments, "convert": convert, "progress": progress}
        return restore(path, **options)

    def _newest_readable(self) -> Path | None:
        """Return the path of the latest readable checkpoint; None if there are no checkpoints.

        Raise the error of an unreadable file if `_UnreadableFile.may_follow` says that it may be
        later, or if no file is readable. Warn of the other unreadable files.
        """
        checkpoints, unreadable = _scan_directory(self.directory, self._name)
        newest = checkpoints[-1] if checkpoints else None
        for file in unreadable:
            if newest is None or file.may_follow(newest):
                if newest is not None:
                    file.error.add_note(
                        f"It may be the latest. Without it, {newest.path} is: remove it, or name"
                        f" the step, {newest.step}, to go on from there."
                    )
                raise file.error
            file.warn_unreadable()
        return newest.path if newest is not None else None

    def latest(self) -> Path | None:
        """Return the file that was saved last; None if there is none."""
        self.wait()
        return latest(self.directory, self._name)

    def best(self) -> Path | None:
        """Return the file with the best value of the metric `best`; None if there is none.

        Raises:
            InvalidArgumentError: The manager was made without `best`.
        """
        if self._best is None:
            raise InvalidArgumentError("There is no best one without a metric: give best=.")
        self.wait()
        best = self._best_of(self.checkpoints())
        return None if best is None else best.path

    def checkpoints(self) -> list[Kept]:
        """Return the checkpoints that exist, in the order in which they were saved.

        Damaged files are left out, with a warning.
        """
        return _list_checkpoints(self.directory, self._name)

    def _best_of(self, checkpoints: list[Kept]) -> Kept | None:
        """Return the checkpoint with the best metric; None if no checkpoint has it."""
        sign = 1 if self._mode == "min" else -1
        metrics = [
            sign * checkpoint.metrics.get(self._best or "", math.nan) for checkpoint in checkpoints
        ]
        # `min` would return NaN or not depending on the order.
        pairs = [pair for pair in zip(metrics, checkpoints) if not math.isnan(pair[0])]
        return min(pairs, key=lambda pair: pair[0])[1] if pairs else None

    def _remove_old(self) -> None:
        """Delete the checkpoints that `keep`, `keep_every` and `best` do not retain.

        Delete nothing if `keep` is None, or if another rank writes the files. If a file cannot be
        deleted, warn with a CheckpointWarning.
        """
        if self._keep is None or not self._can_remove:
            return
        checkpoints = self.checkpoints()
        best = self._best_of(checkpoints) if self._best is not None else None
        dated = [(str(checkpoint.path), checkpoint.time) for checkpoint in checkpoints]
        for old in Keeper(self._keep, self._keep_every, -math.inf, dated).too_old():
            if best is None or old != str(best.path):
                try:
                    Path(old).unlink(missing_ok=True)
                # The save has succeeded, so this is not an error.
                except OSError as error:
                    warn(f"{old} stays: {error}", CheckpointWarning)


@dataclass(frozen=True)
class _UnreadableFile:
    """A file that has the name of a checkpoint, but cannot be read."""

    step: int
    path: Path
    error: ThalwegError

    def may_follow(self, newest: Kept) -> bool:
        """Return True if the file's step, time or format version may be later than `newest`."""
        if self.step > newest.step or isinstance(self.error, UnsupportedCheckpointError):
            return True
        try:
            return self.path.stat().st_mtime >= newest.path.stat().st_mtime
        # Another process has removed one of the files.
        except FileNotFoundError:
            return False

    def warn_unreadable(self) -> None:
        """Warn that the file is ignored, with the error."""
        warn(f"{self.path} is left alone: {self.error}", CheckpointWarning)


def _list_checkpoints(directory: Path, name: str) -> list[Kept]:
    """Return the readable checkpoints in the order of saving; warn of unreadable files."""
    checkpoints, unreadable = _scan_directory(directory, name)
    for file in unreadable:
        file.warn_unreadable()
    return checkpoints


def _scan_directory(directory: Path, name: str) -> tuple[list[Kept], list[_UnreadableFile]]:
    """Return (readable checkpoints in the order of saving, unreadable files with errors)."""
    checkpoints, unreadable = list[Kept](), list[_UnreadableFile]()
    for step, path in _files_by_step(directory, name).items():
        try:
            document = container.describe(path).document
            raw_metrics = JsonReader({})(document.get("metrics", {}))
            metrics = {key: float(metric) for key, metric in raw_metrics.items()}
            saved_time = float(document.get("time", 0.0))
            if not math.isfinite(saved_time):
                raise ValueError(f"the time is {saved_time}.")
            checkpoints.append(Kept(step, path, saved_time, metrics))
        # Another process has removed the file.
        except MissingFileError:
            continue
        except ThalwegError as error:
            unreadable.append(_UnreadableFile(step, path, error))
        except (TypeError, ValueError, AttributeError) as error:
            problem = InvalidConfigError(f"{path}: its time or its metrics are none: {error}")
            unreadable.append(_UnreadableFile(step, path, problem))
    return sorted(checkpoints, key=lambda kept: (kept.time, kept.step)), unreadable


def _step_number(step: Any) -> int:
    """Return `step` as an int; raise InvalidArgumentError unless it is an integer of 0 or more."""
    try:
        checked_step = -1 if isinstance(step, bool) else operator.index(step)
    except TypeError:
        checked_step = -1
    if not 0 <= checked_step < _STEP_LIMIT:
        raise InvalidArgumentError(
            f"step must be a whole number from 0 to {_STEP_LIMIT - 1}, not {show_value(step)}."
        )
    return checked_step


def _files_by_step(directory: Path, name: str) -> dict[int, Path]:
    """Return {step: path} of the files in a directory called "<name>-<step>.safetensors"."""
    # Steps below `_STEP_LIMIT` have at most 18 digits.
    pattern = re.compile(re.escape(name) + r"-(\d{1,18})" + re.escape(SUFFIX))
    if not directory.is_dir():
        return {}
    matches = {path: pattern.fullmatch(path.name) for path in directory.iterdir()}
    return {int(match[1]): path for path, match in matches.items() if match is not None}
