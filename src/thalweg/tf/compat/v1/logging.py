"""`tf.logging`: Python's `logging` for messages of the program and of thalweg's hooks.

Messages go to the logger "tensorflow", and to stderr if the root logger has no handler.
"""

from __future__ import annotations

import collections
import logging
import sys
from collections.abc import Mapping

DEBUG, INFO, WARN = logging.DEBUG, logging.INFO, logging.WARNING
ERROR, FATAL = logging.ERROR, logging.FATAL

# The program's messages, and those of thalweg's hooks.
_LOGGERS = (logging.getLogger("tensorflow"), logging.getLogger("thalweg"))
_counts: collections.Counter[tuple[str, int]] = collections.Counter()


def get_logger() -> logging.Logger:
    """Return the logger "tensorflow"."""
    for logger in _LOGGERS:
        if not (logging.getLogger().handlers or logger.handlers):
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
            logger.addHandler(handler)
    return _LOGGERS[0]


def set_verbosity(v: int) -> None:
    """Show messages of this level and above: those of the program, and of thalweg."""
    get_logger()
    for logger in _LOGGERS:
        logger.setLevel(v)


def get_verbosity() -> int:
    """Return the level from which on messages are shown."""
    return get_logger().getEffectiveLevel()


def log(level: int, msg: object, *args: object, **kwargs: object) -> None:
    """Log a message of a level; `args` are its `%` arguments."""
    _log_message(level, msg, args, kwargs)


def debug(msg: object, *args: object, **kwargs: object) -> None:
    """Log a message of level DEBUG."""
    _log_message(DEBUG, msg, args, kwargs)


def info(msg: object, *args: object, **kwargs: object) -> None:
    """Log a message of level INFO."""
    _log_message(INFO, msg, args, kwargs)


def warning(msg: object, *args: object, **kwargs: object) -> None:
    """Log a message of level WARN."""
    _log_message(WARN, msg, args, kwargs)


def error(msg: object, *args: object, **kwargs: object) -> None:
    """Log a message of level ERROR."""
    _log_message(ERROR, msg, args, kwargs)


def fatal(msg: object, *args: object, **kwargs: object) -> None:
    """Log a message of level FATAL."""
    _log_message(FATAL, msg, args, kwargs)


warn = warning
vlog = log


def log_if(level: int, msg: object, condition: object, *args: object) -> None:
    """Log a message if the condition is true."""
    if condition:
        _log_message(level, msg, args)


def log_every_n(level: int, msg: object, n: int, *args: object) -> None:
    """Log a message at the first of every `n` calls from the same line."""
    if _count_calls() % n == 0:
        _log_message(level, msg, args)


def log_first_n(level: int, msg: object, n: int, *args: object) -> None:
    """Log a message at the first `n` calls from the same line."""
    if _count_calls() < n:
        _log_message(level, msg, args)


def flush() -> None:
    """Flush the handlers."""
    for handler in get_logger().handlers:
        handler.flush()


def _log_message(
    level: int, msg: object, args: tuple[object, ...], options: Mapping[str, object] | None = None
) -> None:
    """Log a message as from the line two calls up."""
    get_logger().log(level, msg, *args, **{"stacklevel": 3, **(options or {})})


def _count_calls() -> int:
    """Count a call from the line two calls up; return the number of earlier ones."""
    frame = sys._getframe(2)
    key = (frame.f_code.co_filename, frame.f_lineno)
    _counts[key] += 1
    return _counts[key] - 1
