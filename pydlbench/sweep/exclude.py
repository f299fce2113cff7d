"""Rules that take rows out of a sweep: a row goes if all keys of a rule match it."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pydlbench.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydlbench.sweep.rows import Row

__all__ = ["Rule", "apply_rules"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Key to patterns, one of which must match; ``*`` and ``?`` as in file names."""

    patterns: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, place: str, written: Mapping[str, Any], rows: Sequence[Row]) -> Rule:
        """Check a rule against the rows that there are.

        Raises:
            UsageError: a key or a value that none of them has: a rule with a typing error would
                take nothing out.
        """
        found: dict[str, tuple[str, ...]] = {}
        for name, value in written.items():
            values = tuple(str(one) for one in (value if isinstance(value, list) else [value]))
            names = sorted({key for row in rows for key in row.fields})
            if name not in names:
                near = nearest(name, names, 1)
                hint = f"nearest: {near[0]}" if near else f"choices: {', '.join(names)}"
                raise UsageError(f"{place}: exclude: {name}: no such key; {hint}")
            here = sorted({row.fields[name] for row in rows if name in row.fields})
            for one in values:
                if not any(_fits(text, one) for text in here):
                    near = nearest(one, here, 1) or [text for text in here if text]
                    raise UsageError(
                        f"{place}: exclude: {name} = {one}: no row has it; nearest: "
                        f"{near[0] if near else 'leave it out'}"
                    )
            found[name] = values
        return cls(found)

    def matches(self, row: Row) -> bool:
        """Whether all keys match."""
        return all(
            any(_fits(row.fields.get(name, ""), one) for one in patterns)
            for name, patterns in self.patterns.items()
        )


def apply_rules(
    place: str, written: Iterable[Mapping[str, Any]], rows: Sequence[Row]
) -> tuple[list[Row], int]:
    """Return the rows that no rule takes out, and how many were taken out.

    Raises:
        UsageError: a rule that is wrong, that fits no row, or all of them together leave nothing.
    """
    left = list(rows)
    for rule in written:
        checked = Rule.of(place, rule, rows)
        if not any(checked.matches(row) for row in rows):
            shown = ", ".join(f"{name} = {value}" for name, value in rule.items())
            raise UsageError(
                f"{place}: exclude: {shown}: no row has all of it; nearest: leave a key out"
            )
        left = [row for row in left if not checked.matches(row)]
    if rows and not left:
        raise UsageError(f"{place}: exclude: leaves no row; nearest: remove the table")
    return left, len(rows) - len(left)


def _fits(text: str, pattern: str) -> bool:
    """Whether a value is meant: ``conv3`` is ``alexnet/conv3`` as everywhere."""
    return fnmatchcase(text, pattern) or fnmatchcase(text.rpartition("/")[2], pattern)
