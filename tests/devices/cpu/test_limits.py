"""CPU time and memory that a control group allows."""

import pytest

from pydlbench.devices.cpu.facts import read_affinity, read_cpu_limit, read_memory_limit

TOP = "sys/fs/cgroup"
ROOT_GROUP = {"proc/self/cgroup": "0::/"}
GROUP_B = {"proc/self/cgroup": "0::/a/b"}
VERSION_1 = {"proc/self/cgroup": "3:memory:/m\n2:cpu,cpuacct:/docker/1"}
UNLIMITED = "9223372036854771712"


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        (ROOT_GROUP | {f"{TOP}/cpu.max": "max 100000"}, None),
        # The tightest of the group and its ancestors.
        (
            GROUP_B
            | {
                f"{TOP}/cpu.max": "max 100000",
                f"{TOP}/a/cpu.max": "150000 100000",
                f"{TOP}/a/b/cpu.max": "400000 100000",
            },
            1.5,
        ),
        # Inside a container the mount itself counts.
        ({"proc/self/cgroup": "0::/../elsewhere", f"{TOP}/cpu.max": "200000 100000"}, 2),
        (
            VERSION_1
            | {
                f"{TOP}/cpu,cpuacct/docker/1/cpu.cfs_quota_us": "250000",
                f"{TOP}/cpu,cpuacct/docker/1/cpu.cfs_period_us": "100000",
                f"{TOP}/cpu,cpuacct/cpu.cfs_quota_us": "-1",
                f"{TOP}/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            2.5,
        ),
    ],
    ids=["no group", "no quota", "ancestors", "container", "version 1"],
)
def test_cpus(tree, files, limit):
    assert read_cpu_limit(tree(files)) == limit


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        (ROOT_GROUP | {f"{TOP}/memory.max": "max", f"{TOP}/memory.current": "9"}, None),
        (ROOT_GROUP | {f"{TOP}/memory.max": "5", f"{TOP}/memory.current": "9"}, 0),
        # Page cache that is not in use is free.
        (
            ROOT_GROUP
            | {
                f"{TOP}/memory.max": "5000",
                f"{TOP}/memory.current": "4900",
                f"{TOP}/memory.stat": "anon 900\ninactive_file 3000\nactive_file 1000",
            },
            3100,
        ),
        (
            GROUP_B
            | {
                f"{TOP}/a/memory.max": "5000",
                f"{TOP}/a/memory.current": "4400",
                f"{TOP}/a/b/memory.max": "2000",
                f"{TOP}/a/b/memory.current": "1000",
            },
            600,
        ),
        (
            VERSION_1
            | {
                f"{TOP}/memory/memory.limit_in_bytes": UNLIMITED,
                f"{TOP}/memory/memory.usage_in_bytes": "77",
                f"{TOP}/memory/m/memory.limit_in_bytes": "3000",
                f"{TOP}/memory/m/memory.usage_in_bytes": "1000",
                f"{TOP}/memory/m/memory.stat": "inactive_file 7\ntotal_inactive_file 400",
            },
            2400,
        ),
        (VERSION_1 | {f"{TOP}/memory/memory.limit_in_bytes": UNLIMITED}, None),
    ],
    ids=["no group", "no limit", "exceeded", "cache", "ancestors", "version 1", "unlimited"],
)
def test_memory(tree, files, limit):
    assert read_memory_limit(tree(files)) == limit


def test_affinity_comes_from_the_status_file(tree):
    root = tree({"proc/self/status": "Cpus_allowed:\tf0\nCpus_allowed_list:\t4-7"})
    assert read_affinity(root) == (4, 5, 6, 7)
