"""`thalweg::step`: a step as one operation of the graphs that `torch.compile` makes.

The operation lists the tensors that a step writes and the gradients that it reads. All else, such
as learning rates and step counts, is read when the graph runs, so it is not a constant of the
graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Generator, Sequence
from functools import partial
from itertools import count
from operator import is_
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch._C import DispatchKey  # pyright: ignore
from torch.nn import Parameter

from thalweg._base.context_managers import ContextSetting, no_grad
from thalweg._core.atomic_section import Call, unwatched
from thalweg._core.options.update_targets import MASTER
from thalweg._core.param_groups import params_of

_SCHEMA = "(str optimizer, Tensor(a!)[] parameters, Tensor(b!)[] slots, Tensor?[] gradients) -> ()"
_dispatch: Any = torch._C  # pyright: ignore[reportPrivateUsage]
_numbers = count()
# Weak: a compiled graph keeps the handle, but must not keep the optimizer alive.
_optimizers: WeakValueDictionary[str, Any] = WeakValueDictionary()


class Operands:
    """Tensors that the operation `thalweg::step` of an optimizer reads and writes in graphs.

    The lists change only between calls, since an operation must find the tensors of its graph.

    Attributes:
        handle: Key by which the operation finds the optimizer: a number as text, because Dynamo
            makes a number that differs between optimizers a variable of the graph.
        parameters: The parameters of all groups.
        slots: The state tensors that a step writes element by element; for views, the blocks that
            contain them.
        is_stale: True if a step has replaced a parameter or slot.
    """

    def __init__(self, optimizer: object) -> None:
        self.handle = str(next(_numbers))
        _optimizers[self.handle] = optimizer
        self.parameters: list[Tensor] = []
        self.slots: list[Tensor] = []
        self.is_stale = True
        self._rebind_target: object = None

    def read(self, optimizer: Any) -> None:
        """Set the operands to the present parameters and slots of the optimizer."""
        self.parameters, self.slots = _find_operands(optimizer)
        self.is_stale = False

    def read_again(self, optimizer: object) -> None:
        """Store the operands again after a change, unless they were never read."""
        if self.parameters:
            self.read(optimizer)

    def reading(self, optimizer: object, excluded_ids: Container[int] = ()) -> list[Call]:
        """Return a list with a callable that sets the operands to the optimizer's present tensors.

        The tensors are all parameters, and slots whose `id` is not in `excluded_ids`. Return [] if
        there are no operands yet.
        """
        if not self.parameters:
            return []
        params, slots = _find_operands(optimizer)
        slots = [slot for slot in slots if id(slot) not in excluded_ids]
        updates = {"parameters": params, "slots": slots, "is_stale": False}
        return [partial(vars(self).update, updates)]

    def check(self, optimizer: Any) -> None:
        """Set `is_stale` to True if the optimizer's tensors are not the operands, else to False.

        Skip the comparison if all steps since the last `check` reused the last plan.
        """
        # A step that reuses the last plan keeps the rebind target, and replaces no tensor.
        current_target = optimizer.step_cache.rebind_target
        if current_target is None or current_target is not self._rebind_target:
            self._rebind_target = current_target
            operand_pairs = zip(
                _find_operands(optimizer), (self.parameters, self.slots), strict=True
            )
            self.is_stale = not all(
                len(new) == len(old) and all(map(is_, new, old)) for new, old in operand_pairs
            )


def _find_operands(optimizer: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Return (parameters, slots) of an optimizer; base tensors replace slots that are views."""
    params = params_of(optimizer.param_groups)
    names = {slot.name for rule in optimizer._rules() for slot in rule.element_slots} | {MASTER}
    slots: dict[int, Tensor] = {}
    for param in params:
        for name, value in (optimizer.state.get(param) or dict[str, Any]()).items():
            if name in names and isinstance(value, Tensor):
                slot = value if value._base is None else value._base
                slots[id(slot)] = slot
    return params, list(slots.values())


def can_be_taken(handle: str) -> bool:
    """Update the operands of an optimizer; return True if a graph may contain its steps.

    `handle` is `Operands.handle` of the optimizer. Return False if the optimizer accumulates,
    updates in the backward pass or differentiates its steps. Also return False if a tensor is not a
    plain dense CPU tensor. Dynamo calls this function during tracing, and treats the result as a
    constant.
    """
    optimizer = _optimizers[handle]
    operands, options = optimizer.step_cache.operands, optimizer.step_options
    operands.read(optimizer)
    gradients = [param.grad for param in operands.parameters if param.grad is not None]
    return (
        not options.kinds.sums
        and not options.in_backward
        and not any(group.get("differentiable") for group in optimizer.param_groups)
        and all(map(_is_plain, [*operands.parameters, *operands.slots, *gradients]))
    )


# Equals `torch.compiler.assume_constant_result`, whose call would import Dynamo.
can_be_taken._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def _is_plain(tensor: Tensor) -> bool:
    """Return True for a dense CPU tensor of class `Tensor` or `Parameter`."""
    # Dynamo does not look at `grad` of a subclass.
    is_dense = tensor.device.type == "cpu" and tensor.layout == torch.strided
    return is_dense and type(tensor) in (Tensor, Parameter)


def put_in_graph(operands: Operands) -> bool:
    """Add the step operation to the graph that Dynamo traces; return True if it was added.

    Return False, and add nothing, if `can_be_taken` returns False. Also return False if a step has
    replaced a parameter or slot, so that `operands` lists old tensors.
    """
    if not can_be_taken(operands.handle) or operands.is_stale:
        return False
    params = operands.parameters
    # No `torch.no_grad()` here: a graph that raises would not leave it.
    _step(
        operands.handle,
        [param.detach() for param in params if param.grad is not None],
        operands.slots,
        [None if param.grad is None else param.grad.detach() for param in params],
    )
    return True


def forget_gradients(operands: Operands) -> None:
    """Set the gradients of the operands' parameters to None; Dynamo traces this for `zero_grad`.

    Do nothing if a step has replaced a parameter or slot.
    """
    can_be_taken(operands.handle)
    if not operands.is_stale:
        for param in operands.parameters:
            param.grad = None


@torch.library.custom_op("thalweg::step", mutates_args=("parameters", "slots"), schema=_SCHEMA)
def _step(
    optimizer: str,
    parameters: Sequence[Tensor],
    slots: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
) -> None:
    """Take a step of an optimizer on tensors of the graph, in place.

    Args:
        optimizer: The handle of the optimizer.
        parameters: The graph's tensors for parameters with a gradient.
        slots: The graph's tensors for the slots.
        gradients: A gradient for each parameter of the optimizer, or None to skip the parameter.
    """
    taker = _optimizers[optimizer]
    operands = taker.step_cache.operands
    params = operands.parameters
    updated_params = [p for p, grad in zip(params, gradients, strict=True) if grad is not None]
    pairs = zip([*updated_params, *operands.slots], [*parameters, *slots], strict=True)
    with (
        _share_versions(),
        no_grad(),
        _copy_operands(list(pairs)),
        _set_gradients(params, gradients),
    ):
        taker._step()
        operands.check(taker)


@_step.register_fake  # pyright: ignore[reportUnknownMemberType]
def _(*args: object) -> None:
    return None


@contextlib.contextmanager
def _share_versions() -> Generator[None]:
    """Return a context manager in which views share version counters, which graphs may disable."""
    excluded = _dispatch._dispatch_tls_local_exclude_set().remove(DispatchKey.ADInplaceOrView)
    included = _dispatch._dispatch_tls_local_include_set()
    with _dispatch._ForceDispatchKeyGuard(included, excluded):
        yield


def _copy_operands(pairs: Sequence[tuple[Tensor, Tensor]]) -> ContextSetting:
    """Return a context manager in which an optimizer steps on values of a graph's tensors.

    On entry, copy the graph's tensors to the optimizer's. On exit, copy the results to the graph's
    tensors, and restore the optimizer's former values.

    Args:
        pairs: (tensor of the optimizer, tensor of the graph). Pairs that share memory are skipped.
    """
    copies = [(var.detach(), copy) for var, copy in pairs if var.data_ptr() != copy.data_ptr()]
    backups = [target.clone() for target, _ in copies]
    restore_calls = [
        call
        for (target, copy), backup in zip(copies, backups, strict=True)
        for call in (partial(copy.copy_, target), partial(target.copy_, backup))
    ]
    enter_calls = [partial(target.copy_, copy) for target, copy in copies]
    return ContextSetting(lambda: ([unwatched(enter_calls)], [unwatched(restore_calls)]))


def _set_gradients(params: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> ContextSetting:
    """Return a context manager that sets `param.grad` of all `params` to `gradients`.

    On exit, restore the gradients that the parameters have at the call of this function.
    """
    former_grads = [param.grad for param in params]
    if all(map(is_, former_grads, gradients)):
        return ContextSetting(lambda: ([], []))
    enter_calls, restore_calls = (
        [partial(setattr, param, "grad", grad) for param, grad in zip(params, grads, strict=True)]
        for grads in (gradients, former_grads)
    )
    return ContextSetting(lambda: ([unwatched(enter_calls)], [unwatched(restore_calls)]))
