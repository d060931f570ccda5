"""Modern rules, one file each. Formulas keep the order of operations of published packages.

`LION` is that of `thalweg.rules.torch`. Optimizer classes of the rules are in `thalweg.optim`.
"""

from __future__ import annotations

from thalweg._base.lazy import offering
from thalweg.formula import Rule

MODERN_RULES: tuple[Rule, ...]

# The file of each rule, which is imported when the rule is asked for.
_HOMES = {
    "ADAFACTOR_HF": "adafactor_hf",
    "ADAMW_COUPLED": "adamw_coupled",
    "ADAMW_DECOUPLED": "adamw_decoupled",
    "ADAMW_INDEPENDENT": "adamw_independent",
    "ADAMW_CAUTIOUS_DECAY": "adamw_cautious_decay",
    "NADAMW": "nadamw",
    "LAPROP": "laprop",
    "ADEMAMIX": "ademamix",
    "ADOPT": "adopt",
    "ADAN": "adan",
    "CAUTIOUS_ADAMW": "cautious_adamw",
    "STABLE_ADAMW": "stable_adamw",
    "LAMB": "lamb",
    "MARS": "mars",
    "MARS_LION": "mars_lion",
    "PRODIGY": "prodigy",
    "ADAMH": "adamh",
    "SCHEDULE_FREE_ADAMW": "schedule_free_adamw",
    "SCHEDULE_FREE_SGD": "schedule_free_sgd",
    "SM3": "sm3",
    "MUON": "muon",
    "NORMUON": "normuon",
    "ADAMUON": "adamuon",
    "MUONH": "muonh",
    "SOAP": "soap",
    "KLSOAP": "soap",
}
__all__ = ["MODERN_RULES", "Rule", *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__, __dir__ = offering(__name__, _HOMES, {"MODERN_RULES": _HOMES}, Rule)
