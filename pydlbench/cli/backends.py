"""``pydlbench backends``: what is installed, what it supports, how to get the rest."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.options import DEVICE, JsonOutput
from pydlbench.cli.output import Outputs
from pydlbench.report.blocks import Block, Lines, TableBlock

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.backends.capabilities import Capabilities


class BackendsOptions(JsonOutput):
    """The command's options."""

    description = (
        "List every backend with its version and what it supports, or why it cannot be used and "
        "the command that installs it. Each is started once, in a process of its own. A precision "
        "that this machine lacks is reported by the row of a layer."
    )
    device: str | None = DEVICE(help="cpu or cuda:N; default: both kinds", group="")


def run(args: BackendsOptions, describe: Callable[[str, str], dict[str, Any]] | None = None) -> int:
    """Start each backend and list what it says.

    Args:
        args: the parsed options.
        describe: takes the place of starting workers in tests.

    Returns:
        0, also where backends are missing: that is what the command is asked for.

    Raises:
        UsageError: bad ``--device``, unwritable file.
    """
    from pydlbench.backends.capabilities import all_capabilities, default_device
    from pydlbench.words import check_device

    outputs = Outputs.from_options(args)
    if args.device is not None:
        check_device(args.device)
        devices = [args.device]
    else:
        devices = list(dict.fromkeys(["cpu", default_device()[0]]))
    entries = [
        entry
        for backend in all_capabilities()
        for entry in _entries(backend, devices, describe or _start, named=args.device is not None)
    ]
    left_out = _left_out()
    document = {"backends": entries, "left_out": left_out}
    outputs.write(lambda: document, lambda: _report(entries, left_out))
    return 0


def _left_out() -> list[dict[str, str]]:
    """Return which backends and models of other packages are of no use, and why."""
    from pydlbench import plugins
    from pydlbench.models import model_names

    model_names()  # looks at all that there are
    return [dataclasses.asdict(plugin) for plugin in plugins.broken()]


def _entries(
    capabilities: Capabilities,
    devices: list[str],
    describe: Callable[[str, str], dict[str, Any]],
    named: bool,
) -> list[dict[str, Any]]:
    entries = []
    for device in devices:
        kind = device.partition(":")[0]
        if kind in capabilities.devices:
            entries.append(_entry(capabilities, device, kind, describe))
    if not entries and not named:  # one for GPUs only, where there is none
        entries.append(_entry(capabilities, "cuda:0", "cuda", describe))
    return entries


def _entry(
    capabilities: Capabilities,
    device: str,
    kind: str,
    describe: Callable[[str, str], dict[str, Any]],
) -> dict[str, Any]:
    from pydlbench.backends.capabilities import installed_version, is_installed
    from pydlbench.errors import PydlbenchError

    entry: dict[str, Any] = {
        "backend": capabilities.name,
        "device": device,
        "title": capabilities.title,
        "modes": [mode for mode in capabilities.modes[kind] if mode],
        "precisions": list(capabilities.precisions[kind]),
        "version": installed_version(capabilities),
        "install": capabilities.install,
        "usable": False,
        "reason": None,
        "about": None,
    }
    if entry["version"] is None and not is_installed(capabilities):
        return {**entry, "reason": "not installed"}
    try:
        return {**entry, "about": describe(capabilities.name, device), "usable": True}
    except PydlbenchError as error:
        return {**entry, "reason": str(error)}


def _start(backend: str, device: str) -> dict[str, Any]:
    from pydlbench.runner.session import Session

    with Session() as session:
        return session.worker(backend, device).describe()


def _report(entries: list[dict[str, Any]], left_out: list[dict[str, str]]) -> list[Block]:
    """Return the table, why backends cannot be used, and what of other packages is left out."""
    cells = []
    for entry in entries:
        about = entry["about"] or {}
        name, version = about.get("name"), about.get("version")
        shown = f"{name} {version}" if name and version else entry["version"] or "-"
        cells.append(
            [
                entry["backend"],
                entry["device"],
                shown if entry["usable"] else entry["version"] or "-",
                ", ".join(entry["modes"]) or "-",
                ", ".join(entry["precisions"]),
                "yes" if entry["usable"] else "no",
            ]
        )
    titles = ["backend", "device", "version", "modes", "precisions", "usable"]
    missing = []
    for entry in entries:
        reason = " ".join(str(entry["reason"]).split())
        # Its own message may say so already.
        missing_here = entry["version"] is None and entry["install"] not in reason
        get = f"; get it with: {entry['install']}" if missing_here else ""
        if not entry["usable"]:
            missing.append(f"{entry['backend']} on {entry['device']}: {reason}{get}")
    useless = [
        f"{item['name']} of {item['distribution']} ({item['group']}) is left out: {item['reason']}"
        for item in left_out
    ]
    table = TableBlock(titles, cells, [False] * len(titles))
    return [table, Lines(missing, listed=True), Lines(useless, listed=True)]


SUBCOMMANDS: Final = {"": (BackendsOptions, run)}
