"""Names of the classes of this package, which are the `rule` of groups."""

from __future__ import annotations

_OF_TORCH = (
    "ASGD", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop",
    "Rprop", "SparseAdam",
)  # fmt: skip
_MODULES = {
    "adafactor": ("Adafactor",),
    "modern.adafactor_hf": ("AdafactorHF",),
    "lion": ("Lion",),
    "modern.adamw": (
        "AdamWCoupled", "AdamWDecoupled", "AdamWIndependent", "AdamWCautiousDecay", "NAdamW",
        "CautiousAdamW", "StableAdamW",
    ),
    "modern.adaptive": ("LaProp", "AdEMAMix", "ADOPT", "Adan", "LAMB", "AdamH", "SM3"),
    "modern.mars": ("MARS",),
    "modern.prodigy": ("Prodigy",),
    "modern.matrix_rules": ("Muon", "NorMuon", "AdaMuon", "MuonH", "SOAP", "KLSOAP"),
    "modern.schedule_free": ("ScheduleFreeAdamW", "ScheduleFreeSGD"),
}  # fmt: skip
# The modules of those that are imported when they are asked for.
HOMES = {name: module for module, names in _MODULES.items() for name in names}
KINDS: tuple[str, ...] = (*_OF_TORCH, *HOMES)
