"""Warm-up and stopping rules: fed with numbers, they say when enough is enough."""

from __future__ import annotations

import itertools
from bisect import insort
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pydlbench.timing.policy import Policy
from pydlbench.timing.statistics import median, median_interval

if TYPE_CHECKING:
    from collections.abc import Sequence


# -----------------------------------------------------------------------------
# Stopping rules: pure objects that are fed with numbers and say when enough is enough.
#
# The shape is NVBench's: ``add_measurement`` and ``is_finished``. Optional stopping costs a little
# coverage (a rule stops rather when the interval happens to be narrow), which is why precision is
# asked only at the end of a chunk and never below ``min_samples``.


class StoppingRule(Protocol):
    """What every rule offers."""

    @property
    def reason(self) -> str:
        """Short key of the rule that finished, such as ``precision``."""
        ...

    @property
    def detail(self) -> str:
        """The reason in words, with its figures."""
        ...

    def add_measurement(self, seconds: float, cost_s: float | None = None) -> None:
        """Add a sample (seconds per execution) that cost ``cost_s`` of wall time."""
        ...

    def is_finished(self) -> bool:
        """Whether this rule wants to stop."""
        ...


class MedianPrecision:
    """Stops when the median's confidence interval is narrow enough."""

    reason = "precision"

    def __init__(
        self, *, min_samples: int = 10, half_width: float = 0.005, confidence: float = 0.95
    ) -> None:
        self._min_samples = min_samples
        self._half_width = half_width
        self._confidence = confidence
        self._ordered: list[float] = []

    def half_width(self) -> float | None:
        """Return half of the interval's width over the median; None with too few samples."""
        interval = median_interval(self._ordered, self._confidence)
        return None if interval is None else interval.half_width(median(self._ordered))

    @property
    def detail(self) -> str:
        """The interval reached, in words."""
        width = self.half_width()
        if width is None:
            return f"{len(self._ordered)} samples: no interval at {self._confidence:.0%}"
        return f"median known to {width:.2%} at {self._confidence:.3g} confidence"

    def add_measurement(self, seconds: float, cost_s: float | None = None) -> None:  # noqa: ARG002 - same call for all rules
        """Add a sample."""
        insort(self._ordered, seconds)

    def is_finished(self) -> bool:
        """Whether there are enough samples and a narrow enough interval."""
        if len(self._ordered) < self._min_samples:
            return False
        width = self.half_width()
        return width is not None and width <= self._half_width


class SteadyNoise:
    """Stops when the noise has stopped changing: more samples tell no more.

    Noise is the interquartile range over the middle of the quartiles, not over the median: a
    bimodal kernel's median flips between its modes, its quartiles stand still. A drifting kernel's
    noise looks steady too once there are many samples, so the first half of the samples must not
    lie to one side of the common median.
    """

    reason = "steady-noise"
    # Net share of the first half above the median. Without drift its standard deviation is 0.09
    # at 128 samples (hypergeometric), so 0.25 refuses fewer than one steady kernel in a hundred,
    # and that one only goes on for a while.
    _one_sided = 0.25

    def __init__(
        self, *, window: int = 64, tolerance: float = 0.05, min_samples: int = 128
    ) -> None:
        self._window: deque[float] = deque(maxlen=window)
        self._tolerance = tolerance
        self._min_samples = min_samples
        self._ordered: list[float] = []
        self._in_time: list[float] = []

    @property
    def detail(self) -> str:
        """The noise reached, in words."""
        noise = self._window[-1] if self._window else 0.0
        return f"noise steady at {noise:.2%} (interquartile range)"

    def add_measurement(self, seconds: float, cost_s: float | None = None) -> None:  # noqa: ARG002 - same call for all rules
        """Add a sample and the noise estimate after it."""
        insort(self._ordered, seconds)
        self._in_time.append(seconds)
        # Plain ranks instead of interpolated quartiles: this runs once per sample.
        n = len(self._ordered)
        q1, q3 = self._ordered[n // 4], self._ordered[(3 * n) // 4]
        self._window.append(2 * (q3 - q1) / (q3 + q1) if q3 > 0 else 0.0)

    def is_finished(self) -> bool:
        """Whether the noise is steady and the samples do not drift."""
        n = len(self._ordered)
        if n < self._min_samples or len(self._window) < (self._window.maxlen or 0):
            return False
        mean = sum(self._window) / len(self._window)
        if max(self._window) - min(self._window) > 2 * self._tolerance * mean:
            return False
        middle = self._ordered[n // 2]
        first = self._in_time[: n // 2]
        net = sum(x > middle for x in first) - sum(x < middle for x in first)
        return abs(net) <= self._one_sided * len(first)


class Budget:
    """Stops when the time is spent, but not below a floor of samples.

    A kernel whose single sample is longer than the whole budget gets ``slow_samples`` only.
    """

    reason = "budget"

    def __init__(self, seconds: float, *, floor_samples: int = 6, slow_samples: int = 3) -> None:
        self._seconds = seconds
        self._floor = floor_samples
        self._slow = min(slow_samples, floor_samples)
        self._spent = 0.0
        self._count = 0
        self._cheapest = float("inf")

    @property
    def detail(self) -> str:
        """What was spent, in words."""
        words = f"{self._spent:.3g} s of {self._seconds:g} s budget spent"
        if self._too_slow():
            words += f"; one sample takes longer than the budget, so there are only {self._count}"
        elif self._count <= self._floor:
            words += f"; {self._count} samples are the least taken"
        return words

    def _too_slow(self) -> bool:
        return self._count > 0 and self._cheapest > self._seconds

    def add_measurement(self, seconds: float, cost_s: float | None = None) -> None:
        """Add a sample's cost; without ``cost_s`` the sample's own seconds."""
        cost = seconds if cost_s is None else cost_s
        self._spent += cost
        self._count += 1
        self._cheapest = min(self._cheapest, seconds)

    def is_finished(self) -> bool:
        """Whether the budget is spent and the floor reached."""
        floor = self._slow if self._too_slow() else self._floor
        return self._spent >= self._seconds and self._count >= floor


class MaxSamples:
    """Stops at a number of samples."""

    reason = "max-samples"

    def __init__(self, count: int) -> None:
        self._limit = count
        self._count = 0

    @property
    def detail(self) -> str:
        """The limit, in words."""
        return f"limit of {self._limit} samples"

    def add_measurement(self, seconds: float, cost_s: float | None = None) -> None:  # noqa: ARG002 - same call for all rules
        """Count a sample."""
        self._count += 1

    def is_finished(self) -> bool:
        """Whether the limit is reached."""
        return self._count >= self._limit


class AnyOf:
    """Stops as soon as one of several rules does; the first in order gives the reason."""

    def __init__(self, *rules: StoppingRule) -> None:
        self._rules = rules

    def _finished(self) -> StoppingRule | None:
        return next((rule for rule in self._rules if rule.is_finished()), None)

    @property
    def reason(self) -> str:
        """Key of the first finished rule; ``unfinished`` while there is none."""
        rule = self._finished()
        return "unfinished" if rule is None else rule.reason

    @property
    def detail(self) -> str:
        """Words of the first finished rule; empty while there is none."""
        rule = self._finished()
        return "" if rule is None else rule.detail

    def add_measurement(self, seconds: float, cost_s: float | None = None) -> None:
        """Pass a sample on to every rule."""
        for rule in self._rules:
            rule.add_measurement(seconds, cost_s)

    def is_finished(self) -> bool:
        """Whether any rule wants to stop."""
        return self._finished() is not None


def default_rule(policy: Policy) -> AnyOf:
    """Precision, then steady noise, then the budget, then the sample limit."""
    return AnyOf(
        MedianPrecision(
            min_samples=policy.min_samples,
            half_width=policy.half_width,
            confidence=policy.confidence,
        ),
        SteadyNoise(
            window=policy.noise_window,
            tolerance=policy.noise_tolerance,
            min_samples=policy.noise_min_samples,
        ),
        Budget(
            policy.budget_s,
            floor_samples=policy.floor_samples,
            slow_samples=policy.slow_samples,
        ),
        MaxSamples(policy.max_samples),
    )


# -----------------------------------------------------------------------------
# Warm-up: run until time and clock are steady, or say that they never were.


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupOutcome:
    """How a warm-up ended: ``reason`` is ``steady``, ``limit`` or ``running``."""

    reason: str
    seconds: float
    detail: str

    @property
    def steady(self) -> bool:
        """Whether time and clock had settled."""
        return self.reason == "steady"


class Warmup:
    """Finished when the last chunks agree in time and clock, without a trend.

    Agreement: the window's largest median is within the tolerance of its smallest. Trend: the
    window moves in one direction all the way and by more than half the tolerance in total; two
    chunks have none.
    """

    def __init__(self, policy: Policy | None = None) -> None:
        self._policy = policy or Policy()
        self._times: list[float] = []
        self._clocks: list[float | None] = []
        self._spent = 0.0

    def add_chunk(
        self, seconds: Sequence[float], clock_hz: Sequence[float] = (), wall_s: float = 0.0
    ) -> None:
        """Add a chunk: its samples, its clock readings (may be empty), its wall time."""
        self._times.append(median(seconds))
        self._clocks.append(median(clock_hz) if clock_hz else None)
        self._spent += max(wall_s, sum(seconds))

    def is_finished(self) -> bool:
        """Whether to go on to the samples that count."""
        return self._settled() or self._spent >= self._policy.warmup_limit_s

    def outcome(self) -> WarmupOutcome:
        """How it ended, or stands."""
        if self._settled():
            reason, detail = "steady", "time and clock steady"
        elif self._spent >= self._policy.warmup_limit_s:
            reason = "limit"
            if len(self._times) < self._policy.warmup_window:
                detail = f"too slow to warm up longer ({len(self._times)} chunks)"
            else:
                what = "clock" if self._window_settled(self._times) else "time"
                detail = f"{what} still not steady after {self._spent:.2g} s"
        else:
            reason, detail = "running", "warm-up not finished"
        return WarmupOutcome(reason=reason, seconds=self._spent, detail=detail)

    def _settled(self) -> bool:
        if not self._window_settled(self._times):
            return False
        recent = self._clocks[-self._policy.warmup_window :]
        clocks = [clock for clock in recent if clock is not None]
        return len(clocks) < len(recent) or self._window_settled(clocks)

    def _window_settled(self, values: Sequence[float]) -> bool:
        window = values[-self._policy.warmup_window :]
        if len(window) < self._policy.warmup_window:
            return False
        tolerance = self._policy.warmup_tolerance * min(window)
        steps = [b - a for a, b in itertools.pairwise(window)]
        one_way = all(step > 0 for step in steps) or all(step < 0 for step in steps)
        if one_way and len(window) > 2 and abs(window[-1] - window[0]) > tolerance / 2:
            return False
        return max(window) - min(window) <= tolerance
