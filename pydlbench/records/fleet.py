"""Stored visits of a fleet (one sweep on one node each), and the verdict on its nodes."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final

import msgspec

from pydlbench.records.record import Record, one_of, shown
from pydlbench.units import cut, format_seconds, percent

#: Formats a fraction as a signed percentage.
SIGNED: Final = partial(percent, signed=True)
_METRIC_WIDTH: Final = 48  # characters of a metric in tables


class FleetVisit(Record, frozen=True, kw_only=True):
    """One sweep on one slot in one round; its rows are in a store beside the fleet's.

    Attributes:
        node: name of the slot: the host and the used part of it.
        round: number of the round, from 0.
        tries: number of attempts.
        status: whether everything that was requested was measured.
        reason: reason why something was not measured.
        started_utc: start by the node's clock, in ISO 8601.
        seconds: duration of the visit.
        clock_offset_s: the node's clock less that of the host that started the fleet, in seconds.
        machine: short name of the CPU or GPU.
        host: short name of a GPU's CPU; it is not part of the kind.
        kind: digest of the hardware and of all versions: nodes of one kind can be compared.
        versions: versions of the libraries, and the digest of the timing code.
        prefix: prefix of a command line that is to run on this slot.
        store: file name of the store that was copied from the node.
        values: value of each metric: ``time_s`` and, where they are known, ``clock_hz``,
            ``contended``, ``bandwidth_gbps``, ``temperature_c``, ``power_w`` and ``throttle``.
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
        node: name of the node.
        machine: short name of its CPU or GPU.
        group: number of its kind, with which it is compared; null if it never answered.
        rounds: number of complete rounds.
        failed: number of incomplete rounds.
        reason: why the last incomplete round failed.
        versions: versions of its libraries, and the digest of the timing code.
        verdict: SLOW if it is slow in any metric; UNCLEAR if there is no other verdict.
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
    """One metric over the nodes of a kind.

    Attributes:
        metric: name of the timed step, estimate or layer; with several, the last is all together.
        group: number of the kind of nodes.
        nodes: number of nodes with a value.
        median_s: median of the nodes, in seconds; null for all metrics together.
        spread: standard deviation between nodes as a fraction, from the median deviation.
        least: effect of the fastest node, as a fraction.
        most: effect of the slowest node, as a fraction.
        resolution: the slowdown of a single node that is found in 99 of 100 fleets, a fraction.
    """

    metric: Annotated[str, shown("metric", partial(cut, width=_METRIC_WIDTH), right=False)]
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
    """A reading beside a slow node's rows that may explain them.

    Attributes:
        what: clock, power cap, temperature, memory bandwidth, other work or unexplained.
        share: share of the slowdown that it explains, 1 is all; null where that is not known.
        text: description with numbers.
    """

    what: str
    share: float | None
    text: str


class FleetEffect(Record, frozen=True, kw_only=True):
    """One node in one metric, against the median of the other nodes of its kind.

    Attributes:
        node: name of the node.
        metric: name of the metric.
        effect: fraction by which it is slower; negative if it is faster.
        ci_low: lower end of a 95 % interval, for this node and metric alone.
        ci_high: upper end of the interval.
        rounds: number of rounds.
        q: the lowest false discovery rate at which it would be called slow.
        verdict: SLOW, FAST, SAME or UNCLEAR.
        evidence: readings that explain a slow node.
        command: command that repeats the measurement on that node.
    """

    node: Annotated[str, shown("slow node", right=False)]
    metric: Annotated[str, shown("metric", partial(cut, width=_METRIC_WIDTH), right=False)]
    effect: Annotated[float | None, shown("slower by", SIGNED)]
    ci_low: Annotated[float | None, shown("95 % CI", SIGNED)]
    ci_high: float | None
    rounds: Annotated[int, shown("rounds")]
    q: float | None
    verdict: Annotated[str, one_of("SLOW", "FAST", "SAME", "UNCLEAR")]
    evidence: Annotated[
        tuple[FleetEvidence, ...],
        shown(
            "read beside it",
            lambda evidence: "; ".join(reading.text for reading in evidence),
            right=False,
        ),
    ] = ()
    command: str = ""


class FleetStep(Record, frozen=True, kw_only=True):
    """Loss of a synchronous data-parallel step to its slowest node, without communication.

    Attributes:
        metric: the step or estimate.
        nodes: number of nodes.
        median_s: median of the other nodes, in seconds.
        slowest: the slowest node, which all others wait for.
        slowest_s: time of the slowest node, in seconds.
        loss: fraction by which the step is longer than the median of the others.
        ci_low: lower end of the interval of the loss, from the interval of the slowest node's
            effect.
        ci_high: upper end of the interval.
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
    """The verdict on a fleet.

    Attributes:
        beyond: threshold of slowness, as a fraction.
        nodes: nodes in the order in which they were first measured.
        metrics: metrics of each kind of nodes.
        effects: effect of each node in each of its metrics.
        steps: loss of synchronous steps.
        notes: remarks for the reader.
    """

    beyond: float
    nodes: tuple[FleetNode, ...]
    metrics: tuple[FleetMetric, ...]
    effects: tuple[FleetEffect, ...]
    steps: tuple[FleetStep, ...]
    notes: tuple[str, ...]

    @property
    def slow(self) -> list[FleetEffect]:
        """The effects whose verdict is SLOW, the slowest first."""
        effects = [effect for effect in self.effects if effect.verdict == "SLOW"]
        return sorted(effects, key=lambda effect: -(effect.effect or 0.0))

    @property
    def whole(self) -> list[FleetEffect]:
        """The nodes' effects in all metrics together, or in the only metric."""
        groups = {node.node: node.group for node in self.nodes}
        last: dict[int | None, str] = {metric.group: metric.metric for metric in self.metrics}
        return [effect for effect in self.effects if last.get(groups[effect.node]) == effect.metric]


class FleetChange(Record, frozen=True, kw_only=True):
    """The change of a node in a metric from one fleet to another.

    Attributes:
        node: name of the node.
        metric: name of the metric.
        before_s: mean of its rounds in the first fleet, in seconds; null for all metrics together.
        after_s: mean of its rounds in the second fleet, in seconds; null for all metrics together.
        change: fraction by which it became slower than the others of its kind.
        ci_low: lower end of a 95 % interval, for this node and metric alone.
        ci_high: upper end of the interval.
        q: the lowest false discovery rate at which it would be called slower.
        verdict: SLOWER, FASTER, SAME or UNCLEAR.
    """

    node: Annotated[str, shown("node", right=False)]
    metric: Annotated[str, shown("metric", partial(cut, width=_METRIC_WIDTH), right=False)]
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
    """The common change of all nodes of a kind, which is not part of their own changes.

    Attributes:
        metric: name of the metric.
        group: number of the kind of nodes.
        nodes: number of nodes in both fleets.
        change: median over them of the fraction by which they became slower.
        least: smallest change of a node.
        most: largest change of a node.
    """

    metric: Annotated[
        str, shown("all nodes together", partial(cut, width=_METRIC_WIDTH), right=False)
    ]
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
        beyond: threshold of a change, as a fraction.
        nodes: nodes in both fleets, by name and by CPU or card.
        gone: nodes in the first fleet only.
        came: nodes in the second fleet only.
        changes: change of each node in each metric that both fleets have.
        common: common change of all nodes.
        notes: remarks for the reader: versions that differ.
    """

    beyond: float
    nodes: tuple[str, ...]
    gone: tuple[str, ...]
    came: tuple[str, ...]
    changes: tuple[FleetChange, ...]
    common: tuple[FleetCommon, ...]
    notes: tuple[str, ...]

    def with_verdict(self, verdict: str) -> list[FleetChange]:
        """Return the changes with a verdict, the largest first."""
        changes = [change for change in self.changes if change.verdict == verdict]
        return sorted(changes, key=lambda change: -abs(change.change or 0.0))
