"""Trainers that the extra `integrations` lacks; CONTRIBUTING.md has the commands that install them.

Each training runs in a process of its own, for it takes seconds to import and keeps global state.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from fresh_process import run
from thalweg.integrations import versions

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("trainer_cases.py")
PACKAGES = ("deepspeed", "peft", "ray", "torchtitan", "trl")
EXACT = {
    "peft": {
        "rules": {
            f"base_model.model.{layer}.lora_{side}.default.weight": True
            for layer in (0, 2)
            for side in "AB"
        },
        "taken": True,
    },
    "ray": {"is_equal": True},
    "torchtitan": {"is_unmoved": True, "has_moved": True, "is_resumed": True},
    "trl": {"optimizer": "thalweg, 4", "has_moved": True},
}
# Rules that reduce over parameters; those that reduce over all of them raise in ZeRO-3 alone.
REDUCING = {"Adafactor", "LAMB", "Muon", "trust_ratio"}
COUNTING = {"accumulated", "clipped", "Prodigy"}


def report_of(package: str, folder: Path) -> Any:
    """Return the report of a training, or skip if the package is not installed."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    process = run(SCRIPT, package, str(folder), timeout=280)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.parametrize("package", EXACT)
def test_training_equals_the_reference(package: str, tmp_path: Path) -> None:
    report = report_of(package, tmp_path)
    assert report.items() >= EXACT[package].items()
    assert report.get("distance", 0.0) <= 1e-6


@pytest.mark.timeout(600)
def test_deepspeed_steps_elementwise_rules_and_rejects_others(tmp_path: Path) -> None:
    for title, outcomes in report_of("deepspeed", tmp_path).items():
        stage = int(title[-1])
        errors = {name for name, outcome in outcomes.items() if isinstance(outcome, str)}
        assert errors == {0: set[str](), 3: REDUCING | COUNTING}.get(stage, REDUCING), title
        assert all("is a flat buffer of DeepSpeed" in outcomes[name] for name in errors)
        for name in ("AdamW", "SGD"):
            expected = torch.tensor(outcomes[f"torch.{name}"])
            torch.testing.assert_close(torch.tensor(outcomes[name]), expected)


def test_other_versions_raise_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", {"lightning": "1.9.5", "torchtitan": "0.3.1"}.get)
    versions.require_version("torchtitan", "0.3")
    with pytest.raises(ImportError, match=r"lightning 2\.0 and later, and 1\.9\.5 is installed"):
        versions.require_version("lightning", "2.0")
    monkeypatch.delitem(sys.modules, "thalweg.integrations.lightning", raising=False)
    with pytest.raises(ImportError, match="pip install"):
        import thalweg.integrations.lightning  # noqa: F401
