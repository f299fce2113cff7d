"""Fixtures for pytest: a test fails if a layer or a step has become slower.

``pydlbench_layer`` and ``pydlbench_step`` measure, and compare with a second installation, measured
interleaved, or with a stored run, which the command line names. They decide as ``pydlbench compare
--fail-on slower:P%`` does: the test fails for exit code 3 and is skipped for 4, with the reason.
``pydlbench_compare`` compares two models in the same way.

Every run of pytest in an environment with pydlbench imports this module, so it imports very little.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydlbench.compare.comparison import Comparison
    from pydlbench.compare.rows import Side
    from pydlbench.records.comparison import CompareDocument
    from pydlbench.records.measurement import KernelSpec
    from pydlbench.records.step import StepSpec

_PYTHON: Final = "--pydlbench-python"
_BASELINE: Final = "--pydlbench-baseline"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the baseline, on the command line and in the configuration."""
    group = parser.getgroup("pydlbench", "gates for the speed of layers and steps")
    for option, metavar, text in (
        (
            _PYTHON,
            "PYTHON",
            "interpreter of the installation that tests are compared with, in turn",
        ),
        (_BASELINE, "RUN,...", "stored runs that tests are compared with: id, tag or JSON file"),
    ):
        group.addoption(option, metavar=metavar, help=text)
        parser.addini(option.removeprefix("--").replace("-", "_"), text)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "pydlbench(slower='5%', repetitions=10, budget=0.3): the slowdown that pydlbench_layer, "
        "pydlbench_step and pydlbench_compare allow, repetitions of both sides, and the sampling "
        "time of each per repetition in seconds",
    )


@pytest.fixture
def pydlbench_layer(request: pytest.FixtureRequest) -> Callable[..., CompareDocument]:
    """Measure layers, and fail if one has become slower.

    Call it with a value of ``--shape``, and with ``batch`` and the keywords of
    :class:`pydlbench.records.measurement.KernelSpec`: ``pass_``, ``precision``, ``backend``...

    Returns:
        A function that returns the comparison: rows with ``ratio``, ``verdict`` and ``resolution``.
    """
    return _Gate.of_test(request).layer


@pytest.fixture
def pydlbench_step(request: pytest.FixtureRequest) -> Callable[..., CompareDocument]:
    """Measure a framework's step, and fail if it has become slower.

    Call it with a model and the keywords of :class:`pydlbench.records.step.StepSpec`: ``batch``,
    ``phase``, ``framework``, ``mode``...

    Returns:
        A function that returns the comparison.
    """
    return _Gate.of_test(request).step


@pytest.fixture
def pydlbench_compare(request: pytest.FixtureRequest) -> Callable[..., CompareDocument]:
    """Compare the steps of two models, and fail if B is slower or computes something else.

    Call it with A and B and the options of :func:`pydlbench.compare_models`: ``phase``, ``set_a``,
    ``swap``... It needs no baseline.

    Returns:
        A function that returns the comparison.
    """
    return _Gate.of_test(request).models


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    """The marker's keywords."""

    slower: str = "5%"
    repetitions: int = 10
    budget: float = 0.3


class _Gate:
    """The measurements and verdict of one test.

    Args:
        request: request of the test's fixture.
        limits: keywords of the test's marker.
    """

    def __init__(self, request: pytest.FixtureRequest, limits: _Limits) -> None:
        self._request = request
        self._limits = limits
        self._python, self._baseline = (
            request.config.getoption(option)
            or request.config.getini(option.removeprefix("--").replace("-", "_"))
            for option in (_PYTHON, _BASELINE)
        )

    @classmethod
    def of_test(cls, request: pytest.FixtureRequest) -> _Gate:
        """Return the gate of a test, with its marker's limits."""
        marker = request.node.get_closest_marker("pydlbench")
        try:
            return cls(request, _Limits(**(marker.kwargs if marker else {})))
        except TypeError as error:
            pytest.fail(f"pytest.mark.pydlbench: {error}", pytrace=False)

    def layer(self, layer: str, batch: int | None = None, **spec: Any) -> CompareDocument:
        """Judge layers; see :func:`pydlbench_layer`."""
        from pydlbench.models.catalog import find_layers
        from pydlbench.records.measurement import KernelSpec

        def specs() -> list[KernelSpec | StepSpec]:
            layers = find_layers([layer], batch, option="layer")
            return [KernelSpec(layer=known, **spec) for known in layers]

        return self._judged(lambda: self._against_baseline(specs))

    def step(self, model: str, **step: Any) -> CompareDocument:
        """Judge a step; see :func:`pydlbench_step`."""
        from pydlbench.api import step_spec

        values = {"device": "cpu", **step}
        return self._judged(lambda: self._against_baseline(lambda: [step_spec(model, values)]))

    def models(self, a: str, b: str, **options: Any) -> CompareDocument:
        """Judge the second of two models; see :func:`pydlbench_compare`."""
        from pydlbench.api import measured_comparison
        from pydlbench.cli.compare_models import read_task

        limits = {"repetitions": self._limits.repetitions, "budget": self._limits.budget}
        values = {**limits, **options}
        return self._judged(
            lambda: measured_comparison(a, b, values, "pydlbench_compare", read_task)
        )

    def _against_baseline(self, specs: Callable[[], list[KernelSpec | StepSpec]]) -> Comparison:
        if self._python and self._baseline:
            pytest.fail(f"{_PYTHON} with {_BASELINE}: leave one out", pytrace=False)
        if not (self._python or self._baseline):
            pytest.skip(f"nothing to compare with: give {_PYTHON} PYTHON or {_BASELINE} RUN")
        return (self._interleaved if self._python else self._stored)(specs())

    def _judged(self, compare: Callable[[], Comparison]) -> CompareDocument:
        from pydlbench.cli.values import percentage
        from pydlbench.errors import PydlbenchError
        from pydlbench.report.change import conclude
        from pydlbench.report.compare import judge

        if getattr(self._request.config, "workerinput", {}).get("workercount", 1) > 1:
            pytest.skip("other tests run beside this one: measure with -n 0")
        try:
            threshold = percentage("slower", self._limits.slower)
            comparison = compare()
        except PydlbenchError as error:  # the command ends with 1 or 2: nothing was measured
            pytest.fail(str(error), pytrace=False)
        judgement = judge(comparison, threshold)
        for row in comparison.rows:
            ratio = f"{row.estimate.ratio:.4g}"
            self._request.node.user_properties.append((f"pydlbench {row.b.layer}", ratio))
        if comparison.wrong and comparison.change is not None:
            pytest.fail(conclude(comparison, comparison.change)[0], pytrace=False)
        if judgement.slower:
            pytest.fail(judgement.slower, pytrace=False)
        if judgement.undecided:
            pytest.skip("; ".join(judgement.undecided))
        return comparison.document()

    def _interleaved(self, specs: Sequence[KernelSpec | StepSpec]) -> Comparison:
        """Measure interleaved with another installation."""
        from pydlbench.cli.compare import no_rows_text
        from pydlbench.compare.interleaved import (
            compare_installations,
            open_session,
            pairs_of,
            take_pass,
        )
        from pydlbench.errors import PydlbenchError
        from pydlbench.runner.session import Session
        from pydlbench.study.loop import random_order
        from pydlbench.workers.installation import read_installation, this_installation

        sides = (read_installation(self._python, _PYTHON), this_installation())
        pairs = pairs_of(specs)
        order = random_order(0)
        for number in range(self._limits.repetitions):
            take_pass(
                pairs,
                number,
                lambda side, threads: open_session(sides[side], threads, 0),
                self._limits.budget,
                order,
            )
        with Session() as session:
            device = session.run.device
        comparison = compare_installations(sides, pairs, device)
        if not comparison.rows:
            raise PydlbenchError(no_rows_text(comparison))
        return comparison

    def _stored(self, specs: Sequence[KernelSpec | StepSpec]) -> Comparison:
        """Measure, and compare with the first stored run that has such rows."""
        from pydlbench.cli.machine import reading_store
        from pydlbench.cli.values import splits
        from pydlbench.compare.rows import read_side
        from pydlbench.compare.stored import compare_sides
        from pydlbench.errors import UsageError

        with reading_store(None) as store:
            *others, last = (read_side(name, store) for name in splits(_BASELINE, self._baseline))
            measured = _measured(specs)
            for baseline in others:
                with contextlib.suppress(UsageError):  # no row in common
                    return compare_sides(baseline, measured, store)
            return compare_sides(last, measured, store)


def _measured(specs: Sequence[KernelSpec | StepSpec]) -> Side:
    """Measure with new processes for each repetition, as for a stored run."""
    from pydlbench.compare.rows import side_of_documents
    from pydlbench.records.measurement import KernelSpec
    from pydlbench.runner.options import RunnerOptions
    from pydlbench.runner.session import Session
    from pydlbench.steps.run import run
    from pydlbench.timing.policy import LAYER_BUDGET_S, STEP_BUDGET_S
    from pydlbench.words import CODE_LIMIT_S

    kernels = [spec for spec in specs if isinstance(spec, KernelSpec)]
    steps = [spec for spec in specs if not isinstance(spec, KernelSpec)]
    budget_s = LAYER_BUDGET_S if kernels else STEP_BUDGET_S
    how = RunnerOptions(budget_s=budget_s, repetitions=None, renew=True, code_limit_s=CODE_LIMIT_S)
    with Session(how) as session:
        layers = [row.to_dict() for _, row in session.measure(kernels)] if kernels else []
        records = [run(spec, session).to_dict() for spec in steps]
        return side_of_documents("this test", session.run, layers, records)
