"""What ``compare`` writes: two runs row by row, and what is said of each ratio."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import msgspec

from pydlbench.records.fields import shown
from pydlbench.records.record import Document, Record, one_of
from pydlbench.units import format_seconds, number

Verdict = Annotated[
    str, one_of("SAME", "FASTER", "SLOWER", "UNCLEAR"), shown("verdict", right=False)
]
#: Beyond this a ratio is said as a factor.
FACTOR = 2.0
_words = partial(shown, right=False)


def ratio_text(value: float) -> str:
    """Format a ratio: ``1.032``, ``0.970``, ``12.4``."""
    return f"{value:.3f}" if 0.0995 <= value < 9.995 else number(value)


def least_change(value: float) -> str:
    """Format the smallest change that would have been found: ``12 %``, ``2.1x``."""
    if value > 99:
        return "-"
    # From 99.5 % on, two digits of a percentage would take an exponent.
    return f"{value:.1f}x" if value >= FACTOR - 0.005 else f"{100 * (value - 1):.2g} %"


class ComparisonSide(Record, frozen=True, kw_only=True):
    """One side of a row.

    Attributes:
        layer: its name there.
        median: seconds per execution.
        ci_low: lower end of the median's interval within the run, in seconds.
        ci_high: upper end.
        n: samples.
        clock_hz: core clock beside them, in Hz.
        contended: other work disturbed it.
        algorithm: the implementation.
        backend: who computed it.
        mode: how a framework ran it.
        threads: threads.
        layout_request: layout that was asked for.
        cache: cache state.
        precision: storage and arithmetic.
        device: cpu or cuda:N.
        fuse: what was computed in the same call.
        library: of interleaved sides, whose code ran, with its version; null for stored runs.
    """

    layer: str = ""
    median: Annotated[float | None, shown("time", format_seconds, unit="s")]
    ci_low: float | None = None
    ci_high: float | None = None
    n: int | None = None
    clock_hz: float | None = None
    contended: bool = False
    algorithm: str | None = None
    backend: str = ""
    mode: str | None = None
    threads: int | None = None
    layout_request: str | None = None
    cache: str | None = None
    precision: str = ""
    device: str = ""
    fuse: str | None = None
    library: Annotated[str | None, _words("library")] = None


class ComparisonEstimate(Record, frozen=True, kw_only=True):
    """A ratio with what is said of it.

    Attributes:
        ratio: B's time over A's.
        ci_low: lower end of the interval of this row by itself: of stored runs the prediction
            interval in which another pair of runs would lie, of interleaved ones that of the mean.
        ci_high: upper end.
        verdict: what can be said of B.
        resolution: the smallest ratio above one that could be told; null where none could.
        cycles: the ratio in seconds times clock; null where a clock is not known.
        reason: why there can be no verdict.
    """

    ratio: Annotated[float, shown("ratio", ratio_text)]
    ci_low: Annotated[float | None, shown("interval", ratio_text)]
    ci_high: float | None
    verdict: Verdict
    resolution: Annotated[float | None, shown("resolves", least_change)] = None
    cycles: Annotated[float | None, shown("in cycles", ratio_text)] = None
    reason: str | None = None


class ComparisonRow(ComparisonEstimate, frozen=True, kw_only=True, rename={"pass_": "pass"}):
    """A row of both runs, with the ratio of its times.

    Attributes:
        layer: name of the layer, or the model.
        kind: kind of layer, or step, estimate, check measured, check native and so on.
        problem: descriptor, or what else tells it from others.
        batch: images.
        pass_: pass of a layer, phase of a step.
        precision: storage and arithmetic.
        device: cpu or cuda:N.
        backend: who computed it.
        mode: how a framework ran it.
        cache: cache state.
        threads: threads.
        layout_request: layout that was asked for.
        fuse: what was computed in the same call.
        propagation: inference or training.
        a: one side of a row.
        b: one side of a row.
        by_pass: of sides measured interleaved, the ratio of each pass; null for stored runs.
    """

    layer: Annotated[str, _words("layer")]
    kind: Annotated[str, _words("kind")] = ""
    problem: str = ""
    batch: Annotated[int | None, shown("batch")] = None
    pass_: Annotated[str, _words("pass")] = ""
    precision: Annotated[str, _words("precision")] = ""
    device: Annotated[str, _words("device")] = ""
    backend: Annotated[str, _words("backend")] = ""
    mode: Annotated[str | None, _words("mode")] = None
    cache: Annotated[str | None, _words("cache")] = None
    threads: Annotated[int | None, shown("threads")] = None
    layout_request: Annotated[str | None, _words("layout")] = None
    fuse: Annotated[str | None, _words("fuse")] = None
    propagation: Annotated[str | None, _words("propagation")] = None
    a: ComparisonSide | None = None
    b: ComparisonSide | None = None
    by_pass: tuple[float, ...] | None = None


class CompareDocument(Document, frozen=True, kw_only=True):
    """Two runs row by row. Ratios are B's time over A's.

    Attributes:
        a: the first run.
        b: the second run.
        interleaved: whether both sides were measured in turn.
        passes: how often both were prepared anew.
        matched_across: what all rows differ in, where they were matched across that.
        matched_values: what A and B have there.
        rows: rows of both.
        geomean: geometric mean of the ratios of rows that a verdict could be given on.
        geomean_ci: its interval: low and high.
        geomean_verdict: its verdict.
        counts: how many rows have each verdict.
        only_a: rows of A without a partner.
        only_b: rows of B without a partner.
        untimed: pairs that are not timed on both sides.
        warnings: in what the runs differ, in sentences.
        differences: the same as objects.
        notes: what a reader has to know.
        settings: what a verdict took: alpha, margin, confidence, correction; how many replicates
            the store has, and assumed_sd: what runs were assumed to differ by where these are few.
    """

    a: Mapping[str, Any] = msgspec.field(default_factory=dict)
    b: Mapping[str, Any] = msgspec.field(default_factory=dict)
    interleaved: bool = False
    passes: int | None = None
    matched_across: str | None = None
    matched_values: tuple[str, ...] | None = None
    rows: tuple[ComparisonRow, ...]
    geomean: float | None
    geomean_ci: tuple[float | None, ...] | None = None
    geomean_verdict: str | None = None
    counts: Mapping[str, int] = msgspec.field(default_factory=dict)
    only_a: tuple[Mapping[str, Any], ...] = ()
    only_b: tuple[Mapping[str, Any], ...] = ()
    untimed: tuple[Mapping[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    differences: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = msgspec.field(default_factory=dict)
