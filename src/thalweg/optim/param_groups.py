"""`groups`: the parameters of a module in groups, by name, kind of module or dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from types import EllipsisType
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor
from torch.nn import Module

from thalweg._base.locks import importing
from thalweg._core.param_groups import Group
from thalweg.errors import InvalidArgumentError

if TYPE_CHECKING:
    from thalweg.optim.rules_by_selector import RulesBySelector
    from thalweg.optim.selectors import ModuleParams
    from thalweg.optim.width_scale import BaseWidths, WidthScale

Selector = str | type[Module] | int
RuleSelector = Selector | tuple[str, ...] | EllipsisType


def groups(
    module: Module,
    *,
    rules: Mapping[RuleSelector, Any] | None = None,
    decay: float | None = None,
    no_decay: Iterable[Selector] | Selector = (),
    lr: float | None = None,
    lr_scale: Mapping[Selector, float] | None = None,
    frozen: Iterable[Selector] | Selector = (),
    width_scale: WidthScale | None = None,
    scale_decay: bool = True,
) -> list[Group]:
    """Return groups of a module's parameters, with their names, for a torch-style optimizer.

    A selector is a part of a name between dots ("bias"), a pattern for a name ("encoder.*"), a
    class of modules (`torch.nn.LayerNorm`), or a largest number of dimensions; 1 selects biases and
    weights of norms. Parameters with equal options are one group. Parameters that need no gradient
    are left out.

    Args:
        module: The module.
        rules: Optional. {selector: rule} for `thalweg.optim.Mixed`. A rule is a class of
            `thalweg.optim`, its name, a `thalweg.Rule` of your own, or a dict of options with the
            rule as "rule". Selectors may also be tuples of names, as from `hidden_matrices`, and
            `...` for all remaining parameters. Names have priority, then patterns and parts of
            names, tuples, classes, dimensions, `...`. Printing the result shows a table.
        decay: Optional. `weight_decay` of the groups, unless set for a rule.
        no_decay: Selectors of parameters with a `weight_decay` of 0.
        lr: Optional. The learning rate of the groups, unless set for a rule; needed for `lr_scale`.
        lr_scale: Optional. Factors of the learning rate by selector; several factors of a parameter
            are multiplied.
        frozen: Selectors of parameters to leave out.
        width_scale: Optional. The model with the widths for which `lr` was tuned, for example on
            the device "meta", or {name: shape} of that model. Rates and decays are scaled as by
            MuAdam and MuSGD of mup; see docs/width-scaling.md. The widths are the dimensions in
            which the two models differ. Needs `rules` and `lr`.
        scale_decay: True to keep the product of rate and decay under `width_scale`, as mup does
            unless its `decoupled_wd` is True.

    Raises:
        InvalidTypeError: A selector or `width_scale` is of another type.
        InvalidArgumentError: A selector selects nothing. Or a parameter has no rule, or two rules
            of equal priority. Or `lr_scale` or `width_scale` is set without `lr`, or `no_decay`
            without `decay`. Or `width_scale` does not fit the module or a rule.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
        >>> for group in groups(model, decay=0.1, no_decay=1):
        ...     print(group["weight_decay"], [name for name, _ in group["params"]])
        0.1 ['0.weight']
        0.0 ['0.bias', '1.weight', '1.bias']
    """
    with importing:
        from thalweg.optim.rules_by_selector import ParamGroups, RulesBySelector
        from thalweg.optim.selectors import ModuleParams
    params, scales = ModuleParams(module), dict(lr_scale or {})
    of_rules = None if rules is None else RulesBySelector(rules)
    if scales and lr is None and not (of_rules and of_rules.all_have("lr")):
        raise InvalidArgumentError("lr_scale needs lr, which it is multiplied with.")
    widths = None if width_scale is None else _base_widths(module, width_scale, of_rules, lr)
    if decay is None and _list_selectors(no_decay) and not of_rules:
        raise InvalidArgumentError("no_decay needs decay, which all other parameters get.")
    frozen_ids = _select_ids(params, frozen, "frozen")
    no_decay_ids = _select_ids(params, no_decay, "no_decay")
    scaled_ids = [(_select_ids(params, [x], "lr_scale"), factor) for x, factor in scales.items()]
    named_params = [pair for pair in params.named_params if id(pair[1]) not in frozen_ids]
    choices = [0] * len(named_params) if of_rules is None else of_rules.choose(params, frozen_ids)
    groups_by_key: dict[tuple[Any, ...], Group] = {}
    for (name, param), choice in zip(named_params, choices, strict=True):
        options: Group = {} if of_rules is None else dict(of_rules.options[choice])
        if of_rules is None or of_rules.takes(choice, "weight_decay"):
            _set_decay(options, decay, id(param) in no_decay_ids)
        factors = tuple(factor for members, factor in scaled_ids if id(param) in members)
        scale = _set_rate(options, lr, factors)
        if widths is not None:
            scale = scale, widths.scale(name, options, scale_decay)
        key = (choice, options.get("weight_decay"), scale)
        group = groups_by_key.setdefault(key, {"params": [], **options})
        group["params"].append((name, param))
    return list(groups_by_key.values()) if of_rules is None else ParamGroups(groups_by_key.values())


def _base_widths(
    module: Module, width_scale: WidthScale, of_rules: RulesBySelector | None, lr: float | None
) -> BaseWidths:
    """Return `BaseWidths(module, width_scale)`.

    Raise InvalidArgumentError if there are no rules, or if a group has no learning rate. `of_rules`
    is the validated argument `rules` of `groups`, or None.
    """
    if of_rules is None or (lr is None and not of_rules.all_have("lr")):
        raise InvalidArgumentError(
            "width_scale needs rules and lr, such as rules={...: 'AdamW'}, lr=1e-3: the factor of"
            " a rate depends on the rule."
        )
    with importing:
        from thalweg.optim.width_scale import BaseWidths
    return BaseWidths(module, width_scale)


def _select_ids(module_params: ModuleParams, selectors: object, argument: str) -> set[int]:
    """Return the `id` of each parameter that a selector selects; raise if one selects nothing."""
    matches = partial(module_params.selects, argument=argument)
    return module_params.select_ids(_list_selectors(selectors), argument, matches)


def _set_decay(group: Group, decay: float | None, has_no_decay: bool) -> None:
    """Set the weight decay of a group in place: 0 if `has_no_decay`, else the default."""
    if has_no_decay:
        group["weight_decay"] = 0.0
    elif decay is not None:
        group.setdefault("weight_decay", decay)


def _set_rate(group: Group, lr: float | None, factors: tuple[float, ...]) -> object:
    """Set the learning rate of a group in place; return a key that tells groups apart."""
    if lr is not None:
        group.setdefault("lr", lr)
    rate = group.get("lr")
    for factor in factors:
        group["lr"] = group["lr"] * factor
    # Each product of a tensor is a new object, so that rates in tensors compare by their factors.
    return factors if isinstance(rate, Tensor) else group.get("lr")


def _list_selectors(selectors: object) -> list[object]:
    """Return selectors as a list; a single one may be bare."""
    is_single = isinstance(selectors, str | type | int)
    return [selectors] if is_single else list(cast("Iterable[Any]", selectors))
