"""The pages of `docs/with` run, each where its framework is installed."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import doc_blocks
from isolated_import import import_alone
from thalweg import optim

PAGES = Path(__file__).parents[2] / "docs" / "with"
CONFIGS = (PAGES / "configs.md").read_text()
REQUIRED_MODULES = {
    "accelerate.md": ("accelerate",),
    "configs.md": ("hydra",),
    "deepspeed.md": (),
    "hf-trainer.md": ("transformers", "accelerate"),
    "lightning.md": ("lightning", "jsonargparse"),
    "ray.md": (),
    "timm.md": ("timm",),
    "torchtitan.md": ("torchtitan",),
    "trl.md": ("trl", "peft"),
}


def test_every_integration_page_is_tested() -> None:
    assert {path.name for path in PAGES.glob("*.md")} == {*REQUIRED_MODULES}


@pytest.mark.parametrize("name", REQUIRED_MODULES)
def test_integration_page_runs(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if name == "timm.md":  # without its models, which need torchvision
        models: Any = ModuleType("timm.models")
        models.group_parameters = None
        import_alone(monkeypatch, "timm.optim", models=models)
    for package in REQUIRED_MODULES[name]:
        if package != "timm":
            pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)  # where trainers write
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the frameworks
        sessions = [*doc_blocks.sessions(PAGES / name)]
        assert sessions or not REQUIRED_MODULES[name]
        output = "".join(doc_blocks.run(session, tmp_path) for session in sessions)
    if output:
        pytest.fail(output, pytrace=False)


def test_torchtune_instantiates_a_component(monkeypatch: pytest.MonkeyPatch) -> None:
    omegaconf = pytest.importorskip("omegaconf")
    logging: Any = ModuleType("torchtune.utils._logging")
    logging.get_logger = logging.log_rank_zero = None
    utils = ModuleType("torchtune.utils")
    config = import_alone(
        monkeypatch, "torchtune.config", **{"utils": utils, "utils._logging": logging}
    )
    (block,) = re.findall(r"```yaml\n(optimizer:\n  _component_.*?)```", CONFIGS, re.DOTALL)
    model = torch.nn.Linear(2, 2)
    optimizer = config.instantiate(omegaconf.OmegaConf.create(block).optimizer, model.parameters())
    assert type(optimizer) is optim.AdamW
    assert optimizer.param_groups[0]["lr"] == 2e-5
    assert optimizer.defaults["ema_decay"] == 0.999
    assert optimizer.param_groups[0]["params"][0] is model.weight
