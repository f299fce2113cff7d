"""Items by what they have in common, and amounts."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

Item = TypeVar("Item")
Key = TypeVar("Key", bound="Hashable")


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return items by their keys, in the order of the first item of each.

    Args:
        items: any, not necessarily sorted by the key.
        key: returns what an item is grouped by.
    """
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def sum_by(amounts: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """Return the sums of amounts by their keys, in the order of the first one of each.

    Args:
        amounts: pairs of a key and an amount.
    """
    sums: dict[Key, float] = {}
    for key, amount in amounts:
        sums[key] = sums.get(key, 0.0) + amount
    return sums
