from __future__ import annotations

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
