"""The main parser: knows every command's name, loads only the one that is used."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from pydlbench import __version__
from pydlbench.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COMMANDS", "Parser", "dispatch"]

# Command -> its line in `pydlbench --help`. Its module, pydlbench.cli.<command>, gives
# add_parser(subparsers) and run(args) and imports next to nothing at its top.
COMMANDS = {
    "device": "facts, peaks (theoretical and measured), bandwidth, clocks, libraries",
    "backends": "what is installed, what it supports, how to get the rest",
    "shapes": "the catalog of layers, with FLOPs, bytes and intensity",
    "layers": "time layers, measured against theoretical; the main job",
    "model": "sum measured layers into the estimate of a step; which layer dominates",
    "e2e": "a real framework step, also as the published scripts time and print it",
    "check": "hold the estimate of a step against PyTorch and TensorFlow, term by term",
    "diagnose": "what costs a step its time: findings, ranked by what they would save",
    "runs": "the runs that are kept: lists, shows, tags, deletes them",
    "sweep": "many measurements from one TOML file, kept as one run that can be resumed",
    "compare": "two runs row by row, with verdicts that count the scatter between runs",
    "report": "runs as one HTML page that opens offline, with figures and tables",
    "export": "runs as CSV, JSON, Markdown or Parquet; schemas of the JSON documents",
}

_DESCRIPTION = "Time deep-learning kernels and hold them against what the hardware could do."
_EPILOG = "pydlbench COMMAND --help shows a command's options. Start with: pydlbench layers"


class Parser(argparse.ArgumentParser):
    """Answers bad input with one line, as every part of pydlbench does, and takes no prefixes.

    A prefix of an option that works today would mean something else once an option is added.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take ``argparse``'s arguments."""
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise ``UsageError`` instead of printing the usage and leaving."""
        raise UsageError(f"{message.removeprefix('argument ')} ({self.prog} --help)")


def dispatch(arguments: Sequence[str]) -> int:
    """Parse the command line, run its command, return the exit code.

    Raises:
        UsageError: Unknown command, unknown option, bad value.
    """
    command = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if command is not None and command not in COMMANDS:
        names = ", ".join(nearest(command, COMMANDS) or COMMANDS)
        raise UsageError(f"{command}: no such command; nearest: {names}")
    parser = Parser(prog="pydlbench", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    module = None
    if command is None:
        for name, text in COMMANDS.items():
            subparsers.add_parser(name, help=text)
    else:
        module = importlib.import_module(f"pydlbench.cli.{command}")
        module.add_parser(subparsers)
    try:
        args, unknown = parser.parse_known_args(arguments)
    except SystemExit as leave:  # --help
        return leave.code if isinstance(leave.code, int) else 0
    if unknown:
        chosen = subparsers.choices.get(command or "", parser)
        raise UsageError(_unknown(unknown[0], command, chosen))
    if args.version:
        print(f"pydlbench {__version__}")
        return 0
    if module is None:
        parser.print_help(sys.stderr)
        return 2
    code: int = module.run(args)
    return code


def _unknown(word: str, command: str | None, parser: argparse.ArgumentParser) -> str:
    place = f"pydlbench {command}" if command else "pydlbench"
    if not word.startswith("-"):
        return f"{word}: {place} takes no such argument; see {place} --help"
    known = re.findall(r"--[a-z][a-z-]*", parser.format_help())
    names = nearest(word.split("=", maxsplit=1)[0], dict.fromkeys(known), 2)
    near = f"nearest: {', '.join(names)}" if names else f"see {place} --help"
    return f"{word}: no such option of {place}; {near}"
