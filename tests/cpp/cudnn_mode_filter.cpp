// What test_cudnn_mode_filter.py calls: rules of the cuDNN plans that need no cuDNN.
#include <cstring>
#include <sstream>

#include "cuda/cudnn/engine_choice.hpp"
#include "cuda/cudnn/mode_filter.hpp"
#include "cuda/cudnn/operand_cache.hpp"
#include "cuda/cudnn/padding.hpp"

using namespace pydlbench;
using namespace pydlbench::cuda;
using namespace pydlbench::cuda::cudnn;

namespace {

const char* keep(const std::string& text) {
  static std::string kept;
  kept = text;
  return kept.c_str();
}

Notes words(const char* text) {
  std::istringstream stream(text);
  Notes notes;
  for (std::string word; stream >> word;) notes.push_back(word);
  return notes;
}

}  // namespace

extern "C" {

// Empty where the mode takes an engine with these notes.
const char* objection_text(const char* mode, const char* notes) {
  return keep(objection(mode_of(mode), words(notes)).value_or(""));
}

const char* accumulator_text(int half_compute, const char* notes) {
  return keep(accumulator(half_compute ? DataType::float16 : DataType::float32, words(notes)));
}

const char* numerical_note_text(long value) { return keep(numerical_note(value)); }
const char* behavior_note_text(long value) { return keep(behavior_note(value)); }

const char* engine_name(long engine, const long* knobs, int count, const char* notes) {
  EngineChoice choice{engine, {}};
  for (int i = 0; i < count; ++i) choice.knobs.emplace_back(knobs[2 * i], knobs[2 * i + 1]);
  return keep(engine_text(choice, transform(words(notes))));
}

// One name per line.
const char* all_combinations(const long* ranges, int count, int most) {
  std::vector<KnobRange> list;
  for (int i = 0; i < count; ++i) {
    list.push_back({ranges[4 * i], ranges[4 * i + 1], ranges[4 * i + 2], ranges[4 * i + 3]});
  }
  std::string text;
  for (const auto& choice : combinations(7, list, static_cast<std::size_t>(most))) {
    text += engine_text(choice, "") + "\n";
  }
  return keep(text);
}

// in: height, width, top, left, bottom, right; out: inner height, width, top, left, bottom, right,
// then what the kernel adds on top, left, bottom, right. Returns whether opposite sides differ.
int explicit_sides(const long* in, long* out) {
  Conv2dProblem problem{};
  problem.in_height = in[0], problem.in_width = in[1];
  problem.pad_top = in[2], problem.pad_left = in[3];
  problem.pad_bottom = in[4], problem.pad_right = in[5];
  const auto padding = explicit_padding(problem);
  const auto& inner = padding.inner;
  const long values[] = {inner.in_height,  inner.in_width,  inner.pad_top, inner.pad_left,
                         inner.pad_bottom, inner.pad_right, padding.top,   padding.left,
                         padding.bottom,   padding.right};
  std::memcpy(out, values, sizeof values);
  return is_asymmetric(problem);
}

// Launches on `sets` sets of operands in turn, `rounds` times over, of which `most` are kept.
// Returns how many values had to be made; in `out`, how many entries were looked at in the last
// round, and how often a value of another set was found.
long rotate_operands(long sets, long rounds, long most, long* out) {
  OperandCache<long> cache(static_cast<std::size_t>(most));
  std::vector<char> memory(static_cast<std::size_t>(sets));
  long made = 0;
  std::size_t before = 0;
  out[1] = 0;
  for (long round = 0; round < rounds; ++round) {
    before = cache.looked_at();
    for (long set = 0; set < sets; ++set) {
      // Sets share their first pointer, as those whose weights only are cold do.
      const std::vector<void*> pointers{memory.data(), memory.data() + set};
      const auto* found = cache.find(pointers, nullptr);
      if (found == nullptr) found = &cache.add(pointers, nullptr, set), ++made;
      out[1] += *found != set;
    }
  }
  out[0] = static_cast<long>(cache.looked_at() - before);
  return made;
}
}
