from __future__ import annotations

import os
import subprocess
import sys
import time

from pydlbench.backends import host_clock


def test_others_on_the_cpus_are_told_from_this_process():
    cpus = sorted(os.sched_getaffinity(0))[:1]
    spin = "import os, sys, time\nos.sched_setaffinity(0, [int(sys.argv[1])])\nwhile True: pass\n"
    process = subprocess.Popen([sys.executable, "-c", spin, str(cpus[0])])
    try:
        time.sleep(0.2)  # it is up
        others = host_clock.OthersTime(cpus)
        time.sleep(0.5)
        beside = others.seconds()
    finally:
        process.kill()
        process.wait()
    own = host_clock.OthersTime(cpus)
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    alone = own.seconds()
    assert beside is None or beside > 0.1
    assert (beside is None) == (alone is None)
