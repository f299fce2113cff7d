"""What runs on a node: locks, sweeps that are gone on with, and what a node can have wrong."""

import json
import os
import subprocess
import sys
import time

import pytest
from invented_fleet import FILE, PROGRAM, VARIABLE, write_store

from pydlbench.errors import WorkerError
from pydlbench.fleet import node
from pydlbench.fleet.node import NodeSlot, Order, exclusive, look, store_name, visit
from pydlbench.store.store import Store


@pytest.fixture(autouse=True)
def _locks(tmp_path, monkeypatch):
    """No test waits for the locks of another one, or knows of an engine that has ended."""
    node.allow()
    locks = tmp_path / "locks"
    locks.mkdir()
    monkeypatch.setattr(node, "LOCKS", locks)


@pytest.fixture
def slot():
    return NodeSlot(name="one", cpus=(min(os.sched_getaffinity(0)),))


def order(path, **changes):
    values = {"fleet": "f", "round": 0, "text": FILE, "folder": str(path), "program": PROGRAM}
    return Order(**{**values, **changes})


def rows(path):
    with Store.open(path, readonly=True) as store:
        (info,) = store.runs()
        return info.status, [entry.document["layer"] for entry in store.entries(info.id)]


def test_a_slot_is_held_by_one_at_a_time(slot):
    other = NodeSlot(name="two", cpus=(*slot.cpus, 4000))
    with (
        exclusive(slot, 0),
        pytest.raises(WorkerError, match=r"two runs"),
        exclusive(other, 0),
    ):
        pass
    with exclusive(other, 0):
        pass


def test_what_another_user_puts_in_place_of_a_lock_or_folder_is_refused(
    slot, tmp_path, monkeypatch
):
    lock = node.LOCKS / slot.locks()[0]
    os.mkfifo(lock)  # opening it would wait for a writer
    with exclusive(slot, 0):
        pass
    lock.unlink()
    lock.symlink_to(__file__)
    with pytest.raises(OSError, match="symbolic links"), exclusive(slot, 0):
        pass
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own = tmp_path / f"pydlbench-fleet-{os.getuid()}"
    for make in (lambda: own.symlink_to(node.LOCKS), lambda: own.mkdir() or own.chmod(0o777)):
        make()
        assert "others may write" in visit(slot, order(tmp_path, folder=None)).reason
        own.unlink() if own.is_symlink() else own.rmdir()


def test_two_slots_that_share_nothing_do_not_wait(slot):
    with exclusive(slot, 0), exclusive(NodeSlot(name="two", cpus=(4000,), gpu="GPU-1"), 0):
        pass


def test_each_of_a_slot_s_gpus_is_held(slot):
    two = NodeSlot(name="two", cpus=slot.cpus, gpu="GPU-1,GPU-2")
    with (
        exclusive(two, 0),
        pytest.raises(WorkerError),
        exclusive(NodeSlot(name="x", gpu="GPU-2"), 0),
    ):
        pass


CARDS = {"GPU-aa11": "A", "GPU-bb22": "A", "GPU-bc33": "B"}


@pytest.mark.parametrize(
    ("cards", "order", "named", "held"),
    [
        (["GPU-aa11", "GPU-bb22"], "", "0", ["GPU-aa11"]),
        (["GPU-aa11", "GPU-bb22"], "", "GPU-aa", ["GPU-aa11"]),
        (["GPU-aa11", "GPU-bb22"], "", "1,GPU-bb22", ["GPU-bb22"]),
        (["GPU-aa11", "GPU-bc33"], "", "0", ["0"]),  # whichever is faster
        (["GPU-aa11", "GPU-bc33"], "PCI_BUS_ID", "1", ["GPU-bc33"]),
        (["GPU-aa11"], "", "7", ["7"]),
        (["GPU-aa11"], "", "MIG-1", ["MIG-1"]),
        ([], "", "0", ["0"]),
    ],
)
def test_a_card_has_one_lock_whatever_it_is_called(
    tmp_path, monkeypatch, cards, order, named, held
):
    program = tmp_path / "nvidia-smi"
    listed = "\n".join(f"{uuid}, {CARDS[uuid]}" for uuid in cards)
    does = f"cat <<END\n{listed}\nEND" if cards else "exit 9"
    program.write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
    assert NodeSlot(name="x", gpu=named).locks() == [f"pydlbench-{one}.lock" for one in held]


def test_a_driver_that_hangs_holds_up_no_visit(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(node, "_LIST_TIMEOUT_S", 0.1)
    assert NodeSlot(name="x", gpu="0").locks() == ["pydlbench-0.lock"]


def test_a_lock_can_be_asked_for_by_other_users_whatever_the_umask_is(slot):
    before = os.umask(0o077)
    try:
        with exclusive(slot, 0):
            (file,) = node.LOCKS.iterdir()
            assert file.stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_the_lock_lives_as_long_as_the_sweep_whoever_dies(slot):
    """A sweep has the descriptors too: its parent may be killed."""
    with exclusive(slot, 0) as held:
        process = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=held
        )
    with pytest.raises(WorkerError), exclusive(slot, 0):
        pass
    process.communicate(b"\n")
    with exclusive(slot, 0):
        pass


_VISITOR = """
import sys
from pathlib import Path
from pydlbench.fleet import node
node.LOCKS = Path(sys.argv[1])
endless = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
program = (sys.executable, "-c", endless, sys.argv[2] + "/begun")
slot = node.NodeSlot(name="one", cpus=(int(sys.argv[3]),))
node.visit(slot, node.Order(fleet="f", round=0, text="", folder=sys.argv[2], program=program))
"""


def test_a_sweep_ends_with_its_visit(tmp_path, slot):
    """A worker that is killed leaves nobody behind who holds the slot."""
    words = [sys.executable, "-c", _VISITOR, str(node.LOCKS), str(tmp_path), str(slot.cpus[0])]
    visitor = subprocess.Popen(words)
    end = time.monotonic() + 120
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    with pytest.raises(WorkerError), exclusive(slot, 0):
        pass
    visitor.kill()
    visitor.wait()
    with exclusive(slot, 120):
        pass


_FULL = """
import json, resource, sys
from pathlib import Path
from pydlbench.fleet import node
node.LOCKS = Path(sys.argv[1])
most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, most))
slot = node.NodeSlot(name="one", cpus=(int(sys.argv[3]),))
order = node.Order(
    fleet="f", round=0, text=sys.argv[4], folder=sys.argv[2], program=json.loads(sys.argv[5])
)
print(node.visit(slot, order).reason)
"""


@pytest.mark.deep
def test_a_disk_that_is_full_is_a_reason_and_nothing_is_lost_by_it(tmp_path, slot):
    """As far as a limit of files' sizes is a full disk: what is written fails in the same place."""
    words = [str(node.LOCKS), str(tmp_path), str(slot.cpus[0]), FILE, json.dumps(PROGRAM)]
    done = subprocess.run(
        [sys.executable, "-c", _FULL, *words], capture_output=True, text=True, check=False
    )
    reason = done.stdout.strip()
    assert reason not in ("", "None"), done.stderr
    assert "Traceback" not in done.stderr
    assert visit(slot, order(tmp_path)).reason is None
    assert rows(tmp_path / store_name("one", 0))[0] == "done"


def test_a_visit_that_is_late_for_the_end_begins_no_sweep(tmp_path, slot):
    """Nobody would end it: the engine in this process is gone."""
    node.end_all()
    try:
        assert visit(slot, order(tmp_path)).reason == "the run was ended"
        with exclusive(slot, 0):
            assert visit(slot, order(tmp_path)).reason == "the run was ended"
    finally:
        node.allow()
    assert visit(slot, order(tmp_path)).reason is None


def test_a_visit_runs_the_sweep_on_its_cpus_and_says_what_came_of_it(tmp_path, slot):
    brought = visit(slot, order(tmp_path))
    assert brought.reason is None
    assert brought.data is None
    path = tmp_path / store_name("one", 0)
    assert rows(path) == ("done", ["alexnet/conv2", "alexnet/conv3"])
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == [path.name]


def test_a_visit_elsewhere_brings_its_store_as_bytes(tmp_path, slot, monkeypatch):
    monkeypatch.setattr(node.tempfile, "gettempdir", lambda: str(tmp_path))
    brought = visit(slot, order(tmp_path, folder=None))
    (tmp_path / "brought.sqlite").write_bytes(brought.data)
    assert rows(tmp_path / "brought.sqlite")[0] == "done"


def test_a_sweep_that_was_killed_is_gone_on_with(tmp_path, slot, monkeypatch):
    monkeypatch.setenv(VARIABLE, json.dumps({"kill": {"one": 1}}))
    first = visit(slot, order(tmp_path))
    assert first.reason == "the sweep was killed by signal 9"
    path = tmp_path / store_name("one", 0)
    assert rows(path) == ("killed", ["alexnet/conv2"])
    assert visit(slot, order(tmp_path)).reason is None
    assert rows(path) == ("done", ["alexnet/conv2", "alexnet/conv3"])


def test_what_is_done_is_not_run_again(tmp_path, slot):
    path = tmp_path / store_name("one", 0)
    write_store(path)
    assert visit(slot, order(tmp_path, program=("/nowhere",))).reason is None
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == [path.name]


@pytest.mark.deep
def test_a_run_that_another_machine_began_is_put_aside(tmp_path, slot):
    path = tmp_path / store_name("one", 0)
    write_store(path, status="interrupted")
    assert visit(slot, order(tmp_path)).reason is None
    assert rows(path)[0] == "done"
    (aside,) = tmp_path.glob("*.20300101-0000abcd.sqlite")
    assert rows(aside)[0] == "interrupted"


def test_a_damaged_store_is_put_aside(tmp_path, slot):
    path = tmp_path / store_name("one", 0)
    path.write_bytes(b"no store at all" * 100)
    assert visit(slot, order(tmp_path)).reason is None
    assert rows(path)[0] == "done"
    assert list(tmp_path.glob("*.damaged-*"))


@pytest.mark.parametrize(
    ("code", "refused"), [(2, True), (1, False)], ids=["bad input", "an error"]
)
def test_a_sweep_that_fails_says_why(tmp_path, slot, monkeypatch, code, refused):
    monkeypatch.setenv(VARIABLE, json.dumps({"code": {"one": code}}))
    brought = visit(slot, order(tmp_path))
    assert brought.reason == "an invented reason; nearest: another one"
    assert brought.refused is refused


def test_a_sweep_without_an_end_is_ended(tmp_path, slot):
    program = (sys.executable, "-c", "import time; time.sleep(60)")
    brought = visit(slot, order(tmp_path, program=program, limit_s=0.2))
    assert brought.reason == "no end within 0.2 s"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"folder": "/proc/nowhere"}, "No such file"),
        ({"program": ("/nowhere/pydlbench",)}, "No such file"),
    ],
)
def test_what_a_node_has_wrong_is_a_reason_and_no_traceback(tmp_path, slot, changes, reason):
    assert reason in visit(slot, order(tmp_path, **changes)).reason


def test_a_process_as_a_slot(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    monkeypatch.setattr(node.socket, "gethostname", lambda: "host")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 8})
    found = look()
    assert found == NodeSlot(name="host:GPU-1", cpus=(0, 1, 2, 8), gpu="GPU-1")
    assert found.prefix == "CUDA_VISIBLE_DEVICES=GPU-1 taskset -c 0-2,8 "
    assert look("named").name == "named"


def test_no_two_nodes_have_the_same_file():
    names = ["a:b", "a_b", "a/b", "a b", "ä" * 300]
    assert len({store_name(name, 0) for name in names}) == len(names)
    assert all("/" not in store_name(name, 0) for name in names)
