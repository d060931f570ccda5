"""`groups`: the parameters of a module in groups, by name, kind of module or dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor
from torch.nn import Module

from thalweg.errors import InvalidArgumentError, InvalidTypeError, did_you_mean

Selector = str | type[Module] | int


def groups(
    module: Module,
    *,
    decay: float | None = None,
    no_decay: Iterable[Selector] | Selector = (),
    lr: float | None = None,
    lr_scale: Mapping[Selector, float] | None = None,
    frozen: Iterable[Selector] | Selector = (),
) -> list[dict[str, Any]]:
    """Groups of a module's parameters, with their names, for an optimizer of torch's kind.

    A parameter is selected by a part of its name between dots or a pattern over all of it ("bias",
    "encoder.*"), by the class of the module that owns it (`torch.nn.LayerNorm`), or by the largest
    number of dimensions (1: biases and the weights of norms). Parameters that nothing tells apart
    are one group; what needs no gradient is left out.

    Args:
        module: The module.
        decay: Optional. `weight_decay` of the groups.
        no_decay: What has a `weight_decay` of 0 instead.
        lr: Optional. The learning rate of the groups; needed for `lr_scale`.
        lr_scale: Optional. What the learning rate is multiplied by, by selector. Where several
            select a parameter, their product.
        frozen: What is left out.

    Raises:
        InvalidTypeError: A selector is of another type.
        InvalidArgumentError: A selector selects nothing, `lr_scale` has no `lr`, or `no_decay` no
            `decay`.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
        >>> for group in groups(model, decay=0.1, no_decay=1):
        ...     print(group["weight_decay"], [name for name, _ in group["params"]])
        0.1 ['0.weight']
        0.0 ['0.bias', '1.weight', '1.bias']
    """
    named = [(name, param) for name, param in module.named_parameters() if param.requires_grad]
    owners = {
        id(param): owner for owner in module.modules() for param in owner.parameters(recurse=False)
    }
    scales = dict(lr_scale or {})
    if scales and lr is None:
        raise InvalidArgumentError("lr_scale needs lr, which it is multiplied with.")
    if decay is None and _listed(no_decay):
        raise InvalidArgumentError("no_decay needs decay, which all other parameters get.")

    def chosen(selector: Any, what: str) -> set[int]:
        found = {
            id(param)
            for name, param in named
            if _selects(selector, name, param, owners[id(param)], what)
        }
        if not found:
            parts = {part for name, _ in named for part in name.split(".")}
            near = did_you_mean(selector, parts) if isinstance(selector, str) else ""
            raise InvalidArgumentError(f"{what} {selector!r} selects no parameter. {near}".rstrip())
        return found

    left_out = {key for each in _listed(frozen) for key in chosen(each, "frozen")}
    plain = {key for each in _listed(no_decay) for key in chosen(each, "no_decay")}
    scaled = [(chosen(each, "lr_scale"), factor) for each, factor in scales.items()]
    made: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, param in named:
        if id(param) in left_out:
            continue
        own: dict[str, Any] = {}
        if decay is not None:
            own["weight_decay"] = 0.0 if id(param) in plain else decay
        if lr is not None:
            own["lr"] = lr
            for members, factor in scaled:
                own["lr"] *= factor if id(param) in members else 1
        group = made.setdefault(tuple(own.values()), {"params": [], **own})
        group["params"].append((name, param))
    return list(made.values())


def _listed(selectors: Any) -> list[Any]:
    return [selectors] if isinstance(selectors, str | type | int) else list(selectors)


def _selects(selector: Any, name: str, param: Tensor, owner: Module, what: str) -> bool:
    if isinstance(selector, str):
        return selector in name.split(".") or fnmatchcase(name, selector)
    if isinstance(selector, type) and issubclass(selector, Module):
        return isinstance(owner, selector)
    if isinstance(selector, int) and not isinstance(selector, bool):
        return param.dim() <= selector
    raise InvalidTypeError(
        f"{what} must hold names, classes of modules or numbers of dimensions, not {selector!r}."
    )
