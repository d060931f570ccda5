"""Conversion of optimizer states that other packages wrote."""

from __future__ import annotations

from thalweg.optim.package_states.conversion import convert_state as convert_state
