#include "cpu/plans.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace pydlbench::cpu {

std::string format_name(const dnnl::memory::desc& desc, const std::string& letters) {
  if (desc.get_format_kind() != dnnl::memory::format_kind::blocked) return "opaque";
  const auto dims = desc.get_dims();
  const auto strides = desc.get_strides();
  const auto blocks = desc.get_inner_blks();
  const auto indices = desc.get_inner_idxs();
  PYDLBENCH_CHECK(letters.size() == dims.size(), "one letter per dimension");

  std::vector<bool> blocked(dims.size(), false);
  for (const auto index : indices) blocked[static_cast<std::size_t>(index)] = true;

  std::vector<std::size_t> order(dims.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // A dimension of size one has the stride of a neighbour; keep the plain order of these.
  std::stable_sort(order.begin(), order.end(), [&](std::size_t left, std::size_t right) {
    if (strides[left] != strides[right]) return strides[left] > strides[right];
    return dims[left] > 1 && dims[right] == 1 && left < right;
  });

  std::string name;
  for (const auto index : order) {
    const char letter = letters[index];
    name += blocked[index] ? static_cast<char>(std::toupper(static_cast<unsigned char>(letter)))
                           : letter;
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    name += std::to_string(blocks[i]) + letters[static_cast<std::size_t>(indices[i])];
  }
  return name;
}

dnnl::engine& cpu_engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

std::string describe(const dnnl::error& error) {
  const char* status = "unknown status";
  switch (error.status) {
    case dnnl_out_of_memory:
      status = "out of memory";
      break;
    case dnnl_invalid_arguments:
      status = "invalid arguments";
      break;
    case dnnl_unimplemented:
      status = "not implemented for this CPU, precision or layout";
      break;
    case dnnl_runtime_error:
      status = "run-time error";
      break;
    default:
      break;
  }
  return std::string(status) + " (" + error.what() + ")";
}

namespace {

// Filled by static initialisers when the module is loaded.
std::map<std::string, Kind::Planner>& planners() {
  static std::map<std::string, Kind::Planner> all;
  return all;
}

bool same(const Candidate& left, const Candidate& right) {
  const auto& ours = left.run.arguments;
  const auto& theirs = right.run.arguments;
  return left.primitive == right.primitive && left.implementation == right.implementation &&
         std::equal(
             ours.begin(), ours.end(), theirs.begin(), theirs.end(),
             [](const auto& a, const auto& b) { return a.role == b.role && a.desc == b.desc; });
}

}  // namespace

Kind::Kind(const char* op, Planner planner) { planners()[op] = planner; }

std::vector<Candidate> find_candidates(const Fields& fields, Pass pass, Precision precision,
                                       bool thorough) {
  const auto found = planners().find(fields.op());
  if (found == planners().end()) {
    throw Unsupported(fields.kind() + ": there is no native kernel for CPUs");
  }
  return found->second(fields, pass, precision, thorough);
}

void append_new(std::vector<Candidate>& candidates, Candidate candidate,
                const std::vector<std::string>& letters) {
  const auto& arguments = candidate.run.arguments;
  PYDLBENCH_CHECK(letters.size() <= arguments.size(), "letters of the first arguments");
  for (std::size_t i = 0; i < letters.size(); ++i) {
    if (i > 0) candidate.layout += ", ";
    candidate.layout += arguments[i].role + " " + format_name(arguments[i].desc, letters[i]);
  }
  // A planner with several primitives has put the primitive's name in front.
  candidate.implementation += candidate.run.primitive.impl_info_str();
  candidate.is_reference = candidate.implementation.find("ref") != std::string::npos;
  const auto known = [&](const Candidate& other) { return same(candidate, other); };
  if (std::none_of(candidates.begin(), candidates.end(), known)) {
    candidates.push_back(std::move(candidate));
  }
}

std::int64_t Candidate::scratchpad_bytes() const {
  const auto ours = own ? own->workspace_bytes : 0;
  const auto theirs = run.primitive ? run.primitive.scratchpad_desc().get_size() : 0;
  return static_cast<std::int64_t>(ours + theirs);
}

std::int64_t Candidate::workspace_bytes() const {
  if (!run.primitive) return 0;
  const auto desc = run.primitive.query_md(dnnl::query::workspace_md);
  return desc ? static_cast<std::int64_t>(desc.get_size()) : 0;
}

}  // namespace pydlbench::cpu
