"""Networks of our own that nobody trains: what a step costs beside its operators is read off them.

Two of them compute next to nothing in many operators, so that their steps are made of calls; the
others have maps as large networks have them. They are in no list of models, and in no table in
which predictions are scored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.models import family
from pydlbench.models.builder import Builder
from pydlbench.models.graph import Optimizer

if TYPE_CHECKING:
    from pydlbench.models.graph import Model

_UNITS = 16


@family(
    "calibration-thin", "calibration-short", "calibration-plain", "calibration-units", listed=False
)
def build(name: str, batch: int | None) -> Model:
    """Build one of them; batches are ours, too."""
    kind = name.partition("-")[2]
    made = {"thin": _thin, "short": _short, "plain": _plain, "units": _units}[kind](name, batch)
    return made.model(
        title=f"for calibration ({kind})", source="none", optimizer=Optimizer(kind="sgd")
    )


def _thin(name: str, batch: int | None) -> Builder:
    """Many convolutions, normalisations and sums of tiny maps."""
    net = Builder(name, batch or 2, (3, 12, 12))
    net.conv_bn("conv0", 8, 3, 1, 1)
    for number in range(_UNITS):
        before = net.last
        net.conv_bn(f"conv{number + 1}", 8, 3, 1, 1, activation=None)
        net.add(f"add{number + 1}", net.last, before)
        net.relu()
    net.flatten()
    net.linear("fc", 10)
    return net


def _short(name: str, batch: int | None) -> Builder:
    """A few operators of tiny maps."""
    net = Builder(name, batch or 2, (3, 12, 12))
    for number in range(3):
        net.conv(f"conv{number}", 8, 3, 1, 1)
        net.relu()
    net.pool("pool", 2, 2)
    net.flatten()
    net.linear("fc", 10)
    return net


def _plain(name: str, batch: int | None) -> Builder:
    """Convolutions, poolings and products, one after the other."""
    net = Builder(name, batch or 6, (3, 96, 96))
    for number, channels in enumerate((48, 96, 160)):
        for again in range(2):
            net.conv(f"conv{number}_{again}", channels, 3, 1, 1)
            net.relu()
        net.pool(f"pool{number}", 2, 2)
    net.flatten()
    net.linear("fc1", 768)
    net.relu()
    net.linear("fc2", 100)
    return net


def _units(name: str, batch: int | None) -> Builder:
    """Normalised units with sums, joined maps and convolutions of each channel by itself."""
    net = Builder(name, batch or 6, (3, 80, 80))
    net.conv_bn("stem", 40, 3, 2, 1)
    for number, channels in enumerate((80, 120)):
        net.conv_bn(f"unit{number}/reduce", channels, 1, 2)
        before = net.last
        net.conv_bn(f"unit{number}/each", channels, 3, 1, 1, groups=channels)
        net.conv_bn(f"unit{number}/mix", channels, 1, activation=None)
        net.add(f"unit{number}/add", net.last, before)
        first = net.relu()
        net.conv_bn(f"unit{number}/more", 40, 3, 1, 1)
        net.concat(f"unit{number}/concat", [first, net.last])
    net.global_pool("pool")
    net.flatten()
    net.linear("fc", 100)
    return net
