"""What all tests share: a folder for kernels that outlives a run, and hypothesis without chance."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import settings

os.environ.setdefault(
    "THALWEG_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "kernels")
)
settings.register_profile("thalweg", derandomize=True, deadline=None)
settings.load_profile("thalweg")
