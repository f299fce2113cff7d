"""All commands by name; only the one that is used is imported."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from pydlbench.cli.options import CommandOptions, Measuring, Parser, add_options
from pydlbench.errors import UsageError, nearest


@dataclass(frozen=True, slots=True)
class Command:
    """A command, described without importing its module.

    Its module, ``pydlbench.cli.<name>``, has ``SUBCOMMANDS``: by name of the sub-command its record
    of options and the function that runs it. A command without sub-commands has one entry, ``""``.
    The top of the module imports very little. A command that measures has ``read_tasks(options)``,
    too; one whose results have a table of their own in the store has ``stored_report(run)``.

    Attributes:
        help: line about the command in ``pydlbench --help``.
        examples: a few command lines without ``pydlbench``, each with its purpose.
        codes: meaning of exit codes other than 0, 2 and 130.
        sweeps: whether a sweep's file can have tables of this command.
        stores: table of the store that holds the command's results.
        usual: default sub-command; empty if there is none.
    """

    help: str
    examples: tuple[tuple[str, str], ...] = ()
    codes: str = ""
    sweeps: bool = False
    stores: str = ""
    usual: str = ""


_NO_ROW = "1 an error, or no row is ok"
#: All commands, in the groups of ``pydlbench --help``.
GROUPS: Final[dict[str, dict[str, Command]]] = {
    "measure": {
        "layers": Command(
            "How fast is each layer, and how near to the hardware's limit?",
            (
                ("layers --shape conv3 --batch 32", "one layer, in seconds"),
                ("layers --model vgg16 --backend all --json rows.json", "a model in all backends"),
            ),
            f"{_NO_ROW}; 3 a row has failed, with --fail-on",
            sweeps=True,
            stores="layer",
        ),
        "step": Command(
            "How long does a real step take, and which layers dominate it?",
            (
                ("step alexnet-owt --batch 16,32", "PyTorch and TensorFlow, in turn"),
                ("step my_model.py:build --phase training", "a model of your own"),
                ("step --protocol mnist-tutorial --steps 100", "what that script prints"),
            ),
            "1 an error, no row is ok, or the frameworks disagree; 3 a row has failed, with "
            "--fail-on",
            sweeps=True,
            stores="step",
        ),
    },
    "explain": {
        "estimate": Command(
            "What would a step take if each layer ran alone, with its fastest kernel?",
            (
                ("estimate alexnet-owt --batch 16", "a forward pass"),
                ("estimate resnet50 --phase training --all", "a training step, layer by layer"),
            ),
            "1 an error, or a layer is missing from the sum; 3 the same, with --fail-on",
            sweeps=True,
            stores="estimate",
        ),
        "breakdown": Command(
            "Where does a real step's time go, from the hardware's limit to the step?",
            (
                ("breakdown resnet50 --batch 8 --framework torch", "a forward pass in PyTorch"),
                ("breakdown my_model.py:build --phase training", "a model of your own"),
                ("breakdown mnist --framework torch --explain", "how each part was measured"),
            ),
            "1 an error, or no breakdown is ok; 3 a breakdown has failed, with --fail-on",
            sweeps=True,
            stores="breakdown",
        ),
        "trace": Command(
            "Where does the time of a recorded step go? A trace or log, of any machine.",
            (
                ("trace step.json.gz", "the card is named in the file"),
                ("trace step.json.gz --on h100-sxm", "held against another card"),
                ("trace rank*.json.gz", "which rank the others wait for"),
            ),
            "1 an error",
            stores="trace",
        ),
        "forecast": Command(
            "How long will a step take? From stored measurements, without running it.",
            (
                (
                    "forecast resnet50 --batch 8 --framework torch",
                    "measures what the store lacks",
                ),
                ("forecast vgg13 --phase training --known-only", "from stored rows, or not at all"),
            ),
            "1 an error, or rows are missing from every forecast",
            stores="forecast",
        ),
        "diagnose": Command(
            "What would make a step faster, and by how much?",
            (
                ("diagnose alexnet-owt --batch 16", "what would make it faster"),
                ("diagnose my_model.py:build --phase training", "a model of your own"),
                ("diagnose mnist --fail-on saves:10%", "a gate for continuous integration"),
            ),
            "1 the step cannot be run; 3 a remedy saves at least what --fail-on names",
            sweeps=True,
            stores="findings",
        ),
    },
    "keep": {
        "runs": Command(
            "Which runs are stored? Lists, shows, tags and deletes them.",
            (("runs", "the newest first"), ("runs show last", "the last one as it was printed")),
            usual="list",
        ),
        "compare": Command(
            "Did my change help? Two versions of a model or of a kernel, or two runs, row by row.",
            (
                ("compare old.py:build new.py:build --phase training", "a model, before and after"),
                (
                    "compare fast.py:launch native --shape conv3",
                    "a kernel of yours, and the library's",
                ),
                ("compare last~1 last", "the two newest runs"),
                (
                    "compare --python A/bin/python --python B/bin/python mnist --fail-on slower:3%",
                    "a gate",
                ),
            ),
            "1 nothing can be compared, or B computes something else; 3 a row is slower than "
            "--fail-on allows; 4 the rows do not tell",
            stores="change",
        ),
        "report": Command(
            "What do runs look like? Their figures and tables on one HTML page.",
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
            "Many measurements from one TOML file: a single run, which can be resumed.",
            (
                ("sweep night.toml --dry-run", "what it would measure"),
                ("sweep --resume last", "continue where it was interrupted"),
            ),
            f"{_NO_ROW}; 3 a row has failed, with --fail-on",
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
            "Which nodes of a cluster are slow, why, and what does that cost a step?",
            (
                ("fleet run night.toml --slots 2", "on two halves of this machine"),
                ("fleet verdict last --fail-on slow", "a gate before a long training"),
            ),
            "1 an error, or no node finished its sweep; 3 a node is slow, with --fail-on; 4 the "
            "runs do not tell",
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
COMMANDS: Final = {name: known for group in GROUPS.values() for name, known in group.items()}
# Names of such commands in other tools, or likely guesses.
_GUESSES: Final = {
    **dict.fromkeys(("e2e", "train", "time", "profile"), "step"),
    **dict.fromkeys(("model", "predict"), "estimate"),
    **dict.fromkeys(("layer", "bench", "benchmark", "measure"), "layers"),
    **dict.fromkeys(("explain", "check"), "breakdown"),
}

_DESCRIPTION = "Time deep-learning kernels and steps, and compare them with hardware limits."
_EPILOG = (
    "pydlbench COMMAND --help shows a command's options, examples and exit codes.\n"
    "A slow model? Start with: pydlbench step MODEL, where MODEL is a name such as resnet50,\n"
    "or a file of your own: my_model.py:build, whose function build() returns the model."
)


def help_text() -> str:
    """Return the text of ``pydlbench --help``."""
    width = max(map(len, COMMANDS))
    groups = [
        "\n".join(
            [f"{title}:", *(f"  {name:<{width}}  {known.help}" for name, known in group.items())]
        )
        for title, group in GROUPS.items()
    ]
    options = (
        "options:\n  -h, --help     show this help and exit\n"
        "  -V, --version  show the version and exit"
    )
    usage = "usage: pydlbench COMMAND [OPTION...]"
    return "\n\n".join([usage, _DESCRIPTION, *groups, options, _EPILOG])


def records(name: str) -> dict[str, tuple[type[CommandOptions], Callable[..., int]]]:
    """Return the ``SUBCOMMANDS`` of a command, see :class:`Command`."""
    module: ModuleType = importlib.import_module(f"pydlbench.cli.{name}")
    subcommands: Mapping[str, tuple[type[CommandOptions], Callable[..., int]]] = module.SUBCOMMANDS
    return dict(subcommands)


def command_parser(name: str, sub: str = "") -> Parser:
    """Return the parser of a command or sub-command, with examples and exit codes in its help.

    Args:
        name: name of the command.
        sub: name of the sub-command; "" for the parser that lists all sub-commands.
    """
    known, command, words = records(name), COMMANDS[name], " ".join(filter(None, [name, sub]))
    kind = known[sub][0] if sub in known else None
    lines = [
        (line, purpose) for line, purpose in command.examples if f"{line} ".startswith(f"{words} ")
    ]
    width = max((len(line) for line, _ in lines), default=0)
    examples = [f"  pydlbench {line:<{width}}  # {purpose}" for line, purpose in lines]
    first, *others = (command.codes or "1 an error").split("; ")
    codes = "; ".join(["0 done", first, "2 bad input", *others, "130 interrupted, 143 by SIGTERM"])
    epilog = [kind.epilog, ""] if kind is not None and kind.epilog else []
    epilog += ["examples:", *examples, ""] if examples else []
    parser = Parser(prog=f"pydlbench {words}", epilog="\n".join([*epilog, f"exit codes: {codes}"]))
    if kind is None:
        parser.usage = f"{parser.prog} SUBCOMMAND [OPTION...]"
        listed = [f"  {name:<8}  {known[name][0].description.split('. ')[0]}" for name in known]
        parser.description = "\n".join([command.help, "", "sub-commands:", *listed])
        return parser
    forms = {"?": "[{}]", "*": "[{}...]", "+": "{}...", "1": "{}"}
    shown = [forms[known.argument].format(known.metavar) for known in kind.declared_arguments()]
    parser.usage = " ".join([f"{parser.prog} [OPTION...]", *shown])
    parser.description = kind.description
    return add_options(parser, kind)


def read(words: Sequence[str]) -> tuple[CommandOptions, Callable[..., int]]:
    """Return the options of a command line, and the function that runs the command.

    Args:
        words: the command and the words after it.

    Raises:
        UsageError: unknown command, unknown option, bad value.
        SystemExit: after ``--help``.
    """
    name, *rest = words
    if name not in COMMANDS:
        guess = _GUESSES.get(name.lower())
        names = guess or ", ".join(nearest(name, COMMANDS) or COMMANDS)
        raise UsageError(f"{name or repr(name)}: no such command; nearest: {names}")
    known, sub = records(name), ""
    if "" not in known:
        if rest[:1] in (["-h"], ["--help"]):
            command_parser(name).parse_args(rest)
        sub = COMMANDS[name].usual
        if rest and not (sub and rest[0].startswith("-")):
            sub, rest = rest[0], rest[1:]
        if sub not in known:
            takes = (word for word, (kind, _) in known.items() if kind.declared_arguments())
            near = nearest(sub, known, 1) or [f"{next(takes)} {sub}".rstrip()]
            wrong = f"{sub}: no such sub-command of {name}" if sub else f"{name}: no sub-command"
            raise UsageError(
                f"{wrong}; nearest: pydlbench {name} {near[0]}; choices: {', '.join(known)}"
            )
    kind, run = known[sub]
    return kind.parse(rest, command_parser(name, sub)), run


def dispatch(arguments: Sequence[str]) -> int:
    """Parse the command line, run its command, return the exit code.

    Raises:
        UsageError: unknown command, unknown option, bad value.
    """
    words = list(arguments)
    if words[:1] == ["--"]:
        del words[0]
    if words[:1] == ["help"]:
        words = [*words[1:3], "--help"]
    if not words or words[0] in ("-h", "--help"):
        print(help_text(), file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        from pydlbench.version import __version__

        print(f"pydlbench {__version__}")
        return 0
    if words[0].startswith("-"):
        near = nearest(words[0], ("--help", "--version"), 1) or ["--help"]
        raise UsageError(f"{words[0]}: no such option of pydlbench; nearest: {near[0]}")
    try:
        options, run = read(words)
    except SystemExit as leave:  # --help
        return leave.code if isinstance(leave.code, int) else 0
    try:
        return run(options)
    except KeyboardInterrupt:
        if isinstance(options, Measuring) and getattr(options, "resume", "") is None:
            from pydlbench.cli.measuring import write_unbegun

            write_unbegun(options, words[0])
        raise
