// Copies, permutations and fills: oneDNN's reorder, and loops of our own.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/plans.hpp"
#include "cpu/pointwise/plan_builder.hpp"
#include "cpu/pointwise/threads.hpp"

namespace pydlbench::cpu {

namespace {

using namespace pointwise;

struct MoveProblem {
  std::string op;
  memory::dims src, order;  // as Python's layer has them
};

MoveProblem problem_from(Fields fields) {
  MoveProblem p{};
  p.op = fields.take<std::string>("op");
  p.src = fields.take<std::vector<std::int64_t>>("src");
  p.order = fields.take<std::vector<std::int64_t>>("order");
  fields.check_all_taken();
  if (p.op != "copy" && p.op != "permute" && p.op != "fill") {
    throw Unsupported("no move kernel named " + p.op);
  }
  PYDLBENCH_CHECK(p.order.size() == (p.op == "permute" ? p.src.size() : 0), "an order of all");
  if (p.order.empty()) {
    for (std::size_t i = 0; i < p.src.size(); ++i) p.order.push_back(static_cast<memory::dim>(i));
  }
  return p;
}

// A view of the source with the dimensions of the result.
Argument permuted_source(const PlanBuilder& builder, const MoveProblem& p) {
  const auto rank = p.src.size();
  memory::dims own(rank, 1), dims, strides;
  for (std::size_t i = rank; --i > 0;) own[i - 1] = own[i] * p.src[i];
  for (const auto axis : p.order) {
    dims.push_back(p.src[static_cast<std::size_t>(axis)]);
    strides.push_back(own[static_cast<std::size_t>(axis)]);
  }
  return {DNNL_ARG_FROM, "src", memory::desc(dims, builder.type, strides),
          memory::desc(dims, memory::data_type::f32, strides), false};
}

// Fills with zeros by a primitive that squares one broadcast zero.
void with_fill(PlanBuilder& builder, const Argument& dst, Index elements) {
  const auto item = memory::data_type_size(builder.type);
  builder.add_streaming("", {dst}, 0, [=](const Kernels& k, bool streaming) {
    return [=, &k](Pointers p, void*) {
      on_threads(elements, [&](Index thread, Index threads) {
        const Span span = share(elements, 64, thread, threads);
        const float zero = 0.0f;
        const void* from = &zero;
        const bool whole = false;
        k.arithmetic(Arithmetic::square, &from, &whole, at(p[0], span.begin, item), span.count(),
                     1.0f, streaming);
      });
    };
  });
}

// Copies contiguous rows one by one; permutations within a row are left to oneDNN.
void with_rows(PlanBuilder& builder, const Argument& src, const Argument& dst, Index elements) {
  const auto dims = dst.desc.get_dims(), strides = src.desc.get_strides();
  if (strides.back() != 1) return;
  const Index row = dims.back();
  const auto item = memory::data_type_size(builder.type);
  builder.add_streaming("", {src, dst}, 0, [=](const Kernels& k, bool streaming) {
    return [=, &k](Pointers p, void*) {
      on_threads(elements, [&](Index thread, Index threads) {
        const Span span = share(elements, 64, thread, threads);
        for (Index i = span.begin; i < span.end;) {
          const Index length = std::min(span.end - i, row - i % row);
          Index offset = 0, left = i;
          for (std::size_t d = dims.size(); d-- > 0; left /= dims[d]) {
            offset += left % dims[d] * strides[d];
          }
          k.copy(at(p[0], offset, item), at(p[1], i, item), length, streaming);
          i += length;
        }
      });
    };
  });
}

std::vector<Candidate> move_candidates(const Fields& fields, Pass pass, Precision precision,
                                       bool thorough) {
  const auto p = problem_from(fields);
  std::vector<Candidate> candidates;
  PointwiseProblem named{};
  named.op = p.op;
  PlanBuilder builder{named,    pass,       supported_type("move", pass, precision),
                      thorough, candidates, "plain"};
  const auto src = permuted_source(builder, p);
  auto dst = builder.vector("dst", Use::output, src.desc.get_dims(), builder.type, DNNL_ARG_TO);
  Index elements = 1;
  for (const auto size : p.src) elements *= size;
  if (p.op == "fill") {
    with_fill(builder, dst, elements);
  } else {
    with_onednn(p.op, [&] {
      builder.add_primitive("reorder",
                            dnnl::reorder::primitive_desc(cpu_engine(), src.desc, cpu_engine(),
                                                          dst.desc, user_scratchpad()),
                            {src, dst});
    });
    with_rows(builder, src, dst, elements);
  }
  for (auto& one : candidates) one.layout = "plain";
  return candidates;
}

const Kind move("move", move_candidates);

}  // namespace

}  // namespace pydlbench::cpu
