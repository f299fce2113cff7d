import contextlib
import gc
import os
import subprocess
import sys
import time

import pytest

from pydlbench.backends import host_clock
from pydlbench.backends.host_clock import HostClock, HostCounters
from pydlbench.errors import UnsupportedError
from pydlbench.timing.chunk import ChunkRequest


def test_others_on_the_cpus_are_told_from_this_process():
    cpus = sorted(os.sched_getaffinity(0))[:1]
    spin = "import os, sys\nos.sched_setaffinity(0, [int(sys.argv[1])])\n"
    spin += "print(flush=True)\nwhile True: pass\n"
    process = subprocess.Popen([sys.executable, "-c", spin, str(cpus[0])], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()  # it is up
        with HostCounters(cpus) as beside:
            time.sleep(0.5)
    finally:
        process.kill()
        process.communicate()
    with HostCounters(cpus) as alone:
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
    taken, left = (one.chunk([0.1], faults=0).others_s for one in (beside, alone))
    assert taken is None or taken > 0.1
    assert (taken is None) == (left is None)


def test_a_graph_is_not_timed_by_the_hosts_clock():
    clock = HostClock(None, [0], contextlib.nullcontext)
    with pytest.raises(UnsupportedError, match="graph"):
        clock.sample(ChunkRequest(samples=1, timing="cuda-graph"))


def test_what_a_system_does_not_count_is_zero_or_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr(host_clock, "_STAT", tmp_path / "none")
    monkeypatch.setattr(host_clock, "_TASKS", tmp_path / "none")
    with HostCounters([0]) as account:
        pass
    chunk = account.chunk([0.1], faults=2)
    assert (chunk.others_s, chunk.steal_s, chunk.run_delay_s) == (None, 0, 0)
    assert (chunk.threads, chunk.faults) == (1, 2)


def test_ticks_of_the_used_cpus_only(monkeypatch, tmp_path):
    stat, ticks = tmp_path / "stat", os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr(host_clock, "_STAT", stat)

    def write(busy, stolen):
        line = f"{busy} 0 0 5 0 0 0 {stolen} 0 0"
        stat.write_text(f"cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 {line}\ncpu1 {line}\ncpu12 9\n")

    write(7, 3)
    with HostCounters([1, 3]) as account:
        write(7 + 4 * ticks, 3 + 2 * ticks)
    chunk = account.chunk([0.1], faults=0)
    assert chunk.steal_s == 2
    assert 3.9 < chunk.others_s <= 4  # what this process itself took is not the others'


def test_garbage_is_collected_after_the_samples_whatever_happens():
    def refuse():
        with HostCounters([0]):
            assert not gc.isenabled()
            raise ValueError("no")

    assert gc.isenabled()
    with pytest.raises(ValueError, match="no"):
        refuse()
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="Python 3.12 has sys.monitoring")
def test_code_of_a_worker_registers_no_hook_that_the_judge_would_call():
    code = (
        "import sys\n"
        "from pydlbench.backends.host_clock import refuse_monitoring\n"
        "monitoring = sys.monitoring\n"
        "refuse_monitoring()\n"
        "monitoring.use_tool_id(3, 'cheat')\n"
        "monitoring.set_events(3, monitoring.events.PY_START)\n"
        "monitoring.register_callback(3, monitoring.events.PY_START, None)\n"
        "print('unregistered')\n"
        "monitoring.register_callback(3, monitoring.events.PY_START, print)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "unregistered\n")
    assert "RefusedKernelError: its code registers a hook of sys.monitoring" in done.stderr
