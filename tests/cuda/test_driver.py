"""Kernel launches through stand-ins for the drivers of CUDA and HIP; needs no GPU."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_uint, c_void_p
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from thalweg._engines.cuda import driver

HANDLE, STREAM, CONTEXT, CODE, DEVICE, LAST_DEVICE = 11, 12, 13, b"\x7fELF", 1, 0
START = CFUNCTYPE(c_int, c_void_p, *[c_uint] * 7, c_void_p, POINTER(c_void_p), c_void_p)
LOAD = CFUNCTYPE(c_int, POINTER(c_void_p), c_char_p)
FIND = CFUNCTYPE(c_int, POINTER(c_void_p), c_void_p, c_char_p)
DESCRIBE = CFUNCTYPE(c_int, c_int, POINTER(c_char_p))
TEXTS = {1: b"invalid value", 98: b"invalid device function"}


class Library(SimpleNamespace):
    """Functions of a vendor's library that record their calls.

    Attributes:
        calls: Names of functions with their arguments.
        codes: Results of functions that fail, by name.
    """

    def __init__(self, used_driver):
        super().__init__(calls=[], codes={})
        names = used_driver.functions
        for name, kind in zip(names, (DESCRIBE, LOAD, FIND, START), strict=True):
            setattr(self, name, kind(getattr(self, f"_{kind_names[kind]}")(name)))

        def current(name):
            return lambda *arguments: self._record(name, *(a.value for a in arguments))

        for name in ("cuCtxPushCurrent_v2", "hipSetDevice"):
            setattr(self, name, current(name))
        self.cuCtxPopCurrent_v2 = lambda _: self._record("cuCtxPopCurrent_v2")

    def _record(self, name, *arguments):
        self.calls.append((name, *arguments))
        return self.codes.get(name, 0)

    def _describe(self, name):
        def describe(code, text):
            text[0] = TEXTS.get(code)
            return 0

        return describe

    def _load(self, name):
        return lambda module, code: self._record(name, code)

    def _find(self, name):
        def find(function, module, kernel):
            function[0] = HANDLE
            return self._record(name, kernel)

        return find

    def _start(self, name):
        def start(handle, *arguments):
            *numbers, stream, parameters, _ = arguments
            values = [c_int64.from_address(parameters[k]).value for k in range(4)]
            return self._record(name, handle, numbers, stream, values)

        return start


kind_names = {DESCRIBE: "describe", LOAD: "load", FIND: "find", START: "start"}


@pytest.fixture(params=[driver.Cuda, driver.Hip])
def library(request, monkeypatch):
    used_driver = request.param()
    library = Library(used_driver)
    monkeypatch.setattr(driver, "of_torch", lambda: used_driver)
    monkeypatch.setattr(driver, "_load_library", lambda _: library)
    monkeypatch.setattr(driver, "_find_context", lambda device: c_void_p(CONTEXT + device))
    monkeypatch.setattr(driver, "load_function", driver.load_function.__wrapped__)
    stream = SimpleNamespace(cuda_stream=STREAM, query=lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: LAST_DEVICE)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    return library


def launched(tensor, *numbers, programs=3):
    starter = driver.Starter(c_void_p(HANDLE), 64, 256, 4, DEVICE)
    return driver.Launch(starter, (programs, 2), [tensor, *numbers])


def test_a_kernel_gets_its_arguments_on_its_device(library):
    tensor = torch.zeros(3)
    launched(tensor, 17).run()
    numbers, values = [3, 2, 1, 64, 1, 1, 256], [tensor.data_ptr(), 17, 0, 0]
    enter, start, leave = library.calls
    assert start == (driver.of_torch().functions[-1], HANDLE, numbers, STREAM, values)
    assert (enter, leave) in (
        (("cuCtxPushCurrent_v2", CONTEXT + DEVICE), ("cuCtxPopCurrent_v2",)),
        (("hipSetDevice", DEVICE), ("hipSetDevice", LAST_DEVICE)),
    )


def test_a_kernel_is_loaded(library):
    assert driver.load_function(CODE, "kernel", DEVICE).value == HANDLE
    _, load, find, _ = driver.of_torch().functions
    assert library.calls == [(load, CODE), (find, b"kernel")]


@pytest.mark.parametrize(("place", "verb"), [(1, "Loading"), (2, "Finding"), (3, "Starting")])
@pytest.mark.parametrize(("code", "text"), [(98, "invalid device function"), (7, "unknown error")])
def test_errors_have_the_text_of_the_driver(library, place, verb, code, text):
    used_driver = driver.of_torch()
    library.codes[used_driver.functions[place]] = code
    message = rf"{verb} .* failed: {text} \({used_driver.title} error {code}\)"
    start = launched(torch.zeros(3)).run
    load = partial(driver.load_function, CODE, "kernel", DEVICE)
    action = start if place == 3 else load
    with pytest.raises(RuntimeError, match=message):
        action()


def test_a_launch_that_is_too_large_raises_before_it_starts(library):
    limit = driver.of_torch().most_threads
    launched(torch.zeros(3), programs=limit // 64)
    with pytest.raises(RuntimeError, match=f"at most {limit:,} threads"):
        launched(torch.zeros(3), programs=limit // 64 + 1)
    assert library.calls == []


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "99.1")
    with pytest.raises(RuntimeError, match=r"library of HIP .*libamdhip64\.so\.99"):
        _ = driver.Hip().library


def test_wavefronts_of_amd_have_64_threads():
    threads = {name: driver.warp_of(name) for name in (90, "gfx90a", "gfx942", "gfx1100")}
    assert threads == {90: 32, "gfx90a": 64, "gfx942": 64, "gfx1100": 32}


def test_calls_keep_their_arguments_alive(library):
    tensor = torch.zeros(3)
    address, tensor_ref = tensor.data_ptr(), weakref.ref(tensor)
    launch = launched(tensor, 17, 18)
    calls = launch.make_calls()
    del launch, tensor
    gc.collect()
    fillers = [(c_int64 * 4)(-1, -1, -1, -1) for _ in range(1000)]  # where freed memory was
    assert tensor_ref() is not None
    assert [call() for call in calls] == [0, 0, 0]
    assert library.calls[1][-1] == [address, 17, 18, 0]
    del calls, fillers
    gc.collect()
    assert tensor_ref() is None
