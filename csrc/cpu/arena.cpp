#include "cpu/arena.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "cpu/plans.hpp"

#ifdef __linux__
#include <sys/mman.h>
#endif

#ifdef _OPENMP
#include <omp.h>
#endif

namespace pydlbench::cpu {

namespace {
constexpr std::size_t kLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Smaller tensors fit into the nearest caches, whatever their pages are.
constexpr std::size_t kMinHugePageBytes = std::size_t{256} << 10;

// Whether to request huge pages; PYDLBENCH_HUGE_PAGES=0 in the environment disables them.
bool huge_pages() {
  static const bool wanted = [] {
    const char* said = std::getenv("PYDLBENCH_HUGE_PAGES");
    return said == nullptr || std::string(said) != "0";
  }();
  return wanted;
}
}  // namespace

void Buffer::Free::operator()(void* pointer) const { std::free(pointer); }

Buffer::Buffer(std::size_t bytes) : size_(bytes) {
  const std::size_t alignment = bytes >= kMinHugePageBytes ? kHugePage : kLine;
  // aligned_alloc requires a positive multiple of the alignment, but a tensor may be empty.
  const std::size_t rounded = (bytes / alignment + 1) * alignment;
  data_.reset(std::aligned_alloc(alignment, rounded));
  if (!data_) throw OutOfMemory("cannot allocate " + std::to_string(rounded) + " bytes");
#ifdef __linux__
  // Only advice: if the kernel has no huge pages, the call fails without effect.
  if (alignment == kHugePage && huge_pages()) {
    (void)madvise(data_.get(), rounded, MADV_HUGEPAGE);
  }
#endif
}

namespace {
// Calls `work(offset, bytes)` for consecutive pieces, one per thread.
template <typename Work>
void for_each_piece(std::size_t bytes, Work&& work) {
  // For less, a second thread costs more than it saves.
  constexpr std::size_t kMin = std::size_t{1} << 20;
  if (bytes < kMin) return work(std::size_t{0}, bytes);
#ifdef _OPENMP
#pragma omp parallel
  {
    const auto threads = static_cast<std::size_t>(omp_get_num_threads());
    const auto index = static_cast<std::size_t>(omp_get_thread_num());
    const std::size_t each = (bytes / threads / kLine + 1) * kLine;
    const std::size_t begin = std::min(bytes, index * each);
    work(begin, std::min(bytes, begin + each) - begin);
  }
#else
  work(std::size_t{0}, bytes);
#endif
}
}  // namespace

void fill_bytes(void* target, int value, std::size_t bytes) {
  for_each_piece(bytes, [&](std::size_t offset, std::size_t count) {
    std::memset(static_cast<char*>(target) + offset, value, count);
  });
}

void copy_bytes(void* target, const void* source, std::size_t bytes) {
  for_each_piece(bytes, [&](std::size_t offset, std::size_t count) {
    std::memcpy(static_cast<char*>(target) + offset, static_cast<const char*>(source) + offset,
                count);
  });
}

Arena::Arena(std::map<std::string, HostTensor> inputs) : inputs_(std::move(inputs)) {}

Arena::Entry* Arena::find(const std::string& key, const Argument& argument) {
  for (auto& entry : entries_) {
    if (entry.key == key && entry.desc == argument.desc && entry.plain == argument.plain)
      return &entry;
  }
  return nullptr;
}

Tensor Arena::scratch(const dnnl::memory::desc& desc) {
  auto buffer = std::make_shared<Buffer>(desc.get_size());
  dnnl::memory memory(desc, cpu_engine(), buffer->data());
  return {std::move(buffer), std::move(memory)};
}

Tensor Arena::input(const Argument& argument) {
  const auto key = "in:" + argument.role;
  if (auto* entry = find(key, argument)) return entry->tensor;

  const auto host = inputs_.find(argument.role);
  PYDLBENCH_CHECK(host != inputs_.end(), "no input named " + argument.role);
  // The caller's array is float32 even if results of this role are read as integers.
  const dnnl::memory::desc held(argument.plain.get_dims(), dnnl::memory::data_type::f32,
                                argument.plain.get_strides());
  PYDLBENCH_CHECK(host->second.elements * sizeof(float) == held.get_size(),
                  "input " + argument.role + " has the wrong number of elements");
  auto tensor = scratch(argument.desc);
  // oneDNN has no pointers to const; a reorder only reads its source.
  dnnl::memory source(held, cpu_engine(), const_cast<float*>(host->second.data));
  dnnl::stream stream(cpu_engine());
  dnnl::reorder(source, tensor.memory).execute(stream, source, tensor.memory);
  stream.wait();
  entries_.push_back({key, argument.desc, argument.plain, tensor});
  return tensor;
}

Tensor Arena::output(const Argument& argument) {
  const auto key = "out:" + argument.role;
  if (auto* entry = find(key, argument)) return entry->tensor;
  auto tensor = scratch(argument.desc);
  tensor.buffer->poison();
  entries_.push_back({key, argument.desc, argument.plain, tensor});
  return tensor;
}

std::size_t Arena::bytes() const {
  std::size_t total = 0;
  for (const auto& entry : entries_) total += entry.tensor.buffer->size();
  return total;
}

}  // namespace pydlbench::cpu
