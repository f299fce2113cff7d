"""Differences between two runs other than times: machine, libraries, threads, settings."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydlbench.compare.rows import Pair, Side

_MAX_LISTED_NAMES: Final = 3
# Facts of a machine that a kernel's time depends on, with their names in words.
_FACTS: Final = {
    "family": "processor family",
    "model": "processor model",
    "isa": "instruction sets",
    "sockets": "sockets",
    "cores": "cores",
    "threads_per_core": "hardware threads per core",
    "caches": "caches",
    "numa_nodes": "NUMA nodes",
    "cpu_limit": "limit of CPU time",
    "virtualised": "virtualisation",
    "governor": "frequency governor",
    "turbo": "turbo",
    "sm_count": "multiprocessors",
    "compute_capability": "compute capability",
    "l2_bytes": "L2 cache",
    "driver": "driver",
}
# Facts of a run's environment that a kernel's time depends on, with their names in words.
_SYSTEM: Final = {
    "os": "operating systems",
    "kernel": "kernels of the system",
    "python": "Python versions",
    "machine": "architectures",
}
#: Minimum change of the clock that is reported: an idle machine's boost clock moves by less.
MIN_CLOCK_CHANGE: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference between the runs.

    Attributes:
        what: ``machine``, ``library``, ``threads``, ``variable``, ``build``, ``code``, ``system``,
            ``kernel``, ``clock`` or ``unknown``.
        a: value in the first run.
        b: value in the second run.
        text: a sentence.
        counts: whether it may change times without being the subject of the comparison. Other code
            is what a comparison is made for; clocks and newly chosen kernels are part of the
            ratios.
    """

    what: str
    a: Any
    b: Any
    text: str
    counts: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {"what": self.what, "a": self.a, "b": self.b, "text": self.text}


def differences(a: Side, b: Side, pairs: Sequence[Pair]) -> list[Difference]:
    """Return the differences, the most important first.

    Args:
        a: the first run.
        b: the second run.
        pairs: matched rows.
    """
    known = [
        *_machines(a, b),
        *_threads(a, b, pairs),
        *_named("library", "libraries", _libraries(a), _libraries(b)),
        *_named("variable", "environment variables", _part(a, "variables"), _part(b, "variables")),
        *_named("build", "the build of the native modules", _part(a, "build"), _part(b, "build")),
        *_named("system", "settings of the system", _part(a, "settings"), _part(b, "settings")),
        *_code(a, b),
        *_unlike("system", "{} differ", _SYSTEM, a.environment, b.environment),
        *_unknown(a, b),
    ]
    return [*known, *_kernels(pairs), *_clocks(pairs)]


def _machines(a: Side, b: Side) -> list[Difference]:
    if a.machine and b.machine and a.machine != b.machine:
        text = f"the machines differ: {a.machine} and {b.machine}"
        return [Difference(what="machine", a=a.machine, b=b.machine, text=text)]
    facts = [dict(side.device.get("facts") or {}) for side in (a, b)]
    for each in facts:  # a virtual machine's host changes the memory of a node
        each["numa_nodes"] = [node.get("cpus") for node in each.get("numa_nodes") or ()] or None
    return list(_unlike("machine", "the machines differ in {}", _FACTS, *facts))


def _unlike(
    what: str, sentence: str, names: Mapping[str, str], first: Any, second: Any
) -> Iterator[Difference]:
    """Yield a difference for each name whose values are known and differ.

    Args:
        what: kind of the differences.
        sentence: text with a placeholder for the name in words.
        names: names of values, and the names in words.
        first: values of the first run by name.
        second: values of the second run by name.
    """
    for name, words in names.items():
        a, b = first.get(name), second.get(name)
        if a is None or b is None or a == b:
            continue
        values = f": {a} and {b}" if isinstance(a, (str, int, float)) else ""
        yield Difference(what=what, a=a, b=b, text=sentence.format(words) + values)


def _threads(a: Side, b: Side, pairs: Sequence[Pair]) -> Iterator[Difference]:
    """Yield the difference in threads if rows do not have them; otherwise they are matched."""
    first, second = (len(side.device.get("cpus") or ()) for side in (a, b))
    if first and second and first != second and not all(pair.a.threads for pair in pairs):
        text = f"the numbers of threads differ: {first} and {second}"
        yield Difference(what="threads", a=first, b=second, text=text)


def _libraries(side: Side) -> Mapping[str, Any]:
    packages = _part(side, "packages")
    loaded = {
        name: value
        for name, value in (side.device.get("libraries") or {}).items()
        if name not in ("threads", "numpy") and isinstance(value, str)
    }
    return {**packages, **loaded}


def _part(side: Side, name: str) -> Mapping[str, Any]:
    part = side.environment.get(name)
    return part if isinstance(part, dict) else {}


def _named(
    what: str, words: str, first: Mapping[str, Any], second: Mapping[str, Any]
) -> Iterator[Difference]:
    changed = {
        name: (first.get(name), second.get(name))
        for name in dict.fromkeys((*first, *second))
        if first.get(name) != second.get(name)
    }
    # A run may have no variables, but one without packages was recorded by another program.
    if not changed or (not (first and second) and what != "variable"):
        return
    shown = [
        f"{name} {'absent' if a is None else a} and {'absent' if b is None else b}"
        for name, (a, b) in list(changed.items())[:_MAX_LISTED_NAMES]
    ]
    hidden = len(changed) - _MAX_LISTED_NAMES
    more = f" and {hidden} more" if hidden > 0 else ""
    yield Difference(
        what=what,
        a={name: a for name, (a, _) in changed.items()},
        b={name: b for name, (_, b) in changed.items()},
        text=f"{words} differ: {'; '.join(shown)}{more}",
    )


def _code(a: Side, b: Side) -> Iterator[Difference]:
    first, second = (side.environment.get("code") for side in (a, b))
    if first and second and first != second:
        text = f"pydlbench's own code that times kernels differs: {first} and {second}"
        yield Difference(what="code", a=first, b=second, text=text, counts=False)


def _unknown(a: Side, b: Side) -> Iterator[Difference]:
    """Yield a note on runs without a record of machine or environment."""
    lacking = [side.name for side in (a, b) if not side.machine or not side.environment]
    if lacking:
        text = f"{' and '.join(lacking)}: machine or environment is not recorded, it may differ"
        yield Difference(what="unknown", a=a.machine, b=b.machine, text=text)


def _kernels(pairs: Sequence[Pair]) -> Iterator[Difference]:
    changed = [
        pair
        for pair in pairs
        if pair.a.algorithm != pair.b.algorithm
        and (pair.a.backend, pair.a.mode) == (pair.b.backend, pair.b.mode)
    ]
    if changed:
        first = changed[0]
        few = f" in {len(changed)} of {len(pairs)} rows" if len(pairs) > 1 else ""
        text = (
            f"another kernel was chosen{few}: {first.b.layer} ran {first.a.algorithm}, then "
            f"{first.b.algorithm}"
        )
        names = [pair.b.layer for pair in changed]
        yield Difference(what="kernel", a=names, b=names, text=text, counts=False)


def _clocks(pairs: Sequence[Pair]) -> Iterator[Difference]:
    ratios = [
        pair.b.clock_hz / pair.a.clock_hz for pair in pairs if pair.a.clock_hz and pair.b.clock_hz
    ]
    known = sorted(filter(math.isfinite, ratios))
    middle = known[len(known) // 2] if known else 1.0
    gap = abs(middle - 1)
    if gap > MIN_CLOCK_CHANGE:
        words = "higher" if middle > 1 else "lower"
        text = f"the clock was {100 * gap:.1f} % {words} in the second run: compare the cycles"
        yield Difference(what="clock", a=1.0, b=middle, text=text, counts=False)
