"""What a report says of a timed step besides its record: FLOP/s, and who it is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydlbench.models.counts import macs
from pydlbench.timing.statistics import paired_ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.endtoend import StepRecord
    from pydlbench.models.graph import Model
    from pydlbench.timing.statistics import Ratio

__all__ = ["StepRow", "device_ratio", "fastest", "ratio", "settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A record with what the model says of it.

    Attributes:
        record: the step.
        title: of the model, in words.
        flops: of a step: 2 x multiply-adds of convolutions and products, padding counted.
    """

    record: StepRecord
    title: str
    flops: int

    @classmethod
    def of(cls, record: StepRecord, models: Sequence[Model]) -> StepRow:
        """Join a record with its model, found by its batch (any one has the title)."""
        case = record.case
        model = next((one for one in models if one.batch == case.batch), models[0])
        counted = macs(model, "forward" if case.phase == "forward" else "training")
        batch = case.batch or model.batch
        return cls(record=record, title=model.title, flops=2 * counted * batch)

    @property
    def tflops(self) -> float | None:
        """TFLOP/s of the median step."""
        time = self.record.time
        return None if time is None else self.flops / time.median / 1e12

    @property
    def who(self) -> str:
        """Framework and mode."""
        return f"{self.record.case.framework} {self.record.case.mode}"

    @property
    def group(self) -> tuple[int | None, str]:
        """Whom it took turns with: those of its batch and phase."""
        return self.record.case.batch, self.record.case.phase

    @property
    def wide_precision(self) -> str:
        """Its precision by a name that both kinds of device know."""
        return self.record.case.precision.removesuffix("-tc")

    def to_dict(self) -> dict[str, Any]:
        """Return the record's JSON object with FLOPs and TFLOP/s."""
        return {**self.record.to_dict(), "flops": self.flops, "tflops": self.tflops}


def settings(records: Sequence[StepRecord]) -> list[str]:
    """Return in words what each step shares with those that it took turns with.

    The model and whatever else is not as by default; two blanks part the words. Numbers of threads
    are named where there are several.
    """
    threads = {one.threads for one in records if one.threads}
    return [_setting(one, told=len(threads) > 1) for one in records]


def _setting(record: StepRecord, *, told: bool) -> str:
    case, threads = record.case, record.threads
    words = [case.model, *(f"{name}={case.options[name]}" for name in sorted(case.options))]
    words += [] if case.cast == "mixed" else [f"{case.cast} precision"]
    words += [] if case.layout == "nhwc" else [case.layout]
    words += [] if case.feed == "resident" else [f"{case.feed} images"]
    words += ["fetch"] if case.fetch else []
    words += [] if case.dropout else ["without dropout"]
    words += ["running statistics"] if case.running_statistics else []
    if told and threads:
        words.append(f"{threads} thread{'' if threads == 1 else 's'}")
    return "  ".join(words)


def ratio(row: StepRow, other: StepRow) -> Ratio | None:
    """Return how many times as long a row takes, from the rounds that both were in."""
    try:
        return paired_ratio(row.record.rounds_s, other.record.rounds_s)
    except ValueError:
        return None


def fastest(rows: Sequence[StepRow]) -> StepRow | None:
    """Return the row with the smallest median of those that have one."""
    timed = [row for row in rows if row.record.ok]
    return min(
        timed,
        key=lambda row: row.record.time.median if row.record.time else 0.0,
        default=None,
    )


def device_ratio(row: StepRow, rows: Sequence[StepRow]) -> Ratio | None:
    """Return how many times as long the CPU takes for a GPU's step of the same kind.

    Args:
        row: a GPU's.
        rows: all; of those of the CPU the one with the same framework, mode, precision, batch and
            phase.
    """
    if not (row.record.case.on_gpu and row.record.ok):
        return None
    for other in rows:
        same = (other.who, other.group, other.wide_precision) == (
            row.who,
            row.group,
            row.wide_precision,
        )
        if same and other.record.ok and not other.record.case.on_gpu:
            return ratio(other, row)
    return None
