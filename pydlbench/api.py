"""What the commands do, from Python: records of steps and comparisons, and tables of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydlbench.backends.capabilities import default_device
from pydlbench.records.step import StepSpec
from pydlbench.runner.session import Options, Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.records.check import CheckRecord
    from pydlbench.records.comparison import CompareDocument
    from pydlbench.records.diagnosis import Diagnosis
    from pydlbench.records.forecast import ForecastRecord
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.record import Record
    from pydlbench.records.specs import KernelSpec
    from pydlbench.records.step import StepRecord
    from pydlbench.store.reader import Reader

__all__ = ["check", "compare_runs", "diagnose_step", "e2e", "forecast", "to_dataframe"]


def e2e(model: str, *, options: Options | None = None, **step: Any) -> StepRecord:
    """Time a real step of a framework, as ``pydlbench e2e`` does.

    Args:
        model: by its name: ``alexnet-owt``.
        options: threads, seed, budget.
        step: what of the step is not as usual: ``batch``, ``phase``, ``framework``, ``mode``,
            ``precision``, ``layout``, ``device``; see :class:`pydlbench.records.step.StepSpec`.

    Returns:
        The record; its ``status`` is ``skipped`` or ``failed``, with a ``reason``, where the step
        cannot be timed. Times in seconds.

    Raises:
        UsageError: no such model, or a word that is none.
    """
    from pydlbench.steps.run import run

    spec = StepSpec(model=model, **{"device": default_device()[0], **step})
    with Session(options) as session:
        return run(spec, session)


def check(
    model_name: str,
    options: Mapping[str, Any] | None = None,
    batch: int | None = None,
    phase: str = "forward",
    precision: str = "fp32",
    framework: str = "torch",
    mode: str | None = None,
    session: Session | None = None,
    *,
    laps: int = 15,
    time_limit_s: float = 80.0,
    native: Mapping[KernelSpec, Measurement] | None = None,
    checks: bool = False,
    forecast: Callable[[StepSpec], ForecastRecord | str] = lambda _: "",
    layout: str = "nhwc",
    feed: str = "resident",
    tell: Callable[[str], None] = lambda _: None,
) -> CheckRecord:
    """Measure a framework's step rung by rung, as ``pydlbench check`` does.

    Args:
        model_name: by which the model is known.
        options: of the model.
        batch: images per step; None is the model's own.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of the products.
        framework: ``torch`` or ``tensorflow``.
        mode: one of the framework's; None is its first.
        session: whose workers are used, and whose seed.
        laps: at the most; at least six are taken, whatever the time.
        time_limit_s: no lap after the sixth begins after so many seconds; finding the native
            kernels is not counted.
        native: the native rows of the same step, where they have been found already.
        checks: check the step (shapes, parameters, gradients, descent) before it is timed.
        forecast: says what the step will take, or why it cannot; called before anything of it is
            run.
        layout: of images: ``nhwc`` (PyTorch's channels_last) or ``nchw``.
        feed: ``resident`` images and labels, or new ones from the ``host`` in each step.
        tell: called with what is done next.

    Raises:
        UsageError: no such model, option or word.
        UnsupportedError: the framework has not what is asked for.
        WorkerError: a worker died.
    """
    from pydlbench.ladder.check import check_step

    if session is None:
        raise ValueError("a check needs a session")
    case = StepSpec(
        model=model_name,
        options=dict(options or {}),
        batch=batch,
        phase=phase,
        framework=framework,
        mode=mode,
        precision=precision,
        layout=layout,
        feed=feed,
        seed=session.options.seed,
    )
    return check_step(
        case,
        session,
        laps=laps,
        time_limit_s=time_limit_s,
        native=native,
        checks=checks,
        forecast=forecast,
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
    model: str, *, time_limit_s: float = 300.0, options: Options | None = None, **step: Any
) -> Diagnosis:
    """Say what costs a step its time and what would save it, as ``pydlbench diagnose`` does.

    Args:
        model: by its name.
        time_limit_s: no experiment begins later, in seconds.
        options: threads, seed, budget.
        step: see :func:`e2e`; the device is the CPU, as it is for the command.

    Raises:
        UsageError: no such model, or a word that is none.
        UnsupportedError: the framework cannot run this step.
        PrimitiveError: the step is wrong, or died.
    """
    from pydlbench.diagnose.run import diagnose

    with Session(options or Options(budget_s=0.25, estimate=True)) as session:
        return diagnose(StepSpec(model=model, **step), session, time_limit_s)


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
    """Sum the times of a step's operators without running it, as ``pydlbench forecast`` does.

    Args:
        model: by its name.
        store: of operators that were timed before; None knows none.
        measures: measure what the store lacks; else it is missing in the sum.
        visits: processes that a missing operator is timed in.
        keep: called with table, document and key of each row that was measured, as
            ``Store.add`` takes them in an ``Entry``.
        options: threads and seed.
        step: see :func:`e2e`; the device is the CPU, as it is for the command.

    Raises:
        UsageError: no such model, or a word that is none.
        UnsupportedError: the framework's operators cannot be listed or timed one by one.
        WorkerError: a worker died.
    """
    from pydlbench.ladder.forecast import forecast_step

    with Session(options) as session:
        spec = StepSpec(model=model, **step)
        return forecast_step(spec, session, store, measures=measures, visits=visits, keep=keep)


def to_dataframe(records: Iterable[Record | Mapping[str, Any]]) -> Any:
    """Return records as a table: a row each, with the fields of inner objects as ``time_s.median``.

    Args:
        records: measurements, steps, checks, or the documents of a store's entries.

    Returns:
        A ``pandas.DataFrame`` where pandas is installed, else a list of flat dicts.
    """
    rows = [_flat(one if isinstance(one, Mapping) else one.to_dict()) for one in records]
    if importlib.util.find_spec("pandas") is None:
        return rows
    import pandas as pd

    return pd.DataFrame(rows)


def _flat(document: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{path}{name}.")
        else:
            found[f"{path}{name}"] = value
    return found
