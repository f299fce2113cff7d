#include "cuda/cudnn/library.hpp"

#include <map>
#include <mutex>

#include "core/error.hpp"
#include "cuda/libraries.hpp"
#include "cuda/runtime/check.hpp"

namespace pydlbench::cuda::cudnn {

namespace {

// The reason on one line: cuDNN's messages may span several.
std::string reason(cudnnStatus_t status) {
  char message[1024] = "";
  api().last_error_string(message, sizeof message);
  std::string text = api().error_string(status);
  if (message[0] != '\0') text += std::string(" (") + message + ")";
  for (auto& character : text) {
    if (character == '\n') character = ' ';
  }
  return text;
}

}  // namespace

cudnnDataType_t type_of(DataType type) {
  switch (type) {
    case DataType::float32:
      return CUDNN_DATA_FLOAT;
    case DataType::float16:
      return CUDNN_DATA_HALF;
    case DataType::bfloat16:
      return CUDNN_DATA_BFLOAT16;
    case DataType::int32:
      return CUDNN_DATA_INT32;
    case DataType::int8:
      return CUDNN_DATA_INT8;
    default:
      throw Unsupported("cuDNN in this storage format is not built");
  }
}

const Api& api() {
#define PYDLBENCH_LOOK_UP(member, name) reinterpret_cast<decltype(&name)>(cudnn_symbol(#name)),
  static const Api table{PYDLBENCH_CUDNN_FUNCTIONS(PYDLBENCH_LOOK_UP)};
#undef PYDLBENCH_LOOK_UP
  return table;
}

void check(cudnnStatus_t status, const std::string& what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  // Numbers instead of names, because the header may be older than the library.
  const int code = static_cast<int>(status);
  const bool unsupported = code / 1000 == 3;                             // NOT_SUPPORTED_...
  const bool incomplete = code == 1001 || code == 1002 || code == 1008;  // the library cannot start
  const bool memory = code == 4003 || code == 4004;                      // ..._ALLOCATION_FAILED
  if (unsupported || incomplete) throw Unsupported(what + ": " + reason(status));
  if (memory) throw OutOfMemory(what + ": " + reason(status));
  const auto cuda = cudaPeekAtLastError();
  if (cuda != cudaSuccess && is_sticky(cuda)) {
    throw_cuda_error(cuda, what.c_str(), __FILE__, __LINE__);
  }
  throw PrimitiveFailure(what, reason(status));
}

namespace {

struct HandleCache {
  std::mutex mutex;
  std::map<int, std::shared_ptr<Handle>> handles;
};

// Never destroyed, because the order among static objects is undefined; release_handles() clears
// it.
HandleCache& handle_cache() {
  static auto& instance = *new HandleCache;
  return instance;
}

}  // namespace

Handle::Handle() { check(api().create(&handle_), "cudnnCreate"); }

// Fails if the device is lost, when there is nothing to release.
Handle::~Handle() { api().destroy(handle_); }

void Handle::use(CUstream_st* stream) {
  if (stream == stream_) return;
  check(api().set_stream(handle_, stream), "cudnnSetStream");
  stream_ = stream;
}

std::shared_ptr<Handle> handle_of(const Device& device) {
  const std::lock_guard lock(handle_cache().mutex);
  auto& handle = handle_cache().handles[device.facts().index];
  if (!handle) {
    device.make_current();
    handle = std::make_shared<Handle>();
  }
  return handle;
}

void release_handles() {
  const std::lock_guard lock(handle_cache().mutex);
  handle_cache().handles.clear();
}

}  // namespace pydlbench::cuda::cudnn
