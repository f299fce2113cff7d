"""The native layers of the calls of a step, searched for and timed round by round.

Each is prepared anew in each visit, with new memory. On a GPU it stays prepared if it has room: its
time does not depend on the location of its memory, and preparing it takes far longer than timing.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from pydlbench.analysis.call_times import NativeKernel
from pydlbench.analysis.mapped import MappedCall
from pydlbench.backends.base import KernelFacts
from pydlbench.grouping import group_by, sum_by
from pydlbench.ops.table import ITEM_BYTES, without_sides
from pydlbench.records.measurement import KernelSpec, Measurement
from pydlbench.runner.session import Session
from pydlbench.study.loop import Size, Subject
from pydlbench.study.table import SampleTable, Visit
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.timing.policy import Policy
from pydlbench.units import some_names
from pydlbench.workers.host import RemoteKernel, releasing

Prepared = RemoteKernel[KernelFacts]

# Share of a GPU's memory for native kernels that stay prepared: calls alone may take a quarter, and
# two processes hold the step.
_MEMORY_SHARE: Final = 1 / 8
# The smallest native kernels, which make this share of their sum, are visited in every fourth round
# only, besides their search: preparing them is not worth the time.
_TAIL_SHARE: Final = 0.25
_TAIL_PERIOD: Final = 4
# Efficiency from which a native layer is faster than its limit, not by chance.
_ABOVE_LIMIT: Final = 1.05
_WITH_FEWER_FLOPS: Final = ("conv", "deconv")


class NativeLayers:
    """Native layers as subjects of a breakdown.

    Args:
        session: session whose workers are used.
        device: device of the step.
        known: returns the row of a native kernel that was found before; None if there is none.
        keep: called with each kernel that was found, and its row.

    Attributes:
        rows: rows of the layers of all calls.
        notes: layers without a time, and why.
    """

    def __init__(
        self,
        session: Session,
        device: str,
        known: Callable[[KernelSpec], Measurement | None],
        keep: Callable[[KernelSpec, Measurement], None],
    ) -> None:
        self._session, self._known, self._keep = session, known, keep
        self.rows: dict[KernelSpec, Measurement] = {}
        self.notes: list[str] = []
        self._kept: list[Prepared] = []
        self._seldom: frozenset[KernelSpec] = frozenset()
        room = None if device == "cpu" else session.room_bytes(device)
        self._room_bytes = _MEMORY_SHARE * (room or 0)

    def find(
        self,
        mapped: Mapping[tuple[str, str], MappedCall],
        rounds: int,
        policy: Policy,
        progress: Callable[[float, str], None],
        table: SampleTable,
    ) -> list[Subject]:
        """Find the fastest kernel of each layer that was not found before; return the subjects.

        Args:
            mapped: calls with their layers.
            rounds: number of rounds that will visit them.
            policy: policy of their visits.
            progress: called with the share of the kernels that were found, and what comes next.
            table: gets a visit for each time of their rows, the first of which is the search's.
                These visits belong to no round, but count in the medians.
        """

        def advance(done: float, total: int, label: str) -> None:
            if label:
                progress(done / total, f"native layers, {int(done)} of {total}: {label}")

        wanted = dict.fromkeys(
            term.hot.nameless for each in mapped.values() if not each.lacks for term in each.terms
        )
        known = {spec: row for spec in wanted if (row := self._known(spec)) is not None}
        missing = [spec for spec in wanted if spec not in known]
        prepared: dict[KernelSpec, Prepared] = {}
        try:
            if missing:
                for spec, row in self._session.measure(
                    missing, advance, first_of=rounds, prepared=prepared
                ):
                    known[spec.nameless] = row
                    self._keep(spec, row)
            self.rows = {spec: known[spec] for spec in wanted}
            for spec, row in self.rows.items():
                _add_visits(spec, row, table)
            subjects = list(self._subjects(policy, prepared))
        finally:  # release the kernels that do not stay
            with releasing(prepared.values()):
                pass
        self._seldom = seldom(self._seconds(mapped))
        without = {spec: _without_time(row) for spec, row in self.rows.items()}
        for reason, specs in group_by(without, without.__getitem__).items():
            if reason:
                names = some_names([spec.label for spec in specs])
                self.notes.append(f"no native row: {names}: {reason}")
        return subjects

    def is_due(self, key: Hashable, number: int) -> bool:
        """Whether a subject is visited in a round; in others its median is used."""
        return number % _TAIL_PERIOD == 0 or key not in self._seldom

    def close(self) -> None:
        """Free the kernels that stay prepared."""
        with releasing(self._kept):
            pass

    def of_call(self, call: MappedCall, table: SampleTable) -> tuple[NativeKernel, ...] | None:
        """Return the native kernels of a call: () for a view, None if one has no time."""
        if call.meaning.kind == "view":
            return ()
        if call.lacks or not call.terms:
            return None
        kernels = []
        for term in call.terms:
            spec = term.hot.nameless
            if spec not in table:
                return None
            roof, clock = self.rows[spec].roofline, self.rows[spec].clock_hz
            bound = roof is not None and roof.bound == "compute"
            kernels.append(
                NativeKernel(
                    subject=spec,
                    limit_s=None if roof is None else roof.time_s,
                    limit_hz=clock if bound else None,
                    nominal_s=self._nominal_s(spec) if bound else None,
                )
            )
        return tuple(kernels)

    def _nominal_s(self, spec: KernelSpec) -> float | None:
        """Return a roofline of arithmetic at the nominal clock, at which memory may be slower."""
        row = self.rows[spec]
        nominal_hz = self._session.nominal_clock(spec.device, spec.precision)
        if row.roofline is None or not row.clock_hz or not nominal_hz:
            return None
        gbps = row.roofline.bandwidth_gbps
        move_s = 0.0 if gbps is None else row.bytes / (1e9 * gbps)
        return max(move_s, row.roofline.time_s * row.clock_hz / nominal_hz)

    def lacking(self, call: MappedCall) -> str:
        """Return why the native layers of a call have no time: the reason of the first one."""
        reasons = [_without_time(self.rows[term.hot.nameless]) for term in call.terms]
        return call.lacks or next(filter(None, reasons), "its native layers have no time")

    def below_limits(self) -> list[str]:
        """Return a note on layers faster than limits that count the FLOPs of direct kernels."""
        faster = {
            f"{spec.layer.problem} {spec.pass_}": row.roofline.efficiency
            for spec, row in self.rows.items()
            if row.ok and row.roofline is not None and row.roofline.efficiency > _ABOVE_LIMIT
            if without_sides(spec.layer.kind) in _WITH_FEWER_FLOPS
        }
        words = ", ".join(f"{problem} {ratio:.1f}x" for problem, ratio in faster.items())
        note = (
            f"limits count the FLOPs of direct convolutions; native ones that are faster: {words}"
        )
        return [note] if faster else []

    def _subjects(self, policy: Policy, prepared: dict[KernelSpec, Prepared]) -> Iterator[Subject]:
        """Yield layers with a time; kernels that stay prepared are removed from ``prepared``."""
        for spec, row in self.rows.items():
            if row.ok and row.time is not None:
                seconds = row.time.median
                yield Subject(
                    key=spec,
                    sample=self._sampler(spec, row, prepared),
                    policy=policy,
                    size=Size(execution_s=seconds, wall_s=seconds),
                )

    def _seconds(self, mapped: Mapping[tuple[str, str], MappedCall]) -> dict[KernelSpec, float]:
        """Return the time of each kernel in a step, the sum of its executions."""
        timed = {
            spec: row.time.median
            for spec, row in self.rows.items()
            if row.ok and row.time is not None
        }
        return sum_by(
            (spec, each.count * timed[spec])
            for each in mapped.values()
            for term in each.terms
            if (spec := term.hot.nameless) in timed
        )

    def _sampler(
        self, spec: KernelSpec, row: Measurement, prepared: dict[KernelSpec, Prepared]
    ) -> Callable[[ChunkRequest], Chunk]:
        variant = f"{row.algorithm} {row.layout}" if row.algorithm else None
        stays = self._stays(spec, row)
        kept: list[Prepared] = []

        def keep(kernel: Prepared) -> None:
            kept.append(kernel)
            self._kept.append(kernel)

        if stays and spec in prepared:
            keep(prepared.pop(spec))

        def sample(request: ChunkRequest) -> Chunk:
            """Time the kernel; prepare it in new memory unless it stays prepared."""
            if kept and kept[0].alive:
                return kept[0].sample(request)
            kept.clear()
            kernel = self._session.prepare(spec, variant=variant, alone=True)
            if stays:
                keep(kernel)
                return kernel.sample(request)
            with releasing([kernel]):
                return kernel.sample(request)

        return sample

    def _stays(self, spec: KernelSpec, row: Measurement) -> bool:
        """Whether a kernel stays prepared over the rounds; if so, reserve its memory."""
        elements = sum(spec.layer.operands(spec.pass_).values())
        needed = elements * ITEM_BYTES[spec.precision] + (row.workspace_bytes or 0)
        if not spec.on_gpu or needed > self._room_bytes:
            return False
        self._room_bytes -= needed
        return True


def _add_visits(spec: KernelSpec, row: Measurement, table: SampleTable) -> None:
    """Add the times of a row's repetitions to a table, as visits before the first round."""
    times = () if row.time is None or not row.ok else row.time.visit_s or (row.time.median,)
    for number, seconds in enumerate(times, start=1):
        table.add(Visit(subject=spec, round=-number, seconds=(seconds,), clock_hz=row.clock_hz))


def seldom(seconds: Mapping[KernelSpec, float]) -> frozenset[KernelSpec]:
    """Return the smallest kernels, which make a quarter of a sum.

    Args:
        seconds: time of each kernel in the sum.
    """
    smallest = sorted(seconds, key=seconds.__getitem__)
    sums = accumulate(seconds[spec] for spec in smallest)
    tail = _TAIL_SHARE * sum(seconds.values())
    return frozenset(spec for spec, total in zip(smallest, sums, strict=True) if total <= tail)


def _without_time(row: Measurement) -> str:
    """Return why a native row has no time; empty if it has one."""
    return "" if row.ok and row.time is not None else row.reason or row.status
