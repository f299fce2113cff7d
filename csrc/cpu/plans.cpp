#include "cpu/plans.hpp"

#include <cstddef>

namespace pydlbench::cpu {

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

void finish(Candidate& candidate, const std::vector<std::string>& letters) {
  const auto& arguments = candidate.run.arguments;
  PYDLBENCH_CHECK(letters.size() == arguments.size(), "letters for every argument");
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (i > 0) candidate.layout += ", ";
    candidate.layout += arguments[i].role + " " + format_name(arguments[i].desc, letters[i]);
  }
  candidate.implementation = candidate.run.primitive.impl_info_str();
  candidate.is_reference = candidate.implementation.find("ref") != std::string::npos;
}

void append_new(std::vector<Candidate>& candidates, Candidate candidate) {
  const auto same = [&](const Candidate& other) {
    if (other.primitive != candidate.primitive || other.implementation != candidate.implementation)
      return false;
    for (std::size_t i = 0; i < candidate.run.arguments.size(); ++i) {
      if (other.run.arguments[i].desc != candidate.run.arguments[i].desc) return false;
    }
    return true;
  };
  if (std::none_of(candidates.begin(), candidates.end(), same))
    candidates.push_back(std::move(candidate));
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
