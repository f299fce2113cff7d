// The kinds of layers on GPUs: their plans, and the references for their results, by name and
// fields.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/fields.hpp"
#include "core/problem.hpp"
#include "cuda/mode.hpp"
#include "cuda/plan.hpp"
#include "cuda/reference/reference.hpp"

namespace pydlbench::cuda {

class Device;

// Options of a search for plans; each kind of layer uses those that apply to it.
struct Search {
  std::string layout;
  std::size_t workspace_limit;
  bool fused, sweep;
  std::optional<std::string> device_properties;
};

// All plans of a layer, in the library's order. Without a device, plans of a convolution for the
// GPU that `device_properties` describes. Throws Unsupported if there is no plan, and for kinds
// without kernels on a GPU.
std::vector<std::shared_ptr<Plan>> plans_of(const Device* device, const Fields& fields, Pass pass,
                                            Mode mode, const Search& search);

// The float64 reference on the device; null if only the host has one.
std::shared_ptr<Reference> reference_of(const Fields& fields, Pass pass, bool fused);

}  // namespace pydlbench::cuda
