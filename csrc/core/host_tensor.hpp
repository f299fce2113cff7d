// The caller's tensors.
#pragma once

#include <cstddef>
#include <memory>

namespace pydlbench {

// A dense float32 array of the caller; `owner` keeps it alive.
struct HostTensor {
  const float* data;
  std::size_t elements;
  std::shared_ptr<void> owner;
};

}  // namespace pydlbench
