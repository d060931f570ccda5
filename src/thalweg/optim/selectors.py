"""Selection of parameters by name, class of module or number of dimensions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor
from torch.nn import Embedding, EmbeddingBag, Module

from thalweg._base.showing import show_value
from thalweg.errors import InvalidArgumentError, InvalidTypeError, did_you_mean

# Rows of these weights are looked up; no product uses them.
EMBEDDINGS = (Embedding, EmbeddingBag)


class ModuleParams:
    """Parameters of a module that need a gradient, with names and owners for selection.

    Attributes:
        named_params: (name, parameter) pairs; a tied parameter has its first name.
        names: {id(parameter): all its names}.
        modules: {id(parameter): all modules that own it}.
    """

    def __init__(self, module: Module) -> None:
        self.named_params = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.names: dict[int, list[str]] = {}
        for name, param in module.named_parameters(remove_duplicate=False):
            self.names.setdefault(id(param), []).append(name)
        self.modules: dict[int, list[Module]] = {}
        for owner in module.modules():
            for param in owner.parameters(recurse=False):
                self.modules.setdefault(id(param), []).append(owner)
        self.all_names = [name for names in self.names.values() for name in names]
        self._name_set = set(self.all_names)

    def called(self, selector: str, param: Tensor) -> bool:
        """Return True if a name of a parameter equals, contains as a part, or matches a selector.

        A selector that is the name of a parameter is not a pattern: "a[0]" does not match "a0".
        """
        names = self.names[id(param)]
        if selector in names or any(selector in name.split(".") for name in names):
            return True
        return selector not in self._name_set and any(fnmatchcase(name, selector) for name in names)

    def selects(self, selector: object, param: Tensor, argument: str) -> bool:
        """Return True if a selector selects a parameter.

        Args:
            selector: A name or a pattern, a class of modules, or a largest number of dimensions.
            argument: The name of the argument, for the error.

        Raises:
            InvalidTypeError: The selector is of another type.
        """
        if isinstance(selector, str):
            return self.called(selector, param)
        if isinstance(selector, type) and issubclass(selector, Module):
            return any(isinstance(owner, selector) for owner in self.modules[id(param)])
        if isinstance(selector, int) and not isinstance(selector, bool):
            return param.dim() <= selector
        raise InvalidTypeError(
            f"{argument} must hold names, classes of modules or numbers of dimensions, not"
            f" {show_value(selector)}."  # pyright: ignore[reportUnknownArgumentType]
        )

    def select_ids(
        self, selectors: Iterable[Any], argument: str, matches: Callable[[Any, Tensor], bool]
    ) -> set[int]:
        """Return the `id`s of parameters that any selector matches.

        Args:
            selectors: The selectors, which are passed to `matches`.
            argument: The name of the user's argument, for messages.
            matches: `matches(selector, parameter)` returns True for a match.

        Raises:
            InvalidArgumentError: A selector matches no parameter.
        """
        selected_ids: set[int] = set()
        for selector in selectors:
            ids = {id(param) for _, param in self.named_params if matches(selector, param)}
            self.check_selects(ids, selector, argument)
            selected_ids |= ids
        return selected_ids

    def check_selects(self, selected: Collection[object], selector: object, argument: str) -> None:
        """Raise InvalidArgumentError if `selected`, the result of `selector`, is empty.

        The message names `argument`, the user's argument, and suggests names like `selector`.
        """
        if selected:
            return
        segments = {segment for name in self.all_names for segment in name.split(".")}
        suggestion = did_you_mean(selector, segments) if isinstance(selector, str) else ""
        label = "`...`" if selector is ... else repr(selector)
        raise InvalidArgumentError(
            f"{argument} {label} selects no parameter. {suggestion}".rstrip()
        )
