"""Small cases that share what they cost, in one test."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def many(names: str, values: Iterable[Any], ids: Callable[[Any], str] = str) -> Any:
    """As `pytest.mark.parametrize`, but in one test, which tries all and tells which of them fail.

    Hundreds of cases of a few milliseconds take longer to report than to run. Fixtures are shared.
    """
    parts, cases = names.split(","), list(values)

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def tried(**fixtures: Any) -> None:
            failed: dict[str, BaseException] = {}
            for case in cases:
                case_values = case if len(parts) > 1 else (case,)
                try:
                    test(**fixtures, **dict(zip(parts, case_values, strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    title = "-".join(map(ids, case_values))
                    failed[title] = error
            if failed:
                failures = [f"{title}: {error!r}" for title, error in failed.items()]
                text = f"{len(failed)} of {len(cases)} failed:\n" + "\n".join(failures)
                raise pytest.fail.Exception(text) from next(iter(failed.values()))

        signature = inspect.signature(test)
        parameters = [param for name, param in signature.parameters.items() if name not in parts]
        tried.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return tried

    return decorated
