"""The options of ``pydlbench compare``."""

from functools import partial
from typing import Final

from pydlbench.cli.options import (
    BUDGET,
    FAIL_ON,
    MINUTES,
    OUTPUT,
    REPETITIONS,
    RUNS,
    SEED,
    WHAT,
    MarkdownOutput,
    Measuring,
    Option,
    as_given,
    flag,
    option,
)
from pydlbench.cli.values import assignments, fail_on, percentage, splits, whole_number

# Their texts are passed on to ``layers`` or ``step``.
_PASSED_ON: Final = Option(
    help="as layers and step take it",
    group="what is measured, with models or with --python",
    many=True,
    read=as_given,
    default=(),
)


def _repetitions(option: str, text: str) -> int:
    from pydlbench.compare.interleaved import MIN_PASSES

    return whole_number(option, text, MIN_PASSES)


class CompareOptions(Measuring, MarkdownOutput):
    """The options of ``compare``."""

    description = (
        "Compare run B with run A row by row: SAME, FASTER, SLOWER or UNCLEAR. A run is in the "
        "store or in a file that --json wrote; runs of fleet are compared node by node, recorded "
        "steps call by call. A and B may be models, old.py:build and new.py:build: their steps are "
        "timed in turn, their results compared, and the calls listed by which they differ. With "
        "--shape they are kernels of your own, fast.py:launch, or backends: each is verified while "
        "it is timed. With "
        "--python given twice, two installations measure layers, or steps of a MODEL, in turn. "
        "With --published, your steps are compared with published figures."
    )
    runs: tuple[str, ...] = RUNS(
        help=f"A and B: {RUNS.help}; or MODELs, as for step; or kernels, as for layers --backend"
    )
    interleave: bool = flag(
        "measure both runs again, in turn, to a few percent: for runs that differ in mode, "
        "backend, layout, threads or options; not for commits, since the installed code measures "
        "both",
        group=WHAT,
    )
    published: bool = flag(
        "compare the steps of RUN with published figures; without RUN: list the figures",
        group=WHAT,
    )
    python: tuple[str, ...] = option(
        "PYTHON",
        "given twice: the Python interpreters of installations A and B, each with its own "
        "pydlbench, frameworks and libraries",
        group=WHAT,
        many=True,
        read=splits,
        default=(),
    )
    model: str | None = option("MODEL", "with --published: this model only", group=WHAT)
    shape: tuple[str, ...] = _PASSED_ON(metavar="SHAPE", help="as layers takes it")
    batch: tuple[str, ...] = _PASSED_ON(metavar="N")
    pass_: tuple[str, ...] = _PASSED_ON(metavar="PASS", help="as layers takes it")
    precision: tuple[str, ...] = _PASSED_ON(metavar="P")
    cache: tuple[str, ...] = _PASSED_ON(
        metavar="STATE", help="as layers takes it, of two kernels (default: hot,all-cold)"
    )
    backend: tuple[str, ...] = _PASSED_ON(metavar="NAME", help="as layers takes it")
    framework: tuple[str, ...] = _PASSED_ON(metavar="NAME", help="as step takes it")
    mode: tuple[str, ...] = _PASSED_ON(metavar="MODE")
    phase: tuple[str, ...] = _PASSED_ON(metavar="PHASE", help="as step takes it")
    input: tuple[str, ...] = _PASSED_ON(metavar="SHAPE", help="as step takes it")
    threads: tuple[str, ...] = _PASSED_ON(metavar="N")
    set_: tuple[str, ...] = _PASSED_ON(metavar="NAME=VALUE", help="as step takes it, for A and B")
    set_a: tuple[tuple[str, str], ...] = option(
        "NAME=VALUE",
        "--set for A alone; with --set-b, A and B can be the same MODEL, given once",
        group=_PASSED_ON.group,
        many=True,
        read=assignments,
        default=(),
    )
    set_b: tuple[tuple[str, str], ...] = option(
        "NAME=VALUE",
        "--set for B alone",
        group=_PASSED_ON.group,
        many=True,
        read=assignments,
        default=(),
    )
    swap: tuple[str, ...] = option(
        "TARGET=FILE.py:NAME",
        "B is A with a kernel of yours: aten.OP=FILE.py:LAUNCH, called as PyTorch calls the "
        "operator, or module:NAME=FILE.py:CALLABLE, called with the module (by name or class)",
        group=_PASSED_ON.group,
        many=True,
        read=splits,
        default=(),
    )
    loss: tuple[str, ...] = _PASSED_ON(metavar="LOSS", help="as step takes it")
    optimizer: tuple[str, ...] = _PASSED_ON(metavar="NAME", help="as step takes it")
    layout: tuple[str, ...] = _PASSED_ON(metavar="LAYOUT", help="as step takes it")
    device: tuple[str, ...] = _PASSED_ON(metavar="DEVICE", help="as step takes it")
    autocast: tuple[str, ...] = _PASSED_ON(metavar="P", help="as step takes it")
    train_mode: bool = flag("as step takes it", group=_PASSED_ON.group)
    eval_mode: bool = flag("as step takes it", group=_PASSED_ON.group)
    same: float | None = option(
        "P%",
        "differences of up to P % count as the same (default: 2%, of models 1%, of fleets 3%)",
        group=WHAT,
        read=percentage,
    )
    repetitions: int = REPETITIONS(
        help="with models, --interleave or --python: repetitions of each side (default: 10, of "
        "models up to 30, until a change of 3 % can be told)",
        read=_repetitions,
        default=10,
    )
    budget: float = BUDGET(
        help="with models, --interleave or --python: sampling time in seconds per row and "
        "repetition "
        "(default: 0.3, of models 0.75)",
        default=0.3,
    )
    minutes: float | None = MINUTES()
    seed: int = SEED()
    all: bool = flag("print all rows, however many", group=OUTPUT)
    fail_on: tuple[str, float] | None = FAIL_ON(
        metavar="slower:P%",
        help="exit with code 3 if a row is SLOWER by more than P %, with 4 if a row is UNCLEAR",
        read=partial(fail_on, allowed=("slower",)),
    )
