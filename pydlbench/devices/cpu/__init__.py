"""The CPU: facts from the kernel's files, which cores to use, what they could reach."""
