"""LARC as a config names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg._core.options.larc import Larc as Larc
from thalweg.openseq2seq.params import check_params


def larc_of(larc_params: Mapping[str, Any]) -> Larc:
    """Return the `Larc` of the parameters of a config.

    Raises:
        ValueError: A parameter is missing, unknown, of another type or not one of the modes.
    """
    check_params(
        larc_params,
        {"larc_eta": float},
        {"larc_mode": ["clip", "scale"], "min_update": float, "epsilon": float},
    )
    return Larc(
        larc_params["larc_eta"],
        larc_params.get("larc_mode", "clip") == "clip",
        larc_params.get("min_update", 1e-7),
        larc_params.get("epsilon", 1e-7),
    )
