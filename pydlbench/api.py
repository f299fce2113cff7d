"""What the commands do, from Python: records of steps and comparisons."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Final

from pydlbench.backends.capabilities import default_device
from pydlbench.errors import UsageError
from pydlbench.models.own import is_onnx, is_own, likely_framework
from pydlbench.records.own import OwnInput, OwnSpec
from pydlbench.records.step import StepSpec
from pydlbench.runner.options import Options
from pydlbench.runner.session import Session
from pydlbench.timing.policy import STEP_BUDGET_S
from pydlbench.words import CODE_LIMIT_S, FRAMEWORKS, GPU_FRAMEWORK, ONNX_FRAMEWORK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydlbench.records.breakdown import BreakdownRecord
    from pydlbench.records.check import CheckRecord
    from pydlbench.records.comparison import CompareDocument
    from pydlbench.records.diagnosis import Diagnosis
    from pydlbench.records.forecast import ForecastRecord
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import KernelSpec
    from pydlbench.records.step import StepRecord
    from pydlbench.store.reader import Reader

# Keywords of models of the user's own.
_OWN: Final = ("inputs", "loss", "optimizer", "train")


def step(model: str, *, options: Options | None = None, **step: Any) -> StepRecord:
    """Time a real step of a framework, as ``pydlbench step`` does.

    Args:
        model: as on the command line: ``alexnet-owt``, ``my_model.py:build``.
        options: threads, seed, budget; None is as on the command line: six visits, in new
            processes, in ten seconds of sampling.
        step: what of the step is not as usual: ``batch``, ``phase``, ``framework``, ``mode``,
            ``precision``, ``layout``, ``device`` (the GPU if there is one); see
            :class:`pydlbench.records.step.StepSpec`.
            The framework of a model of the user's own is the one that its file imports.
            ``arguments`` is the model's variant, ``{"lrn": "off"}``, or what the user's callable
            is called with, ``{"width": 64}``. Of a model of the user's own also ``inputs`` (texts
            as ``--input`` takes them), ``loss``, ``optimizer`` and ``train``; see
            :class:`pydlbench.records.own.OwnSpec`.

    Returns:
        The record; its ``status`` is ``skipped`` or ``failed``, with a ``reason``, where the step
        cannot be timed. Times in seconds.

    Raises:
        UsageError: no such model, or a word that is none.
    """
    from pydlbench.steps.run import run

    spec = step_spec(model, step)
    usual = Options(budget_s=STEP_BUDGET_S, visits=None)
    with _session(spec, options or usual) as session:
        return run(spec, session)


def check(
    model: str,
    *,
    session: Session | None = None,
    options: Options | None = None,
    laps: int = 15,
    stop_after_s: float = 60.0,
    native: Mapping[KernelSpec, Measurement] | None = None,
    checks: bool = False,
    forecast: Callable[[StepSpec], ForecastRecord | str] = lambda _: "",
    tell: Callable[[str], None] = lambda _: None,
    **step: Any,
) -> CheckRecord:
    """Measure a framework's step rung by rung, as ``pydlbench check`` does.

    Args:
        model: as on the command line.
        session: whose workers are used; None opens one.
        options: of the session that is opened: threads, seed, budget.
        laps: at the most; at least six are taken, whatever the time.
        stop_after_s: no lap after the sixth begins after so many seconds; finding the native
            kernels is not counted.
        native: the native rows of the same step, where they have been found already.
        checks: check the step (shapes, parameters, gradients, descent) before it is timed.
        forecast: says what the step will take, or why it cannot; called before anything of it is
            timed.
        tell: called with what is done next.
        step: see :func:`step`.

    Raises:
        UsageError: no such model, option or word.
        UnsupportedError: the framework has not what is asked for.
        WorkerError: a worker died.
    """
    from pydlbench.ladder.check import check_step

    seed = (session.options if session else options or _SUMMANDS).seed
    spec = _explained(model, {"seed": seed, **step})
    with contextlib.ExitStack() as stack:
        return check_step(
            spec,
            session or stack.enter_context(_session(spec, options or _SUMMANDS)),
            laps=laps,
            time_limit_s=stop_after_s,
            native=native,
            checks=checks,
            forecast=forecast,
            tell=tell,
        )


def breakdown(
    model: str,
    *,
    session: Session | None = None,
    options: Options | None = None,
    rounds: int = 6,
    native: Mapping[KernelSpec, Measurement] | None = None,
    tell: Callable[[str], None] = lambda _: None,
    **step: Any,
) -> BreakdownRecord:
    """Say where the time of a step on a CPU goes, as ``pydlbench breakdown`` does.

    Args:
        model: as on the command line.
        session: whose workers are used; None opens one.
        options: of the session that is opened: threads, seed, budget.
        rounds: in each of which the step has a new process; at least six are taken.
        native: rows of native kernels that were found before.
        tell: called with what is done next.
        step: see :func:`step`; the device is the CPU where none is named.

    Raises:
        UsageError: no such model, option or word.
        UnsupportedError: the step cannot be traced.
        WorkerError: a worker died.
    """
    from pydlbench.analysis.step import break_down_step

    seed = (session.options if session else options or _SUMMANDS).seed
    spec = _explained(model, {"seed": seed, "device": "cpu", **step})
    with contextlib.ExitStack() as stack:
        return break_down_step(
            spec,
            session or stack.enter_context(_session(spec, options or _SUMMANDS)),
            rounds=rounds,
            native=native,
            tell=tell,
        )


def compare_runs(
    a: str, b: str, *, store: Reader | None = None, same: float | None = None
) -> CompareDocument:
    """Compare stored run B with A row by row, as ``pydlbench compare A B`` does.

    Args:
        a: an id, its beginning, a tag, ``last``, or a file that ``--json`` wrote.
        b: likewise.
        store: that has the runs, and replicates of them; None where both are files.
        same: what still counts as the same, a fraction; None is as by default.

    Returns:
        The rows with ratio, interval, verdict and the smallest change that each could have shown.

    Raises:
        UsageError: no such run, or nothing in one is in the other.
    """
    from pydlbench.compare.comparison import Settings
    from pydlbench.compare.stored import compare_named

    settings = Settings() if same is None else Settings(margin=same)
    return compare_named(a, b, store, settings).document()


def diagnose_step(
    model: str, *, stop_after_s: float = 300.0, options: Options | None = None, **step: Any
) -> Diagnosis:
    """Say what costs a step its time and what would save it, as ``pydlbench diagnose`` does.

    Args:
        model: as on the command line.
        stop_after_s: no experiment begins later, in seconds.
        options: threads, seed, budget.
        step: see :func:`step`.

    Raises:
        UsageError: no such model, or a word that is none.
        UnsupportedError: the framework cannot run this step.
        PrimitiveError: the step is wrong, or died.
    """
    from pydlbench.diagnose.run import diagnose

    spec = _explained(model, step)
    with _session(spec, options or _SUMMANDS) as session:
        return diagnose(spec, session, stop_after_s)


def forecast(
    model: str,
    *,
    store: Reader | None = None,
    measures: bool = True,
    visits: int = 3,
    keep: Callable[[str, dict[str, Any], str], None] = lambda *_: None,
    options: Options | None = None,
    **step: Any,
) -> ForecastRecord:
    """Sum the times of a step's operators without timing it, as ``pydlbench forecast`` does.

    Args:
        model: as on the command line.
        store: of operators that were timed before; None knows none.
        measures: measure what the store lacks; else it is missing in the sum.
        visits: processes that a missing operator is timed in.
        keep: called with table, document and key of each row that was measured, as
            ``Store.add`` takes them in an ``Entry``.
        options: threads and seed.
        step: see :func:`step`.

    Raises:
        UsageError: no such model, or a word that is none.
        UnsupportedError: the framework's operators cannot be listed or timed one by one.
        WorkerError: a worker died.
    """
    from pydlbench.ladder.forecast import forecast_step

    spec = _explained(model, step)
    with _session(spec, options or Options()) as session:
        return forecast_step(spec, session, store, measures=measures, visits=visits, keep=keep)


# Of native rows that are summed into a step.
_SUMMANDS: Final = Options(budget_s=0.25, estimate=True)


def step_spec(model: str, step: Mapping[str, Any]) -> StepSpec:
    """Return a step from keywords; see :func:`step`.

    Raises:
        UsageError: a word that is none.
    """
    words = {"device": default_device()[0], **step}
    own = {name: words.pop(name) for name in _OWN if name in words}
    if own and not is_own(model):
        raise UsageError(f"{next(iter(own))}: has no meaning with {model}; nearest: leave it out")
    if is_own(model):
        likely = ONNX_FRAMEWORK if is_onnx(model) else likely_framework(model)
        words.setdefault("framework", likely or FRAMEWORKS[0])
        own["inputs"] = tuple(map(OwnInput.of, own.get("inputs", ())))
        words["own"] = OwnSpec(**own)
    return StepSpec(model=model, options=dict(words.pop("arguments", {})), **words)


def _explained(model: str, step: Mapping[str, Any]) -> StepSpec:
    """Return a step that is taken apart; on a GPU PyTorch's are, and others go to the CPU."""
    found = step_spec(model, step)
    if "device" in step or found.device == "cpu" or found.framework == GPU_FRAMEWORK:
        return found
    return step_spec(model, {**step, "device": "cpu"})


def _session(step: StepSpec, options: Options) -> Session:
    """Open a session; the user's own code has no more time than on the command line."""
    if step.own is not None and options.code_limit_s is None:
        options = dataclasses.replace(options, code_limit_s=CODE_LIMIT_S)
    return Session(options)
