"""``pydlbench completion``: scripts that complete commands and options, made from the parsers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import UsageError

if TYPE_CHECKING:
    import argparse

_SHELLS: Final = ("bash", "zsh")

_BASH: Final = """\
# bash completion of pydlbench {version}; written by: pydlbench completion bash
_pydlbench() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words=
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands} help --help --version"
    elif [ "${{COMP_WORDS[1]}}" = help ]; then
        words="{commands}"
    else
        case ${{COMP_WORDS[1]}} in
{cases}
        esac
    fi
    case $word in
        -* | '') COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
        *) [ "$COMP_CWORD" -eq 1 ] && COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
    esac
    [ "${{#COMPREPLY[@]}}" -gt 0 ] || COMPREPLY=($(compgen -f -- "$word"))
}}
complete -o filenames -F _pydlbench pydlbench
"""

_ZSH: Final = """\
#compdef pydlbench
# zsh completion of pydlbench {version}; written by: pydlbench completion zsh
_pydlbench() {{
    local -a commands
    commands=(
{commands}
    )
    if (( CURRENT == 2 )); then
        _describe command commands
        return
    fi
    case $words[2] in
{cases}
    esac
}}
_pydlbench "$@"
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "completion",
        description="Print a script that completes commands, options and files in a shell.",
    )
    parser.add_argument("shell", metavar="SHELL", help=" or ".join(_SHELLS))


def run(args: argparse.Namespace) -> int:
    """Print the script.

    Raises:
        UsageError: no such shell.
    """
    from pydlbench import __version__
    from pydlbench.cli.options import one_of
    from pydlbench.cli.parser import COMMANDS

    try:
        shell = one_of("", args.shell, _SHELLS)
    except UsageError as error:
        raise UsageError(str(error).strip()) from error
    options = {name: _options(name) for name in COMMANDS}
    if shell == "bash":
        cases = [
            f"            {name}) words='{' '.join(word for word, _ in found)}' ;;"
            for name, found in options.items()
        ]
        script = _BASH.format(
            version=__version__, commands=" ".join(COMMANDS), cases="\n".join(cases)
        )
    else:
        commands = [f"        '{name}:{_quoted(one.help)}'" for name, one in COMMANDS.items()]
        cases = [
            "\n".join(
                [
                    f"        {name})",
                    "            _arguments \\",
                    *(f"                '{word}[{_quoted(text)}]' \\" for word, text in found),
                    "                '*:file:_files'",
                    "            ;;",
                ]
            )
            for name, found in options.items()
        ]
        script = _ZSH.format(
            version=__version__, commands="\n".join(commands), cases="\n".join(cases)
        )
    print(script, end="")
    return 0


def _options(name: str) -> list[tuple[str, str]]:
    """Return a command's options with what they are for."""
    from pydlbench.cli.parser import command_parser

    return [
        (word, (action.help or "").replace("%%", "%"))
        for action in command_parser(name)._actions  # noqa: SLF001 - argparse has no other way
        for word in action.option_strings
    ]


def _quoted(text: str) -> str:
    """Return a text that can stand in brackets between single quotes of zsh."""
    return text.replace("'", "").replace("[", "(").replace("]", ")").replace(":", " -")
