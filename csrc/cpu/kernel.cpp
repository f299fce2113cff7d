#include "cpu/kernel.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "core/error.hpp"
#include "cpu/counters.hpp"
#include "cpu/plans.hpp"
#include "cpu/probes/clock.hpp"

namespace pydlbench::cpu {

namespace {

constexpr std::size_t kAlignment = 64;
// Bounds the bookkeeping of tiny tensors; 65536 copies of 1.5 kB still exceed 96 MB.
constexpr std::size_t kMaxSets = 65536;
// How often the core clock is read beside the samples, in seconds, and over how many dependent
// multiplications: 6 us at 4 GHz, five times, long against the timer's 25 ns and short against the
// period.
constexpr double kClockPeriod = 2e-3;
constexpr int kClockIterations = 8192;

std::size_t padded(std::size_t bytes) { return (bytes / kAlignment + 1) * kAlignment; }

bool rotates(const Argument& argument, CacheState cache) {
  return cache == CacheState::all_cold ||
         (cache == CacheState::weights_cold && argument.role == "weights");
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
    primitive_ = dnnl::primitive(candidate_.run.primitive.get());
    setup_seconds_ = now() - start;

    Arguments base;
    for (const auto& argument : candidate_.run.arguments) {
      auto tensor = argument.is_output ? arena_->output(argument) : arena_->input(argument);
      if (argument.is_output) output_ = tensor;
      base.emplace(argument.index, tensor.memory);
      tensors_.push_back(std::move(tensor));
    }
    const auto scratchpad = candidate_.run.primitive.scratchpad_desc();
    if (scratchpad.get_size() > 0) {
      scratch_.push_back(Arena::scratch(scratchpad));
      scratch_.back().buffer->poison();  // first touch happens here, not in the first sample
      base.emplace(DNNL_ARG_SCRATCHPAD, scratch_.back().memory);
    }
    fill_workspace(base);
    sets_.push_back(std::move(base));
    if (cache != CacheState::hot) rotate(cache, cold_bytes);
  } catch (const dnnl::error& error) {
    throw PrimitiveFailure("oneDNN " + candidate_.primitive + " " + candidate_.implementation,
                           describe(error));
  }
}

void Kernel::fill_workspace(Arguments& base) {
  const auto desc = candidate_.run.primitive.query_md(dnnl::query::workspace_md);
  if (!desc || desc.get_size() == 0) return;
  auto workspace = Arena::scratch(desc);
  base.emplace(DNNL_ARG_WORKSPACE, workspace.memory);
  if (candidate_.forward) {
    Arguments arguments;
    arguments.emplace(DNNL_ARG_WORKSPACE, workspace.memory);
    std::vector<Tensor> held;
    for (const auto& argument : candidate_.forward->arguments) {
      // The forward result is thrown away; it must not overwrite the arena's shared output.
      held.push_back(argument.is_output ? Arena::scratch(argument.desc) : arena_->input(argument));
      arguments.emplace(argument.index, held.back().memory);
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

void Kernel::rotate(CacheState cache, std::size_t cold_bytes) {
  std::vector<std::pair<int, Tensor>> rotating;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& argument = candidate_.run.arguments[i];
    if (rotates(argument, cache)) rotating.emplace_back(argument.index, tensors_[i]);
  }
  if (cache == CacheState::all_cold && sets_.front().count(DNNL_ARG_WORKSPACE) > 0) {
    rotating.emplace_back(DNNL_ARG_WORKSPACE, scratch_.back());
  }
  std::size_t bytes = 0;
  for (const auto& item : rotating) bytes += padded(item.second.buffer->size());
  if (bytes == 0) throw Unsupported("this layer has no weights to keep out of the cache");

  const auto count = std::min(kMaxSets, cold_bytes / bytes + 2);
  auto pool = std::make_shared<Buffer>(count * bytes);
  // In memory order the next copy would be prefetched while the last one is in use.
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937_64(count));

  const auto base = sets_.front();
  sets_.clear();
  sets_.reserve(count);
  for (const auto slot : order) {
    auto set = base;
    auto* target = static_cast<char*>(pool->data()) + slot * bytes;
    for (const auto& [index, tensor] : rotating) {
      std::memcpy(target, tensor.buffer->data(), tensor.buffer->size());
      set[index] = dnnl::memory(tensor.memory.get_desc(), cpu_engine(), target);
      target += padded(tensor.buffer->size());
    }
    sets_.push_back(std::move(set));
  }
  copies_.push_back(std::move(pool));
}

Chunk Kernel::sample(int samples, int inner, int untimed) {
  PYDLBENCH_CHECK(samples > 0 && inner > 0 && untimed >= 0, "at least one sample of one execution");
  Chunk chunk{};
  chunk.seconds.reserve(static_cast<std::size_t>(samples));
  chunk.involuntary.reserve(static_cast<std::size_t>(samples));
  const auto execute = [this] {
    primitive_.execute(stream_, sets_[next_]);
    next_ = next_ + 1 == sets_.size() ? 0 : next_ + 1;
  };
  const double delay_before = run_queue_delay();
  const double stolen_before = stolen_time(cpus_);
  const double chunk_start = now();
  double clock_read = chunk_start;
  try {
    for (int i = 0; i < untimed; ++i) execute();
    stream_.wait();
    for (int i = 0; i < samples; ++i) {
      const long switches = involuntary_switches();
      const double start = now();
      for (int j = 0; j < inner; ++j) execute();
      stream_.wait();
      const double end = now();
      chunk.involuntary.push_back(involuntary_switches() - switches);
      chunk.seconds.push_back((end - start) / inner);
      // Right behind the load, while the core still runs at the load's clock.
      if (end - clock_read >= kClockPeriod || i + 1 == samples) {
        chunk.clock_hz.push_back(core_clock_hz(kClockIterations));
        clock_read = now();
      }
    }
  } catch (const dnnl::error& error) {
    throw PrimitiveFailure("oneDNN " + candidate_.primitive + " " + candidate_.implementation,
                           describe(error));
  }
  chunk.wall_seconds = now() - chunk_start;
  chunk.run_delay_seconds = run_queue_delay() - delay_before;
  chunk.steal_seconds = stolen_time(cpus_) - stolen_before;
  return chunk;
}

void Kernel::run_poisoned() {
  try {
    output_.buffer->poison();
    auto arguments = sets_.front();
    for (const auto& argument : candidate_.run.arguments) {
      if (argument.is_output) arguments[argument.index] = output_.memory;
    }
    primitive_.execute(stream_, arguments);
    stream_.wait();
  } catch (const dnnl::error& error) {
    throw PrimitiveFailure("oneDNN " + candidate_.primitive + " " + candidate_.implementation,
                           describe(error));
  }
}

bool Kernel::output_is_plain() const {
  for (const auto& argument : candidate_.run.arguments) {
    if (argument.is_output) return argument.desc == argument.plain;
  }
  return false;
}

Tensor Kernel::plain_output() const {
  for (const auto& argument : candidate_.run.arguments) {
    if (!argument.is_output) continue;
    if (argument.desc == argument.plain) return output_;
    auto plain = Arena::scratch(argument.plain);
    auto source = output_.memory;
    dnnl::stream stream(cpu_engine());
    dnnl::reorder(source, plain.memory).execute(stream, source, plain.memory);
    stream.wait();
    return plain;
  }
  throw PrimitiveFailure("oneDNN " + candidate_.primitive, "has no output");
}

std::map<std::string, double> Kernel::reorder_seconds() const {
  constexpr int kRuns = 3;
  std::map<std::string, double> seconds;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& argument = candidate_.run.arguments[i];
    // The same dense order in the kernel's data type: what a network would hold.
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
