"""The commands as functions that return records.

A function takes the options of its command as keywords, under the same names and with the same
meaning (``pydlbench COMMAND --help``): ``batch=16``, ``precision="bf16"``, ``set={"lrn": False}``,
``input=["8x3x224x224"]``, ``train_mode=True``. Nothing is stored unless ``store`` names a file.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pydlbench.cli.measuring import recorder_of
from pydlbench.cli.options import Measuring
from pydlbench.cli.parser import records
from pydlbench.cli.sweep import words_of
from pydlbench.cli.terminal import ProgressLine
from pydlbench.errors import PydlbenchError, UnsupportedError, UsageError
from pydlbench.models.user_model import is_user_model
from pydlbench.records.breakdown import BreakdownRecord
from pydlbench.records.comparison import CompareDocument
from pydlbench.records.diagnosis import Diagnosis
from pydlbench.records.estimate import ForecastRecord, StepEstimate
from pydlbench.records.step import StepRecord, StepSpec
from pydlbench.runner.execute import Results, execute
from pydlbench.runner.tasks import Task
from pydlbench.store.store import Reader
from pydlbench.words import FRAMEWORKS

if TYPE_CHECKING:
    from pydlbench.cli.compare_options import CompareOptions
    from pydlbench.compare.comparison import Comparison


def step(model: str, **options: Any) -> StepRecord:
    """Time a real step of a framework, as ``pydlbench step`` does.

    Args:
        model: name or file of the model, as on the command line: ``alexnet-owt``,
            ``my_model.py:build``.
        options: options of the command by name, with a single value of ``framework``, ``mode``,
            ``batch``, ``phase``, ``precision`` and ``device``. The default framework is PyTorch,
            or that of the user model.

    Returns:
        The record; if the step cannot be timed, its ``status`` is ``skipped`` or ``failed``, with a
        ``reason``. Times in seconds.

    Raises:
        UsageError: no such model or option, or a bad value.
        WorkerError: a worker died.
    """
    return cast("StepRecord", _measured("step", model, options))


def estimate(model: str, **options: Any) -> StepEstimate:
    """Sum measured layers into the estimate of a step, as ``pydlbench estimate`` does.

    Args:
        model: name or file of the model, as on the command line.
        options: options of the command by name.

    Raises:
        UsageError: no such model or option, or a bad value.
        PydlbenchError: no layer could be measured.
    """
    return cast("StepEstimate", _measured("estimate", model, options)[0])


def breakdown(model: str, **options: Any) -> BreakdownRecord:
    """Return the breakdown of a step's time, as ``pydlbench breakdown`` does.

    Args:
        model: name or file of the model, as on the command line.
        options: options of the command by name; see :func:`step`.

    Raises:
        UsageError: no such model or option, or a bad value.
        UnsupportedError: the step cannot be traced.
        PydlbenchError: a worker died.
    """
    return cast("BreakdownRecord", _measured("breakdown", model, options))


def diagnose_step(model: str, **options: Any) -> Diagnosis:
    """Find what slows a step down and what remedies save, as ``pydlbench diagnose`` does.

    Args:
        model: name or file of the model, as on the command line.
        options: options of the command by name; see :func:`step`.

    Raises:
        UsageError: no such model or option, or a bad value.
        PydlbenchError: the framework cannot run this step, or it is wrong.
    """
    return cast("Diagnosis", _measured("diagnose", model, options))


def forecast(model: str, **options: Any) -> ForecastRecord:
    """Sum the times of a step's operators without timing it, as ``pydlbench forecast`` does.

    Args:
        model: name or file of the model, as on the command line.
        options: options of the command by name; see :func:`step`. Stored times of operators are
            read from ``store``, and new ones are written into it.

    Raises:
        UsageError: no such model or option, or a bad value.
        UnsupportedError: the framework's operators cannot be listed or timed one by one.
        PydlbenchError: a worker died.
    """
    return cast("ForecastRecord", _measured("forecast", model, options))


def step_spec(model: str, options: Mapping[str, Any]) -> StepSpec:
    """Return the step of the options of :func:`step`."""
    _, tasks = _read("step", model, options)
    return cast("StepSpec", tasks[0].rows[0].spec)


def _read(command: str, model: str, options: Mapping[str, Any]) -> tuple[Any, list[Task]]:
    """Return a command's options as a record, and its tasks, which have a single row."""
    kind, _ = records(command)[""]
    usual = {"model": model, "store": "none", "quiet": True}
    if "framework" in kind.declared() and not is_user_model(model):
        usual["framework"] = FRAMEWORKS[0]
    given = kind.parse(words_of(f"pydlbench.{command}", kind, {**usual, **options}))
    tasks, _ = importlib.import_module(f"pydlbench.cli.{command}").read_tasks(given)
    labels = [row.label for task in tasks for row in task.rows]
    if len(labels) != 1:
        raise UsageError(
            f"pydlbench.{command}: one row is returned, the options give {len(labels)}: "
            f"{', '.join(labels)}; nearest: one value of each option"
        )
    return given, tasks


def _measured(command: str, model: str, options: Mapping[str, Any]) -> Any:
    """Measure the single row of a command, and return its record."""
    given, tasks = _read(command, model, options)
    (outcome,) = _executed(given, command, tasks).outcomes
    if outcome.detail is None:
        kind = UnsupportedError if outcome.status == "skipped" else PydlbenchError
        raise kind(outcome.reason or outcome.status)
    return outcome.detail


def _executed(given: Measuring, command: str, tasks: Sequence[Task]) -> Results:
    """Measure tasks without showing progress; the error or Ctrl-C that ended them is raised."""
    with recorder_of(given, command) as recorder:
        results = execute(tasks, None, recorder, progress=ProgressLine(None))
    if results.trouble is not None:
        raise results.trouble
    if results.interrupted:
        raise KeyboardInterrupt
    return results


def compare_models(a: str, b: str, **options: Any) -> CompareDocument:
    """Compare the steps of two models, as ``pydlbench compare A B`` does.

    Args:
        a: name or file of the first model, as on the command line: ``old.py:build``.
        b: name or file of the second model.
        options: options of the command by name.

    Returns:
        One row with ratio, interval and verdict; ``change`` has the comparison of the results, and
        the calls by which the steps differ.

    Raises:
        UsageError: no such model or option, or a bad value.
        PydlbenchError: a step could not be timed.
    """
    from pydlbench.cli.compare_models import read_task

    return measured_comparison(a, b, options, "pydlbench.compare_models", read_task).document()


def compare_kernels(a: str, b: str, **options: Any) -> CompareDocument:
    """Compare two kernels, as ``pydlbench compare A B --shape SHAPE`` does.

    Args:
        a: a kernel of your own, ``fast.py:launch``, or a backend.
        b: the kernel to compare with ``a``, named in the same way.
        options: options of the command by name: ``shape="conv3"``.

    Returns:
        A row for each layer, pass and cache with ratio, interval and verdict; ``refused`` names
        kernels that compute something else, or cheat.

    Raises:
        UsageError: no such kernel, layer or option, or a bad value.
        PydlbenchError: no row could be timed.
    """
    from pydlbench.cli.compare_kernels import read_task

    return measured_comparison(a, b, options, "pydlbench.compare_kernels", read_task).document()


def measured_comparison(
    a: str,
    b: str,
    options: Mapping[str, Any],
    name: str,
    read_task: Callable[[CompareOptions], tuple[Task, tuple[str, ...]]],
) -> Comparison:
    """Measure A and B in turn, and compare them."""
    from pydlbench.cli.compare_models import comparison_of
    from pydlbench.cli.compare_options import CompareOptions

    values = {"store": "none", "quiet": True, **options}
    given = CompareOptions.parse([*words_of(name, CompareOptions, values), a, b])
    task, _ = read_task(given)
    results = _executed(given, "compare", [task])
    comparison = comparison_of(results, given.same)
    if comparison is None:
        reasons = [outcome.reason for outcome in results.outcomes if outcome.reason]
        raise PydlbenchError("; ".join(reasons) or "nothing could be timed")
    return comparison


def compare_runs(
    a: str, b: str, *, store: Reader | None = None, same: float | None = None
) -> CompareDocument:
    """Compare stored run B with A row by row, as ``pydlbench compare A B`` does.

    Args:
        a: an id, its beginning, a tag, ``last``, or a file that ``--json`` wrote.
        b: the run to compare with ``a``, named in the same ways.
        store: store with both runs and their replicates; None if both are files.
        same: largest difference that counts as the same, as a fraction; None for the default.

    Returns:
        The rows with ratio, interval, verdict and the smallest detectable change.

    Raises:
        UsageError: no such run, both are the same one, or they have no row in common.
    """
    from pydlbench.compare.comparison import MARGIN
    from pydlbench.compare.rows import read_side
    from pydlbench.compare.stored import compare_sides

    first, second = (read_side(name, store) for name in (a, b))
    return compare_sides(first, second, store, MARGIN if same is None else same).document()
