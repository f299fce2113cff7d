"""Tests whether a fleet's verdict is right, on slots of one core each of this machine.

    python benchmarks/fleet_proofs.py slow kills overhead [--times 20] [--journal FILE]
    python benchmarks/fleet_proofs.py report [--journal FILE]

``slow``: fleets of two slots, each judged three times: as measured, where nothing may be SLOW; with
the times of one slot 5 % longer, which may be too little; and with them longer by the fleet's own
detection limit, where that slot and nothing else has to be SLOW. The slowdown is in the times and
not in the machine, so it tests the judgement with the scatter of real times.
``kills``: a scheduler and two workers of Dask, of which one worker and later the scheduler are
killed with SIGKILL in the middle of a visit. After the run is resumed, all rows that were finished
before have to be unchanged. ``overhead``: the same sweep through the engine and without it,
interleaved: the ratio of each row's times with its 95 % interval.

Finished parts are in the journal and are not measured again, so that a run can be split.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from journal import Journal

from pydlbench.compare.statistics import quantile
from pydlbench.errors import StoreError
from pydlbench.fleet.engines import DaskEngine
from pydlbench.fleet.node import Brought, NodeSlot, Order, store_name
from pydlbench.fleet.run import TABLE, FleetPlan, gathered, run_rounds, with_reference
from pydlbench.fleet.verdict import judge_visits
from pydlbench.records.run import RunRecord
from pydlbench.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


FILE = """
[defaults]
repetitions = 1
budget = {budget}

[[layers]]
shape = "conv3"
pass = "forward"
batch = 1

[[layers]]  # within a core's own cache
shape = '256x256:256x256n"small"'
pass = "forward"
"""
BUDGET = 0.3
ROUNDS = 10
BEYOND = 0.03
SLOWER = 1.05
# Time limit of each part.
LIMIT_S = 300.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="+", choices=[*PROOFS, "report"])
    parser.add_argument("--times", type=int, default=20, help="fleets, or pairs of sweeps (20)")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds of each row")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing later")
    parser.add_argument("--journal", type=Path, default=Path("fleet-proofs.jsonl"))
    args = parser.parse_args()
    sweep = FILE.format(budget=args.budget)
    journal = Journal(args.journal)
    end = time.monotonic() + args.seconds
    for number in range(args.times):
        for what in args.what:
            task = f"{what} {number}"
            over = time.monotonic() > end or (what == "kills" and number)
            if what == "report" or task in journal or over:
                continue
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="pydlbench-proofs-") as folder:
                entry = PROOFS[what](Path(folder), number, args.rounds, sweep)
            journal.add(task, {**entry, "seconds": time.monotonic() - began})
            print(task, entry, flush=True)
    asked = PROOFS if "report" in args.what else args.what
    return report(journal, {what: 1 if what == "kills" else args.times for what in asked})


def slots() -> list[NodeSlot]:
    """Return two slots of a core each; the first core has the most interrupts."""
    cpus = sorted(os.sched_getaffinity(0))[-2:]
    return [NodeSlot(name=f"cpus-{cpu}", cpus=(cpu,)) for cpu in cpus]


# -----------------------------------------------------------------------------
# Fleets with and without a slowdown.


def slow(folder: Path, number: int, rounds: int, sweep: str) -> dict[str, Any]:
    """Run a fleet, and return its verdicts with and without a slower slot."""
    both = slots()
    victim = both[number % 2].name
    engine = DaskEngine.local(both)
    try:
        visits = measured(engine, folder, number, rounds, sweep)
    finally:
        engine.close()
    found = judged(visits, victim, 1.0)
    return {
        "victim": victim,
        "clean": found,
        "planted": judged(visits, victim, SLOWER),
        "told": judged(visits, victim, 1 + found["found_from"]),
        "rounds": ratios(visits, *(one.name for one in both)),
    }


def judged(visits: list[Mapping[str, Any]], node: str, factor: float) -> dict[str, Any]:
    """Return the SLOW nodes if one takes longer by a factor, and its effect in all metrics."""

    def values(visit: Mapping[str, Any]) -> dict[str, Any]:
        slower = factor if visit["node"] == node else 1.0
        return {
            name: {**value, "time_s": value["time_s"] * slower}
            for name, value in visit["values"].items()
        }

    verdict = judge_visits([{**one, "values": values(one)} for one in visits], BEYOND)
    whole = verdict.metrics[-1]
    (effect,) = (one for one in verdict.effects if (one.node, one.metric) == (node, whole.metric))
    return {
        "slow": sorted({one.node for one in verdict.slow}),
        "flags": sorted(f"{one.node} {one.metric}" for one in verdict.slow),
        "effect": effect.effect,
        "ci": [effect.ci_low, effect.ci_high],
        "found_from": whole.resolution,
    }


def ratios(visits: list[Mapping[str, Any]], first: str, second: str) -> list[dict[str, float]]:
    """Return the ratios of the second slot's times to the first one's, by round and metric."""
    times = {(one["round"], one["node"]): one["values"] for one in visits}
    return [
        {
            name: times[number, second][name]["time_s"] / value["time_s"]
            for name, value in times[number, first].items()
        }
        for number in sorted({number for number, _ in times})
    ]


def measured(
    engine: DaskEngine, folder: Path, seed: int, rounds: int, sweep: str
) -> list[Mapping[str, Any]]:
    """Run a fleet's rounds, and return its visits."""
    run = RunRecord(id="20300101-0000f1ee", created_utc="2030-01-01T00:00:00+00:00")
    plan = FleetPlan(
        fleet=run.id,
        text=with_reference(sweep),
        folder=folder,
        rounds=rounds,
        limit_s=LIMIT_S,
        seed=seed,
    )
    with Store.open(folder / "store.sqlite") as store:
        store.begin(run, "fleet", request={"text": plan.text})
        _, failed = run_rounds(engine, store, plan, lambda _: None)
        if failed:
            raise SystemExit(f"{failed} visits are incomplete: an idle machine is needed")
        return [one.document for one in store.entries(run.id, TABLE)]


# -----------------------------------------------------------------------------
# The engine's overhead.


def overhead(folder: Path, number: int, _rounds: int, sweep: str) -> dict[str, Any]:
    """Run the same sweep on the same core with the engine and without it."""
    ways = {"with": through_engine, "without": directly}
    order = sorted(ways, reverse=bool(number % 2))
    found = {way: seconds_of(ways[way](folder, slots()[0], sweep)) for way in order}
    return {
        "ratios": {name: found["with"][name] / value for name, value in found["without"].items()}
    }


def through_engine(folder: Path, slot: NodeSlot, sweep: str) -> Path:
    """Run the sweep as a visit."""
    engine = DaskEngine.local([slot])
    try:
        engine.slots()
        order = Order(
            fleet="f", round=0, text=with_reference(sweep), folder=str(folder), limit_s=LIMIT_S
        )
        engine.start(slot, order)
        while not (done := engine.finished(1.0)):
            pass
    finally:
        engine.close()
    brought = done[0].brought
    if not isinstance(brought, Brought) or brought.reason:
        raise SystemExit(f"the visit is incomplete: {brought and brought.reason}")
    return folder / store_name(slot.name, 0)


def directly(folder: Path, slot: NodeSlot, sweep: str) -> Path:
    """Run the sweep as a user would on that core."""
    file, path = folder / "some.toml", folder / "direct.sqlite"
    file.write_text(with_reference(sweep), encoding="utf-8")
    words = ["-m", "pydlbench", "sweep", str(file), "--quiet", "--store", str(path)]
    subprocess.run(
        ["taskset", "-c", str(slot.cpus[0]), sys.executable, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return path


def seconds_of(path: Path) -> dict[str, float]:
    """Return each metric's seconds."""
    return {name: value["time_s"] for name, value in gathered(path)["values"].items()}


# -----------------------------------------------------------------------------
# Kills.


class Cluster:
    """A scheduler and a worker per slot, each a process of its own."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.scheduler = self._begin([], "scheduler", "--host", "localhost", "--port", str(port))
        self.workers = {slot.name: self.worker(slot) for slot in slots()}

    def worker(self, slot: NodeSlot) -> subprocess.Popen[bytes]:
        """Start the worker of a slot."""
        words = ["--nthreads", "1", "--no-nanny", "--memory-limit", "0"]
        prefix = slot.prefix.split()
        return self._begin(prefix, "worker", f"tcp://localhost:{self.port}", *words)

    def _begin(self, prefix: list[str], *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", "dask", *words, "--no-dashboard"],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(self.folder)},
        )

    def close(self) -> None:
        """Kill the remaining processes."""
        for one in (*self.workers.values(), self.scheduler):
            one.kill()
            one.wait()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return int(one.getsockname()[1])


def kills(folder: Path, _number: int, rounds: int, sweep: str) -> dict[str, Any]:
    """Kill a worker and the scheduler of a fleet, resume it, and compare the finished rows."""
    (folder / "some.toml").write_text(sweep, encoding="utf-8")
    store = folder / "store.sqlite"
    port = free_port()
    cluster = Cluster(folder, port)
    begun = command(folder, "some.toml", "--on", f"dask://localhost:{port}", "--rounds", rounds)
    victim = slots()[0]
    kept: dict[str, Any] = {}
    try:
        # One row of the round's first visit is finished, and the sweep goes on.
        wait_for(lambda: len(rows(folder, victim, 0)) == 1, begun)
        kept |= rows(folder, victim, 0)
        cluster.workers[victim.name].send_signal(signal.SIGKILL)
        cluster.workers[victim.name].wait()
        cluster.workers[victim.name] = cluster.worker(victim)
        wait_for(lambda: len(rows(folder, victim, 1)) == 1, begun)
        kept |= {key: value for one in slots() for key, value in rows(folder, one).items()}
        cluster.scheduler.send_signal(signal.SIGKILL)
        said = begun.communicate(timeout=LIMIT_S)[1]
    finally:
        cluster.close()
        begun.kill()
    before = documents(store)
    again = Cluster(folder, port)
    try:
        resumed = command(folder, "--resume", "last", "--on", f"dask://localhost:{port}")
        resumed.communicate(timeout=LIMIT_S)
    finally:
        again.close()
        resumed.kill()
    after = documents(store)
    there = {key: value for one in slots() for key, value in rows(folder, one).items()}
    return {
        "ended": [begun.returncode, resumed.returncode],
        "said": said.strip().splitlines()[-1:],
        "rows_before": len(kept),
        "rows_lost": sum(there.get(key) != value for key, value in kept.items()),
        "visits_before": len(before),
        "visits_lost": sum(after.get(key) != value for key, value in before.items()),
        "tries": {f"{key}": one["tries"] for key, one in after.items() if one["tries"] > 1},
        "visits": len(after),
        "whole": sum(one["status"] == "ok" for one in after.values()),
    }


def command(folder: Path, *words: Any) -> subprocess.Popen[str]:
    """Start ``pydlbench fleet run``."""
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "pydlbench", "fleet", "run", *map(str, words)),
            *("--store", str(folder / "store.sqlite")),
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(there: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for a condition, at most until the time limit or the end of the process."""
    end = time.monotonic() + LIMIT_S
    while not there():
        if time.monotonic() > end or process.poll() is not None:
            raise SystemExit(f"nothing to kill: {process.communicate()[1]}")
        time.sleep(0.05)


def rows(folder: Path, slot: NodeSlot, number: int | None = None) -> dict[str, Any]:
    """Return the finished rows of a slot's visits on its node, by store and key."""
    found = {}
    for path in stores(folder, slot):
        if number is not None and not path.name.endswith(f".{number}.sqlite"):
            continue
        with contextlib.suppress(StoreError), Store.open(path, readonly=True) as store:
            for run in store.runs():
                for entry in store.entries(run.id, "layer"):
                    found[f"{path.name} {entry.key}"] = entry.document
    return found


def stores(folder: Path, slot: NodeSlot) -> Iterator[Path]:
    """Yield the stores of a slot's visits; its worker names it by the host and its cores."""
    for path in folder.glob("pydlbench-fleet-*/*/*.sqlite"):
        if re.search(rf"_{slot.cpus[0]}-[0-9a-f]{{6}}\.\d+\.sqlite$", path.name):
            yield path


def documents(path: Path) -> dict[tuple[str, int], Mapping[str, Any]]:
    """Return the stored visits of the fleet's run."""
    with Store.open(path, readonly=True) as store:
        (run,) = (one for one in store.runs() if one.kind == "fleet")
        found = [one.document for one in store.entries(run.id, TABLE)]
    return {(one["node"], one["round"]): one for one in found}


SAID = {
    "clean": "as measured: nothing",
    "planted": "5 % planted in one slot: it and nothing else",
    "told": "planted what would be found in 99 of 100: it and nothing else",
}
PROOFS = {"slow": slow, "overhead": overhead, "kills": kills}


# -----------------------------------------------------------------------------


def report(journal: Journal, times: Mapping[str, int]) -> int:
    """Print the results; return 1 if one is wrong, or if there are fewer than these times."""
    wrong = 0
    for what, number in times.items():
        there = len(journal.entries(f"{what} "))
        if there < number:
            print(f"- {what}: {there} of {number} are there")
            wrong += 1
    fleets = list(journal.entries("slow ").values())
    seconds = statistics.median(one["seconds"] for one in fleets) if fleets else 0.0
    for what, said in SAID.items() if fleets else ():
        found = [one[what] for one in fleets]
        meant = [[] if what == "clean" else [one["victim"]] for one in fleets]
        right = sum(one["slow"] == names for one, names in zip(found, meant, strict=True))
        wrong += what != "planted" and right != len(found)
        effects = [100 * one["effect"] for one in found]
        found_from = statistics.median(100 * one["found_from"] for one in found)
        print(
            f"- {said} SLOW in {right} of {len(found)} fleets; effect {min(effects):+.1f} .. "
            f"{max(effects):+.1f} %, would be found from {found_from:.1f} % (median), "
            f"{seconds:.0f} s each"
        )
    pairs = [one["ratios"] for one in journal.entries("overhead ").values()]
    for name in pairs[0] if len(pairs) > 1 else ():
        logs = [math.log(one[name]) for one in pairs]
        mean, se = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
        # All rows together shall hold 1 in 95 of 100 such reports (Bonferroni).
        reach = quantile(1 - 0.05 / len(pairs[0]), len(logs) - 1) * se
        low, middle, high = (math.exp(mean + part) for part in (-reach, 0, reach))
        wrong += not low <= 1 <= high
        print(
            f"- with the engine over without, {name}: {middle:.4f} "
            f"(95 % for all rows together {low:.4f} .. {high:.4f}, {len(logs)} pairs)"
        )
    for one in journal.entries("kills ").values():
        wrong += bool(one["rows_lost"] or one["visits_lost"] or one["whole"] != one["visits"])
        print(
            f"- kill -9 of a worker, then of the scheduler: {one['rows_lost']} of "
            f"{one['rows_before']} finished rows lost, {one['visits_lost']} of "
            f"{one['visits_before']} visits; resumed, {one['whole']} of {one['visits']} are whole"
        )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
