"""How kernels are timed: requests, chunks, warm-up, stopping, contention, statistics.

Pure: everything here is fed with numbers; nothing reads a clock or a counter.
"""
