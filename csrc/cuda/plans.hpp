// The kinds of layers that can be computed on a GPU: from a kind's name and fields to its plans,
// and to the reference that their results are held against.
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

// Every way to compute a layer, in its library's order. Without a device, plans of a convolution
// for the GPU that `device_properties` describes. Throws Unsupported where there is no plan, and
// for kinds that have no kernel on a GPU.
std::vector<std::shared_ptr<Plan>> plans_of(const Device* device, const Fields& fields, Pass pass,
                                            Mode mode, const Search& search);

// What computes the exact result on the device; null where only the host can.
std::shared_ptr<Reference> reference_of(const Fields& fields, Pass pass, bool fused);

}  // namespace pydlbench::cuda
