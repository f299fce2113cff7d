"""The tree of a model's modules, in which modules that repeat are one.

A model repeats its blocks: the 24 layers of an encoder differ in their number only. Two sibling
modules are the same part if they have the same class (names of a profile: ``Qwen2Attention_3``),
or a number for a name and the same calls (names of PyTorch's modules: ``layers.3``).
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from pydlbench.grouping import group_by

Item = TypeVar("Item")

#: Levels of the tree; modules below belong to the last one.
MAX_DEPTH: Final = 100
#: Digits of a module's number.
MAX_DIGITS: Final = 9
_INSTANCE: Final = re.compile(r"(.*[A-Za-z]\w*)_\d+")


@dataclass(frozen=True, slots=True)
class RepeatedModule(Generic[Item]):
    """Modules that are the same part of a model.

    Attributes:
        name: class or names of the modules: ``Qwen2Attention``, ``layers.0-23``.
        instances: for each module, all its items, including those of nested modules.
        own: items of these modules that belong to no nested module.
        inner: nested parts.
    """

    name: str
    instances: tuple[tuple[Item, ...], ...]
    own: tuple[Item, ...]
    inner: tuple[RepeatedModule[Item], ...]

    @property
    def repeats(self) -> int:
        """Number of modules."""
        return len(self.instances)

    @property
    def items(self) -> tuple[Item, ...]:
        """Items of all modules."""
        return tuple(item for instance in self.instances for item in instance)

    def all(self, depth: int = 0) -> Iterator[tuple[int, RepeatedModule[Item]]]:
        """Yield the part and all parts inside of it, each with its depth."""
        yield depth, self
        for part in self.inner:
            yield from part.all(depth + 1)


@dataclass(slots=True)
class _Module(Generic[Item]):
    """A module: items of its own, and the modules inside of it."""

    own: list[tuple[Item, Hashable]] = field(default_factory=list)
    inner: dict[str, _Module[Item]] = field(default_factory=dict)

    def items(self) -> Iterator[Item]:
        for item, _ in self.own:
            yield item
        for module in self.inner.values():
            yield from module.items()

    def fingerprint(self) -> Hashable:
        """Return the module's structure: equal for modules with the same calls, in any order."""
        inner = tuple((name, self.inner[name].fingerprint()) for name in sorted(self.inner))
        return tuple(sorted(str(key) for _, key in self.own)), inner


def fold(
    items: Iterable[tuple[Sequence[str], Hashable, Item]],
) -> tuple[RepeatedModule[Item], ...]:
    """Return items as a tree of modules, in which repeated modules are merged into one.

    Args:
        items: items, each with the names of the modules around it, the outermost first, and with a
            key that is equal for items that compute the same.
    """
    root: _Module[Item] = _Module()
    for path, key, item in items:
        module = root
        for name in path[:MAX_DEPTH]:
            module = module.inner.setdefault(name, _Module())
        module.own.append((item, key))
    return _fold_inner([root])


def _fold_inner(modules: Sequence[_Module[Item]]) -> tuple[RepeatedModule[Item], ...]:
    """Return the parts inside of modules that are the same part."""
    inner = [pair for module in modules for pair in module.inner.items()]
    parts = []
    for key, same in group_by(inner, _key).items():
        members = [module for _, module in same]
        parts.append(
            RepeatedModule(
                name=key[0] if key[1] is None else _numbers(name for name, _ in same),
                instances=tuple(tuple(module.items()) for module in members),
                own=tuple(item for module in members for item, _ in module.own),
                inner=_fold_inner(members),
            )
        )
    return tuple(parts)


def _key(named: tuple[str, _Module[Item]]) -> tuple[str, Hashable]:
    name, module = named
    if name.isascii() and name.isdecimal() and len(name) <= MAX_DIGITS:
        return "", module.fingerprint()
    instance = _INSTANCE.fullmatch(name)
    return instance[1] if instance else name, None


def _numbers(names: Iterable[str]) -> str:
    """Return numbers as text: ``0-2,5``."""
    parts: list[list[int]] = []
    for number in sorted({int(name) for name in names}):
        if parts and parts[-1][-1] + 1 == number:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
