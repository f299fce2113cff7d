#include "cuda/runtime/ranges.hpp"

#include <nvtx3/nvToolsExt.h>

namespace pydlbench::cuda {

namespace {

nvtxDomainHandle_t domain() {
  static auto* const handle = nvtxDomainCreateA("pydlbench");
  return handle;
}

}  // namespace

void push_range(const std::string& name) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name.c_str();
  static_cast<void>(nvtxDomainRangePushEx(domain(), &attributes));
}

void pop_range() { static_cast<void>(nvtxDomainRangePop(domain())); }

}  // namespace pydlbench::cuda
