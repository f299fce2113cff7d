// The version that rows of our own kernels name; CMake passes it, tests without CMake get 0.
#pragma once

#ifndef PYDLBENCH_VERSION
#define PYDLBENCH_VERSION "0"
#endif
