"""`thalweg doctor`: what this machine makes of the library, for a report of a bug."""

from __future__ import annotations

import json
import os
import platform
import re
import warnings
from collections import Counter
from contextlib import ExitStack
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import click

from thalweg._cli.progress import show_busy
from thalweg._cli.terminal_escape import escape_text
from thalweg.errors import InvalidArgumentError

if TYPE_CHECKING:
    import torch

    from thalweg._engines.engine_selection import EngineName

_PACKAGES = ("torch", "numpy", "llvmlite", "safetensors", "triton")
_VARIABLES = re.compile("THALWEG_|TRITON_|NUMBA_(CPU|OPT|ENABLE_AVX)|OMP_|MKL_NUM|KMP_|GOMP_")


@click.command(short_help="Show versions, engines, devices and the folder of compiled kernels.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def doctor(as_json: bool) -> None:
    """Show versions, engines, devices and the folder of compiled kernels, in twenty lines for a bug
    report.

    The CPU engine takes a step, which is compared with the reference. An engine that is not
    available is listed with the reason; the exit status is 0 nevertheless.

    \b
    Examples:
      thalweg doctor
      thalweg doctor --json
    """
    with show_busy("taking a step"):
        found = _examine_machine()
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    lines = {name: text or "not installed" for name, text in found["versions"].items()}
    lines["system"] = found["system"]
    for name, trouble in found["engines"].items():
        lines[f"engine {name}"] = f"no: {trouble}" if trouble else "yes"
    look = found["native_look"]
    lines["steps in one call"] = f"no: {look}" if look else "yes"
    lines["threads of torch"] = f"{found['threads']} ({found['cores']} cores)"
    lines["threads of a step"] = str(found["threads_of_a_step"]["number"])
    if why := found["threads_of_a_step"]["trouble"]:
        lines["threads of a step"] += f": {why}"
    lines["processor"] = _suits(found["processor"])
    kernels = found["kernels"]
    kept = f"not kept: {kernels['trouble']}" if kernels["trouble"] else "private, can be written"
    lines["kernels"] = f"{kernels['folder']} ({kept}; {kernels['files']} there)"
    gpus = Counter(f"{gpu['name']}, capability {gpu['capability']}" for gpu in found["gpus"])
    lines["GPUs"] = "; ".join(f"{count} x {name}" for name, count in gpus.items()) or "none"
    given = (f"{name}={value}" for name, value in found["environment"].items())
    lines["environment"] = " ".join(given) or "no variables that matter"
    width = max(map(len, lines))
    for name, text in lines.items():
        click.echo(f"{name:{width}}  {escape_text(text)}")


def _examine_machine() -> dict[str, Any]:
    import torch

    from thalweg._cli.options import usable_cores
    from thalweg._engines.cpu import guard_table
    from thalweg._engines.cuda.availability import why_unavailable
    from thalweg.version import __version__

    own = {"thalweg": __version__, "python": platform.python_version()}
    return {
        "versions": {**own, **{name: _version_of(name) for name in _PACKAGES}},
        "system": _describe_system(),
        "engines": {"reference": "", "cpu": _try_step(), "cuda": why_unavailable()},
        "native_look": guard_table.trouble(),
        "threads": torch.get_num_threads(),
        "cores": usable_cores(),
        "threads_of_a_step": _threads_of_a_step(),
        "processor": _processor(),
        "kernels": _kernels_folder(),
        "gpus": [_describe_gpu(number) for number in range(torch.cuda.device_count())],
        "environment": {
            name: value for name, value in sorted(os.environ.items()) if _VARIABLES.match(name)
        },
    }


def _describe_system() -> str:
    name, libc = f"{platform.system()} {platform.release()}", " ".join(platform.libc_ver())
    return ", ".join(filter(None, (name, platform.machine(), libc.strip())))


def _try_step() -> str:
    """Why the engine for the CPU cannot take a step here; empty if it does, with the right bits."""
    import torch

    from thalweg import engine, optim

    def take_step(name: EngineName) -> torch.Tensor:
        linspace = partial(torch.linspace, steps=1000, dtype=torch.float32, device="cpu")
        param = torch.nn.Parameter(linspace(-1, 1))
        param.grad = linspace(-2, 3)
        with engine(name):
            optim.AdamW([param], lr=0.01).step()
        return param.detach()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a folder for kernels, which is told below
        try:
            is_like = torch.equal(take_step("cpu"), take_step("reference"))
        except Exception as error:  # whatever LLVM says
            return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return "" if is_like else "a step has other bits than the reference engine's"


def _threads_of_a_step() -> dict[str, object]:
    """How many threads a step on the CPU has, and why it is one where torch has several."""
    from thalweg._engines.cpu import openmp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is told here
        is_there = openmp.gomp_parallel() is not None
    if is_there or openmp.team_size() == 1:
        return {"number": openmp.team_size(), "trouble": ""}
    return {"number": 1, "trouble": "the OpenMP library of torch has no GOMP_parallel"}


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> dict[str, object]:
    """What kernels are made for, and how, or why they cannot be made."""
    from thalweg._engines.cpu import machine_code

    name = machine_code.processor()
    try:
        return {"name": name, **machine_code.tuning()._asdict()}
    except InvalidArgumentError as error:
        return {"name": name, "trouble": str(error)}


def _suits(found: dict[str, object]) -> str:
    if "trouble" in found:
        return f"{found['name']}: {found['trouble']}"
    bytes_ahead = found["prefetch"]
    ahead = f"prefetches {bytes_ahead:,} bytes ahead" if bytes_ahead else "no prefetches"
    return (
        f"{found['name']}: {ahead}, vectors of at most {found['vectors']} bits, one thread below"
        f" {found['serial']:,} elements (by {found['measured']})"
    )


def _describe_gpu(number: int) -> dict[str, str]:
    import torch

    capability = ".".join(map(str, torch.cuda.get_device_capability(number)))
    return {"name": torch.cuda.get_device_name(number), "capability": capability}


def _kernels_folder() -> dict[str, object]:
    """The folder of compiled kernels with their number, and why none can be kept; empty if they
    can.
    """
    from thalweg._engines.cpu import kernel_cache, private_directory

    folder, trouble = str(kernel_cache.kernels_folder()), ""
    if not private_directory.AVAILABLE:
        trouble = "who may write to a folder cannot be seen on this system"
    else:
        with warnings.catch_warnings(record=True) as said, ExitStack() as stack:
            warnings.simplefilter("always")
            try:
                kept = private_directory.open_folder(stack, folder)
                name = f"doctor.{os.urandom(8).hex()}"
                private_directory.write_file(kept, name, b"")
                os.unlink(name, dir_fd=kept)
            except OSError as error:
                trouble = str(error)
        # A folder beside it is used where this one may be another user's.
        trouble = trouble or " ".join(str(each.message) for each in said)
    try:
        count = sum(name.endswith(".o") for name in os.listdir(folder))
    except OSError:
        count = 0
    return {"folder": folder, "trouble": trouble, "files": count}
