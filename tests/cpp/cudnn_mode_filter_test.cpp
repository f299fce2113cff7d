// Which cuDNN engine belongs to which precision mode, how it is named, padding that is done apart,
// and operands that are found again. None of it needs cuDNN.
#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "check.hpp"
#include "cuda/cudnn/engine_choice.hpp"
#include "cuda/cudnn/mode_filter.hpp"
#include "cuda/cudnn/operand_cache.hpp"
#include "cuda/cudnn/padding.hpp"

using namespace pydlbench;
using namespace pydlbench::cuda;
using namespace pydlbench::cuda::cudnn;

namespace {

constexpr Mode kModes[] = {Mode::fp32, Mode::tf32, Mode::fp16, Mode::fp16_tc, Mode::bf16_tc};

// Empty where the mode takes an engine with these notes.
std::string why_not(Mode mode, const Notes& notes) { return objection(mode, notes).value_or(""); }

// The same notes beside the one that an engine of the mode has.
Notes of_mode(Mode mode, Notes notes) {
  if (on_tensor_cores(mode)) notes.insert(notes.begin(), "TENSOR_CORE");
  return notes;
}

std::string name(std::int64_t engine, std::vector<std::pair<std::int64_t, std::int64_t>> knobs,
                 const Notes& notes = {}) {
  return engine_text({engine, std::move(knobs)}, transform(notes));
}

std::vector<std::string> combined(const std::vector<KnobRange>& ranges, std::size_t most) {
  std::vector<std::string> names;
  for (const auto& choice : combinations(7, ranges, most)) names.push_back(engine_text(choice, ""));
  return names;
}

// Launches on `sets` sets of operands in turn, `rounds` times over, of which `most` are kept.
struct Rotation {
  Rotation(long sets, long rounds, std::size_t most) {
    OperandCache<long> cache(most);
    std::vector<char> memory(static_cast<std::size_t>(sets));
    for (long round = 0; round < rounds; ++round) {
      const auto before = cache.looked_at();
      for (long set = 0; set < sets; ++set) {
        // Sets share their first pointer, as those whose weights only are cold do.
        const std::vector<void*> pointers{memory.data(), memory.data() + set};
        const auto* found = cache.find(pointers, nullptr);
        if (found == nullptr) found = &cache.add(pointers, nullptr, set), ++made;
        mistaken += *found != set;
      }
      looked_at = cache.looked_at() - before;
    }
  }
  long made = 0, mistaken = 0;
  std::size_t looked_at = 0;  // entries, in the last round
};

}  // namespace

TEST(a_mode_takes_engines_on_its_own_side_of_the_tensor_cores_only) {
  for (const auto mode : kModes) {
    CHECK_EQ(why_not(mode, {"TENSOR_CORE"}).empty(), on_tensor_cores(mode));
    CHECK_EQ(why_not(mode, {}).empty(), !on_tensor_cores(mode));
  }
}

TEST(no_mode_rounds_its_inputs_further) {
  for (const auto mode : kModes) {
    CHECK_EQ(why_not(mode, of_mode(mode, {"DOWN_CONVERT_INPUTS"})),
             "it rounds its inputs to a smaller format");
  }
}

TEST(only_fp16_may_sum_in_less_than_float32) {
  for (const auto mode : kModes) {
    CHECK_EQ(why_not(mode, of_mode(mode, {"REDUCED_PRECISION_REDUCTION"})),
             mode == Mode::fp16 ? "" : "it sums in less than float32");
  }
}

TEST(notes_that_leave_the_formats_alone_are_taken) {
  for (const char* note :
       {"FFT", "WINOGRAD", "WINOGRAD_TILE_4x4", "NONDETERMINISTIC", "STRICT_NAN_PROP"}) {
    CHECK_EQ(why_not(Mode::fp32, {note}), "");
    CHECK_EQ(why_not(Mode::bf16_tc, {"TENSOR_CORE", note}), "");
  }
}

TEST(a_note_of_a_newer_cudnn_is_not_taken_on_trust) {
  const auto note = numerical_note(10);
  CHECK_EQ(note, "NUMERICAL_NOTE_10");
  for (const auto mode : kModes) {
    CHECK(why_not(mode, of_mode(mode, {note})).find(note) != std::string::npos);
  }
}

TEST(the_accumulator_is_the_smaller_of_what_was_asked_for_and_what_is_noted) {
  CHECK_EQ(accumulator(DataType::float32, {}), "float32");
  CHECK_EQ(accumulator(DataType::float32, {"TENSOR_CORE", "STRICT_NAN_PROP"}), "float32");
  CHECK_EQ(accumulator(DataType::float32, {"REDUCED_PRECISION_REDUCTION"}), "float16");
  CHECK_EQ(accumulator(DataType::float16, {}), "float16");
}

TEST(notes_have_cudnns_names) {
  std::set<std::string> different;
  for (std::int64_t value = 0; value < 10; ++value) different.insert(numerical_note(value));
  CHECK_EQ(different.size(), std::size_t{10});
  CHECK_EQ(numerical_note(0), "TENSOR_CORE");
  CHECK_EQ(numerical_note(1), "DOWN_CONVERT_INPUTS");
  CHECK_EQ(numerical_note(2), "REDUCED_PRECISION_REDUCTION");
  CHECK_EQ(numerical_note(3), "FFT");
  CHECK_EQ(behavior_note(0), "RUNTIME_COMPILATION");
  CHECK_EQ(behavior_note(99), "BEHAVIOR_NOTE_99");
}

TEST(an_engine_is_named_with_its_knobs_in_order) {
  CHECK_EQ(name(70, {{18, 1}, {2, 12}}), "engine 70 {tile 12, idx_mode 1}");
  CHECK_EQ(name(70, {{2, 12}, {18, 1}}), "engine 70 {tile 12, idx_mode 1}");
  CHECK_EQ(name(0, {}), "engine 0 {default}");
  CHECK_EQ(name(3, {{77, 5}}), "engine 3 {k77 5}");
}

// Where the tolerance of the check looks for them: "wino" and "fft".
TEST(fast_transforms_are_in_the_name) {
  CHECK_EQ(name(4, {}, {"WINOGRAD"}), "engine 4 (winograd) {default}");
  CHECK_EQ(name(4, {}, {"WINOGRAD", "WINOGRAD_TILE_4x4"}), "engine 4 (winograd 4x4) {default}");
  CHECK_EQ(name(4, {}, {"WINOGRAD_TILE_13x13"}), "engine 4 (winograd 13x13) {default}");
  CHECK_EQ(name(4, {}, {"FFT"}), "engine 4 (fft) {default}");
}

TEST(all_knob_values_are_combined) {
  const std::vector<std::string> six{
      "engine 7 {tile 0, use_tex 0}", "engine 7 {tile 0, use_tex 1}",
      "engine 7 {tile 1, use_tex 0}", "engine 7 {tile 1, use_tex 1}",
      "engine 7 {tile 2, use_tex 0}", "engine 7 {tile 2, use_tex 1}"};
  CHECK_EQ(combined({{2, 0, 2, 1}, {3, 0, 1, 1}}, 6), six);
  const std::vector<std::string> steps{"engine 7 {stages 1}", "engine 7 {stages 4}",
                                       "engine 7 {stages 7}"};
  CHECK_EQ(combined({{14, 1, 7, 3}}, 64), steps);
}

TEST(too_many_combinations_are_none) {
  CHECK(combined({{2, 0, 2, 1}, {3, 0, 1, 1}}, 5).empty());
  CHECK(combined({{17, 1, 2048, 1}}, 64).empty());
  CHECK(combined({}, 64).empty());
  CHECK(combined({{2, 3, 2, 1}}, 64).empty());
}

TEST(padding_done_apart_leaves_the_library_a_symmetric_rest) {
  struct Sides {
    std::int64_t top, left, bottom, right;
  };
  for (const auto& [top, left, bottom, right] :
       {Sides{0, 0, 1, 1}, {3, 2, 1, 2}, {0, 5, 0, 0}, {2, 2, 2, 2}}) {
    ConvProblem problem{};
    problem.in_size[0] = 14, problem.in_size[1] = 15;
    problem.pad_before[0] = top, problem.pad_before[1] = left;
    problem.pad_after[0] = bottom, problem.pad_after[1] = right;
    const auto padding = explicit_padding(problem);
    const auto& inner = padding.inner;
    const bool differs = top != bottom || left != right;
    CHECK_EQ(is_asymmetric(problem), differs);
    CHECK_EQ(inner.pad_before[0], inner.pad_after[0]);
    CHECK_EQ(inner.pad_before[1], inner.pad_after[1]);
    const auto [least, most] =
        std::minmax({padding.top, padding.left, padding.bottom, padding.right});
    CHECK_EQ(least, 0);
    CHECK_EQ(most > 0, differs);
    CHECK_EQ(inner.pad_before[0] + padding.top, top);
    CHECK_EQ(inner.pad_before[1] + padding.left, left);
    CHECK_EQ(inner.pad_after[0] + padding.bottom, bottom);
    CHECK_EQ(inner.pad_after[1] + padding.right, right);
    // The padded size, hence the output, is the same as before.
    CHECK_EQ(inner.in_size[0] + inner.pad_before[0] + inner.pad_after[0], 14 + top + bottom);
    CHECK_EQ(inner.in_size[1] + inner.pad_before[1] + inner.pad_after[1], 15 + left + right);
  }
}

// What a launch costs does not grow with the number of sets.
TEST(what_was_made_for_operands_is_found_again) {
  struct Wanted {
    long sets;
    std::size_t most;
  };
  for (const auto& [sets, most] : {Wanted{1, 4096}, {3, 3}, {1000, 4096}}) {
    const Rotation rotation(sets, 3, most);
    CHECK_EQ(rotation.made, sets);
    CHECK_EQ(rotation.looked_at, static_cast<std::size_t>(sets));
    CHECK_EQ(rotation.mistaken, 0);
  }
}

TEST(more_operands_than_are_kept_are_made_anew) {
  const Rotation rotation(5, 2, 4);
  CHECK(rotation.made > 5 && rotation.made <= 10);
  CHECK_EQ(rotation.mistaken, 0);
}
