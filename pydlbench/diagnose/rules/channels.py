"""Convolutions whose channels fill no vector: images of three channels, for example."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from pydlbench.diagnose.commands import layer_command
from pydlbench.diagnose.experiments import LayerChange
from pydlbench.diagnose.finding import WORTH, Hypothesis
from pydlbench.layers import Conv2d
from pydlbench.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.diagnose.observations import Observations

__all__ = ["find"]

# Kernels take channels in such blocks, or in multiples of them.
_BLOCK: Final = 8


def find(seen: Observations) -> Iterator[Hypothesis]:
    """Yield the same convolution with channels padded to a multiple of eight."""
    for node in seen.model:
        layer = node.layer
        if not isinstance(layer, Conv2d) or layer.groups > 1 or not layer.in_channels % _BLOCK:
            continue
        seconds = seen.own_s(node.name)
        if seconds < WORTH * seen.step_s:
            continue
        whole = -(-layer.in_channels // _BLOCK) * _BLOCK
        padded = dataclasses.replace(layer, in_channels=whole, name=None)
        share = format_percent(seconds / seen.step_s)
        for work in seen.works(node.name):
            case = seen.framework_case(work)
            yield Hypothesis(
                problem=f"{layer.in_channels} input channels",
                symptom=f"{node.name} has {layer.in_channels} input channels and takes "
                f"{format_seconds(seconds)} ({share} of the step)",
                evidence=(),
                cause="kernels work on blocks of channels: what does not fill one is computed by "
                "another, slower kernel, or in vain",
                experiment=LayerChange(
                    what=f"channels padded to {whole}",
                    case=case,
                    changed=dataclasses.replace(case, layer=padded),
                ),
                next=layer_command(dataclasses.replace(case, layer=padded)),
                parts=frozenset({f"{node.name} {work.pass_}"}),
                where=f"{node.name} {work.pass_}",
                most_s=min(seconds, seen.step_s),
            )
