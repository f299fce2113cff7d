"""Copies of images that a framework makes where a padding differs on two sides."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pydlbench.diagnose.commands import layer_command
from pydlbench.diagnose.experiments import LayerChange
from pydlbench.diagnose.finding import WORTH, Hypothesis
from pydlbench.layers import Conv2d
from pydlbench.units import format_bytes, format_percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.diagnose.observations import Observations

__all__ = ["find"]


def find(seen: Observations) -> Iterator[Hypothesis]:
    """Yield the same convolution on images that were padded beforehand."""
    if seen.case.framework != "torch":
        return  # TensorFlow's convolutions take any padding
    for node in seen.model:
        layer = node.layer
        if not isinstance(layer, Conv2d) or not _uneven(layer):
            continue
        seconds = seen.own_s(node.name)
        if seconds < WORTH * seen.step_s:
            continue
        ready = dataclasses.replace(
            layer,
            in_height=layer.in_height + layer.pad_top + layer.pad_bottom,
            in_width=layer.in_width + layer.pad_left + layer.pad_right,
            pad_top=0,
            pad_bottom=0,
            pad_left=0,
            pad_right=0,
            name=None,
        )
        size = 4 * ready.batch * ready.in_channels * ready.in_height * ready.in_width
        for work in seen.works(node.name):
            if work.pass_ == "backward-weights":
                continue  # reads what the forward pass has padded
            case = seen.framework_case(work)
            yield Hypothesis(
                problem="extra copy for uneven padding",
                symptom=f"{node.name} pads {layer.pad_top}/{layer.pad_bottom} rows and "
                f"{layer.pad_left}/{layer.pad_right} columns: {format_bytes(size)} are copied",
                evidence=(
                    f"{node.name} takes {format_percent(seconds / seen.step_s)} of the step",
                ),
                cause="PyTorch's convolutions pad both ends of an axis alike; anything else is an "
                "operator of its own, which copies the images",
                experiment=LayerChange(
                    what="images that are padded already",
                    case=case,
                    changed=dataclasses.replace(case, layer=ready),
                ),
                next=layer_command(case),
                parts=frozenset({f"{node.name} {work.pass_}"}),
                where=f"{node.name} {work.pass_}",
                most_s=seconds,
            )


def _uneven(layer: Conv2d) -> bool:
    return layer.pad_top != layer.pad_bottom or layer.pad_left != layer.pad_right
