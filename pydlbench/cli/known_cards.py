"""``pydlbench device --known``: published figures of known cards, and what prices make of them."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from pydlbench.devices.gpu import known_cards
from pydlbench.errors import UsageError, nearest
from pydlbench.report.known_cards import PricedCard, price_cards, render_cards
from pydlbench.results.destination import STDOUT, check_writable, write_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

__all__ = ["run_known"]


def run_known(args: argparse.Namespace) -> int:
    """List the known cards.

    Args:
        args: the parsed options of ``device``.

    Raises:
        UsageError: No such card, a bad price or throughput, unwritable file.
    """
    prices = _by_card("--price", args.price or ())
    images = _by_card("--throughput", args.throughput or ())
    for name in images:
        if name not in prices:
            raise UsageError(
                f"--throughput {name}: images per second and dollar need a price; nearest: "
                f"--price '{name}=USD'"
            )
    cards = price_cards(known_cards(), prices, images)
    if args.json is not None:
        check_writable("--json", args.json)
        write_text(args.json, _to_json(cards))
    if args.json != STDOUT:
        print(render_cards(cards))
    return 0


def _by_card(option: str, given: Iterable[str]) -> dict[str, float]:
    """Read ``NAME=NUMBER``; case does not matter in names, the last of several counts."""
    names = {card.name.casefold(): card.name for card in known_cards()}
    found = {}
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
        found[names[name.casefold()]] = _positive(option, name, number)
    return found


def _near(name: str, names: Sequence[str]) -> list[str]:
    """The cards that may be meant: those of the family first, A100 PCIe for A100."""
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


def _to_json(cards: Sequence[PricedCard]) -> str:
    import json

    from pydlbench.results.records import SCHEMA_VERSION

    document = {"schema_version": SCHEMA_VERSION, "cards": [card.to_dict() for card in cards]}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
