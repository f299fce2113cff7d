"""``pydlbench step --protocol NAME``: prints exactly the lines of a published script."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from pydlbench.cli.measuring import measure
from pydlbench.cli.output import Outputs
from pydlbench.cli.steps import (
    USER_MODEL_OPTIONS,
    StepOptions,
    StepsTask,
    catalogue_settings,
    devices_of,
)
from pydlbench.cli.terminal import ProgressLine
from pydlbench.cli.values import choices
from pydlbench.errors import UsageError
from pydlbench.protocols.protocol import Protocol, find_protocol
from pydlbench.protocols.runner import ProtocolSpec, run_in_worker
from pydlbench.records.run import RunRecord
from pydlbench.report.json import dump
from pydlbench.report.text import STDOUT, check_writable, write_text
from pydlbench.runner.execute import Results
from pydlbench.runner.tasks import Result, TaskRow, View
from pydlbench.steps.run import check_memory
from pydlbench.store.place import user_path
from pydlbench.words import FRAMEWORKS, IMAGE_LAYOUTS, PRECISIONS, check_word

# A script may take days on a small machine.
_TIMEOUT_S: Final = 30 * 86400.0
#: Options that protocols do not have, with the reason.
_REFUSED: Final = {
    "feed": "the script says what is fed; nearest: leave it out",
    "budget": "the script says how long it runs; nearest: --steps N",
    "repetitions": "the script runs once; nearest: leave it out",
    "minutes": "the script says how long it runs; nearest: --steps N",
    "width": "the script runs once; nearest: leave it out",
    "phase": "the script says which phases; nearest: leave it out",
    **dict.fromkeys(
        ("csv", "md", "format"), "standard output is the script's; nearest: --json FILE"
    ),
}


def run_protocol(args: StepOptions, session_factory: Callable[..., Any] | None) -> int:
    """Run a protocol; see :func:`pydlbench.cli.step.run`."""
    spec, notes = _read_spec(args)
    options = {"threads": args.threads, "seed": args.seed, "timeout_s": _TIMEOUT_S}
    note = Outputs(files={}, quiet=args.quiet).note
    note(*notes)
    row = TaskRow(fields={"protocol": spec.protocol}, label=spec.protocol, spec=spec)
    task = ProtocolTask(rows=(row,), options=options, note=note)

    def write(results: Results) -> None:
        for outcome in results.outcomes:
            if args.json is not None:
                _write(args.json, results.run, outcome.document)

    # Standard error is for the script's notes.
    silent = ProgressLine(None)
    code, _ = measure(
        args, "step", [task], write, sessions=session_factory, progress=silent, what="protocols"
    )
    return code


@dataclass(frozen=True, kw_only=True)
class ProtocolTask(StepsTask):
    """A published script.

    Attributes:
        note: function that is called with each note; notes are not among the script's lines.
    """

    note: Callable[[str], None]

    def check(self, session: Any) -> None:
        """Make sure that its largest step fits into memory."""
        spec = self.rows[0].spec
        check_memory(spec.build(), _largest(spec), session.room_bytes())

    def measure(self, session: Any, view: View) -> Iterator[Result]:
        """Run it; its lines go to standard output at once."""
        spec = self.rows[0].spec
        view.advance(0, 1, spec.protocol)
        record = run_in_worker(spec, session, _print, self.note)
        yield Result("protocol", {**spec.to_dict(), **record.to_dict()}, self.rows[0])


def _read_spec(args: StepOptions) -> tuple[ProtocolSpec, tuple[str, ...]]:
    """Return the protocol with its options, and notes on the device.

    Raises:
        UsageError: a value is bad, or the protocol has no such option.
    """
    published = find_protocol(args.protocol or "")
    _refuse_others(args, published)
    _refuse_counts(args, published)
    framework, device, precision, notes = _single_values(args, published)
    on_quirks, off_quirks = _quirks(args.quirk)
    spec = ProtocolSpec(
        protocol=published.name,
        model=args.model or None,
        options=catalogue_settings(args.set_),
        framework=framework,
        mode=args.mode[0] if args.mode else None,
        precision=precision,
        cast=args.cast,
        layout=args.layout or IMAGE_LAYOUTS[0],
        device=device,
        seed=args.seed,
        batch=args.batch[0] if args.batch else None,
        warmup=args.warmup,
        steps=args.steps,
        every=args.every,
        epochs=args.epochs,
        quirks=on_quirks,
        without=off_quirks,
        data=_folder(args.data),
    )
    if spec.steps is not None and spec.epochs is not None:
        raise UsageError(
            f"--epochs {args.epochs:g}: --steps says it already; nearest: leave one out"
        )
    return spec, notes


def _refuse_others(args: StepOptions, published: Protocol) -> None:
    """Refuse options that this protocol, or any, does not have."""
    for name, reason in _REFUSED.items():
        if name in args.given:
            raise UsageError(f"--{name} {args.given[name]}: with --protocol {reason}")
    args.refuse((*USER_MODEL_OPTIONS, "agree", "no_checks", "resume"), "with --protocol")
    if args.json == STDOUT:
        raise UsageError("--json -: standard output is the script's; nearest: --json results.json")
    if args.json is not None:
        check_writable("--json", args.json)
    if published.data is None and args.data is not None:
        raise UsageError(
            f"--data {args.data}: {published.name} has synthetic images; nearest: "
            "--protocol mnist-tutorial or cifar10-tutorial"
        )


def _refuse_counts(args: StepOptions, published: Protocol) -> None:
    """Refuse counts of steps or lines that the script does not have: its count is the least."""
    for name, least, what in (
        ("warmup", 0, "steps before those that count"),
        ("every", 1, "lines between its steps"),
    ):
        value = getattr(args, name)
        if value not in (None, least) and getattr(published.defaults, name) == least:
            raise UsageError(
                f"--{name} {value}: {published.name} has no {what}; nearest: leave it out"
            )


def _single_values(args: StepOptions, published: Protocol) -> tuple[str, str, str, tuple[str, ...]]:
    """Return framework, device and precision, and notes; refuse several values of an option."""
    devices, notes = devices_of(args)
    frameworks = args.framework or [published.framework]
    precisions = choices("--precision", ",".join(args.precision), PRECISIONS)
    for option, several in (
        ("framework", frameworks),
        ("device", devices),
        ("precision", precisions),
        ("mode", args.mode or [""]),
        ("batch", args.batch or [None]),
    ):
        if len(several) > 1:
            raise UsageError(
                f"--{option} {','.join(map(str, several))}: a protocol runs on one at a time; "
                f"nearest: --{option} {several[0]}"
            )
    # Published scripts are written for these, and their lines name them.
    check_word("--framework", frameworks[0], FRAMEWORKS)
    return frameworks[0], devices[0], precisions[0], notes


def _quirks(given: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    on: list[str] = []
    off: list[str] = []
    for text in given:
        name, mark, value = (part.strip() for part in text.partition("="))
        if mark and value not in ("on", "off"):
            raise UsageError(f"--quirk {text}: on or off; nearest: --quirk {name}=off")
        (off if value == "off" else on).append(name)
    return tuple(on), tuple(off)


def _folder(given: str | None) -> str | None:
    """Return the folder of the data set; None for generated images.

    Raises:
        UsageError: there is no such folder.
    """
    if given is not None and not (path := user_path(given)).is_dir():
        near = next((parent for parent in path.parents if parent.is_dir()), Path())
        raise UsageError(f"--data {given}: no such directory; nearest: {near}")
    return given


def _largest(protocol: ProtocolSpec) -> Any:
    """Return the step that needs the most memory."""
    trains = any(spec.phase == "training" for spec in protocol.declaration.definitions)
    return msgspec.structs.replace(
        protocol.step, phase="training" if trains else "forward-backward"
    )


def _print(line: str) -> None:
    print(line, flush=True)


def _write(target: str, run: RunRecord, document: dict[str, Any]) -> None:
    write_text(target, dump({"kind": "step", "run": run.to_dict(), **document}))
