"""`Table`: what is known of each parameter in one step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from thalweg._base.showing import show_value
from thalweg._engines.diagnostics import MEASURED
from thalweg.errors import InvalidArgumentError, InvalidTypeError, NotFoundError, did_you_mean

_SHARES = ("agreement", "unchanged", "zero", "denormal")
# What a column is made of, where that has another name.
_MADE_OF = {
    "gradient_norm": "gradient",
    "update_norm": "update",
    "weight_norm": "weight",
    "ratio": "update",
    "cosine": "product",
    "clip": "gradient",
}

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class Parameters(NamedTuple):
    """Parameters of tables.

    Attributes:
        every: The number of steps from one table to the next.
        names: The names of the parameters.
        sizes: The number of elements of each.
        groups: The index of the group of each.
    """

    every: int
    names: list[str]
    sizes: list[int]
    groups: list[int]


class ParameterRow(NamedTuple):
    """Measurements of one parameter; the columns are those of `COLUMNS`."""

    name: str
    group: int
    step: int
    gradient_norm: float
    gradient_max: float
    update_norm: float
    update_max: float
    weight_norm: float
    weight_max: float
    ratio: float
    cosine: float
    agreement: float
    unchanged: float
    zero: float
    denormal: float
    nonfinite: float
    clip: float


COLUMNS = ParameterRow._fields[3:]


class Table(Mapping[str, ParameterRow]):
    """Mapping from the name of each parameter to its row; columns are attributes, such as
    `table.ratio`.

    A number that was not measured is NaN. `records` is all of it as a NumPy record array, with
    `name`, `group` and `step` before the columns.

    Args:
        parameters: The parameters.
        step: The number of the step.
        columns: An array over the parameters for each of `COLUMNS`.
        measured: For each column, flags of the parameters for which it was measured.
    """

    def __init__(
        self,
        parameters: Parameters,
        step: int,
        columns: Mapping[str, Array],
        measured: Mapping[str, Flags],
    ) -> None:
        kinds = [("name", object), ("group", np.int64), ("step", np.int64)]
        kinds += [(name, np.float64) for name in COLUMNS]
        made = np.recarray((len(parameters.names),), kinds)
        made["name"], made["group"], made["step"] = parameters.names, parameters.groups, step
        for name in COLUMNS:
            made[name] = np.where(measured[name], columns[name], np.nan)
        made.flags.writeable = False
        self.records, self.step = made, step
        self.parameters, self.measured = parameters, measured
        self._rows = {name: row for row, name in enumerate(parameters.names)}

    def __getitem__(self, name: str) -> ParameterRow:
        """The row of a parameter."""
        if name not in self._rows:
            near = did_you_mean(str(name), self._rows) or f"It has {', '.join([*self._rows][:5])}."
            raise NotFoundError(f"No parameter of the optimizer is named {name!r}. {near}".rstrip())
        return ParameterRow(*self.records[self._rows[name]].item())

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getattr__(self, name: str) -> Array:
        if name in COLUMNS or name == "group":
            return np.asarray(self.records[name])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<Table of step {self.step}: {len(self)} parameters>"

    def scalars(self, columns: Iterable[str] = COLUMNS) -> dict[str, float]:
        """Return the measured numbers, named `column/parameter`."""
        found: dict[str, float] = {}
        for column in columns:
            rows = zip(self, self.records[column].tolist(), self.measured[column], strict=True)
            found |= {f"{column}/{name}": value for name, value, is_known in rows if is_known}
        return found

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with the names as its index.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        pandas: Any = import_module("pandas")  # which has no types
        return pandas.DataFrame.from_records(self.records, index="name")


def check_columns(columns: Iterable[str]) -> tuple[str, ...]:
    """Columns, if there are such.

    Raises:
        InvalidTypeError: They are no list of names.
        InvalidArgumentError: Names the first that is none.
    """
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise InvalidTypeError(f"columns must be a list of names, not {show_value(columns)}.")
    given = tuple(columns)
    for name in given:
        if name not in COLUMNS:
            expected = ", ".join(COLUMNS)
            raise InvalidArgumentError(f"columns has {name!r}; expected: {expected}.")
    return given


class NewTables:
    """Finds tables that are new since the last look, for callbacks of trainers.

    Args:
        columns: Those that are logged.
    """

    def __init__(self, columns: Iterable[str] = COLUMNS) -> None:
        self._columns = check_columns(columns)
        self._seen: dict[str, Table] = {}

    def numbers_of(self, optimizer: object, prefix: str = "") -> dict[str, float]:
        """Return the scalars of an optimizer's table, named with a prefix, if that is a new one."""
        table = getattr(optimizer, "diagnostics", None)
        if not isinstance(table, Table) or self._seen.get(prefix) is table:
            return {}
        self._seen[prefix] = table
        return {prefix + name: value for name, value in table.scalars(self._columns).items()}


def columns_of(measured: Array, sizes: Array, clip: Array) -> dict[str, Array]:
    """Return the columns of a table.

    Args:
        measured: (parameters, measured), as `thalweg._engines.diagnostics` has them.
        sizes: Elements of each parameter.
        clip: What clipping multiplied gradients by.
    """
    own = dict(zip(MEASURED, measured.T, strict=True))
    with np.errstate(all="ignore"):
        norms = {n: np.sqrt(own[n]) for n in ("gradient", "update", "weight", "momentum")}
        found = {f"{name}_norm": norms[name] for name in ("gradient", "update", "weight")}
        found |= {name: own[name] for name in ("gradient_max", "update_max", "weight_max")}
        found["ratio"] = norms["update"] / norms["weight"]
        # By one norm after the other: the product of squares may leave float64.
        found["cosine"] = own["product"] / norms["gradient"] / norms["momentum"]
        found |= {name: own[name] / sizes for name in _SHARES}
    return {**found, "nonfinite": own["nonfinite"], "clip": clip}


def flags_of(measured: Flags) -> dict[str, Flags]:
    """Return, for each column, flags of the parameters for which it was measured, from those of its
    inputs.
    """
    own: dict[str, Flags] = dict(zip(MEASURED, measured.T, strict=True))
    return {name: own[_MADE_OF.get(name, name)] for name in COLUMNS}
