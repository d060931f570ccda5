"""`optim.matrix_layouts` for models of transformers, timm and PEFT."""

from __future__ import annotations

import json
import runpy
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch

from thalweg import optim

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "model_layouts.py"))
# Layouts by the end of a parameter's name, read from the source of each model.
EXPECTED: dict[str, dict[str, str]] = json.loads(
    Path(__file__).with_name("model_layouts.json").read_text()
)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", EXPECTED)
def test_layouts_of_a_model_are_those_of_its_source(model_type: str) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    kinds = TOOL["config_classes"]()
    if model_type not in kinds:
        pytest.skip(f"this release of transformers has no {model_type}")
    found = TOOL["decisions"](TOOL["build"](kinds[model_type]))
    for end, layout in EXPECTED[model_type].items():
        texts = {text for name, text in found.items() if fnmatchcase(name, f"*{end}")}
        assert texts == {layout}, end


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_layouts_of_adapters_are_those_of_their_base_weights() -> None:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    peft: Any = pytest.importorskip("peft", reason="PEFT is not installed")
    sizes = {"n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 99}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    lora = peft.LoraConfig(target_modules=["c_attn", "c_proj"], r=4, fan_in_fan_out=True)
    model = peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora)
    choices = optim.matrix_layouts(model)
    found = {".".join(x.name.split(".")[-4:]): str(x.layout) for x in choices}
    assert found["c_attn.lora_A.default.weight"] == "rows=1"
    assert found["c_attn.lora_B.default.weight"] == "rows=3"
    assert found["c_proj.lora_B.default.weight"] == "rows=1"


@pytest.mark.slow
def test_layouts_of_a_vision_transformer_of_timm() -> None:
    timm: Any = pytest.importorskip("timm", reason="timm is not installed")
    with torch.device("meta"):
        model = timm.create_model("vit_tiny_patch16_224", depth=1)
    found = {x.name: str(x.layout or "AdamW") for x in optim.matrix_layouts(model)}
    assert found["blocks.0.attn.qkv.weight"] == "rows=3"
    assert found["blocks.0.attn.proj.weight"] == "rows=1"
    assert found["patch_embed.proj.weight"] == "rows=1"
    assert found["pos_embed"] == found["cls_token"] == found["head.weight"] == "AdamW"
