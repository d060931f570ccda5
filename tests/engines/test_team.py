"""Where steps find torch's threads, and what is said where they find none."""

from __future__ import annotations

import ctypes
import sys

import pytest

import fresh
from thalweg import PerformanceWarning
from thalweg.engines.cpu import team


@pytest.mark.skipif(sys.platform != "linux", reason="torch's OpenMP library is GNU's on Linux")
def test_the_runtime_is_found_without_a_map_of_memory() -> None:
    program = """
import builtins, ctypes, re
real = builtins.open
def refused(file, *args, **keywords):
    if file == "/proc/self/maps":
        raise FileNotFoundError(file)
    return real(file, *args, **keywords)
builtins.open = refused
from thalweg.engines.cpu import team
address = ctypes.cast(team.gomp_parallel(), ctypes.c_void_p).value
assert address == team.parallel_address() != 0
lines = [line.split() for line in real("/proc/self/maps")]
(path,) = {
    line[-1] for line in lines for low, high in [line[0].split("-")]
    if int(low, 16) <= address < int(high, 16)
}
assert re.search("torch.*lib(gomp|iomp5|omp)", path), path
"""
    done = fresh.run(program)
    assert done.returncode == 0, done.stderr


def test_one_thread_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "_find_runtime", lambda: None)
    monkeypatch.setattr(team, "team_size", lambda: 4)
    team.gomp_parallel.cache_clear()
    try:
        with pytest.warns(PerformanceWarning, match="on one thread and not on 4: the OpenMP"):
            assert team.gomp_parallel() is None
        assert team.gomp_parallel() is None  # a second warning would be an error
        called: list[int] = []
        function = team.ENTRY(called.append)
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        team.run_on_team(address, 7, 4)
        assert called == [7]
    finally:
        team.gomp_parallel.cache_clear()
