"""`Variable`, and functions that treat torch's leaf tensors as variables."""

from __future__ import annotations

import copy
import enum
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from thalweg._base.added_dtypes import added_type, bits_of
from thalweg._base.context_managers import no_grad
from thalweg._base.showing import holds_elements, show_value
from thalweg._base.static_shape import Shape, UnknownShape
from thalweg.errors import InvalidArgumentError, InvalidTypeError, LayoutError

Constraint = Callable[[torch.Tensor], torch.Tensor]

# Dtypes that are computed in float32.
REDUCED = (torch.float16, torch.bfloat16)
# Dtypes of variables that rules update.
TRAINED = (torch.float32, torch.float64, *REDUCED)

_UNTYPED = (int, float, list, tuple, range)


class VariableSynchronization(enum.Enum):
    """Time of synchronization of a variable's copies on several replicas."""

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class VariableAggregation(enum.Enum):
    """Reduction of a variable's copies on several replicas to one value."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3


def is_trained(trainable: bool | None, synchronization: object = None) -> bool:
    """Return `trainable`; its default is False for ON_READ, where replicas' values differ."""
    if trainable is None:
        return synchronization is not VariableSynchronization.ON_READ
    return trainable is not False


def check_constraint(constraint: object) -> None:
    """Raise `InvalidArgumentError` unless a constraint is a function or None."""
    if constraint is not None and not callable(constraint):
        raise InvalidArgumentError(
            f"constraint must be None or a function, not {show_value(constraint)}."
        )


def as_dtype(dtype: object) -> torch.dtype:
    """Return the dtype of a torch or NumPy dtype, or of a name; raise InvalidTypeError if none."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", "")
    if not name and not isinstance(dtype, torch.Tensor | list | tuple | dict):  # may be cut
        name = str(dtype)
    torch_dtype = dtype if isinstance(dtype, torch.dtype) else getattr(torch, name, None)
    if not isinstance(torch_dtype, torch.dtype):
        raise InvalidTypeError(
            f"{show_value(dtype)} is not a dtype; expected one like torch.float32."
        )
    return torch_dtype


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name without its module, as TensorFlow and NumPy print it: "float32"."""
    return str(dtype).removeprefix("torch.")


def to_tensor(value: object, dtype: object = None) -> torch.Tensor:
    """Convert a value to a tensor with TensorFlow's dtypes.

    A tensor is returned itself unless `dtype` differs; everything else is copied.

    Args:
        value: A tensor, a NumPy array, a number, or nested sequences of numbers. Python floats
            become float32 and Python ints int32. Arrays keep their dtype, including bfloat16 of
            ml_dtypes.
        dtype: Optional dtype of the result. Python numbers are rounded once, directly to it.

    Raises:
        InvalidTypeError: `value` is not numeric or is ragged, or torch cannot cast it to `dtype`:
            floats to integers, or complex to real numbers.
        InvalidArgumentError: A Python int is out of the range of `dtype`.
        LayoutError: `value` is a tensor with a truncated storage and must be converted.
    """
    target_dtype = None if dtype is None else as_dtype(dtype)
    tensor = value if isinstance(value, torch.Tensor) else _from_numbers(value)
    # np.float64 is a subclass of float, but it is as typed as an array.
    untyped = isinstance(value, _UNTYPED) and not isinstance(value, np.generic)
    if untyped and target_dtype is None:
        target_dtype = {torch.float64: torch.float32, torch.int64: torch.int32}.get(tensor.dtype)
    if target_dtype is None or target_dtype == tensor.dtype:
        return tensor
    if not torch.can_cast(tensor.dtype, target_dtype):
        kinds = f"{dtype_name(tensor.dtype)} values to {dtype_name(target_dtype)}"
        raise InvalidTypeError(f"Cannot convert {kinds}.")
    if tensor is value:
        check_held(tensor)
    result = tensor.to(target_dtype)
    is_integral = not (target_dtype.is_floating_point or target_dtype.is_complex)
    if untyped and is_integral and not torch.equal(result.to(tensor.dtype), tensor):
        raise InvalidArgumentError(f"{show_value(value)} does not fit {dtype_name(target_dtype)}.")
    return result


def as_asked(value: object, dtype: object) -> torch.Tensor:
    """Convert like `to_tensor`, but also accept arrays of floats for integer and bool dtypes.

    An array's fractions are truncated, as in TensorFlow. Python floats still raise an error.

    Raises:
        InvalidTypeError: See `to_tensor`.
        InvalidArgumentError: See `to_tensor`; or an array's element is out of the dtype's range.
    """
    target_dtype = None if dtype is None else as_dtype(dtype)
    is_array = isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f"
    if (
        not is_array
        or target_dtype is None
        or target_dtype.is_floating_point
        or target_dtype.is_complex
    ):
        return to_tensor(value, dtype)
    if target_dtype == torch.bool:
        return to_tensor(value != 0)
    limits, truncated = torch.iinfo(target_dtype), np.trunc(np.asarray(value, np.float64))
    if not np.all((truncated >= limits.min) & (truncated < limits.max + 1)):  # nor is NaN
        raise InvalidArgumentError(f"{show_value(value)} does not fit {dtype_name(target_dtype)}.")
    return to_tensor(truncated).to(target_dtype)


def as_operand(value: object, dtype: object) -> torch.Tensor:
    """Convert an operand of an operator to `dtype`, the dtype of the second operand.

    As in TensorFlow, an array of floats is truncated for an integer dtype.

    Raises:
        InvalidTypeError, InvalidArgumentError: See `as_asked`.
    """
    if isinstance(value, np.ndarray | np.generic) and dtype == torch.bool:
        value = np.asarray(value, bool)
    return as_asked(value, dtype)


def operand_like(value: object, tensor: torch.Tensor) -> torch.Tensor:
    """Return `as_operand` of an array or a list, in the dtype and on the device of `tensor`."""
    return as_operand(value, tensor.dtype).to(tensor.device)


def _from_numbers(value: object) -> torch.Tensor:
    try:
        array = np.array(value, order="C")
        torch_dtype = getattr(torch, array.dtype.name, None)
        is_extension = array.dtype.isbuiltin == 2  # to NumPy, as by ml_dtypes
        if is_extension and isinstance(torch_dtype, torch.dtype) and torch_dtype.is_floating_point:
            return torch.from_numpy(array.view(f"i{torch_dtype.itemsize}")).view(torch_dtype)
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    except (TypeError, ValueError, RuntimeError) as error:
        text = show_value(value)
        raise InvalidTypeError(f"Cannot convert {text} to a tensor: {error}") from error


def _full_name(name: str) -> str:
    return name if ":" in name else f"{name}:0"


def check_held(tensor: torch.Tensor, subject: str = "") -> None:
    """Raise LayoutError if a tensor's storage is smaller than its elements need.

    Reading a tensor with a truncated storage would crash the process.

    Args:
        tensor: Any tensor. Sparse and meta tensors are accepted without a check.
        subject: Subject of the message. "" stands for the variable's name or the tensor's shape.
    """
    if torch.compiler.is_dynamo_compiling() or tensor.is_meta or tensor.layout != torch.strided:
        return
    try:
        has_memory = holds_elements(tensor)
    except (RuntimeError, NotImplementedError):  # one of functorch's
        return
    if not has_memory and type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__:  # pyright: ignore
        raise LayoutError(
            f"{subject or _named(tensor)} has no memory that holds its {tensor.numel()} elements:"
            " its storage was cut."
        )


def _named(tensor: torch.Tensor) -> str:
    name = name_of(tensor, "")
    return f"A tensor of shape {tuple(tensor.shape)}" if name == ":0" else repr(name)


def check_number(tensor: torch.Tensor, subject: str = "") -> None:
    """Check a tensor of shape () like `check_held`, but fast enough for every step."""
    try:
        size = tensor.untyped_storage().nbytes()
        required_size = (tensor.storage_offset() + 1) * tensor.itemsize
    except (RuntimeError, NotImplementedError):  # one of functorch's, or no strided one
        return
    if size < required_size:
        check_held(tensor, subject)


class Value(torch.Tensor):
    """Snapshot of a variable that NumPy can copy although autograd tracks it.

    Results of operations are plain tensors.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    def numpy(self, *, force: bool = False) -> Any:
        """Return a copy as a NumPy array, or as a NumPy scalar where the shape is ()."""
        return numpy_array(self)[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(numpy_array(self), dtype=dtype)


def numpy_copy(tensor: torch.Tensor) -> np.ndarray:
    """Return a copy of a tensor of any device as a NumPy array.

    NumPy shares only the memory of the copy, because torch marks shared memory permanently.

    Raises:
        TypeError: NumPy lacks the dtype.
        LayoutError: The tensor's storage was truncated.
    """
    check_held(tensor)
    return tensor.detach().to("cpu", copy=True).resolve_conj().resolve_neg().numpy()


def numpy_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a NumPy copy of a tensor, with a dtype of ml_dtypes if NumPy lacks the dtype.

    Raises:
        TypeError: NumPy lacks the dtype, and ml_dtypes lacks it or is not installed.
        LayoutError: The tensor's storage was truncated.
    """
    try:
        return numpy_copy(tensor)
    except TypeError:
        extension_dtype = added_type(tensor.dtype)
        if extension_dtype is None:
            raise
    return numpy_copy(bits_of(tensor.detach())).view(extension_dtype)


def numpy_value(tensor: torch.Tensor) -> Any:
    """Return a NumPy copy of a tensor, or a NumPy scalar of shape (); bfloat16 as float32."""
    detached = tensor.detach()
    return numpy_copy(detached.float() if detached.dtype == torch.bfloat16 else detached)[()]


class Variable(torch.nn.Parameter):
    """Tensor that training updates in place.

    A variable is a leaf of torch's autograd and a parameter for `torch.nn.Module`. Results of
    operations are plain tensors (`torch.Tensor`). Names are not made unique, as in TensorFlow's
    eager mode.

    Args:
        initial_value: A number, nested list, NumPy array, tensor, variable, or a callable without
            arguments that returns such a value. Always copied. Python floats become float32, Python
            ints int32; arrays and tensors keep their dtype.
        name: Optional. "w" makes the name "w:0"; the default is "Variable:0".
        trainable: True if `minimize` without a list of variables includes the variable. It also
            sets `requires_grad`, except for integer and bool variables. If False, `minimize` still
            trains the variable if listed, as in TensorFlow; `requires_grad_(False)` freezes it.
        constraint: Optional. A function that an optimizer applies to the variable after each
            update; it returns a tensor of equal shape and dtype.
        dtype: Optional. Converts the initial value, see `as_asked`.

    Raises:
        InvalidTypeError: The initial value is sparse or not numeric, or the name is not a string.
        LayoutError: The initial value is a tensor whose storage was truncated.
        InvalidArgumentError: A Python int is out of the dtype's range, or the constraint is not
            callable.

    Example:
        >>> w = Variable([1.0, 2.0], name="w")
        >>> w.assign_sub([0.5, 0.5])
        <tf.Variable 'w:0' shape=(2,) dtype=float32, numpy=array([0.5, 1.5], dtype=float32)>

    Differs from:
        torch.nn.Parameter: `numpy()`, `value()` and `read_value()` return snapshots, which later
        updates do not change. Operators accept arrays and lists on either side, as in TensorFlow.
        Operators of tensors computed from a variable do so, too, after an import of `thalweg.tf`.
    """

    if TYPE_CHECKING:  # given by `tensorflow_names`, which needs variables
        handle: Any
        op: Any
        ref: Callable[[], Any]
        scatter_sub: Callable[..., Any]
        scatter_update: Callable[..., Any]

    __init__: Callable[..., None]  # hides that of Parameter from type checkers; see __new__
    trainable: bool
    synchronization = VariableSynchronization.AUTO  # what `tf.Variable` was given
    aggregation = VariableAggregation.NONE
    _constraint: Constraint | None
    _takes: Shape | UnknownShape | None = None  # what `assign` may give it, if not its shape alone
    _name: str
    _uid: int  # position in the order of creation, by which TensorFlow sorts what a tape saw

    _created = itertools.count()

    def __new__(
        cls,
        initial_value: object,
        name: str | None = None,
        trainable: bool = True,
        constraint: Constraint | None = None,
        dtype: object = None,
    ) -> Variable:
        if name is not None and not isinstance(name, str):
            raise InvalidTypeError(f"name must be a string, not {show_value(name)}.")
        check_constraint(constraint)
        value = initial_value() if callable(initial_value) else initial_value
        if isinstance(value, torch.Tensor):
            check_held(value, f"The initial value of '{_full_name(name or 'Variable')}'")
        data = as_asked(value, dtype).detach()
        if data.layout != torch.strided:
            raise InvalidTypeError(f"A variable cannot hold a {data.layout} tensor.")
        if isinstance(value, torch.Tensor):
            data = data.clone(memory_format=torch.contiguous_format)
        is_differentiable = data.is_floating_point() or data.is_complex()
        name = _full_name(name or "Variable")
        state = {"_name": name, "trainable": bool(trainable), "_constraint": constraint}
        return _build(cls, data, bool(trainable) and is_differentiable, state)

    @property
    def name(self) -> str:
        """Return the name in TensorFlow's form: "w:0"."""
        return self._name

    @property
    def constraint(self) -> Constraint | None:
        """Return the function that an optimizer applies after each update, or None."""
        return self._constraint

    @constraint.setter
    def constraint(self, function: Constraint | None) -> None:
        self._constraint = function

    def assign(
        self,
        value: object,
        use_locking: object = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Variable:
        """Replace the variable's elements in place, without autograd, and return the variable.

        If the new shape differs, `data` becomes a copy of the value and `grad` becomes None.

        Args:
            value: A number, list, array or tensor. A tensor must have the variable's dtype; other
                values are converted by `to_tensor`. The shape must be the variable's, or match the
                partial `shape` passed to `tf.Variable`.
            use_locking, name, read_value: Ignored; accepted for compatibility.

        Raises:
            InvalidArgumentError: The shapes differ.
            InvalidTypeError: The dtypes differ, or the value is not numeric.
            LayoutError: The storage of the variable or of the value was truncated.
        """
        tensor = self._operand(value, getattr(self, "_takes", None))
        with no_grad():
            if tensor.shape == self.shape:
                self.copy_(tensor)
            else:
                self.data, self.grad = tensor.detach().clone(), None
        return self

    def assign_add(
        self,
        delta: object,
        use_locking: object = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Variable:
        """Add `delta` to all elements in place and return the variable; see `assign`."""
        with no_grad():
            self.add_(self._operand(delta))
        return self

    def assign_sub(
        self,
        delta: object,
        use_locking: object = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Variable:
        """Subtract `delta` from the elements in place and return the variable; see `assign`."""
        with no_grad():
            self.sub_(self._operand(delta))
        return self

    def _operand(
        self, value: object, assignable_shape: Shape | UnknownShape | None = None
    ) -> torch.Tensor:
        if isinstance(value, torch.Tensor) and value.dtype != self.dtype:
            kinds = f"it is {dtype_name(self.dtype)} but the value is {dtype_name(value.dtype)}"
            raise InvalidTypeError(f"Cannot assign to '{self.name}': {kinds}. Cast the value.")
        tensor = to_tensor(value, self.dtype)
        is_assignable = assignable_shape is not None and assignable_shape.accepts(tensor.shape)
        if tensor.shape != self.shape and not is_assignable:
            shapes = f"it has shape {tuple(self.shape)} but the value has {tuple(tensor.shape)}"
            raise InvalidArgumentError(f"Cannot assign to '{self.name}': {shapes}.")
        check_held(self)
        check_held(tensor, f"What is assigned to '{self.name}'")
        return tensor.to(self.device)

    def read_value(self) -> torch.Tensor:
        """Return a copy of the present value, tracked by autograd, that later updates leave alone.

        NumPy takes it as it is, as it takes the variable.
        """
        check_held(self)
        return self.clone().as_subclass(Value)

    value = read_value

    def numpy(self, *, force: bool = False) -> Any:
        """Return a copy as a NumPy array, or as a NumPy scalar if the shape is ().

        `force` has no effect: variables on a device or with a gradient are always copied.

        Raises:
            InvalidTypeError: NumPy lacks the dtype (bfloat16, float8), and ml_dtypes is not
                installed.
        """
        return self.__array__()[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        try:
            array = numpy_array(self)
        except TypeError as error:
            problem = f"NumPy has no {dtype_name(self.dtype)}, the dtype of '{self.name}'"
            raise InvalidTypeError(
                f"{problem}. Call .float() on the variable first, or install ml_dtypes."
            ) from error
        return np.asarray(array, dtype=dtype)

    def __float__(self) -> float:
        check_held(self)
        return float(self.item())  # torch's own warns where the variable requires a gradient

    def __int__(self) -> int:
        check_held(self)
        return int(self.item())

    def __repr__(self, *, tensor_contents: object = None) -> str:
        description = f"'{self.name}' shape={tuple(self.shape)} dtype={dtype_name(self.dtype)}"
        return f"<tf.Variable {description}, numpy={tensor_contents or self._numpy_text()}>"

    def _numpy_text(self) -> str:
        try:
            check_held(self)
        except LayoutError:
            return "<its storage was cut>"
        if self.is_meta:
            return "<unavailable>"
        if self.dim() == 0:
            return repr(self.item())
        try:
            text = repr(numpy_copy(self))
        except TypeError:  # NumPy lacks the dtype, but TensorFlow prints it all the same
            text = repr(numpy_copy(self.float())).replace("float32", dtype_name(self.dtype))
        return "\n" + text if "\n" in text else text

    def __deepcopy__(self, memo: dict[int, Any]) -> Variable:
        if id(self) not in memo:
            check_held(self)
            data = self.detach().clone(memory_format=torch.preserve_format)
            state = copy.deepcopy(self._state(), memo)
            memo[id(self)] = _build(type(self), data, self.requires_grad, state)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        # The data goes as a plain tensor, so that torch.save keeps sharing of storage.
        return _build, (type(self), self.detach(), self.requires_grad, self._state())

    def _state(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "_uid"}


# The dtypes in which TensorFlow divides integers.
_QUOTIENTS = {
    torch.int8: torch.float32,
    torch.uint8: torch.float32,
    torch.int16: torch.float32,
    torch.uint16: torch.float32,
    torch.int32: torch.float64,
    torch.int64: torch.float64,
}


def divide_tensors(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return `x / y`, for integers in the dtype in which TensorFlow divides them."""
    kind = _QUOTIENTS.get(torch.promote_types(x.dtype, y.dtype))
    return x / y if kind is None else x.to(kind) / y.to(kind)


_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
_COMPARISONS = ("lt", "le", "gt", "ge")


def _taking_arrays(name: str, reflects: bool = False) -> Callable[[Variable, Any], Any]:
    """Return an operator method that also accepts arrays and lists as the right operand.

    Arrays and lists are converted to the variable's dtype. `name` is "add" for `__add__`; with
    `reflects` the method is `__radd__`.
    """
    torch_operator = getattr(torch.Tensor, f"__r{name}__" if reflects else f"__{name}__")
    forward = getattr(torch.Tensor, f"__{name}__")

    @functools.wraps(torch_operator)
    def apply(self: Variable, right_operand: object) -> Any:
        if reflects:  # torch's own would multiply by the reciprocal
            if isinstance(right_operand, int | float) and self.is_floating_point():
                right_operand = torch.tensor(right_operand, dtype=self.dtype, device=self.device)
            if isinstance(right_operand, torch.Tensor):
                return forward(right_operand, self)
        if not isinstance(right_operand, np.ndarray | np.generic | list):
            return torch_operator(self, right_operand)
        operand = operand_like(right_operand, self)
        function = divide_tensors if name == "truediv" else forward
        return function(operand, self) if reflects else function(self, operand)

    return apply


for _name in (*_OPERATORS, *_COMPARISONS):
    setattr(Variable, f"__{_name}__", _taking_arrays(_name))
for _name in _OPERATORS:
    setattr(Variable, f"__r{_name}__", _taking_arrays(_name, reflects=True))


def _build(
    cls: type[Variable], data: torch.Tensor, requires_grad: bool, state: dict[str, object]
) -> Variable:
    """Return a new variable over `data` itself, without a copy."""
    variable = torch.Tensor._make_subclass(cls, data, requires_grad)
    vars(variable).update(state)
    variable._uid = next(Variable._created)
    return variable


class Moves:
    """Counter of memory changes of variables; a plan that holds addresses compares it.

    Attributes:
        count: The number of assignments to `data` of a variable that shares this counter.
        handed: The `id` of each variable that a caller has received, and whose memory the caller
            may replace uncounted.
    """

    __slots__ = ("count", "handed")

    def __init__(self) -> None:
        self.count = 0
        self.handed: set[int] = set()


class StateVariable(Variable):
    """Variable of an optimizer's state, possibly a view of memory shared with other variables."""

    @property
    def moves(self) -> Moves:
        """Return the counter that this variable shares or, by default, a separate one."""
        return vars(self).setdefault("_moves", Moves())

    @property
    def data(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the values, detached from autograd."""
        return torch.Tensor.data.__get__(self)  # pyright: ignore[reportAttributeAccessIssue]

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        torch.Tensor.data.__set__(self, value)  # pyright: ignore[reportAttributeAccessIssue]
        self.moves.count += 1

    def _state(self) -> dict[str, object]:
        return {key: value for key, value in super()._state().items() if key != "_moves"}

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return _build, (type(self), self.detach().clone(), self.requires_grad, self._state())


def over(data: torch.Tensor, name: str, moves: Moves | None = None) -> Variable:
    """Return a variable that is not trainable over the memory of `data`, with a shared counter."""
    state: dict[str, object] = {"_name": _full_name(name), "trainable": False, "_constraint": None}
    if moves is not None:
        state["_moves"] = moves
    return _build(StateVariable, data.detach(), False, state)


def is_variable(x: object) -> bool:
    """Return True for a `Variable`, a parameter, or a leaf that requires a gradient."""
    is_leaf = isinstance(x, torch.Tensor) and x.is_leaf and x.requires_grad
    return is_leaf or isinstance(x, torch.nn.Parameter)


def is_frozen(x: object) -> bool:
    """Return True if `requires_grad_(False)` excludes a tensor from training even if listed.

    Return False for a `Variable` with `trainable=False`, which TensorFlow trains if listed.
    """
    if not isinstance(x, torch.Tensor) or x.requires_grad:
        return False
    has_gradients = x.is_floating_point() or x.is_complex()
    return has_gradients and getattr(x, "trainable", True)


def frozen_among(variables: Iterable[Any]) -> str:
    """Return a sentence, with a leading space, that names the frozen variables; "" if none."""
    names = [name_of(var) for var in variables if is_frozen(var)]
    return f" Frozen by requires_grad_(False): {names}." if names else ""


def tensor_of(x: object) -> Any:
    """Return the parameter inside a Keras variable, after setting its name and constraint.

    Return any other object unchanged. `x` is a Keras variable if `x.value` is a Parameter.
    """
    if isinstance(x, torch.Tensor):
        return x
    value = getattr(x, "value", None)
    if not isinstance(value, torch.nn.Parameter):
        return x
    if isinstance(path := getattr(x, "path", None), str):
        named_variables([(path, value)])
    constraint = getattr(x, "constraint", None)
    if constraint is not None or variable_constraint(value) is not None:
        value.constraint = constraint  # pyright: ignore[reportAttributeAccessIssue]
    return value


def name_of(tensor: torch.Tensor, default: str = "Variable") -> str:
    """Return the name of a variable or, for a tensor, that of `named_variables`, like "w:0".

    Variables of a graph have separate names.
    """
    if isinstance(tensor, Variable) or not isinstance(tensor, torch.Tensor):
        return tensor.name
    return _full_name(getattr(tensor, "_thalweg_name", default))


UNNAMED = _full_name("Variable")


def titles_of(tensors: Sequence[torch.Tensor]) -> list[str]:
    """Return names for messages, with index and shape if several tensors are unnamed."""
    names = [name_of(tensor) for tensor in tensors]
    if names.count(UNNAMED) < 2:
        return names
    return [
        f"{name} (index {index}, shape {tuple(tensor.shape)})" if name == UNNAMED else name
        for index, (name, tensor) in enumerate(zip(names, tensors, strict=True))
    ]


def variable_constraint(tensor: torch.Tensor) -> Constraint | None:
    """Return the attribute `constraint` of a variable or tensor, or None."""
    return getattr(tensor, "constraint", None)


def named_variables(
    pairs: torch.nn.Module | Iterable[tuple[str, torch.Tensor]],
) -> list[torch.Tensor]:
    """Set the name of each tensor for messages and checkpoints; return the tensors as a list.

    Takes a module, or pairs (name, tensor). A `Variable` keeps its name.

    Example:
        >>> weight, bias = named_variables(torch.nn.Linear(2, 1))
        >>> name_of(bias)
        'bias:0'
    """
    names_and_tensors = list(
        pairs.named_parameters() if isinstance(pairs, torch.nn.Module) else pairs
    )
    for pair in names_and_tensors:
        if isinstance(pair, torch.Tensor) or not (len(pair) == 2 and isinstance(pair[0], str)):
            raise InvalidTypeError(
                "named_variables takes a module, or pairs of a name and a tensor as"
                f" named_parameters() gives them, not {show_value(pair)}."
            )
    tensors = []
    for name, tensor in names_and_tensors:
        if not isinstance(tensor, Variable):
            # An attribute dies with its tensor; a registry could not even key it by equality.
            tensor._thalweg_name = name  # pyright: ignore[reportAttributeAccessIssue]
        tensors.append(tensor)
    return tensors
