from __future__ import annotations

from pydlbench.devices.cpu.limits import read_affinity, read_cpu_limit

TOP = "sys/fs/cgroup"


def test_no_control_group_is_no_limit(tmp_path):
    assert read_cpu_limit(tmp_path) is None


def test_version_2_takes_the_tightest_of_the_group_and_its_ancestors(tree):
    root = tree(
        {
            "proc/self/cgroup": "0::/a/b",
            f"{TOP}/cpu.max": "max 100000",
            f"{TOP}/a/cpu.max": "150000 100000",
            f"{TOP}/a/b/cpu.max": "400000 100000",
        }
    )
    assert read_cpu_limit(root) == 1.5


def test_version_2_without_a_quota(tree):
    root = tree({"proc/self/cgroup": "0::/", f"{TOP}/cpu.max": "max 100000"})
    assert read_cpu_limit(root) is None


def test_version_1(tree):
    root = tree(
        {
            "proc/self/cgroup": "3:memory:/m\n2:cpu,cpuacct:/docker/1",
            f"{TOP}/cpu,cpuacct/docker/1/cpu.cfs_quota_us": "250000",
            f"{TOP}/cpu,cpuacct/docker/1/cpu.cfs_period_us": "100000",
            f"{TOP}/cpu,cpuacct/cpu.cfs_quota_us": "-1",
            f"{TOP}/cpu,cpuacct/cpu.cfs_period_us": "100000",
        }
    )
    assert read_cpu_limit(root) == 2.5


def test_inside_a_container_the_mount_itself_counts(tree):
    root = tree({"proc/self/cgroup": "0::/../elsewhere", f"{TOP}/cpu.max": "200000 100000"})
    assert read_cpu_limit(root) == 2


def test_affinity_comes_from_the_status_file(tree):
    root = tree({"proc/self/status": "Cpus_allowed:\tf0\nCpus_allowed_list:\t4-7"})
    assert read_affinity(root) == (4, 5, 6, 7)
