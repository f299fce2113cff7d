// Owned, aligned memory for tensors.
#pragma once

#include <cstddef>
#include <memory>

namespace pydlbench::cpu {

// Sets or copies bytes with all threads, each its own piece in order: what a thread of the pool
// will work on is touched first by that thread, and so lies in its own memory node.
void fill_bytes(void* target, int value, std::size_t bytes);
void copy_bytes(void* target, const void* source, std::size_t bytes);

// Memory aligned to 64 bytes; from 256 KiB on to 2 MiB, with huge pages requested (MADV_HUGEPAGE):
// so that page-table walks are not part of a kernel's time, and so that a tensor lies in one piece
// of physical memory, because with small pages each run would find other lines in conflict in a
// physically indexed cache. Throws OutOfMemory, never returns null.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes);

  void* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

  // Fills every byte with 0xff: a NaN in float32, bfloat16 and float16 alike.
  void poison() { fill_bytes(data(), 0xff, size_); }

 private:
  struct Free {
    void operator()(void* pointer) const;
  };
  std::size_t size_;
  std::unique_ptr<void, Free> data_;
};

}  // namespace pydlbench::cpu
