"""Options that commands share, each with one meaning everywhere, and the values they take.

A value that is no good is refused in one line with the nearest that is.
"""

from __future__ import annotations

import argparse
import math
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import StoreError, UsageError, nearest
from pydlbench.words import (
    CODE_LIMIT_S,
    FEEDS,
    FRAMEWORK_MODES,
    FRAMEWORKS,
    IMAGE_LAYOUTS,
    PHASES,
    check_device,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pydlbench.store.store import Store


_BYTES = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
# What eighteen digits can say.
_LARGEST_COUNT = 10**18 - 1
# More than any memory holds, and what the native modules can still count.
_MOST_BYTES = 1 << 62


def choices(
    option: str, given: str | Sequence[str], allowed: Sequence[str], every: str = ""
) -> list[str]:
    """Return the distinct values of a list option, in the order given.

    Args:
        option: Its name, for messages.
        given: A word of the command line, or several; each may hold values between commas.
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


def frameworks(option: str, given: str | Sequence[str]) -> list[str]:
    """Return frameworks by name; ``all`` is those that run the models of the catalogue."""
    words = choices(option, given, (*FRAMEWORK_MODES, "all"))
    return [one for word in words for one in (FRAMEWORKS if word == "all" else (word,))]


def wholes(option: str, given: str | Sequence[str]) -> list[int]:
    """Return the distinct whole numbers above zero of a list option, in the order given."""
    values = (whole_number(option, word, 1) for word in _split(option, given))
    return list(dict.fromkeys(values))


def whole_number(option: str, text: str, least: int) -> int:
    """Return ``text`` as a number of at least ``least``.

    Raises:
        UsageError: It is none, or smaller.
    """
    # int() would take "1_000", " 7 " and digits of any script.
    if re.fullmatch(r"[+-]?[0-9]{19,}", text):
        near = least if text.startswith("-") else _LARGEST_COUNT
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
    value = real(option, text, "2", endless=True)
    if not 0 < value <= 86400:
        near = "0.1" if value <= 0 else "86400"
        raise UsageError(f"{option} {text}: must lie between 0 and 86400 s; nearest: {near}")
    return value


def byte_count(option: str, text: str) -> int:
    """Return a number of bytes: ``4096``, ``64M``, ``64MiB``, ``1.5g`` (powers of 1024).

    Args:
        option: Its name, for messages.
        text: What was given.

    Raises:
        UsageError: It is no such number.
    """
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
    value = real(option, text, "0.95")
    if not low < value < high:
        percentage = low < value / 100 < high
        near = f"{value / 100:g}" if percentage else "0.95"
        raise UsageError(f"{option} {text}: must lie between {low:g} and {high:g}; nearest: {near}")
    return value


def percentage(option: str, text: str) -> float:
    """Return ``text``, ``2%`` or ``2``, as a fraction: 0.02.

    Raises:
        UsageError: It is none between 0 and 100, both excluded.
    """
    found = re.fullmatch(r"([0-9]{0,3}(?:\.[0-9]{0,6})?) ?%?", text)
    value = real(option, found[1], "2%") if found and found[1].strip(".") else math.nan
    if not 0 < value < 100:
        raise UsageError(
            f"{option} {text or repr(text)}: expected a percentage between 0 and 100; nearest: 2%"
        )
    return value / 100


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


def _split(option: str, given: str | Sequence[str]) -> list[str]:
    given = [given] if isinstance(given, str) else given
    values = [value.strip() for word in given for value in word.split(",")]
    if not all(values) or not values:
        text = ",".join(given)
        near = ",".join(filter(None, values)) or "leave the option out"
        raise UsageError(f"{option} {text!r}: empty value in the list; nearest: {near}")
    return values


def real(option: str, text: str, near: str, *, endless: bool = False) -> float:
    """Return a number; an infinite one only where it is refused for its size.

    Raises:
        UsageError: it is none; ``near`` is one.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value) or (math.isinf(value) and not endless):
        raise UsageError(f"{option} {text}: not a number; nearest: {near}")
    return value


def _guess(text: str, least: int) -> int:
    try:
        return min(max(least, round(float(text))), _LARGEST_COUNT)
    except (ValueError, OverflowError):
        return least


def one_of(option: str, text: str, allowed: Sequence[str]) -> str:
    """Return the value of an option that takes one only.

    Raises:
        UsageError: it is not among those allowed, or there are several.
    """
    first, *others = choices(option, text, allowed)
    if others:
        raise UsageError(f"{option} {text}: one at a time; nearest: {option} {first}")
    return first


# -----------------------------------------------------------------------------
# What options stand for: the device, and the store for reading.


def device_of(args: argparse.Namespace) -> tuple[str, tuple[str, ...]]:
    """Return the device of ``--device``, or the default one and what has to be said of it.

    Raises:
        UsageError: there is no such device.
    """
    from pydlbench.backends.capabilities import default_device

    if args.device is None:
        return default_device()
    check_device(args.device)
    return args.device, ()


def check_threads(threads: int | Sequence[int] | None, device: str) -> None:
    """Refuse ``--threads`` where the device is no CPU.

    Raises:
        UsageError: it was given.
    """
    if threads is not None and device != "cpu":
        first = threads if isinstance(threads, int) else threads[0]
        raise UsageError(f"--threads {first}: for CPUs only; nearest: leave it out")


def refuse(
    args: argparse.Namespace,
    names: Sequence[str],
    where: str,
    near: str = "leave it out",
    *,
    idle: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Refuse options that would be ignored.

    Args:
        args: of the command.
        names: of the options, as attributes.
        where: they have no meaning, for the message: ``with --summary``.
        near: what to do instead.
        idle: by name, the default of those options that have another one than None.

    Raises:
        UsageError: one of them was given.
    """
    for name in names:
        value = getattr(args, name)
        # A seed of 0 was given, too.
        if value is None or value is False or (name in idle and value == idle[name]):
            continue
        option = f"--{name.replace('_', '-')}"
        # A flag, a condition or a margin, which are no text any more.
        plain = value is True or isinstance(value, tuple) or name == "same"
        shown = f"{value:g}" if isinstance(value, float) else value
        text = option if plain else f"{option} {shown}"
        raise UsageError(f"{text}: has no meaning {where}; nearest: {near}")


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


# -----------------------------------------------------------------------------
# ``--fail-on``: what ends a command with exit code 3, or 4 where it cannot be told.

#: Exit code of a finding.
FOUND: Final = 3
#: Exit code where it could not be told whether there is one.
UNDECIDED: Final = 4
_LARGEST: Final = 1000.0


def fail_on(option: str, text: str, *allowed: str) -> tuple[str, float]:
    """Read a condition: ``failed``, ``slower``, ``slower:3%``, ``saves:10%``.

    Args:
        option: its name, for messages.
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
    near = _near_condition(text, allowed)
    raise UsageError(f"{option} {text or repr(text)}: {reason}; nearest: {near}")


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


def taking(option: str, check: Callable[..., Any], *limits: Any) -> Callable[[str], Any]:
    """Return a ``type`` for ``add_argument`` from a function of option, text and limits."""

    def convert(text: str) -> Any:
        try:
            return check(option, text, *limits)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def batches(option: str, text: str, axis: str = "") -> list[int]:
    """Read ``16,32`` of ``--batch``, or ``batch=16,32`` of ``--sweep``, behind its axis."""
    if not text.startswith(axis):
        raise UsageError(f"{option} {text}: only batches; nearest: --sweep batch=16,32,64")
    try:
        return wholes(option, [text.removeprefix(axis)])
    except UsageError as error:
        if not axis:
            raise
        # What was given, axis and all, and why not.
        raise UsageError(f"{option} {text}: {str(error).partition(': ')[2]}") from None


class Several(argparse.Action):
    """Gathers the values of all words into one list, each once, in the order given.

    The option's default gives way to the first of them.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - as argparse calls it
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002 - likewise
    ) -> None:
        """Add what one occurrence of the option has."""
        found = getattr(namespace, self.dest)
        before = () if found is self.default else found
        words = values if isinstance(values, list) else [values]
        every = [one for word in words for one in (word if isinstance(word, list) else [word])]
        setattr(namespace, self.dest, list(dict.fromkeys([*before, *every])))


#: ``--fail-on`` of the commands whose rows can fail.
FAILED: Final = {
    "type": (fail_on, "failed"),
    "help": "failed: end with exit code 3 if a row has failed",
}
#: The options that more than one command has, as ``add_argument`` takes them; ``type`` is what
#: :func:`taking` makes one of.
SHARED: Final[dict[str, dict[str, Any]]] = {
    "model": {"metavar": "MODEL", "help": "only this model"},
    "framework": {
        "metavar": "NAME",
        "help": "torch, tensorflow, jax, or all, which is the first two; default: all",
    },
    "mode": {
        "metavar": "MODE",
        "help": "eager, compiled (torch), graph, xla (tensorflow); default: eager, graph",
    },
    "phase": {
        "metavar": "PHASE",
        "type": (one_of, PHASES),
        "default": PHASES[0],
        "help": "forward (default), forward-backward, training (with L2 terms and optimizer)",
    },
    "batch": {
        "metavar": "N",
        "type": (whole_number, 1),
        "help": "images per step; default: as published",
    },
    "precision": {
        "metavar": "P",
        "help": "fp32 (default), bf16, fp16; on a GPU tf32, fp16-tc, bf16-tc, fp8-tc, too",
    },
    "layout": {
        "metavar": "LAYOUT",
        "type": (one_of, IMAGE_LAYOUTS),
        "help": "of PyTorch's images: nhwc (channels last; default) or nchw; a model of one's own "
        "stays as it is built unless nhwc is asked for",
    },
    "feed": {
        "metavar": "FROM",
        "type": (one_of, FEEDS),
        "default": FEEDS[0],
        "help": "resident images (default), or new ones from the host in each step",
    },
    "option": {
        "action": "append",
        "metavar": "NAME=VALUE",
        "help": "a variant of the model: lrn=off, classes=1001",
    },
    "arg": {
        "action": "append",
        "metavar": "NAME=VALUE",
        "help": "what CALLABLE is called with; Python's literals, true, false, none, else text",
    },
    "input": {
        "action": "append",
        "metavar": "SHAPE",
        "help": "a random input: 8x3x224x224, 8x128:int64 (0 or 1), tokens=8x128:int64 by name; "
        "default: those that CALLABLE returns",
    },
    "loss": {
        "metavar": "LOSS",
        "help": "cross-entropy, sum, mean-square or package.module:FUNCTION of the output; "
        "default: what CALLABLE returns, else the model's own, else sum",
    },
    "optimizer": {
        "metavar": "NAME",
        "help": "of training: sgd (default), momentum, adam, adamw; fused as adam-fused",
    },
    "train-mode": {
        "action": "store_true",
        "help": "modules in training mode in the forward phase, too",
    },
    "eval-mode": {"action": "store_true", "help": "modules in evaluation mode in all phases"},
    "autocast": {
        "metavar": "P",
        "type": (one_of, ("bf16",)),
        "help": "bf16: the same as --precision bf16 with weights in fp32",
    },
    "time-limit": {
        "metavar": "S",
        "type": (positive_seconds,),
        "help": "seconds after which a request in which its code runs is given up, at the cost of "
        f"its row: built and run a few times, or a batch of samples ({CODE_LIMIT_S:.0f})",
    },
    "device": {
        "metavar": "DEVICE",
        "help": "cpu or cuda:N; default: the GPU if there is one",
    },
    "threads": {
        "metavar": "N",
        "type": (whole_number, 1),
        "help": "default: one per physical core",
    },
    "budget": {"metavar": "S", "type": (positive_seconds,)},
    "visits": {
        "metavar": "N",
        "type": (whole_number, 1),
        "help": "visit each row so often at least, over the whole run and in new processes; from 6 "
        "on there is an interval (6; a single row has its visits in one process)",
    },
    "seed": {
        "metavar": "N",
        "default": 0,
        "type": (whole_number, 0),
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
        "type": (batches,),
        "help": "several are timed one after another",
    },
    "threads": {"action": Several, "type": (wholes,)},
    "framework": {"action": Several, "type": (frameworks,)},
    "phase": {"action": Several, "type": (choices, PHASES, "all"), "default": None},
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
        how |= changes.get(name.replace("-", "_"), {})
        if "type" in how:
            how["type"] = taking(f"--{name}", *how["type"])
        parser.add_argument(*short, f"--{name}", **how)


def shortened(text: str, width: int = 200) -> str:
    """Return a text that a message can quote: a long one loses its middle."""
    return text if len(text) <= width else f"{text[: width - 60]} ... {text[-50:]}"
