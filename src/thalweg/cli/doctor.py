"""`thalweg doctor`: what is installed here, and which engines can run."""

from __future__ import annotations

import json
import os
import platform
import warnings
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from thalweg.cli.escaped import escape_text
from thalweg.errors import InvalidArgumentError

_PACKAGES = ("torch", "llvmlite", "triton")


@click.command(short_help="Show versions, engines, devices, and where kernels are kept.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def doctor(as_json: bool) -> None:
    """Show versions, engines, devices, and where kernels are kept.

    An engine that is not there is told with the reason; the exit status is 0 all the same.

    \b
    Examples:
      thalweg doctor
      thalweg doctor --json
    """
    found = _examine_machine()
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    lines = {name: text or "not installed" for name, text in found["versions"].items()}
    for name, trouble in found["engines"].items():
        lines[f"engine {name}"] = f"no: {trouble}" if trouble else "yes"
    look = found["native_look"]
    lines["steps in one call"] = f"no: {look}" if look else "yes"
    lines["threads of torch"] = str(found["threads"])
    lines["threads of a step"] = str(found["threads_of_a_step"]["number"])
    if why := found["threads_of_a_step"]["trouble"]:
        lines["threads of a step"] += f": {why}"
    lines["processor"] = _suits(found["processor"])
    kernels = found["kernels"]
    kept = f"not kept: {kernels['trouble']}" if kernels["trouble"] else "private, can be written"
    lines["kernels"] = f"{kernels['folder']} ({kept})"
    for number, gpu in enumerate(found["gpus"]):
        lines[f"GPU {number}"] = f"{gpu['name']}, capability {gpu['capability']}"
    width = max(map(len, lines))
    for name, text in lines.items():
        click.echo(f"{name:{width}}  {escape_text(text)}")


def _examine_machine() -> dict[str, Any]:
    import torch

    from thalweg.engines.cpu import snapshot
    from thalweg.engines.cuda.available import why_unavailable
    from thalweg.version import __version__

    own = {"thalweg": __version__, "python": platform.python_version()}
    return {
        "versions": {**own, **{name: _version_of(name) for name in _PACKAGES}},
        "engines": {"reference": "", "cpu": "", "cuda": why_unavailable()},
        "native_look": snapshot.trouble(),
        "threads": torch.get_num_threads(),
        "threads_of_a_step": _threads_of_a_step(),
        "processor": _processor(),
        "kernels": _kernels_folder(),
        "gpus": [_describe_gpu(number) for number in range(torch.cuda.device_count())],
    }


def _threads_of_a_step() -> dict[str, object]:
    """How many threads a step on the CPU has, and why it is one where torch has several."""
    from thalweg.engines.cpu import team

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is told here
        is_there = team.gomp_parallel() is not None
    if is_there or team.team_size() == 1:
        return {"number": team.team_size(), "trouble": ""}
    return {"number": 1, "trouble": "the OpenMP library of torch was not found"}


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> dict[str, object]:
    """What kernels are made for, and how, or why they cannot be made."""
    from thalweg.engines.cpu import machine_code

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


def _kernels_folder() -> dict[str, str]:
    """The folder of compiled kernels, and why none can be kept there; empty if they can."""
    from thalweg.engines.cpu import private, store

    folder, trouble = str(store.kernels_folder()), ""
    if not private.AVAILABLE:
        trouble = "who may write to a folder cannot be seen on this system"
    else:
        with warnings.catch_warnings(record=True) as said, ExitStack() as stack:
            warnings.simplefilter("always")
            try:
                kept = private.open_folder(stack, folder)
                name = f"doctor.{os.urandom(8).hex()}"
                private.write_file(kept, name, b"")
                os.unlink(name, dir_fd=kept)
            except OSError as error:
                trouble = str(error)
        # A folder beside it is used where this one may be another user's.
        trouble = trouble or " ".join(str(each.message) for each in said)
    return {"folder": folder, "trouble": trouble}
