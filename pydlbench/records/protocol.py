"""What can be said of a published protocol before it runs, and the numbers that it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pydlbench.records.record import Record


class ProtocolOptions(Record, frozen=True, kw_only=True):
    """Which published script is run, and how.

    Attributes:
        protocol: its name.
        model: name of the model.
        options: of the model, besides those that the script sets.
        framework: torch or tensorflow.
        mode: how the framework ran it.
        precision: of the products.
        cast: below float32: mixed or whole; null is what the script does.
        layout: nhwc or nchw.
        device: cpu or cuda:N.
        seed: of weights and images.
        batch: images per step; null is the script's own.
        warmup: steps before those that count; null is the script's own.
        steps: steps that count; likewise.
        every: steps between lines; likewise.
        epochs: passes over the training images; likewise.
        quirks: switched on.
        without: quirks switched off.
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
        name: what it is of: Forward, vgg16 eval.
        value: as printed, unrounded.
        unit: of value and spread.
        spread: as the script defines it; null where it prints none.
        times: seconds of every sample behind the value.
        includes: what the time includes.
    """

    name: str
    value: float | None
    unit: str
    spread: float | None = None
    times: tuple[float, ...] = ()
    includes: str = ""
