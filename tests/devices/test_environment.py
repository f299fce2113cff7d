import json
import platform

from pydlbench.devices.environment import read_environment


def test_only_variables_that_libraries_read_are_kept():
    variables = {
        "OMP_NUM_THREADS": "2",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        "DNNL_VERBOSE": "1",
        "HOME": "/home/someone",
        "API_TOKEN": "secret",
    }
    found = read_environment({**variables, "TF_XLA_FLAGS": "1"}, prefixes=["TF_"])["variables"]
    assert found.pop("TF_XLA_FLAGS") == "1"
    assert found == read_environment(variables)["variables"]
    assert found == {
        "DNNL_VERBOSE": "1",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        "OMP_NUM_THREADS": "2",
    }


def test_the_record_is_json_and_names_this_python():
    found = json.loads(json.dumps(read_environment()))
    assert found["python"] == platform.python_version()
    assert found["kernel"].startswith(platform.system())
    assert "numpy" in found["packages"]


def test_settings_of_the_system_that_move_times_are_recorded(tmp_path, tree):
    assert read_environment(root=tmp_path)["settings"] == {}
    files = {
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "proc/sys/kernel/randomize_va_space": "2",
        "proc/cpuinfo": "processor\t: 0\nmicrocode\t: 0xa101144\n\nprocessor\t: 1",
        "sys/devices/system/cpu/vulnerabilities/spectre_v2": "Mitigation: Retpolines",
        "sys/devices/system/cpu/vulnerabilities/meltdown": "Not affected",
    }
    assert read_environment(root=tree(files))["settings"] == {
        "huge pages": "madvise",
        "address randomisation": "2",
        "microcode": "0xa101144",
        "mitigations": "spectre_v2",
    }
