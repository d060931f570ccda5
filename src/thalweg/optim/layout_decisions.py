"""`matrix_layouts`: assignment of each parameter to a rule for matrices or to AdamW."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from thalweg._base.exports import exported_from
from thalweg._base.matrix_layout import MatrixLayout, as_layout
from thalweg.errors import InvalidArgumentError
from thalweg.optim.matrix_selection import output_ids
from thalweg.optim.model_dry_run import DryRun
from thalweg.optim.module_layouts import (
    adapter_layout,
    class_decision,
    is_router,
    is_whole_by_source,
    unused_decision,
)
from thalweg.optim.selectors import ModuleParams
from thalweg.optim.text_table import format_table
from thalweg.optim.weight_use import UndecidedError, UnusedError, WeightUse

Layouts = Mapping[str, MatrixLayout | str]


@exported_from("thalweg.optim")
class ParamLayout(NamedTuple):
    """Decision about one parameter.

    Attributes:
        name: The parameter's name, as in `named_parameters()`.
        shape: The parameter's shape.
        layout: The matrices in the parameter, or None if AdamW updates it.
        reason: Reason of the decision: the module class and the use of outputs in the forward pass.
    """

    name: str
    shape: tuple[int, ...]
    layout: MatrixLayout | None
    reason: str

    @property
    def kind(self) -> str:
        """The string "matrix" or "AdamW"."""
        return "AdamW" if self.layout is None else "matrix"


@exported_from("thalweg.optim")
class MatrixLayouts(Sequence[ParamLayout]):
    """Decisions about the parameters of a model, which print as a table.

    Args:
        decisions: The decisions.
    """

    def __init__(self, decisions: Iterable[ParamLayout]) -> None:
        self._decisions = tuple(decisions)

    def __getitem__(self, key: Any) -> Any:
        """Return a decision by index or by name of the parameter, or those of a slice."""
        if isinstance(key, str):
            matches = [decision for decision in self._decisions if decision.name == key]
            if not matches:
                raise KeyError(key)
            return matches[0]
        return self._decisions[key]  # pyright: ignore[reportUnknownVariableType]

    def __len__(self) -> int:
        return len(self._decisions)

    def __iter__(self) -> Iterator[ParamLayout]:
        return iter(self._decisions)

    def __str__(self) -> str:
        rows = [("parameter", "shape", "kind", "layout", "reason")]
        for decision in self:
            shape = " x ".join(map(str, decision.shape))
            rows.append(
                (decision.name, shape, decision.kind, str(decision.layout or ""), decision.reason)
            )
        return format_table(rows)

    def by_group(self, groups: Iterable[Mapping[str, Any]]) -> str:
        """Return a table that counts the parameters of each group by reason.

        A row has the rule and layout of a group, a reason, the number of parameters and an example.

        Args:
            groups: The groups of an optimizer, with the names of parameters in `param_names`.
        """
        rows = [("rule", "layout", "reason", "parameters", "such as")]
        reasons = {decision.name: decision.reason for decision in self}
        for group in groups:
            names: dict[str, list[str]] = {}
            for name in group.get("param_names", ()):
                names.setdefault(reasons.get(name, ""), []).append(name)
            for reason, members in names.items():
                head = (str(group["rule"]), str(group.get("layout") or ""), reason)
                rows.append((*head, str(len(members)), members[0]))
        return format_table(rows)


@exported_from("thalweg.optim")
def matrix_layouts(
    module: nn.Module,
    *,
    layouts: Layouts | None = None,
    output: Iterable[str] | str | None = None,
    inputs: Any = None,
) -> MatrixLayouts:
    """Return the decision for each parameter of a model: its matrix layout, or AdamW.

    The forward pass runs once on the CPU, on a copy of the model whose weights have no memory. It
    shows which dimension of a weight is multiplied, and how later code splits the product. AdamW
    updates embeddings, output layers, routers, norms, vectors, and weights that no product uses.

    Args:
        module: The model. It does not change, and may be on any device, "meta" included.
        layouts: Your decisions, {name or pattern of parameters: layout}, such as
            `{"*.qkv.weight": "rows=3"}`. The layout "AdamW" selects AdamW.
        output: The parameters of the output layer, by name or pattern; () for none. None takes the
            layer of `get_output_embeddings()`, or else the layer that computes the model's result.
        inputs: The inputs of the forward pass: a tuple of arguments, a dict of keyword arguments or
            one argument. None derives inputs from the model's signature.

    Raises:
        InvalidArgumentError: A parameter is undecided; the message has the line that decides it. Or
            a pattern selects nothing, or a layout does not fit its parameter.

    Example:
        >>> model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
        >>> print(matrix_layouts(model))
        parameter  shape  kind    layout  reason
        0.weight   9 x 4  AdamW           Embedding: rows are looked up
        1.weight   4 x 4  matrix  rows=1  Linear: outputs are used as a whole
        1.bias     4      AdamW           Linear: one dimension
        2.weight   9 x 4  AdamW           Linear: output layer
        2.bias     9      AdamW           Linear: one dimension
    """
    return MatrixLayouts(_Decisions(module, layouts or {}, output, inputs))


class _Decisions(Iterable[ParamLayout]):
    """Decisions about the parameters of a model."""

    def __init__(
        self, module: nn.Module, layouts: Layouts, output: Iterable[str] | str | None, inputs: Any
    ) -> None:
        self._module = module
        self._params = ModuleParams(module)
        self._named_layouts = _layouts_by_name(layouts, self._params)
        self._run = DryRun(module, inputs)
        ends = output_ids(module, self._params, output)
        # Without names or a getter, the output layer is that whose outputs the model returns.
        returned_ids = {key for key, use in self._run.uses.items() if use.is_output}
        self._ends = returned_ids if ends is None else ends
        if ends is None and self._run.error is not None:
            raise InvalidArgumentError(
                f"Nothing says which parameters of {type(module).__name__} are those of its output"
                " layer: name them, such as output='head.*', or say output=() if it has none; or"
                f" pass inputs= of a forward pass.{self._failure()}"
            )
        # The weights that adapters of PEFT are added to need no gradient.
        self._bases = dict(module.named_parameters(remove_duplicate=False))

    def __iter__(self) -> Iterator[ParamLayout]:
        """Yield all decisions; raise InvalidArgumentError if a parameter is undecided."""
        undecided: list[tuple[str, Tensor, str]] = []
        decisions: list[ParamLayout] = []
        for name, param in self._params.named_params:
            try:
                layout, reason = self._decide(name, param)
            except UndecidedError as error:
                undecided.append((name, param, str(error)))
                continue
            decisions.append(ParamLayout(name, tuple(param.shape), layout, reason))
        if undecided:
            raise self._undecided_error(undecided)
        return iter(decisions)

    def _failure(self) -> str:
        """Return a sentence about the error that ended the forward pass; "" if none."""
        error = self._run.error
        return f" The forward pass ended with {type(error).__name__}: {error}" if error else ""

    def _decide(self, name: str, param: Tensor) -> tuple[MatrixLayout | None, str]:
        """Return (layout of a parameter or None for AdamW, reason).

        Raise UndecidedError if neither the name, the module's class nor the forward pass decides.
        """
        if name in self._named_layouts:
            return self._named_layouts[name], "layouts="
        layers = self._params.modules[id(param)]
        class_names = " and ".join(sorted({type(owner).__name__ for owner in layers}))
        if param.dim() < 2:
            return None, f"{class_names}: one dimension"
        leaf = name.rsplit(".", maxsplit=1)[-1]
        if (decision := class_decision(layers, leaf, param)) is not None:
            return decision[0], f"{class_names}: {decision[1]}"
        if (base := adapter_layout(name, self._base_layout)) is not None:
            return base, f"{class_names}: adapter of PEFT"
        if is_router(self._module, name):
            return None, f"{class_names}: router"
        if id(param) in self._ends:
            return None, f"{class_names}: output layer"
        layout, reason = self._by_use(name, param, self._run.uses.get(id(param)))
        # Orthogonalizing a single row or column would only normalize it.
        if layout is not None and all(1 in block.shape for block in layout.blocks(param.shape)):
            layout, reason = None, "a vector"
        return layout, f"{class_names}: {reason}"

    def _by_use(
        self, name: str, param: Tensor, use: WeightUse | None
    ) -> tuple[MatrixLayout | None, str]:
        """Return (layout or None for AdamW, reason) from the record of a weight's uses.

        Raise UndecidedError if `use` is None, or the uses define no layout.
        """
        if use is None:
            raise UndecidedError("it is not a parameter of the model that runs")
        if use.is_lookup_table:
            return None, "rows are looked up"
        if use.selects:
            return None, "router, whose largest outputs are selected"
        if use.is_grouped:
            return None, "convolution in groups"
        if use.is_elementwise and not use.output_count:
            return None, "no product uses it"
        try:
            layout = use.layout()
        # The forward pass did not reach the weight, but its name or source may decide.
        except UnusedError:
            layers = self._params.modules[id(param)]
            if reason := unused_decision(layers, name.rsplit(".", maxsplit=1)[-1]):
                return None, reason
            if not all(is_whole_by_source(self._module, name, owner) for owner in layers):
                raise
            return MatrixLayout(), "the source of the forward pass divides no outputs"
        return layout, _describe_blocks(layout, len(layout.blocks(param.shape)))

    def _base_layout(self, name: str) -> MatrixLayout:
        """Return the layout of the weight that an adapter is added to."""
        use = self._run.uses.get(id(self._bases.get(name)))
        if use is None:
            raise UndecidedError("the weight that the adapter is added to was not found")
        return use.layout()

    def _undecided_error(self, undecided: Sequence[tuple[str, Tensor, str]]) -> Exception:
        """Return the error about parameters; `undecided` has (name, parameter, reason) tuples."""
        name, param, reason = undecided[0]
        owner = self._params.modules[id(param)][0]
        tail = f" {len(undecided) - 1} more are undecided." if len(undecided) > 1 else ""
        # One entry with a pattern decides for all layers of a stack.
        pattern = re.sub(r"\.\d+\.", ".*.", name)
        is_stack = param.dim() == 3 and not isinstance(owner, nn.Conv1d)
        return InvalidArgumentError(
            f"The matrices of {name!r} of shape {tuple(param.shape)}, of a {type(owner).__name__},"
            f" are undecided: {reason}.{tail} Name its layout, such as"
            f" layouts={{{pattern!r}: '{'batch' if is_stack else 'rows'}=1'}}, or say"
            f" layouts={{{pattern!r}: 'AdamW'}}; or pass inputs= of a forward pass that uses it."
            f"{self._failure()}"
        )


def _describe_blocks(layout: MatrixLayout, block_count: int) -> str:
    """Return a phrase about the division of outputs into blocks."""
    stack = "a matrix for each expert, " if layout.batch else ""
    if block_count == 1:
        return f"{stack}outputs are used as a whole"
    return f"{stack}{block_count} blocks are used apart"


def _check_fits(layout: MatrixLayout, name: str, param: Tensor) -> None:
    """Raise InvalidArgumentError with the parameter's name if a layout does not fit its shape."""
    try:
        layout.blocks(param.shape)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"layouts= of {name!r}: {error}") from error


def _layouts_by_name(
    layouts: Layouts, module_params: ModuleParams
) -> dict[str, MatrixLayout | None]:
    """Return {parameter name: layout, or None for AdamW} from the user's names and patterns.

    An exact name has priority over a pattern.

    Raises:
        InvalidArgumentError: A pattern selects no parameter, two patterns select one parameter, or
            a layout does not fit.
    """
    entries: dict[str, tuple[bool, str, MatrixLayout | None]] = {}
    for pattern, option in layouts.items():
        layout = None if option == "AdamW" else as_layout(option, f"layouts[{pattern!r}]")
        if layout is None and option != "AdamW":
            raise InvalidArgumentError(
                f"layouts[{pattern!r}] must be a layout or 'AdamW', not None."
            )
        selected_params = [
            pair for pair in module_params.named_params if module_params.called(pattern, pair[1])
        ]
        module_params.check_selects(selected_params, pattern, "layouts")
        for name, param in selected_params:
            if layout is not None:
                _check_fits(layout, name, param)
            exact = pattern in module_params.names[id(param)]
            if name in entries and entries[name][0] == exact:
                raise InvalidArgumentError(
                    f"layouts has two entries for {name!r}: {entries[name][1]!r} and {pattern!r}."
                    f" Add {name!r} itself, or have one pattern not match it."
                )
            if exact or name not in entries:
                entries[name] = (exact, pattern, layout)
    return {name: layout for name, (_, _, layout) in entries.items()}
