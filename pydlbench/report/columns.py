"""The columns of a table of measurements, and the heading with the values that all rows share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from pydlbench.backends import capabilities
from pydlbench.grouping import group_by
from pydlbench.records.measurement import Measurement
from pydlbench.records.record import Column, columns_of
from pydlbench.records.run import RunRecord
from pydlbench.records.step import StepSpec
from pydlbench.units import (
    format_bytes,
    format_flops,
    format_hz,
    merge_texts,
    quantity,
    time_in,
    time_unit,
    without_numbers,
)

# -----------------------------------------------------------------------------
# Axes along which the rows of a table may differ, and names of rows.

#: Levels of the memory in words.
LEVEL_NAMES = {"llc": "last-level cache", "l2": "L2 cache"}
#: Maximum number of modules or layers named beside the dominant one, as not significantly smaller.
MAX_RIVALS = 3


def _propagation(row: Measurement) -> str:
    # Only a forward pass has two kinds; "forward" alone means inference.
    return "training" if row.pass_ == "forward" and row.propagation == "training" else ""


AXES: dict[str, Callable[[Measurement], str]] = {
    "layer": lambda row: row.layer,
    "batch": lambda row: str(row.batch),
    "pass": lambda row: row.pass_,
    "propagation": _propagation,
    "precision": lambda row: row.precision,
    "accumulate": lambda row: row.accumulate or "",
    "device": lambda row: row.device,
    "threads": lambda row: "" if row.threads is None else str(row.threads),
    "cache": lambda row: row.cache,
    "timing": lambda row: row.timing if row.ok else "",
    "fuse": lambda row: row.fuse,
    "layout": lambda row: row.layout_request,
    "backend": lambda row: row.backend,
    "mode": lambda row: row.mode or "",
}

#: Axes along which the backends of one problem may differ.
BACKEND_AXES = ("backend", "mode", "timing", "accumulate")
# Axes that may be unknown, as in a row that was never run: an empty value is no difference.
_BLANK_IS_NO_VALUE = {"threads", "accumulate", "timing"}
# Axes that another one may determine, and which are omitted in that case: bf16 has another
# accumulator than fp32, and cold caches on a GPU are timed in another way than hot ones.
_DETERMINED_BY = {"accumulate": "precision", "timing": "cache"}


def axis_values(rows: Sequence[Measurement], axis: str) -> list[str]:
    """Return the distinct values of one axis, in order of appearance."""
    if axis == "propagation":
        rows = [row for row in rows if row.pass_ == "forward"]
    values = dict.fromkeys(AXES[axis](row) for row in rows)
    if axis in _BLANK_IS_NO_VALUE and len(values) > 1:
        values.pop("", None)
    return list(values)


def varying(rows: Sequence[Measurement]) -> list[str]:
    """Return the axes along which ``rows`` differ, in the order of their columns."""
    axes = [axis for axis in AXES if len(axis_values(rows, axis)) > 1]
    for axis, leader in _DETERMINED_BY.items():
        if axis in axes and leader in axes:
            pairs = {(AXES[leader](row), AXES[axis](row)) for row in rows if AXES[axis](row)}
            if len(pairs) == len({value for value, _ in pairs}):
                axes.remove(axis)
    return axes


def common_model(rows: Sequence[Measurement]) -> str:
    """Return the model of several layers, ``vgg16``; empty if they have none in common."""
    models = {row.layer.rpartition("/")[0] for row in rows}
    return models.pop() if len(models) == 1 and len(axis_values(rows, "layer")) > 1 else ""


def by_problem(rows: Sequence[Measurement]) -> list[list[Measurement]]:
    """Return the rows grouped by problem, in the order of the first ones.

    A second row of the same backend begins another group: it was interleaved with others.
    """
    axes = [axis for axis in AXES if axis not in BACKEND_AXES]
    lists: dict[tuple[str, ...], list[list[Measurement]]] = {}
    problems: list[list[Measurement]] = []
    for row in rows:
        key = (row.problem, *(AXES[axis](row) for axis in axes))
        same = lists.setdefault(key, [])
        if not same or any(other.who == row.who for other in same[-1]):
            same.append([])
            problems.append(same[-1])
        same[-1].append(row)
    return problems


def short_name(layer: str) -> str:
    """Return a catalog name without its model: ``conv3``."""
    return layer.rsplit("/", 1)[-1]


def label(row: Measurement, axes: Sequence[str]) -> str:
    """Return a name of one row: its layer and its values on axes, ``alexnet/conv3 bf16``."""
    words = [row.layer]
    for axis in axes:
        value = AXES[axis](row)
        if axis == "layer" or not value:
            continue
        threads = "1 thread" if value == "1" else f"{value} threads"
        words.append({"batch": f"batch {value}", "threads": threads}.get(axis, value))
    return " ".join(words)


def group_names(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return names by the text that precedes each of them, in the order of the first ones.

    Texts that differ in numbers only are one, with ranges.
    """
    groups = group_by(pairs, lambda pair: without_numbers(pair[0])).values()
    return {merge_texts([text for text, _ in some]): [name for _, name in some] for some in groups}


# -----------------------------------------------------------------------------
# The columns of a table of measurements.

# The requested layout; another column has the layout that the kernel used.
_TITLES = {"layout": "asked for"}


def columns(rows: Sequence[Measurement]) -> list[Column[Measurement]]:
    """Return the columns that ``ok`` rows need: the axes along which they differ, then metrics."""
    axes = varying(rows)
    alike = len(rows) > 1 and not axes
    if not {"layer", "backend"} & set(axes):
        axes.append("backend")
    if alike:
        axes.append("layer")
    model = common_model(rows)
    differing = [
        Column(_TITLES.get(axis, axis), _cell_of(axis, model), right=axis in {"batch", "threads"})
        for axis in sorted(axes, key=list(AXES).index)
    ]
    return [*differing, *columns_of(rows, type(rows[0]).columns, seconds=unit_of(rows))]


def unit_of(rows: Sequence[Measurement]) -> Callable[[float], str]:
    """Return a function that formats times in the unit that fits the medians of rows."""
    return partial(time_in, time_unit([row.time.median for row in rows if row.time is not None]))


def _cell_of(axis: str, model: str) -> Callable[[Measurement], str]:
    if axis == "layer" and model:
        # The heading names the model.
        return lambda row: row.layer.removeprefix(f"{model}/")
    return AXES[axis]


# -----------------------------------------------------------------------------
# The heading of a table: the values that all its rows share.

_TIMINGS = {"events": "CUDA events", "cuda-graph": "CUDA graph", "host-sync": "host clock"}


def heading(run: RunRecord, rows: Sequence[Measurement]) -> list[str]:
    """Return the lines above a table of ``rows``; two spaces part the items of a line."""
    if not rows:
        return [device_name(run.device)]
    lines = ["  ".join(_what(rows)), "  ".join(_where(run, rows))]
    layouts = {row.layout for row in rows if row.layout}
    if len(layouts) > 1:  # they may differ only in a part that no column shows
        layouts = {row.short_layout or "" for row in rows}
    if len(layouts) == 1:
        lines.append(f"layout {layouts.pop()}")
    return lines


def device_name(device: Mapping[str, Any]) -> str:
    """Return the product name of the processor."""
    for holder in (device, device.get("facts"), device.get("cpu")):
        if isinstance(holder, Mapping):
            for key in ("name", "brand"):
                if isinstance(holder.get(key), str) and holder[key].strip():
                    return " ".join(holder[key].split())
    return "unknown processor"


def step_heading(spec: StepSpec, library: str, types: str | None) -> str:
    """Return a step with its settings, as the first line above its tables.

    Args:
        spec: specification of the step, with its batch.
        library: name and version of the framework.
        types: types that it computes in, if they are not those of its precision.
    """
    layout = capabilities.declaration(spec.framework).steps.layout_text(spec.layout)
    words = (
        spec.model,
        *(f"{name}={value}" for name, value in spec.options.items()),
        *(f"batch {spec.batch}", spec.phase),
        "" if spec.feed == "resident" else f"{spec.feed} images",
        types or spec.precision,
        *(spec.own.described(spec.phase) if spec.own is not None else ()),
        f"{library} {spec.mode}{layout}",
    )
    return "  ".join(filter(None, words))


def _what(rows: Sequence[Measurement]) -> list[str]:
    first, differ = rows[0], varying(rows)
    problems = {row.problem for row in rows}
    names: Iterable[str] = dict.fromkeys([first.layer, *(problems if len(problems) == 1 else ())])
    if "layer" in differ:
        batch = "" if "batch" in differ else f"batch {first.batch}"
        names = (common_model(rows), f"{len(axis_values(rows, 'layer'))} layers", batch)
    pass_ = first.pass_
    if "propagation" not in differ and _propagation(first):
        pass_ += " (training)"
    alike = len(problems) == 1 and len({(row.flops, row.flops_executed) for row in rows}) == 1
    items = (
        *names,
        "" if "pass" in differ else pass_,
        "" if "fuse" in differ or first.fuse == "none" else f"with {first.fuse}",
        "" if "precision" in differ else first.precision,
        _flops(first.flops, first.flops_executed) if alike else "",
        format_bytes(first.bytes) if len({(row.problem, row.bytes) for row in rows}) == 1 else "",
    )
    return list(filter(None, items))


def _where(run: RunRecord, rows: Sequence[Measurement]) -> list[str]:
    first, differ = rows[0], varying(rows)
    threads = {row.threads for row in rows if row.threads}
    several = len(threads) != 1
    # With SMT, or fewer CPUs than cores, threads and cores are two numbers.
    cores = None if several else run.device_for(next(iter(threads))).get("cores")
    clocks = [row.clock_hz for row in rows if row.clock_hz]
    clock = f"{format_hz(median(clocks))} (measured)" if clocks else ""
    counted = quantity(cores, "core") if cores else ""
    where = " at ".join(filter(None, (counted, clock)))
    layout = "" if "layout" in differ or first.layout_request == "best" else first.layout_request
    items = (
        ", ".join(filter(None, (device_name(run.device), where))),
        "" if several else quantity(next(iter(threads)), "thread"),
        "" if "cache" in differ else f"{first.cache} cache".replace("-cold cache", " cold"),
        _timing(rows, differ),
        *sorted({row.library for row in rows if row.library}),
        f"{first.backend} backend" if "backend" not in differ and "layer" in differ else "",
        f"{layout} layout" if layout else "",
    )
    return list(filter(None, items))


def _timing(rows: Sequence[Measurement], differ: Sequence[str]) -> str:
    """Return how samples were timed on a GPU, for each cache state if these differ.

    Empty if there is a column for it, and for CPUs, which have one way only.
    """
    if "timing" in differ:
        return ""
    ways = {row.cache: _TIMINGS[row.timing] for row in rows if row.timing in _TIMINGS}
    if len(set(ways.values())) == 1:
        return next(iter(ways.values()))
    return ", ".join(f"{cache}: {way}" for cache, way in ways.items())


def _flops(algorithmic: int, executed: int) -> str:
    text = format_flops(algorithmic)
    if executed == algorithmic:
        return text
    short, unit = format_flops(executed).split()
    same_unit = text.endswith(f" {unit}")
    return f"{text} ({short if same_unit else f'{short} {unit}'} executed)"
