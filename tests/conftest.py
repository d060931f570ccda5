"""Settings of the whole test session."""

import os
from pathlib import Path

from hypothesis import settings

_CACHE = Path(__file__).parent.parent / ".pytest_cache" / "d" / "thalweg"
os.environ.setdefault("THALWEG_CACHE_DIR", str(_CACHE))

os.environ.setdefault("KERAS_BACKEND", "torch")

settings.register_profile("thalweg", derandomize=True, deadline=None)
settings.load_profile("thalweg")
