"""`hidden_matrices`: the matrices between a model's input and its output, by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from thalweg._base.locks import importing
from thalweg.errors import InvalidArgumentError
from thalweg.optim.selectors import EMBEDDINGS, ModuleParams

_MATRICES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_OTHERS = (*EMBEDDINGS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def hidden_matrices(
    module: nn.Module,
    *,
    output: Iterable[str] | str | None = None,
    allow: Iterable[str] | str = (),
    leave: Iterable[str] | str = (),
) -> tuple[str, ...]:
    """Return the names of the weights of linear and convolutional layers between input and output.

    Names have the order of `named_parameters()`. The tuple is a selector for
    `groups(model, rules=...)`. The choice is a heuristic: it excludes embeddings, the output layer,
    parameters tied to either, and weights of norms. Weights of grouped convolutions, and parameters
    of two or more dimensions in other modules, may hold several matrices. Name such parameters in
    `allow` or `leave`. Rules for matrices update parameters of three dimensions, such as kernels of
    Conv1d, only with a `layout` or `heads=1`.

    Args:
        module: The model.
        output: The parameters of the output layer, by name or pattern ("head.*"); () for none. None
            takes the layer of the model's `get_output_embeddings()`.
        allow: Names or patterns of parameters to include against the heuristic.
        leave: Names or patterns of parameters to exclude, even if `allow` selects them.

    Raises:
        InvalidArgumentError: A parameter must be in `allow` or `leave`; a name or pattern selects
            nothing; or the output layer is unknown.

    Example:
        >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
        >>> hidden_matrices(model, output="2.*")
        ('1.weight',)
    """
    params, names = ModuleParams(module), list[str]()
    unclassified: list[tuple[str, Tensor]] = []
    allowed = _select_params(allow, params, "allow")
    excluded_ids = _select_params(leave, params, "leave")
    inputs = _params_of_getter(module, "get_input_embeddings") or set()
    ends = _find_output_ids(module, params, output) | inputs
    for name, param in params.named_params:
        kinds = params.modules[id(param)]
        if id(param) in excluded_ids:
            continue
        if id(param) in allowed:
            names.append(name)
        elif param.dim() < 2 or id(param) in ends or any(isinstance(x, _OTHERS) for x in kinds):
            continue
        elif all(isinstance(x, _MATRICES) and getattr(x, "groups", 1) == 1 for x in kinds):
            names.append(name)
        else:
            unclassified.append((name, param))
    if unclassified:
        raise _undecided_error(unclassified, params)
    return tuple(names)


def _undecided_error(
    unclassified: Sequence[tuple[str, Tensor]], module_params: ModuleParams
) -> Exception:
    """Return the error that asks the user to allow or leave out `unclassified` parameters."""
    name, param = unclassified[0]
    owner = " and ".join(
        sorted({type(module).__name__ for module in module_params.modules[id(param)]})
    )
    suffix = f" and {len(unclassified) - 1} more" if len(unclassified) > 1 else ""
    message = (
        f"{name!r} of shape {tuple(param.shape)}, of a {owner}{suffix}, may not be a matrix of a"
        " layer: name it in allow= to have it among the hidden matrices, or in leave= to have it"
        " left out."
    )
    if stack := next((name for name, param in unclassified if param.dim() == 3), None):
        with importing:
            from thalweg._engines.matrix_shapes import STACK_CHOICES
        message += (
            f" {stack!r} may be a stack of matrices, such as experts, for which rules of matrices"
            f" need a choice. {STACK_CHOICES}"
        )
    return InvalidArgumentError(message)


def _select_params(
    patterns: Iterable[str] | str, module_params: ModuleParams, argument: str
) -> set[int]:
    """Return the `id` of each parameter that one of the patterns selects.

    A pattern is a name, a part of a name between dots, or a glob pattern such as "head.*". Raise
    InvalidArgumentError if a pattern selects no parameter.

    Args:
        patterns: The patterns; a string is a single pattern.
        argument: The name of the user's argument, for messages.
    """
    selectors = [patterns] if isinstance(patterns, str) else patterns
    return module_params.select_ids(selectors, argument, module_params.called)


def _params_of_getter(module: nn.Module, name: str) -> set[int] | None:
    """Return the `id`s of the parameters of the layer that `module.<name>()` returns.

    Return None if there is no such method or no such layer.
    """
    getter: Any = getattr(module, name, None)
    try:
        layer = getter() if callable(getter) else None
    # Base classes define the getter for models that may not have the layer.
    except NotImplementedError:
        return None
    if isinstance(layer, nn.Parameter):
        return {id(layer)}
    return {id(param) for param in layer.parameters()} if isinstance(layer, nn.Module) else None


def output_ids(
    module: nn.Module, module_params: ModuleParams, output: Iterable[str] | str | None
) -> set[int] | None:
    """Return the `id`s of the parameters of the output layer; None if the layer is unknown."""
    if output is not None:
        return _select_params(output, module_params, "output")
    return _params_of_getter(module, "get_output_embeddings")


def _find_output_ids(
    module: nn.Module, module_params: ModuleParams, output: Iterable[str] | str | None
) -> set[int]:
    """Return the `id`s of the output layer's parameters; raise InvalidArgumentError if unknown."""
    ids = output_ids(module, module_params, output)
    if ids is None:
        raise InvalidArgumentError(
            f"{type(module).__name__} has no get_output_embeddings() that names a layer: name the"
            " parameters of its output layer, such as output='head.*', or say output=() if it has"
            " none."
        )
    return ids
