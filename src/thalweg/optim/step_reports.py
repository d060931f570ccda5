"""Reports of steps and notes on their errors, and sums of gradients between steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._core.atomic_section import Call, run
from thalweg._core.commit import LEFT, TAKEN, add_note, says_committed
from thalweg._core.options.accumulation import add_to_sums, clearing_sums, sums_of
from thalweg._core.param_groups import params_of
from thalweg._core.sparse_gradients import summed
from thalweg.errors import InvalidTypeError
from thalweg.optim.grad_scaler import GradScalerMixin, forget_scale
from thalweg.optim.options import Accumulation
from thalweg.optim.step_cache import StepCache
from thalweg.optim.step_options import FOUND_INF, GradientReport, LastStep
from thalweg.variable import titles_of

if TYPE_CHECKING:
    from thalweg.diagnostics.table import Table

_WAS_APPLIED = "Gradients were applied in the backward pass: the next call of step counts them."
_FOLDED = "The gradients were added to their sums: those of the next call of step follow."
_WAITING = "The sums of gradients stay: the next call of step takes them."

# Results of `StepReports._describe_progress`.
StepNotes = list[tuple[Sequence[str], str]]


def annotate_errors(step: Callable[..., object]) -> Callable[..., Any]:
    """Return a wrapper `taken(optimizer, argument=None)` that adds notes to errors of `step`.

    The wrapper calls `step(optimizer, argument, results)`. `step` appends the result of
    `_describe_progress` to the list `results`. The notes tell which writes were completed.

    An error also removes the scaler's attributes from the optimizer. `torch.amp.GradScaler` removes
    them only after success, and would multiply a remaining scale by the next one.
    """

    @wraps(step)
    def taken(optimizer: Any, argument: object = None) -> Any:
        """Take a step; on errors, add notes and clear the attributes of the scaler."""
        results = StepNotes()
        try:
            return step(optimizer, argument, results)
        except BaseException as error:
            forget_scale(optimizer)
            optimizer._add_progress_note(error, results)
            raise

    return taken


class StepReports(GradScalerMixin):
    """Base class that records steps, and adds gradients up with the option `accumulate`."""

    state: Any
    step_cache: StepCache

    @property
    def last_step(self) -> LastStep | None:
        """Report of the last step as a `LastStep`; None before the first step."""
        cache = self.step_cache
        cache.settle()
        if cache.last_step is None or not cache.last_step.taken:
            return cache.last_step
        report = cache.last_step
        # Numbers on a GPU are read here, not in the step, which would have to wait for them.
        if cache.counter is not None:
            report = report._replace(count=cache.count + int(cache.counter.item()))
        if cache.last_apply_flag is not None and not cache.last_apply_flag.item():
            return report._replace(taken=False, reason=FOUND_INF)
        if cache.report.grad_norm is None:
            return report
        norm, factor = float(cache.report.grad_norm), float(cache.report.clip_factor)
        return report._replace(grad_norm=norm, clip_factor=factor)

    @property
    def diagnostics(self) -> Table | None:
        """Statistics of each parameter in the last measured step, or None; waits for the device."""
        diagnosing = self.step_cache.diagnosing
        return None if diagnosing is None else diagnosing.table()

    def _note_loss(self, loss: object) -> None:
        """Report the loss of a closure to the diagnostics and to `spikes`."""
        if self.step_cache.diagnosing is not None:
            self.step_cache.diagnosing.note_loss(loss)
        if (judge := self.step_options.judge) is not None:
            with suppress(InvalidTypeError):
                judge.log_loss(loss)

    def _run_noted(self, work: Call, results: StepNotes) -> None:
        """Call `work`; append the result of `_describe_progress` to `results`, even after an error.

        The caller must hold the lock. Otherwise steps of other threads would count, too.
        """
        cache = self.step_cache
        cache.progress, cache.is_folded, total = (), False, cache.total
        try:
            work()
            results.append(self._describe_progress(total))
        except BaseException:
            results.append(self._describe_progress(total))
            raise

    def _describe_progress(self, total: int | None = None) -> tuple[Sequence[str], str]:
        """Return (notes on writes of the present step, note on gradient sums); [] or "" for none.

        Args:
            total: `step_cache.total` before the step; None if the step has not begun.
        """
        cache = self.step_cache
        is_folded = total is not None and cache.is_folded
        sums = _WAITING if cache.sums is not None else _FOLDED if is_folded else ""
        if total is not None and cache.progress:
            return cache.progress, sums
        # The step was replayed in one call, and interrupted after the call.
        if total is not None and cache.total != total:
            return [f"{TAKEN}."], sums
        return [_WAS_APPLIED] if cache.has_applied_grads else [], sums

    def _add_progress_note(self, error: BaseException, results: StepNotes) -> None:
        """Add notes to a step's error: on completed writes, and on gradients kept in the state.

        `results[0]` is a result of `_describe_progress`; `results` is empty if no step has begun.
        """
        written, sums = results[0] if results else self._describe_progress()
        if written:
            add_note(error, written)
        elif not says_committed(error):
            add_note(error, ())
            if sums:
                error.add_note(sums)

    def _end_step(self) -> None:
        """Count a step after gradients were applied during the backward pass."""
        run(self._end_calls(GradientReport()))

    def _end_calls(
        self, grad_report: GradientReport, single_param: Tensor | None = None
    ) -> list[Call]:
        """Return callables that record a step as taken; the caller runs them if the step succeeds.

        The callables also clear accumulated sums, and gradients that `in_backward` left. If a GPU
        decides whether the step is applied, a callable counts applied steps on the GPU.

        Args:
            grad_report: Norm and clip factor of the gradients, which becomes `step_cache.report`.
            single_param: The only parameter of an update in the backward pass. The callables then
                only free its gradient; `step` records the step later.
        """
        cache = self.step_cache
        if single_param is not None:
            mark_applied = partial(vars(cache).__setitem__, "has_applied_grads", True)
            return [mark_applied, partial(setattr, single_param, "grad", None)]
        updates: dict[str, Any] = {"report": grad_report, "has_applied_grads": False}
        updates["last_apply_flag"] = cache.apply_flag
        calls: list[Call] = []
        if cache.apply_flag is None:
            updates["count"] = cache.count + 1
        elif cache.counter is None:
            updates["counter"] = cache.apply_flag.long()
        else:
            updates["counter"] = counter = cache.counter.to(cache.apply_flag.device)
            calls.append(partial(counter.add_, cache.apply_flag))
        updates["last_step"] = LastStep(True, "", updates.get("count", cache.count))
        updates["progress"] = (f"{TAKEN}." if cache.apply_flag is None else LEFT,)
        if cache.sums is not None:
            calls += self.clearing_sums()
        if self.step_options.in_backward:
            # A parameter that was just unfrozen had no hook in the last backward pass.
            params_with_grad = [
                param for param in params_of(self.param_groups) if param.grad is not None
            ]
            calls += [partial(setattr, param, "grad", None) for param in params_with_grad]
        return [*calls, partial(vars(cache).update, updates)]

    def clearing_sums(self) -> list[Call]:
        """Return calls that clear the accumulated gradients."""
        calls = clearing_sums(self.param_groups, self.state)
        return [*calls, partial(vars(self.step_cache).update, {"sums": None})]

    def _accumulate_gradients(self, is_allocating: bool) -> bool:
        """Add gradients to their sums in the state; return True if a step is due.

        If a step is due, `step_cache.sums` becomes {id(parameter): sum}. Without the option
        `accumulate`, do nothing and return True.

        Args:
            is_allocating: True for a step that only allocates state; it is due at once.
        """
        cache, passes = self.step_cache, self.step_options.accumulate
        if passes == 1:
            return True
        # After a step that was not taken, the sums are still in the state.
        cache.sums = None
        with no_grad():
            count = add_to_sums(
                self.param_groups,
                self.state,
                # A float: with `accumulate`, the host decides about overflows.
                unscaling=cast("float | None", self.unscaling()),
                sum_in_float32=self.step_options.of(Accumulation).wide_sums
                or self.step_options.kinds.masters,
                report_count=self._report_waiting,
            )
        if count < passes and not is_allocating:
            return False
        cache.sums = sums_of(self.state)
        if not cache.sums:
            run(clearing_sums(self.param_groups, self.state))
        return bool(cache.sums)

    def _report_waiting(self, count: int) -> Call:
        """Return a call that records, as the last step, that `count` gradients are summed up."""
        reason = f"{count} of {self.step_options.accumulate} gradients are summed up"
        report = LastStep(False, reason, self.step_cache.count)
        return partial(vars(self.step_cache).update, {"last_step": report, "is_folded": True})

    def _gradients(self, params: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the gradient of each parameter, or its accumulated sum; None if both are missing.

        A sum is rounded to the parameter's dtype, unless the optimizer keeps float32 masters.
        """
        sums = self.step_cache.sums
        if sums is None:
            return [param.grad for param in params]
        gradients = [sums.get(id(param)) for param in params]
        if self.step_options.kinds.masters:
            return gradients
        pairs = zip(gradients, params, strict=True)
        return [grad if grad is None else self._round_sum(grad, param) for grad, param in pairs]

    def _round_sum(self, grad: Tensor, param: Tensor) -> Tensor:
        """Return an accumulated sum in the dtype of the parameter."""
        if self.step_options.clips and grad.is_sparse and grad.dtype != param.dtype:
            # Duplicates are summed before the rounding.
            grad = summed(grad, grad.dtype, *titles_of([param]))
        return grad.to(param.dtype)
