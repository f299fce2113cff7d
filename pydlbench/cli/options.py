"""Options as records: an option is declared once, as a field of its command's record.

The parser with its help, the keys of a sweep's table and the keyword arguments of the functions in
:mod:`pydlbench.api` are made from the record. Options of several commands are declared here, with
one name and one meaning; those of one command in its file::

    class EstimateOptions(Measuring):
        budget: float = BUDGET(default=0.25)
        summary: bool = flag("count only, measure nothing", group=WHAT)
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, NoReturn, Self, dataclass_transform

from pydlbench.cli.values import (
    assignments,
    device,
    fail_on,
    frameworks,
    one_of,
    percentage,
    positive_time,
    splits,
    whole_number,
)
from pydlbench.errors import UsageError, nearest
from pydlbench.ops.descriptor import POOL_MODES
from pydlbench.words import (
    CODE_LIMIT_S,
    FEEDS,
    IMAGE_LAYOUTS,
    PHASES,
    PRECISIONS,
)

#: Groups of options, in the order of the help; a command's own groups come before the last.
WHAT: Final = "what is measured"
USER_MODEL: Final = "a model of your own: FILE.py:CALLABLE, package.module:CALLABLE or FILE.onnx"
HOW: Final = "how it is measured"
GPU: Final = "on a GPU"
SCRIPT: Final = "as a published script"
OUTPUT: Final = "output"
# Options of other tools, or likely guesses.
_GUESSES: Final = {
    **dict.fromkeys(("--dtype", "--data-type", "--amp", "--fp16", "--bf16"), "--precision"),
    **dict.fromkeys(("--gpu", "--cuda", "--cpu"), "--device"),
    **dict.fromkeys(("--iterations", "--iters", "--runs", "--rounds"), "--repetitions"),
    **dict.fromkeys(("--layer", "--layers"), "--shape"),
    **dict.fromkeys(("--train", "--training"), "--phase"),
    **dict.fromkeys(("--time", "--seconds"), "--budget"),
}
_GROUPS: Final = ("", WHAT, USER_MODEL, HOW, GPU, SCRIPT, OUTPUT)
# Groups whose options a sweep's table cannot have, with the reason.
_NOT_IN_SWEEPS: Final = {
    OUTPUT: "belongs to the sweep's own command line, not to its file; nearest: leave it out",
    SCRIPT: "is for published scripts, which print for themselves; nearest: pydlbench step",
}


def as_given(name: str, text: str) -> tuple[str]:  # noqa: ARG001 - as all readers
    """Return a text as one value, for an option whose values may contain commas."""
    return (text,)


def _text(name: str, text: str) -> str:  # noqa: ARG001 - as all readers
    return text


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Declaration of an option; a call returns a field of a record.

    Attributes:
        help: description of the option, in one line.
        metavar: name of the option's value in the help; empty for a flag.
        read: function that converts a text; its first argument is the option's name, for messages.
        many: whether there may be several values, separated by commas or given by repeating the
            option; ``read`` returns a sequence.
        default: value of the option if it is not given.
        group: heading in the help under which the option is listed.
        short: short name of the option, with its dash.
        argument: how often a positional argument is given (``1``, ``?``, ``*``, ``+``).
        not_in_sweeps: why a sweep's table cannot have it; empty if it can.
    """

    help: str
    metavar: str = ""
    read: Callable[[str, str], Any] = _text
    many: bool = False
    default: Any = None
    group: str = ""
    short: str = ""
    argument: str = ""
    not_in_sweeps: str = ""

    def __call__(self, **changes: Any) -> Any:
        """Return a field for this option, with changes for its command."""
        changed = dataclasses.replace(self, **changes)
        return dataclasses.field(default=changed.default, metadata={"option": changed})

    @property
    def refused(self) -> str:
        """Why a sweep's table cannot have it; empty if it can."""
        return self.not_in_sweeps or _NOT_IN_SWEEPS.get(self.group, "")


def option(metavar: str, text: str, **attributes: Any) -> Any:
    """Return a field for an option with a value; ``attributes`` as in :class:`Option`."""
    return Option(metavar=metavar, help=text, **attributes)()


def flag(text: str, **attributes: Any) -> Any:
    """Return a field for an option without a value."""
    return Option(help=text, default=False, **attributes)()


def argument(metavar: str, text: str, times: str = "1", **attributes: Any) -> Any:
    """Return a field for a positional argument; ``times`` is how often it is given."""
    several: dict[str, Any] = {"many": True, "default": ()} if times in "*+" else {}
    return Option(metavar=metavar, help=text, argument=times, **several, **attributes)()


# -----------------------------------------------------------------------------
# Options of several commands.

MODEL: Final = Option(
    metavar="MODEL",
    help="a model of the catalogue (alexnet-owt, vgg16, resnet50...; pydlbench shapes lists them); "
    "FILE.py:CALLABLE, which returns a PyTorch module or a Keras model, alone or with its inputs; "
    "or FILE.onnx",
    argument="1",
)
RUN: Final = Option(
    metavar="RUN",
    help="an id or its beginning, a tag, last, last~2 (two before), or a JSON file",
    argument="1",
)
RUNS: Final = Option(
    metavar="RUN",
    help=RUN.help,
    argument="*",
    many=True,
    read=as_given,
    default=(),
)
PHASE: Final = Option(
    metavar="PHASE",
    help="forward (default), forward-backward, training (also weight decay and the optimizer)",
    group=WHAT,
    read=partial(one_of, allowed=PHASES),
    default=PHASES[0],
)
BATCH: Final = Option(
    metavar="N",
    help="batch size of a model of the catalogue or of FILE.onnx; default: as published",
    group=WHAT,
    read=partial(whole_number, least=1),
)
PRECISION: Final = Option(
    metavar="P",
    help="fp32 (default), bf16, fp16; on a GPU also tf32, fp16-tc, bf16-tc, fp8-tc, fp8-tc-fast",
    group=WHAT,
    read=partial(one_of, allowed=PRECISIONS),
    default="fp32",
)
FRAMEWORK: Final = Option(
    metavar="NAME",
    help="torch, tensorflow, jax, or all; default: torch and tensorflow, as far as installed",
    group=WHAT,
    many=True,
    read=frameworks,
)
MODE: Final = Option(
    metavar="MODE",
    help="of torch: eager (default) or compiled; of tensorflow: graph (default) or xla; or all",
    group=WHAT,
    many=True,
    read=splits,
)
LAYOUT: Final = Option(
    metavar="LAYOUT",
    help="memory layout of images in PyTorch: nhwc (channels last; default) or nchw; a model of "
    "your own keeps its layout unless nhwc is given",
    group=WHAT,
    read=partial(one_of, allowed=IMAGE_LAYOUTS),
)
FEED: Final = Option(
    metavar="FROM",
    help="resident (default): all steps use the same images; or host: each step copies new ones "
    "from the host's memory",
    group=WHAT,
    read=partial(one_of, allowed=FEEDS),
    default=FEEDS[0],
)
SET: Final = Option(
    metavar="NAME=VALUE",
    help="an option of a model of the catalogue (lrn=off, classes=1001), or an argument of "
    "CALLABLE (a Python literal, true, false or none; anything else is text)",
    group=WHAT,
    many=True,
    read=assignments,
    default=(),
)
DEVICE: Final = Option(
    metavar="DEVICE",
    help="cpu or cuda:N; default: the GPU if there is one",
    group=HOW,
    read=device,
)
THREADS: Final = Option(
    metavar="N",
    help="CPU threads; default: one per physical core",
    group=HOW,
    read=partial(whole_number, least=1),
)
BUDGET: Final = Option(metavar="S", help="", group=HOW, read=positive_time)
REPETITIONS: Final = Option(
    metavar="N",
    help="minimum number of repetitions of each row, spread over the run, each in a new process "
    "(default: 4, of layers up to 6 where earlier runs scattered; a run of a single row takes them "
    "in one process)",
    group=HOW,
    read=partial(whole_number, least=1),
)
WIDTH: Final = Option(
    metavar="PERCENT",
    help="choose the number of repetitions (4 to 30) so that the 95 % interval is likely to have "
    "this half-width, relative to the median; judged by earlier undisturbed runs",
    group=HOW,
    read=percentage,
)
MINUTES: Final = Option(
    metavar="N",
    help="end after N minutes with the answer so far; what is missing is named",
    group=HOW,
    read=partial(positive_time, unit="minutes", most=1440),
    not_in_sweeps="limits a whole command; nearest: pydlbench sweep --minutes N",
)
SEED: Final = Option(
    metavar="N",
    help="seed of random data and of the order of measurements (default: 0)",
    group=HOW,
    read=partial(whole_number, least=0),
    default=0,
)
POOL: Final = Option(
    metavar="MODE",
    help="kind of pooling of descriptors without oc: max, avg (padding not counted) or avg_p "
    "(padding counted)",
    group=WHAT,
    read=partial(one_of, allowed=POOL_MODES),
)
OP: Final = Option(
    metavar="OP",
    help="op of descriptors without a prefix: a driver of benchdnn (deconv, ip, bnorm...) or a "
    "prefix (lstm, relu...); default of a file: the driver after which its folder is named",
    group=WHAT,
)
EXPLAIN: Final = Option(
    help="show the measurements behind each statement", default=False, group=OUTPUT
)
FAIL_ON: Final = Option(
    metavar="failed",
    help="exit with code 3 if a row has failed",
    group=OUTPUT,
    read=partial(fail_on, allowed=("failed",)),
)
RESUME: Final = Option(
    metavar="RUN",
    help="continue a run that was interrupted: its id, its tag or last",
    group=OUTPUT,
)
#: The file of a command that writes one.
TO: Final = Option(
    metavar="FILE",
    help="file to write; default: standard output",
    short="-o",
    group=OUTPUT,
    default="-",
)
_FILE: Final = Option(metavar="FILE", help="", group=OUTPUT)
_FORMAT: Final = Option(metavar="FORMAT", help="", group=OUTPUT)


# -----------------------------------------------------------------------------
# Records of options.


@dataclass_transform(kw_only_default=True, frozen_default=True)
@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """The options of a command: a frozen record, whose fields are made by :class:`Option`.

    Attributes:
        given: text of each option that was given, by name of the option's field.
    """

    #: Text above the options in the help.
    description: ClassVar[str] = ""
    #: Text below the options in the help.
    epilog: ClassVar[str] = ""
    #: Field of the option that is suggested for a word without an option's name.
    usual: ClassVar[str] = ""
    given: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def __init_subclass__(cls) -> None:
        """Make a dataclass of each record."""
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    @classmethod
    def declared(cls) -> dict[str, Option]:
        """Return the options by field, in the order of the help."""
        fields = dataclasses.fields(cls)
        options = {field.name: field.metadata["option"] for field in fields if field.metadata}
        others = [known.group for known in options.values() if known.group not in _GROUPS]
        order = [*_GROUPS[:-1], *others, *_GROUPS[-1:]]
        return dict(sorted(options.items(), key=lambda item: order.index(item[1].group)))

    @classmethod
    def declared_arguments(cls) -> list[Option]:
        """Return the positional arguments."""
        return [known for known in cls.declared().values() if known.argument]

    @classmethod
    def parse(cls, words: Sequence[str], parser: Parser | None = None) -> Self:
        """Return the options in the words of a command line.

        Args:
            words: words after the command.
            parser: parser with the command's name, for messages.

        Raises:
            UsageError: an unknown option, or a bad value; one line with the nearest valid one.
        """
        parser = parser or add_options(Parser(), cls)
        namespace, unknown = parser.parse_known_args(list(words))
        if unknown:
            raise UsageError(_unknown(unknown[0], parser, cls))
        values: dict[str, _Given] = vars(namespace)
        return cls(
            given={name: reading.text for name, reading in values.items()},
            **{name: reading.value for name, reading in values.items()},
        )

    def refuse(self, names: Sequence[str], where: str, near: str = "leave it out") -> None:
        """Refuse options that would be ignored.

        Args:
            names: names of fields.
            where: condition in which they have no meaning, for the message: ``with --summary``.
            near: nearest valid use.

        Raises:
            UsageError: one of them was given.
        """
        for name in names:
            if name in self.given:
                text = f"{flag_of(name)} {self.given[name]}".rstrip()
                raise UsageError(f"{text}: has no meaning {where}; nearest: {near}")


class Quiet(CommandOptions):
    """Options of every command that prints."""

    quiet: bool = flag("no progress, no notes, no warnings", group=OUTPUT, short="-q")


class JsonOutput(Quiet):
    """Options of commands whose result can be JSON."""

    json: str | None = _FILE(help="write JSON; - is standard output")
    format: str | None = _FORMAT(
        help="print json instead of text", read=partial(one_of, allowed=("json",))
    )


class MarkdownOutput(JsonOutput):
    """Options of commands whose result can be Markdown, too."""

    md: str | None = _FILE(help="write Markdown; - is standard output")
    format: str | None = _FORMAT(
        help="print json or md instead of text", read=partial(one_of, allowed=("json", "md"))
    )


class TableOutput(MarkdownOutput):
    """Options of commands whose result can be CSV, too."""

    csv: str | None = _FILE(help="write CSV; - is standard output")
    format: str | None = _FORMAT(
        help="print json, csv or md instead of text",
        read=partial(one_of, allowed=("json", "csv", "md")),
    )


class Stored(Quiet):
    """Options of commands that read or store runs."""

    store: str | None = Option(
        metavar="FILE",
        help="the file in which runs are stored, or none; default: $PYDLBENCH_STORE, else a file "
        "in the user's data directory",
        group=OUTPUT,
    )()


class Measuring(Stored):
    """Options of commands that measure."""

    verbose: bool = flag("print a line when a measurement begins", group=OUTPUT, short="-v")


class ModelOptions(Measuring):
    """Options of commands with a MODEL."""

    model: str = MODEL()
    minutes: float | None = MINUTES()
    threads: int | None = THREADS()
    seed: int = SEED()
    set_: tuple[tuple[str, str], ...] = SET()
    input: tuple[str, ...] = option(
        "SHAPE",
        "shape of a random input: 8x3x224x224; with a type, 8x128:int64; with the number of its "
        "values, 8x128:int64:5000 (0 to 4999; default: the rows of the table that they index, else "
        "2); with a name, tokens=8x128:int64; or values in FILE.npy, FILE.pb or a folder of ONNX's "
        "tests; default: the inputs that CALLABLE returns",
        group=USER_MODEL,
        many=True,
        read=splits,
        default=(),
    )
    loss: str | None = option(
        "LOSS",
        "loss: cross-entropy, sum, mean-square, or package.module:FUNCTION of the output; default: "
        "the one that CALLABLE returns, else the model's own, else sum",
        group=USER_MODEL,
    )
    optimizer: str | None = option(
        "NAME",
        "optimizer of --phase training: sgd (default), momentum, adam, adamw; or fused ones, such "
        "as adam-fused; or with sparse gradients of tables, such as adam-sparse",
        group=USER_MODEL,
    )
    train_mode: bool = flag("modules in training mode, also for --phase forward", group=USER_MODEL)
    eval_mode: bool = flag("modules in evaluation mode in all phases", group=USER_MODEL)
    autocast: str | None = option(
        "P",
        "bf16: run under autocast, with weights in fp32",
        group=USER_MODEL,
        read=partial(one_of, allowed=("bf16",)),
    )
    time_limit: float | None = option(
        "S",
        "seconds that your code may take, to build the model and run it a few times or for a batch "
        f"of samples, before its row fails (default: {CODE_LIMIT_S:.0f})",
        group=USER_MODEL,
        read=positive_time,
    )

    def request(self) -> dict[str, str]:
        """Return the options that a resumed run must have again, as a JSON object."""
        return {
            name: str(getattr(self, name))
            for name, known in self.declared().items()
            if known.group != OUTPUT and name != "minutes"
        }


class ExplainedStep(ModelOptions, MarkdownOutput):
    """Options of commands that explain a framework's step."""

    framework: tuple[str, ...] | None = FRAMEWORK()
    mode: tuple[str, ...] | None = MODE()
    phase: str = PHASE()
    batch: int | None = BATCH()
    precision: str = PRECISION()
    layout: str | None = LAYOUT()
    feed: str = FEED()
    device: str | None = DEVICE()


# -----------------------------------------------------------------------------
# From a record to a parser.


@dataclasses.dataclass(frozen=True, slots=True)
class _Given:
    value: Any
    text: str


class _Take(argparse.Action):
    """Reads one occurrence of an option, or an argument."""

    declared: Option

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - as argparse calls it
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002 - likewise
    ) -> None:
        """Put the value and its text into the namespace."""
        known = self.declared
        texts = values if isinstance(values, list) else [values]
        name = "" if known.argument else flag_of(self.dest)
        if not known.metavar:
            given = _Given(True, "")
        elif known.many:
            before = getattr(namespace, self.dest, _Given((), ""))
            values = [*before.value, *(value for text in texts for value in known.read(name, text))]
            shown = ",".join(filter(None, [before.text, *texts]))
            given = _Given(tuple(values if known.argument else dict.fromkeys(values)), shown)
        else:
            given = _Given(known.read(name, values), values)
        setattr(namespace, self.dest, given)


class _Formatter(argparse.HelpFormatter):
    """Prints an option on one line if it fits, and examples unchanged."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        if action.nargs in ("+", "*"):
            return f"{action.metavar or default_metavar}..."
        return super()._format_args(action, default_metavar)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        # Indented lines are not filled.
        return "\n".join(
            part if part.startswith(" ") else fill(part, width, indent) for part in text.split("\n")
        )


class Parser(argparse.ArgumentParser):
    """A parser that reports bad input in one line, and takes no prefixes of options.

    The meaning of a prefix could change when an option is added.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take ``argparse``'s arguments."""
        usual = {"prog": "pydlbench", "allow_abbrev": False, "formatter_class": _Formatter}
        super().__init__(*args, **{**usual, **kwargs})

    def error(self, message: str) -> NoReturn:
        """Raise ``UsageError`` instead of printing the usage and exiting."""
        names = message.partition("arguments are required: ")[2]
        if names:
            form = str(self.usage or self.prog).replace(" [OPTION...]", "")
            raise UsageError(f"{names}: not given; nearest: {form}")
        text = message.removeprefix("argument ").replace("expected one argument", "needs a value")
        raise UsageError(f"{text}; see {self.prog} --help")


def flag_of(name: str) -> str:
    """Return a field's option as it is written: ``--fail-on``."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def add_options(parser: Parser, kind: type[CommandOptions]) -> Parser:
    """Add the options of a record to a parser, and return it."""
    groups: dict[str, Any] = {"": parser}
    for name, known in kind.declared().items():
        if known.group not in groups:
            groups[known.group] = parser.add_argument_group(known.group)
        names = [name] if known.argument else [*filter(None, [known.short]), flag_of(name)]
        count = None if known.argument == "1" else known.argument or None
        added = groups[known.group].add_argument(
            *names,
            action=_Take,
            metavar=known.metavar or None,
            nargs=count if known.metavar else 0,
            default=argparse.SUPPRESS,
            help=known.help.replace("%", "%%"),
            **({} if known.argument else {"dest": name}),
        )
        added.declared = known
    return parser


def _unknown(word: str, parser: Parser, kind: type[CommandOptions]) -> str:
    declared = kind.declared()
    if word.startswith("-"):
        given = word.split("=", maxsplit=1)[0]
        names = {
            known.metavar if known.argument else flag_of(name) for name, known in declared.items()
        }
        guess = _GUESSES.get(given.lower(), "")
        alike = [guess] if guess in names else nearest(given, sorted(names), 2)
        near = f"nearest: {', '.join(alike)}" if alike else f"see {parser.prog} --help"
        return f"{word}: no such option of {parser.prog}; {near}"
    near = f"nearest: {flag_of(kind.usual)} {word}" if kind.usual else f"see {parser.prog} --help"
    return (
        f"{word}: {parser.prog} takes no such argument; several values of an option are separated "
        f"by commas; {near}"
    )
