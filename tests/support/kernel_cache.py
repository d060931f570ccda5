"""Folder of compiled kernels, kept from one test run to the next."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def use_test_folder() -> None:
    """Keep kernels in a folder of the tests, unless the environment names one.

    It is not in the checkout: a group may write to that, and then no kernels would be kept.
    """
    folder = f"thalweg-tests-{getattr(os, 'getuid', int)()}"
    os.environ.setdefault("THALWEG_CACHE_DIR", str(Path(tempfile.gettempdir()).absolute() / folder))
