#include "cuda/cudnn/library.hpp"

#include <map>
#include <mutex>

#include "core/error.hpp"
#include "cuda/libraries.hpp"
#include "cuda/runtime/check.hpp"

namespace pydlbench::cuda::cudnn {

namespace {

template <typename Function>
void look_up(Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(cudnn_symbol(name));
}

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
    default:
      throw Unsupported("cuDNN in this storage format is not built");
  }
}

const Api& api() {
  static const Api table = [] {
    Api found{};
    look_up(found.create, "cudnnCreate");
    look_up(found.destroy, "cudnnDestroy");
    look_up(found.set_stream, "cudnnSetStream");
    look_up(found.error_string, "cudnnGetErrorString");
    look_up(found.last_error_string, "cudnnGetLastErrorString");
    look_up(found.create_descriptor, "cudnnBackendCreateDescriptor");
    look_up(found.destroy_descriptor, "cudnnBackendDestroyDescriptor");
    look_up(found.set_attribute, "cudnnBackendSetAttribute");
    look_up(found.get_attribute, "cudnnBackendGetAttribute");
    look_up(found.finalize, "cudnnBackendFinalize");
    look_up(found.execute, "cudnnBackendExecute");
    return found;
  }();
  return table;
}

void check(cudnnStatus_t status, const std::string& what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  // Numbers instead of names: a header may be older than the library it describes.
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

struct Kept {
  std::mutex mutex;
  std::map<int, std::shared_ptr<Handle>> handles;
};

// Not destroyed with the other statics, whose order is unknown: release_handles() empties it
// before.
Kept& kept() {
  static auto& instance = *new Kept;
  return instance;
}

}  // namespace

Handle::Handle() { check(api().create(&handle_), "cudnnCreate"); }

// A lost device makes this fail; there is nothing left to give back then.
Handle::~Handle() { api().destroy(handle_); }

void Handle::use(CUstream_st* stream) {
  if (stream == stream_) return;
  check(api().set_stream(handle_, stream), "cudnnSetStream");
  stream_ = stream;
}

std::shared_ptr<Handle> handle_of(const Device& device) {
  const std::lock_guard lock(kept().mutex);
  auto& handle = kept().handles[device.facts().index];
  if (!handle) {
    device.make_current();
    handle = std::make_shared<Handle>();
  }
  return handle;
}

void release_handles() {
  const std::lock_guard lock(kept().mutex);
  kept().handles.clear();
}

}  // namespace pydlbench::cuda::cudnn
