"""The TOML file of a sweep: tables whose keys are a command's options and whose lists are axes.

::

    title = "AlexNet by batch"

    [defaults]            # for every table that knows the key
    batch = [1, 16]

    [[layers]]            # as `pydlbench layers`; likewise [[estimate]], [[step]] and [[breakdown]]
    shape = "alexnet/*"
    precision = ["fp32", "bf16"]
    exclude = [{ precision = "bf16", batch = 1 }]

A list given to an option that takes several values goes there as it is; to one that takes a
single value it is an axis: every combination of such axes is a request of its own. A list of lists
is an axis of an option that takes several. A table with ``defaults = ["budget"]`` takes these of
the file's defaults only.
"""

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from operator import itemgetter
from typing import Any

from pydlbench.errors import UsageError, nearest
from pydlbench.runner.tasks import TaskRow

# Maximum number of combinations of axes in a table, and of parts of a key, which TOML does not
# limit.
_MAX_REQUESTS = 2_000
_MAX_KEY_PARTS = 32
# The line that begins a table. TOML's reader groups tables by kind, without their positions, which
# are read from a key that no table has.
_POSITION = "-"
_HEAD = re.compile(r"^[ \t]*\[\[[ \t]*[a-z]+[ \t]*\]\][ \t]*(?:#.*)?\r?$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key of the file: an option of the command.

    Attributes:
        name: name of the option without its dashes, or of the argument: ``model``.
        takes: ``many`` values, ``pairs`` of name and value, ``one``, or none at all (``flag``).
        positional: an argument, not an option.
        refused: why a file may not have it; empty if it may.
    """

    name: str
    takes: str
    positional: bool = False
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTable:
    """One table of the file.

    Attributes:
        kind: the command.
        number: counted from 1 among all tables of the file.
        place: name of the table in messages: ``sweep.toml: [[layers]] 2``.
        requests: command-line words of each request, without the command's name.
        exclude: rules, as written.
    """

    kind: str
    number: int
    place: str
    requests: tuple[tuple[str, ...], ...]
    exclude: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFile:
    """A file that was read.

    Attributes:
        path: name of the file, for messages.
        title: purpose of the file; may be empty.
        tables: tables in the order of the file.
        text: content of the file, as it was read.
    """

    path: str
    title: str
    tables: tuple[SweepTable, ...]
    text: str


def parse_sweep(path: str, text: str, keys: Mapping[str, Sequence[Key]]) -> SweepFile:
    """Read a sweep.

    Args:
        path: path of the file, for messages.
        text: content of the file.
        keys: the keys that each kind of table may have.

    Raises:
        UsageError: one line with file, table, key, reason and the nearest valid one.
    """
    document = _document(path, text)
    top = ("title", "defaults", *keys)
    for name in document:
        if name not in top:
            near = ", ".join(nearest(name, top, 1) or keys)
            raise UsageError(f"{path}: {name}: no such table or key; nearest: {near}")
    title = document.get("title", "")
    if not isinstance(title, str):
        raise UsageError(f'{path}: title: not a text; nearest: title = "{title}"')
    kinds = [kind for kind in keys if kind in document]
    if not kinds:
        raise UsageError(f"{path}: asks for nothing; nearest: a table [[layers]]")
    defaults = _defaults(path, document.get("defaults", {}), keys, kinds)
    positions = tomllib.loads(
        _HEAD.sub(lambda head: f"{head[0]}\n{_POSITION} = {head.start()}", text)
    )
    listed = []
    for kind in kinds:
        of_kind = document[kind]
        if not isinstance(of_kind, list) or not all(isinstance(table, dict) for table in of_kind):
            raise UsageError(f"{path}: {kind}: not a list of tables; nearest: [[{kind}]]")
        for index, values in enumerate(of_kind):
            place = f"{path}: [[{kind}]]" + (f" {index + 1}" if len(of_kind) > 1 else "")
            listed.append((positions[kind][index].get(_POSITION, len(text)), kind, place, values))
    tables: list[SweepTable] = []
    for _, kind, place, values in sorted(listed, key=itemgetter(0)):
        known = _taken(place, values, keys[kind])
        full = {name: value for name, value in defaults.items() if name in known} | values
        tables.append(_table(kind, len(tables) + 1, place, full, keys[kind]))
    return SweepFile(path=path, title=title, tables=tuple(tables), text=text)


def _document(path: str, text: str) -> dict[str, Any]:
    if re.search(rf"(?:[\w-]+[ \t]*\.[ \t]*){{{_MAX_KEY_PARTS},}}", text):
        raise UsageError(f"{path}: a key of more than {_MAX_KEY_PARTS} parts; nearest: [[layers]]")
    try:
        return tomllib.loads(text)
    except ValueError as error:  # also an integer of thousands of digits
        raise UsageError(f"{path}: not TOML: {error}; see docs/sweeps.md") from error
    except RecursionError as error:
        raise UsageError(f"{path}: lists nested too deeply; see docs/sweeps.md") from error


def _defaults(
    path: str, values: Any, keys: Mapping[str, Sequence[Key]], kinds: Sequence[str]
) -> dict[str, Any]:
    """Return the defaults; at least one table of the file must know each of them."""
    place = f"{path}: [defaults]"
    if not isinstance(values, dict):
        raise UsageError(f"{path}: defaults: not a table; nearest: [defaults]")
    known = [key for kind in kinds for key in keys[kind]]
    for name in values:
        _check_name(place, name, known)
    return dict(values)


def _taken(place: str, values: Mapping[str, Any], keys: Sequence[Key]) -> set[str]:
    """Return the names of the defaults that a table takes: all, or those that it lists."""
    if "defaults" not in values:
        return {key.name for key in keys}
    names = values["defaults"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f'{place}: defaults: not a list of names; nearest: defaults = ["budget"]')
    for name in names:
        _check_name(f"{place}: defaults", name, keys)
    return {*names}


def _check_name(place: str, name: str, known: Sequence[Key]) -> None:
    same = [key for key in known if key.name == name]
    if same and not same[0].refused:
        return
    if same:
        raise UsageError(f"{place}: {name}: {same[0].refused}")
    names = sorted({key.name for key in known if not key.refused})
    # People write pass_ and no_checks with the wrong dash.
    near = nearest(name.replace("_", "-").strip("-"), names, 1)
    hint = f"nearest: {near[0]}" if near else f"choices: {', '.join(names)}"
    raise UsageError(f"{place}: {name}: no such key; {hint}")


def _table(
    kind: str, number: int, place: str, values: Mapping[str, Any], keys: Sequence[Key]
) -> SweepTable:
    rules = values.get("exclude", [])
    if not isinstance(rules, list) or not all(isinstance(rule, dict) and rule for rule in rules):
        raise UsageError(
            f'{place}: exclude: not a list of rules; nearest: exclude = [{{ precision = "bf16" }}]'
        )
    by_name = {key.name: key for key in keys}
    axes: list[list[tuple[str, ...]]] = []
    for name, value in values.items():
        if name in ("exclude", "defaults"):
            continue
        _check_name(place, name, keys)
        axes.append(key_words(place, by_name[name], value))
    # Arguments come last, behind "--": a name may begin with a dash.
    axes.sort(key=lambda axis: bool(axis[0]) and not axis[0][0].startswith("--"))
    count = math.prod(len(axis) for axis in axes)
    if count > _MAX_REQUESTS:
        raise UsageError(
            f"{place}: {count:,} combinations of its lists, {_MAX_REQUESTS:,} at the most; "
            "nearest: several files"
        )
    requests = [tuple(word for words in chosen for word in words) for chosen in product(*axes)]
    return SweepTable(
        kind=kind,
        number=number,
        place=place,
        requests=tuple(dict.fromkeys(requests)),
        exclude=tuple(rules),
    )


def key_words(place: str, key: Key, value: Any) -> list[tuple[str, ...]]:
    """Return the alternatives of one key: one for options with lists, else one per value."""
    if key.takes == "flag":
        if not isinstance(value, bool):
            raise UsageError(
                f"{place}: {key.name} = {_shown(value)}: not true or false; nearest: "
                f"{key.name} = true"
            )
        return [(f"--{key.name}",) if value else ()]
    if isinstance(value, dict) and key.takes == "pairs":
        value = [
            f"{name}={str(item).lower() if isinstance(item, bool) else item}"
            for name, item in value.items()
        ]
    values = value if isinstance(value, list) else [value]
    if not values:
        raise UsageError(f"{place}: {key.name} = []: empty; nearest: leave it out")
    if key.takes in ("many", "pairs") and all(isinstance(item, list) for item in values):
        # An axis of alternatives, each with several values.
        return [
            tuple(f"--{key.name}={_text(place, key, item)}" for item in alternative)
            for alternative in values
        ]
    texts = [_text(place, key, item) for item in values]
    if key.takes in ("many", "pairs"):
        return [tuple(f"--{key.name}={text}" for text in texts)]
    if key.positional:
        return [(text,) for text in texts]
    return [(f"--{key.name}={text}",) for text in texts]


def _text(place: str, key: Key, value: Any) -> str:
    """Return one value as on a command line."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise UsageError(
            f"{place}: {key.name} = {_shown(value)}: not a text or a number; nearest: "
            f'{key.name} = "..."'
        )
    if isinstance(value, str) and not value.strip():
        raise UsageError(f'{place}: {key.name} = "": empty; nearest: leave it out')
    return str(value)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "{...}" if isinstance(value, dict) else repr(value).replace("'", '"')


# -----------------------------------------------------------------------------
# Rules that exclude rows from a sweep: those that match all keys of a rule.


def apply_rules(
    place: str, written: Iterable[Mapping[str, Any]], rows: Sequence[TaskRow]
) -> tuple[list[TaskRow], int]:
    """Return the rows that no rule excludes, and the number of excluded ones.

    Args:
        place: name of the table, for messages.
        written: rules: key to patterns, one of which must match; ``*`` and ``?`` as in file names.
        rows: all rows of the table.

    Raises:
        UsageError: a rule is wrong or matches no row, or no row is left.
    """
    kept = list(rows)
    for rule in written:
        _check_rule(place, rule, rows)
        if not any(_matches(rule, row) for row in rows):
            shown = ", ".join(f"{name} = {value}" for name, value in rule.items())
            raise UsageError(
                f"{place}: exclude: {shown}: no row has all of it; nearest: leave a key out"
            )
        kept = [row for row in kept if not _matches(rule, row)]
    if rows and not kept:
        raise UsageError(f"{place}: exclude: leaves no row; nearest: remove the table")
    return kept, len(rows) - len(kept)


def _check_rule(place: str, rule: Mapping[str, Any], rows: Sequence[TaskRow]) -> None:
    """Check the keys and values of a rule.

    Raises:
        UsageError: no row has such a key or value: a rule with a typing error would exclude
            nothing.
    """
    names = sorted({key for row in rows for key in row.fields})
    for name, value in rule.items():
        if name not in names:
            near = nearest(name, names, 1)
            hint = f"nearest: {near[0]}" if near else f"choices: {', '.join(names)}"
            raise UsageError(f"{place}: exclude: {name}: no such key; {hint}")
        here = sorted({row.fields[name] for row in rows if name in row.fields})
        for pattern in _patterns(value):
            if not any(_pattern_matches(text, pattern) for text in here):
                near = nearest(pattern, here, 1) or [text for text in here if text]
                raise UsageError(
                    f"{place}: exclude: {name} = {pattern}: no row has it; nearest: "
                    f"{near[0] if near else 'leave it out'}"
                )


def _matches(rule: Mapping[str, Any], row: TaskRow) -> bool:
    """Whether all keys match."""
    return all(
        any(_pattern_matches(row.fields.get(name, ""), pattern) for pattern in _patterns(value))
        for name, value in rule.items()
    )


def _patterns(value: Any) -> list[str]:
    return [str(item) for item in (value if isinstance(value, list) else [value])]


def _pattern_matches(text: str, pattern: str) -> bool:
    """Whether a pattern matches; ``conv3`` stands for ``alexnet/conv3`` as everywhere."""
    return fnmatchcase(text, pattern) or fnmatchcase(text.rpartition("/")[2], pattern)
