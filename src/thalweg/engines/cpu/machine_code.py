"""Machine code of kernels: taken from Numba once, loaded later by LLVM alone.

Importing Numba and waking its compiler costs ten times as much as the rest of a first step, and a
kernel needs neither: it calls nothing but the functions of `libm`. LLVM is imported at first use.
"""

# llvmlite has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from thalweg.engines import libm

# What decides, besides the processor, on the code that Numba makes.
SETTINGS = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX", "NUMBA_OPT")

_libraries: list[Any] = []  # each owns its code, which must live as long as its address is used


@cache
def _target() -> tuple[str, str, str]:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    try:
        features = binding.get_host_cpu_features().flatten()
    except RuntimeError:  # LLVM cannot tell on this platform
        features = ""
    return binding.get_process_triple(), binding.get_host_cpu_name(), features


@cache
def target() -> str:
    """What machine code is good for: this platform, processor and LLVM, made in this way."""
    from llvmlite import binding

    made = Path(__file__).read_text()
    settings = [os.environ.get(name) for name in SETTINGS]
    return "\n".join([*_target(), repr(binding.llvm_version_info), repr(settings), made])


@cache
def _machine() -> Any:
    from llvmlite import binding

    triple, cpu, features = _target()
    # Numba's own options by default.
    reloc = "static" if triple.startswith("x86") else "default"
    return binding.Target.from_triple(triple).create_target_machine(
        cpu=cpu,
        features=features,
        opt=3,
        reloc="pic" if triple.startswith("p") else reloc,
        codemodel="jitdefault",
        jit=True,
    )


@cache
def _linker() -> Any:
    from llvmlite import binding

    return binding.create_lljit_compiler(_machine(), suppress_errors=True)


def emit(function: Any, name: str) -> bytes:
    """Object code of a compiled function.

    Args:
        function: A `numba.cfunc` that was compiled in this process.
        name: The symbol under which the code is found.

    Returns:
        An object file, or nothing if the code would need this process, Python or Numba to run.
    """
    from llvmlite import binding

    text = function.inspect_llvm()
    if "numba.dynamic.globals" in text:  # addresses of this process
        return b""
    try:
        module = binding.parse_assembly(text)
        entry = module.get_function(function.native_name)
        for each in module.functions:
            if not each.is_declaration:
                each.linkage = "external" if each == entry else "internal"
        entry.name = name
        machine = function._library.codegen._tm  # so that the code is Numba's own
        _without_errors(module, machine)
        for each in (*module.functions, *module.global_variables):
            known = each.name.startswith("llvm.") or each.name in libm.SYMBOLS
            if each.is_declaration and not known:
                return b""
        return machine.emit_object(module)
    except (RuntimeError, AttributeError):  # of an older llvmlite, or another Numba
        return b""


def _without_errors(module: Any, machine: Any) -> None:
    # Numba's entry calls Python if the kernel returns an error, which none ever does. Numba's own
    # passes end before LLVM could see that.
    from llvmlite import binding

    passes = binding.create_new_module_pass_manager()
    passes.add_ipsccp_pass()
    passes.add_simplify_cfg_pass()
    passes.add_global_dead_code_eliminate_pass()
    options = binding.create_pipeline_tuning_options()
    passes.run(module, binding.create_pass_builder(machine, options))


def link(name: str, code: bytes) -> int:
    """Load object code; not for two threads at once.

    Args:
        name: The symbol to look for.
        code: What `emit` returned for this `target`.

    Returns:
        The address of the symbol, or 0 if there is none or LLVM cannot load the code here.
    """
    if not code:
        return 0
    from llvmlite import binding

    builder = binding.JITLibraryBuilder().add_object_img(code).add_current_process()
    for symbol, function in libm.SYMBOLS.items():
        builder.import_symbol(symbol, libm.address(function))
    try:
        library = builder.export_symbol(name).link(_linker(), f"{name}_{len(_libraries)}")
    except RuntimeError:
        return 0
    _libraries.append(library)
    return library[name]
