"""The option that every command has which keeps results or reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.cli.streams import tell
from pydlbench.errors import StoreError, UsageError

if TYPE_CHECKING:
    import argparse

    from pydlbench.cli.resumed import Resumed
    from pydlbench.results.store import RunInfo, Store

__all__ = ["add_store_option", "find_of", "reading_store", "say_kept", "writing_store"]


def add_store_option(parser: Any) -> None:
    """Add ``--store`` to a command's parser, or to a group of its options."""
    parser.add_argument(
        "--store",
        metavar="FILE",
        help="where results are kept; none keeps nothing; default: $PYDLBENCH_STORE, else a file "
        "in the user's data directory",
    )


def reading_store(args: argparse.Namespace) -> Store | None:
    """Open the store for reading; None where there is none yet, or ``--store none`` was given.

    Raises:
        UsageError: a file that was named is missing, or is no store that can be read.
        StoreError: another one cannot be read.
    """
    from pydlbench.results.store import Store, chosen_path

    path, by = chosen_path(getattr(args, "store", None))
    if path is None:
        return None
    if not path.exists():
        if by == "--store":
            raise UsageError(f"--store {path}: no such file; nearest: leave it out")
        return None
    try:
        return Store.open(path, readonly=True)
    except StoreError as error:
        if by == "--store":
            raise UsageError(str(error)) from error
        raise


def writing_store(
    args: argparse.Namespace, kind: str, resume: str | None
) -> tuple[Store | None, bool, Resumed | None]:
    """Open the store for writing.

    Args:
        args: the options; ``store`` is read.
        kind: the command.
        resume: the run to go on with, as ``Store.find`` takes it.

    Returns:
        The store, None where nothing can or is to be kept; whether it was named with ``--store``;
        the run to go on with.

    Raises:
        UsageError: the file that was named cannot be written; or there is no such run, it is
            another command's, or it is being written.
    """
    from pydlbench.results.store import Store, chosen_path

    path, by = chosen_path(getattr(args, "store", None))
    named = by == "--store"
    if path is None:
        if resume is not None:
            raise UsageError(f"--resume {resume}: nothing is kept; nearest: leave out {by} none")
        return None, named, None
    try:
        store = Store.open(path if by else None)
    except StoreError as error:
        if named or resume is not None:
            raise UsageError(str(error)) from error
        tell(f"warning: results are not kept: {error}")
        return None, named, None
    try:
        return store, named, None if resume is None else _resumable(store, resume, kind)
    except BaseException:
        store.close()
        raise


def say_kept(store: Store, run_id: str, where: str) -> None:
    """Say under which name a run can be found, and how it is shown."""
    from pydlbench.results.store.naming import short_id

    try:
        short = short_id(run_id, store.ids())
    except StoreError:
        short = run_id
    tell(f"kept as run {run_id} (pydlbench runs show {short}{where})")


def find_of(store: Store, text: str, kind: str) -> RunInfo:
    """Return the run that ``--resume`` names.

    Raises:
        UsageError: there is none, or it is another command's.
    """
    info = store.find(text)
    if info.kind != kind:
        raise UsageError(
            f"--resume {text}: run {info.id} is of {info.kind}, not of {kind}; see: pydlbench runs"
        )
    return info


def _resumable(store: Store, text: str, kind: str) -> Resumed:
    from pydlbench.cli.resumed import Resumed
    from pydlbench.results.store import BEING_WRITTEN

    info = find_of(store, text, kind)
    if info.status == "running":
        raise UsageError(f"--resume {text}: run {info.id} {BEING_WRITTEN.format(info.id)}")
    return Resumed(store, info)
