"""`untraced`: what `torch.compile` calls as it is, and does not look into.

A step reads and writes memory by its address, which no traced graph could do. So a compiled
function steps out for it (one graph break), and in it nothing is compiled but what was compiled by
itself, such as a loss. `torch.compiler.disable` says the same, but imports Dynamo at once, which
takes longer than all else; the marks here are those that it leaves.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

from torch._C._dynamo import eval_frame as _frames  # pyright: ignore
from torch._compile import _disable_dynamo  # pyright: ignore

_F = TypeVar("_F", bound=Callable[..., Any])
_dynamo: Any = _frames
_MARK = _disable_dynamo(lambda: None).__code__  # of all functions that torch marks
_REASON = "thalweg reads and writes the memory of tensors, which cannot be traced"


def untraced(function: _F, reason: str = _REASON) -> _F:
    """Have `torch.compile` call a function as it is; nothing changes where nobody compiles.

    Args:
        function: The function.
        reason: What a graph is told that would have to leave for it.
    """
    made: Any = function
    if hasattr(_dynamo, "set_code_exec_strategy"):
        skip = _dynamo._FrameAction.SKIP
        strategy = _dynamo._FrameExecStrategy(skip, skip)
        _dynamo.set_code_exec_strategy(made.__code__, strategy)
    else:  # torch before 2.8
        made = _outside(function)
    made._torchdynamo_disable = True  # seen by the tracer of the function that calls it
    made._torchdynamo_disable_msg = reason
    return cast("_F", made)


def without_dynamo(method: Callable[..., object]) -> Callable[..., Any]:
    """Return the function below torch's mark against Dynamo, where no compilation runs.

    The mark imports Dynamo when it is first called, which takes more than a second: longer than all
    that an optimizer does in a short training.

    Args:
        method: A function of torch's, or a bound method.
    """
    own = getattr(method, "__func__", method)
    # A wrapper of somebody else's, over torch's mark or without it, is called.
    if getattr(own, "__code__", None) is not _MARK or "torch._dynamo" in sys.modules:
        return method
    inner: Any = own.__wrapped__
    return functools.partial(inner, *([method.__self__] if own is not method else []))


def _outside(function: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(function)
    def outside(*args: object, **kwargs: object) -> Any:
        before = _dynamo.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            _dynamo.set_eval_frame(before)

    return outside
