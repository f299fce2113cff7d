#include "cpu/buffer.hpp"

#include <cstdlib>
#include <cstring>
#include <string>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "core/error.hpp"

namespace pydlbench::cpu {

namespace {
constexpr std::size_t kLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Smaller tensors stay in the nearest caches wherever their pages lie.
constexpr std::size_t kHugeFrom = std::size_t{256} << 10;
}  // namespace

void Buffer::Free::operator()(void* pointer) const { std::free(pointer); }

Buffer::Buffer(std::size_t bytes) : size_(bytes) {
  const std::size_t alignment = bytes >= kHugeFrom ? kHugePage : kLine;
  // aligned_alloc wants a multiple of the alignment; a tensor may be empty, an allocation may not.
  const std::size_t rounded = (bytes / alignment + 1) * alignment;
  data_.reset(std::aligned_alloc(alignment, rounded));
  if (!data_) throw OutOfMemory("cannot allocate " + std::to_string(rounded) + " bytes");
#ifdef __linux__
  // Advice only: where the kernel has no huge pages the call fails and nothing changes.
  if (alignment == kHugePage) (void)madvise(data_.get(), rounded, MADV_HUGEPAGE);
#endif
}

void Buffer::poison() { std::memset(data_.get(), 0xff, size_); }

}  // namespace pydlbench::cpu
