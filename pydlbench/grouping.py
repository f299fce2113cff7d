"""Grouping items, and summing amounts, by keys."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key", bound="Hashable")


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return lists of items by key, in the order of first occurrence.

    Args:
        items: items to group, not necessarily sorted by key.
        key: returns the key of an item.
    """
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def sum_by(amounts: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """Return the sums of amounts by key, in the order of first occurrence.

    Args:
        amounts: pairs of a key and an amount.
    """
    sums: dict[Key, float] = {}
    for key, amount in amounts:
        sums[key] = sums.get(key, 0.0) + amount
    return sums
