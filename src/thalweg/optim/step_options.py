"""Options around the update of a step, for torch-style optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.options.accumulation import Accumulation
from thalweg._core.options.base import Option
from thalweg._core.options.clipping import Clipping
from thalweg._core.options.diagnostics import Diagnosed
from thalweg._core.options.flat_gradients import Flat
from thalweg._core.options.lookahead import Lookahead
from thalweg._core.options.loss_scale import Unscaling
from thalweg._core.options.master_weights import Masters, Offload, StateDtype
from thalweg._core.options.split_weights import SplitWeights
from thalweg._core.options.state_storage import StateCodec
from thalweg._core.options.step_in_backward import InBackward
from thalweg._core.options.stochastic_rounding import Rounding
from thalweg._core.options.update_targets import StateStorage
from thalweg._core.options.weight_averaging import Average
from thalweg._core.options.wrappers import (
    Cautious,
    CautiousDecay,
    RadialBrake,
    RowFloor,
    Sphere,
    TrustRatio,
)
from thalweg.errors import RuleError
from thalweg.formula import Rule
from thalweg.variable import check_held

if TYPE_CHECKING:
    from thalweg._core.clip_factor import Factor
    from thalweg._core.gradient_stats import GradientStats

FOUND_INF = "GradScaler found a gradient that is not finite"
EPSILON = 1e-6  # what `torch.nn.utils.clip_grad_norm_` adds to a norm

# The order of options in signatures and of the table in docs/options.md. Options that wrap the rule
# are applied in it, from the rule outwards, and messages name options in it.
OPTIONS: tuple[type[Option], ...] = (
    # gradients
    Clipping,
    Unscaling,
    Accumulation,
    InBackward,
    Flat,
    # changes to the update
    CautiousDecay,
    RowFloor,
    Cautious,
    TrustRatio,
    Sphere,
    RadialBrake,
    # state and precision
    StateCodec,
    Lookahead,
    Average,
    Masters,
    StateDtype,
    SplitWeights,
    Rounding,
    Offload,
    # diagnostics
    Diagnosed,
)
KEYWORDS = tuple(each.name for kind in OPTIONS for each in kind.keywords())
# What options keep in the state of a parameter, with the first of their keywords.
KEPT = {
    name: kind.keywords()[0].name for kind in OPTIONS for name in (*kind.begins, *kind.keeps_beside)
}
Kind = TypeVar("Kind", bound=Option)


class LastStep(NamedTuple):
    """Report of a step.

    Args:
        taken: Whether the step was taken.
        reason: The reason if it was not; "" if it was.
        count: The number of steps that this optimizer has taken since it was made or loaded.
        grad_norm: The common norm of the gradients, unscaled, their elements clipped. None where
            no option needs it.
        clip_factor: The factor that gradients were multiplied by; 1 if their norm was small enough.
    """

    taken: bool
    reason: str = ""
    count: int = 0
    grad_norm: float | None = None
    clip_factor: float | None = None


class StepOptions:
    """The options that a constructor was given: one of each kind, most of them off.

    Args:
        **keywords: By the names of their fields.

    Attributes:
        on: What differs from a constructor that was given nothing, by keyword.
        wrapping: The options that do something beside the rule, in the same pass over memory.
        clips: Whether gradients are clipped.
        accumulate: How many calls of `step` add up gradients for one that is taken.
        in_backward: Whether each gradient is applied as it arrives.
        counts: Whether an option asks for the number of a step.
        keeps_as_torch: Whether the state is what torch would keep, where it would.
        kinds: What the state of parameters is kept in.
        without: As that of a `Wrapper`, if there is one.
        beside: What happens to gradients where nothing is known of a step.

    Raises:
        TypeError, ValueError: One is not what it can be, or cannot be beside another.
    """

    def __init__(self, **keywords: object) -> None:
        self._of: dict[type[Option], Option] = {}
        for kind in OPTIONS:
            names = [each.name for each in kind.keywords() if each.name in keywords]
            self._of[kind] = kind(**{name: keywords.pop(name) for name in names})
        if keywords:
            raise TypeError(f"{next(iter(keywords))!r} is no option of an optimizer.")
        on = [each for each in self._of.values() if each.on]
        for each in on:
            each.check_beside(self)
        self.on: dict[str, Any] = {name: own for each in on for name, own in each.on.items()}
        self.wrapping = tuple(each for each in on if type(each).rule is not Option.rule)
        self.clips = self.of(Clipping) in on
        self.accumulate = self.of(Accumulation).accumulate
        self.in_backward = self.of(InBackward).in_backward
        self.counts = any(each.counts for each in on)
        self.keeps_as_torch = not any(each.changes_state for each in on)
        self.beside = GradientTransforms(
            **{n: x for each in on for n, x in each.gradient_transforms().items()}
        )
        self.without = self.of(Sphere).without if self.of(Sphere) in on else ()
        self._begin = [each for each in on if each.begins]
        self._are_ours = any(each.is_ours for each in on)
        device = self.of(Offload).state_device
        self.kinds = StateStorage(
            self.of(Masters).masters,
            self.of(StateDtype).state_dtype,
            None if device is None else torch.device(device),
            self.of(Accumulation).accumulate > 1,
            frozenset(name for each in self.wrapping for name in each.begins),
            self.of(SplitWeights).weights is not None,
        )

    def of(self, kind: type[Kind]) -> Kind:
        """Return the option of a kind; one that is off, if it was not asked for."""
        return cast("Kind", self._of[kind])

    def __bool__(self) -> bool:
        """Return whether anything happens that a step of torch's would not do."""
        return self._are_ours

    @property
    def is_lossless(self) -> bool:
        """True if torch's own loader keeps all dtypes of the state."""
        return self.keeps_as_torch and not self.of(Accumulation).wide_sums

    @property
    def begins(self) -> list[str]:
        """Keys of the entries that begin at the parameters if a state lacks them."""
        return [name for each in self._begin for name in each.begins]

    def keys(self, param: Tensor) -> list[str]:
        """Return the keys of a parameter's state that torch's own state lacks."""
        return [name for each in self._begin if each.keeps(param) for name in each.begins]

    def rule(self, rule: Rule) -> Rule:
        """Return a rule with all that is done beside it."""
        for each in self.wrapping:
            rule = each.rule(rule)
        return rule

    def check_rule(self, rule: Rule, title: str) -> None:
        """Refuse a rule that cannot have what is done beside it.

        Args:
            rule: The rule.
            title: What users call it, and messages in place of its name.

        Raises:
            RuleError, InvalidArgumentError: Says why.
        """
        for each in self.wrapping:
            named = replace(rule, name=title)  # which messages tell
            made = each.rule(named)
            if made is not named:
                title += f"{',' if ' with ' in title else ' with'} {', '.join(each.on)}"
            rule = made

    def named(self) -> str:
        """Return the names of the options that are on, for messages."""
        return ", ".join(self.on)

    def value(self, name: str) -> Any:
        """Return the value of a keyword of the constructor, or its default."""
        return self.on.get(name, _DEFAULTS[name])

    def others(self, group: Mapping[str, object]) -> list[str]:
        """Options in a group that are not as here, where they are for all groups together."""
        return [n for n in KEYWORDS if n in group and not _equal(group[n], self.value(n))]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepOptions) and self.on == other.on

    def __hash__(self) -> int:
        return hash(tuple(self.on.items()))

    def __getattr__(self, name: str) -> Any:
        if name in _DEFAULTS:
            return self.value(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"StepOptions({', '.join(f'{name}={own!r}' for name, own in self.on.items())})"

    # Pickles hold keywords: those of an earlier version all of them.
    def __getstate__(self) -> dict[str, Any]:
        return {**_DEFAULTS, **self.on}

    def __setstate__(self, state: dict[str, object]) -> None:
        StepOptions.__init__(self, **{name: own for name, own in state.items() if name in KEYWORDS})


_FIELDS = [each for kind in OPTIONS for each in kind.keywords()]
_DEFAULTS = {each.name: each.default for each in _FIELDS}
StepOptions.__signature__ = Signature(  # pyright: ignore
    [
        Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
        for each in _FIELDS
    ]
)


def _equal(one: object, other: object) -> bool:
    try:
        for value in (one, other):
            if isinstance(value, Tensor):
                check_held(value)
        return bool(one == other)
    except (RuntimeError, TypeError, ValueError):  # a tensor of several elements, or a cut one
        return False


NONE = StepOptions()


def apart(keywords: dict[str, object]) -> StepOptions:
    """Take what is meant for the surroundings out of keywords."""
    own = {name: keywords.pop(name) for name in KEYWORDS if name in keywords}
    return StepOptions(**own) if own else NONE


def check_hypers(rule: Rule, titles: Iterable[str]) -> None:
    """Refuse a rule of whose hyperparameters one is called as what all groups or optimizers have.

    Args:
        rule: The rule.
        titles: Its hyperparameters, as groups call them.

    Raises:
        RuleError: Names the first.
    """
    taken = sorted({"params", "param_names", "rule", *KEYWORDS}.intersection(titles))
    if taken:
        raise RuleError(
            f"Rule {rule.name!r} has a hyperparameter named {taken[0]!r}, which means something"
            " else in groups: name it otherwise."
        )


class GradientReport:
    """Norm and clip factor of gradients; tensors stay on their device until they are read."""

    def __init__(self, grad_norm: Any = None, clip_factor: Any = None) -> None:
        self.grad_norm, self.clip_factor = grad_norm, clip_factor

    def __call__(self, known: GradientStats) -> None:
        self.grad_norm, self.clip_factor = known.global_norm, known.clip_scale


def gradient_transforms(
    around: StepOptions,
    unscaling: float | Tensor | None,
    count: int,
    seen: GradientReport,
    is_torchs: bool,
    factor: Factor | None = None,
) -> GradientTransforms:
    """Return the transforms of the gradients of a step.

    Args:
        around: The options.
        unscaling: The first factor of gradients, or None; a tensor stays one.
        count: The number of gradients.
        seen: Receives the norm and factor where gradients are measured.
        is_torchs: Whether a common norm clips with torch's factor, not with TensorFlow's.
        factor: The factor that clips by a common norm, if it is known; see `CommonNorm`.
    """
    if not around.clips and unscaling is None:
        return around.beside
    each: Any = None
    if isinstance(unscaling, Tensor):
        each = unscaling.expand(count)
    elif unscaling is not None:
        each = np.full(count, unscaling, np.float32)
    by_norm = around.beside.global_clipnorm is not None
    return replace(
        around.beside,
        unscaling=each,
        nan_if_not_finite=not is_torchs,
        epsilon=EPSILON if is_torchs else None,
        clip_factor=factor,
        watch=seen if by_norm and factor is None else None,
    )
