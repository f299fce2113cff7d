// A convolution as cuDNN's operation graph, with one layout, storage format and compute format.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cuda/cudnn/descriptor.hpp"
#include "cuda/cudnn/target.hpp"
#include "cuda/tensor.hpp"

namespace pydlbench::cuda::cudnn {

enum class Layout { nchw, nhwc };

struct Convolution {
  ConvProblem problem;
  Pass pass;
  Layout layout;
  Mode mode;
  DataType compute;  // of products and sums
  bool fused;        // forward with bias and ReLU
};

// src, weights, bias if fused, dst, in the order of pointers; the result is the only output.
std::vector<TensorSpec> convolution_tensors(const Convolution& convolution);

// "src nhwc, weights krsc, dst nhwc".
std::string layout_text(const Convolution& convolution);

// "convolution forward", "convolution + bias + ReLU forward", ...
std::string primitive_text(const Convolution& convolution);

struct OperationGraph {
  Descriptor graph;
  std::vector<Descriptor> parts;  // descriptors that the graph refers to
  std::vector<std::int64_t>
      names;  // identifiers of convolution_tensors(), in the order of the variant pack
};

// Throws Unsupported or PrimitiveFailure if cuDNN refuses the problem.
std::shared_ptr<const OperationGraph> operation_graph(const Convolution& convolution,
                                                      const Target& target);

}  // namespace pydlbench::cuda::cudnn
