"""Options that commands share, each with one meaning everywhere, and the values they take.

A value that is no good is refused in one line with the nearest that is.
"""

from __future__ import annotations

import argparse
import math
import re
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.terminal import tell
from pydlbench.errors import StoreError, UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pydlbench.records.run import RunInfo
    from pydlbench.runner.recorder import Recorder, Resumed
    from pydlbench.store.store import Store

__all__ = [
    "FOUND",
    "Several",
    "add",
    "batches",
    "byte_count",
    "choices",
    "fail_on",
    "find_of",
    "fraction",
    "one_of",
    "positive_seconds",
    "read_options",
    "reading_store",
    "recorder_of",
    "shortened",
    "single",
    "split_patterns",
    "taking",
    "whole_number",
    "wholes",
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


def wholes(option: str, given: str | Sequence[str], least: int = 1) -> list[int]:
    """Return the distinct whole numbers of a list option, in the order given."""
    given = [given] if isinstance(given, str) else given
    values = (whole_number(option, word, least) for word in _split(option, given))
    return list(dict.fromkeys(values))


def whole_number(option: str, text: str, least: int) -> int:
    """Return ``text`` as a number of at least ``least``.

    Raises:
        UsageError: It is none, or smaller.
    """
    # int() would take "1_000", " 7 " and digits of any script.
    if re.fullmatch(r"[+-]?[0-9]{19,}", text):
        near = least if text.startswith("-") else 10**18 - 1
        raise UsageError(f"{option} {text}: beyond what can be counted; nearest: {near}")
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
    value = _real(option, text, "2", endless=True)
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


def _real(option: str, text: str, near: str, *, endless: bool = False) -> float:
    """Return a number; an infinite one only where it is refused for its size."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value) or (math.isinf(value) and not endless):
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
# The store that ``--store`` names, for reading and for keeping a run in it.


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


def recorder_of(args: argparse.Namespace, kind: str, resume: str | None = None) -> Recorder:
    """Return what keeps a run in the store that a command's options name.

    Args:
        args: the options; ``store`` and ``quiet`` are read.
        kind: the command.
        resume: the run to go on with, as ``Store.find`` takes it.

    Raises:
        UsageError: the file that was named cannot be written; or there is no such run, it is
            another command's, or it is being written.
    """
    from pydlbench.runner.recorder import Recorder
    from pydlbench.store.place import chosen_path
    from pydlbench.store.store import Store

    path, by = chosen_path(getattr(args, "store", None))
    named = by == "--store"
    how: dict[str, Any] = {"tell": tell, "named": named, "quiet": getattr(args, "quiet", False)}
    if path is None:
        if resume is not None:
            raise UsageError(f"--resume {resume}: nothing is kept; nearest: leave out {by} none")
        return Recorder(None, kind, **how)
    try:
        store = Store.open(path if by else None)
    except StoreError as error:
        if named or resume is not None:
            raise UsageError(str(error)) from error
        tell(f"warning: results are not kept: {error}")
        return Recorder(None, kind, **how)
    try:
        resumed = None if resume is None else _resumable(store, resume, kind)
    except BaseException:
        store.close()
        raise
    return Recorder(store, kind, resumed=resumed, **how)


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
    from pydlbench.runner.recorder import Resumed
    from pydlbench.store.entry import BEING_WRITTEN

    info = find_of(store, text, kind)
    if info.status == "running":
        raise UsageError(f"--resume {text}: run {info.id} {BEING_WRITTEN.format(info.id)}")
    return Resumed(store, info)


# -----------------------------------------------------------------------------
# ``--fail-on``: what ends a command with exit code 3.

#: Exit code of a finding.
FOUND: Final = 3
_LARGEST: Final = 1000.0


def fail_on(text: str, allowed: Sequence[str]) -> tuple[str, float]:
    """Read a condition: ``failed``, ``slower``, ``slower:3%``, ``saves:10%``.

    Args:
        text: what was given; a bare fraction like ``0.1`` is a share of ``saves``.
        allowed: the conditions that a command knows.

    Returns:
        Its name, and the fraction: 0.03 for ``slower:3%``, 0 without one.

    Raises:
        UsageError: it is not written so; with the nearest that is.
    """
    if allowed == ("saves",) and re.fullmatch(r"0?\.[0-9]{1,6}", text):
        return "saves", float(text)
    found = re.fullmatch(r"([a-z]+)(?::([0-9]{1,4}(?:\.[0-9]{1,6})?)%)?", text)
    known = found is not None and found[1] in allowed
    if found and known and (found[1] != "failed" or found[2] is None):
        value = float(found[2] or 0)
        if value <= _LARGEST:
            return found[1], value / 100
    forms = ", ".join(one if one == "failed" else f"{one}:P%" for one in allowed)
    reason = "more than anybody measures" if found and known else f"expected {forms}"
    raise UsageError(f"--fail-on {text}: {reason}; nearest: {_near_condition(text, allowed)}")


def _near_condition(text: str, allowed: Sequence[str]) -> str:
    word = re.sub(r"[^a-z].*", "", text.strip().lower())
    name = next(iter(nearest(word, allowed, 1)), allowed[-1])
    number = re.search(r"[0-9]*\.?[0-9]+", text)
    if name == "failed" or number is None:
        return name if name == "failed" or (word and ":" not in text) else f"{name}:3%"
    value = float(number[0])
    if value > _LARGEST:
        return f"{name}:{_LARGEST:g}%"
    # A fraction without a sign is one: 0.03 means 3 %; 1.03 does, too.
    if "%" not in text and 0 < value < 1:
        value *= 100
    elif "%" not in text and 1 < value < 2 and "." in number[0]:
        value = 100 * (value - 1)
    # As many digits as are taken, and no exponent.
    return f"{name}:{f'{value:.6f}'.rstrip('0').rstrip('.')}%"


# -----------------------------------------------------------------------------
# How argparse reads values: by the functions above, several of them as one list.


def taking(check: Callable[..., Any], *limits: Any) -> Callable[[str], Any]:
    """Return a ``type`` for ``add_argument`` from a function of option, text and limits."""

    def convert(text: str) -> Any:
        try:
            return check("", text, *limits)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error).strip()) from error

    return convert


def batches(option: str, text: str, axis: str = "") -> list[int]:
    """Read ``16,32`` of ``--batch``, or ``batch=16,32`` of ``--sweep``, behind its axis."""
    if not text.startswith(axis):
        raise UsageError(f"{option} {text}: only batches; nearest: --sweep batch=16,32,64")
    return wholes(option, [text.removeprefix(axis)])


class Several(argparse.Action):
    """Gathers the values of all words into one list, each once, in the order given."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - as argparse calls it
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002 - likewise
    ) -> None:
        """Add what one occurrence of the option has."""
        before = getattr(namespace, self.dest) or ()
        words = values if isinstance(values, list) else [values]
        every = [one for word in words for one in (word if isinstance(word, list) else [word])]
        setattr(namespace, self.dest, list(dict.fromkeys([*before, *every])))


#: The options that more than one command has, as ``add_argument`` takes them.
SHARED: Final[dict[str, dict[str, Any]]] = {
    "model": {"metavar": "MODEL", "help": "only this model"},
    "framework": {"metavar": "NAME", "help": "torch, tensorflow or all; default: all"},
    "mode": {
        "metavar": "MODE",
        "help": "eager, compiled (torch), graph, xla (tensorflow); default: eager, graph",
    },
    "phase": {
        "metavar": "PHASE",
        "help": "forward (default), forward-backward, training (with L2 terms and optimizer)",
    },
    "batch": {
        "metavar": "N",
        "type": taking(whole_number, 1),
        "help": "images per step; default: as published",
    },
    "precision": {
        "metavar": "P",
        "help": "fp32 (default), bf16, fp16; on a GPU tf32, fp16-tc, bf16-tc, fp8-tc, too",
    },
    "layout": {
        "metavar": "LAYOUT",
        "default": "nhwc",
        "help": "of PyTorch's images: nhwc (channels last; default) or nchw",
    },
    "feed": {
        "metavar": "FROM",
        "help": "resident images (default), or new ones from the host in each step",
    },
    "option": {
        "action": "append",
        "metavar": "NAME=VALUE",
        "help": "a variant of the model: lrn=off, classes=1001",
    },
    "device": {
        "metavar": "DEVICE",
        "help": "cpu or cuda:N; default: the GPU if there is one",
    },
    "threads": {
        "metavar": "N",
        "type": taking(whole_number, 1),
        "help": "default: one per physical core",
    },
    "budget": {"metavar": "S", "type": taking(positive_seconds)},
    "seed": {
        "metavar": "N",
        "default": 0,
        "type": taking(whole_number, 0),
        "help": "seed of data and order (0)",
    },
    "explain": {
        "action": "store_true",
        "help": "show the measurements behind what is said",
    },
    "fail-on": {"metavar": "WHAT"},
    "json": {"metavar": "FILE", "help": "write JSON; - is stdout"},
    "csv": {"metavar": "FILE", "help": "write CSV; - is stdout"},
    "md": {"metavar": "FILE", "help": "write Markdown; - is stdout"},
    "quiet": {"action": "store_true", "help": "no progress, no notes, no warnings"},
    "verbose": {"action": "store_true", "help": "a line for everything that is begun"},
    "store": {
        "metavar": "FILE",
        "help": "where runs are kept; none keeps nothing; default: $PYDLBENCH_STORE, else in the "
        "user's data directory",
    },
}
# What an option becomes where a command takes several values of it.
_MANY: Final[dict[str, dict[str, Any]]] = {
    "batch": {
        "action": Several,
        "type": taking(batches),
        "help": "several are timed one after another",
    },
    "threads": {"action": Several, "type": taking(wholes)},
}
_SHORT: Final = {"quiet": "-q", "verbose": "-v"}


def add(parser: Any, *names: str, many: Sequence[str] = (), **changes: Mapping[str, Any]) -> None:
    """Add shared options to a parser, or to a group of one.

    Args:
        parser: of a command.
        names: of :data:`SHARED`.
        many: those that take several values here.
        changes: by name, with ``_`` for ``-``: what a command has otherwise, a default for example.
    """
    for name in names:
        short = [_SHORT[name]] if name in _SHORT else []
        several = {"nargs": "+", "action": "extend", **_MANY.get(name, {})}
        how = {**SHARED[name], **(several if name in many else {})}
        parser.add_argument(
            *short, f"--{name}", **{**how, **changes.get(name.replace("-", "_"), {})}
        )


def single(option: str, given: Sequence[Any] | None) -> Any:
    """Return the only value of a list, None without one.

    Raises:
        UsageError: there are several, where one is run at a time.
    """
    values = list(given or [])
    if len(values) > 1:
        text = ",".join(map(str, values))
        raise UsageError(f"{option} {text}: one at a time; nearest: {option} {values[0]}")
    return values[0] if values else None


def shortened(text: str, width: int = 200) -> str:
    """Return a text that a message can quote: a long one loses its middle."""
    return text if len(text) <= width else f"{text[: width - 60]} ... {text[-50:]}"
