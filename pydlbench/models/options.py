"""Options of models, with values as text or as Python objects."""

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any, Final, cast

from pydlbench.errors import UsageError, unknown_word
from pydlbench.models.graph import Loss, Model, weight_decays

# Options of all models, which do not change the nodes of the graph.
_COMMON_OPTIONS: Final = ("loss", "optimizer", "decay", "input_gradient")
_LOSSES: Final = ("cross-entropy", "l2", "sum")
_OPTIMIZERS: Final = ("sgd", "momentum", "none")
_BOOLEANS: Final = {"on": True, "off": False, "true": True, "false": False}


def choice(option: str, value: str, choices: tuple[str, ...]) -> str:
    """Return the choice that equals a value, ignoring case.

    Raises:
        UsageError: It is not among the choices.
    """
    for valid in choices:
        if str(value).lower() == valid.lower():
            return valid
    raise unknown_word(f"{option}={value}: not a valid choice", str(value), choices)


def build_with(
    build: Callable[..., Model], name: str, batch: int | None, options: dict[str, Any]
) -> Model:
    """Call a family's ``build(name, batch, ...)`` with the options that it knows.

    Raises:
        UsageError: The model has no such option, or a value is invalid.
    """
    defaults = {
        parameter.name: parameter.default
        for parameter in inspect.signature(build).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    for option in options:
        known = (*defaults, *_COMMON_OPTIONS)
        if option not in known:
            raise unknown_word(f"{name}: no option {option!r}", option, known)
    values = {
        option: _read(option, value, defaults[option])
        for option, value in options.items()
        if option in defaults
    }
    return _vary(build(name, batch, **values), options)


def _vary(model: Model, options: dict[str, Any]) -> Model:
    """Return a model with the options of all models applied."""
    changes: dict[str, Any] = {}
    if "loss" in options:
        kind = choice("loss", options["loss"], _LOSSES)
        labels = model.output.shape[0] if kind == "cross-entropy" else 0
        if labels and len(model.output.shape) != 1 and model.loss.kind != kind:
            raise UsageError(f"loss={kind}: {model.name} ends in maps; nearest: l2, sum")
        changes |= {"loss": Loss(kind=cast("Any", kind)), "classes": labels}
    if "optimizer" in options:
        kind = choice("optimizer", options["optimizer"], _OPTIMIZERS)
        changes["optimizer"] = dataclasses.replace(model.optimizer, kind=cast("Any", kind))
    if "decay" in options:
        factor = _read("decay", options["decay"], 0.0)
        changes["decays"] = weight_decays(model, factor) if factor else ()
    if "input_gradient" in options:
        changes["input_gradient"] = _read("input_gradient", options["input_gradient"], False)
    return dataclasses.replace(model, **changes) if changes else model


def _read(option: str, value: Any, default: Any) -> Any:
    """Convert a value to the type of its default."""
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        return _BOOLEANS[choice(option, value, tuple(_BOOLEANS))]
    if isinstance(default, str):
        return str(value)
    whole = isinstance(default, int)
    least = 1 if whole else 0
    try:
        number = float(value)
        if isinstance(value, bool) or not math.isfinite(number) or (whole and number % 1):
            raise ValueError
    except (TypeError, ValueError):
        kind = "whole number" if whole else "number"
        raise UsageError(f"{option}={value}: not a {kind}; at least {least}") from None
    if number < least:
        raise UsageError(f"{option}={value}: too small; at least {least}")
    return type(default)(number)
