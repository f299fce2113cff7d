"""Items by what they have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

Item = TypeVar("Item")
Key = TypeVar("Key", bound="Hashable")


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return items by their keys, in the order of the first item of each.

    Args:
        items: any, not necessarily sorted by the key.
        key: returns what an item is grouped by.
    """
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
