#include "cpu/kernel.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <unordered_map>
#include <utility>

#include "core/error.hpp"
#include "cpu/counters.hpp"
#include "cpu/plans.hpp"

namespace pydlbench::cpu {

namespace {

constexpr std::size_t kAlignment = 64;
// Limits the bookkeeping of tiny tensors; 65536 copies of 1.5 kB still exceed 96 MB.
constexpr std::size_t kMaxSets = 65536;

std::size_t padded(std::size_t bytes) { return (bytes / kAlignment + 1) * kAlignment; }

bool rotates(const Argument& argument, CacheState cache) {
  return cache == CacheState::all_cold ||
         (cache == CacheState::weights_cold &&
          (argument.role.rfind("weights", 0) == 0 || argument.role == "bias"));
}

}  // namespace

Kernel::Kernel(Candidate candidate, std::shared_ptr<Arena> arena, CacheState cache,
               std::size_t cold_bytes, std::vector<int> cpus)
    : candidate_(std::move(candidate)),
      arena_(std::move(arena)),
      cpus_(std::move(cpus)),
      stream_(cpu_engine()) {
  try {
    const double start = now();
    if (candidate_.run.primitive) {
      primitive_ = dnnl::primitive(candidate_.run.primitive.get());
    }
    setup_seconds_ = now() - start;

    take_tensors();
    Set base;
    for (const auto& tensor : tensors_) base.tensors.push_back(tensor.memory);
    if (candidate_.run.primitive) {
      const auto scratchpad = candidate_.run.primitive.scratchpad_desc();
      if (scratchpad.get_size() > 0) {
        scratch_.push_back(Arena::scratch(scratchpad));
        scratch_.back().buffer->poison();  // first touch happens here, not in the first sample
        base.others.emplace(DNNL_ARG_SCRATCHPAD, scratch_.back().memory);
      }
      fill_workspace(base);
    }
    if (candidate_.own) {
      own_workspace_ = std::make_unique<Buffer>(candidate_.own->workspace_bytes);
      own_workspace_->poison();
    }
    if (cache == CacheState::hot) {
      add_set(base);
    } else {
      rotate(base, cache, cold_bytes);
    }
  } catch (const dnnl::error& error) {
    throw PrimitiveFailure("oneDNN " + candidate_.primitive + " " + candidate_.implementation,
                           describe(error));
  }
}

void Kernel::take_tensors() {
  for (const auto& argument : candidate_.run.arguments) {
    tensors_.push_back(argument.is_output ? arena_->output(argument) : arena_->input(argument));
    if (argument.is_updated) restore(tensors_.size() - 1);
  }
}

// Sets an output to its state before the kernel runs.
void Kernel::restore(std::size_t index) {
  const auto& argument = candidate_.run.arguments[index];
  const auto& memory = tensors_[index].memory;
  const auto bytes = memory.get_desc().get_size();
  if (argument.is_updated) {
    copy_bytes(memory.get_data_handle(), arena_->input(argument).buffer->data(), bytes);
  } else {
    fill_bytes(memory.get_data_handle(), 0xff, bytes);
  }
}

std::vector<std::size_t> Kernel::outputs() const {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (candidate_.run.arguments[i].is_output) found.push_back(i);
  }
  return found;
}

void Kernel::add_set(const Set& set) {
  const auto add = [this](int index, const dnnl::memory& memory) {
    if (index != kNoArgument) arguments_.push_back({index, memory.get()});
  };
  for (std::size_t i = 0; i < set.tensors.size(); ++i) {
    const auto& memory = set.tensors[i];
    held_.push_back(memory);
    add(candidate_.run.arguments[i].index, memory);
    add(candidate_.run.arguments[i].second_index, memory);
    if (candidate_.own) pointers_.push_back(memory.get_data_handle());
  }
  for (const auto& [index, memory] : set.others) {
    held_.push_back(memory);
    add(index, memory);
  }
  ++sets_;
}

void Kernel::execute(std::size_t set) {
  if (primitive_) {
    const auto width = arguments_.size() / sets_;
    dnnl::error::wrap_c_api(
        dnnl_primitive_execute(primitive_.get(), stream_.get(), static_cast<int>(width),
                               arguments_.data() + set * width),
        "could not execute a primitive");
  }
  if (candidate_.own) {
    candidate_.own->run(pointers_.data() + set * tensors_.size(), own_workspace_->data());
  }
}

void Kernel::warm_records(int executions) const {
  const auto sets = std::min(sets_, static_cast<std::size_t>(executions));
  const auto width = arguments_.size() / sets_, tensors = pointers_.size() / sets_;
  for (std::size_t i = 0; i < sets; ++i) {
    const auto set = (next_ + i) % sets_;
    for (std::size_t j = 0; j < width; ++j) {
      void* handle = nullptr;
      dnnl_memory_get_data_handle(arguments_[set * width + j].memory, &handle);
    }
    for (std::size_t j = 0; j < tensors; ++j) {
      [[maybe_unused]] void* const volatile pointer = pointers_[set * tensors + j];
    }
  }
}

void Kernel::fill_workspace(Set& base) {
  const auto desc = candidate_.run.primitive.query_md(dnnl::query::workspace_md);
  if (!desc || desc.get_size() == 0) return;
  auto workspace = Arena::scratch(desc);
  base.others.emplace(DNNL_ARG_WORKSPACE, workspace.memory);
  if (candidate_.forward) {
    std::unordered_map<int, dnnl::memory> arguments;
    arguments.emplace(DNNL_ARG_WORKSPACE, workspace.memory);
    std::vector<Tensor> held;
    for (const auto& argument : candidate_.forward->arguments) {
      // The forward result is not needed, and must not overwrite the arena's shared output.
      held.push_back(argument.is_output ? Arena::scratch(argument.desc) : arena_->input(argument));
      arguments.emplace(argument.index, held.back().memory);
      if (argument.second_index != kNoArgument) {
        base.others.emplace(argument.second_index, held.back().memory);
        scratch_.push_back(held.back());
      }
    }
    const auto scratchpad = candidate_.forward->primitive.scratchpad_desc();
    if (scratchpad.get_size() > 0) {
      held.push_back(Arena::scratch(scratchpad));
      arguments.emplace(DNNL_ARG_SCRATCHPAD, held.back().memory);
    }
    dnnl::primitive(candidate_.forward->primitive.get()).execute(stream_, arguments);
    stream_.wait();
  } else {
    workspace.buffer->poison();
  }
  scratch_.push_back(std::move(workspace));
}

void Kernel::rotate(const Set& base, CacheState cache, std::size_t cold_bytes) {
  struct Rotating {
    std::size_t argument;  // index of an argument; the number of arguments for the workspace
    Tensor tensor;
  };
  std::vector<Rotating> rotating;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (rotates(candidate_.run.arguments[i], cache)) rotating.push_back({i, tensors_[i]});
  }
  if (cache == CacheState::all_cold && base.others.count(DNNL_ARG_WORKSPACE) > 0) {
    rotating.push_back({tensors_.size(), scratch_.back()});
  }
  std::size_t bytes = 0;
  for (const auto& item : rotating) bytes += padded(item.tensor.buffer->size());
  if (bytes == 0) throw Unsupported("this layer has no weights to keep out of the cache");

  // A set is cold if all others, which were used since its last turn, exceed `cold_bytes`.
  const auto count = bytes >= cold_bytes ? std::size_t{2} : cold_bytes / bytes + 2;
  if (count > kMaxSets) {
    throw Unsupported("tensors of " + std::to_string(bytes) +
                      " bytes are too small to be kept out of the cache by rotating copies");
  }
  auto pool = std::make_shared<Buffer>(count * bytes);
  // In memory order, the hardware would prefetch the next copy.
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937_64(count));

  for (const auto slot : order) {
    auto set = base;
    auto* target = static_cast<char*>(pool->data()) + slot * bytes;
    for (const auto& item : rotating) {
      const auto size = item.tensor.buffer->size();
      copy_bytes(target, item.tensor.buffer->data(), size);
      dnnl::memory memory(item.tensor.memory.get_desc(), cpu_engine(), target);
      if (item.argument == tensors_.size()) {
        set.others[DNNL_ARG_WORKSPACE] = std::move(memory);
      } else {
        // Verify the outputs of the first set, which is also timed.
        if (sets_ == 0) tensors_[item.argument] = {pool, memory};
        set.tensors[item.argument] = std::move(memory);
      }
      target += padded(size);
    }
    add_set(set);
  }
  copies_.push_back(std::move(pool));
}

Chunk Kernel::sample(const SampleRequest& request) {
  const auto execute_next = [this](int executions) {
    for (int i = 0; i < executions; ++i) {
      execute(next_);
      next_ = next_ + 1 == sets_ ? 0 : next_ + 1;
    }
    stream_.wait();
  };
  std::function<void(int)> before;
  if (sets_ > 1) before = [this](int executions) { warm_records(executions); };
  try {
    return take_chunk(request, cpus_, execute_next, before);
  } catch (const dnnl::error& error) {
    throw PrimitiveFailure("oneDNN " + candidate_.primitive + " " + candidate_.implementation,
                           describe(error));
  }
}

void Kernel::touch() const {
  constexpr std::size_t kLine = 64;
  std::size_t sum = 0;
  const auto read = [](const dnnl::memory& memory) {
    const auto* bytes = static_cast<const volatile unsigned char*>(memory.get_data_handle());
    const auto lines = static_cast<std::int64_t>(memory.get_desc().get_size() / kLine);
    std::size_t found = 0;
#pragma omp parallel for schedule(static) reduction(+ : found)
    for (std::int64_t line = 0; line < lines; ++line) {
      found += bytes[static_cast<std::size_t>(line) * kLine];
    }
    return found;
  };
  if (sets_ == 1) {
    for (const auto& tensor : tensors_) sum += read(tensor.memory);
  } else {
    for (int turn = 0; turn < 2; ++turn) {
#pragma omp parallel reduction(+ : sum)
      sum += 1;
    }
  }
  [[maybe_unused]] volatile std::size_t used = sum;
}

void Kernel::run_poisoned() {
  try {
    for (const auto index : outputs()) restore(index);
    execute(0);
    stream_.wait();
  } catch (const dnnl::error& error) {
    throw PrimitiveFailure("oneDNN " + candidate_.primitive + " " + candidate_.implementation,
                           describe(error));
  }
}

Tensor Kernel::plain_output(std::size_t index) const {
  const auto& argument = candidate_.run.arguments.at(index);
  if (argument.desc == argument.plain) return tensors_[index];
  auto plain = Arena::scratch(argument.plain);
  auto source = tensors_[index].memory;
  dnnl::stream stream(cpu_engine());
  dnnl::reorder(source, plain.memory).execute(stream, source, plain.memory);
  stream.wait();
  return plain;
}

std::map<std::string, double> Kernel::reorder_seconds() const {
  constexpr int kRuns = 3;
  std::map<std::string, double> seconds;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& argument = candidate_.run.arguments[i];
    // The dense layout in the kernel's data type, as in a network.
    const dnnl::memory::desc dense(argument.plain.get_dims(), argument.desc.get_data_type(),
                                   argument.plain.get_strides());
    if (dense == argument.desc) continue;
    auto source = Arena::scratch(dense);
    auto target = Arena::scratch(argument.desc);
    source.buffer->poison();
    target.buffer->poison();
    auto& from = argument.is_output ? target.memory : source.memory;
    auto& to = argument.is_output ? source.memory : target.memory;
    dnnl::stream stream(cpu_engine());
    const dnnl::reorder reorder(from, to);
    double best = std::numeric_limits<double>::infinity();
    for (int run = 0; run <= kRuns; ++run) {
      const double start = now();
      reorder.execute(stream, from, to);
      stream.wait();
      if (run > 0) best = std::min(best, now() - start);  // the first run faults pages in
    }
    seconds[argument.role] = best;
  }
  return seconds;
}

}  // namespace pydlbench::cpu
