"""``pydlbench compare old.py:build new.py:build``: two models, or two kernels, timed in turn."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from pydlbench.cli import step
from pydlbench.cli.compare_kernels import OF_LAYERS
from pydlbench.cli.compare_options import CompareOptions
from pydlbench.cli.measuring import answer
from pydlbench.cli.options import flag_of
from pydlbench.cli.output import row_warnings
from pydlbench.cli.steps import USER_MODEL_OPTIONS, ModelTask, StepOptions, StepsTask
from pydlbench.compare.comparison import UNCLEAR, Comparison
from pydlbench.compare.kernels import compare_kernels
from pydlbench.compare.models import change_of, compare_models, impossible_steps, is_resolved
from pydlbench.errors import PydlbenchError, UsageError
from pydlbench.models.user_model import defines, is_onnx, is_user_model
from pydlbench.records.agreement import ModelChange, StepAgreement
from pydlbench.records.measurement import Measurement
from pydlbench.records.run import RunRecord
from pydlbench.records.step import (
    SWAPPED_MODULE,
    StepPreparation,
    StepRecord,
    StepSpec,
    step_words,
)
from pydlbench.report.blocks import Block, Lines
from pydlbench.report.change import change_report
from pydlbench.report.compare import comparison_report
from pydlbench.runner.execute import Results, row_key
from pydlbench.runner.tasks import Result, Task, TaskRow, View
from pydlbench.store.documents import Loaded
from pydlbench.words import FRAMEWORKS

#: Repetitions by default: at least as many as a trimmed mean takes, and at most as many as fit into
#: about two minutes for a step of 100 ms.
LEAST_REPETITIONS: Final = 10
MAX_REPETITIONS: Final = 30
#: Default sampling time of each step in each repetition, in seconds.
BUDGET_S: Final = 0.75
# Options whose texts ``step`` reads.
_OF_STEP: Final = (
    *("batch", "precision", "framework", "mode", "phase", "input", "threads", "set_"),
    *("loss", "optimizer", "layout", "device", "autocast"),
)
# Its flags.
_FLAGS: Final = ("train_mode", "eval_mode")


def run_measured(
    args: CompareOptions, task: Task, notes: Sequence[str]
) -> tuple[int, Comparison | None]:
    """Time two models or two kernels in turn, and show both.

    Returns:
        Exit code: 0; 1 if one of them cannot be timed; 130 after Ctrl-C. And the comparison; None
        if one of them has no time.

    Raises:
        UsageError: bad input; nothing was run and nothing written.
    """

    def report(_: RunRecord, results: Results) -> list[Block]:
        comparison = comparison_of(results, args.same)
        if comparison is None:
            lines = ["nothing is compared: a time is missing", *_reasons(results.outcomes)]
            return [Lines(lines, alarm=True)]
        return _blocks(comparison, _records(results.outcomes)[1], everything=args.all)

    def document(results: Results) -> dict[str, Any]:
        comparison = comparison_of(results, args.same)
        if comparison is not None:
            return comparison.to_dict()
        return {"rows": [], "geomean": None, "notes": _reasons(results.outcomes)}

    code, results = answer(
        *(args, "compare", [task], notes, report),
        document=document,
        warnings=lambda results: row_warnings(
            [record for some in _records(results.outcomes) for record in some]
        ),
        what="steps" if isinstance(task, ModelsTask) else "rows",
    )
    comparison = comparison_of(results, args.same)
    return (1 if comparison is None and not code else code), comparison


def comparison_of(results: Results, margin: float | None) -> Comparison | None:
    """Return the comparison of a run's two steps or kernels; None if one has no time.

    Args:
        results: results of the task.
        margin: ratios within 1 +- this count as the same; None for the default.
    """
    kernels, steps = _records(results.outcomes)
    changes = [part.record(ModelChange) for part in results.parts.values()]
    return _comparison(kernels, steps, changes, results.run, margin)


def _records(outcomes: Sequence[Result]) -> tuple[list[Measurement], list[StepRecord]]:
    return (
        [outcome.record(Measurement) for outcome in outcomes if outcome.table == "layer"],
        [outcome.record(StepRecord) for outcome in outcomes if outcome.table != "layer"],
    )


def read_task(args: CompareOptions) -> tuple[ModelsTask, tuple[str, ...]]:
    """Return the task that times both steps, and notes.

    Raises:
        UsageError: a value is bad, or there are not two models.
    """
    if args.swap and (len({*args.runs}) != 1 or args.set_a or args.set_b):
        raise UsageError(
            "--swap: B is the one model with the swap, so a second model, --set-a and --set-b are "
            "refused; nearest: pydlbench compare MODEL --swap aten.relu=FILE.py:LAUNCH"
        )
    alike = len(args.runs) == 1 and (args.set_a or args.set_b or args.swap)
    names = args.runs * 2 if alike else args.runs
    if len(names) != 2:  # A and B
        raise UsageError(
            f"MODEL: {len(names)} given, two are compared; nearest: pydlbench compare old.py:build "
            "new.py:build, or one with --set-a and --set-b, or with --swap"
        )
    tasks, notes = zip(
        *(
            _side(args, name, own, _fields(name, names))
            for name, own in zip(names, (args.set_a, args.set_b), strict=True)
        ),
        strict=True,
    )
    rows = [row for task in tasks for row in task.rows]
    if len(rows) != 2:  # A and B
        labels = ", ".join(row.label for row in rows)
        raise UsageError(
            f"one step of each model is compared, the options give {labels}; nearest: one value of "
            "each option"
        )
    shared = _with_reference([row.spec for row in rows])
    if bad := [text for text in args.swap if not text.partition("=")[2]]:
        raise UsageError(
            f"--swap {bad[0]}: no kernel; nearest: aten.relu=FILE.py:LAUNCH, or "
            f"{SWAPPED_MODULE}NAME=FILE.py:CALLABLE"
        )
    shared[1] = msgspec.structs.replace(shared[1], swaps=args.swap or None)
    sides = [
        TaskRow(fields={"side": side, **row.fields}, label=f"{side}: {row.label}", spec=spec)
        for side, row, spec in zip("AB", rows, shared, strict=True)
    ]
    first = tasks[0]
    options = {**first.options, **tasks[1].options}
    fixed = "repetitions" in args.given
    count = args.repetitions if fixed else MAX_REPETITIONS
    budget_s = args.budget if "budget" in args.given else BUDGET_S
    options |= {"repetitions": count, "budget_s": budget_s * count}
    guessed = any(task.guessed for task in tasks)
    every = tuple(dict.fromkeys(note for some in notes for note in some))
    least = count if fixed else LEAST_REPETITIONS
    return ModelsTask(rows=tuple(sides), options=options, guessed=guessed, least=least), every


def _fields(name: str, names: Sequence[str]) -> list[str]:
    """Return the options that a model takes; a catalogue's and a user's take different ones."""
    if len({is_user_model(each) for each in names}) == 1:
        return [*_OF_STEP, *_FLAGS]
    left_out = ("batch",) if is_user_model(name) and not is_onnx(name) else USER_MODEL_OPTIONS
    return [field for field in (*_OF_STEP, *_FLAGS) if field not in left_out]


def _side(
    args: CompareOptions, name: str, own: Sequence[tuple[str, str]], fields: Sequence[str]
) -> tuple[Any, tuple[str, ...]]:
    """Return the task of one model's step, as ``pydlbench step`` reads it, and notes."""
    words = [
        word
        for field in fields
        if field not in _FLAGS
        for text in getattr(args, field)
        for word in (flag_of(field), text)
    ]
    words += [flag_of(field) for field in _FLAGS if field in fields and getattr(args, field)]
    words += [word for pair in own for word in ("--set", "=".join(pair))]
    if not args.framework and not is_user_model(name):
        words += ["--framework", FRAMEWORKS[0]]
    given = StepOptions.parse([name, *words, "--seed", str(args.seed)])
    tasks, notes = step.read_tasks(given)
    if len(tasks) != 1:
        raise UsageError("one step of each model is compared; nearest: one value of each option")
    return tasks[0], notes


def _with_reference(specs: Sequence[StepSpec]) -> list[StepSpec]:
    """Let a class whose file has no ``get_inputs`` take those of the other side's file."""
    word = "get_inputs"
    classes = [
        spec.own is not None and not is_onnx(spec.model) and defines(spec.model, word)
        for spec in specs
    ]
    if sum(classes) != 1 or not all(is_user_model(spec.model) for spec in specs):
        return list(specs)
    place = classes.index(True)
    other = specs[1 - place]
    assert other.own is not None, "it is a user's model"
    own = msgspec.structs.replace(other.own, reference=specs[place].model)
    changed = msgspec.structs.replace(other, own=own)
    return [changed if spec is other else spec for spec in specs]


@dataclass(frozen=True, kw_only=True)
class ModelsTask(ModelTask, StepsTask):
    """The steps of two models, timed in turn.

    Attributes:
        least: repetitions after which they may end, if these tell a small change.
    """

    kind: ClassVar[str] = "compare"
    least: int

    def measure_steps(self, session: Any, view: View) -> Iterator[Result]:
        """Compare the results of both steps, then time them in turn, and trace them."""
        with tempfile.TemporaryDirectory() as name:
            yield from self._measured(session, view, Path(name))

    def _measured(self, session: Any, view: View, root: Path) -> Iterator[Result]:
        from pydlbench.compare.swaps import saving_of, time_alone
        from pydlbench.steps.agreement import agree_steps, agree_timed, copied_bytes
        from pydlbench.steps.run import runs_in_turn
        from pydlbench.steps.traced import peak_of
        from pydlbench.steps.unchanged import changed, fingerprint, sources

        specs = [row.spec for row in self.rows]
        alone = None
        if swaps := specs[1].swaps:
            view.advance(0, len(specs), "calls alone")
            alone = time_alone(specs[1], session)
            control = tuple(text.partition("=")[0] for text in swaps)
            specs.append(msgspec.structs.replace(specs[1], swaps=control))
        view.advance(0, len(specs), "results")
        files = fingerprint(sources(specs))
        results = agree_steps(specs[:2], session, root)
        files |= fingerprint((root / "A").rglob("*"))
        how = _preparation(specs[:2], results, root)

        def compared(change: ModelChange) -> Result:
            key = f"{row_key(self, self.rows[0])}/change"
            return Result("change", change.to_dict(), key=key, detail=change)

        results = msgspec.structs.replace(results, timed=None if how.timed else 0)
        yield compared(ModelChange(results=results, untraced="the run ended before"))
        records: dict[int, StepRecord] = {}
        change = ModelChange(results=results)
        for index, record in runs_in_turn(
            *(specs, session),
            preparation=how,
            trace=True,
            copied=copied_bytes(specs[0], root),
            alternately=True,
            progress=view.advance,
        ):
            records[index] = record
            if len(records) == len(specs):
                change = change_of(records[0], records[1], results)
                if alone is not None and all(each.rounds_s for each in records.values()):
                    saving = saving_of(alone, *(records[number] for number in range(3)))
                    change = msgspec.structs.replace(change, swap=saving)
                yield compared(change)
            if index < len(self.rows):
                document = record.to_dict()
                row = self.rows[index]
                yield Result("step", document, row, detail=record, so_far=True)
            if len(records) == len(specs) and is_resolved(records, self.least):
                break
        view.advance(1, 1, "results of timed samples")
        time = records[0].time
        results = agree_timed(specs[0], session, root, results, time.median if time else 1.0)
        refused = impossible_steps(records[0], records[1], peak_of(specs[0], session))
        every = (*changed(files), *refused, *results.refused)
        results = msgspec.structs.replace(results, refused=every)
        yield compared(msgspec.structs.replace(change, results=results))
        for index, row in enumerate(self.rows):
            yield Result("step", records[index].to_dict(), row, detail=records[index])


def _preparation(specs: Sequence[StepSpec], results: StepAgreement, root: Path) -> StepPreparation:
    """Return how steps are prepared whose results were compared in a folder."""
    # Other random numbers give other results.
    if results.agreement is None or (results.draws and results.differs):
        return StepPreparation(checks=False)
    # Only another user's model can compute the results of timed samples again.
    timed = None if None in [spec.own for spec in specs] else str(root / "timed")
    return StepPreparation(checks=False, load=str(root / "A"), timed=timed)


def _comparison(
    kernels: Sequence[Measurement],
    steps: Sequence[StepRecord],
    changes: Sequence[ModelChange],
    run: RunRecord,
    margin: float | None = None,
) -> Comparison | None:
    """Return the comparison of two kernels or two steps; None if one of them has no time."""
    if kernels:
        compared = compare_kernels(kernels, run, margin)
        return compared if compared and (compared.rows or compared.refused) else None
    timed = [record for record in steps if record.time is not None]
    if len(timed) != 2 or not changes:  # A and B
        return None
    return compare_models(timed, changes[-1], run, margin)


def _blocks(
    comparison: Comparison, steps: Sequence[StepRecord], *, everything: bool = False
) -> list[Block]:
    """Return the report on two kernels or steps, with the command to run next."""
    if comparison.change is None:
        return comparison_report(
            comparison, following=_after_kernels(comparison), everything=everything
        )
    spec = steps[-1].spec
    words = [] if spec.swaps else ["pydlbench", "breakdown", *step_words(spec)]
    return change_report(comparison, following=shlex.join(words), everything=everything)


def _reasons(outcomes: Sequence[Result]) -> list[str]:
    """Return why rows have no time."""
    return [
        f"{result.row.label if result.row else ''}: {result.status}: {result.reason}"
        for result in outcomes
        if result.status != "ok"
    ]


def _after_kernels(comparison: Comparison) -> str:
    """Return the command after a comparison of kernels: their limits, or more repetitions."""
    args = _stored_options(comparison.b.command)
    if args is None or not comparison.rows:
        return ""
    given = [
        word for name in OF_LAYERS for text in getattr(args, name) for word in (flag_of(name), text)
    ]
    words = ["layers", *given, "--backend", ",".join(args.runs)]
    if comparison.counts[UNCLEAR]:
        words = ["compare", *args.runs, *given, "--repetitions", str(3 * args.repetitions)]
    return shlex.join(["pydlbench", *words])


def _stored_options(command: Sequence[str]) -> CompareOptions | None:
    """Return the options of a run's command line; None if they are not known."""
    if tuple(command[1:2]) != ("compare",):
        return None
    try:
        return CompareOptions.parse(command[2:])
    except (PydlbenchError, SystemExit):  # a command line of another version
        return None


def stored_report(loaded: Loaded) -> list[Block]:
    """Return the report of a stored run."""
    kernels = [Measurement.from_dict(entry.document) for entry in loaded.table("layer")]
    steps = [StepRecord.from_dict(entry.document) for entry in loaded.table("step")]
    changes = [ModelChange.from_dict(entry.document) for entry in loaded.table("change")]
    options = _stored_options(loaded.record.command)
    margin = None if options is None else options.same
    comparison = _comparison(kernels, steps, changes, loaded.record, margin)
    return [] if comparison is None else _blocks(comparison, steps)
