"""`LooperThread`: a thread that calls a function again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from thalweg._base.showing import show_value
from thalweg.errors import InvalidTypeError
from thalweg.v1.time_arguments import check_seconds, wait_seconds
from thalweg.v1.train.coordinator import Coordinator


class LooperThread(threading.Thread):
    """Calls a function until its coordinator is asked to stop; an error asks for that.

    Args:
        coord: The coordinator.
        timer_interval_secs: Seconds between two calls; None or 0 for none.
        target: The function; without it, a subclass overrides `run_loop`.
        args, kwargs: Its arguments.

    Raises:
        TypeError: `coord` is no coordinator, or the interval no number.
        ValueError: The interval is NaN.

    Reference: tf.train.LooperThread
    """

    def __init__(
        self,
        coord: object,
        timer_interval_secs: float | None,
        target: Callable[..., object] | None = None,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
    ) -> None:
        if not isinstance(coord, Coordinator):
            raise InvalidTypeError(f"coord must be a Coordinator, not {show_value(coord)}.")
        if timer_interval_secs is not None:
            check_seconds("timer_interval_secs", timer_interval_secs)
        super().__init__(daemon=True)
        self._coord = coord
        self._interval = timer_interval_secs
        self._call, self._call_args = target, (tuple(args or ()), dict(kwargs or {}))

    @staticmethod
    def loop(
        coord: object,
        timer_interval_secs: float | None,
        target: Callable[..., object],
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
    ) -> LooperThread:
        """Return a started thread."""
        looper = LooperThread(coord, timer_interval_secs, target, args, kwargs)
        looper.start()
        return looper

    def run(self) -> None:
        """Call `run_loop` at the interval until the coordinator stops; an error requests a stop."""
        with self._coord.stop_on_exception():
            self.start_loop()
            next_call_time = time.monotonic()
            while not self._coord.should_stop():
                self.run_loop()
                next_call_time += wait_seconds(self._interval or 0.0)
                if self._interval and self._coord.wait_for_stop(next_call_time - time.monotonic()):
                    break
            self.stop_loop()

    def start_loop(self) -> None:
        """Do nothing; a subclass overrides this for the start of the thread."""

    def stop_loop(self) -> None:
        """Do nothing; a subclass overrides this for the end of the thread."""

    def run_loop(self) -> None:
        """Call the target once; the thread repeats this."""
        if self._call is not None:
            self._call(*self._call_args[0], **self._call_args[1])
