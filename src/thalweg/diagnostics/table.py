"""Table of measurements per parameter of one step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from thalweg._base.showing import show_value
from thalweg._engines.diagnostics import MEASURED
from thalweg.errors import InvalidArgumentError, InvalidTypeError, NotFoundError, did_you_mean

_FRACTIONS = ("agreement", "unchanged", "zero", "denormal")
# Reduction whose flag decides whether the column was measured, if its name differs.
_SOURCES = {
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
        sizes: The number of elements of each parameter.
        groups: The index of each parameter's group.
    """

    every: int
    names: list[str]
    sizes: list[int]
    groups: list[int]


class ParameterRow(NamedTuple):
    """Measurements of one parameter, with a field for each of `COLUMNS`."""

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
    """Mapping from parameter names to rows; columns are attributes, such as `table.ratio`.

    A number that was not measured is NaN. `records` is the table as a NumPy record array, with
    `name`, `group` and `step` before the columns.

    Args:
        parameters: The parameters.
        step: The number of the step.
        columns: {column: array over the parameters} for all `COLUMNS`.
        measured: {column: boolean array over the parameters}, True if measured.
    """

    def __init__(
        self,
        parameters: Parameters,
        step: int,
        columns: Mapping[str, Array],
        measured: Mapping[str, Flags],
    ) -> None:
        dtype_fields = [("name", object), ("group", np.int64), ("step", np.int64)]
        dtype_fields += [(name, np.float64) for name in COLUMNS]
        records = np.recarray((len(parameters.names),), dtype_fields)
        records["name"], records["group"] = parameters.names, parameters.groups
        records["step"] = step
        for name in COLUMNS:
            records[name] = np.where(measured[name], columns[name], np.nan)
        records.flags.writeable = False
        self.records, self.step = records, step
        self.parameters, self.measured = parameters, measured
        self._rows = {name: row for row, name in enumerate(parameters.names)}

    def __getitem__(self, name: str) -> ParameterRow:
        """Return the row of a parameter; raise NotFoundError if the name is unknown."""
        if name not in self._rows:
            suggestion = (
                did_you_mean(str(name), self._rows) or f"It has {', '.join([*self._rows][:5])}."
            )
            raise NotFoundError(
                f"No parameter of the optimizer is named {name!r}. {suggestion}".rstrip()
            )
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
        scalars: dict[str, float] = {}
        for column in columns:
            rows = zip(self, self.records[column].tolist(), self.measured[column], strict=True)
            scalars |= {f"{column}/{name}": number for name, number, flag in rows if flag}
        return scalars

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with the names as its index.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        # `import_module`, since pandas has no types.
        pandas: Any = import_module("pandas")
        return pandas.DataFrame.from_records(self.records, index="name")


def check_columns(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the column names as a tuple.

    Raises:
        InvalidTypeError: `columns` is not an iterable of strings.
        InvalidArgumentError: A name is not in `COLUMNS`.
    """
    if isinstance(columns, str) or not isinstance(columns, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidTypeError(f"columns must be a list of names, not {show_value(columns)}.")
    names = tuple(columns)
    for name in names:
        if name not in COLUMNS:
            expected = ", ".join(COLUMNS)
            raise InvalidArgumentError(f"columns has {name!r}; expected: {expected}.")
    return names


class NewTables:
    """Source of numbers for callbacks of trainers. It returns the numbers of each table once.

    Args:
        columns: The names of the columns to log.
    """

    def __init__(self, columns: Iterable[str] = COLUMNS) -> None:
        self._columns = check_columns(columns)
        self._last_tables: dict[str, Table] = {}

    def numbers_of(self, optimizer: object, prefix: str = "") -> dict[str, float]:
        """Return {prefix + "column/parameter": number} once per table and `prefix`, then {}."""
        table = getattr(optimizer, "diagnostics", None)
        if not isinstance(table, Table) or self._last_tables.get(prefix) is table:
            return {}
        self._last_tables[prefix] = table
        return {prefix + name: value for name, value in table.scalars(self._columns).items()}


def columns_of(matrix: Array, sizes: Array, clip: Array) -> dict[str, Array]:
    """Compute the columns of a table; return {column: array with one number per parameter}.

    Args:
        matrix: Reductions of shape (parameters, `len(MEASURED)`).
        sizes: The number of elements of each parameter.
        clip: The factor of gradient clipping for each parameter.
    """
    reductions = dict(zip(MEASURED, matrix.T, strict=True))
    with np.errstate(all="ignore"):
        norms = {n: np.sqrt(reductions[n]) for n in ("gradient", "update", "weight", "momentum")}
        columns = {f"{name}_norm": norms[name] for name in ("gradient", "update", "weight")}
        columns |= {name: reductions[name] for name in ("gradient_max", "update_max", "weight_max")}
        columns["ratio"] = norms["update"] / norms["weight"]
        # Divides by one norm after the other: their product may overflow float64.
        columns["cosine"] = reductions["product"] / norms["gradient"] / norms["momentum"]
        columns |= {name: reductions[name] / sizes for name in _FRACTIONS}
    return {**columns, "nonfinite": reductions["nonfinite"], "clip": clip}


def flags_of(matrix: Flags) -> dict[str, Flags]:
    """Return {column: boolean array over the parameters}, True if measured.

    Args:
        matrix: Flags of the reductions, of shape (parameters, `len(MEASURED)`).
    """
    reduction_flags: dict[str, Flags] = dict(zip(MEASURED, matrix.T, strict=True))
    return {name: reduction_flags[_SOURCES.get(name, name)] for name in COLUMNS}
