"""Published figures with source and hardware, and measured results that match them."""

import csv
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from pydlbench.errors import UsageError, nearest
from pydlbench.grouping import group_by
from pydlbench.records.published import OwnFigure, PublishedFigure
from pydlbench.records.step import framework_text, options_text
from pydlbench.store.documents import Loaded

# -----------------------------------------------------------------------------
# The published figures, read from the package's files.

_FOLDER: Final = Path(__file__).parent


@cache
def read_figures() -> tuple[PublishedFigure, ...]:
    """Return all figures."""
    described = tomllib.loads((_FOLDER / "published_sources.toml").read_text(encoding="utf-8"))
    sources, includes = described["sources"], described["includes"]
    with (_FOLDER / "published_figures.csv").open(encoding="utf-8", newline="") as file:
        return tuple(
            PublishedFigure.from_dict(
                {
                    # An empty cell is unknown.
                    **{name: value or None for name, value in line.items()},
                    "source": sources[line["source"]]["title"],
                    "citation": sources[line["source"]]["citation"],
                    "includes": includes[line["protocol"]][line["stage"]],
                }
            )
            for line in csv.DictReader(file)
        )


def find_figures(model: str | None) -> tuple[PublishedFigure, ...]:
    """Return the figures of one model, or of a family of models; all without a model.

    Args:
        model: name of a model (``vgg16``), or a prefix of names (``vgg``, ``resnet``).

    Raises:
        UsageError: there is no published figure of it.
    """
    figures = read_figures()
    if model is None:
        return figures
    exact = tuple(figure for figure in figures if figure.model == model)
    chosen = exact or tuple(
        figure for figure in figures if model and figure.model.startswith(model)
    )
    if not chosen:
        names = list(dict.fromkeys(figure.model for figure in figures))
        near = ", ".join(nearest(model, names) or names)
        raise UsageError(f"--model {model}: no published figure of it; nearest: {near}")
    return chosen


# -----------------------------------------------------------------------------
# Measured results of whole models.

# Protocol -> name of a number that it prints -> stage under which the published source lists it.
_STAGES: Final[Mapping[str, Mapping[str, str]]] = {
    "alexnet-tutorial": {"Forward": "forward", "Forward-backward": "forward-backward"},
    "mnist-tutorial": {"Step": "train"},
    "cifar10-tutorial": {"examples/sec": "train"},
    "tf-cnn-benchmarks": {"total images/sec": "train"},
    "deep-learning-benchmark": {"eval": "eval", "train": "train"},
    "convnet-benchmarks": {
        ":Forward:": "forward",
        ":Backward:": "backward",
        ":TOTAL:": "forward-backward",
    },
}


def measured_figures(
    name: str, loaded: Loaded, batch_of: Callable[[str, str], int | None]
) -> Iterator[OwnFigure]:
    """Yield a run's results of whole models: steps, breakdowns, estimates and protocols.

    Args:
        name: name of the run, as given by the user.
        loaded: the run.
        batch_of: returns the default batch of a protocol and model.
    """
    device = str(loaded.record.device.get("name") or "")
    for table, read in _READERS.items():
        for entry in loaded.table(table):
            for fields in read(entry.document, batch_of):
                seconds, batch = fields["seconds"], fields["batch"]
                if seconds and batch:
                    yield OwnFigure(**fields, device=device, run=name)


def _timed(document: Mapping[str, Any], _batch_of: object) -> Iterator[dict[str, Any]]:
    """Read a step, or the measured step of a breakdown."""
    time = document.get("time_s") or document.get("measured_s") or {}
    if document.get("status", "ok") == "ok":
        yield {**_shared(document), "seconds": time.get("median"), "who": framework_text(document)}


def _estimate(document: Mapping[str, Any], _batch_of: object) -> Iterator[dict[str, Any]]:
    values = document.get("estimate") or {}
    if not document.get("missing"):
        who = "native layers, summed"
        yield {**_shared(document), "seconds": values.get("time_s"), "who": who}


def _protocol(
    document: Mapping[str, Any], batch_of: Callable[[str, str], int | None]
) -> Iterator[dict[str, Any]]:
    protocol, model = str(document["protocol"]), str(document["model"])
    stages = _STAGES.get(protocol, {})
    batch = document.get("batch") or batch_of(protocol, model)
    for number in document.get("numbers") or ():
        # "vgg16 eval" names the model as well.
        name = str(number["name"]).removeprefix(f"{model} ")
        if name not in stages or not batch or not number["value"] > 0:
            continue
        yield {
            "model": model,
            "phase": stages[name],
            "precision": document.get("precision", "fp32"),
            "batch": batch,
            "seconds": _seconds(number["value"], number["unit"], batch),
            "who": framework_text(document),
            "options": options_text(document.get("options") or {}),
            "protocol": protocol,
            "stage": stages[name],
        }


def _seconds(value: float, unit: str, batch: int) -> float | None:
    if unit in ("images/s", "examples/s"):
        return batch / value
    return {"s": value, "ms": value / 1e3}.get(unit)


def _shared(document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": str(document.get("model")),
        "phase": str(document.get("phase")),
        "precision": str(document.get("precision")),
        "batch": document.get("batch"),
        "options": options_text(document.get("options") or {}),
    }


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any], Any], Iterator[dict[str, Any]]]]] = {
    "step": _timed,
    "breakdown": _timed,
    "estimate": _estimate,
    "protocol": _protocol,
}


# -----------------------------------------------------------------------------
# Measured results beside published figures of the same model, phase and precision.

# A source's fp16 may have run on tensor cores.
_PRECISIONS: Final[Mapping[str, tuple[str, ...]]] = {"fp16": ("fp16", "fp16-tc")}


def match_figures(
    figures: Iterable[PublishedFigure], own: Sequence[OwnFigure]
) -> list[PublishedFigure]:
    """Return each figure with the measured results that match it, possibly none.

    Model, phase and precision are the same. For each framework and mode of a run the result with
    the figure's batch is taken, otherwise that with the nearest batch, per image and marked. A run
    of the published script is preferred to a plain step.
    """
    return [msgspec.structs.replace(figure, own=tuple(_matches(figure, own))) for figure in figures]


def _matches(figure: PublishedFigure, own: Sequence[OwnFigure]) -> Iterator[OwnFigure]:
    groups = group_by(
        (result for result in own if _fits(figure, result)),
        lambda result: (result.run, result.who, result.device, result.precision, result.options),
    )
    for group in groups.values():
        eligible = [result for result in group if result.protocol is not None] or group
        # 16 is nearer to 32 than to 4.
        closest = min(
            eligible,
            key=lambda result: (abs(math.log(result.batch / figure.batch)), result.batch),
        )
        yield _annotate(figure, closest)


def _fits(figure: PublishedFigure, own: OwnFigure) -> bool:
    same = own.model == figure.model
    same = same and own.precision in _PRECISIONS.get(figure.precision, (figure.precision,))
    if own.protocol is None:
        return same and own.phase == figure.phase
    return same and own.protocol == figure.protocol and own.stage == figure.stage


def _annotate(figure: PublishedFigure, own: OwnFigure) -> OwnFigure:
    """Return a result in a figure's unit, with the speedup and the differences from the figure."""
    marks = (
        f"per image, batch {own.batch}" if own.batch != figure.batch else "",
        "plain step" if own.protocol is None else "",
        own.options,
        own.precision if own.precision != figure.precision else "",
    )
    return msgspec.structs.replace(
        own,
        value=figure.in_unit(own.seconds, own.batch),
        unit=figure.unit,
        speedup=(figure.seconds / figure.batch) / (own.seconds / own.batch),
        marks=tuple(filter(None, marks)),
    )
