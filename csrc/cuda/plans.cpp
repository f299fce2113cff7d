#include "cuda/plans.hpp"

#include <stdexcept>

#include "core/error.hpp"
#include "cuda/cublaslt/plans.hpp"
#include "cuda/cudnn/attention.hpp"
#include "cuda/cudnn/plans.hpp"
#include "cuda/cudnn/target.hpp"
#include "cuda/plain.hpp"
#include "cuda/pointwise/plans.hpp"
#include "cuda/pooling/plans.hpp"
#include "cuda/runtime/device.hpp"

namespace pydlbench::cuda {

namespace {

cudnn::Target target_of(const Device* device, const std::optional<std::string>& properties) {
  if (device != nullptr) return cudnn::Target::of(*device);
  if (properties) return cudnn::Target::of_properties(*properties);
  throw std::invalid_argument("neither a device nor device_properties");
}

const Device& required(const Device* device) {
  if (device == nullptr) throw std::invalid_argument("only convolutions have plans for no device");
  return *device;
}

PoolProblem dense(const PoolProblem& given) {
  const auto problem = plain(given);
  if (problem.sides > 2) {
    throw Unsupported("pooling of images of three sides has no native kernel for GPUs");
  }
  if (problem.dilation[0] != 1 || problem.dilation[1] != 1) {
    throw Unsupported("dilated pooling has no native kernel for GPUs");
  }
  return problem;
}

// A kind of layer; without a reference on the device, the host's is used.
struct Kind {
  const char* op;
  std::vector<std::shared_ptr<Plan>> (*plans)(const Device*, const Fields&, Pass, Mode,
                                              const Search&);
  std::shared_ptr<Reference> (*reference)(const Fields&, Pass, bool fused);
};

const Kind kKinds[] = {
    {"conv",
     [](const Device* device, const Fields& fields, Pass pass, Mode mode, const Search& search) {
       return cudnn::convolution_plans(
           target_of(device, search.device_properties), plain(problem_of<ConvProblem>(fields)),
           pass, mode, {search.layout, search.workspace_limit, search.fused, search.sweep});
     },
     [](const Fields& fields, Pass pass, bool fused) {
       const auto problem = plain(problem_of<ConvProblem>(fields));
       return problem.sides > 2 ? nullptr : conv2d_reference(pass, problem, fused);
     }},
    {"gemm",
     [](const Device* device, const Fields& fields, Pass pass, Mode mode, const Search& search) {
       return gemm_plans(required(device), plain(problem_of<GemmProblem>(fields)), pass, mode,
                         search.workspace_limit, search.fused);
     },
     [](const Fields& fields, Pass pass, bool fused) {
       return gemm_reference(pass, plain(problem_of<GemmProblem>(fields)), fused);
     }},
    {"pool",
     [](const Device* device, const Fields& fields, Pass pass, Mode mode, const Search& search) {
       return pool2d_plans(required(device), dense(problem_of<PoolProblem>(fields)), pass, mode,
                           search.layout);
     },
     [](const Fields& fields, Pass pass, bool) {
       return pool2d_reference(pass, dense(problem_of<PoolProblem>(fields)));
     }},
    {"attention",
     [](const Device* device, const Fields& fields, Pass pass, Mode mode, const Search& search) {
       return cudnn::attention_plans(target_of(device, search.device_properties),
                                     problem_of<AttentionProblem>(fields), pass, mode,
                                     search.workspace_limit);
     },
     nullptr},
    {"pointwise",
     [](const Device* device, const Fields& fields, Pass pass, Mode mode, const Search& search) {
       const auto& facts = required(device).facts();
       return pointwise_plans(
           problem_of<PointwiseProblem>(fields), pass, mode, search.layout,
           {facts.capability(), facts.multiprocessors, facts.threads_per_multiprocessor});
     },
     nullptr},
};

const Kind& kind_of(const Fields& fields) {
  for (const Kind& kind : kKinds) {
    if (fields.op() == kind.op) return kind;
  }
  throw Unsupported(fields.kind() + ": there is no native kernel for GPUs");
}

}  // namespace

std::vector<std::shared_ptr<Plan>> plans_of(const Device* device, const Fields& fields, Pass pass,
                                            Mode mode, const Search& search) {
  return kind_of(fields).plans(device, fields, pass, mode, search);
}

std::shared_ptr<Reference> reference_of(const Fields& fields, Pass pass, bool fused) {
  const auto make = kind_of(fields).reference;
  return make == nullptr ? nullptr : make(fields, pass, fused);
}

}  // namespace pydlbench::cuda
