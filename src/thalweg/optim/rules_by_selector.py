"""Which rule updates which parameter: each is chosen exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor
from torch.nn import Module

from thalweg.core.groups import Group
from thalweg.errors import InvalidArgumentError, InvalidTypeError, did_you_mean
from thalweg.optim.class_of import kind_of
from thalweg.optim.selectors import check_selects, selects

_REST = 10**6  # comes last


class RulesBySelector:
    """What `groups` is given as `rules`.

    Args:
        rules: As there.

    Attributes:
        options: For each selector, in their order, what its groups have: the rule's name and
            options of it.

    Raises:
        InvalidTypeError, InvalidArgumentError: It has no selectors, or a rule is none.
    """

    def __init__(self, rules: Mapping[Any, Any]) -> None:
        if not isinstance(cast("object", rules), Mapping) or not rules:
            raise InvalidTypeError(
                "rules must be a dict of a selector and a rule, such as {...: 'AdamW'}, not"
                f" {rules!r}."
            )
        self._selectors = list(rules)
        self._titles = [_title(each) for each in self._selectors]
        self.options: list[Group] = []
        self._kinds: list[Any] = []
        for title, rule in zip(self._titles, rules.values(), strict=True):
            own: Group = dict(cast("Mapping[str, Any]", rule)) if isinstance(rule, Mapping) else {}
            if isinstance(rule, Mapping) and "rule" not in own:
                raise InvalidArgumentError(f"The options of {title} have no 'rule' among them.")
            kind = kind_of(own.pop("rule") if isinstance(rule, Mapping) else rule)
            known = {*kind.__signature__.parameters, *kind._fixed}
            for name in own:
                if name not in known:
                    near = did_you_mean(name, known)
                    raise InvalidArgumentError(
                        f"{name!r} of {title} is no option of {kind.__name__}. {near}".rstrip()
                    )
            self._kinds.append(kind)
            self.options.append({"rule": kind.__name__, **own})

    def takes(self, place: int, name: str) -> bool:
        """Whether the rule of a selector has such an option."""
        return name in self._kinds[place].__signature__.parameters

    def all_have(self, name: str) -> bool:
        """Whether each selector gives an option itself."""
        return all(name in own for own in self.options)

    def choose(
        self,
        named: Sequence[tuple[str, Tensor]],
        owners: Mapping[int, Sequence[Module]],
        names: Sequence[str],
    ) -> list[int]:
        """The place of the selector of each parameter.

        Args:
            named: The parameters.
            owners: The modules that own each, by its `id`.
            names: Those of all parameters of the module.

        Raises:
            InvalidArgumentError: None selects it, or two that come equally early; or a selector
                selects nothing.
        """
        found: list[int] = []
        seen: set[int] = set()
        self._check_tuples(names)
        for name, param in named:
            by_turn: dict[int, list[int]] = {}
            for place, each in enumerate(self._selectors):
                if _selects(each, name, param, owners[id(param)]):
                    by_turn.setdefault(_turn(each, name), []).append(place)
                    seen.add(place)
            what = f"{name!r} of shape {tuple(param.shape)}"
            if not by_turn:
                raise InvalidArgumentError(
                    f"No rule is for {what}: add a selector, such as {name!r}, or `...` for all"
                    " that is left."
                )
            first = by_turn[min(by_turn)]
            if len(first) > 1:
                one, other = (self._titles[place] for place in first[:2])
                raise InvalidArgumentError(
                    f"Two rules are for {what}, that of {one} and that of {other}: add {name!r} as"
                    " a selector, or have one of them not select it."
                )
            found.append(first[0])
        for place, each in enumerate(self._selectors):
            check_selects((place in seen and [place]) or [], each, names, "rules:")
        return found

    def _check_tuples(self, names: Sequence[str]) -> None:
        for selector, title in zip(self._selectors, self._titles, strict=True):
            for name in cast("tuple[str, ...]", selector) if isinstance(selector, tuple) else ():
                if name not in names:
                    near = did_you_mean(name, names)
                    raise InvalidArgumentError(
                        f"{name!r} of {title} is the name of no parameter. {near}".rstrip()
                    )

    def titled(self, groups: list[Group]) -> ParamGroups:
        """Groups that print as a table."""
        return ParamGroups(groups)


class ParamGroups(list[Group]):
    """Groups, which print as a table: for each its rule, options, and how much it has."""

    def __str__(self) -> str:
        head = ("rule", "options", "parameters", "elements", "such as")
        rows = [head, *map(_row, self)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines: list[str] = []
        for row in rows:
            cells = zip(row, widths, ("<", "<", ">", ">", "<"), strict=True)
            lines.append("  ".join(f"{cell:{side}{width}}" for cell, width, side in cells).rstrip())
        return "\n".join(lines)


def _row(group: Group) -> tuple[str, ...]:
    named = group["params"]
    own = [f"{name}={group[name]}" for name in group if name not in ("params", "rule")]
    elements = sum(param.numel() for _, param in named)
    more = ", ..." if len(named) > 2 else ""
    such = ", ".join(name for name, _ in named[:2]) + more
    return group["rule"], " ".join(own) or "defaults", str(len(named)), f"{elements:,}", such


def _title(selector: Any) -> str:
    """What a selector is called in messages."""
    if isinstance(selector, tuple):
        names = cast("tuple[str, ...]", selector)
        return f"the tuple ({', '.join(map(repr, names[:2]))}{', ...' if len(names) > 2 else ''})"
    if isinstance(selector, type):
        return selector.__name__
    return "`...`" if selector is ... else repr(selector)


def _selects(selector: Any, name: str, param: Tensor, owners: Sequence[Module]) -> bool:
    if selector is ...:
        return True
    if isinstance(selector, tuple):
        return name in selector
    return selects(selector, name, param, owners, "rules")


def _turn(selector: Any, name: str) -> int:
    """When a selector that selects a parameter is asked: the lowest first."""
    if isinstance(selector, str):
        return -4 if selector == name else -3
    if isinstance(selector, tuple):
        return -2
    if isinstance(selector, type):
        return -1
    return _REST if selector is ... else selector
