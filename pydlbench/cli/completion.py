"""``pydlbench completion``: scripts that complete commands, options and files, written by shtab."""

from functools import partial
from typing import Final

from pydlbench.cli.options import CommandOptions, Parser, add_options, argument
from pydlbench.cli.values import one_of

_SHELLS: Final = ("bash", "zsh", "tcsh")
# Metavars of values that may be a file or a folder.
_FILES: Final = ("FILE", "MODEL", "RUN")
_FOLDERS: Final = ("DIR",)


class CompletionOptions(CommandOptions):
    """The command's options."""

    description = "Print a script that completes commands, options and files in a shell."
    shell: str = argument("SHELL", ", ".join(_SHELLS), read=partial(one_of, allowed=_SHELLS))


def run(args: CompletionOptions) -> int:
    """Print the script."""
    import shtab

    from pydlbench.cli.parser import COMMANDS, records

    parser = Parser()
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, command in COMMANDS.items():
        kinds = records(name)
        added = commands.add_parser(name, help=command.help)
        if "" in kinds:
            _add(added, kinds[""][0])
            continue
        subcommands = added.add_subparsers(metavar="SUBCOMMAND")
        for sub, (kind, _) in kinds.items():
            _add(subcommands.add_parser(sub, help=kind.description), kind)
    print(shtab.complete(parser, args.shell))
    return 0


def _add(parser: Parser, kind: type[CommandOptions]) -> None:
    """Add a record's options to a parser, with the completion of their values."""
    import shtab

    for action in add_options(parser, kind)._actions:  # noqa: SLF001 - argparse has no other way to list them
        for completion, names in ((shtab.FILE, _FILES), (shtab.DIRECTORY, _FOLDERS)):
            if action.metavar in names:
                action.complete = completion  # type: ignore[attr-defined] # shtab reads it there


SUBCOMMANDS: Final = {"": (CompletionOptions, run)}
