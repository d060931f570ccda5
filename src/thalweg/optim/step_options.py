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
from thalweg._core.options.base import Option
from thalweg._core.options.update_targets import StateStorage
from thalweg.errors import RuleError
from thalweg.formula import Rule
from thalweg.optim import options as option_classes
from thalweg.variable import check_held

if TYPE_CHECKING:
    from thalweg._core.clip_factor import Factor
    from thalweg._core.gradient_stats import GradientStats
    from thalweg.diagnostics.spike_judge import SpikeJudge

FOUND_INF = "GradScaler found a gradient that is not finite"
# `torch.nn.utils.clip_grad_norm_` adds this number to a norm before it divides by the norm.
EPSILON = 1e-6

# The order of options in signatures and of the table in docs/options.md. Options that wrap the rule
# are applied in it, from the rule outwards, and messages name options in it.
OPTIONS: tuple[type[Option], ...] = (
    # gradients
    option_classes.Clipping,
    option_classes.Unscaling,
    option_classes.Accumulation,
    option_classes.InBackward,
    option_classes.Flat,
    # changes to the update
    option_classes.CautiousDecay,
    option_classes.RowFloor,
    option_classes.Cautious,
    option_classes.TrustRatio,
    option_classes.Sphere,
    option_classes.RadialBrake,
    # state and precision
    option_classes.StateCodec,
    option_classes.Lookahead,
    option_classes.Average,
    option_classes.Masters,
    option_classes.StateDtype,
    option_classes.SplitWeights,
    option_classes.Rounding,
    option_classes.Offload,
    # diagnostics
    option_classes.Diagnosed,
    option_classes.SpikeActions,
)
KEYWORDS = tuple(field.name for kind in OPTIONS for field in kind.keywords())
# {key in the state of a parameter: first keyword of the option that adds the entry}.
ENTRY_KEYWORDS = {
    name: kind.keywords()[0].name for kind in OPTIONS for name in (*kind.begins, *kind.keeps_beside)
}
Kind = TypeVar("Kind", bound=Option)


class LastStep(NamedTuple):
    """Report of a step.

    Args:
        taken: True if the step was taken.
        reason: Why the step was not taken; "" if it was.
        count: The number of steps that this optimizer has taken since it was made or loaded.
        grad_norm: The norm of all gradients together, unscaled and with clipped elements. None if
            no option needs it.
        clip_factor: The factor by which clipping multiplied the gradients; 1 without an effect.
    """

    taken: bool
    reason: str = ""
    count: int = 0  # pyright: ignore[reportIncompatibleMethodOverride]
    grad_norm: float | None = None
    clip_factor: float | None = None


class StepOptions:
    """All options of a constructor: an object of each class in `OPTIONS`, most of them off.

    Args:
        **keywords: {keyword: value} of the constructor.

    Attributes:
        on: {keyword: value} of the options that are on.
        arguments: {keyword: value} of the options that files describe.
        wrapping: The options that change the update of a rule, in the same pass over memory.
        clips: True if gradients are clipped, or their norm decides on the step.
        accumulate: The number of calls of `step` with gradients that are summed up for one step.
        in_backward: True if each gradient is applied in the backward pass.
        counts: True if an option needs the number of a step.
        keeps_as_torch: True if no option changes the entries of torch's state.
        kinds: The storage of the state of parameters.
        zero_warning: `Sphere.without` if this option is on, else ().
        base_transforms: The gradient transforms that do not depend on the step.
        judge: The judge of steps; None without `spikes`.

    Raises:
        TypeError, ValueError: An option is invalid, or excludes another.
    """

    def __init__(self, **keywords: object) -> None:
        self._option_of: dict[type[Option], Option] = {}
        for kind in OPTIONS:
            names = [field.name for field in kind.keywords() if field.name in keywords]
            self._option_of[kind] = kind(**{name: keywords.pop(name) for name in names})
        if keywords:
            raise TypeError(f"{next(iter(keywords))!r} is no option of an optimizer.")
        active = [option for option in self._option_of.values() if option.on]
        for option in active:
            option.check_beside(self)
        self.on: dict[str, Any] = {name: x for option in active for name, x in option.on.items()}
        described = [option for option in active if option.has_file_entry]
        self.arguments = {name: x for option in described for name, x in option.on.items()}
        self.wrapping = tuple(option for option in active if type(option).rule is not Option.rule)
        self.accumulate = self.of(option_classes.Accumulation).accumulate
        self.in_backward = self.of(option_classes.InBackward).in_backward
        self.counts = any(option.counts for option in active)
        self.keeps_as_torch = not any(option.changes_state for option in active)
        self.base_transforms = GradientTransforms(
            **{n: x for option in active for n, x in option.gradient_transforms().items()}
        )
        spikes = self.of(option_classes.SpikeActions).spikes
        self.judge: SpikeJudge | None = None if spikes is None else spikes.judge
        self.clips = bool(self.base_transforms)
        sphere = self.of(option_classes.Sphere)
        self.zero_warning = sphere.without if sphere in active else ()
        self._begin = [option for option in active if option.begins]
        self._needs_engine = any(option.is_ours for option in active)
        device = self.of(option_classes.Offload).state_device
        self.kinds = StateStorage(
            self.of(option_classes.Masters).masters,
            self.of(option_classes.StateDtype).state_dtype,
            None if device is None else torch.device(device),
            self.accumulate > 1,
            frozenset(name for option in self.wrapping for name in option.begins),
            self.of(option_classes.SplitWeights).weights is not None,
        )

    def of(self, kind: type[Kind]) -> Kind:
        """Return the option of a kind, with default values if off."""
        return cast("Kind", self._option_of[kind])

    def __bool__(self) -> bool:
        """Return True if an option changes the steps."""
        return self._needs_engine

    @property
    def is_lossless(self) -> bool:
        """True if the loader of torch keeps all dtypes of the state."""
        return self.keeps_as_torch and not self.of(option_classes.Accumulation).wide_sums

    @property
    def begins(self) -> list[str]:
        """Keys of the entries that begin at the parameters if a state lacks them."""
        return [name for option in self._begin for name in option.begins]

    def keys(self, param: Tensor) -> list[str]:
        """Return the keys of a parameter's state that options add."""
        return [name for option in self._begin if option.keeps(param) for name in option.begins]

    def rule(self, rule: Rule) -> Rule:
        """Return a rule, wrapped by the options around an update."""
        for option in self.wrapping:
            rule = option.rule(rule)
        return rule

    def check_rule(self, rule: Rule, label: str) -> None:
        """Raise if an option that changes the update does not support a rule.

        Args:
            label: The name of the rule in messages.

        Raises:
            RuleError, InvalidArgumentError: An option rejects the rule; the message says why.
        """
        for option in self.wrapping:
            # Messages of options name the rule.
            titled_rule = replace(rule, name=label)
            wrapped_rule = option.rule(titled_rule)
            if wrapped_rule is not titled_rule:
                label += f"{',' if ' with ' in label else ' with'} {', '.join(option.on)}"
            rule = wrapped_rule

    def named(self) -> str:
        """Return the names of the options that are on, for messages."""
        return ", ".join(self.on)

    def value(self, name: str) -> Any:
        """Return the value of a keyword of the constructor, or its default."""
        return self.on.get(name, _DEFAULTS[name])

    def others(self, group: Mapping[str, object]) -> list[str]:
        """Return the options of a group that differ from those of the constructor."""
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
        return f"StepOptions({', '.join(f'{name}={x!r}' for name, x in self.on.items())})"

    # Pickles hold keywords: those of an earlier version all of them.
    def __getstate__(self) -> dict[str, Any]:
        return {**_DEFAULTS, **self.on}

    def __setstate__(self, state: dict[str, object]) -> None:
        StepOptions.__init__(self, **{name: x for name, x in state.items() if name in KEYWORDS})


_FIELDS = [field for kind in OPTIONS for field in kind.keywords()]
_DEFAULTS = {field.name: field.default for field in _FIELDS}
StepOptions.__signature__ = Signature(  # pyright: ignore
    [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in _FIELDS
    ]
)


def _equal(first: object, second: object) -> bool:
    """Return True if two option values are equal.

    Return False if the comparison raises, as for two tensors of several elements.
    """
    try:
        for value in (first, second):
            if isinstance(value, Tensor):
                check_held(value)
        return bool(first == second)
    # The truth of several elements is undefined, and freed storage cannot be read.
    except (RuntimeError, TypeError, ValueError):
        return False


NO_OPTIONS = StepOptions()


def pop_options(keywords: dict[str, object]) -> StepOptions:
    """Remove options from `keywords`, in place, and return them as `StepOptions`."""
    options = {name: keywords.pop(name) for name in KEYWORDS if name in keywords}
    return StepOptions(**options) if options else NO_OPTIONS


def check_hypers(rule: Rule, titles: Iterable[str]) -> None:
    """Raise RuleError if a hyperparameter has the name of an option or a reserved key of groups.

    Args:
        titles: The names of the rule's hyperparameters in groups.
    """
    reserved = sorted({"params", "param_names", "rule", *KEYWORDS}.intersection(titles))
    if reserved:
        raise RuleError(
            f"Rule {rule.name!r} has a hyperparameter named {reserved[0]!r}, which means something"
            " else in groups: name it otherwise."
        )


class GradientReport:
    """Norm and clip factor of gradients, as numbers, or as tensors on their device."""

    def __init__(self, grad_norm: Any = None, clip_factor: Any = None) -> None:
        self.grad_norm, self.clip_factor = grad_norm, clip_factor

    def __call__(self, stats: GradientStats) -> None:
        self.grad_norm, self.clip_factor = stats.global_norm, stats.clip_scale


def gradient_transforms(
    options: StepOptions,
    unscaling: float | Tensor | None,
    count: int,
    grad_report: GradientReport,
    is_torchs: bool,
    factor: Factor | None = None,
) -> GradientTransforms:
    """Return the transforms of a step's gradients: unscaling, and clipping by the options.

    Args:
        unscaling: The factor by which gradients are multiplied first, or None.
        count: The number of gradients.
        grad_report: Object that will store norm and clip factor if the step computes a global norm.
        is_torchs: True to clip by the global norm with torch's formula, False with TensorFlow's.
        factor: The factor that clips by the global norm, if already known; see `global_norm.py`.
    """
    if not options.clips and unscaling is None:
        return options.base_transforms
    unscale_factors: Any = None
    if isinstance(unscaling, Tensor):
        unscale_factors = unscaling.expand(count)
    elif unscaling is not None:
        unscale_factors = np.full(count, unscaling, np.float32)
    by_norm = options.base_transforms.has_global_norm
    return replace(
        options.base_transforms,
        unscaling=unscale_factors,
        nan_if_not_finite=not is_torchs,
        epsilon=EPSILON if is_torchs else None,
        clip_factor=factor,
        # With a known factor the judge has decided.
        judge=None if factor is not None else options.judge,
        watch=grad_report if by_norm and factor is None else None,
    )
