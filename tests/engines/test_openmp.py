"""Search for torch's OpenMP threads, and the warning if there are none."""

from __future__ import annotations

import _ctypes
import ctypes
import sys
from collections.abc import Callable

import pytest
import torch

import fresh_process
from thalweg import PerformanceWarning, optim
from thalweg._engines.cpu import openmp


@pytest.mark.skipif(sys.platform != "linux", reason="torch's OpenMP library is GNU's on Linux")
def test_runtime_is_found_without_proc_maps() -> None:
    program = """
import builtins, ctypes, re
real = builtins.open
def refused(file, *args, **keywords):
    if file == "/proc/self/maps":
        raise FileNotFoundError(file)
    return real(file, *args, **keywords)
builtins.open = refused
def torch_is_the_systems(path):
    import pathlib, torch
    return "dist-packages" in torch.__file__ and re.search(r"^/usr/lib/.*/libgomp\\.so", path)
from thalweg._engines.cpu import openmp as team
address = ctypes.cast(team.gomp_parallel(), ctypes.c_void_p).value
assert address == team.parallel_address() != 0
lines = [line.split() for line in real("/proc/self/maps")]
(path,) = {
    line[-1] for line in lines for low, high in [line[0].split("-")]
    if int(low, 16) <= address < int(high, 16)
}
# Torch's own, or the system's where torch is the system's.
assert re.search("torch.*lib(gomp|iomp5|omp)", path) or torch_is_the_systems(path), path
"""
    process = fresh_process.run(program)
    assert process.returncode == 0, process.stderr


def test_missing_openmp_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "_find_runtime", lambda: None)
    monkeypatch.setattr(openmp, "team_size", lambda: 4)
    openmp.gomp_parallel.cache_clear()
    try:
        with pytest.warns(PerformanceWarning, match="on one thread and not on 4: the OpenMP"):
            assert openmp.gomp_parallel() is None
        assert openmp.gomp_parallel() is None  # a second warning would be an error
        calls: list[int] = []
        function = openmp.ENTRY(calls.append)
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        openmp.call_on_team(address, 7, 4)()
        assert calls == [7]
    finally:
        openmp.gomp_parallel.cache_clear()


def without_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where a library that others are linked to is no part of a module."""

    def refuse(path: str) -> None:
        raise OSError(126, "The specified module could not be found", path)

    monkeypatch.setattr(openmp.ctypes, "CDLL", refuse)


def without_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, where torch has LLVM's OpenMP library: a module that knows no such symbol."""
    monkeypatch.setattr(torch._C, "__file__", _ctypes.__file__)


@pytest.mark.parametrize("simulate", [without_a_module, without_the_function])
def test_steps_run_on_a_simulated_other_system(
    simulate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openmp, "team_size", lambda: 4)
    size = 200_000  # more than one thread takes alone
    params = [torch.nn.Parameter(torch.linspace(-1, 1, size)) for _ in range(2)]
    for param in params:
        param.grad = torch.linspace(-2, 3, size)
    twin = optim.AdamW(params[1:])
    for _ in range(3):
        twin.step()
    caches = openmp._find_runtime, openmp.gomp_parallel
    for cache in caches:
        cache.cache_clear()
    try:
        with monkeypatch.context() as simulated:
            simulate(simulated)
            optimizer = optim.AdamW(params[:1])
            with pytest.warns(PerformanceWarning, match="on one thread and not on 4"):
                optimizer.step()
            for _ in range(2):  # it is told once: a second warning would be an error
                optimizer.step()
            assert openmp.parallel_address() == 0
    finally:
        for cache in caches:
            cache.cache_clear()
    assert torch.equal(*params)
