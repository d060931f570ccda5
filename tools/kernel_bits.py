"""Run the CPU kernels of element-wise rules over NumPy arrays; compare bits of two machines.

    python tools/kernel_bits.py --out here.json        one hash for each rule, type and treatment
    python tools/kernel_bits.py --against here.json    the same elsewhere; says what differs
    python tools/kernel_bits.py --assembly aarch64-unknown-linux-gnu     compile, run nothing

It needs NumPy and llvmlite alone: where torch is not installed, something that can do nothing
takes its place. So it runs in an emulator, and on a Python for which there is no torch. Values are
made of integers, the same everywhere; some are infinite, denormal or no numbers. A NaN counts as
one NaN: processors differ in which one they make. docs/platforms.md has the last results.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SIZE = 5_003  # elements: several chunks of a table, and a rest
TYPES = ("float32", "float64", "float16", "bfloat16")


class _Nothing(type):
    """A class whose attributes are classes like it, and which is called as a decorator, too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name != "__get__":  # operators there are
            return getattr(np.ndarray, name)
        attribute = _Nothing(name, (), {})
        setattr(cls, name, attribute)
        return attribute

    def __call__(cls, *args: Any, **_: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else object.__new__(cls)


class _InsteadOfTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports `torch` and all below it as modules full of nothing."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname.partition(".")[0] == "torch":
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def exec_module(self, module: Any) -> None:
        def attribute(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            stand_in = _Nothing(name, (), {})
            setattr(module, name, stand_in)
            return stand_in

        module.__getattr__ = attribute
        module.__version__ = "0"


def draw_numbers(seed: int, dtype: str, positive: bool) -> Any:
    """Return numbers between 2**-20 and 2**4, special ones first, in their storage dtype."""
    with np.errstate(over="ignore"):
        word = np.arange(1, SIZE + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        word += np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            word = (word ^ (word >> np.uint64(shift))) * np.uint64(factor)
    exponent = (word >> np.uint64(58)).astype(np.int64) % 24 - 20
    value = np.ldexp(1 + (word & np.uint64((1 << 52) - 1)) / 2.0**52, exponent)
    if not positive:
        value = np.where((word >> np.uint64(57)) & np.uint64(1), -value, value)
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-310, 6e-8, 1e-38, 3e38, 65504.0]
        value[seed : seed + len(special)] = special
    if dtype == "bfloat16":
        return (value.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    with np.errstate(over="ignore", under="ignore"):
        narrowed = value.astype(dtype)
    return narrowed.view(np.uint16) if dtype == "float16" else narrowed


def hash_of(arrays: list[Any], dtype: str) -> str:
    """Return a hash of the bits of arrays, in which all NaN are equal."""
    bits = hashlib.blake2b(digest_size=8)
    for array in arrays:
        bits_of_array = array.copy()
        if bits_of_array.dtype == np.uint16:
            exponent = {"float16": 0x7C00, "bfloat16": 0x7F80}[dtype]
            bits_of_array[(bits_of_array & 0x7FFF) > exponent] = 0x7FFF
        else:
            bits_of_array[np.isnan(bits_of_array)] = np.nan
            bits_of_array = bits_of_array.view(f"u{bits_of_array.itemsize}")
        bits.update(bits_of_array.tobytes())
    return bits.hexdigest()


def rules() -> Iterator[tuple[str, Any]]:
    """All rules that are one formula of elements, by name."""
    from thalweg.rules import RULES
    from thalweg.rules.modern import MODERN_RULES

    for rule in (*RULES, *MODERN_RULES):
        if not rule.passes and not rule.measures and not hasattr(rule.update, "vectors"):
            yield rule.name, rule


def kernel_of(rule: Any, dtype: str) -> tuple[Any, str]:
    """Return the kernel of a rule on numbers of a type, and the type of its arithmetic."""
    from thalweg._engines.codegen import Update
    from thalweg._engines.cpu.codegen import generate_update

    compute = "float64" if dtype == "float64" else "float32"
    return generate_update(
        Update(rule.update, (dtype,) * (2 + len(rule.element_slots))), compute
    ), compute


def run_kernel(rule: Any, dtype: str, flush: bool) -> tuple[list[Any], bool | None]:
    """Run a kernel; return its outputs, and whether they equal the reference formula's.

    The second element is None with flushed denormals and for 16-bit types.
    """
    from thalweg._engines.cpu import kernel_cache
    from thalweg._engines.cpu.work_table import Table, cut_slices, dense_chunks
    from thalweg._engines.numpy_functions import numpy_formula

    kernel, compute = kernel_of(rule, dtype)
    streams = [draw_numbers(k, dtype, positive=k > 1) for k in range(2 + len(rule.element_slots))]
    originals = [stream.copy() for stream in streams]
    numbers = {name: 0.9 - 0.017 * k for k, name in enumerate(kernel.scalars)}
    chunks = dense_chunks([SIZE], 1024)
    base = np.array([[stream.ctypes.data for stream in streams]], np.int64)
    table = Table(base, chunks, cut_slices(chunks, 1024), np.zeros(1, np.int64))
    scalars = np.array([list(numbers.values())], compute)
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
        kernel_cache.address_of(kernel.name, kernel.source)
    )
    run(table.fill_argument(scalars, flush))
    outputs = [streams[0], *streams[2:]]
    if flush or dtype not in ("float32", "float64"):
        return outputs, None
    kind = np.dtype(dtype).type
    with np.errstate(all="ignore"):
        expected = numpy_formula(rule.update, kind)(
            *originals, **{k: kind(v) for k, v in numbers.items()}
        )
    expected_outputs = [
        np.broadcast_to(expected_array, SIZE).astype(kind) for expected_array in expected
    ]
    return outputs, hash_of(outputs, dtype) == hash_of(expected_outputs, dtype)


def survey() -> dict[str, Any]:
    """Return the hashes of all kernels on this machine."""
    import llvmlite

    report: dict[str, Any] = {
        "machine": platform.machine(), "python": platform.python_version(),
        "numpy": np.__version__, "llvmlite": llvmlite.__version__, "libc": platform.libc_ver()[1],
        "hashes": {}, "unlike the reference": [],
    }  # fmt: skip
    for name, rule in rules():
        for dtype in TYPES:
            for flush in (True, False):
                key = f"{name}, {dtype}, denormals {'flushed' if flush else 'kept'}"
                outputs, equals_reference = run_kernel(rule, dtype, flush)
                report["hashes"][key] = hash_of(outputs, dtype)
                if equals_reference is False:
                    report["unlike the reference"].append(key)
    return report


def assemble(triple: str) -> int:
    """Compile all kernels for another machine; return their number."""
    from llvmlite import binding

    from thalweg._engines.cpu import primitives
    from thalweg._engines.cpu.compiler import build_module

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = binding.Target.from_triple(triple)
    machine = target.create_target_machine(opt=3)
    # As `primitives` finds them of the machine that it runs on.
    primitives.X86 = target.name.startswith("x86")
    primitives.ARM64 = target.name == "aarch64"
    count = 0
    for _, rule in rules():
        for dtype in TYPES:
            kernel, _ = kernel_of(rule, dtype)
            llvm_module = build_module(kernel.name, kernel.source)
            llvm_module.triple, llvm_module.data_layout = machine.triple, str(machine.target_data)
            module = binding.parse_assembly(str(llvm_module))
            options = binding.create_pipeline_tuning_options(3)
            options.loop_vectorization = True
            builder = binding.create_pass_builder(machine, options)
            builder.getModulePassManager().run(module, builder)
            count += bool(machine.emit_object(module))
    return count


def main() -> int:
    """Run the command; return 1 if bits differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write the hashes there, as JSON")
    parser.add_argument("--against", type=Path, help="compare with hashes that --out has written")
    parser.add_argument("--assembly", metavar="TRIPLE", help="compile for another machine instead")
    parser.add_argument("--without-torch", action="store_true", help="as if it were not installed")
    arguments = parser.parse_args()
    if arguments.without_torch or importlib.util.find_spec("torch") is None:
        sys.meta_path.insert(0, _InsteadOfTorch())
    if arguments.assembly:
        print(f"{arguments.assembly}: {assemble(arguments.assembly)} kernels compiled, none run")
        return 0
    report = survey()
    mismatches = report["unlike the reference"]
    versions = ", ".join(f"{key} {report[key]}" for key in ("python", "numpy", "llvmlite", "libc"))
    print(f"{report['machine']}, {versions}: {len(report['hashes'])} runs of kernels,"
          f" {len(mismatches)} unlike the reference here")  # fmt: skip
    print(*mismatches, sep="\n", end="\n" if mismatches else "")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    if arguments.against is None:
        return bool(mismatches)
    other_report = json.loads(arguments.against.read_text())
    if other_report["hashes"].keys() != report["hashes"].keys():
        print("The other file is of other rules.")
        return 1
    differences = [
        key for key in report["hashes"] if report["hashes"][key] != other_report["hashes"][key]
    ]
    print(f"{len(differences)} of {len(report['hashes'])} differ from {other_report['machine']},"
          f" Python {other_report['python']}")  # fmt: skip
    print(*differences, sep="\n", end="\n" if differences else "")
    return bool(differences or mismatches)


if __name__ == "__main__":
    sys.exit(main())
