"""`hidden_matrices`: the matrices between a model's input and its output, by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from thalweg.errors import InvalidArgumentError
from thalweg.optim.selectors import called, check_selects, owners_of

_MATRICES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_LOOKED_UP = (nn.Embedding, nn.EmbeddingBag)
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def hidden_matrices(
    module: nn.Module,
    *,
    output: Iterable[str] | str | None = None,
    allow: Iterable[str] | str = (),
    leave: Iterable[str] | str = (),
) -> tuple[str, ...]:
    """The names of the weights of linear and convolutional layers between input and output.

    It is a selector of `groups(model, rules=...)`. This is a heuristic: embeddings, the output
    layer, and what is tied to either are none of them, nor are weights of norms. A parameter of two
    or more dimensions whose owner is of another class is refused until it is named: it may hold
    several matrices at once, or hold them transposed. So may the weight of a convolution in groups.

    Args:
        module: The model.
        output: The parameters of the output layer, by name or pattern ("head.*"); () says that
            there is none. None asks `get_output_embeddings()` of the model.
        allow: Names or patterns of parameters that are to be among them, whatever they are.
        leave: Names or patterns of parameters that are not.

    Returns:
        Names as `named_parameters()` has them, in its order.

    Raises:
        InvalidArgumentError: A parameter is refused; a name or pattern selects nothing; or nothing
            says what the output is.

    Example:
        >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
        >>> hidden_matrices(model, output="2.*")
        ('1.weight',)
    """
    named = [(name, param) for name, param in module.named_parameters() if param.requires_grad]
    allowed, left = _called(allow, named, "allow"), _called(leave, named, "leave")
    ends = _of_output(module, output) | _of_input(module)
    owners, found, strange = owners_of(module), list[str](), list[str]()
    for name, param in named:
        kinds = owners[id(param)]
        if name in left:
            continue
        if name in allowed:
            found.append(name)
        elif param.dim() < 2 or id(param) in ends or _has(kinds, _LOOKED_UP + _NORMS):
            continue
        elif all(isinstance(each, _MATRICES) and getattr(each, "groups", 1) == 1 for each in kinds):
            found.append(name)
        else:
            title = " and ".join(sorted({type(each).__name__ for each in kinds}))
            strange.append(f"{name!r} of shape {tuple(param.shape)}, of a {title}")
    if strange:
        more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        raise InvalidArgumentError(
            f"{strange[0]}{more}, may be no matrix of a layer: name it in allow= to have it among"
            " the hidden matrices, or in leave= to have it left out."
        )
    return tuple(found)


def _has(owners: Iterable[nn.Module], kinds: tuple[type[nn.Module], ...]) -> bool:
    return any(isinstance(each, kinds) for each in owners)


def _called(
    patterns: Iterable[str] | str, named: Sequence[tuple[str, Tensor]], what: str
) -> set[str]:
    """The names that are given, by name or pattern."""
    found: set[str] = set()
    for each in [patterns] if isinstance(patterns, str) else patterns:
        names = {name for name, _ in named if called(each, name)}
        check_selects(names, each, [name for name, _ in named], what)
        found |= names
    return found


def _of_input(module: nn.Module) -> set[int]:
    """The `id` of what the model looks up its input in."""
    asked: Any = getattr(module, "get_input_embeddings", None)
    layer = asked() if callable(asked) else None
    return {id(param) for param in layer.parameters()} if isinstance(layer, nn.Module) else set()


def _of_output(module: nn.Module, output: Iterable[str] | str | None) -> set[int]:
    """The `id` of the output layer's parameters."""
    if output is not None:
        named = list(module.named_parameters(remove_duplicate=False))
        names = _called(output, named, "output")
        return {id(param) for name, param in named if name in names}
    asked: Any = getattr(module, "get_output_embeddings", None)
    if not callable(asked):
        raise InvalidArgumentError(
            f"{type(module).__name__} has no get_output_embeddings(): name the parameters of its"
            " output layer, such as output='head.*', or say output=() if it has none."
        )
    layer = asked()
    return {id(param) for param in layer.parameters()} if isinstance(layer, nn.Module) else set()
