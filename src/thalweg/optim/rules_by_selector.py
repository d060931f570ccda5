"""Choice of a rule for each parameter by selectors: each parameter gets exactly one rule."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, cast

from torch import Tensor

from thalweg._base.locks import importing
from thalweg._base.showing import show_value
from thalweg._core.param_groups import Group
from thalweg.errors import InvalidArgumentError, InvalidTypeError, did_you_mean
from thalweg.formula import Rule
from thalweg.optim.class_lookup import kind_of
from thalweg.optim.selectors import EMBEDDINGS, ModuleParams
from thalweg.optim.text_table import format_table

# The rank of `...`: after all numbers of dimensions.
_LAST_TURN = 10**6


class RulesBySelector:
    """Validated argument `rules` of `groups`.

    Args:
        rules: As in `groups`.

    Attributes:
        options: The options of each selector, in order: the rule or its name, and options of the
            rule.

    Raises:
        InvalidTypeError, InvalidArgumentError: There is no selector, or a rule or option is
            invalid.
    """

    def __init__(self, rules: Mapping[Any, Any]) -> None:
        if not isinstance(cast("object", rules), Mapping) or not rules:
            raise InvalidTypeError(
                "rules must be a dict of a selector and a rule, such as {...: 'AdamW'}, not"
                f" {show_value(rules)}."
            )
        self._selectors = list(rules)
        self._labels = [_format_selector(selector) for selector in self._selectors]
        self.options: list[Group] = []
        self._kinds: list[Any] = []
        for label, rule in zip(self._labels, rules.values(), strict=True):
            is_dict = isinstance(rule, Mapping)
            options: Group = dict(cast("Mapping[str, Any]", rule)) if is_dict else {"rule": rule}
            if "rule" not in options:
                raise InvalidArgumentError(f"The options of {label} have no 'rule' among them.")
            given_rule = options.pop("rule")
            kind = kind_of(given_rule)
            option_names = {*kind.constructor_signature.parameters, *kind.fixed_options} - {"self"}
            for name in options:
                if name not in option_names:
                    problem = f"{name!r} of {label} is no option of {kind.__name__}."
                    suggestion = did_you_mean(name, option_names)
                    raise InvalidArgumentError(f"{problem} {suggestion}".rstrip())
            self._kinds.append(kind)
            rule = given_rule if isinstance(given_rule, Rule) else kind.__name__
            self.options.append({"rule": rule, **options})

    def takes(self, index: int, name: str) -> bool:
        """Return True if the rule of the selector at an index has an option of this name."""
        return name in self._kinds[index].constructor_signature.parameters

    def all_have(self, name: str) -> bool:
        """Return True if each selector sets an option itself."""
        return all(name in options for options in self.options)

    def choose(self, module_params: ModuleParams, excluded_ids: Container[int]) -> list[int]:
        """Return the index of the selector for each parameter of a module, in order.

        Args:
            excluded_ids: The `id`s of parameters that get no rule and no entry in the result.

        Raises:
            InvalidArgumentError: No selector, or two of equal priority, select a parameter. Or a
                rule for matrices gets a vector, or an embedding that is not selected by name. Or a
                selector selects nothing.
        """
        self._check_tuples(module_params.all_names)
        indices: list[int] = []
        used_indices: set[int] = set()
        for name, param in module_params.named_params:
            by_rank: dict[int, list[int]] = {}
            for index, selector in enumerate(self._selectors):
                if _matches_selector(selector, param, module_params):
                    rank = _rank_selector(selector, module_params.names[id(param)])
                    by_rank.setdefault(rank, []).append(index)
                    # A selector that selects only excluded parameters is no mistake, either.
                    used_indices.add(index)
            if id(param) not in excluded_ids:
                index = self._first(by_rank, name, param)
                if self._kinds[index]._of_matrices:
                    self._check_matrix(index, name, param, module_params)
                indices.append(index)
        for index, selector in enumerate(self._selectors):
            module_params.check_selects(used_indices & {index}, selector, "rules:")
        self._check_rest(indices, module_params, excluded_ids)
        return indices

    def _check_rest(
        self, indices: Sequence[int], module_params: ModuleParams, excluded_ids: Container[int]
    ) -> None:
        """Raise InvalidArgumentError if a selector by dimensions leaves no parameter for `...`.

        Do nothing if `...` is not a selector, or selects a parameter. `indices` is the result of
        `choose`.
        """
        if ... not in self._selectors or self._selectors.index(...) in indices:
            return
        members = [pair for pair in module_params.named_params if id(pair[1]) not in excluded_ids]
        for (name, param), index in zip(members, indices, strict=True):
            largest = self._selectors[index]
            if isinstance(largest, int) and param.dim() < largest:
                raise InvalidArgumentError(
                    f"Nothing is left for `...`: {largest} selects parameters of up to {largest}"
                    f" dimensions, {name!r} of {param.dim()} too. Give {largest - 1} in place of"
                    " `...`, or leave `...` out."
                )

    def _first(self, by_rank: Mapping[int, list[int]], name: str, param: Tensor) -> int:
        """Return the index of the selector that has priority for a parameter.

        Raise InvalidArgumentError if no selector matches, or two have the lowest rank.

        Args:
            by_rank: {rank: indices of matching selectors}; the lowest rank has priority.
        """
        if not by_rank:
            raise InvalidArgumentError(
                f"No rule is for {name!r} of shape {tuple(param.shape)}: add a selector, such as"
                f" {name!r}, or `...` for all that is left."
            )
        first = by_rank[min(by_rank)]
        if len(first) > 1:
            labels = " and that of ".join(self._labels[index] for index in first[:2])
            raise InvalidArgumentError(
                f"Two rules are for {name!r} of shape {tuple(param.shape)}, that of {labels}: add"
                f" {name!r} as a selector, or have one of them not select it."
            )
        return first[0]

    def _check_matrix(
        self, index: int, name: str, param: Tensor, module_params: ModuleParams
    ) -> None:
        """Raise InvalidArgumentError unless a rule for matrices can update a parameter.

        An embedding must be selected by name. A parameter of three dimensions needs a layout.

        Args:
            index: The index of the parameter's selector.
        """
        label, rule = self._labels[index], self._kinds[index].__name__
        if param.dim() < 2:
            raise InvalidArgumentError(
                f"{name!r} has shape {tuple(param.shape)}, and {rule}, the rule of {label}, is for"
                f" matrices: add a selector for it, such as {{{name!r}: 'AdamW'}}."
            )
        if param.dim() == 3 and self._needs_layout(index):
            with importing:
                from thalweg._engines.matrix_shapes import stack_message
            raise InvalidArgumentError(
                stack_message(repr(name), param.shape, f"{rule}, the rule of {label},")
            )
        selector = self._selectors[index]
        names_param = selector in module_params.names[id(param)] or isinstance(selector, tuple)
        if not names_param and any(
            isinstance(x, EMBEDDINGS) for x in module_params.modules[id(param)]
        ):
            raise InvalidArgumentError(
                f"{name!r} is an embedding, or tied to one, whose rows are looked up, and {rule},"
                f" the rule of {label}, is for matrices that multiply: add a selector for it, such"
                f" as {{{name!r}: 'AdamW'}}, or name it to have it so."
            )

    def _needs_layout(self, index: int) -> bool:
        """Return True if a selector's rule of matrices has no layout for stacks of matrices."""
        kind, options = self._kinds[index], self.options[index]
        if rule := getattr(kind, "_prepared_rule", None):
            return rule.needs_layout
        has_layout = options.get("heads") is not None or options.get("layout") is not None
        return "layout" in kind.constructor_signature.parameters and not has_layout

    def _check_tuples(self, names: Sequence[str]) -> None:
        """Raise InvalidArgumentError for a name in a tuple that no parameter has."""
        for selector, label in zip(self._selectors, self._labels, strict=True):
            for name in cast("tuple[str, ...]", selector) if isinstance(selector, tuple) else ():
                if name not in names:
                    suggestion = did_you_mean(name, names)
                    raise InvalidArgumentError(
                        f"{name!r} of {label} is the name of no parameter. {suggestion}".rstrip()
                    )


class ParamGroups(list[Group]):
    """List of groups that prints as a table: rules, options and sizes."""

    def __str__(self) -> str:
        head = ("rule", "options", "parameters", "elements", "such as")
        return format_table([head, *map(_format_row, self)], right_aligned=(2, 3))


def _format_row(group: Group) -> tuple[str, ...]:
    """Return a group's row of the table: rule, options, parameters, elements and example names."""
    named_params: list[tuple[str, Any]] = [
        x if isinstance(x, tuple) else ("unnamed", x) for x in group["params"]
    ]
    options = [f"{name}={group[name]}" for name in group if name not in ("params", "rule")]
    elements = sum(param.numel() for _, param in named_params)
    examples = ", ".join(name for name, _ in named_params[:2]) + ", ..." * (len(named_params) > 2)
    rule = group.get("rule", "")
    return (
        rule.name if isinstance(rule, Rule) else str(rule),
        " ".join(options) or "defaults",
        str(len(named_params)),
        f"{elements:,}",
        examples,
    )


def _format_selector(selector: object) -> str:
    """Return the name of a selector in messages."""
    if isinstance(selector, tuple):
        names = cast("tuple[str, ...]", selector)
        return f"the tuple ({', '.join(map(repr, names[:2]))}{', ...' if len(names) > 2 else ''})"
    if isinstance(selector, type):
        return selector.__name__
    return "`...`" if selector is ... else repr(selector)


def _matches_selector(selector: object, param: Tensor, module_params: ModuleParams) -> bool:
    """Return True if a selector of rules selects a parameter."""
    if selector is ...:
        return True
    if isinstance(selector, tuple):
        return not set(module_params.names[id(param)]).isdisjoint(cast("tuple[str, ...]", selector))
    return module_params.selects(selector, param, "rules")


def _rank_selector(selector: Any, names: Sequence[str]) -> int:
    """Return the priority of a selector for a parameter with these names; the lowest selects."""
    if isinstance(selector, str):
        return -4 if selector in names else -3
    if isinstance(selector, tuple):
        return -2
    if isinstance(selector, type):
        return -1
    return _LAST_TURN if selector is ... else selector
