"""CPU time and memory that a control group leaves."""

from pydlbench.devices.cpu.limits import read_affinity, read_cpu_limit, read_memory_limit

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


def test_memory_of_version_2_is_what_the_tightest_group_has_left(tree):
    root = tree(
        {
            "proc/self/cgroup": "0::/a/b",
            f"{TOP}/a/memory.max": "5000",
            f"{TOP}/a/memory.current": "4400",
            f"{TOP}/a/b/memory.max": "2000",
            f"{TOP}/a/b/memory.current": "1000",
        }
    )
    assert read_memory_limit(root) == 600


def test_memory_of_version_2_without_a_limit(tree):
    files = {"proc/self/cgroup": "0::/", f"{TOP}/memory.max": "max", f"{TOP}/memory.current": "9"}
    assert read_memory_limit(tree(files)) is None


def test_page_cache_that_nobody_uses_is_free(tree):
    root = tree(
        {
            "proc/self/cgroup": "0::/",
            f"{TOP}/memory.max": "5000",
            f"{TOP}/memory.current": "4900",
            f"{TOP}/memory.stat": "anon 900\ninactive_file 3000\nactive_file 1000",
        }
    )
    assert read_memory_limit(root) == 3100


def test_a_group_over_its_limit_has_nothing_left(tree):
    files = {"proc/self/cgroup": "0::/", f"{TOP}/memory.max": "5", f"{TOP}/memory.current": "9"}
    assert read_memory_limit(tree(files)) == 0


def test_memory_of_version_1(tree):
    root = tree(
        {
            "proc/self/cgroup": "3:memory:/m\n2:cpu,cpuacct:/docker/1",
            f"{TOP}/memory/memory.limit_in_bytes": "9223372036854771712",
            f"{TOP}/memory/memory.usage_in_bytes": "77",
            f"{TOP}/memory/m/memory.limit_in_bytes": "3000",
            f"{TOP}/memory/m/memory.usage_in_bytes": "1000",
            f"{TOP}/memory/m/memory.stat": "inactive_file 7\ntotal_inactive_file 400",
        }
    )
    assert read_memory_limit(root) == 2400


def test_memory_of_version_1_without_a_limit(tree):
    name = f"{TOP}/memory/memory.limit_in_bytes"
    root = tree({"proc/self/cgroup": "3:memory:/", name: "9223372036854771712"})
    assert read_memory_limit(root) is None


def test_no_control_group_limits_no_memory(tmp_path):
    assert read_memory_limit(tmp_path) is None
