"""`untraced`: functions that `torch.compile` calls without tracing.

A step reads and writes memory by address, which a traced graph cannot do. A call of an untraced
function is one graph break. In the call, only code that was compiled separately runs compiled, such
as a loss. `torch.compiler.disable` does the same, but imports Dynamo at once, which is slow.
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
# The code of every function that torch excludes from Dynamo.
_MARK = _disable_dynamo(lambda: None).__code__
_REASON = "thalweg reads and writes the memory of tensors, which cannot be traced"


def untraced(function: _F, reason: str = _REASON) -> _F:
    """Mark a function so that `torch.compile` calls it untraced; return the function.

    Before torch 2.8, return a marked wrapper. `reason` appears in messages about the graph break.
    """
    target: Any = function
    if hasattr(_dynamo, "set_code_exec_strategy"):
        skip = _dynamo._FrameAction.SKIP
        strategy = _dynamo._FrameExecStrategy(skip, skip)
        _dynamo.set_code_exec_strategy(target.__code__, strategy)
    else:
        # Torch before 2.8.
        target = _outside(function)
    # The tracer of a calling function reads these attributes.
    target._torchdynamo_disable = True
    target._torchdynamo_disable_msg = reason
    return cast("_F", target)


def without_dynamo(method: Callable[..., object]) -> Callable[..., Any]:
    """Return a function of torch without its decorator that disables Dynamo.

    The first call of the decorator would import Dynamo, which takes more than a second. Return
    `method` itself if it is not decorated, or if Dynamo is imported already.

    Args:
        method: A function of torch, or a bound method.
    """
    function = getattr(method, "__func__", method)
    # A third-party wrapper is called unchanged.
    if getattr(function, "__code__", None) is not _MARK or "torch._dynamo" in sys.modules:
        return method
    inner: Any = function.__wrapped__
    return functools.partial(inner, *([method.__self__] if function is not method else []))


def _outside(function: Callable[..., object]) -> Callable[..., Any]:
    """Return a wrapper that disables Dynamo on this thread while `function` runs."""

    @functools.wraps(function)
    def outside(*args: object, **kwargs: object) -> Any:
        callback = _dynamo.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            _dynamo.set_eval_frame(callback)

    return outside
