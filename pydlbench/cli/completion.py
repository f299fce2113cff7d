"""``pydlbench completion``: scripts that complete commands, options and files, written by shtab."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import UsageError

if TYPE_CHECKING:
    import argparse

_SHELLS: Final = ("bash", "zsh", "tcsh")
# What values are called that name a file, among other things, or a folder.
_FILES: Final = ("FILE", "MODEL", "RUN", "WHAT")
_FOLDERS: Final = ("DIR",)


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "completion",
        description="Print a script that completes commands, options and files in a shell.",
    )
    parser.add_argument("shell", metavar="SHELL", help=", ".join(_SHELLS))


def run(args: argparse.Namespace) -> int:
    """Print the script.

    Raises:
        UsageError: no such shell.
    """
    import shtab

    from pydlbench.cli.options import one_of
    from pydlbench.cli.parser import COMMANDS, command_parser, main_parser

    try:
        shell = one_of("", args.shell, _SHELLS)
    except UsageError as error:
        raise UsageError(str(error).strip()) from error
    parser, subparsers = main_parser()
    for name in COMMANDS:
        for action in command_parser(name, subparsers)._actions:  # noqa: SLF001 - argparse has no other way to list them
            for kind, names in ((shtab.FILE, _FILES), (shtab.DIRECTORY, _FOLDERS)):
                if action.metavar in names:
                    action.complete = kind  # type: ignore[attr-defined] # shtab reads it there
    print(shtab.complete(parser, shell))
    return 0
