"""``pydlbench runs``: lists, shows, tags, ends and deletes what is kept."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.damaged import reading_files
from pydlbench.errors import UsageError, nearest

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from pydlbench.results.store import RunInfo

__all__ = ["add_parser", "run"]

# Action -> what stands behind it on the command line.
_ACTIONS: Final = {
    "list": "",
    "show": "RUN",
    "tag": "RUN NAME",
    "untag": "RUN NAME",
    "end": "RUN",
    "delete": "RUN...",
    "vacuum": "",
}


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    from pydlbench.cli.store_option import add_store_option

    parser = subparsers.add_parser(
        "runs",
        help="lists, shows, tags and deletes the runs that are kept",
        description="List the runs that are kept, newest first; or show one as its command had "
        "printed it, tag it, delete it.",
        epilog="RUN is an id or the beginning of one, a tag, last, or last~1 for the one before. "
        "A run whose process is gone without having ended it is shown as killed; layers and sweep "
        "go on with it: --resume RUN. Of a process on another host or in another container nothing "
        "can be seen: if it is gone, end its run here.",
    )
    forms = ", ".join(f"{name} {words}".strip() for name, words in _ACTIONS.items())
    parser.add_argument("action", nargs="?", metavar="ACTION", help=f"{forms}; default: list")
    parser.add_argument("words", nargs="*", metavar="RUN", help="which, see below")
    parser.add_argument("--limit", metavar="N", help="list so many at the most")
    parser.add_argument("--tag", metavar="NAME", help="list those that have this tag")
    parser.add_argument("--yes", action="store_true", help="delete without asking")
    parser.add_argument("--json", metavar="FILE", help="write the list as JSON; - is stdout")
    parser.add_argument("--quiet", action="store_true", help="no remarks and no warnings")
    add_store_option(parser)


def run(args: argparse.Namespace, ask: Callable[[str], str] | None = None) -> int:
    """Do what was asked for.

    Args:
        args: the command's options.
        ask: takes the place of ``input`` on a terminal.

    Returns:
        0; 1 if nothing was deleted because the answer was no.

    Raises:
        UsageError: no such run, no such action, or nothing is kept.
        StoreError: the store cannot be read or written.
    """
    action = args.action or "list"
    if action not in _ACTIONS:
        near = nearest(action, _ACTIONS, 1)
        raise UsageError(
            f"{action}: no such action; nearest: {near[0] if near else f'show {action}'}; choices: "
            f"{', '.join(_ACTIONS)}"
        )
    words = list(args.words)
    wanted = _ACTIONS[action].split()
    several = bool(wanted) and wanted[-1].endswith("...")
    if len(words) < len(wanted) or (len(words) > len(wanted) and not several):
        form = f"pydlbench runs {action} {_ACTIONS[action]}".strip()
        raise UsageError(f"runs {' '.join([action, *words])}: expected {form}")
    if action != "list":
        for option, value in (("--limit", args.limit), ("--tag", args.tag), ("--json", args.json)):
            if value is not None:
                other = "; nearest: pydlbench export RUN" if option == "--json" else ""
                raise UsageError(f"{option} {value}: for the list only{other}")
    if action == "list":
        return _list(args)
    if action == "show":
        return _show(args, words[0])
    return _change(args, action, words, ask)


def _list(args: argparse.Namespace) -> int:
    from pydlbench.cli.store_option import reading_store
    from pydlbench.cli.streams import tell
    from pydlbench.cli.values import whole_number
    from pydlbench.report.runs_table import render_runs
    from pydlbench.results.destination import STDOUT, check_writable, write_text
    from pydlbench.results.export_json import dump

    limit = None if args.limit is None else whole_number("--limit", args.limit, 1)
    if args.json is not None:
        check_writable("--json", args.json)
    store = reading_store(args)
    found: list[RunInfo] = []
    if store is not None:
        with store:
            found = store.runs(tag=args.tag, limit=limit)
            if args.tag is not None and not found:
                tags = sorted({tag for info in store.runs() for tag in info.tags})
                near = ", ".join(nearest(args.tag, tags) or tags) or "pydlbench runs tag RUN NAME"
                raise UsageError(f"--tag {args.tag}: no run has it; nearest: {near}")
    if args.json is not None:
        write_text(args.json, dump({"runs": [one.to_dict() for one in found]}))
    if args.json != STDOUT and found:
        print(render_runs(found))
    if not found and not args.quiet:
        tell("no runs are kept yet; begin with: pydlbench layers")
    return 0


def _show(args: argparse.Namespace, text: str) -> int:
    from pydlbench.cli.runs_show import show
    from pydlbench.cli.store_option import reading_store
    from pydlbench.results.store import load

    store = reading_store(args)
    try:
        with reading_files([text]):
            show(load(text, store), quiet=args.quiet)
    finally:
        if store is not None:
            store.close()
    return 0


def _change(
    args: argparse.Namespace,
    action: str,
    words: Sequence[str],
    ask: Callable[[str], str] | None,
) -> int:
    from pydlbench.cli.store_option import reading_store
    from pydlbench.cli.streams import tell
    from pydlbench.results.store import BEING_WRITTEN, Store

    store = reading_store(args)
    if store is None:
        raise UsageError(f"runs {action}: no runs are kept yet; begin with: pydlbench layers")
    with store:
        path = store.path
    with Store.open(path) as store:
        if action == "vacuum":
            before = path.stat().st_size
            store.vacuum()
            said = f"{path}: {before:,} bytes before, {path.stat().st_size:,} now"
        elif action == "delete":
            infos = list({info.id: info for info in map(store.find, words)}.values())
            for info in infos:
                if info.status == "running":
                    raise UsageError(f"run {info.id}: {BEING_WRITTEN.format(info.id)}")
            if not args.yes and not _agreed(infos, ask):
                tell("nothing deleted")
                return 1
            for info in infos:
                store.delete(info.id)
            said = f"deleted: {', '.join(info.id for info in infos)}"
        elif action == "end":
            info = store.find(words[0])
            store.end(info.id)
            said = f"run {info.id}: {store.info(info.id).status}"
        else:
            info = store.find(words[0])
            (store.tag if action == "tag" else store.untag)(info.id, words[1])
            tags = store.info(info.id).tags
            said = f"run {info.id}: {'tags ' + ', '.join(tags) if tags else 'no tags'}"
    if not args.quiet:
        tell(said)
    return 0


def _agreed(infos: Sequence[RunInfo], ask: Callable[[str], str] | None) -> bool:
    """Ask on a terminal; elsewhere a deletion has to be meant."""
    from pydlbench.report.runs_table import render_runs

    names = " ".join(info.id for info in infos)
    if ask is None:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(f"runs delete {names}: nobody to ask; nearest: add --yes")
        ask = input
    print(render_runs(infos), file=sys.stderr, flush=True)
    return ask("delete? [y/N] ").strip().lower() in ("y", "yes")
