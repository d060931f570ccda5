"""Triton kernels: generated, compiled once per GPU architecture, launched by one call in C."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thalweg._base.locks import Awaited, importing
from thalweg._engines.codegen import Measurement, Update
from thalweg._engines.cuda import driver
from thalweg._engines.cuda.availability import is_interpreted
from thalweg._engines.cuda.codegen import SIZES, THREADS, Kernel, generate_update
from thalweg._engines.cuda.codegen_measure import generate_combine, generate_measure, generate_peak
from thalweg._engines.cuda.codegen_sparse import generate_rows, generate_untouched
from thalweg.errors import RuleError

if TYPE_CHECKING:
    from thalweg._base.rule_passes import Measure
    from thalweg._engines.cuda.codegen_partial_reductions import Layout

Argument = Tensor | int
_compiling = Awaited()
# At the end of a kernel's source, for AMD's GPUs and those below compute capability 8.0.
_BY_BITS = "to_bfloat16 = to_bfloat16_by_bits\n"


class Compiled:
    """Kernel that can be launched.

    Attributes:
        scalars: Names of the scalars that the kernel reads, in the order of a scalar row.
        dtype: The dtype of the scalars.
        measures: Number of results for each leaf of a reducing kernel.
        vectors: Names of row and column vectors, in the order of the table.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.scalars, self.dtype = kernel.scalars, np.dtype(kernel.kind).type
        self.measures, self.vectors = kernel.measures, kernel.vectors
        self._kernel = kernel
        self._starters: dict[tuple[bool, int], driver.Starter] = {}  # by alignment and device

    def bind_to(self, grid: tuple[int, int], arguments: Sequence[Argument], aligned: bool) -> Bound:
        """Return the kernel with its arguments, for any number of launches.

        The first call for a device and `aligned` compiles the kernel.

        Args:
            grid: Numbers of programs in two dimensions.
            arguments: Tensors on one device, and integers.
            aligned: True if all addresses in the kernel's tables are multiples of 16 bytes.

        Raises:
            RuntimeError: The driver cannot start the kernel.
        """
        # Drivers refuse a launch without programs.
        if is_interpreted() or not all(grid):
            return _Interpreted(self._kernel, grid, arguments, aligned)
        device_index = next(
            argument.get_device() for argument in arguments if isinstance(argument, Tensor)
        )
        starter = self._starters.get((aligned, device_index))
        if starter is None:
            starter = self._starters[aligned, device_index] = self._try_start(
                aligned, device_index, arguments
            )
        return driver.Launch(starter, grid, arguments)

    def _try_start(
        self, aligned: bool, device_index: int, arguments: Sequence[Argument]
    ) -> driver.Starter:
        """Load the kernel on a device, launch it once, and return the kernel's starter.

        The launch writes no variable or slot, because all sizes are 0.

        Args:
            aligned: True if addresses are multiples of 16 bytes.
        """
        architecture = driver.of_torch().architecture_of(device_index)
        binary = compiled_for(self._kernel, aligned, architecture)
        handle = driver.load_function(binary.code, self._kernel.name, device_index)
        starter = driver.Starter(
            handle, binary.threads, binary.shared, binary.parameters, device_index
        )
        driver.Launch(
            starter, (1, 1), list(map(_make_empty_argument, binary.names, arguments))
        ).run()
        return starter


def _make_empty_argument(name: str, argument: Argument) -> Argument:
    """Return an argument for a launch that updates no elements: sizes and widths become 0."""
    if isinstance(argument, Tensor):
        return torch.zeros_like(argument) if name == "sizes" else argument
    return 0 if name in ("width", "elements") else argument


class Binary(NamedTuple):
    """Kernel compiled by Triton for one GPU architecture.

    Attributes:
        assembly: The text: PTX, or the instructions of an AMD GPU.
        code: The machine code.
        threads: Threads of a program.
        shared: Bytes of shared memory of a program.
        names: Names of the parameters that take arguments.
        parameters: Number of all parameters.
    """

    assembly: str
    code: bytes
    threads: int
    shared: int
    names: Sequence[str]
    parameters: int


def _count_parameters(assembly: str) -> int:
    """Return the number of parameters that the caller of a kernel passes."""
    if head := re.search(r"\.entry \w+\((.*?)\)", assembly, re.DOTALL):
        return head.group(1).count(".param")
    return len(re.findall(r"\.value_kind:\s+(?!hidden_)", assembly))


@cache
def compiled_for(kernel: Kernel, aligned: bool, architecture: driver.Architecture) -> Binary:
    """Compile a kernel for a GPU architecture, without a GPU. Triton caches the binary on disk.

    Raises:
        RuleError: The kernel uses `dynamic8`, and the architecture is AMD's.
    """
    # Triton has no types, and may not be installed.
    triton: Any = import_module("triton")
    compiler: Any = import_module("triton.compiler")
    backends: Any = import_module("triton.backends.compiler")
    is_amd = isinstance(architecture, str)
    if is_amd and "dynamic8_tables" in kernel.source:
        raise RuleError(
            "state_storage='dynamic8' has no kernels for AMD GPUs; use '8bit', or"
            " thalweg.engine('torch')."
        )
    warp = driver.warp_of(architecture)
    with _compiling:
        text = kernel.source + (_BY_BITS if is_amd or architecture < 80 else "")
        function = getattr(load_module(kernel.name, text), kernel.name)
        signature = {
            name: "i64" if name in kernel.integers else _POINTERS[name]
            for name in function.arg_names[:-1]
        }
        if "scalars" in signature:
            signature["scalars"] = "*fp32" if kernel.kind == "float32" else "*fp64"
        signature["ALIGNED"] = "constexpr"
        source = compiler.ASTSource(function, signature, {"ALIGNED": aligned})
        # A program of AMD's GPUs has 64 threads where the kernel needs 32: half of them repeat.
        warps = max(kernel.threads // warp, 1)
        options: dict[str, Any] = {"num_warps": warps, "enable_fp_fusion": kernel.fast}
        if not is_amd:
            options["maxnreg"] = kernel.max_registers
        target = backends.GPUTarget("hip" if is_amd else "cuda", architecture, warp)
        compiled = triton.compile(source, target=target, options=options)
    assembly = compiled.asm["amdgcn" if is_amd else "ptx"]
    return Binary(
        assembly,
        compiled.asm["hsaco" if is_amd else "cubin"],
        warps * warp,
        compiled.metadata.shared,
        function.arg_names[:-1],
        _count_parameters(assembly),
    )


@cache
def load_module(name: str, source: str) -> ModuleType:
    """Run a generated source as a module; register the text in `linecache`, where Triton looks."""
    module, file = ModuleType(f"thalweg_kernels.{name}"), f"<{name}>"
    sys.modules[module.__name__] = module
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    exec(compile(source, file, "exec"), module.__dict__)
    return module


_POINTERS = {
    "base": "*i64", "chunks": "*i32", "sizes": "*i64", "scalar_row": "*i64", "scalars": "",
    "rows": "*i64", "order": "*i64", "named": "*i8", "leaves": "*fp64", "found": "*i64",
    "first": "*i64", "above": "*fp64", "places": "*i64", "lines": "*i64",
}  # fmt: skip


class _Interpreted:
    """Kernel with arguments for Triton's interpreter, or with an empty grid."""

    def __init__(
        self, kernel: Kernel, grid: tuple[int, int], arguments: Sequence[Argument], aligned: bool
    ) -> None:
        self._kernel, self._grid, self._arguments = kernel, grid, arguments
        self._aligned = aligned

    def make_calls(self) -> list[Callable[[], Any]]:
        return [self.run] if all(self._grid) else []

    def run(self) -> None:
        if all(self._grid):
            name = self._kernel.name
            function = getattr(load_module(name, self._kernel.source), name)
            with np.errstate(all="ignore"):
                function[self._grid](*self._arguments, ALIGNED=self._aligned)


# Kernel with its arguments: `make_calls` returns functions that launch on the current stream, `run`
# launches now.
Bound = driver.Launch | _Interpreted


@cache
def update_kernel(
    update: Update,
    compute: type[np.floating[Any]],
    flush: bool,
    fast: bool = False,
    duplicates: Literal["sum", "successive"] | None = None,
    threads: int = THREADS,
) -> Compiled:
    """Return the kernel of an update; for arguments see `generate_update` and `generate_rows`."""
    name = np.dtype(compute).name
    if update.draws or not SIZES.keys() >= {*update.storage}:
        with importing:
            from thalweg._engines.cuda.codegen_blocks import generate_blocks
        kernel = generate_blocks(update, flush, fast)
    elif not update.grad:
        kernel = generate_untouched(update, name, flush, fast)
    elif duplicates is None:
        kernel = generate_update(update, name, flush, fast)
    else:
        kernel = generate_rows(update, name, flush, duplicates, fast, threads)
    return Compiled(kernel)


@cache
def sum_kernel(measurement: Measurement, flush: bool) -> Compiled:
    """Return the kernel that sums formulas over leaves; arguments as for `generate_measure`."""
    return Compiled(generate_measure(measurement, flush))


@cache
def lines_kernel(
    measures: tuple[Measure, ...], measurement: Measurement, flush: bool, layout: Layout
) -> Compiled:
    """Return the kernel that measures rows, columns and variables; see `MeasureBuilder`."""
    with importing:
        from thalweg._engines.cuda.codegen_partial_reductions import MeasureBuilder
        from thalweg._engines.cuda.codegen_row_column import generate_lines
        from thalweg._engines.cuda.codegen_small_matrices import generate_short
    builder = MeasureBuilder(measures, measurement, flush)
    if layout.sides:
        return Compiled(generate_short(builder, layout.sides))
    return Compiled(generate_lines(builder, layout.columns))


@cache
def peak_kernel(kind: str) -> Compiled:
    """Return the kernel for the largest magnitude of each leaf, for the storage dtype `kind`."""
    return Compiled(generate_peak(kind))


@cache
def combine_kernel() -> Compiled:
    """Return the kernel that adds up leaves; see `thalweg._engines.cuda.tree_reduction`."""
    return Compiled(generate_combine())
