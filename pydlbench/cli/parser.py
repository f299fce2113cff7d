"""The main parser: knows every command's name, loads only the one that is used."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pydlbench.errors import UsageError, nearest
from pydlbench.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Command:
    """What the main parser knows of a command without loading it.

    Its module, ``pydlbench.cli.<name>``, gives ``add_parser(subparsers)`` and ``run(args)`` and
    imports next to nothing at its top. A command that measures gives ``read_tasks(args)``, too;
    one that stores in a table of its own gives ``stored_report(run)``.

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
#: All commands, in the groups of ``pydlbench --help``; a new one that measures and stores is its
#: own file and an entry here.
GROUPS: Final[dict[str, dict[str, Command]]] = {
    "measure": {
        "layers": Command(
            "How fast is each layer, and how near to the hardware's limit?",
            (
                ("layers --shape conv3 --batch 32", "one layer, in seconds"),
                ("layers --model vgg16 --backend all --json rows.json", "a model in all libraries"),
            ),
            f"{_NO_ROW}; 3 a row has failed, under --fail-on",
            sweeps=True,
            stores="layer",
        ),
        "step": Command(
            "How long does a real step take, and which layers dominate it?",
            (
                ("step alexnet-owt --batch 16 32", "PyTorch and TensorFlow, interleaved"),
                ("step --protocol mnist-tutorial --steps 100", "what that script prints"),
            ),
            "1 an error, no row is ok or the frameworks disagree; 3 a row has failed, under "
            "--fail-on",
            sweeps=True,
            stores="step",
        ),
    },
    "explain": {
        "estimate": Command(
            "What would a step take if each layer ran alone by its fastest kernel?",
            (
                ("estimate alexnet-owt --batch 16", "a forward pass"),
                ("estimate resnet50 --phase training --all", "a training step, layer by layer"),
            ),
            "1 an error, or something is missing in the sum; 3 the same under --fail-on",
            sweeps=True,
            stores="estimate",
        ),
        "breakdown": Command(
            "Where does a real step's time go, from the hardware's limit to the step?",
            (
                ("breakdown resnet50 --batch 8 --framework torch", "levels, terms and modules"),
                ("breakdown mnist --framework torch --explain", "how each term was measured"),
            ),
            "1 an error, or no breakdown is ok; 3 a breakdown has failed, under --fail-on",
            sweeps=True,
            stores="breakdown",
        ),
        "forecast": Command(
            "How long will a step take, by stored measurements, without running it?",
            (
                (
                    "forecast resnet50 --batch 8 --framework torch",
                    "measures what no row is there for",
                ),
                ("forecast vgg13 --phase training --known-only", "from stored rows, or not at all"),
            ),
            "1 an error, or no forecast is whole: rows are missing",
            stores="forecast",
        ),
        "diagnose": Command(
            "What would make a step faster, and by how much?",
            (
                ("diagnose alexnet-owt --batch 16", "what would make it faster"),
                ("diagnose mnist --fail-on saves:10%", "a gate for continuous integration"),
            ),
            "1 the step cannot be run; 3 a finding saves at least --fail-on",
            sweeps=True,
            stores="findings",
        ),
    },
    "keep": {
        "runs": Command(
            "Which runs are stored? Lists, shows, tags and deletes them.",
            (("runs", "the newest first"), ("runs show last", "the last one as it was printed")),
        ),
        "compare": Command(
            "Did anything become slower between two runs? Verdicts row by row.",
            (
                ("compare last~1 last", "the two newest runs"),
                ("compare main last --fail-on slower:3%", "a gate for continuous integration"),
            ),
            "1 nothing can be compared; 3 a row is slower than --fail-on allows; 4 that cannot be "
            "told",
        ),
        "report": Command(
            "How do runs look in figures and tables, on one HTML page?",
            (
                ("report last", "the last run"),
                ("report main last -o both.html", "two side by side"),
            ),
            "1 nothing was measured in the runs",
        ),
        "export": Command(
            "Runs as CSV, JSON, Markdown or Parquet; JSON Schemas.",
            (
                ("export last -o rows.csv", "for a spreadsheet"),
                ("export --schema layers", "its schema"),
            ),
        ),
        "sweep": Command(
            "Many measurements from one TOML file, as one run that can be resumed.",
            (
                ("sweep night.toml --dry-run", "what it would measure"),
                ("sweep --resume last", "go on where it was stopped"),
            ),
            f"{_NO_ROW}; 3 a row has failed, under --fail-on",
        ),
    },
    "machines": {
        "device": Command(
            "What can this machine reach? Peaks, bandwidths, clocks; known cards.",
            (("device", "this machine"), ("device --known", "published figures of known cards")),
        ),
        "backends": Command(
            "Which libraries and frameworks are installed, and what do they support?",
            (
                ("backends", "all"),
                ("backends --device cpu --json -", "those of the CPU, for scripts"),
            ),
        ),
        "shapes": Command(
            "Which layers and models are known, with FLOPs and bytes?",
            (("shapes", "a line for each model"), ("shapes 'vgg*/fc*'", "some layers of several")),
        ),
        "fleet": Command(
            "Which nodes of many are slow, why, and what does that cost a step?",
            (
                ("fleet run night.toml --slots 2", "on two halves of this machine"),
                ("fleet verdict last --fail-on slow", "a gate before a long training"),
            ),
            "1 an error, or no visit is whole; 3 a node is slow, under --fail-on; 4 that cannot be "
            "told",
            stores="fleet-visit",
        ),
        "completion": Command(
            "Shell completion for bash, zsh and tcsh.",
            (
                ("completion bash > ~/.local/share/bash-completion/completions/pydlbench", "bash"),
                ("completion zsh > ~/.zfunc/_pydlbench", "zsh"),
            ),
        ),
    },
}
COMMANDS: Final = {name: one for group in GROUPS.values() for name, one in group.items()}
# Words for a command in other tools, or that someone may guess.
_GUESSES: Final = {
    **dict.fromkeys(("e2e", "train", "time", "profile"), "step"),
    **dict.fromkeys(("model", "predict"), "estimate"),
    **dict.fromkeys(("layer", "bench", "benchmark", "measure"), "layers"),
    **dict.fromkeys(("explain", "check"), "breakdown"),
}

_DESCRIPTION = "Time deep-learning kernels and hold them against what the hardware could do."
_EPILOG = (
    "pydlbench COMMAND --help shows a command's options, examples and exit codes.\n"
    "A slow model? Start with: pydlbench step MODEL"
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


class _Main(Parser):
    """The main parser; its help lists the commands in groups."""

    def format_help(self) -> str:
        """Return the help; argparse cannot group commands."""
        wide = max(map(len, COMMANDS))
        groups = [
            "\n".join(
                [f"{title}:", *(f"  {name:<{wide}}  {one.help}" for name, one in group.items())]
            )
            for title, group in GROUPS.items()
        ]
        options = (
            "options:\n  -h, --help     show this help and exit\n"
            "  -V, --version  show the version and exit"
        )
        return "\n\n".join([f"usage: {self.usage}", _DESCRIPTION, *groups, options, _EPILOG]) + "\n"


def main_parser() -> tuple[Parser, Any]:
    """Return the main parser and what the commands' parsers are added to."""
    parser = _Main(prog="pydlbench", usage="pydlbench COMMAND [OPTION...]")
    parser.add_argument("-V", "--version", action="store_true", help="show the version and exit")
    return parser, parser.add_subparsers(
        action=_Commands, parser_class=Parser, prog="pydlbench", dest="command", metavar="COMMAND"
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
        guess = _GUESSES.get(command.lower())
        names = guess or ", ".join(nearest(command, COMMANDS) or COMMANDS)
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
