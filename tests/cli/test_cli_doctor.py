"""`thalweg doctor` reports available parts, and reasons for missing ones."""

from __future__ import annotations

import json
import platform
import sys
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

import thalweg
from thalweg._cli.commands import doctor
from thalweg._cli.main import main
from thalweg._engines.cpu import launch, openmp
from thalweg._engines.cuda import availability, driver
from thalweg._engines.dispatcher import engine_of


def run(*arguments):
    result = CliRunner().invoke(main, ["doctor", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("THALWEG_CACHE_DIR", str(tmp_path))
    return tmp_path / "kernels"


def test_doctor_json_has_versions_engines_and_threads(folder):
    report = json.loads(run("--json"))
    assert report["versions"]["thalweg"] == thalweg.__version__
    assert report["versions"]["python"] == platform.python_version()
    assert report["versions"]["torch"] == torch.__version__
    assert report["engines"] == {
        "reference": "",
        "cpu": "",
        "cuda": availability.why_not_automatic(),
    }
    assert report["threads"] == torch.get_num_threads()
    if sys.platform == "linux":
        assert report["threads_of_a_step"] == {"number": report["threads"], "trouble": ""}
    suffixes = [path.suffix for path in folder.iterdir()]  # of the step that was tried
    assert set(suffixes) <= {".o"}
    assert report["kernels"] == {"folder": str(folder), "trouble": "", "files": len(suffixes)}
    assert len(report["gpus"]) == torch.cuda.device_count()
    assert platform.machine() in report["system"]
    assert report["environment"]["THALWEG_CACHE_DIR"] == str(folder.parent)


def test_doctor_prints_readable_lines(folder, monkeypatch):
    monkeypatch.setattr(availability, "why_unavailable", lambda: "torch sees no GPU")
    monkeypatch.setattr(doctor, "version", lambda name: "1.2")
    assert len(run().splitlines()) <= 20
    lines = dict(line.split("  ", 1) for line in run().splitlines())
    fields = {name.strip(): text.strip() for name, text in lines.items()}
    assert fields["triton"] == "1.2"
    assert fields["engine cpu"] == "yes"
    assert fields["engine cuda"] == "no: torch sees no GPU"
    file_count = len(list(folder.iterdir()))
    assert fields["kernels"] == f"{folder} (private, can be written; {file_count} there)"


@pytest.mark.parametrize(
    ("threads", "line"),
    [(1, "1"), (4, "1: the OpenMP library of torch has no GOMP_parallel")],
)
def test_doctor_reports_single_threaded_steps(folder, monkeypatch, threads, line):
    monkeypatch.setattr(openmp, "gomp_parallel", lambda: None)
    monkeypatch.setattr(openmp, "team_size", lambda: threads)
    (threads_line,) = (text for text in run().splitlines() if text.startswith("threads of a step"))
    assert threads_line.removeprefix("threads of a step").strip() == line


def test_doctor_reports_missing_packages(folder, monkeypatch):
    monkeypatch.setattr(doctor, "_PACKAGES", ("no-such-package",))
    assert json.loads(run("--json"))["versions"]["no-such-package"] is None
    assert "not installed" in run()


def test_doctor_reports_cache_folder_writable_by_others(folder, monkeypatch):
    folder.mkdir(mode=0o755)
    folder.chmod(0o777)
    kernels = json.loads(run("--json"))["kernels"]
    assert f"{folder}-2" in kernels["trouble"]


def test_doctor_reports_relative_cache_folder(monkeypatch):
    monkeypatch.setenv("THALWEG_CACHE_DIR", "here")
    assert "not absolute" in json.loads(run("--json"))["kernels"]["trouble"]


@pytest.fixture
def one_gpu(folder, monkeypatch):
    """Return a function that simulates a GPU of a capability, or of AMD with a gfx name."""

    def simulate(architecture):
        is_amd = isinstance(architecture, str)
        monkeypatch.setattr(torch.version, "hip", "7.2.1" if is_amd else None)
        properties = SimpleNamespace(gcnArchName=f"{architecture}:sramecc+:xnack-", warp_size=64)
        capability = (9, 4) if is_amd else architecture
        replacements = {
            "device_count": 1, "get_device_name": "One",
            "get_device_capability": capability, "get_device_properties": properties,
        }  # fmt: skip
        for name, value in replacements.items():
            monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
        monkeypatch.setattr(availability, "why_unavailable", lambda: "")
        for module, name in ((availability, "_explain_unsupported"), (driver, "of_torch")):
            monkeypatch.setattr(module, name, getattr(module, name).__wrapped__)

    return simulate


@pytest.mark.parametrize(
    ("architecture", "steps", "is_automatic", "is_possible"),
    [
        ((9, 0), "Triton kernels", True, True),
        ((7, 5), "Triton kernels, never run on this capability", True, True),
        ((7, 0), "torch functions: its compute capability is 7.0, and kernels need 7.5",
         False, False),
        ("gfx942", "torch functions: kernels for AMD GPUs have been compiled, but never run;"
         " thalweg.engine('cuda') selects them", False, True),
        ("gfx1030", "torch functions: its architecture is gfx1030, and kernels need gfx90a or"
         " gfx942", False, False),
    ],
)  # fmt: skip
def test_doctor_reports_steps_by_architecture(
    architecture, steps, is_automatic, is_possible, one_gpu
):
    one_gpu(architecture)
    report = json.loads(run("--json"))
    assert [gpu["steps"] for gpu in report["gpus"]] == [steps]
    is_amd = isinstance(architecture, str)
    assert ("AMD GPUs" in report["engines"]["cuda"]) == is_amd
    shown = (
        f"{architecture}, wavefronts of 64 threads"
        if is_amd
        else "capability {}.{}".format(*architecture)
    )
    assert f"1 x One, {shown}, {steps}" in run()
    device = torch.device("cuda", 0)
    selected = [engine_of(device, name) == "cuda" for name in ("auto", "cuda", "torch")]
    assert selected == [is_automatic, is_possible, False]


def test_doctor_lists_gpus(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "One\x1b[2J")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: (9, 0))
    (gpu,) = json.loads(run("--json"))["gpus"]
    assert (gpu["name"], gpu["architecture"]) == ("One\x1b[2J", "capability 9.0")
    reason = availability.why_unavailable()
    steps = f"torch functions: {reason}" if reason else "Triton kernels"
    assert f"1 x One\\x1b[2J, capability 9.0, {steps}" in run()


def test_doctor_reports_a_failing_engine(folder, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no such\ntarget")

    monkeypatch.setattr(launch, "update_kernel", fail)
    engine = json.loads(run("--json"))["engines"]["cpu"]
    assert "no such target" in engine


def test_doctor_reports_an_engine_with_other_bits(folder, monkeypatch):
    monkeypatch.setattr(torch, "equal", lambda *_: False)
    assert "engine cpu         no: a step has other bits" in run()
