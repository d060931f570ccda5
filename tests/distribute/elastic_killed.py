"""Train with rank 1 killed once; `test_distribute_four_ranks.py` runs it on each rank."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from typing import Any

from thalweg.keras.optimizers import Adam

KILL_STEP = 11  # the step, between two checkpoints


def main() -> None:
    real, steps = Adam.apply_gradients, []
    is_victim = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1"

    def apply_gradients(self: Adam, *args: Any, **options: Any) -> Any:
        steps.append(args)
        if is_victim and len(steps) == KILL_STEP:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *args, **options)

    Adam.apply_gradients = apply_gradients
    runpy.run_path(sys.argv.pop(1), run_name="__main__")


if __name__ == "__main__":
    main()
