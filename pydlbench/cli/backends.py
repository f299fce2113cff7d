"""``pydlbench backends``: installed backends, what they support, and how to install others."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydlbench.backends.capabilities import Capabilities
from pydlbench.cli.options import DEVICE, JsonOutput
from pydlbench.cli.output import Outputs
from pydlbench.report.blocks import Block, Headline, Lines, TableBlock
from pydlbench.units import quantity
from pydlbench.words import arithmetic


class BackendsOptions(JsonOutput):
    """The command's options."""

    description = (
        "List every backend with its version and what it supports, or why it cannot be used and "
        "the command that installs it. Each is started once, in a process of its own. A precision "
        "that this machine lacks is reported by the row of a layer."
    )
    device: str | None = DEVICE(help="cpu or cuda:N; default: both kinds", group="")


def run(args: BackendsOptions, describe: Callable[[str, str], dict[str, Any]] | None = None) -> int:
    """Start each backend and list its description.

    Args:
        args: the command's options.
        describe: called instead of starting a worker.

    Returns:
        0, also if backends are missing.

    Raises:
        UsageError: a file cannot be written.
    """
    from pydlbench.backends.capabilities import all_capabilities, default_device

    outputs = Outputs.from_options(args)
    devices = [args.device] if args.device else list(dict.fromkeys(["cpu", default_device()[0]]))
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
    """Return unusable backends and models of other packages, with the reasons."""
    from pydlbench import plugins
    from pydlbench.models import model_names

    model_names()  # loads all plugins
    return [dataclasses.asdict(plugin) for plugin in plugins.broken_entry_points()]


def _entries(
    capabilities: Capabilities,
    devices: list[str],
    describe: Callable[[str, str], dict[str, Any]],
    named: bool,
) -> list[dict[str, Any]]:
    kinds = {device: device.partition(":")[0] for device in devices}
    known = {device: kind for device, kind in kinds.items() if kind in capabilities.devices}
    if not known and not named:  # for GPUs only, without a GPU
        known = {"cuda:0": "cuda"}
    return [_entry(capabilities, device, kind, describe) for device, kind in known.items()]


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
    """Return the table, and why backends cannot be used or packages are left out."""
    cells = [
        [
            entry["backend"],
            entry["device"],
            _version(entry),
            ", ".join(entry["modes"]) or "-",
            # Those with other types of sources and results have one arithmetic.
            ", ".join(dict.fromkeys(map(arithmetic, entry["precisions"]))),
            "yes" if entry["usable"] else "no",
        ]
        for entry in entries
    ]
    titles = ["backend", "device", "version", "modes", "precisions", "usable"]
    missing = [
        f"{entry['backend']} on {entry['device']}: {_reason(entry)}"
        for entry in entries
        if not entry["usable"]
    ]
    useless = [
        f"{item['name']} of {item['distribution']} ({item['group']}) is left out: {item['reason']}"
        for item in left_out
    ]
    table = TableBlock(titles, cells, [False] * len(titles))
    usable = dict.fromkeys(entry["backend"] for entry in entries if entry["usable"])
    text = f"{len(entries) - len(missing)} of {quantity(len(entries), 'backend')} can be used here"
    command = f"pydlbench layers --shape conv3 --backend {','.join(usable)}"
    headline = Headline([f"{text}: {', '.join(usable)}.", f"next: {command}"] if usable else [])
    return [headline, table, Lines(missing, listed=True), Lines(useless, listed=True)]


def _version(entry: Mapping[str, Any]) -> str:
    """Return the version, beside the name that a usable backend gives itself."""
    about = entry["about"] or {}
    name, version = about.get("name"), about.get("version")
    own = f"{name} {version}" if entry["usable"] and name and version else ""
    return own or entry["version"] or "-"


def _reason(entry: Mapping[str, Any]) -> str:
    """Return why a backend cannot be used, and the command that installs it."""
    reason = " ".join(str(entry["reason"]).split())
    unmentioned = entry["version"] is None and entry["install"] not in reason
    return f"{reason}; get it with: {entry['install']}" if unmentioned else reason


SUBCOMMANDS: Final = {"": (BackendsOptions, run)}
