"""What is kept of a fleet's visits, and what a verdict says of its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Final

import msgspec

from pydlbench.records.fields import shown
from pydlbench.records.record import Record, one_of
from pydlbench.units import cut, format_seconds, percent

#: Formats a fraction in per cent with its sign.
SIGNED: Final = partial(percent, signed=True)
_WIDE: Final = 48  # characters of a metric in tables


class FleetVisit(Record, frozen=True, kw_only=True):
    """One sweep on one slot in one round; the rows themselves lie in a store beside the fleet's.

    Attributes:
        node: the slot's name: host and what of it is used.
        round: counted from 0.
        tries: how often it was begun.
        status: whether it has taken all that was asked for.
        reason: why not.
        started_utc: by the node's own clock, in ISO 8601.
        seconds: that the visit took.
        clock_offset_s: the node's clock less that of whoever started the fleet, in seconds.
        machine: short name of the CPU or GPU.
        host: of a GPU, short name of the CPU beside it; it is not in the kind.
        kind: digest of the hardware and of all versions: nodes of one kind can be compared.
        versions: of the libraries, and the digest of the code that times.
        prefix: what stands before a command line that is to run on this slot.
        store: file name of the store that was brought back.
        values: by metric: ``time_s`` and, where they are known, ``clock_hz``, ``contended``,
            ``bandwidth_gbps``, ``temperature_c``, ``power_w`` and ``throttle``.
    """

    node: str
    round: int
    tries: int = 1
    status: Annotated[str, one_of("ok", "failed")]
    reason: str | None = None
    started_utc: str = ""
    seconds: float = 0.0
    clock_offset_s: float = 0.0
    machine: str = ""
    host: str = ""
    kind: str = ""
    versions: Mapping[str, str] = msgspec.field(default_factory=dict)
    prefix: str = ""
    store: str | None = None
    values: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)


class FleetNode(Record, frozen=True, kw_only=True):
    """One node, or one slot of it.

    Attributes:
        node: its name.
        machine: short name of its CPU or GPU.
        group: number of the nodes that it is compared with; null where it was never heard of.
        rounds: how many of its rounds are whole.
        failed: how many are not.
        reason: why the last of these is not.
        versions: of its libraries, and the digest of the code that times.
        verdict: SLOW if it is in any metric; UNCLEAR if nothing else can be said.
    """

    node: str
    machine: str
    group: int | None
    rounds: int
    failed: int
    reason: str | None
    versions: Mapping[str, str] = msgspec.field(default_factory=dict)
    verdict: Annotated[str, one_of("SLOW", "FAST", "SAME", "UNCLEAR")]


class FleetMetric(Record, frozen=True, kw_only=True):
    """How one metric comes out over the nodes of a kind.

    Attributes:
        metric: what was timed; of several the last is all of them together.
        group: number of the kind of nodes.
        nodes: how many have a value.
        median_s: median of the nodes, in seconds; null of all metrics together.
        spread: standard deviation between nodes as a fraction, from the median deviation.
        least: effect of the fastest node, as a fraction.
        most: effect of the slowest.
        resolution: the slowdown of a single node that is found in 99 of 100 fleets, a fraction.
    """

    metric: Annotated[str, shown("metric", partial(cut, width=_WIDE), right=False)]
    group: int
    nodes: Annotated[int, shown("nodes")]
    median_s: Annotated[float | None, shown("median", format_seconds, unit="s")]
    spread: Annotated[float, shown("spread", percent)]
    least: Annotated[float, shown("fastest .. slowest", SIGNED)]
    most: float
    resolution: Annotated[float | None, shown("found from", percent)]

    @property
    def kind(self) -> Annotated[int, shown("kind")]:
        """The number of its kind of nodes, from 1."""
        return self.group + 1


class FleetEvidence(Record, frozen=True, kw_only=True):
    """What was read beside a slow node's rows.

    Attributes:
        what: clock, power cap, temperature, memory bandwidth, other work or unexplained.
        share: of the slowdown that it accounts for, 1 is all; null where that cannot be said.
        text: with its numbers.
    """

    what: str
    share: float | None
    text: str


def _texts(evidence: Iterable[FleetEvidence]) -> str:
    return "; ".join(each.text for each in evidence)


class FleetEffect(Record, frozen=True, kw_only=True):
    """One node in one metric, against the median of the other nodes of its kind.

    Attributes:
        node: its name.
        metric: what was timed.
        effect: by which fraction it is slower; negative where it is faster.
        ci_low: lower end of a 95 % interval, for this node and metric alone.
        ci_high: upper end.
        rounds: behind it.
        q: the least rate of false discoveries at which it would be called slow.
        verdict: SLOW, FAST, SAME or UNCLEAR.
        evidence: why, where it is slow.
        command: what shows it again on that node.
    """

    node: Annotated[str, shown("slow node", right=False)]
    metric: Annotated[str, shown("metric", partial(cut, width=_WIDE), right=False)]
    effect: Annotated[float | None, shown("slower by", SIGNED)]
    ci_low: Annotated[float | None, shown("95 % CI", SIGNED)]
    ci_high: float | None
    rounds: Annotated[int, shown("rounds")]
    q: float | None
    verdict: Annotated[str, one_of("SLOW", "FAST", "SAME", "UNCLEAR")]
    evidence: Annotated[
        tuple[FleetEvidence, ...], shown("read beside it", _texts, right=False)
    ] = ()
    command: str = ""


class FleetStep(Record, frozen=True, kw_only=True):
    """What a synchronous data-parallel step loses to its slowest node, communication apart.

    Attributes:
        metric: the step or estimate.
        nodes: how many take part.
        median_s: of the other nodes, in seconds.
        slowest: the node that all wait for.
        slowest_s: its seconds.
        loss: by which fraction the step is longer than on the median of the others.
        ci_low: lower end of its interval, from the slowest node's.
        ci_high: upper end.
        without_slow: the same loss without the nodes that are SLOW.
    """

    metric: str
    nodes: int
    median_s: float
    slowest: str
    slowest_s: float
    loss: float
    ci_low: float | None
    ci_high: float | None
    without_slow: float | None


class FleetVerdict(Record, frozen=True, kw_only=True):
    """What is said of a fleet.

    Attributes:
        beyond: what counts as slow, as a fraction: an effect has to lie beyond it.
        nodes: in the order of their first visits.
        metrics: by kind of nodes.
        effects: of each node in each metric that it has.
        steps: what a synchronous step loses.
        notes: what a reader has to know.
    """

    beyond: float
    nodes: tuple[FleetNode, ...]
    metrics: tuple[FleetMetric, ...]
    effects: tuple[FleetEffect, ...]
    steps: tuple[FleetStep, ...]
    notes: tuple[str, ...]

    @property
    def slow(self) -> list[FleetEffect]:
        """Those that are SLOW, the slowest first."""
        effects = [effect for effect in self.effects if effect.verdict == "SLOW"]
        return sorted(effects, key=lambda each: -(each.effect or 0.0))

    @property
    def whole(self) -> list[FleetEffect]:
        """The nodes' effects in all metrics together, or in the only one."""
        groups = {node.node: node.group for node in self.nodes}
        last: dict[int | None, str] = {metric.group: metric.metric for metric in self.metrics}
        return [effect for effect in self.effects if last.get(groups[effect.node]) == effect.metric]


class FleetChange(Record, frozen=True, kw_only=True):
    """What became of a node in a metric from one fleet to another.

    Attributes:
        node: its name.
        metric: what was timed.
        before_s: mean of its rounds in the first fleet, in seconds; null of all metrics together.
        after_s: in the second.
        change: by which fraction it became slower against the others of its kind.
        ci_low: lower end of a 95 % interval, for this node and metric alone.
        ci_high: upper end.
        q: the least rate of false discoveries at which it would be called slower.
        verdict: SLOWER, FASTER, SAME or UNCLEAR.
    """

    node: Annotated[str, shown("node", right=False)]
    metric: Annotated[str, shown("metric", partial(cut, width=_WIDE), right=False)]
    before_s: Annotated[float | None, shown("before", format_seconds, unit="s")]
    after_s: Annotated[float | None, shown("after", format_seconds, unit="s")]
    change: Annotated[float | None, shown("against the others", SIGNED)]
    ci_low: Annotated[float | None, shown("95 % CI", SIGNED)]
    ci_high: float | None
    q: float | None
    verdict: Annotated[
        str,
        one_of("SLOWER", "FASTER", "SAME", "UNCLEAR"),
        shown("verdict", right=False),
    ]


class FleetCommon(Record, frozen=True, kw_only=True):
    """What all nodes of a kind changed by together, which is in none of their changes.

    Attributes:
        metric: what was timed.
        group: number of the kind of nodes.
        nodes: how many are in both fleets.
        change: median over them of the fraction by which they became slower.
        least: of the node with the least.
        most: of the one with the most.
    """

    metric: Annotated[str, shown("all nodes together", partial(cut, width=_WIDE), right=False)]
    group: int
    nodes: Annotated[int, shown("nodes")]
    change: Annotated[float, shown("median change", SIGNED)]
    least: Annotated[float, shown("least .. most", SIGNED)]
    most: float

    @property
    def kind(self) -> Annotated[int, shown("kind")]:
        """The number of its kind of nodes, from 1."""
        return self.group + 1


class FleetComparison(Record, frozen=True, kw_only=True):
    """Two runs of a fleet, node by node.

    Attributes:
        beyond: what counts as a change, as a fraction.
        nodes: those that are in both, by name and by CPU or card.
        gone: those that are in the first one only.
        came: those that are in the second one only.
        changes: of each node in each metric that both fleets have.
        common: what all nodes changed by.
        notes: what a reader has to know: versions that differ.
    """

    beyond: float
    nodes: tuple[str, ...]
    gone: tuple[str, ...]
    came: tuple[str, ...]
    changes: tuple[FleetChange, ...]
    common: tuple[FleetCommon, ...]
    notes: tuple[str, ...]

    def with_verdict(self, verdict: str) -> list[FleetChange]:
        """Return the changes of a verdict, the largest first."""
        changes = [change for change in self.changes if change.verdict == verdict]
        return sorted(changes, key=lambda each: -abs(each.change or 0.0))
