"""A backend of another package, whose modes are kernels: most of them cheat."""

from pydlbench.backends.capabilities import Capabilities

HONEST = ("numpy", "in_parts", "on_joined_threads", "by_an_input_with_strides")
CHEATS = (
    *("kept_by_pointer", "kept_by_value", "only_the_first_calls", "half_of_the_batch"),
    *("on_a_thread", "changes_its_input", "only_for_outputs", "returns_another_array"),
    *("replaces_operands", "own_samples", "own_clock", "clock_of_the_judge", "reads_late"),
    *("own_copies", "hook_at_its_import", "other_cpus", "own_transfers"),
)
#: Kernels whose results cannot be compared, and why not.
UNSUPPORTED = ("without_operands", "strides_of_the_result", "class_of_an_operand")

CAPABILITIES = Capabilities(
    name="planted",
    title="planted kernels",
    distributions=("numpy",),
    install="pip install numpy",
    requires="numpy",
    modes={"cpu": (*HONEST, *CHEATS, *UNSUPPORTED)},
    precisions={"cpu": ("fp32",)},
)
