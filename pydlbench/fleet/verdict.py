"""The verdict on nodes: which are slow, why, and the loss of a step; and changes between two runs.

A node's effect is how much slower it is than the others of its kind; its change is the effect in
the second run minus that in the first. A change of all nodes, by a day, an update or the room's
temperature, is therefore in no node's change. It is listed separately, and has no verdict.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.errors import UsageError
from pydlbench.fleet.effects import (
    FAST,
    SAME,
    SLOW,
    UNCLEAR,
    Effects,
    against_others,
    changed,
    detectable,
    judge,
)
from pydlbench.grouping import group_by
from pydlbench.records.fleet import (
    FleetChange,
    FleetCommon,
    FleetComparison,
    FleetEffect,
    FleetEvidence,
    FleetMetric,
    FleetNode,
    FleetStep,
    FleetVerdict,
)
from pydlbench.units import format_hz, holding, percent, some_names

#: Name under which all metrics together are listed.
WHOLE: Final = "all metrics"
# Minimum share of a slowdown that evidence has to account for.
_MIN_SHARE: Final = 0.25
# Maximum difference of the nodes' clocks that is not reported.
_MAX_CLOCK_OFFSET_S: Final = 5.0
# Ratio of standard deviation and median absolute deviation of the normal distribution.
_MAD: Final = 1.4826
# Reports of a GPU's driver that its clock is limited, by their cause.
_CLOCK_LIMITS: Final = {
    "temperature": (
        *("software thermal slowdown", "hardware thermal slowdown", "hardware slowdown"),
    ),
    "power cap": ("power cap", "power brake"),
}


@dataclass(frozen=True, slots=True)
class NodeTable:
    """Visits as arrays, rounds x nodes x metrics; NaN for missing values."""

    nodes: list[str]
    metrics: list[str]
    log_s: NDArray[Any]
    log_clock: NDArray[Any]
    log_bandwidth: NDArray[Any]
    contended: NDArray[Any]
    temperature_c: NDArray[Any]
    held: Mapping[str, NDArray[Any]]  # whether the driver reported a clock limit, by cause
    steps: frozenset[int]  # metrics that are whole steps of a model


def judge_visits(
    visits: Sequence[Mapping[str, Any]], beyond: float, model: str | None = None
) -> FleetVerdict:
    """Judge a fleet.

    Args:
        visits: visits of the nodes, as JSON objects of
            :class:`~pydlbench.records.fleet.FleetVisit`.
        beyond: minimum slowdown of a slow node, as a fraction.
        model: model whose steps are listed; None for all models.

    Raises:
        UsageError: no visit is complete, or no metric is a step of the model.
    """
    fleet = tabled(visits, beyond)
    table, groups, effects, latest = fleet.table, fleet.groups, fleet.effects, fleet.latest
    kinds, names = fleet.kinds, fleet.names
    rows = _effects(table, names, groups, effects, latest)
    return FleetVerdict(
        beyond=beyond,
        nodes=tuple(_nodes(visits, latest, kinds, rows)),
        metrics=tuple(_metrics(table, names, groups, effects, beyond)),
        effects=tuple(rows),
        steps=tuple(_steps(table, groups, effects, model)),
        notes=tuple(_notes(latest, kinds, fleet.mixed)),
    )


@dataclass(frozen=True, slots=True)
class Fleet:
    """The complete visits of a fleet as arrays, with the effects of its nodes.

    Attributes:
        table: times and readings of all visits, as arrays.
        names: names of the metrics; if there are several, the last name stands for all of them
            together.
        groups: index of each node's kind.
        kinds: digest of each kind of nodes.
        effects: effects of the nodes in each metric.
        latest: latest visit of each node.
        mixed: nodes that were changed between rounds.
    """

    table: NodeTable
    names: list[str]
    groups: NDArray[Any]
    kinds: list[str]
    effects: Effects
    latest: Mapping[str, Mapping[str, Any]]
    mixed: list[str]


def tabled(visits: Sequence[Mapping[str, Any]], beyond: float) -> Fleet:
    """Return a fleet's visits as arrays, with the effects of its nodes.

    Raises:
        UsageError: no visit is complete.
    """
    complete = [visit for visit in visits if visit["status"] == "ok" and visit["values"]]
    if not complete:
        raise UsageError("RUN: none of its visits is complete; see: pydlbench runs")
    # If a node was changed between rounds, only its latest state counts.
    latest = {
        visit["node"]: visit for visit in sorted(complete, key=lambda visit: int(visit["round"]))
    }
    mixed = sorted(
        {visit["node"] for visit in complete if visit["kind"] != latest[visit["node"]]["kind"]}
    )
    kinds = list(dict.fromkeys(visit["kind"] for visit in latest.values()))
    table = _table([visit for visit in complete if visit["kind"] == latest[visit["node"]]["kind"]])
    groups = np.array([kinds.index(latest[name]["kind"]) for name in table.nodes])
    return Fleet(
        table=table,
        names=[*table.metrics, WHOLE] if len(table.metrics) > 1 else table.metrics,
        groups=groups,
        kinds=kinds,
        effects=judge(table.log_s, groups, beyond),
        latest=latest,
        mixed=mixed,
    )


def _table(visits: Sequence[Mapping[str, Any]]) -> NodeTable:
    nodes = list(dict.fromkeys(visit["node"] for visit in visits))
    metrics = list(dict.fromkeys(name for visit in visits for name in visit["values"]))
    rounds = sorted({int(visit["round"]) for visit in visits})
    of_node = {name: at for at, name in enumerate(nodes)}
    of_metric = {name: at for at, name in enumerate(metrics)}
    of_round = {number: at for at, number in enumerate(rounds)}
    shape = (len(rounds), len(nodes), len(metrics))
    seconds, clock, bandwidth, heat = (np.full(shape, np.nan) for _ in range(4))
    contended = np.zeros(shape, dtype=bool)
    held = {cause: np.zeros(shape, dtype=bool) for cause in _CLOCK_LIMITS}
    read = {
        "time_s": seconds,
        "clock_hz": clock,
        "bandwidth_gbps": bandwidth,
        "contended": contended,
        "temperature_c": heat,
    }
    steps = set()
    for visit in visits:
        row, node = of_round[int(visit["round"])], of_node[visit["node"]]
        for name, value in visit["values"].items():
            at = (row, node, of_metric[name])
            for field, array in read.items():
                if field in value:
                    array[at] = value[field]
            for report in value.get("throttle", ()):
                for cause, reports in _CLOCK_LIMITS.items():
                    held[cause][at] |= report in reports
            if "step" in value:
                steps.add(at[2])
    # Disturbed rounds count only if there are fewer than two others.
    left_out = contended & (((~contended) & ~np.isnan(seconds)).sum(axis=0) >= 2)
    for values in (seconds, clock, bandwidth, heat):
        values[left_out] = np.nan
    for flags in (contended, *held.values()):
        flags[left_out] = False
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = [np.log(values) for values in (seconds, clock, bandwidth)]
    log_s, log_clock, log_bandwidth = logs
    return NodeTable(
        nodes=nodes,
        metrics=metrics,
        log_s=log_s,
        log_clock=log_clock,
        log_bandwidth=log_bandwidth,
        contended=contended,
        temperature_c=heat,
        held=held,
        steps=frozenset(steps),
    )


def _effects(
    table: NodeTable,
    names: Sequence[str],
    groups: NDArray[Any],
    effects: Effects,
    latest: Mapping[str, Mapping[str, Any]],
) -> list[FleetEffect]:
    """Return the effects of each node in each metric."""
    slow = np.argwhere(effects.verdict == SLOW)
    reasons = _evidence(table, groups, effects, slow) if len(slow) else {}
    sizes, rounds = fractions(effects.log), effects.rounds.tolist()
    return [
        FleetEffect(
            **fields,
            effect=sizes[node][metric],
            rounds=rounds[node][metric],
            evidence=reasons.get((node, metric), ()),
            command=_command(table, latest[table.nodes[node]], effects, node, metric)
            if fields["verdict"] == SLOW
            else "",
        )
        for node, metric, fields in effect_fields(effects, table.nodes, names)
    ]


def effect_fields(
    effects: Effects, nodes: Sequence[str], metrics: Sequence[str]
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield the indices and common fields of the records of all effects with rounds."""
    low, high, q = fractions(effects.low), fractions(effects.high), or_none(effects.q)
    for node, metric in np.argwhere(effects.rounds).tolist():
        yield (
            node,
            metric,
            {
                "node": nodes[node],
                "metric": metrics[metric],
                "ci_low": low[node][metric],
                "ci_high": high[node][metric],
                "q": q[node][metric],
                "verdict": str(effects.verdict[node, metric]),
            },
        )


def _command(
    table: NodeTable, visit: Mapping[str, Any], effects: Effects, node: int, metric: int
) -> str:
    """Return the command that reproduces a slowdown; for all metrics that of the slowest one."""
    if metric == len(table.metrics):
        metric = int(np.nanargmax(effects.log[node, :metric]))
    value = visit["values"].get(table.metrics[metric], {})
    command = value.get("command")  # the node's last visit may lack this row
    return f"{visit.get('prefix', '')}{command}" if command else ""


def _evidence(
    table: NodeTable, groups: NDArray[Any], effects: Effects, slow: NDArray[Any]
) -> dict[tuple[int, int], tuple[FleetEvidence, ...]]:
    """Return the causes of slow nodes, from the readings that were taken with their rows."""
    count = len(table.metrics)
    clocks, widths = (
        against_others(logs, groups) for logs in (table.log_clock, table.log_bandwidth)
    )
    reasons = {}
    for node, metric in slow.tolist():
        here = slice(0, count) if metric == count else slice(metric, metric + 1)
        effect = float(effects.log[node, metric])
        others = np.flatnonzero((groups == groups[node]) & (np.arange(len(groups)) != node))
        evidence: list[FleetEvidence] = []
        held = _held(table, node, others, here)
        clock = _mean(clocks[:, node, here])
        if -clock / effect >= _MIN_SHARE:
            hertz = math.exp(_mean(table.log_clock[:, node, here]))
            what, reported = held or ("clock", "")
            text = f"clock {percent(math.expm1(clock), signed=True)} ({format_hz(hertz)}){reported}"
            evidence.append(FleetEvidence(what=what, share=-clock / effect, text=text))
        elif held:
            evidence.append(
                FleetEvidence(what=held[0], share=None, text=held[1].removeprefix(", "))
            )
        width = _mean(widths[:, node, here])
        if -width / effect >= _MIN_SHARE:
            text = f"memory bandwidth {percent(math.expm1(width), signed=True)}"
            evidence.append(
                FleetEvidence(what="memory bandwidth", share=-width / effect, text=text)
            )
        busy = _share(table.contended, [node], here)
        if busy > 2 * _share(table.contended, others, here):
            text = f"other work in {percent(busy)} of its rows"
            evidence.append(FleetEvidence(what="other work", share=None, text=text))
        if not evidence:
            known = "" if math.isnan(clock) else f"clock {percent(math.expm1(clock), signed=True)}"
            text = f"no reading accounts for it{f' ({known})' if known else ''}"
            evidence.append(FleetEvidence(what="unexplained", share=None, text=text))
        reasons[node, metric] = tuple(evidence)
    return reasons


def _held(table: NodeTable, node: int, others: NDArray[Any], here: slice) -> tuple[str, str] | None:
    """Return why a GPU's clock was limited, if its driver reports that more often than others."""
    for cause, reported in table.held.items():
        share = _share(reported, [node], here)
        if share > 2 * _share(reported, others, here):
            heat = table.temperature_c[:, node, here]
            heat = heat[~np.isnan(heat)]
            shown = f" at {heat.max():.0f} C" if heat.size else ""
            return cause, f", {cause}{shown} reported in {percent(share)} of its rows"
    return None


def _share(flags: NDArray[Any], nodes: Any, here: slice) -> float:
    chosen = flags[:, nodes, here]
    return float(chosen.mean()) if chosen.size else 0.0


def _mean(values: NDArray[Any]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else math.nan


def _nodes(
    visits: Sequence[Mapping[str, Any]],
    latest: Mapping[str, Mapping[str, Any]],
    kinds: Sequence[str],
    effects: Sequence[FleetEffect],
) -> list[FleetNode]:
    verdicts = {
        node: {effect.verdict for effect in own}
        for node, own in group_by(effects, lambda effect: effect.node).items()
    }
    nodes = []
    for name, visited in group_by(visits, lambda visit: str(visit["node"])).items():
        failed = [visit for visit in visited if visit["status"] != "ok"]
        last = latest.get(name)
        known = verdicts.get(name, {UNCLEAR})
        nodes.append(
            FleetNode(
                node=name,
                machine=visited[-1].get("machine", "") if last is None else last["machine"],
                group=None if last is None else kinds.index(last["kind"]),
                rounds=len(visited) - len(failed),
                failed=len(failed),
                reason=failed[-1]["reason"] if failed else None,
                versions={} if last is None else last["versions"],
                verdict=next(
                    (verdict for verdict in (SLOW, FAST, UNCLEAR) if verdict in known), SAME
                ),
            )
        )
    return nodes


def _metrics(
    table: NodeTable,
    names: Sequence[str],
    groups: NDArray[Any],
    effects: Effects,
    beyond: float,
) -> list[FleetMetric]:
    resolutions = or_none(detectable(effects, beyond))
    means = node_means(table.log_s)
    summaries = []
    for fields, metric, rows, values in group_fields(names, groups, effects.log):
        seconds = None
        if metric < len(table.metrics):
            known = means[rows, metric]
            known = known[~np.isnan(known)]
            seconds = math.exp(float(np.median(known))) if known.size else None
        deviation = np.abs(values - np.median(values))
        summaries.append(
            FleetMetric(
                **fields,
                median_s=seconds,
                spread=_MAD * float(np.median(deviation)),
                resolution=resolutions[metric],
            )
        )
    return summaries


def group_fields(
    metrics: Sequence[str], groups: NDArray[Any], logs: NDArray[Any]
) -> Iterator[tuple[dict[str, Any], int, NDArray[Any], NDArray[Any]]]:
    """Yield the records' common fields for each kind of nodes and each metric with values.

    Args:
        metrics: names of the metrics.
        groups: index of each node's kind.
        logs: logarithms of ratios, nodes x metrics; NaN for missing ones.

    Yields:
        Fields, index of the metric, indices of the nodes, and the known logarithms.
    """
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        for metric, name in enumerate(metrics):
            values = logs[rows, metric]
            values = values[~np.isnan(values)]
            if values.size:
                fields = {
                    "metric": name,
                    "group": int(group),
                    "nodes": int(values.size),
                    "least": math.expm1(float(values.min())),
                    "most": math.expm1(float(values.max())),
                }
                yield fields, metric, rows, values


def node_means(log_s: NDArray[Any]) -> NDArray[Any]:
    """Return each node's mean over its rounds; NaN if it has none."""
    known = ~np.isnan(log_s)
    count = known.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: NDArray[Any] = np.where(known, log_s, 0).sum(axis=0) / np.where(count, count, np.nan)
    return means


def _steps(
    table: NodeTable, groups: NDArray[Any], effects: Effects, model: str | None
) -> list[FleetStep]:
    """Return the loss of synchronous steps by the slowest node, for the largest kind of nodes.

    Raises:
        UsageError: the model has no step.
    """
    steps = [
        metric
        for metric, name in enumerate(table.metrics)
        if metric in table.steps and (model is None or name.split()[0] == model)
    ]
    if model is not None and not steps:
        raise UsageError(
            f"--model {model}: the fleet's file times no step of it; nearest: a file with "
            f'[[step]] or [[estimate]] and model = "{model}"'
        )
    rows = np.flatnonzero(groups == np.bincount(groups).argmax())
    losses = []
    for metric in steps:
        known = rows[~np.isnan(effects.log[rows, metric])]
        if known.size < 2:
            continue
        slowest = int(known[np.argmax(effects.log[known, metric])])
        slowest_s = math.exp(float(node_means(table.log_s)[slowest, metric]))
        others = [row for row in known.tolist() if effects.verdict[row, metric] != SLOW]
        loss, low, high = (
            math.expm1(float(logs[slowest, metric]))
            for logs in (effects.log, effects.low, effects.high)
        )
        rest = math.expm1(float(effects.log[others, metric].max())) if others else None
        losses.append(
            FleetStep(
                metric=table.metrics[metric],
                nodes=int(known.size),
                median_s=slowest_s / (1 + loss),
                slowest=table.nodes[slowest],
                slowest_s=slowest_s,
                loss=loss,
                ci_low=None if math.isnan(low) else low,
                ci_high=None if math.isnan(high) else high,
                without_slow=rest if len(others) < known.size else None,
            )
        )
    return losses


def _notes(
    latest: Mapping[str, Mapping[str, Any]], kinds: Sequence[str], mixed: Sequence[str]
) -> list[str]:
    """Return notes for the reader: kinds that are not mixed, clocks that disagree."""
    members = group_by(latest, lambda name: str(latest[name]["kind"]))
    usual = latest[max(members.values(), key=len)[0]]
    others = [kind for kind in kinds if kind != usual["kind"]]
    alone = some_names([names[0] for names in members.values() if len(names) == 1])
    offsets = {name: visit.get("clock_offset_s", 0.0) for name, visit in latest.items()}
    late = [name for name, offset_s in offsets.items() if abs(offset_s) > _MAX_CLOCK_OFFSET_S]
    hosts = [{name: latest[name].get("host", "") for name in names} for names in members.values()]
    limit = f"{_MAX_CLOCK_OFFSET_S:g} s"
    notes = (
        f"{len(kinds)} kinds of nodes, each compared with its own only" if len(kinds) > 1 else "",
        *(
            f"{some_names(members[kind])}: {_what(latest[members[kind][0]], usual)}"
            for kind in others
        ),
        f"{alone}: the only node of its kind, there is nothing to compare with" if alone else "",
        *(note for some in hosts for note in _hosts(some)),
        f"{some_names(mixed)}: changed between rounds; only its latest rounds count"
        if mixed
        else "",
        f"{some_names(late)}: clock differs by more than {limit}; set it by NTP" if late else "",
    )
    return list(filter(None, notes))


def _what(visit: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """Return how a visit's kind of node differs from the usual one."""
    differs = (
        f"{name} {visit['versions'].get(name, 'none')} (the others: {value})"
        for name, value in usual["versions"].items()
        if visit["versions"].get(name) != value
    )
    return ", ".join(differs) or visit["machine"] or "other hardware"


def _hosts(hosts: Mapping[str, str]) -> list[str]:
    """Return a note on cards in other hosts, which affect their rows, too."""
    usual = Counter(hosts.values()).most_common(1)[0][0]
    return [
        f"{some_names([name for name, other in hosts.items() if other == host])}: the card is in "
        f"another host, {host} (the others: {usual})"
        for host in dict.fromkeys(hosts.values())
        if host != usual
    ]


def fractions(logs: NDArray[Any]) -> list[Any]:
    """Return logarithms of ratios as fractions; None for NaN."""
    return or_none(np.expm1(np.minimum(logs, 700.0)))


def or_none(values: NDArray[Any]) -> list[Any]:
    """Return numbers as lists, with None for NaN."""
    objects = values.astype(object)
    objects[np.isnan(values)] = None
    return list(objects.tolist())


_WORDS: Final = {SLOW: "SLOWER", FAST: "FASTER"}


def compare_fleets(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], beyond: float
) -> FleetComparison:
    """Compare two runs of a fleet.

    Args:
        before: visits of the earlier run, as JSON objects of
            :class:`~pydlbench.records.fleet.FleetVisit`.
        after: visits of the later run.
        beyond: minimum size of a change, as a fraction.

    Raises:
        UsageError: a run has no complete visit, or they have no node or no metric in common.
    """
    fleets = tabled(before, beyond), tabled(after, beyond)
    names = [sorted(fleet.latest) for fleet in fleets]
    both = [
        name
        for name in fleets[1].table.nodes
        if name in fleets[0].latest and len({_machine(fleet, name) for fleet in fleets}) == 1
    ]
    if not both:
        raise _nothing_common("node")
    common = _common_kinds((before, after), fleets, both)
    first, second = (tabled(visits, beyond) for visits in common)
    metrics = [name for name in second.names if name in first.names]
    if not metrics:
        raise _nothing_common("metric")
    effects = changed(_part(first, both, metrics), _part(second, both, metrics), beyond)
    seconds = [_seconds(fleet, both, metrics) for fleet in (first, second)]
    groups = np.array([second.groups[second.table.nodes.index(name)] for name in both])
    return FleetComparison(
        beyond=beyond,
        nodes=tuple(both),
        gone=tuple(name for name in names[0] if name not in both),
        came=tuple(name for name in names[1] if name not in both),
        changes=tuple(_changes(both, metrics, effects, seconds)),
        common=tuple(_common(metrics, groups, seconds[1] - seconds[0])),
        notes=tuple(_pair_notes(*fleets, both)),
    )


def _nothing_common(what: str) -> UsageError:
    return UsageError(
        f"RUN: the two fleets have no {what} in common; nearest: two runs of one file on the same "
        "nodes"
    )


def _common_kinds(
    runs: tuple[Sequence[Mapping[str, Any]], ...], fleets: tuple[Fleet, Fleet], both: Sequence[str]
) -> Iterator[list[dict[str, Any]]]:
    """Yield each run's visits of the common nodes, with a kind that combines those of both runs.

    A node is compared with the same others in both runs. Otherwise nodes that came, left or had
    other versions in one run would make all others slower or faster.
    """
    for index, visits in enumerate(runs):
        kinds = {name: [fleet.latest[name]["kind"] for fleet in fleets] for name in both}
        renamed = []
        for visit in visits:
            if visit["node"] in kinds:
                kind = list(kinds[visit["node"]])
                kind[index] = visit["kind"]
                renamed.append({**visit, "kind": " ".join(kind)})
        yield renamed


def _machine(fleet: Fleet, name: str) -> str:
    return str(fleet.latest[name]["machine"])


def _part(fleet: Fleet, nodes: Sequence[str], metrics: Sequence[str]) -> Effects:
    """Return the effects of some nodes in some metrics."""
    at = np.ix_(
        [fleet.table.nodes.index(name) for name in nodes],
        [fleet.names.index(name) for name in metrics],
    )
    effects = fleet.effects
    arrays = {field.name: getattr(effects, field.name)[at] for field in dataclasses.fields(effects)}
    return replace(effects, **arrays)


def _seconds(fleet: Fleet, nodes: Sequence[str], metrics: Sequence[str]) -> NDArray[Any]:
    """Return logarithms of seconds, nodes x metrics; NaN for all metrics together."""
    rows = [fleet.table.nodes.index(name) for name in nodes]
    means = node_means(fleet.table.log_s)
    unknown = np.full(len(rows), np.nan)
    columns = [
        unknown if name == WHOLE else means[rows, fleet.table.metrics.index(name)]
        for name in metrics
    ]
    return np.stack(columns, axis=1)


def _changes(
    nodes: Sequence[str],
    metrics: Sequence[str],
    effects: Effects,
    seconds: Sequence[NDArray[Any]],
) -> list[FleetChange]:
    change = fractions(effects.log)
    before, after = (or_none(np.exp(logs)) for logs in seconds)
    return [
        FleetChange(
            **{**common, "verdict": _WORDS.get(common["verdict"], common["verdict"])},
            before_s=before[node][metric],
            after_s=after[node][metric],
            change=change[node][metric],
        )
        for node, metric, common in effect_fields(effects, nodes, metrics)
    ]


def _common(
    metrics: Sequence[str], groups: NDArray[Any], ratios: NDArray[Any]
) -> list[FleetCommon]:
    """Return the change that nodes share; ``ratios`` are logarithms of after over before."""
    return [
        FleetCommon(**common, change=math.expm1(float(np.median(values))))
        for common, _, _, values in group_fields(metrics, groups, ratios)
    ]


def _pair_notes(first: Fleet, second: Fleet, nodes: Sequence[str]) -> list[str]:
    """Return notes on nodes with other versions, and on names that belong to another machine."""
    versions = {
        name: [fleet.latest[name]["versions"] for fleet in (first, second)] for name in nodes
    }
    changes = (
        (f"{library} {old.get(library, 'none')} -> {new.get(library, 'none')}", name)
        for name, (old, new) in versions.items()
        for library in sorted({*old, *new})
        if old.get(library) != new.get(library)
    )
    by_text = group_by(changes, lambda change: change[0])
    named = {text: [name for _, name in some] for text, some in by_text.items()}
    others = [name for name in second.latest if name in first.latest and name not in nodes]
    machines = {f"{_machine(first, name)} -> {_machine(second, name)}" for name in others}
    moved = "; ".join(sorted(machines))
    missing = sorted({*first.names} ^ {*second.names})
    notes = {
        f"{some_names(others)}: another machine, not compared ({moved})": others,
        f"in one of the fleets only, not compared: {some_names(missing)}": missing,
    }
    return [
        *(
            f"{'all nodes' if len(names) == len(nodes) else some_names(names)}: {text}"
            for text, names in named.items()
        ),
        *holding(notes),
    ]
