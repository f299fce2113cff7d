"""The experiments of a check on a GPU: what each explains of the difference that it lies in.

There are no page faults and no log of a library here. What there is instead: the same step in a
graph, in which the host launches nothing; the step without what comes from the host; the clock that
the GPU had beside each rung.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.ladder.ledger import Experiment
from pydlbench.ladder.pipeline import STEPS
from pydlbench.timing.statistics import median
from pydlbench.units import Scale, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.ladder.ledger import Ladder
    from pydlbench.records.check import Lap
    from pydlbench.records.step import StepSpec
    from pydlbench.timing.chunk import GpuReadings

#: The term of the time in which the device waits for the host.
LAUNCH_GAPS: Final = "launch gaps"
#: What a rung is measured on, where that is another thing than on a CPU.
DEVICE_HOWS: Final = {
    "operators": "the device's seconds of the framework's calls, each distinct one alone, on "
    "operands made up from its signature, times its number",
    "operator_chain": "the step's recorded calls in their order, on each other's results, replayed "
    "from a CUDA graph",
    "step": f"the host's seconds of up to {STEPS} steps, the device's work awaited behind the last",
}
# A share of the step below which another clock explains nothing.
_NOTHING: Final = 1e-3
# Between whose clocks there may be a difference, and below which rung it lies.
_CLOCKS: Final = (
    ("operators", "operator_chain", "operator_chain"),
    ("operator_chain", "step_graph", "step"),
)


def device_experiments(
    case: StepSpec, ladder: Ladder, laps: Sequence[Lap], scaled: float
) -> tuple[list[Experiment], list[str]]:
    """Return what was tried, and notes on what could not be.

    Args:
        case: the step, on a GPU.
        ladder: what the laps say.
        laps: for the clocks beside the visits.
        scaled: share of the operators' time that is bound by compute: it takes longer at a lower
            clock, as much as the clock is lower.
    """
    found: list[Experiment] = []
    notes: list[str] = []
    resident = "step_resident" if case.feed == "host" else "step"
    if gaps := ladder.between("step_graph", resident):
        found.append(
            Experiment(
                term=LAUNCH_GAPS,
                rung="step",
                seconds=gaps,
                how="the step minus the same step replayed from a CUDA graph",
                detail=_idle(ladder, resident),
            )
        )
    if case.feed == "host" and (fed := ladder.between("step_resident", "step")):
        how = "the step fed from the host minus the same with its images lying on the device"
        found.append(Experiment(term="host transfer", rung="step", seconds=fed, how=how))
    for lower, upper, rung in _CLOCKS:
        term, note = _clock(ladder, laps, lower, upper, rung, scaled)
        found += term
        notes += note
    return found, notes


def _idle(ladder: Ladder, resident: str) -> str:
    """Return for how much of the step the device waits, and what the host needs meanwhile."""
    step_s, graph_s = (median(ladder.values[name].values()) for name in (resident, "step_graph"))
    words = f"the device waits for {percent(max(0.0, 1 - graph_s / step_s))} of the step"
    if host := ladder.values.get("step_enqueue"):
        words += f", the host enqueues for {percent(median(host.values()) / step_s)} of it"
    return words


def _clock(
    ladder: Ladder, laps: Sequence[Lap], lower: str, upper: str, rung: str, scaled: float
) -> tuple[list[Experiment], list[str]]:
    """Return what another clock beside two rungs explains of their difference."""
    pairs = {
        number: (lap.sm_clock_hz[lower], lap.sm_clock_hz[upper])
        for number, lap in enumerate(laps)
        if lower in lap.sm_clock_hz and upper in lap.sm_clock_hz
    }
    known = ladder.values.get(lower, {})
    seconds = {
        number: known[number] * scaled * (low / high - 1)
        for number, (low, high) in pairs.items()
        if number in known
    }
    words = f"{lower.replace('_', ' ')} and {upper.replace('_', ' ')}"
    if not seconds or "step" not in ladder.values:
        return [], [f"no clock term: the GPU's clock is not known beside {words}"]
    low, high = (median(one[side] for one in pairs.values()) for side in (0, 1))
    ghz = f"{low / 1e9:.2f} GHz and {high / 1e9:.2f} GHz beside {words}"
    step_s = median(ladder.values["step"].values())
    if abs(median(seconds.values())) < _NOTHING * step_s:
        return [], [f"the same clock: {ghz}"]
    how = f"{ghz}: cycles against seconds of the {percent(scaled)} that compute bounds"
    name = f"clock of the {rung.replace('_', ' ')}"
    return [Experiment(term=name, rung=rung, seconds=seconds, how=how)], []


def compute_share(timed: Sequence[tuple[float, bool]]) -> float:
    """Return the share of operators' time that is bound by compute; 0 without any.

    Args:
        timed: seconds of each in the step, and whether its native kernels' rooflines say so.
    """
    total = sum(seconds for seconds, _ in timed)
    return sum(seconds for seconds, bound in timed if bound) / total if total else 0.0


def power_notes(readings: Mapping[str, Sequence[GpuReadings]]) -> list[str]:
    """Return what held the clock down in visits, by what was visited, and at which power.

    Args:
        readings: of each visit, by the name of what was visited.
    """
    found = []
    for name, visits in readings.items():
        held = [one for one in visits if set(one.reasons) - {"idle"}]
        if not held:
            continue
        reasons = dict.fromkeys(word for one in held for word in one.reasons if word != "idle")
        watts = [one.power_w for one in held if one.power_w]
        power = f", at {median(watts):.0f} W" if watts else ""
        words = f"the clock was held down ({', '.join(reasons)}) in {len(held)} of {len(visits)}"
        found.append(f"{name.replace('_', ' ')}: {words} visits{power}")
    return found


def allocation_note(blocks: float | None, step_s: float) -> str:
    """Return what is to be said of the blocks that a step asks the GPU's driver for."""
    if blocks is None:
        return "nobody counted what the step asks the driver for"
    if not blocks:
        return "the step asks the driver for no memory once it is warm"
    return (
        f"the step asks the driver for {blocks:.1f} blocks each time, which waits for the device: "
        f"expected are none; its {Scale.fit(step_s).text(step_s)} have that in them"
    )
