"""`thalweg doctor`: versions, engines and devices of this machine, for bug reports."""

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
from typing import Any

import click
import torch

from thalweg import engine, optim
from thalweg._cli.options import usable_cores
from thalweg._cli.progress import show_busy
from thalweg._cli.terminal_escape import escape_text
from thalweg._engines.cpu import guard_table, kernel_cache, machine_code, openmp, private_directory
from thalweg._engines.cuda import driver
from thalweg._engines.cuda.availability import takes_device, why_not_automatic, why_unfused
from thalweg._engines.engine_selection import EngineName
from thalweg.errors import InvalidArgumentError
from thalweg.version import __version__

_PACKAGES = ("torch", "numpy", "llvmlite", "safetensors", "triton")
_VARIABLES = re.compile("THALWEG_|TRITON_|NUMBA_(CPU|OPT|ENABLE_AVX)|OMP_|MKL_NUM|KMP_|GOMP_")


@click.command()
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
        facts = _examine_machine()
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    lines = {name: text or "not installed" for name, text in facts["versions"].items()}
    lines["system"] = facts["system"]
    for name, trouble in facts["engines"].items():
        lines[f"engine {name}"] = f"no: {trouble}" if trouble else "yes"
    fast_path_trouble = facts["native_look"]
    lines["steps in one call"] = f"no: {fast_path_trouble}" if fast_path_trouble else "yes"
    lines["threads of torch"] = f"{facts['threads']} ({facts['cores']} cores)"
    lines["threads of a step"] = str(facts["threads_of_a_step"]["number"])
    if reason := facts["threads_of_a_step"]["trouble"]:
        lines["threads of a step"] += f": {reason}"
    lines["processor"] = _describe_processor(facts["processor"])
    kernels = facts["kernels"]
    storage = f"not kept: {kernels['trouble']}" if kernels["trouble"] else "private, can be written"
    lines["kernels"] = f"{kernels['folder']} ({storage}; {kernels['files']} there)"
    gpus = Counter(f"{gpu['name']}, {gpu['architecture']}, {gpu['steps']}" for gpu in facts["gpus"])
    lines["GPUs"] = "; ".join(f"{count} x {name}" for name, count in gpus.items()) or "none"
    settings = (f"{name}={value}" for name, value in facts["environment"].items())
    lines["environment"] = " ".join(settings) or "no variables that matter"
    width = max(map(len, lines))
    for name, text in lines.items():
        click.echo(f"{name:{width}}  {escape_text(text)}")


def _examine_machine() -> dict[str, Any]:
    own_versions = {"thalweg": __version__, "python": platform.python_version()}
    return {
        "versions": {**own_versions, **{name: _version_of(name) for name in _PACKAGES}},
        "system": _describe_system(),
        "engines": {"reference": "", "cpu": _try_step(), "cuda": why_not_automatic()},
        "native_look": guard_table.find_obstacle(),
        "threads": torch.get_num_threads(),
        "cores": usable_cores(),
        "threads_of_a_step": _threads_of_a_step(),
        "processor": _processor(),
        "kernels": _kernels_folder(),
        "gpus": _describe_gpus(),
        "environment": {
            name: value for name, value in sorted(os.environ.items()) if _VARIABLES.match(name)
        },
    }


def _describe_system() -> str:
    name, libc = f"{platform.system()} {platform.release()}", " ".join(platform.libc_ver())
    return ", ".join(filter(None, (name, platform.machine(), libc.strip())))


def _try_step() -> str:
    """Take a CPU step; return the reason of a failure, or "" if the bits are right."""

    def take_step(name: EngineName) -> torch.Tensor:
        linspace = partial(torch.linspace, steps=1000, dtype=torch.float32, device="cpu")
        param = torch.nn.Parameter(linspace(-1, 1))
        param.grad = linspace(-2, 3)
        with engine(name):
            optim.AdamW([param], lr=0.01).step()
        return param.detach()

    with warnings.catch_warnings():
        # `_kernels_folder` reports warnings about the folder for kernels.
        warnings.simplefilter("ignore")
        try:
            has_same_bits = torch.equal(take_step("cpu"), take_step("reference"))
        # LLVM may raise any exception.
        except Exception as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return "" if has_same_bits else "a step has other bits than the reference engine's"


def _threads_of_a_step() -> dict[str, object]:
    """Return {"number": threads of a CPU step, "trouble": why only one, or empty}."""
    with warnings.catch_warnings():
        # The returned "trouble" says the same as the warning.
        warnings.simplefilter("ignore")
        has_gomp = openmp.gomp_parallel() is not None
    if has_gomp or openmp.team_size() == 1:
        return {"number": openmp.team_size(), "trouble": ""}
    return {"number": 1, "trouble": "the OpenMP library of torch has no GOMP_parallel"}


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> dict[str, object]:
    """Return {"name": ...} with the processor's tuning, or with "trouble" if not supported."""
    name = machine_code.processor()
    try:
        return {"name": name, **machine_code.tuning()._asdict()}
    except InvalidArgumentError as error:
        return {"name": name, "trouble": str(error)}


def _describe_processor(processor: dict[str, object]) -> str:
    if "trouble" in processor:
        return f"{processor['name']}: {processor['trouble']}"
    bytes_ahead = processor["prefetch"]
    prefetching = f"prefetches {bytes_ahead:,} bytes ahead" if bytes_ahead else "no prefetches"
    return (
        f"{processor['name']}: {prefetching}, vectors of at most {processor['vectors']}"
        f" bits, one thread below {processor['serial']:,} elements (by {processor['measured']})"
    )


def _describe_gpus() -> list[dict[str, str]]:
    """Return {"name", "architecture", "steps"} of each GPU; "steps" describes the kernels."""
    gpus: list[dict[str, str]] = []
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        architecture = driver.of_torch().describe_device(index)
        is_tried = torch.cuda.get_device_capability(index) >= (8, 0)
        steps = "Triton kernels" + ", never run on this capability" * (not is_tried)
        if not takes_device(device, "auto"):
            steps = f"torch functions: {why_unfused(device)}"
        name = torch.cuda.get_device_name(index)
        gpus.append({"name": name, "architecture": architecture, "steps": steps})
    for kind in ("mps", "xpu"):
        if torch.get_device_module(kind).is_available():
            gpus.append({"name": kind, "architecture": "no kernels", "steps": "torch functions"})
    return gpus


def _kernels_folder() -> dict[str, object]:
    """Return {"folder": path, "trouble": text, "files": number of kernels}.

    "trouble" is the reason why kernels cannot be saved, or "".
    """
    folder, trouble = str(kernel_cache.kernels_folder()), ""
    if not private_directory.AVAILABLE:
        trouble = "who may write to a folder cannot be seen on this system"
    else:
        with warnings.catch_warnings(record=True) as caught, ExitStack() as stack:
            warnings.simplefilter("always")
            try:
                descriptor = private_directory.open_folder(stack, folder)
                name = f"doctor.{os.urandom(8).hex()}"
                private_directory.write_file(descriptor, name, b"")
                os.unlink(name, dir_fd=descriptor)
            except OSError as error:
                trouble = str(error)
        # A warning means that a fallback folder is in use, as this one may belong to another user.
        trouble = trouble or " ".join(str(warning.message) for warning in caught)
    try:
        count = sum(name.endswith(".o") for name in os.listdir(folder))
    except OSError:
        count = 0
    return {"folder": folder, "trouble": trouble, "files": count}
