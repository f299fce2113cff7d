"""The roofline: each layer's rate over its intensity, with the roofs of its device.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model
for multicore architectures", CACM 52(4), 2009.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pydlbench.devices.gpu.cards import known_cards
from pydlbench.grouping import group_by
from pydlbench.records.ledger import StepLedger
from pydlbench.records.measurement import Measurement
from pydlbench.records.run import RunRecord
from pydlbench.report.blocks import Figure
from pydlbench.report.columns import LEVEL_NAMES
from pydlbench.report.drawing import LIGHT, series
from pydlbench.units import format_seconds, holding, known_text, number, percent

_HOW: Final = (
    "Rate of the executed FLOPs over executed FLOPs per byte that has to be moved; both axes "
    "logarithmic. A kernel cannot be above the roofs unless it computes less than a direct one. "
    "Solid roofs were measured by probes, dashed ones derived from the device's facts."
)
_RECORDED: Final = (
    "Rate of the FLOPs of each call in a step over FLOPs per byte that has to be moved; both axes "
    "logarithmic. Dashed roofs were published for the card; operands that stay in a cache pass the "
    "bandwidth of its memory."
)
_HOLLOW: Final = "Filled marks are forward, hollow ones backward."
#: Peaks of a card that are roofs of a recorded step, whose calls have several types.
_DRAWN_PEAKS: Final = ("fp32", "bf16-tc")
_HEIGHT: Final = 330
_DASHES: Final = {"domain": ["measured", "theoretical"], "range": [[1, 0], [5, 3]]}
_MAX_POINTS: Final = 300
_MAX_NAMED_POINTS: Final = 10


def roofline(run: RunRecord, rows: Sequence[Measurement]) -> list[Figure]:
    """Return the figure of timed rows; empty if no row has FLOPs and bytes.

    Args:
        run: the run, whose device has the roofs: peaks and bandwidths.
        rows: timed rows; those with cold caches are used only if there are no others.
    """
    hot = [row for row in rows if row.cache == "hot"] or rows
    known = [row for row in hot if row.tflops_executed and row.bytes > 0 and row.flops_executed > 0]
    known.sort(key=lambda row: -(row.time.median if row.time else 0.0))
    if not known:
        return []
    shown = known[:_MAX_POINTS]
    points = sorted(map(_point, shown), key=lambda point: point["series"] != "native")
    peaks = dict(_peaks(shown))
    memories = dict(_memories(run.device_for(shown[0].threads)))
    notes = {
        _HOW: True,
        _HOLLOW: len({row.pass_ for row in shown}) > 1,
        f"The {len(shown)} slowest rows of {len(known)} are drawn.": len(known) > len(shown),
    }
    slowest = ". ".join(point["words"] for point in map(_point, shown[:12]))
    return [_figure(points, peaks, memories, slowest, holding(notes), executed="executed ")]


def recorded_roofline(ledger: StepLedger) -> list[Figure]:
    """Return the figure of a recorded step's calls; empty if none has FLOPs and bytes.

    Args:
        ledger: of the step, whose card has the roofs: its published peaks and bandwidth.
    """
    calls = [call for call in ledger.calls if call.flops and call.bytes and call.device_s]
    points: list[dict[str, Any]] = [
        {
            "x": (call.flops or 0.0) / (call.bytes or 1.0),
            "y": (call.flops or 0.0) / call.seconds / 1e12,
            "name": call.operator.removeprefix("aten."),
            "pass": call.direction,
            "series": call.category,
            "words": f"{call.operator} {call.shapes} {call.direction}: "
            f"{format_seconds(call.seconds)}",
        }
        for call in calls[:_MAX_POINTS]
    ]
    if not points:
        return []
    card = next((card for card in known_cards() if card.name == ledger.card), None)
    peaks, memories = dict[str, float](), dict[str, float]()
    if card is not None:
        peaks = {
            f"theoretical {mode} peak {number(peak)} TFLOP/s": peak
            for mode, peak in card.tflops.items()
            if mode in _DRAWN_PEAKS
        }
        rate = card.bandwidth_gb_per_s
        memories = {f"theoretical memory {number(rate)} GB/s": rate}
    slowest = ". ".join(point["words"] for point in points[:12])
    return [_figure(points, peaks, memories, slowest, [_RECORDED, _HOLLOW])]


def _figure(
    points: Sequence[dict[str, Any]],
    peaks: Mapping[str, float],
    memories: Mapping[str, float],
    slowest: str,
    notes: Sequence[str],
    executed: str = "",
) -> Figure:
    """Return the figure of marks below their roofs.

    Args:
        points: marks with ``x``, ``y``, ``name``, ``pass``, ``series`` and ``words``.
        peaks: TFLOP/s by the name of the roof.
        memories: GB/s by the name of the roof.
        slowest: the slowest marks in words.
        notes: sentences of the caption.
        executed: word before FLOPs that are not the algorithm's.
    """
    across, up = [point["x"] for point in points], [point["y"] for point in points]
    ridges = [peak / rate * 1e3 for peak in peaks.values() for rate in memories.values()]
    low_x, high_x = min([*across, *ridges]) / 8, max([*across, *ridges]) * 3
    low_y, high_y = min(up) / 2.5, max([*up, *peaks.values()]) * 2
    span = math.log(high_y / low_y)
    rise = _HEIGHT / span * math.log(high_x / low_x)
    roofs = [*_flat(peaks, memories, (low_x, high_x), span)]
    roofs += _slanted(memories, peaks, low_x, low_y)
    rate = f"TFLOP/s ({executed.strip()})" if executed else "TFLOP/s"
    scales: dict[str, Any] = {
        "x": {"field": "x", "type": "quantitative", "title": f"{executed}FLOP per byte"}
        | {"scale": {"type": "log", "domain": [low_x, high_x]}, "axis": _axis(low_x, high_x)},
        "y": {
            "field": "y",
            "type": "quantitative",
            "title": rate,
        }
        | {"scale": {"type": "log", "domain": [low_y, high_y]}, "axis": _axis(low_y, high_y)},
    }
    appearance = series([point["series"] for point in points])
    label = {**scales, "text": {"field": "roof"}}
    # The width is that of the drawing, which is another one on a narrow screen.
    along = {"align": "left", "dx": 8, "angle": {"expr": f"-atan({rise} / width) * 180 / PI"}}
    looks: dict[str, dict[str, Any]] = {
        "above": {"align": "right", "dy": -7},
        "along": {**along, "dy": -7},
        "under": {**along, "dy": 8},
    }
    layers = [
        {
            "data": {"values": roofs},
            "mark": {"type": "line", "color": LIGHT["ink"], "strokeWidth": 1.2},
            "encoding": {
                **scales,
                "detail": {"field": "roof"},
                "strokeDash": {"field": "kind", "scale": _DASHES, "legend": None},
            },
        },
        *(
            {
                "data": {"values": [roof for roof in roofs if roof["label"] == place]},
                "mark": {"type": "text", **look},
                "encoding": label,
            }
            for place, look in looks.items()
        ),
        {
            "data": {"values": points},
            "mark": {"type": "point", "strokeWidth": 2},
            "encoding": {
                **scales,
                **appearance,
                "stroke": {**appearance["color"], "legend": None},  # of hollow marks
                "fillOpacity": {
                    "condition": {"test": "datum.pass == 'forward'", "value": 1},
                    "value": 0.1,
                },
                "description": {"field": "words"},
            },
        },
        {
            "data": {"values": _labelled(points, span)},
            "mark": {"type": "text", "align": "left", "dx": 7, "color": LIGHT["ink"]},
            "encoding": {**scales, "text": {"field": "name"}},
        },
    ]
    names = "; ".join([*peaks, *memories]) or "no roofs are known"
    text = f"{len(points)} marks. Roofs: {names}. {slowest}."
    spec = {"height": _HEIGHT, "layer": layers}
    return Figure("roofline", "Roofline", text, " ".join(notes), spec)


def _axis(low: float, high: float) -> dict[str, Any]:
    """Return an axis with ticks at powers of ten, and between them if these are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    between = (1,) if len(decades) > 4 else (1, 2, 5)
    ticks = [digit * 10.0**decade for decade in decades for digit in between]
    return {"values": [tick for tick in ticks if low <= tick <= high], "format": "~g"}


def _point(row: Measurement) -> dict[str, Any]:
    seconds = row.time.median if row.time else 0.0
    words = (
        f"{row.layer} {row.pass_} {row.who} {row.precision}: {format_seconds(seconds)}",
        f"{number(row.tflops_executed)} TFLOP/s",
        known_text(row.roofline, lambda roof: f"{percent(roof.efficiency)} of its roof"),
        "contended" if row.contended else "",
    )
    return {
        "x": row.flops_executed / row.bytes,
        "y": row.tflops_executed,
        "name": row.layer.partition("/")[2] or row.layer,
        "pass": row.pass_,
        "series": row.who,
        "words": ", ".join(filter(None, words)),
    }


def _labelled(points: Sequence[dict[str, Any]], span: float) -> list[dict[str, Any]]:
    """Return the points whose names fit into the figure, one for each layer.

    Args:
        points: points, ordered by series.
        span: logarithm of the vertical axis's range.
    """
    named: list[dict[str, Any]] = []
    for point in points:
        crowded = any(
            point["name"] == other["name"]
            or (0.2 < point["x"] / other["x"] < 5 and _crowded(point["y"], [other["y"]], span))
            for other in named
        )
        if len(named) < _MAX_NAMED_POINTS and not crowded and len(point["name"]) < 24:
            named.append(point)
    return named


def _crowded(height: float, others: Iterable[float], span: float) -> bool:
    """Whether a name at a height would overlap one at another height."""
    return any(abs(math.log(height / other)) < span / 22 for other in others)


def _peaks(rows: Sequence[Measurement]) -> Iterator[tuple[str, float]]:
    """Yield name and TFLOP/s of the compute peaks in each precision of the rows."""
    for precision in dict.fromkeys(row.precision for row in rows):
        first = next(row for row in rows if row.precision == precision)
        for which in ("theoretical", "measured"):
            if peak := getattr(first.peak, which):
                yield f"{which} {precision} peak {number(peak)} TFLOP/s", peak


def _memories(device: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield name and GB/s of the best bandwidth of each memory level."""
    probed = group_by(device.get("bandwidths") or (), lambda bandwidth: bandwidth["level"])
    for level, bandwidths in probed.items():
        rate = max(bandwidth["bytes_per_s"] for bandwidth in bandwidths) / 1e9
        yield f"measured {LEVEL_NAMES.get(level, level)} {number(rate)} GB/s", rate
    facts = device.get("facts")
    if isinstance(facts, Mapping) and (theory := facts.get("memory_bytes_per_s")):
        yield f"theoretical memory {number(theory / 1e9)} GB/s", theory / 1e9


def _flat(
    peaks: Mapping[str, float],
    memories: Mapping[str, float],
    across: tuple[float, float],
    span: float,
) -> Iterator[dict[str, Any]]:
    fastest = max(memories.values(), default=math.inf)
    named: list[float] = []
    for name, peak in peaks.items():
        kind = name.partition(" ")[0]
        # Lines of the measured and the theoretical peak may coincide, and marks are below both.
        label = "" if _crowded(peak, named, span) else "above"
        if label:
            named.append(peak)
        for x, place in ((max(across[0], peak / fastest * 1e3), ""), (across[1], label)):
            yield {"x": x, "y": peak, "roof": name, "kind": kind, "label": place}


def _slanted(
    memories: Mapping[str, float], peaks: Mapping[str, float], low_x: float, low_y: float
) -> Iterator[dict[str, Any]]:
    top, before = max(peaks.values(), default=None), math.inf
    for name, rate in sorted(memories.items(), key=lambda pair: -pair[1]):
        start = max(low_x, low_y / rate * 1e3)
        end = start * 30 if top is None else top / rate * 1e3
        # The lower one of two roofs close to each other has its name below it.
        label, before = "under" if before < 2 * rate else "along", rate
        for x, place in ((start, label), (end, "")) if end > start else ():
            kind = name.partition(" ")[0]
            yield {"x": x, "y": x * rate / 1e3, "roof": name, "kind": kind, "label": place}
