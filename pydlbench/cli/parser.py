"""The main parser: knows every command's name, loads only the one that is used."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from pydlbench.errors import UsageError, nearest
from pydlbench.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Command:
    """What the main parser knows of a command without loading it.

    Its module, ``pydlbench.cli.<name>``, gives ``add_parser(subparsers)`` and ``run(args)`` and
    imports next to nothing at its top. A command that measures gives ``read_tasks(args)``, too;
    one that stores in a table of its own gives ``show_stored(run, quiet=...)``.

    Attributes:
        help: its line in ``pydlbench --help``.
        examples: two command lines without ``pydlbench``, each with what it is for.
        codes: what exit codes other than 0, 2 and 130 mean.
        sweeps: whether a table of a sweep can ask for it.
        stores: the table of the store that its results are in.
    """

    help: str
    examples: tuple[tuple[str, str], ...] = ()
    codes: str = ""
    sweeps: bool = False
    stores: str = ""


_NO_ROW = "1 an error, or no row is ok"
#: All commands; a new one that measures and stores is its own file and a line here.
COMMANDS = {
    "device": Command(
        "facts, peaks (theoretical and measured), bandwidth, clocks, libraries",
        (("device", "this machine"), ("device --known", "published figures of known cards")),
    ),
    "backends": Command(
        "what is installed, what it supports, how to get the rest",
        (("backends", "all"), ("backends --device cpu --json -", "those of the CPU, for scripts")),
    ),
    "shapes": Command(
        "the catalog of layers, with FLOPs, bytes and intensity",
        (("shapes", "a line for each model"), ("shapes 'vgg*/fc*'", "some layers of several")),
    ),
    "layers": Command(
        "time layers, measured against theoretical; the main job",
        (
            ("layers --shape conv3 --batch 32", "one layer, in seconds"),
            ("layers --model vgg16 --backend all --json rows.json", "a model in all libraries"),
        ),
        f"{_NO_ROW}; 3 a row has failed, under --fail-on",
        sweeps=True,
        stores="layer",
    ),
    "model": Command(
        "sum measured layers into the estimate of a step; which layer dominates",
        (
            ("model alexnet-owt --batch 16", "a forward pass"),
            ("model resnet50 --phase training --all", "a training step, layer by layer"),
        ),
        "1 an error, or something is missing in the sum; 3 the same under --fail-on",
        sweeps=True,
        stores="estimate",
    ),
    "e2e": Command(
        "a real framework step, also as the published scripts time and print it",
        (
            ("e2e alexnet-owt --batch 16 32", "PyTorch and TensorFlow, interleaved"),
            ("e2e --protocol mnist-tutorial --steps 100", "what that script prints"),
        ),
        "1 an error, no row is ok or the frameworks disagree; 3 a row has failed, under --fail-on",
        sweeps=True,
        stores="step",
    ),
    "check": Command(
        "where a step's time goes in PyTorch, TensorFlow, JAX or onnxruntime, rung by rung",
        (
            ("check alexnet-owt --batch 16", "where a step's milliseconds go"),
            ("check mnist --framework torch --explain", "how each term was measured"),
        ),
        "1 an error, or no check is ok; 3 a check has failed, under --fail-on",
        sweeps=True,
        stores="check",
    ),
    "breakdown": Command(
        "where a real step's time goes, from the limit to the step, by a traced step",
        (
            ("breakdown resnet50 --batch 8 --framework torch", "levels, terms and modules"),
            ("breakdown mnist --framework torch --explain", "how each term was measured"),
        ),
        "1 an error, or no breakdown is ok; 3 a breakdown has failed, under --fail-on",
        stores="breakdown",
    ),
    "forecast": Command(
        "a step's time from stored rows of its operators; the step is not run",
        (
            ("forecast resnet50 --batch 8 --framework torch", "measures what no row is there for"),
            ("forecast vgg13 --phase training --known-only", "from stored rows, or not at all"),
        ),
        "1 an error, or no forecast is whole: rows are missing",
        stores="forecast",
    ),
    "diagnose": Command(
        "what costs a step its time: findings, ranked by what they would save",
        (
            ("diagnose alexnet-owt --batch 16", "what would make it faster"),
            ("diagnose mnist --fail-on saves:10%", "a gate for continuous integration"),
        ),
        "1 the step cannot be run; 3 a finding saves at least --fail-on",
        sweeps=True,
        stores="findings",
    ),
    "runs": Command(
        "the runs that are kept: lists, shows, tags, deletes them",
        (("runs", "the newest first"), ("runs show last", "the last one as it was printed")),
    ),
    "sweep": Command(
        "many measurements from one TOML file, kept as one run that can be resumed",
        (
            ("sweep night.toml --dry-run", "what it would measure"),
            ("sweep --resume last", "go on where it was stopped"),
        ),
        f"{_NO_ROW}; 3 a row has failed, under --fail-on",
    ),
    "fleet": Command(
        "a sweep on many nodes; which of them are slow, why, and what that costs a step",
        (
            ("fleet run night.toml --slots 2", "on two halves of this machine"),
            ("fleet verdict last --fail-on slow", "a gate before a long training"),
        ),
        "1 an error, or no visit is whole; 3 a node is slow, under --fail-on; 4 that cannot be "
        "told",
        stores="fleet-visit",
    ),
    "compare": Command(
        "two runs row by row, with verdicts that count the scatter between runs",
        (
            ("compare last~1 last", "the two newest runs"),
            ("compare main last --fail-on slower:3%", "a gate for continuous integration"),
        ),
        "1 nothing can be compared; 3 a row is slower than --fail-on allows; 4 that cannot be told",
    ),
    "report": Command(
        "runs as one HTML page that opens offline, with figures and tables",
        (("report last", "the last run"), ("report main last -o both.html", "two side by side")),
        "1 nothing was measured in the runs",
    ),
    "export": Command(
        "runs as CSV, JSON, Markdown or Parquet; schemas of the JSON documents",
        (
            ("export last -o rows.csv", "for a spreadsheet"),
            ("export --schema layers", "its schema"),
        ),
    ),
    "completion": Command(
        "completion of commands and options for bash, zsh and tcsh",
        (
            ("completion bash > ~/.local/share/bash-completion/completions/pydlbench", "bash"),
            ("completion zsh > ~/.zfunc/_pydlbench", "zsh"),
        ),
    ),
}

_DESCRIPTION = "Time deep-learning kernels and hold them against what the hardware could do."
_EPILOG = (
    "pydlbench COMMAND --help, or pydlbench help COMMAND, shows a command's options, examples and "
    "exit codes. Start with: pydlbench layers --shape conv3 --batch 32"
)


class Formatter(argparse.HelpFormatter):
    """One line for an option wherever it fits, and examples as they are written."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        if action.nargs in ("+", "*"):
            return f"{action.metavar or default_metavar}..."
        return super()._format_args(action, default_metavar)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        # A line that is indented stands as it is.
        return "\n".join(
            part if part.startswith(" ") else fill(part, width, indent) for part in text.split("\n")
        )


class Parser(argparse.ArgumentParser):
    """Answers bad input with one line, as every part of pydlbench does, and takes no prefixes.

    A prefix of an option that works today would mean something else once an option is added.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take ``argparse``'s arguments."""
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", Formatter)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise ``UsageError`` instead of printing the usage and leaving."""
        text = message.removeprefix("argument ")
        own = r"(?!expected |ignored |invalid |not allowed )"  # what argparse says itself
        found = re.match(rf"(?:-\w/)?--?[\w-]+: {own}(.+)", text)
        # What a type= function has to say names option and value, not where help is.
        raise UsageError(found[1] if found else f"{text} ({self.prog} --help)")


def command_parser(name: str, subparsers: Any = None) -> argparse.ArgumentParser:
    """Return a command's parser, with examples and exit codes below its options.

    Args:
        name: the command.
        subparsers: where it is added; None is a main parser of its own.
    """
    places = Parser(prog="pydlbench").add_subparsers() if subparsers is None else subparsers
    importlib.import_module(f"pydlbench.cli.{name}").add_parser(places)
    parser: argparse.ArgumentParser = places.choices[name]
    words = [
        {"?": f"[{one.metavar}]", "*": f"[{one.metavar}...]"}.get(str(one.nargs), str(one.metavar))
        for one in parser._actions  # noqa: SLF001 - argparse has no other way to list them
        if not one.option_strings
    ]
    parser.usage = " ".join([f"pydlbench {name} [OPTION...]", *words])
    command = COMMANDS[name]
    wide = max(len(line) for line, _ in command.examples)
    examples = [f"  pydlbench {line:<{wide}}  # {what}" for line, what in command.examples]
    own = (command.codes or "1 an error").split("; ")
    codes = "; ".join(["0 done", own[0], "2 bad input", *own[1:], "130 interrupted"])
    more = [parser.epilog, ""] if parser.epilog else []
    parser.epilog = "\n".join([*more, "examples:", *examples, "", f"exit codes: {codes}"])
    return parser


# It takes its type in brackets while types are checked, not at run time, and has no public name.
class _Commands(argparse._SubParsersAction):  # type: ignore[type-arg] # noqa: SLF001 - no public name
    """Parsers of commands, each with its line in ``pydlbench --help``."""

    def add_parser(self, name: str, **kwargs: Any) -> Any:
        return super().add_parser(name, help=COMMANDS[name].help, **kwargs)


def main_parser() -> tuple[Parser, Any]:
    """Return the main parser and what the commands' parsers are added to."""
    parser = Parser(prog="pydlbench", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("-V", "--version", action="store_true", help="show the version and exit")
    return parser, parser.add_subparsers(
        action=_Commands, dest="command", metavar="COMMAND", title="commands"
    )


def dispatch(arguments: Sequence[str]) -> int:
    """Parse the command line, run its command, return the exit code.

    Raises:
        UsageError: Unknown command, unknown option, bad value.
    """
    words = list(arguments)
    if words[:1] == ["--"]:
        del words[0]
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    command = words[0] if words and not words[0].startswith("-") else None
    if command is not None and command not in COMMANDS:
        names = ", ".join(nearest(command, COMMANDS) or COMMANDS)
        raise UsageError(f"{command or repr(command)}: no such command; nearest: {names}")
    parser, subparsers = main_parser()
    if command is None:
        for name in COMMANDS:
            subparsers.add_parser(name)
    else:
        command_parser(command, subparsers)
    try:
        args, unknown = parser.parse_known_args(words)
    except SystemExit as leave:  # --help
        return leave.code if isinstance(leave.code, int) else 0
    if unknown:
        chosen = subparsers.choices.get(command or "", parser)
        raise UsageError(_unknown(unknown[0], command, chosen))
    if args.version:
        print(f"pydlbench {__version__}")
        return 0
    if command is None:
        parser.print_help(sys.stderr)
        return 2
    code: int = importlib.import_module(f"pydlbench.cli.{command}").run(args)
    return code


def _unknown(word: str, command: str | None, parser: argparse.ArgumentParser) -> str:
    place = f"pydlbench {command}" if command else "pydlbench"
    if not word.startswith("-"):
        return f"{word}: {place} takes no such argument; see {place} --help"
    known = [name for one in parser._actions for name in one.option_strings]  # noqa: SLF001 - see above
    names = nearest(word.split("=", maxsplit=1)[0], dict.fromkeys(known), 2)
    near = f"nearest: {', '.join(names)}" if names else f"see {place} --help"
    return f"{word}: no such option of {place}; {near}"
