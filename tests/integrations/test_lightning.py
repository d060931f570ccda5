"""Optimizers inside of Lightning: fitted, resumed, stepped by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attribute_access import assert_known, touching, watched
from thalweg import optim
from training import OPTIMIZERS, assert_same_training, data, trained

# Attributes that Lightning 2.6 reads; `step_cache` is for inherited methods of thalweg.
ATTRIBUTES = """
    _on_after_step _on_before_step _optimizer step_cache _strategy _zero_grad_profile_name
    consolidate_state_dict defaults load_state_dict param_groups state state_dict step zero_grad
"""

# Lightning's own.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.:FutureWarning"),
]


@pytest.fixture(scope="module")
def cases() -> Any:
    pytest.importorskip("lightning", reason="Lightning is not installed")
    import lightning_cases  # takes seconds

    return lightning_cases


@pytest.mark.parametrize("kind", ["Fitted", "ByHand"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_lightning_training_equals_the_plain_loop(
    name: str, kind: str, cases: Any, tmp_path: Path
) -> None:
    make, fit, kind_of = OPTIMIZERS[name], cases.fit, getattr(cases, kind)
    expected = trained(make, data(4) * 2, clip=1.0)
    assert_same_training(fit(kind_of(make), 2, tmp_path / "whole"), expected)
    fit(kind_of(make), 1, tmp_path / "part")
    resumed = fit(kind_of(make), 2, tmp_path / "rest", tmp_path / "part" / "last.ckpt")
    assert_same_training(resumed, expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fabric_training_equals_the_plain_loop(name: str, cases: Any, tmp_path: Path) -> None:
    make = OPTIMIZERS[name]
    cases.fit_by_fabric(make, tmp_path / "part.ckpt")
    resumed = cases.fit_by_fabric(make, tmp_path / "rest.ckpt", tmp_path / "part.ckpt")
    assert_same_training(resumed, trained(make, data(4) * 2, clip=1.0))


@pytest.mark.parametrize("kind", ["Fitted", "ByHand"])
def test_lightning_uses_only_available_attributes(kind: str, cases: Any, tmp_path: Path) -> None:
    fit, kind_of = cases.fit, getattr(cases, kind)

    def make(params: Any) -> Any:
        return watched(optim.AdamW)(params, lr=0.05)

    with touching("lightning") as accessed:
        fit(kind_of(make), 1, tmp_path)
        fit(kind_of(make), 2, tmp_path, tmp_path / "last.ckpt")
    assert_known(accessed, ATTRIBUTES)


def test_diagnostics_are_logged_by_lightning(cases: Any, tmp_path: Path) -> None:
    from thalweg.integrations.lightning import LogDiagnostics

    module = cases.Fitted(lambda params: optim.AdamW(params, lr=0.05, diagnostics=4))
    logged = cases.logged_by(module, tmp_path, LogDiagnostics(["ratio", "clip"]))
    table = module.optimizers().optimizer.diagnostics
    assert table.step == 4
    assert {k: v for k, v in logged.items() if k in table.scalars()} == pytest.approx(
        table.scalars(["ratio", "clip"]), rel=1e-6
    )
    with pytest.raises(ValueError, match="columns has 'norm'"):
        LogDiagnostics(["norm"])
