"""Errors of earlier forecasts, and the interval of the next one that follows from them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pydlbench.records.forecast import Place
    from pydlbench.store.reader import Reader

#: Share of steps that shall lie within the interval of their forecast.
LEVEL: Final = 0.9
#: Half of the interval, as a fraction, while fewer than :data:`MIN_SCORED` forecasts were scored:
#: the largest error of an earlier method for five users' models.
ASSUMED: Final = 0.17
#: Minimum number of scored forecasts: the largest of fewer errors does not reach :data:`LEVEL`.
MIN_SCORED: Final = 9
# Maximum number of documents of each table that are read for scores.
_MAX_DOCUMENTS: Final = 200
# Fields that identify a step in the documents of forecasts, steps and breakdowns.
_STEP: Final = ("model", "options", "own", "batch", "phase", "layout", "feed")
_PLACE: Final = ("framework", "mode", "precision", "device", "threads", "library")


class ScoreInterval(NamedTuple):
    """Half of an interval, as the logarithm of a ratio, and the number of scores behind it."""

    reach: float
    scored: int


def interval(errors: list[float]) -> ScoreInterval:
    """Return the interval that contains the next error with probability :data:`LEVEL`.

    Among n errors and the next one, all ranks of the next one are equally likely. So it is at most
    the error of rank ``LEVEL * (n + 1)`` with that probability (split conformal prediction).

    Args:
        errors: logarithms of forecast over measured time.
    """
    ordered = sorted(map(abs, errors))
    if len(ordered) < MIN_SCORED:
        return ScoreInterval(math.log1p(ASSUMED), len(ordered))
    place = min(len(ordered), math.ceil(LEVEL * (len(ordered) + 1)))
    return ScoreInterval(ordered[place - 1], len(ordered))


def scored(store: Reader | None, place: Place) -> list[float]:
    """Return the errors of forecasts whose step was timed or broken down later.

    Args:
        store: store with the forecasts; None if there are no stored forecasts.
        place: forecasts with another framework, mode, precision, device, number of threads or
            library are not used.

    Returns:
        Logarithms of forecast over measured time, one for the newest forecast of each step.
    """
    if store is None:
        return []
    # Steps on a GPU have no number of threads.
    names = [name for name in _PLACE if name != "threads" or place.device == "cpu"]
    wanted = [str(getattr(place, name)) for name in names]

    def here(document: Mapping[str, Any]) -> bool:
        return [str(document.get(name)) for name in names] == wanted

    errors: dict[str, float] = {}
    for _, document in store.documents("breakdown", _MAX_DOCUMENTS):
        error = document.get("forecast_error")
        if here(document) and error is not None and error > -1.0:
            errors.setdefault(_key(document), math.log1p(error))
    timed: dict[str, tuple[int, float]] = {}
    for number, document in store.documents("step", _MAX_DOCUMENTS):
        seconds = (document.get("time_s") or {}).get("median")
        if here(document) and seconds:
            timed.setdefault(_key(document), (number, seconds))
    for number, document in store.documents("forecast", _MAX_DOCUMENTS):
        later, seconds = timed.get(_key(document), (0, 0.0))
        if document.get("status") == "ok" and here(document) and number < later:
            errors.setdefault(_key(document), math.log(document["forecast_s"] / seconds))
    return list(errors.values())


def _key(document: Mapping[str, Any]) -> str:
    """Return a text that identifies a step; missing fields have their default.

    A user's file may have changed since: its steps are also identified by their calls.
    """
    names = _STEP if document.get("own") is None else (*_STEP, "program")
    # Breakdowns of earlier versions have no feed.
    known = {**document, "feed": document.get("feed") or "resident"}
    return json.dumps([known.get(name) or None for name in names], sort_keys=True)
