"""Values of options: lists, choices and numbers, each refused in one line that helps."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.terminal import tell
from pydlbench.errors import StoreError, UsageError, nearest

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from pydlbench.cli.recorder import Resumed
    from pydlbench.records.run import RunInfo
    from pydlbench.store.store import Store

__all__ = [
    "FOUND",
    "add_store_option",
    "byte_count",
    "choices",
    "find_of",
    "fraction",
    "one_of",
    "positive_seconds",
    "read_options",
    "read_threshold",
    "reading_store",
    "say_kept",
    "split_patterns",
    "whole_number",
    "wholes",
    "writing_store",
]

_BYTES = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
# More than any memory holds, and what the native modules can still count.
_MOST_BYTES = 1 << 62


def choices(
    option: str, given: Sequence[str], allowed: Sequence[str], every: str = ""
) -> list[str]:
    """Return the distinct values of a list option, in the order given.

    Args:
        option: Its name, for messages.
        given: Words of the command line; each may hold several values between commas.
        allowed: What may be asked for.
        every: Word that stands for all of ``allowed``; empty where there is none.

    Raises:
        UsageError: A value is not among them.
    """
    found: dict[str, None] = {}
    for value in _split(option, given):
        if every and value == every:
            found |= dict.fromkeys(allowed)
        elif value in allowed:
            found[value] = None
        else:
            # What only lacks its end comes first: bf16 means bf16-tc.
            near = [name for name in allowed if name.startswith(value)] or nearest(
                value, allowed, 1
            )
            hint = f"nearest: {near[0]}; choices" if near else "choices"
            names = ", ".join([*allowed, every] if every else allowed)
            raise UsageError(f"{option} {value}: not a valid choice; {hint}: {names}")
    return list(found)


def wholes(option: str, given: Sequence[str], least: int = 1) -> list[int]:
    """Return the distinct whole numbers of a list option, in the order given."""
    values = (whole_number(option, word, least) for word in _split(option, given))
    return list(dict.fromkeys(values))


def whole_number(option: str, text: str, least: int) -> int:
    """Return ``text`` as a number of at least ``least``.

    Raises:
        UsageError: It is none, or smaller.
    """
    # int() would take "1_000", " 7 " and digits of any script.
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise UsageError(f"{option} {text}: not a whole number; nearest: {_guess(text, least)}")
    if int(text) < least:
        raise UsageError(f"{option} {text}: too small; nearest: {least}")
    return int(text)


def positive_seconds(option: str, text: str) -> float:
    """Return ``text`` as a positive number of seconds.

    Raises:
        UsageError: It is none.
    """
    value = _real(option, text, "2")
    if not 0 < value <= 86400:
        near = "0.1" if value <= 0 else "86400"
        raise UsageError(f"{option} {text}: must lie between 0 and 86400 s; nearest: {near}")
    return value


def byte_count(option: str, text: str | None, default: int = 1 << 33) -> int:
    """Return a number of bytes: ``4096``, ``64M``, ``64MiB``, ``1.5g`` (powers of 1024).

    Args:
        option: Its name, for messages.
        text: What was given; ``None`` is the default.
        default: In bytes.

    Raises:
        UsageError: It is no such number.
    """
    if text is None:
        return default
    pattern = r"([0-9]{1,18}(?:\.[0-9]{1,6})?)\s*([KMGT]?)(?:I?B)?"
    found = re.fullmatch(pattern, text.strip().upper())
    if not found:
        raise UsageError(f"{option} {text or repr(text)}: not a number of bytes; nearest: 64M")
    whole, _, part = found[1].partition(".")
    factor = 1 << _BYTES[found[2]]
    count: int = int(whole) * factor + int(part or 0) * factor // 10 ** len(part)
    if count > _MOST_BYTES:
        raise UsageError(f"{option} {text}: more than there can be; nearest: 1T")
    return count


def fraction(option: str, text: str, low: float, high: float) -> float:
    """Return ``text`` as a number between ``low`` and ``high``, both excluded.

    Raises:
        UsageError: It is none.
    """
    value = _real(option, text, "0.95")
    if not low < value < high:
        percentage = low < value / 100 < high
        near = f"{value / 100:g}" if percentage else "0.95"
        raise UsageError(f"{option} {text}: must lie between {low:g} and {high:g}; nearest: {near}")
    return value


def split_patterns(given: Iterable[str]) -> list[str]:
    """Split layer patterns at commas, except inside ``n"..."`` and in ``@file``."""
    found: list[str] = []
    for word in given:
        if word.startswith("@"):
            found.append(word)
            continue
        parts = re.findall(r'(?:[^,"]|"[^"]*"?)+', word)
        found += [part.strip() for part in parts if part.strip()]
    return list(dict.fromkeys(found))


def _split(option: str, given: Sequence[str]) -> list[str]:
    values = [value.strip() for word in given for value in word.split(",")]
    if not all(values) or not values:
        text = ",".join(given)
        near = ",".join(filter(None, values)) or "leave the option out"
        raise UsageError(f"{option} {text!r}: empty value in the list; nearest: {near}")
    return values


def _real(option: str, text: str, near: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{option} {text}: not a number; nearest: {near}")
    return value


def _guess(text: str, least: int) -> int:
    try:
        value = float(text)
        return max(least, round(value))
    except (ValueError, OverflowError):
        return least


# -----------------------------------------------------------------------------
# Options of whole models' commands: variants (``--option lrn=off``), and words of which one.


def one_of(option: str, text: str, allowed: Sequence[str]) -> str:
    """Return the value of an option that takes one only.

    Raises:
        UsageError: it is not among those allowed, or there are several.
    """
    first, *others = choices(option, [text], allowed)
    if others:
        raise UsageError(f"{option} {text}: one at a time; nearest: {option} {first}")
    return first


def read_options(given: Sequence[str]) -> dict[str, str]:
    """Return options by name; which there are, the model knows.

    Raises:
        UsageError: one without a name or a value, or one that is given twice.
    """
    found: dict[str, str] = {}
    for text in given:
        name, mark, value = (part.strip() for part in text.partition("="))
        if not mark or not name or not value:
            raise UsageError(f"--option {text}: not NAME=VALUE; nearest: --option classes=1001")
        key = name.replace("-", "_")
        if key in found:
            raise UsageError(f"--option {text}: {name} is given twice; nearest: leave one out")
        found[key] = value
    return found


# -----------------------------------------------------------------------------
# The option that every command has which keeps results or reads them.


def add_store_option(parser: Any) -> None:
    """Add ``--store`` to a command's parser, or to a group of its options."""
    parser.add_argument(
        "--store",
        metavar="FILE",
        help="where results are kept; none keeps nothing; default: $PYDLBENCH_STORE, else a file "
        "in the user's data directory",
    )


def reading_store(args: argparse.Namespace) -> Store | None:
    """Open the store for reading; None where there is none yet, or ``--store none`` was given.

    Raises:
        UsageError: a file that was named is missing, or is no store that can be read.
        StoreError: another one cannot be read.
    """
    from pydlbench.store.place import chosen_path
    from pydlbench.store.store import Store

    path, by = chosen_path(getattr(args, "store", None))
    if path is None:
        return None
    if not path.exists():
        if by == "--store":
            raise UsageError(f"--store {path}: no such file; nearest: leave it out")
        return None
    try:
        return Store.open(path, readonly=True)
    except StoreError as error:
        if by == "--store":
            raise UsageError(str(error)) from error
        raise


def writing_store(
    args: argparse.Namespace, kind: str, resume: str | None
) -> tuple[Store | None, bool, Resumed | None]:
    """Open the store for writing.

    Args:
        args: the options; ``store`` is read.
        kind: the command.
        resume: the run to go on with, as ``Store.find`` takes it.

    Returns:
        The store, None where nothing can or is to be kept; whether it was named with ``--store``;
        the run to go on with.

    Raises:
        UsageError: the file that was named cannot be written; or there is no such run, it is
            another command's, or it is being written.
    """
    from pydlbench.store.place import chosen_path
    from pydlbench.store.store import Store

    path, by = chosen_path(getattr(args, "store", None))
    named = by == "--store"
    if path is None:
        if resume is not None:
            raise UsageError(f"--resume {resume}: nothing is kept; nearest: leave out {by} none")
        return None, named, None
    try:
        store = Store.open(path if by else None)
    except StoreError as error:
        if named or resume is not None:
            raise UsageError(str(error)) from error
        tell(f"warning: results are not kept: {error}")
        return None, named, None
    try:
        return store, named, None if resume is None else _resumable(store, resume, kind)
    except BaseException:
        store.close()
        raise


def say_kept(store: Store, run_id: str, where: str) -> None:
    """Say under which name a run can be found, and how it is shown."""
    from pydlbench.store.reader import short_id

    try:
        short = short_id(run_id, store.ids())
    except StoreError:
        short = run_id
    tell(f"kept as run {run_id} (pydlbench runs show {short}{where})")


def find_of(store: Store, text: str, kind: str) -> RunInfo:
    """Return the run that ``--resume`` names.

    Raises:
        UsageError: there is none, or it is another command's.
    """
    info = store.find(text)
    if info.kind != kind:
        raise UsageError(
            f"--resume {text}: run {info.id} is of {info.kind}, not of {kind}; see: pydlbench runs"
        )
    return info


def _resumable(store: Store, text: str, kind: str) -> Resumed:
    from pydlbench.cli.recorder import Resumed
    from pydlbench.store.entry import BEING_WRITTEN

    info = find_of(store, text, kind)
    if info.status == "running":
        raise UsageError(f"--resume {text}: run {info.id} {BEING_WRITTEN.format(info.id)}")
    return Resumed(store, info)


# -----------------------------------------------------------------------------
# ``--fail-on slower:3%``: from which slowdown on a comparison ends with exit code 3.

#: Exit code of a finding.
FOUND: Final = 3
_USUAL: Final = "slower:3%"
_LARGEST: Final = 1000.0


def read_threshold(text: str) -> float:
    """Return the fraction: 0.03 for ``slower:3%``, 0 for ``slower``.

    Raises:
        UsageError: it is not written so; with the nearest that is.
    """
    found = re.fullmatch(r"slower(?::([0-9]{1,4}(?:\.[0-9]{1,6})?)%)?", text)
    value = float(found[1] or 0) if found else 0.0
    if found and value <= _LARGEST:
        return value / 100
    reason = "more than anybody measures" if found else "expected slower:P%, P a percentage"
    raise UsageError(f"--fail-on {text}: {reason}; nearest: {_nearest(text)}")


def _nearest(text: str) -> str:
    number = re.search(r"[0-9]*\.?[0-9]+", text)
    if number is None:
        return "slower" if text.strip().lower().startswith("slow") and ":" not in text else _USUAL
    value = float(number[0])
    if value > _LARGEST:
        return f"slower:{_LARGEST:g}%"
    # A fraction without a sign is one: 0.03 means 3 %; 1.03 does, too.
    if "%" not in text and 0 < value < 1:
        value *= 100
    elif "%" not in text and 1 < value < 2 and "." in number[0]:
        value = 100 * (value - 1)
    # As many digits as are taken, and no exponent.
    return f"slower:{f'{value:.6f}'.rstrip('0').rstrip('.')}%"
