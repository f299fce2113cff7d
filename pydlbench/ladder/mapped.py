"""The native layers that stand for recorded calls, and how much of a step has one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from pydlbench.errors import UnsupportedError
from pydlbench.ladder.estimate import Kernels, Term, nameless, terms_of
from pydlbench.ladder.operators import listed
from pydlbench.records.check import Known, OperatorRow
from pydlbench.steps.aten.work import CallWork, work_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydlbench.records.measurement import Measurement
    from pydlbench.records.operator import RecordedCall
    from pydlbench.records.specs import KernelSpec
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.session import Session

__all__ = [
    "MappedCall",
    "kernels_of",
    "known",
    "map_calls",
    "map_step",
    "module_parts",
    "recorded_kernels",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedCall:
    """What stands for a recorded call.

    Attributes:
        count: how often the step makes it.
        work: what it computes.
        terms: the native kernels of one execution; none where no layer stands for it.
    """

    count: int
    work: CallWork
    terms: tuple[Term, ...]

    def native_s(self, rows: Mapping[KernelSpec, Measurement]) -> float | None:
        """Return the seconds of its native layers, halfway between hot and cold caches.

        Args:
            rows: by case, its layer without a name.

        Returns:
            0 of a view; None without a layer, or where one has no row with a time.
        """
        if self.work.kind == "view":
            return 0.0
        total = 0.0
        for term in self.terms:
            for case in (term.hot, term.cold):
                row = rows.get(nameless(case))
                if row is None or not row.ok or row.time is None:
                    return None
                total += row.time.median / 2
        return total if self.terms else None


def map_calls(
    calls: Iterable[RecordedCall], phase: str, precision: str, device: str, cache_bytes: int | None
) -> dict[tuple[str, str], MappedCall]:
    """Return what stands for each call, by signature and direction.

    Args:
        calls: of PyTorch's; for others nothing stands.
        phase: of the step: behind a forward phase alone no layer has to keep anything.
        precision: of all layers.
        device: that they run on.
        cache_bytes: see :func:`~pydlbench.ladder.estimate.plan`.
    """
    found = {}
    propagation = "inference" if phase == "forward" else "training"
    for one in calls:
        work = work_of(one)
        # A batch normalisation says by itself whose statistics it takes.
        layers = [
            layer
            if getattr(layer.layer, "op", None) == "batchnorm"
            else dataclasses.replace(layer, propagation=propagation)
            for layer in work.layers
        ]
        terms = terms_of(layers, precision, device, cache_bytes)
        found[one.signature, one.direction] = MappedCall(count=one.count, work=work, terms=terms)
    return found


def map_step(case: StepSpec, session: Session) -> dict[tuple[str, str], MappedCall]:
    """Return what stands for the calls of a step, as PyTorch's eager mode makes them.

    Other modes run other kernels, which compute the same.

    Args:
        case: the step.
        session: whose worker records.

    Raises:
        UnsupportedError: the step cannot be recorded.
        PydlbenchError: the user's own code failed.
    """
    if case.framework != "torch":
        raise UnsupportedError(
            f"{case.model}: the calls of a {case.framework} step are not recorded; nearest: "
            "--framework torch"
        )
    eager = msgspec.structs.replace(case, mode="eager", feed="resident")
    calls = listed(eager, session).calls
    return map_calls(calls, case.phase, case.precision, "cpu", session.cache_bytes("cpu"))


def recorded_kernels(case: StepSpec, session: Session) -> Kernels:
    """Return the native kernels of a step without a graph; see :func:`map_step`."""
    return kernels_of(map_step(case, session))


def kernels_of(mapped: Mapping[tuple[str, str], MappedCall]) -> Kernels:
    """Return the native kernels of a step, each as often as its calls are made."""
    shared: dict[KernelSpec, KernelSpec] = {}

    def first(case: KernelSpec) -> KernelSpec:
        return shared.setdefault(nameless(case), case)

    return Kernels(
        terms=tuple(
            Term(work=term.work, hot=first(term.hot), cold=first(term.cold))
            for one in mapped.values()
            for term in one.terms * one.count
        )
    )


def known(
    rows: Sequence[OperatorRow], mapped: Mapping[tuple[str, str], MappedCall]
) -> Known | None:
    """Return how much of a step has native layers and formulas; None without calls.

    Args:
        rows: the operators that were timed.
        mapped: what stands for them.
    """
    own = [(one, mapped[one.signature, one.direction].work) for one in rows if one.kind != "feed"]
    own = [(one, work) for one, work in own if work.kind != "view"]
    if not own:
        return None
    native = [one for one, work in own if work.layers]
    formula = [one for one, work in own if work.flops is not None]

    def shares(which: Sequence[OperatorRow]) -> tuple[float, float, float]:
        found = []
        for of in (_calls, _bytes, _seconds):
            whole = sum(of(one) for one, _ in own)
            found.append(sum(map(of, which)) / whole if whole else 0.0)
        return found[0], found[1], found[2]

    lacking: dict[str, float] = {}
    for one, work in own:
        if not work.layers:
            lacking[one.operator] = lacking.get(one.operator, 0.0) + _seconds(one)
    by_native, by_formula = shares(native), shares(formula)
    return Known(
        native_calls=by_native[0],
        native_bytes=by_native[1],
        native_time=by_native[2],
        formula_calls=by_formula[0],
        formula_bytes=by_formula[1],
        formula_time=by_formula[2],
        unmapped=dict(sorted(lacking.items(), key=lambda one: -one[1])),
    )


def _calls(one: OperatorRow) -> float:
    return one.count


def _bytes(one: OperatorRow) -> float:
    return one.count * one.bytes


def _seconds(one: OperatorRow) -> float:
    return one.count * one.seconds


def module_parts(rows: Sequence[OperatorRow]) -> dict[str, float]:
    """Return the seconds of the native layers by module; of what is not known completely nothing.

    Args:
        rows: with their native seconds.
    """
    found: dict[str, float] = {}
    unknown = set()
    for row in rows:
        for name, share in row.owners().items():
            if row.native_s is None:
                unknown.add(name)
            else:
                found[name] = found.get(name, 0.0) + share * row.native_s
    return {name: seconds for name, seconds in found.items() if name not in unknown}
