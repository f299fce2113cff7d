#include "cuda/cudnn/handle.hpp"

#include <map>
#include <mutex>

#include "cuda/cudnn/api.hpp"

namespace pydlbench::cuda::cudnn {
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
