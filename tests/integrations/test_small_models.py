"""`optim.Muon.for_model` on small models: each block moves like a parameter of its own."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from thalweg import optim

Split = Callable[[Tensor], list[Tensor]]


def rows(*sizes: int) -> Split:
    return lambda x: [*x.split(sizes)]


def heads(count: int, *sizes: int) -> Split:
    """Return the blocks of rows that repeat in each of some heads."""

    def split(x: Tensor) -> list[Tensor]:
        parts = x.view(count, sum(sizes), x.shape[-1]).split(sizes, 1)
        return [part.flatten(0, 1) for part in parts]

    return split


def experts(split: Split) -> Split:
    return lambda x: [part for expert in x for part in split(expert)]


def whole(x: Tensor) -> list[Tensor]:
    return [x]


def turned(x: Tensor) -> list[Tensor]:
    return [x.T]


SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 50}
GROUPED = {**SIZES, "num_key_value_heads": 2, "intermediate_size": 48, "head_dim": 8}
EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 2}
LATENT = {
    "moe_intermediate_size": 16, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1,
    "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 0, "q_lora_rank": 12,
    "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6,
    "num_key_value_heads": 4, "intermediate_size": 48,
}  # fmt: skip
GPT2 = {"n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": 50}
GATE_UP = {"*.experts.gate_up_proj": experts(rows(48, 48)), "*.experts.down_proj": experts(whole)}
# The config, and the matrices of parameters by pattern; other matrices are whole parameters.
MODELS: dict[str, tuple[dict[str, Any], dict[str, Split]]] = {
    "llama": ({**GROUPED, "tie_word_embeddings": True}, {}),
    "gpt2": (
        GPT2,
        {
            "*.c_attn.weight": lambda x: [part.T for part in x.chunk(3, 1)],
            "*.c_proj.weight": turned,
            "*.c_fc.weight": turned,
        },
    ),
    "gpt_neox": (
        {**SIZES, "intermediate_size": 48},
        {"*.query_key_value.weight": heads(4, 8, 8, 8)},
    ),
    "gpt_bigcode": (GPT2, {"*.c_attn.weight": rows(32, 8, 8)}),
    "mpt": (
        {"d_model": 32, "n_layers": 1, "n_heads": 4, "vocab_size": 50},
        {"*.Wqkv.weight": rows(32, 32, 32)},
    ),
    "phi3": (
        {**GROUPED, "pad_token_id": 0},
        {"*.qkv_proj.weight": rows(32, 16, 16), "*.gate_up_proj.weight": rows(48, 48)},
    ),
    "mixtral": ({**GROUPED, **EXPERTS}, GATE_UP),
    "llama4_text": (
        {**GROUPED, **EXPERTS, "intermediate_size_mlp": 48, "num_experts_per_tok": 1},
        {
            "*.experts.gate_up_proj": experts(lambda x: [part.T for part in x.chunk(2, 1)]),
            "*.experts.down_proj": experts(turned),
        },
    ),
    "gpt_oss": (
        {**GROUPED, **EXPERTS},
        {
            "*.experts.gate_up_proj": experts(lambda x: [x[:, ::2].T, x[:, 1::2].T]),
            "*.experts.down_proj": experts(turned),
        },
    ),
    "deepseek_v3": (
        {**SIZES, **LATENT},
        {
            "*.kv_a_proj_with_mqa.weight": rows(16, 4),
            "*.kv_b_proj.weight": heads(4, 8, 6),
            "*.experts.gate_up_proj": experts(rows(16, 16)),
            "*.experts.down_proj": experts(whole),
        },
    ),
}


def make_model(model_type: str) -> nn.Module:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.AutoConfig.for_model(model_type, **MODELS[model_type][0])
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", MODELS)
def test_blocks_of_small_models_move_like_parameters(model_type: str) -> None:
    model, splits = make_model(model_type), MODELS[model_type][1]
    params = dict(model.named_parameters())
    optimizer = optim.Muon.for_model(model, lr=0.02, adamw={"lr": 3e-4})
    names = [x.name for x in optim.matrix_layouts(model) if x.kind == "matrix"]
    splits_by_name = {
        name: next((split for key, split in splits.items() if fnmatchcase(name, key)), whole)
        for name in names
    }
    unused = [key for key in splits if not any(fnmatchcase(name, key) for name in names)]
    assert names
    assert not unused
    parts = {
        name: [nn.Parameter(part.clone().contiguous()) for part in split(params[name].detach())]
        for name, split in splits_by_name.items()
    }
    block_optimizer = optim.Muon([part for blocks in parts.values() for part in blocks], lr=0.02)
    for _ in range(2):
        for name, param in params.items():
            param.grad = torch.randn(param.shape)
            blocks = splits_by_name[name](param.grad) if name in parts else []
            for part, grad in zip(parts.get(name, []), blocks, strict=True):
                part.grad = grad.contiguous()
        optimizer.step()
        block_optimizer.step()
    for name, split in splits_by_name.items():
        assert all(map(torch.equal, split(params[name].detach()), parts[name])), name
