"""`CheckpointManager`: a folder of checkpoints, of which some are kept."""

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
from thalweg._formats.retention import Keeper
from thalweg.checkpoint.async_save import Saving
from thalweg.checkpoint.json_encoding import JsonReader
from thalweg.checkpoint.named_state import Variables
from thalweg.checkpoint.save_restore import Progress, Restored, restore, take_snapshot
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
_MOST = 10**18


@dataclass(frozen=True)
class Kept:
    """A checkpoint of a folder.

    Attributes:
        step: Its number.
        path: Its file.
        time: When it was taken, in seconds since 1970.
        metrics: What it was saved with.
    """

    step: int
    path: Path
    time: float
    metrics: Mapping[str, float]


def latest(directory: str | os.PathLike[str], name: str = "checkpoint") -> Path | None:
    """Return the checkpoint of a folder that was saved last; None if there is none.

    Args:
        directory: A folder that a `CheckpointManager` writes to.
        name: What the names of the files begin with.
    """
    there = _whole_checkpoints(Path(directory), name)
    return there[-1].path if there else None


class CheckpointManager:
    """Numbered checkpoints in a folder, of which the last ones, some old ones and the best stay.

    What is kept is decided anew from the files that are there, so a training that is started again
    goes on as if it had not stopped. The last ones are those that were saved last, whatever their
    numbers: a training that went back to an earlier step goes on from there.

    Args:
        directory: The folder; made if it is not there.
        keep: How many of the last ones stay; None keeps all.
        keep_every: Optional. Seconds: of the others one stays in each such span of time.
        best: Optional. The name of a metric: the checkpoint with its best value stays.
        mode: Whether the best value is the lowest, "min", or the highest, "max".
        name: What the names of the files begin with: "checkpoint-12.safetensors".
        asynchronous: Whether a thread writes, while the training goes on.
        clock: Gives the time in seconds since 1970.

    Raises:
        InvalidArgumentError: A number is below 1, or `mode` is neither.

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
        self._removes = True
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
        """Save a training under a number, and remove what need not stay; see `save`.

        Args:
            step: The number, 0 or more.
            metrics: Optional. Numbers by name, the one called `best` among them.

        Where slots are shared out over ranks, all of them call this, and rank 0 writes.

        Returns:
            The file. Where a thread writes it, it is there after `wait`, or the next `save`, which
            also raises what came of it, once its own file is under way.

        Raises:
            InvalidArgumentError: `step` is not a whole number from 0 on, or `best` is not among
                the metrics.
        """
        number = _step_number(step)
        given = dict(metrics or {})
        if self._best is not None and self._best not in given:
            raise InvalidArgumentError(
                f"metrics must have {self._best!r}, by which the best is kept; given: {given}."
            )
        taken = take_snapshot(
            optimizer=optimizer, variables=variables, module=module, extra=extra, metrics=given
        )
        path = self.directory / f"{self._name}-{number}{SUFFIX}"
        self._removes = taken.is_here()
        failure = self._wait_for_save()
        taken.document.update(step=number, time=self._time_after_all())
        if self._asynchronous:
            self._saving = Saving(taken, path, None)
        else:
            taken.write(path)
            self._remove_old()
        if failure is not None:
            failure.add_note(f"That was the save before; {path} is being written.")
            raise failure
        return path

    def _time_after_all(self) -> float:
        """Now, or just after the newest file: clocks go back, and those of machines differ."""
        now, there = self._clock(), self.checkpoints()
        return max(now, math.nextafter(there[-1].time, math.inf)) if there else now

    def wait(self) -> None:
        """Return when all files are there.

        Raises:
            CheckpointWriteError: One cannot be written.
        """
        failure = self._wait_for_save()
        if failure is not None:
            raise failure

    def _wait_for_save(self) -> Exception | None:
        """Wait for the save under way and forget it; if it succeeds, delete old checkpoints.

        Returns:
            The exception that the save failed with, or None. A save that the process before a fork
            still writes is forgotten without waiting, and None is returned.
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
        """Go on from a checkpoint, the latest by default; see `thalweg.checkpoint.restore`.

        Args:
            step: Optional. The number of the checkpoint.
            optimizer, variables, module: As there.
            check_arguments, convert: As there.
            progress: As there.

        Raises:
            InvalidArgumentError: `step` is not a whole number from 0 on.
            MissingFileError: There is none, or none of this number.
            ThalwegError: It cannot be gone on from. No older one takes the place of one that is
                damaged: without a step, a damaged file raises if by its number or by the time of
                its last change it may be the latest, and a file of a newer version always.
        """
        self.wait()
        numbers = _files_by_step(self.directory, self._name)
        path = self._newest_readable() if step is None else numbers.get(_step_number(step))
        if path is None:
            what = "no checkpoint" if step is None else f"no checkpoint {step}"
            raise MissingFileError(f"{self.directory} has {what}; there are {sorted(numbers)}.")
        return restore(
            path,
            optimizer=optimizer,
            variables=variables,
            module=module,
            check_arguments=check_arguments,
            convert=convert,
            progress=progress,
        )

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
        """Go on from the latest checkpoint, or start where there is none.

        Returns:
            As `restore`; None if there is no checkpoint, and nothing has changed.

        Raises:
            ThalwegError: As `restore`: there is one that cannot be gone on from.

        Example:
            >>> import tempfile, thalweg
            >>> from thalweg.keras.optimizers import SGD
            >>> manager = CheckpointManager(tempfile.mkdtemp())
            >>> w, opt = thalweg.Variable([4.0], name="w"), SGD(0.25)
            >>> found = manager.restore_or_initialize(optimizer=opt, variables=[w])
            >>> for step in range(found.step + 1 if found else 0, 3):
            ...     _ = opt.apply_gradients([([1.0], w)])
            ...     _ = manager.save(step, optimizer=opt, variables=[w])
            >>> manager.restore_or_initialize(optimizer=opt, variables=[w]).step
            2
        """
        self.wait()
        path = self._newest_readable()
        if path is None:
            return None
        return restore(
            path,
            optimizer=optimizer,
            variables=variables,
            module=module,
            check_arguments=check_arguments,
            convert=convert,
            progress=progress,
        )

    def _newest_readable(self) -> Path | None:
        """The file to go on from, unless one that cannot be read may be newer."""
        there, odd = _looked_at(self.directory, self._name)
        newest = there[-1] if there else None
        for each in odd:
            if newest is None or each.may_follow(newest):
                if newest is not None:
                    each.error.add_note(
                        f"It may be the latest. Without it, {newest.path} is: remove it, or name"
                        f" the step, {newest.step}, to go on from there."
                    )
                raise each.error
            each.warn_unreadable()
        return newest.path if newest is not None else None

    def latest(self) -> Path | None:
        """Return the file that was saved last; None if there is none."""
        self.wait()
        return latest(self.directory, self._name)

    def best(self) -> Path | None:
        """Return the file whose metric is best; None if there is none.

        Raises:
            InvalidArgumentError: The manager was told of no metric.
        """
        if self._best is None:
            raise InvalidArgumentError("There is no best one without a metric: give best=.")
        self.wait()
        found = self._best_of(self.checkpoints())
        return None if found is None else found.path

    def checkpoints(self) -> list[Kept]:
        """Return the checkpoints that exist, in the order in which they were saved.

        Damaged files are left out, with a warning.
        """
        return _whole_checkpoints(self.directory, self._name)

    def _best_of(self, there: list[Kept]) -> Kept | None:
        sign = 1 if self._mode == "min" else -1
        values = [(sign * each.metrics.get(self._best or "", math.nan), each) for each in there]
        comparable = [pair for pair in values if not math.isnan(pair[0])]
        return min(comparable, key=lambda pair: pair[0])[1] if comparable else None

    def _remove_old(self) -> None:
        if self._keep is None or not self._removes:
            return
        there = self.checkpoints()
        best = self._best_of(there) if self._best is not None else None
        dated = [(str(each.path), each.time) for each in there]
        for old in Keeper(self._keep, self._keep_every, -math.inf, dated, _spared_time).too_old():
            if best is None or old != str(best.path):
                try:
                    Path(old).unlink(missing_ok=True)
                except OSError as error:  # the save itself has succeeded
                    warn(f"{old} stays: {error}", CheckpointWarning)


def _spared_time(saved: float, mark: float, span: float) -> float | None:
    return saved if saved - mark >= span else None


@dataclass(frozen=True)
class _Odd:
    """A file of a folder that is no checkpoint to go on from, and why."""

    step: int
    path: Path
    error: ThalwegError

    def may_follow(self, newest: Kept) -> bool:
        """Return True if the file may have been saved after a checkpoint; its recorded time is
        unreliable.
        """
        if self.step > newest.step or isinstance(self.error, UnsupportedCheckpointError):
            return True
        try:
            return self.path.stat().st_mtime >= newest.path.stat().st_mtime
        except FileNotFoundError:  # another process has removed one
            return False

    def warn_unreadable(self) -> None:
        warn(f"{self.path} is left alone: {self.error}", CheckpointWarning)


def _whole_checkpoints(directory: Path, name: str) -> list[Kept]:
    """The checkpoints of a folder that are whole, in the order in which they were saved."""
    there, odd = _looked_at(directory, name)
    for each in odd:
        each.warn_unreadable()
    return there


def _looked_at(directory: Path, name: str) -> tuple[list[Kept], list[_Odd]]:
    """The checkpoints of a folder, in the order in which they were saved, and what is none."""
    found, odd = list[Kept](), list[_Odd]()
    for step, path in _files_by_step(directory, name).items():
        try:
            document = container.describe(path).document
            told = JsonReader({})(document.get("metrics", {}))
            metrics = {key: float(each) for key, each in told.items()}
            when = float(document.get("time", 0.0))
            if not math.isfinite(when):
                raise ValueError(f"the time is {when}.")
            found.append(Kept(step, path, when, metrics))
        except MissingFileError:
            continue  # another process has removed it
        except ThalwegError as error:
            odd.append(_Odd(step, path, error))
        except (TypeError, ValueError, AttributeError) as error:
            what = InvalidConfigError(f"{path}: its time or its metrics are none: {error}")
            odd.append(_Odd(step, path, what))
    return sorted(found, key=lambda each: (each.time, each.step)), odd


def _step_number(step: Any) -> int:
    """A step as a number; anything else raises."""
    try:
        number = -1 if isinstance(step, bool) else operator.index(step)
    except TypeError:
        number = -1
    if not 0 <= number < _MOST:
        raise InvalidArgumentError(
            f"step must be a whole number from 0 to {_MOST - 1}, not {show_value(step)}."
        )
    return number


def _files_by_step(directory: Path, name: str) -> dict[int, Path]:
    """The checkpoints of a folder by number."""
    pattern = re.compile(re.escape(name) + r"-(\d{1,18})" + re.escape(SUFFIX))
    if not directory.is_dir():
        return {}
    found = {path: pattern.fullmatch(path.name) for path in directory.iterdir()}
    return {int(match[1]): path for path, match in found.items() if match is not None}
