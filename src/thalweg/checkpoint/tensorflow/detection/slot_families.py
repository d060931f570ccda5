"""Optimizer classes of TensorFlow and Keras, with their slots in order of creation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

BETA_POWERS = ("beta1_power", "beta2_power")


@dataclass(frozen=True)
class Family:
    """An optimizer class of TensorFlow or Keras, with its slots.

    Attributes:
        cls: The name of the class in `thalweg.v1`, or in `thalweg.keras.optimizers`.
        title: The default name, after which slots are named in a graph.
        slots: The kinds of slots, such as "m", in order of creation.
        powers: The names of scalars that belong to no variable.
        hypers: The hyperparameters in a checkpoint of Keras, besides the learning rate and its
            decay.
        options: Arguments with which the class has these slots.
        aliases: Other classes with equal slots, powers and title.
        names: {kind of slot: name}, if the name is not the title.
    """

    cls: str
    title: str
    slots: tuple[str, ...]
    powers: tuple[str, ...] = ()
    hypers: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    aliases: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def parts(self) -> list[tuple[str, str]]:
        """(kind of slot, last part of the slot's name) pairs, in order of creation."""
        return [(slot, self.names.get(slot, self.title)) for slot in self.slots]


# Names in order of creation, from `tf.compat.v1.train`, `tf.contrib.opt` and OpenSeq2Seq.
V1 = (
    Family(
        "AdamOptimizer", "Adam", ("m", "v"), BETA_POWERS, aliases=("LazyAdam", "contrib's Nadam")
    ),
    Family("AdamWOptimizer", "AdamW", ("m", "v"), BETA_POWERS),
    Family("AdaMaxOptimizer", "AdaMax", ("m", "v"), ("beta1_power",)),
    Family("MomentumOptimizer", "Momentum", ("momentum",)),
    Family("MomentumWOptimizer", "MomentumW", ("momentum",)),
    Family("LARSOptimizer", "LARSOptimizer", ("momentum",)),
    Family("NovoGrad", "NovoGrad", ("momentum",)),
    Family("AdagradOptimizer", "Adagrad", ("accumulator",)),
    Family("ProximalAdagradOptimizer", "ProximalAdagrad", ("accumulator",)),
    Family(
        "AdagradDAOptimizer", "AdagradDA", ("gradient_accumulator", "gradient_squared_accumulator")
    ),
    Family("AdadeltaOptimizer", "Adadelta", ("accum", "accum_update")),
    Family("FtrlOptimizer", "Ftrl", ("accum", "linear")),
    Family("RMSPropOptimizer", "RMSProp", ("rms", "momentum")),
    Family("RMSPropOptimizer", "RMSProp", ("rms", "mg", "momentum"), options={"centered": True}),
)

_BETAS, _RHO, _CENTERED = ("beta_1", "beta_2"), ("momentum", "rho"), {"centered": True}
_FTRL = ("beta", "l1_regularization_strength", "l2_regularization_strength", "learning_rate_power")
KERAS = (
    Family("SGD", "SGD", (), hypers=("momentum",)),
    Family("SGD", "SGD", ("momentum",), hypers=("momentum",)),
    Family("Adam", "Adam", ("m", "v"), hypers=_BETAS),
    Family("Adam", "Adam", ("m", "v", "vhat"), hypers=_BETAS, options={"amsgrad": True}),
    Family("Adamax", "Adamax", ("m", "v"), hypers=_BETAS),
    Family("Nadam", "Nadam", ("m", "v"), ("momentum_cache",), hypers=_BETAS),
    Family("Adagrad", "Adagrad", ("accumulator",)),
    Family("Adadelta", "Adadelta", ("accum_grad", "accum_var"), hypers=("rho",)),
    Family("RMSprop", "RMSprop", ("rms",), hypers=_RHO),
    Family("RMSprop", "RMSprop", ("rms", "momentum"), hypers=_RHO),
    Family("RMSprop", "RMSprop", ("rms", "mg"), hypers=_RHO, options=_CENTERED),
    Family("RMSprop", "RMSprop", ("rms", "momentum", "mg"), hypers=_RHO, options=_CENTERED),
    Family("Ftrl", "Ftrl", ("accumulator", "linear"), hypers=_FTRL),
)


def families_titled(title: str, families: Iterable[Family] = V1) -> list[Family]:
    """Return the families (optimizer classes with slots) of a default name, such as "Adam"."""
    return [family for family in families if family.title == title]


def with_slots(slots: Iterable[str], families: Iterable[Family]) -> list[Family]:
    """Return the families (optimizer classes with their slots) that have exactly these slots."""
    kinds = set(slots)
    return [family for family in families if set(family.slots) == kinds]


# Classes of Keras that thalweg.keras does not have.
UNSUPPORTED = {name.lower(): name for name in ("AdamW", "Adafactor", "Lamb", "Lion", "Muon")}
# Optimizers that scale the loss around another one; the second is of Keras 2.11 to 2.15.
SCALING = ("LossScaleOptimizer", "LossScaleOptimizerV3")
# Keras 2.11 to 2.15 registers its own optimizers under "Custom", the default package;
# thalweg.integrations.keras3 registers the classes of the same names under "thalweg".
_PACKAGES = ("Custom", "thalweg")
_NAMES = (*(family.cls for family in KERAS), *SCALING, *UNSUPPORTED.values())
_BY_LOWER_NAME = {name.lower(): name for name in _NAMES}


def keras_class(name: str | None) -> str | None:
    """Return the plain name of an optimizer class of Keras; None for any other class.

    "Custom>Adam" and "adam" are "Adam". A class of another package, "mine>Adam", is not a Keras
    class, even with the same name.
    """
    package, _, plain_name = (name or "").rpartition(">")
    return _BY_LOWER_NAME.get(plain_name.lower()) if package in ("", *_PACKAGES) else None


def base_class_name(cls: type[object]) -> str:
    """Return the name of the first Keras class among a class and its bases, else of the class."""
    names = [base.__name__ for base in cls.__mro__]
    return next((name for name in names if name in _NAMES), cls.__name__)
