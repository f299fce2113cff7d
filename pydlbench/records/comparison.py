"""The comparison of two runs row by row, with a verdict on each ratio: what ``compare`` writes."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import msgspec

from pydlbench.records.agreement import ModelChange
from pydlbench.records.record import Document, Record, one_of, shown
from pydlbench.units import format_seconds, number

Verdict = Annotated[
    str, one_of("SAME", "FASTER", "SLOWER", "UNCLEAR"), shown("verdict", right=False)
]
#: Larger ratios are printed as a factor instead of a percentage.
FACTOR = 2.0
_words = partial(shown, right=False)


def ratio_text(value: float) -> str:
    """Format a ratio: ``1.032``, ``0.970``, ``12.4``."""
    return f"{value:.3f}" if 0.0995 <= value < 9.995 else number(value)


def least_change(value: float) -> str:
    """Format the smallest detectable change: ``12 %``, ``2.1x``."""
    if value > 99:
        return "-"
    # From 99.5 % on, two digits of a percentage would need an exponent.
    return f"{value:.1f}x" if value >= FACTOR - 0.005 else f"{100 * (value - 1):.2g} %"


class ComparisonSide(Record, frozen=True, kw_only=True):
    """One side of a row.

    Attributes:
        layer: name of the layer on this side.
        median: seconds per execution.
        ci_low: lower end of the median's interval within the run, in seconds.
        ci_high: upper end of the interval.
        n: number of samples.
        clock_hz: core clock beside the samples, in Hz.
        contended: whether other work disturbed it.
        algorithm: the implementation.
        backend: backend that computed it.
        mode: mode of a framework.
        threads: number of threads.
        layout_request: requested layout.
        cache: cache state.
        precision: storage and arithmetic.
        device: cpu or cuda:N.
        fuse: operations fused into the same call.
        library: library with its version, for interleaved sides; null for stored runs.
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
    """A ratio with its interval and verdict.

    Attributes:
        ratio: B's time divided by A's time.
        ci_low: lower end of the interval of this row alone: for stored runs the prediction
            interval of another pair of runs, for interleaved ones the interval of the mean.
        ci_high: upper end of the interval.
        verdict: verdict on B.
        resolution: the smallest detectable ratio above one; null where none is.
        cycles: the ratio in clock cycles instead of seconds; null where a clock is not known.
        reason: why there is no verdict.
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
        problem: descriptor, or another key of the problem.
        batch: images.
        pass_: pass of a layer, phase of a step.
        precision: storage and arithmetic.
        device: cpu or cuda:N.
        backend: backend that computed it.
        mode: mode of a framework.
        cache: cache state.
        threads: number of threads.
        layout_request: requested layout.
        fuse: operations fused into the same call.
        propagation: inference or training.
        a: side A.
        b: side B.
        by_pass: the ratio of each pass of an interleaved comparison; null for stored runs.
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
        passes: number of preparations of both sides.
        matched_across: the setting in which all matched rows differ; null if there is none.
        matched_values: the values of that setting in A and B.
        rows: rows that both runs have.
        geomean: geometric mean of the ratios of rows with a verdict.
        geomean_ci: interval of the geometric mean: low and high.
        geomean_verdict: verdict on the geometric mean.
        counts: number of rows by verdict.
        only_a: rows of A without a partner.
        only_b: rows of B without a partner.
        untimed: pairs that are not timed on both sides.
        warnings: differences between the runs, in sentences.
        differences: differences between the runs, as objects.
        notes: remarks for the reader.
        refused: kernels that compute something else, or cheat: they are not ranked.
        settings: settings of the verdicts: alpha, margin, worth (changes beyond it are worth a
            look), confidence, correction; the number of stored replicates; assumed_sd, the assumed
            deviation of runs where these are too few.
        change: of two models' steps, whether they compute the same, and by which calls they differ.
        interrupted: whether the run ended before both sides were measured completely.
        unfinished: labels of the rows that it lacks, completely or in part.
    """

    interrupted: bool = False
    unfinished: tuple[str, ...] = ()
    a: Mapping[str, Any] = msgspec.field(default_factory=dict)
    b: Mapping[str, Any] = msgspec.field(default_factory=dict)
    interleaved: bool = False
    passes: int | None = None
    matched_across: str | None = None
    matched_values: tuple[str, ...] | None = None
    rows: tuple[ComparisonRow, ...] = ()
    geomean: float | None = None
    geomean_ci: tuple[float | None, ...] | None = None
    geomean_verdict: str | None = None
    counts: Mapping[str, int] = msgspec.field(default_factory=dict)
    only_a: tuple[Mapping[str, Any], ...] = ()
    only_b: tuple[Mapping[str, Any], ...] = ()
    untimed: tuple[Mapping[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    differences: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    settings: Mapping[str, Any] = msgspec.field(default_factory=dict)
    change: ModelChange | None = None
