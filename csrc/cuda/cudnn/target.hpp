// The GPU that plans are made for: one of this machine, or one described by its serialised
// properties. The latter needs no driver; its plans can be listed and built, but not run.
#pragma once

#include <memory>
#include <string>

#include "cuda/cudnn/descriptor.hpp"
#include "cuda/cudnn/library.hpp"

namespace pydlbench::cuda::cudnn {

class Target {
 public:
  static Target of(const Device& device);
  // `json` is from device_properties(). Throws Unsupported before cuDNN 9.8.
  static Target of_properties(const std::string& json);

  // Major x 10 + minor.
  int capability() const { return capability_; }
  // Null if plans cannot be run.
  Handle* handle() const { return handle_.get(); }

  // Sets the GPU in a descriptor; each kind has its own attribute.
  void tell_graph(Descriptor& graph) const;
  void tell_heuristics(Descriptor& heuristics) const;
  void tell_engine(Descriptor& engine) const;
  void tell_plan(Descriptor& plan) const;

 private:
  std::shared_ptr<Handle> handle_;
  std::shared_ptr<const Descriptor> properties_;
  int capability_ = 0;
};

// The GPU's properties as cuDNN serialises them, for Target::of_properties().
std::string device_properties(const Device& device);

}  // namespace pydlbench::cuda::cudnn
