// A cache of values by set of operands, for further launches on the same ones.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace pydlbench::cuda::cudnn {

// Rotating sets recur in the same order, so the search starts after the last one found: a launch
// costs the same with one set and with a thousand.
template <typename Value>
class OperandCache {
 public:
  // The cache is cleared when it has `most` sets, to limit its memory.
  explicit OperandCache(std::size_t most) : most_(most) {}

  // Null for new operands.
  const Value* find(const std::vector<void*>& pointers, const void* workspace) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const auto at = next_ + i < entries_.size() ? next_ + i : next_ + i - entries_.size();
      const auto& entry = entries_[at];
      ++looked_at_;
      if (entry.workspace != workspace || entry.pointers != pointers) continue;
      next_ = at + 1 < entries_.size() ? at + 1 : 0;
      return &entry.value;
    }
    return nullptr;
  }

  // Valid until the next call.
  const Value& add(const std::vector<void*>& pointers, const void* workspace, Value value) {
    if (entries_.size() == most_) entries_.clear();
    next_ = 0;
    entries_.push_back({pointers, workspace, std::move(value)});
    return entries_.back().value;
  }

  // Number of entries that find() has compared.
  std::size_t looked_at() const { return looked_at_; }

 private:
  struct Entry {
    std::vector<void*> pointers;
    const void* workspace;
    Value value;
  };
  std::vector<Entry> entries_;
  std::size_t most_, next_ = 0, looked_at_ = 0;
};

}  // namespace pydlbench::cuda::cudnn
