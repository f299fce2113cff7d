"""Every layer that Numba has a kernel for, pass by pass."""

import importlib.util

import problems
import pytest

# They import Numba at their top.
collect_ignore = (
    [] if importlib.util.find_spec("numba") else ["test_kernels.py", "test_cpu_backend.py"]
)

# Numba compiles a kernel for each, for seconds: these are of every kind and every pass.
_DEFAULT = {
    ("groups, dilation", "backward-weights"),
    ("batched product, several blocks", "backward-data"),
    ("max", "forward"),
}
_NAMES = [name for name, layer in problems.LAYERS.items() if not getattr(layer, "broadcast", False)]


@pytest.fixture(
    params=[
        pytest.param(one.values, marks=one.marks) for one in problems.each_pass(_DEFAULT, _NAMES)
    ]
)
def problem(request):
    """Return each layer with each of its passes."""
    name, pass_ = request.param
    return problems.LAYERS[name], pass_
