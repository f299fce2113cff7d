"""``pydlbench device``: facts, peaks, bandwidths, clocks, libraries; known cards."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.machine import device_of
from pydlbench.cli.options import DEVICE, THREADS, JsonOutput, flag, option
from pydlbench.cli.output import Outputs
from pydlbench.cli.values import pairs
from pydlbench.errors import UsageError, nearest
from pydlbench.units import merge_subjects
from pydlbench.words import CPU_PEAKS, GPU_LAYER_PRECISIONS

if TYPE_CHECKING:
    from pydlbench.devices.cpu.record import DeviceRecord
    from pydlbench.devices.gpu.record import GpuRecord


class DeviceOptions(JsonOutput):
    """The command's options."""

    description = (
        "Show what a device is, its theoretical peaks and what probes reach on it; or, with "
        "--known, what was published about known cards."
    )
    device: str | None = DEVICE(group="")
    threads: int | None = THREADS(
        help="CPU threads that are probed; default: one per physical core", group=""
    )
    known: bool = flag("list known cards instead of probing this machine; needs no GPU")
    price: tuple[str, ...] = option(
        "NAME=USD",
        "with --known: price of a card, 'RTX 4090=1599'; adds TFLOP/s per 1000 USD, FP32 and FP16 "
        "on tensor cores",
        many=True,
        read=pairs,
        default=(),
    )
    throughput: tuple[str, ...] = option(
        "NAME=N",
        "with --known: images per second of a card in a model, measured or published; adds images "
        "per second and dollar where --price has the card",
        many=True,
        read=pairs,
        default=(),
    )


def run(args: DeviceOptions, probe: Callable[..., DeviceRecord | GpuRecord] | None = None) -> int:
    """Probe the device and show it, or list the known cards.

    Args:
        args: the command's options.
        probe: called instead of ``measure.probe_device``.

    Raises:
        UsageError: No such device or card, options that exclude each other, unwritable file.
        PydlbenchError: The probes could not run.
    """
    from pydlbench.backends import capabilities
    from pydlbench.report.device import device_report

    if args.known:
        args.refuse(("device", "threads"), "with --known")
        return run_known(args)
    args.refuse(("price", "throughput"), "without --known", "--known")
    arguments, notes = _arguments(args)
    outputs = Outputs.from_options(args)
    if probe is None:
        from pydlbench.runner.session import probe_device

        probe = probe_device
    record = probe(**arguments)
    outputs.note(*notes)
    outputs.write(
        lambda: {"device": record.to_dict(), "environment": capabilities.environment()},
        lambda: device_report(record),
        warnings=merge_subjects(f"{advice.symptom}; {advice.remedy}" for advice in record.warnings),
    )
    return 0


def _arguments(args: DeviceOptions) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the arguments of ``probe_device``, and a note if a GPU is left out."""
    device, notes = device_of(args.device)
    if device != "cpu":
        if args.threads is not None:
            raise UsageError(
                f"--threads {args.threads}: cannot be combined with {device}, only a CPU's probes "
                "have threads; nearest: --device cpu"
            )
        return {"device": device, "precisions": GPU_LAYER_PRECISIONS}, notes
    return {"device": device, "threads": args.threads, "precisions": CPU_PEAKS}, notes


# -----------------------------------------------------------------------------
# ``pydlbench device --known``: published figures of known cards, also per price.


def run_known(args: DeviceOptions) -> int:
    """List the known cards.

    Raises:
        UsageError: No such card, a bad price or throughput, unwritable file.
    """
    from pydlbench.devices.gpu.cards import known_cards
    from pydlbench.report.device import cards_report, price_cards

    prices = _by_card("--price", args.price)
    images = _by_card("--throughput", args.throughput)
    for name in images:
        if name not in prices:
            raise UsageError(
                f"--throughput {name}: images per second and dollar need a price; nearest: "
                f"--price '{name}=USD'"
            )
    cards = price_cards(known_cards(), prices, images)
    Outputs.from_options(args).write(
        lambda: {"cards": [card.to_dict() for card in cards]},
        lambda: cards_report(cards),
    )
    return 0


def _by_card(option: str, given: Iterable[str]) -> dict[str, float]:
    """Read ``NAME=NUMBER``; names are case-insensitive, the last of several values counts."""
    from pydlbench.devices.gpu.cards import known_cards

    names = {card.name.casefold(): card.name for card in known_cards()}
    values = {}
    for text in given:
        name, separator, number = (part.strip() for part in text.rpartition("="))
        if not separator or not name:
            example = f"{text.strip(' =') or 'H200 SXM'}=1000"
            raise UsageError(
                f"{option} {text or repr(text)}: not NAME=NUMBER; nearest: '{example}'"
            )
        if name.casefold() not in names:
            near = _near(name, list(names.values()))
            raise UsageError(f"{option} {name}: no such card; nearest: {', '.join(near)}")
        values[names[name.casefold()]] = _positive(option, name, number)
    return values


def _near(name: str, names: Sequence[str]) -> list[str]:
    """Return likely cards, those of the family first: A100 PCIe for A100."""
    family = re.sub(r"^(?:nvidia|tesla|geforce)\s+|\s+", " ", name.casefold()).strip()
    beginning = [card for card in names if card.casefold().startswith(family)]
    return beginning or list(nearest(family, names)) or list(names)[-3:]


def _positive(option: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{option} {name}={text}: not a number; nearest: '{name}=1000'")
    if value <= 0:
        raise UsageError(f"{option} {name}={text}: must be above 0; nearest: '{name}=1000'")
    return value


SUBCOMMANDS: Final = {"": (DeviceOptions, run)}
