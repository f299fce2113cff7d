"""What the framework's operator loses to the native library's fastest kernel on the same layer."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, Protocol

from pydlbench.diagnose.finding import Cause, Saving
from pydlbench.errors import PrimitiveError
from pydlbench.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydlbench.backends.case import Case
    from pydlbench.diagnose.experiments import Contest
    from pydlbench.results import Measurement

__all__ = ["Rows", "contest_saving"]

# Of these, findings of their own take care; a native kernel has neither.
_ELSEWHERE: Final = ("allocation", "dispatch")
_UNEXPLAINED: Final = "unexplained"
#: What to say of a cause.
_MEANING: Final = {
    "weights not packed": "the operator reads its weights as they lie; packed once, they are read "
    "in the order in which the kernel needs them",
    "reorders": "the library brings operands into other layouts in every call",
    "slower kernel": "the operator's kernel is slower than the fastest one on these sizes",
    "generic kernel": "the library falls back to a kernel that is not optimised for this case",
    "one thread": "only one thread works",
    "idle threads": "threads wait for others",
}


class Rows(Protocol):
    """What a contest needs of a session."""

    def measure(
        self, cases: Sequence[Case], progress: Callable[[int, int, str], None] | None = ...
    ) -> Iterator[Measurement]:
        """Measure cases; those that differ in backend and mode only, in turn."""


def contest_saving(experiment: Contest, step_s: float, session: Rows) -> Saving:
    """Return what the fastest native kernel would save, as far as causes were measured.

    What freshly allocated results and the call itself cost is left out: other findings have that.

    Args:
        experiment: which operator.
        step_s: the step's seconds.
        session: measures.

    Raises:
        PrimitiveError: one of the two has no time; the message says why.
    """
    native = dataclasses.replace(experiment.case, backend="native", mode=None)
    own, best = session.measure([experiment.case, native])
    for row in (own, best):
        if not row.ok:
            raise PrimitiveError(f"{row.backend} {row.layer}: {row.reason or row.status}")
    assert own.time is not None
    assert own.ratio is not None
    found = [one for one in own.causes if one["cause"] not in (*_ELSEWHERE, _UNEXPLAINED)]
    beside = sum(float(one["seconds"]) for one in own.causes if one["cause"] in _ELSEWHERE)
    seconds = sum(float(one["seconds"]) for one in found)
    time_s, ratio = own.time.median, own.ratio

    def gap(one: float) -> float:
        """The seconds that are lost at a ratio, other findings' left out."""
        return time_s * (1 - 1 / one) - beside

    explained = seconds / gap(ratio["median"]) if gap(ratio["median"]) > 0 else 0.0
    share = min(1.0, explained)  # no more than there is to win
    low, high = ratio["ci_low"], ratio["ci_high"]
    count = experiment.count
    saved = count * share * gap(ratio["median"])
    return Saving(
        seconds=saved,
        low=None if low is None else count * share * gap(low),
        high=None if high is None else count * share * gap(high),
        step_s=step_s,
        of="layer",
        how=_how(own, best, count),
        rounds=ratio["rounds"],
        causes=tuple(
            Cause(
                name=str(one["cause"]),
                meaning=_MEANING.get(one["cause"], str(one["how"])),
                seconds=saved * float(one["seconds"]) / seconds,
            )
            for one in sorted(found, key=lambda one: -float(one["seconds"]))
            if seconds > 0
        ),
        evidence=tuple(_line(one) for one in found),
        otherwise="" if found else _unexplained(ratio),
    )


def _unexplained(ratio: Mapping[str, Any]) -> str:
    """What to say of a gap that nobody has measured a cause of."""
    if ratio["ci_low"] is None or ratio["ci_low"] <= 1:
        return ""
    return f"{ratio['median']:.2f}x {ratio['to']}, but no cause of it was measured"


def _how(own: Measurement, best: Measurement, count: int) -> str:
    assert own.time is not None
    assert own.ratio is not None
    times = f"{own.who} {format_seconds(own.time.median)}"
    times += f", {own.ratio['median']:.2f}x {own.ratio['to']} ({best.algorithm or best.who})"
    often = f"; {count} times in the step" if count > 1 else ""
    return f"the layer alone, in turn, {own.ratio['rounds']} rounds: {times}{often}"


def _line(cause: Mapping[str, Any]) -> str:
    share = format_percent(cause["share"])
    return (
        f"{cause['cause']}: {format_seconds(cause['seconds'])} ({share} of the gap): {cause['how']}"
    )
