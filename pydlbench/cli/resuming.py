"""Options, request and missing rows of a run that is resumed."""

from __future__ import annotations

import argparse
import hashlib
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import PydlbenchError, UsageError
from pydlbench.store.resume import case_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydlbench.cli.layers import Request
    from pydlbench.records.specs import KernelSpec

__all__ = ["layers_request", "unfinished", "with_options"]

# What is shown, and where it is kept: may differ from run to run.
_OUTPUTS: Final = frozenset(
    ("command", "version", "json", "csv", "md", "quiet", "samples", "explain", "store", "resume")
)


def with_options(
    args: argparse.Namespace, add_parser: Callable[[Any], None], command: str
) -> argparse.Namespace:
    """Return the options of the run that ``--resume`` names, unless options are given beside it.

    Outputs are always those that are given now.

    Args:
        args: as they were given.
        add_parser: of the command.
        command: its name.

    Raises:
        UsageError: there is no such run, or its command line cannot be read any more.
    """
    from pydlbench.cli.options import find_of, reading_store
    from pydlbench.cli.parser import Parser

    if args.resume is None:
        return args
    parser = Parser(prog="pydlbench")
    add_parser(parser.add_subparsers())
    idle = vars(parser.parse_args([command]))
    if any(value != idle.get(name) for name, value in vars(args).items() if name not in _OUTPUTS):
        return args
    store = reading_store(args)
    if store is None:
        raise UsageError(f"--resume {args.resume}: no runs are kept yet")
    with store:
        run = store.record(find_of(store, args.resume, command).id)
    if run.command[1:2] != (command,):
        raise UsageError(
            f"--resume {args.resume}: run {run.id} was not begun by pydlbench {command}; nearest: "
            "repeat its options beside --resume"
        )
    try:
        before = vars(parser.parse_args(list(run.command[1:])))
    except (PydlbenchError, SystemExit) as error:
        raise UsageError(
            f"--resume {args.resume}: the command line of run {run.id} cannot be read: {error}"
        ) from error
    kept = {name: value for name, value in vars(args).items() if name in _OUTPUTS}
    return argparse.Namespace(**{**before, **kept})


def unfinished(cases: Sequence[KernelSpec], done: Callable[[KernelSpec], bool]) -> list[KernelSpec]:
    """Return the cases that a resumed run still has to measure.

    Backends of one problem are sampled in turn and have ratios to each other: where one of them is
    missing or has failed, all of them are measured again.

    Args:
        cases: all that were asked for.
        done: whether a case has its row already.
    """
    from pydlbench.runner.problem import by_problem

    again = [group for group in by_problem(cases) if not all(map(done, group))]
    return [case for group in again for case in group]


def layers_request(request: Request) -> dict[str, Any]:
    """Return what is asked for as a JSON object, for comparing: every axis by its option's name."""
    axes: dict[str, list[Any]] = {
        "shape": [case.layer.name or case.layer.problem for case in request.cases],
        "batch": [case.layer.batch for case in request.cases],
        "pass": [case.pass_ for case in request.cases],
        **{
            name: [getattr(case, name) for case in request.cases]
            for name in ("precision", "propagation", "cache", "layout", "backend", "mode", "device")
        },
        "timing": [case.timing for case in request.cases],
        "fuse": [case.fuse for case in request.cases],
        "threads": list(request.threads),
    }
    keys = "\n".join(case_key(case) for case in request.cases)
    options = {name: value for name, value in request.options.items() if name != "keep_samples"}
    return {
        **{name: list(dict.fromkeys(values)) for name, values in axes.items()},
        **options,
        # Two requests may have the same axes and not the same combinations.
        "cases": hashlib.sha256(keys.encode("utf-8", "backslashreplace")).hexdigest()[:16],
    }
