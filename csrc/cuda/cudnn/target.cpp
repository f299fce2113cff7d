#include "cuda/cudnn/target.hpp"

#include <cstdlib>

#include "core/error.hpp"
#include "cuda/cudnn/library.hpp"

namespace pydlbench::cuda::cudnn {
namespace {

#if CUDNN_VERSION < 90800
[[noreturn]] void too_old() {
  throw Unsupported("device properties need cuDNN 9.8; this build has the headers of an older one");
}
#endif

// "deviceVer": 900 is compute capability 9.0.
int capability_of(const std::string& json) {
  const std::string key = "\"deviceVer\":";
  const auto at = json.find(key);
  PYDLBENCH_CHECK(at != std::string::npos, "device properties without deviceVer");
  return std::atoi(json.c_str() + at + key.size()) / 10;
}

}  // namespace

Target Target::of(const Device& device) {
  device.make_current();
  Target target;
  target.handle_ = handle_of(device);
  target.capability_ = device.facts().capability();
  return target;
}

Target Target::of_properties(const std::string& json) {
#if CUDNN_VERSION < 90800
  (void)json;
  too_old();
#else
  Descriptor properties(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, "cuDNN device properties");
  properties.set_text(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, json);
  properties.finalize();
  Target target;
  target.properties_ = std::make_shared<const Descriptor>(std::move(properties));
  target.capability_ = capability_of(json);
  return target;
#endif
}

void Target::tell_graph(Descriptor& graph) const {
  if (handle_) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle_->get());
}

void Target::tell_heuristics(Descriptor& heuristics) const {
#if CUDNN_VERSION >= 90800
  if (properties_) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *properties_);
#else
  (void)heuristics;
#endif
}

void Target::tell_engine(Descriptor& engine) const {
#if CUDNN_VERSION >= 90800
  if (properties_) engine.set(CUDNN_ATTR_ENGINE_DEVICEPROP, *properties_);
#else
  (void)engine;
#endif
}

void Target::tell_plan(Descriptor& plan) const {
  if (handle_) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle_->get());
#if CUDNN_VERSION >= 90800
  if (properties_) plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *properties_);
#endif
}

std::string device_properties(const Device& device) {
#if CUDNN_VERSION < 90800
  (void)device;
  too_old();
#else
  device.make_current();
  const std::int32_t index = device.facts().index;
  Descriptor properties(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, "cuDNN device properties");
  properties.set_raw(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &index);
  properties.finalize();
  return properties.text(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
#endif
}

}  // namespace pydlbench::cuda::cudnn
