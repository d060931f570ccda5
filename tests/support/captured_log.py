"""Capture of log records.

pytest's own plugin, with its `caplog`, is off: before and after each part of each test it visits
every logger that does not propagate, and torch has dozens.
"""

from __future__ import annotations

import logging


class Logged(logging.Handler):
    """Keeps the records that come to it."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def messages(self) -> list[str]:
        return [record.getMessage() for record in self.records]
