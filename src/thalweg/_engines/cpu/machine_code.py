"""Compilation of kernels to object code, and loading of it. LLVM is imported at first use.

Kernels may call the functions of `libm`, and no others.
"""

# llvmlite has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from thalweg._base.locks import importing
from thalweg._engines import libm
from thalweg._engines.cpu.tuning import VARIABLE, Tuning, tuning_of

# Environment variables of Numba that change the code, in addition to the processor.
SETTINGS = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX", "NUMBA_OPT")

# A library owns its code and must not be freed while addresses in it are used.
_libraries: list[Any] = []


@cache
def _make_target() -> tuple[str, str, str]:
    """Return LLVM's names of this machine's target triple, processor and features."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    name, features, avx, _ = map(os.environ.get, SETTINGS)
    if features is None:
        features = "" if name == "generic" else _list_cpu_features(avx != "0")
    return binding.get_process_triple(), processor(), features


def processor() -> str:
    """Return LLVM's name of the processor for which code is compiled."""
    from llvmlite import binding

    return os.environ.get("NUMBA_CPU_NAME") or binding.get_host_cpu_name()


@cache
def tuning() -> Tuning:
    """Return the tuning parameters of the processor, or those of the environment variable."""
    # A fork must wait for the import of LLVM.
    with importing:
        return tuning_of(processor(), os.environ.get(VARIABLE, ""))


def _list_cpu_features(avx: bool) -> str:
    """Return the processor's features for LLVM, without AVX if `avx` is False; "" if unknown."""
    from llvmlite import binding

    try:
        cpu_features = binding.get_host_cpu_features()
    except RuntimeError:  # LLVM does not support this on all platforms.
        return ""
    for feature in cpu_features:
        cpu_features[feature] &= avx or not feature.startswith("avx")
    # LLVM avoids vectors of 512 bits on some processors; kernels that wait for memory gain by them.
    sign = "-" if tuning().vectors == 512 else "+"
    vector_option = f",{sign}prefer-256-bit" if cpu_features.get("avx512f") else ""
    return cpu_features.flatten() + vector_option


def _read_optimization_level() -> int:
    """Return LLVM's optimization level, from 0 to 3, by the environment variable NUMBA_OPT."""
    level = os.environ.get("NUMBA_OPT", "3")
    return int(level) if level in ("0", "1", "2") else 3


@cache
def target_digest() -> str:
    """Return a text that differs where object code differs: target, LLVM, settings, this module."""
    from llvmlite import binding

    source = Path(__file__).read_text()
    settings = [os.environ.get(name) for name in SETTINGS]
    return "\n".join([*_make_target(), repr(binding.llvm_version_info), repr(settings), source])


@cache
def _target_machine() -> Any:
    """Return LLVM's target machine for this processor; cached."""
    from llvmlite import binding

    triple, cpu, features = _make_target()
    reloc = "static" if triple.startswith("x86") else "default"
    return binding.Target.from_triple(triple).create_target_machine(
        cpu=cpu,
        features=features,
        opt=_read_optimization_level(),
        reloc="pic" if triple.startswith("p") else reloc,
        codemodel="jitdefault",
        jit=True,
    )


@cache
def _jit_linker() -> Any:
    from llvmlite import binding

    return binding.create_lljit_compiler(_target_machine(), suppress_errors=True)


_WIDENING = """
define float @widened(half %x) {
  %y = fpext half %x to float
  ret float %y
}
"""


@cache
def _has_halves() -> bool:
    """Return True if the processor has instructions for float16.

    Without them, LLVM calls functions of a compiler's library that may be missing.
    """
    from llvmlite import binding

    assembly = _target_machine().emit_assembly(binding.parse_assembly(_WIDENING))
    return "extendhfsf" not in assembly and "gnu_h2f" not in assembly


def _optimize_module(name: str, source: str, briefly: bool) -> Any:
    """Return the optimized LLVM module of a kernel; for arguments see `compile_kernel`."""
    from llvmlite import binding

    from thalweg._engines.cpu.compiler import build_module

    machine = _target_machine()
    unoptimized = build_module(name, source, "half" not in source or _has_halves())
    unoptimized.triple, unoptimized.data_layout = machine.triple, str(machine.target_data)
    module = binding.parse_assembly(str(unoptimized))
    options = binding.create_pipeline_tuning_options(1 if briefly else _read_optimization_level())
    options.loop_vectorization = not briefly
    # Unrolling takes a fifth of LLVM's time, and kernels wait for memory.
    options.loop_unrolling = False
    builder = binding.create_pass_builder(machine, options)
    if briefly:
        builder.getFunctionPassManager().run(module.get_function(name), builder)
    else:
        builder.getModulePassManager().run(module, builder)
    return module


def compile_kernel(name: str, source: str, briefly: bool = False) -> bytes:
    """Return the object code of a kernel.

    Args:
        name: The kernel's function, the symbol of the object code.
        source: The text, in the language of `compiler`.
        briefly: True to skip vectorization, which takes two thirds of LLVM's time.
    """
    return _target_machine().emit_object(_optimize_module(name, source, briefly))


def link_kernel(name: str, code: bytes) -> int:
    """Load object code; return the address of the function `name`. This is not thread-safe.

    Args:
        code: Bytes from `compile_kernel`, of a process with an equal `target_digest`; or b"".

    Returns:
        The address, or 0 if there is no code or LLVM cannot load it here.
    """
    if not code:
        return 0
    from llvmlite import binding

    builder = binding.JITLibraryBuilder().add_object_img(code).add_current_process()
    for symbol, function in libm.SYMBOLS.items():
        builder.import_symbol(symbol, libm.address_of(function))
    try:
        library = builder.export_symbol(name).link(_jit_linker(), f"{name}_{len(_libraries)}")
    except RuntimeError:
        return 0
    _libraries.append(library)
    return library[name]


def compile_in_memory(name: str, source: str, briefly: bool = False) -> int:
    """Compile a kernel for this process alone, and return its address.

    Use this function on platforms where `link_kernel` fails. For arguments see `compile_kernel`.
    """
    from llvmlite import binding

    for symbol, function in libm.SYMBOLS.items():
        binding.add_symbol(symbol, libm.address_of(function))
    # MCJIT, the older loader, supports more platforms. It takes ownership of the target machine.
    engine = binding.create_mcjit_compiler(
        _optimize_module(name, source, briefly), _target_machine.__wrapped__()
    )
    engine.finalize_object()
    _libraries.append(engine)
    return engine.get_function_address(name)
