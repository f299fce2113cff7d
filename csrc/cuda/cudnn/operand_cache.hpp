// What was made for a set of operands, kept for the next launch on the same ones.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace pydlbench::cuda::cudnn {

// Rotating sets come back in the order in which they came first, so the one after the last found is
// looked at first: a launch costs the same with one set and with a thousand.
template <typename Value>
class OperandCache {
 public:
  // Beyond `most` sets all are forgotten, to bound what they hold.
  explicit OperandCache(std::size_t most) : most_(most) {}

  // Nothing where these operands are new.
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

  // How many entries find() has looked at.
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
