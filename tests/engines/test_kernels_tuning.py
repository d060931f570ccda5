"""Kernels follow the processor, and compute the same bits on each."""

from __future__ import annotations

import pytest

import fresh_process
from case_batches import many
from thalweg._engines.codegen import Update
from thalweg._engines.cpu import codegen, launch, machine_code
from thalweg._engines.cpu.tuning import Tuning, tuning_of
from thalweg.errors import InvalidArgumentError
from thalweg.rules.adam import ADAM

INTEL = Tuning()


@pytest.mark.parametrize(
    ("processor", "prefetch"),
    [("icelake-server", 2048), ("znver4", 0), ("apple-m1", 2048), ("generic", 2048)],
)
def test_processor_name_selects_the_tuning(processor, prefetch):
    assert tuning_of(processor).prefetch == prefetch


SETTINGS_REQUESTED = {
    "prefetch=0": INTEL._replace(prefetch=0),
    "vectors=256, serial=7": INTEL._replace(vectors=256, serial=7),
}


@many("setting", SETTINGS_REQUESTED)
def test_requested_settings_come_first(setting):
    tuning = tuning_of("icelake-server", setting)
    assert tuning == SETTINGS_REQUESTED[setting]._replace(measured="THALWEG_TUNING")


@many("setting", ["prefetch", "prefetch=-1", "vectors=128", "distance=1", "serial=1,", "serial=²"])
def test_bad_settings_raise(setting):
    with pytest.raises(InvalidArgumentError, match=r"THALWEG_TUNING has .* prefetch=BYTES"):
        tuning_of("icelake-server", setting)


@pytest.mark.parametrize("distance", [0, 512])
def test_kernels_prefetch_the_tuned_distance(monkeypatch, distance):
    monkeypatch.setattr(codegen, "tuning", lambda: INTEL._replace(prefetch=distance))
    source = codegen.generate_update(Update(ADAM.update, ("float32",) * 4), "float32").source
    assert ("prefetch(" in source) == bool(distance)
    assert f"begin * 4 + {distance}" in source or not distance


def test_small_work_is_done_by_one_thread(monkeypatch, threads):
    threads(2)
    monkeypatch.setattr(launch, "tuning", lambda: INTEL._replace(serial=100))
    assert [launch.threads_for(9, elements) for elements in (99, 100)] == [1, 2]


TRAINING = """
import sys, torch
from thalweg import optim
torch.set_num_threads(2)
torch.manual_seed(0)
made = []
for name in ("Adam", "RMSprop", "Adagrad", "SGD", "NAdam"):
    for shape, dtype in (((70, 1000), "float32"), ((33,), "float64"), ((513,), "bfloat16")):
        param = torch.nn.Parameter(torch.randn(shape, dtype=getattr(torch, dtype)))
        optimizer = getattr(optim, name)([param], lr=0.01, clip_grad_norm=1.0)
        for _ in range(2):
            param.grad = torch.randn_like(param)
            optimizer.step()
        made.append(param.detach().double())
sys.stdout.write(torch.cat([each.flatten() for each in made]).numpy().tobytes().hex())
"""
SETTINGS = ["prefetch=0", "prefetch=64", "vectors=256", "serial=0", "serial=1000000"]


@pytest.mark.slow
def test_tuning_does_not_change_bits(tmp_path):
    folder = tmp_path / "kernels"

    def run(setting):
        environment = {"THALWEG_CACHE_DIR": str(tmp_path), "THALWEG_TUNING": setting}
        process = fresh_process.run(TRAINING, **environment)
        assert process.returncode == 0, process.stderr
        return process.stdout, {file.name for file in folder.iterdir()}

    first_output, known_files = run("")
    assert first_output
    for setting in SETTINGS:
        output, files = run(setting)
        assert output == first_output, setting
        # Kernels that are other code are other files.
        has_wide = "+avx512f" in machine_code.target_digest() or not setting.startswith("vectors")
        tuning, default = (tuning_of(machine_code.processor(), name)[:2] for name in (setting, ""))
        assert (files > known_files) == (has_wide and tuning != default), setting
        known_files = files


def test_bad_settings_raise_at_the_first_step():
    process = fresh_process.run(TRAINING, THALWEG_TUNING="prefetch=far")
    assert "InvalidArgumentError: THALWEG_TUNING has 'prefetch=far'" in process.stderr
