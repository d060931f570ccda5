"""Record the multipliers of `MuAdam` and `MuSGD` of mup in tests/goldens/widths.json.

    pip install --no-deps pyyaml "mup @ git+https://github.com/microsoft/mup@19814971934e"
    PYTHONPATH=tests/optim python tools/record_widths.py

The shapes are those of tests/optim/test_optim_width_scale.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mup
import torch

from width_models import DELTA, WIDTHS, model

RATE, DECAY = 0.3, 0.7


def main() -> None:
    """Write the rates and decays of all parameters by rule and width."""
    scales: dict[str, Any] = {}
    for width in WIDTHS:
        for has_delta in (False, True):
            net = model(*width)
            base, delta = model(*WIDTHS[0]), model(*DELTA) if has_delta else None
            mup.set_base_shapes(net, base, delta=delta, rescale_params=False, do_assert=False)
            names = {param: name for name, param in net.named_parameters()}
            for rule, make in (("AdamW", mup.MuAdamW), ("SGD", mup.MuSGD)):
                optimizer: torch.optim.Optimizer = make(
                    net.parameters(), lr=RATE, weight_decay=DECAY
                )
                scales[f"{rule} {width} {has_delta}"] = {
                    names[param]: [group["lr"], group["weight_decay"]]
                    for group in optimizer.param_groups
                    for param in group["params"]
                }
    path = Path(__file__).parent.parent / "tests" / "goldens" / "widths.json"
    lines = [f"{json.dumps(key)}: {json.dumps(scales[key])}" for key in sorted(scales)]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
