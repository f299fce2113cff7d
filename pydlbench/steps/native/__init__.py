"""A step of native kernels: listed from the graph, run as one chain in C++."""
