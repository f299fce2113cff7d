#include "cuda/cudnn/engines.hpp"

#include <optional>
#include <set>
#include <utility>

#include "core/error.hpp"
#include "cuda/cudnn/library.hpp"

namespace pydlbench::cuda::cudnn {
namespace {

static_assert(CUDNN_NUMERICAL_NOTE_TENSOR_CORE == 0 &&
                  CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS == 1 &&
                  CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION == 2 &&
                  CUDNN_NUMERICAL_NOTE_FFT == 3 && CUDNN_NUMERICAL_NOTE_WINOGRAD == 5 &&
                  CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13 == 8 &&
                  CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION == 0,
              "mode_filter.hpp names notes by value");

// More than any cuDNN 9 has.
constexpr std::size_t kMaxNotes = 64;
constexpr std::size_t kMaxKnobs = 64;
// Largest number of an engine's knob combinations to try; engines without tensor cores have 2
// to 48.
constexpr std::size_t kMaxCombinations = 64;

Notes numerical_notes(const Descriptor& engine) {
  Notes notes;
  for (const int value : engine.enumerations(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                             CUDNN_TYPE_NUMERICAL_NOTE, kMaxNotes)) {
    notes.push_back(numerical_note(value));
  }
  return notes;
}

Notes behavior_notes(const Descriptor& engine) {
  Notes notes;
  for (const int value :
       engine.enumerations(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, kMaxNotes)) {
    notes.push_back(behavior_note(value));
  }
  return notes;
}

std::vector<std::pair<std::int64_t, std::int64_t>> knobs_of(const Descriptor& configuration) {
  std::vector<std::pair<std::int64_t, std::int64_t>> knobs;
  for (const auto& knob : configuration.children(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                                 CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, kMaxKnobs)) {
    knobs.emplace_back(knob.enumeration(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE),
                       knob.integer(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE));
  }
  return knobs;
}

std::vector<KnobRange> knob_ranges(const Descriptor& engine) {
  std::vector<KnobRange> ranges;
  for (const auto& knob : engine.children(CUDNN_ATTR_ENGINE_KNOB_INFO,
                                          CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR, kMaxKnobs)) {
    ranges.push_back({knob.enumeration(CUDNN_ATTR_KNOB_INFO_TYPE, CUDNN_TYPE_KNOB_TYPE),
                      knob.integer(CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE),
                      knob.integer(CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE),
                      knob.integer(CUDNN_ATTR_KNOB_INFO_STRIDE)});
  }
  return ranges;
}

// 0 if cuDNN does not report it before the plan is built (before 9.2).
std::size_t workspace_of(const Descriptor& configuration) {
  const auto bytes = configuration.integer_or(CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, 0);
  return bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
}

// The engine configurations of one list; empty if cuDNN has no such list for the graph.
std::vector<Descriptor> listed(const OperationGraph& graph, const Target& target,
                               cudnnBackendHeurMode_t mode) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "cuDNN heuristics");
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.graph)
      .set_enum(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  target.tell_heuristics(heuristics);
  if (!heuristics.try_finalize()) return {};
  const auto count = heuristics.count(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR);
  return heuristics.children(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                             count);
}

// Nothing if the engine does not support these knob values.
std::optional<Descriptor> configured(const Descriptor& engine, const EngineChoice& choice) {
  Descriptor configuration(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "cuDNN engine configuration");
  configuration.set(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  std::vector<Descriptor> knobs;
  for (const auto& [type, value] : choice.knobs) {
    auto& knob = knobs.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "cuDNN knob");
    knob.set_enum(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, static_cast<int>(type))
        .set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, std::vector<std::int64_t>{value});
    knob.finalize();
  }
  std::vector<const Descriptor*> pointers;
  for (const auto& knob : knobs) pointers.push_back(&knob);
  if (!pointers.empty()) configuration.set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, pointers);
  // While the knobs exist: cuDNN does not document that it copies them before.
  if (!configuration.try_finalize()) return std::nullopt;
  return configuration;
}

class Collection {
 public:
  Collection(const OperationGraph& graph, const Target& target, const Objection& unwanted)
      : graph_(graph), target_(target), unwanted_(unwanted) {}

  void add_list(cudnnBackendHeurMode_t mode) {
    for (auto& configuration : listed(graph_, target_, mode)) {
      try {
        add_listed(std::move(configuration));
      } catch (const PrimitiveFailure&) {
        // Skip a configuration that cannot be read.
      }
    }
  }

  void add_unlisted() {
    const auto count = graph_.graph.integer(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT);
    for (std::int64_t index = 0; index < count; ++index) {
      try {
        add_engine(index);
      } catch (const PrimitiveFailure&) {
        // As above.
      }
    }
  }

  std::vector<Engine> result;

 private:
  void add_listed(Descriptor configuration) {
    const auto of_configuration =
        configuration.children(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
    PYDLBENCH_CHECK(!of_configuration.empty(), "a configuration has an engine");
    const auto& engine = of_configuration.front();
    // Read before it is moved from.
    EngineChoice choice{engine.integer(CUDNN_ATTR_ENGINE_GLOBAL_INDEX), knobs_of(configuration)};
    add(std::move(choice), numerical_notes(engine), behavior_notes(engine),
        std::move(configuration));
  }

  void add_engine(std::int64_t index) {
    Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR, "cuDNN engine");
    engine.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph_.graph)
        .set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, std::vector<std::int64_t>{index});
    target_.tell_engine(engine);
    if (!engine.try_finalize()) return;  // does not support this graph
    const auto numerical = numerical_notes(engine);
    if (unwanted_(numerical)) return;
    const auto behavior = behavior_notes(engine);
    if (known_.count(index) == 0) try_choice(engine, {index, {}}, numerical, behavior);
    if (has(numerical, "TENSOR_CORE") || has(behavior, "RUNTIME_COMPILATION")) return;
    for (const auto& choice : combinations(index, knob_ranges(engine), kMaxCombinations)) {
      try_choice(engine, choice, numerical, behavior);
    }
  }

  // Inconsistent knob values are detected when the plan is made, which is fast unless code has to
  // be compiled; that is left to Plan::build.
  void try_choice(const Descriptor& engine, const EngineChoice& choice, const Notes& numerical,
                  const Notes& behavior) {
    auto configuration = configured(engine, choice);
    if (!configuration) return;
    if (!has(behavior, "RUNTIME_COMPILATION")) {
      Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "cuDNN execution plan");
      target_.tell_plan(plan);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, *configuration);
      if (!plan.try_finalize()) return;
    }
    add(choice, numerical, behavior, std::move(*configuration));
  }

  void add(EngineChoice choice, Notes numerical, Notes behavior, Descriptor configuration) {
    known_.insert(choice.engine);
    if (unwanted_(numerical) || !seen_.insert(engine_text(choice, "")).second) return;
    const auto bytes = workspace_of(configuration);
    result.push_back({std::move(choice), std::move(numerical), std::move(behavior), bytes,
                      std::make_shared<const Descriptor>(std::move(configuration))});
  }

  const OperationGraph& graph_;
  const Target& target_;
  const Objection& unwanted_;
  std::set<std::int64_t> known_;
  std::set<std::string> seen_;
};

}  // namespace

std::vector<Engine> engines(const OperationGraph& graph, const Target& target,
                            const Objection& unwanted, bool sweep) {
  Collection collection(graph, target, unwanted);
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK}) {
    collection.add_list(mode);
  }
  if (sweep) collection.add_unlisted();
  return std::move(collection.result);
}

Descriptor execution_plan(const Descriptor& configuration, const Target& target) {
  Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "cuDNN execution plan");
  target.tell_plan(plan);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
  plan.finalize();
  return plan;
}

}  // namespace pydlbench::cuda::cudnn
