"""Count the causal language models of transformers for which `optim.matrix_layouts` decides.

    python tools/model_layouts.py [MODEL_TYPE ...] [--show]

Each model is built on the meta device from its default config, with two layers. Several default
configs lack a value that their model needs; `FIXED` has it. The command prints a line for each
model that is rejected, and the number of the others; `--show` prints the decisions for matrices.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from thalweg import optim
from thalweg.errors import InvalidArgumentError

LAYER_COUNTS = [
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "n_layers",
    "decoder_layers",
    "encoder_layers",
    "num_blocks",
]
FIXED: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 48},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"]},
    "reformer": {"is_decoder": True},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"], "hybrid_layer_ids": [1]},
}


def config_classes() -> dict[str, Any]:
    """Return the config class of each causal language model by the model's type."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    return {kind.model_type: kind for kind in MODEL_FOR_CAUSAL_LM_MAPPING}


def build(kind: Any) -> Any:
    """Return a model of a config class, with two layers, on the meta device."""
    from transformers import AutoModelForCausalLM

    config = kind()
    for part in (config, *(x for x in vars(config).values() if hasattr(x, "to_diff_dict"))):
        for name in LAYER_COUNTS:
            if isinstance(getattr(part, name, None), int):
                try:
                    setattr(part, name, 2)
                except Exception:
                    continue
    for name, value in FIXED.get(kind.model_type, {}).items():
        setattr(config, name, value)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def decisions(model: Any) -> dict[str, str]:
    """Return the layout of each matrix, and "AdamW" for others, once for equal names and texts.

    Names have `*` in place of the numbers of layers.
    """
    texts: dict[str, str] = {}
    for choice in optim.matrix_layouts(model):
        if len(choice.shape) > 1:
            name = re.sub(r"\.\d+(?=\.)", ".*", choice.name)
            texts[name] = str(choice.layout or "AdamW")
    return texts


def main(argv: list[str]) -> int:
    """Print the models that are rejected, and counts; return 0."""
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model_types", nargs="*")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args(argv)
    counts = {"decided": 0, "rejected": 0, "not built": 0}
    begin = time.process_time()
    for model_type, result in _results(options.model_types):
        counts[result if isinstance(result, str) else "decided"] += 1
        if not isinstance(result, str) and options.show:
            for name, text in result.items():
                _write(f"{model_type:24} {text:40} {name}")
    _write(f"{counts} {time.process_time() - begin:.0f} CPU s")
    return 0


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _results(model_types: list[str]) -> Iterator[tuple[str, dict[str, str] | str]]:
    for model_type, kind in config_classes().items():
        if model_types and model_type not in model_types:
            continue
        try:
            model = build(kind)
        except Exception as error:
            _write(f"not built {model_type}: {type(error).__name__}: {error}"[:120])
            yield model_type, "not built"
            continue
        try:
            yield model_type, decisions(model)
        except InvalidArgumentError as error:
            _write(f"rejected {model_type}: {error}")
            yield model_type, "rejected"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
