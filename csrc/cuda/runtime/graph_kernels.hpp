// Which kernels a captured graph consists of: what a library really launches, by the driver's word.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace pydlbench::cuda {

struct GraphKernel {
  std::string name;  // demangled
  std::array<unsigned, 3> grid, block;
  std::size_t shared_bytes;  // of a block: static and dynamic
  int registers;             // of a thread
};

// The driver's functions that know. Nothing is linked to the driver: see graph_driver().
struct GraphDriver {
  decltype(&cuGraphGetNodes) nodes;
  decltype(&cuGraphNodeGetType) type;
  decltype(&cuGraphKernelNodeGetParams) parameters;
  decltype(&cuGraphChildGraphNodeGetGraph) child;
  decltype(&cuKernelGetFunction) function;
  decltype(&cuFuncGetName) name;
  decltype(&cuFuncGetAttribute) attribute;
};

// Those of the driver that is there; null where it lacks one of them: drivers before CUDA 12.3.
const GraphDriver* graph_driver();

// The kernels in the order of the graph's nodes, those of graphs in it too; copies and fills are
// left out. Throws PrimitiveFailure where the driver refuses to tell.
std::vector<GraphKernel> graph_kernels(const GraphDriver& driver, CUgraph graph);

}  // namespace pydlbench::cuda
