"""What all frameworks share is imported in processes that have none of them."""

import json
import pkgutil
import subprocess
import sys

from pydlbench.backends import frameworks

FRAMEWORKS = ("torch", "tensorflow", "jax", "numba", "cupy", "onnxruntime")


def test_shared_modules_import_no_framework():
    names = [one.name for one in pkgutil.iter_modules(frameworks.__path__)]
    assert "verbose" in names
    modules = [f"{frameworks.__name__}.{name}" for name in names]
    modules += ["pydlbench.backends.host_clock", "pydlbench.backends.steps.timed_calls"]
    program = (
        "import importlib, json, sys\n"
        "for name in json.loads(sys.argv[1]): importlib.import_module(name)\n"
        "print(json.dumps(sorted(set(json.loads(sys.argv[2])) & set(sys.modules))))\n"
    )
    command = [sys.executable, "-c", program, json.dumps(modules), json.dumps(FRAMEWORKS)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == []
