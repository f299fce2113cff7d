"""Options of a published protocol, and the numbers that it prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pydlbench.records.record import Record


class ProtocolOptions(Record, frozen=True, kw_only=True):
    """A published script with the options that it runs with.

    Attributes:
        protocol: name of the script.
        model: name of the model.
        options: options of the model, besides those that the script sets.
        framework: torch or tensorflow.
        mode: mode of the framework.
        precision: precision of the products.
        cast: below float32: mixed or whole; null is the script's own choice.
        layout: nhwc or nchw.
        device: cpu or cuda:N.
        seed: seed of weights and images.
        batch: images per step; null is the script's own number, as in the following fields.
        warmup: untimed steps before the timed ones.
        steps: timed steps.
        every: steps between printed lines.
        epochs: passes over the training images.
        quirks: quirks that are switched on.
        without: quirks that are switched off.
    """

    protocol: str
    model: str | None = None
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    framework: str | None = None
    mode: str | None = None
    precision: str = "fp32"
    cast: str | None = None
    layout: str = "nhwc"
    device: str = "cpu"
    seed: int = 0
    batch: int | None = None
    warmup: int | None = None
    steps: int | None = None
    every: int | None = None
    epochs: float | None = None
    quirks: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


class ProtocolNumber(Record, frozen=True, kw_only=True):
    """A number that a script prints.

    Attributes:
        name: label of the number: Forward, vgg16 eval.
        value: the number as printed, unrounded.
        unit: unit of value and spread.
        spread: spread of the value, as the script defines it; null where it prints none.
        times: the samples behind the value, in seconds.
        includes: parts of the step that the time includes.
    """

    name: str
    value: float | None
    unit: str
    spread: float | None = None
    times: tuple[float, ...] = ()
    includes: str = ""
