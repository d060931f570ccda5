"""Implementation of the functions of `training_ops` by update rules.

A kernel updates one variable and its slots. Scalar arguments are converted once to
the variable's dtype. Slots are tensors of the variable's shape.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import Parameter, Signature
from typing import Any

from torch import Tensor

from thalweg import _graph
from thalweg._base.execution_context import is_deferred
from thalweg._base.locks import Lock
from thalweg._base.showing import show_value
from thalweg._base.tracing import untraced
from thalweg._core.commit import raise_first
from thalweg._core.grads_and_vars import as_gradient
from thalweg._core.plan_cache import PlanCache
from thalweg._core.single_rule_step import OneRule
from thalweg._core.step import run_step
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.formula import Rule
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import dtype_name, name_of

Arguments = dict[str, Any]

DENSE = ("apply", "resource_apply")
# Held by kernels called with use_locking=True.
_LOCK = Lock()
# Names of scalars in rules, by TensorFlow's names.
_SCALARS = {"lr": "learning_rate", "lr_power": "learning_rate_power", "global_step": "t"}


@dataclass(frozen=True)
class Kernel:
    """Signature and rule of one of TensorFlow's kernels, for dense and sparse gradients.

    Attributes:
        inputs: The names of the arguments in TensorFlow's order, separated by spaces: the variable
            first, then slots, scalars and the gradient.
        slots: The names of the slots, in the order of the rule.
        rule: The rule, or a function: `rule(arguments)` returns the rule.
        options: {further argument: default}.
        constants: {scalar of the rule: value} for scalars that are not arguments.
        rule_names: {argument: scalar of the rule} if the names differ for this kernel only.
        check: `check(arguments, is_sparse)` raises for invalid scalars.
        prefixes: The prefixes of the functions that TensorFlow has, up to four.
    """

    inputs: str
    slots: str
    rule: Rule | Callable[[Arguments], Rule]
    options: Arguments = field(default_factory=dict)
    constants: dict[str, float] = field(default_factory=dict)
    rule_names: dict[str, str] = field(default_factory=dict)
    check: Callable[[Arguments, bool], None] = lambda arguments, sparse: None
    prefixes: tuple[str, ...] = (*DENSE, "sparse_apply", "resource_sparse_apply")

    def choose(self, arguments: Arguments) -> Rule:
        """Return the rule for the arguments of a call."""
        return self.rule if isinstance(self.rule, Rule) else self.rule(arguments)

    def function(self, name: str) -> Callable[..., Any]:
        """Return a new public function with TensorFlow's signature, which updates a variable.

        Args:
            name: The function's name: a prefix of `prefixes`, "_" and the kernel's name, such as
                "resource_sparse_apply_momentum". The prefix selects dense or sparse gradients.
        """
        required_names = self.names(_is_sparse(name))
        optional = {"use_locking": False, **self.options, "name": None}
        kind = Parameter.POSITIONAL_OR_KEYWORD
        signature = Signature(
            [Parameter(argument, kind) for argument in required_names]
            + [Parameter(argument, kind, default=default) for argument, default in optional.items()]
        )

        def function(*args: object, **kwargs: object) -> Any:
            # `bind` does not name the function in its errors.
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{name}(): {error}") from None
            bound.apply_defaults()
            arguments = dict(bound.arguments)
            if is_deferred(*arguments.values()):
                return _add_operation(self, name, arguments)
            arguments = {key: _graph.resolve(operand) for key, operand in arguments.items()}
            _apply_kernel(self, name, arguments)
            if _is_resource(name):
                return None
            updated = arguments["var"].detach()
            # TensorFlow's optimizers return this attribute as the update, which is done.
            updated.op = None
            return updated

        function.__name__ = function.__qualname__ = name
        function.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
        function.__doc__ = _describe_kernel(self, name)
        return untraced(function)

    def names(self, sparse: bool) -> list[str]:
        """Return the arguments that have no default."""
        names = self.inputs.split()
        if not sparse:
            return names
        names = ["grad" if name == "delta" else name for name in names]
        # TensorFlow's sparse kernels take the indices directly after the gradient.
        index = names.index("grad") + 1
        return [*names[:index], "indices", *names[index:]]


def _is_sparse(name: str) -> bool:
    return "sparse" in name


def _is_resource(name: str) -> bool:
    return name.startswith("resource_")


def _describe_kernel(kernel: Kernel, name: str) -> str:
    """Return the docstring of the public function `name`."""
    resource = _is_resource(name)
    arguments = {"use_locking": False, **kernel.options}
    rule = kernel.choose({**dict.fromkeys(kernel.inputs.split()), **arguments})
    rows = "the rows `indices` of `var`, one after the other," if _is_sparse(name) else "`var`"
    slots = kernel.slots.replace(" ", ", ")
    updates = f" and {slots}" if slots else ""
    output = "None" if resource else "`var` as a tensor"
    return (
        f"Update {rows} by the rule {rule.name}, in place.\n\n"
        f"`var`{updates} are written. Scalars are numbers or 0-d tensors. With symbolic arguments\n"
        "this makes an operation of the graph.\n\n"
        f"Returns:\n    {output}; in a graph the {'operation' if resource else 'symbolic tensor'}."
        f"\n\nReference: {rule.source}"
    )


def _add_operation(kernel: Kernel, name: str, arguments: Arguments) -> object:
    """Add a graph operation that runs the kernel; return its output."""
    updated_names = ["var", *kernel.slots.split()]
    variables = {key: _graph.graph_variable_of(arguments[key]) for key in updated_names}
    for key, variable in variables.items():
        if not isinstance(variable, _graph.GraphVariable):
            raise InvalidTypeError(
                f"{name}(): {key} must be a variable of the graph, not {show_value(variable)}."
            )
    inputs = {**arguments, **{key: _graph.by_reference(var) for key, var in variables.items()}}

    def run_kernel(values: Arguments) -> object:
        _apply_kernel(kernel, name, values)
        return None if _is_resource(name) else values["var"].detach()

    var = variables["var"]
    outputs = None if _is_resource(name) else _graph.Output(var.dtype, var.shape)
    op_name = arguments["name"] or "".join(part.capitalize() for part in name.split("_"))
    return _graph.operation(run_kernel, [inputs], op_name, kind="update", outputs=outputs)


def _apply_kernel(kernel: Kernel, name: str, arguments: Arguments) -> None:
    """Update `arguments["var"]` and its slots in place, in one commit.

    Raises:
        InvalidTypeError: A variable or slot is not a tensor or has another dtype, or the gradient
            is `IndexedSlices`.
        InvalidArgumentError: A scalar is invalid.
    """
    sparse = _is_sparse(name)
    var, slots = arguments["var"], [arguments[slot_name] for slot_name in kernel.slots.split()]
    _check_tensors(name, var, slots)
    var_name = name_of(var)
    grad_argument = arguments["delta" if "delta" in arguments else "grad"]
    grad = as_gradient(grad_argument, var, var_name)
    if isinstance(grad, IndexedSlices):
        raise InvalidTypeError(
            f"{name}() takes the values of a sparse gradient, not {show_value(grad_argument)}."
        )
    if sparse:
        grad = IndexedSlices(grad, arguments["indices"])
    with _LOCK if arguments["use_locking"] else contextlib.nullcontext():
        scalars = _scalars_of(kernel, name, arguments)
        kernel.check(arguments, sparse)
        rule = kernel.choose(arguments)
        if sparse:
            rule = _as_sparse_rule(rule)
        outcome = run_step(OneRule(rule, scalars, slots), PlanCache(), [(grad, var)])
    raise_first(outcome.errors)


def _check_tensors(name: str, var: Tensor, slots: Sequence[object]) -> None:
    """Raise InvalidTypeError unless `var` and `slots` are tensors of one dtype."""
    for tensor in (var, *slots):
        if not isinstance(tensor, Tensor):
            raise InvalidTypeError(f"{name}() updates tensors in place, not {show_value(tensor)}.")
        if tensor.dtype != var.dtype:
            raise InvalidTypeError(
                f"{name}(): '{name_of(var)}' is {dtype_name(var.dtype)}, its slot"
                f" {dtype_name(tensor.dtype)}."
            )


def _scalars_of(kernel: Kernel, name: str, arguments: Arguments) -> Arguments:
    """Return {name in the rule: value} of the scalars in `arguments`, {argument: value}.

    Include the kernel's `constants`; leave out tensors and options. Raise InvalidArgumentError if a
    scalar has dimensions.
    """
    tensors = {"var", "grad", "delta", "indices", "use_locking", "name", *kernel.slots.split()}
    names = {**_SCALARS, **kernel.rule_names}
    scalars: Arguments = dict(kernel.constants)
    for key, scalar in arguments.items():
        if key in tensors or key in kernel.options:
            continue
        if tuple(getattr(scalar, "shape", ())) != ():
            shape = tuple(scalar.shape)
            raise InvalidArgumentError(f"{name}(): {key} is not a scalar: it has shape {shape}.")
        scalars[names.get(key, key)] = scalar
    return scalars


# Compiled kernels are cached by the rule object, so there must be one for each rule.
@cache
def _as_sparse_rule(rule: Rule) -> Rule:
    """Return a rule that applies repeated rows one by one; other rows are unchanged."""
    return replace(rule, duplicates="successive", update_untouched=None)
