"""What a captured graph launches, asked of an invented driver: no GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

_CSRC = Path(__file__).parents[2] / "csrc"
_SOURCE = r"""
#include <cstdio>
#include <cstring>
#include <string>

#include "core/error.hpp"
#include "cuda/runtime/graph_kernels.hpp"

namespace {

// Handles are small numbers: the graph 1 has a kernel by its function, a copy, one by its kernel
// handle, and the graph 2, which has a kernel.
int refuses = 0;

template <typename Handle>
std::size_t number(Handle handle) { return reinterpret_cast<std::size_t>(handle); }

template <typename Handle>
Handle handle(std::size_t value) { return reinterpret_cast<Handle>(value); }

CUresult nodes(CUgraph graph, CUgraphNode* found, std::size_t* count) {
  const std::size_t first = number(graph) == 1 ? 10 : 20;
  *count = number(graph) == 1 ? 4 : 1;
  for (std::size_t i = 0; found != nullptr && i < *count; ++i) {
    found[i] = handle<CUgraphNode>(first + i);
  }
  return CUDA_SUCCESS;
}
CUresult type(CUgraphNode node, CUgraphNodeType* found) {
  *found = number(node) == 11   ? CU_GRAPH_NODE_TYPE_MEMCPY
           : number(node) == 13 ? CU_GRAPH_NODE_TYPE_GRAPH
                                : CU_GRAPH_NODE_TYPE_KERNEL;
  return CUDA_SUCCESS;
}
CUresult parameters(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* found) {
  const auto id = static_cast<unsigned>(number(node));
  found->gridDimX = id, found->gridDimY = 2, found->gridDimZ = 3;
  found->blockDimX = 128, found->blockDimY = found->blockDimZ = 1;
  found->sharedMemBytes = 1000;
  if (id == 12) found->kern = handle<CUkernel>(12); else found->func = handle<CUfunction>(id);
  return CUDA_SUCCESS;
}
CUresult child(CUgraphNode, CUgraph* found) { return *found = handle<CUgraph>(2), CUDA_SUCCESS; }
CUresult function(CUfunction* found, CUkernel kernel) {
  return *found = handle<CUfunction>(number(kernel)), CUDA_SUCCESS;
}
CUresult name(const char** found, CUfunction which) {
  *found = number(which) == 10 ? "_Z4reluPf" : number(which) == 12 ? "sm90_xmma_gemm" : "inner";
  return refuses ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}
CUresult attribute(int* found, CUfunction_attribute which, CUfunction) {
  return *found = which == CU_FUNC_ATTRIBUTE_NUM_REGS ? 168 : 24, CUDA_SUCCESS;
}

}  // namespace

extern "C" const char* tell(int refusing) {
  static std::string said;
  said.clear();
  refuses = refusing;
  const pydlbench::cuda::GraphDriver driver{nodes,    type, parameters, child,
                                            function, name, attribute};
  try {
    for (const auto& one : pydlbench::cuda::graph_kernels(driver, handle<CUgraph>(1))) {
      for (const auto side : one.grid) said += std::to_string(side) + " ";
      for (const auto side : one.block) said += std::to_string(side) + " ";
      said += std::to_string(one.shared_bytes) + " " + std::to_string(one.registers) + " ";
      said += one.name + "\n";
    }
  } catch (const pydlbench::PrimitiveFailure& error) {
    said = error.what();
  }
  return said.c_str();
}
"""


@pytest.fixture(scope="module")
def tell(tmp_path_factory):
    """What the invented driver's graph launches, as a text."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("nvcc is not on the path")
    folder = tmp_path_factory.mktemp("graph_kernels")
    (folder / "driver.cpp").write_text(_SOURCE)
    target = folder / "driver.so"
    sources = [folder / "driver.cpp", _CSRC / "cuda/runtime/graph_kernels.cpp"]
    command = [nvcc, "-std=c++17", "-shared", "-Xcompiler=-fPIC", "-I", _CSRC, "-o", target]
    built = subprocess.run([*command, *sources], capture_output=True, text=True, check=False)
    if built.returncode != 0:
        pytest.fail(built.stderr, pytrace=False)
    library = ctypes.CDLL(str(target))
    library.tell.restype = ctypes.c_char_p
    return lambda refusing: library.tell(refusing).decode()


# What cuda.h of CUDA 12.0 has of the driver's graphs: no cuFuncGetName.
_EARLY_HEADER = """
#pragma once
typedef int CUresult;
typedef struct CUgraph_st* CUgraph;
typedef struct CUgraphNode_st* CUgraphNode;
typedef struct CUfunc_st* CUfunction;
typedef struct CUkern_st* CUkernel;
enum CUgraphNodeType { CU_GRAPH_NODE_TYPE_KERNEL };
enum CUfunction_attribute { CU_FUNC_ATTRIBUTE_NUM_REGS };
struct CUDA_KERNEL_NODE_PARAMS { CUfunction func; CUkernel kern; };
CUresult cuGraphGetNodes(CUgraph, CUgraphNode*, unsigned long*);
CUresult cuGraphNodeGetType(CUgraphNode, CUgraphNodeType*);
CUresult cuGraphKernelNodeGetParams(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*);
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode, CUgraph*);
CUresult cuKernelGetFunction(CUfunction*, CUkernel);
CUresult cuFuncGetAttribute(int*, CUfunction_attribute, CUfunction);
"""


def test_the_header_of_cuda_12_0_suffices(tmp_path):
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    (tmp_path / "cuda.h").write_text(_EARLY_HEADER)
    source = tmp_path / "graph.cpp"
    source.write_text('#include "cuda/runtime/graph_kernels.hpp"\n')
    command = [compiler, "-std=c++17", "-fsyntax-only", "-I", tmp_path, "-I", _CSRC, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_kernels_are_told_with_name_shape_and_registers(tell):
    assert tell(0).splitlines() == [
        "10 2 3 128 1 1 1024 168 relu(float*)",
        "12 2 3 128 1 1 1024 168 sm90_xmma_gemm",
        "20 2 3 128 1 1 1024 168 inner",
    ]


def test_a_driver_that_refuses_is_named(tell):
    assert tell(1).startswith("cuFuncGetName: CUresult 801")
