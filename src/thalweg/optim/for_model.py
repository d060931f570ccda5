"""`Mixed` for a model: a rule such as Muon for its matrices, and AdamW for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from torch import nn

from thalweg._base.matrix_layout import MatrixLayout
from thalweg._base.showing import show_value
from thalweg._core.param_groups import Group
from thalweg.errors import InvalidArgumentError, InvalidTypeError, did_you_mean
from thalweg.optim.class_lookup import class_named
from thalweg.optim.layout_decisions import Layouts, MatrixLayouts, matrix_layouts
from thalweg.optim.mixed import Mixed
from thalweg.optim.step_options import KEYWORDS


def mixed_for_model(
    rule: str,
    module: nn.Module,
    adamw: Mapping[str, Any] | None,
    layouts: Layouts | None,
    output: Any,
    inputs: Any,
    options: Mapping[str, Any],
) -> Mixed:
    """Return a `Mixed` over all trainable parameters: `rule` for matrices, AdamW for the rest.

    Args:
        rule: The name of a class for matrices, such as "Muon".
        adamw: Options of AdamW, or None.
        layouts, output, inputs: Arguments of `matrix_layouts`, which selects the matrices.
        options: Options of the rule, and options of the constructor of `Mixed`.

    Raises:
        InvalidArgumentError: A layout is undecided, or an option is unknown.
        InvalidTypeError: `adamw` is not a dictionary.
    """
    if names := sorted({"params", "heads", "layout"}.intersection(options)):
        raise InvalidArgumentError(
            f"{rule}.for_model() takes no {names[0]!r}: layouts= has the matrices of parameters by"
            " name."
        )
    if not isinstance(adamw, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidTypeError(
            "adamw must be a dictionary of options of AdamW, such as {'lr': 3e-4}, not"
            f" {show_value(adamw)}."
        )
    rule_names = class_named(rule).constructor_signature.parameters
    arguments = {"adamw", "layouts", "output", "inputs"}
    _check_names(f"{rule}.for_model()", options, {*rule_names, *KEYWORDS}, arguments)
    adamw_names = class_named("AdamW").constructor_signature.parameters
    _check_names("adamw", adamw or {}, {*adamw_names} - {"params", *KEYWORDS})
    decisions = matrix_layouts(module, layouts=layouts, output=output, inputs=inputs)
    rule_options = {name: options[name] for name in options if name not in KEYWORDS}
    step_options = {name: options[name] for name in options if name in KEYWORDS}
    groups = _groups(rule, module, decisions, rule_options, dict(adamw or {}))
    optimizer = Mixed(groups, **step_options)
    # `str(optimizer)` shows the reasons of these decisions.
    optimizer.layouts = decisions
    return optimizer


def _check_names(
    label: str,
    options: Mapping[Any, Any],
    names: AbstractSet[str],
    more_names: AbstractSet[str] = frozenset(),
) -> None:
    """Raise InvalidArgumentError if the name of an option is not in `names`.

    Raise InvalidTypeError for a name that is not a string.

    Args:
        label: The name of the argument or function that took the options, for the message.
        more_names: Further names that the message may suggest.
    """
    for name in options:
        if not isinstance(name, str):
            raise InvalidTypeError(
                f"The names of the options in {label} must be text, not {show_value(name)}."
            )
        if name not in names:
            suggestion = did_you_mean(name, names | more_names)
            raise InvalidArgumentError(f"{label} takes no option {name!r}. {suggestion}".rstrip())


def _groups(
    rule: str,
    module: nn.Module,
    decisions: MatrixLayouts,
    rule_options: Group,
    adamw_options: Group,
) -> list[Group]:
    """Return parameter groups: one per layout for `rule`, and up to two for AdamW.

    `decisions` has the layout of each parameter, or None for AdamW. The first AdamW group has
    parameters of two or more dimensions. The second has vectors and scalars, without weight decay.
    """
    params = dict(module.named_parameters())
    groups: dict[tuple[str, bool], Group] = {}
    for name, shape, layout, _ in decisions:
        if layout is not None:
            key = (str(layout), False)
            text = {} if layout == MatrixLayout() and len(shape) == 2 else {"layout": str(layout)}
            options = {"rule": rule, **rule_options, **text}
        else:
            is_vector = len(shape) < 2
            key = ("AdamW", is_vector)
            decay = {"weight_decay": 0.0} if is_vector else {}
            options = {"rule": "AdamW", **adamw_options, **decay}
        groups.setdefault(key, {"params": [], **options})["params"].append((name, params[name]))
    return list(groups.values())
