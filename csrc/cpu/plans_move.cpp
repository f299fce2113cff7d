// Copies, permutations and fills: oneDNN's reorder, and loops of our own.
#include <algorithm>
#include <cstdint>
#include <cstring>
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
  memory::dims src, order, dst;  // as Python's layer has them
};

// Copies of elements whose index along each dimension is a function of the result's.
constexpr const char* kTaken[] = {"flip", "roll", "tile", "reflect", "replicate", "tril", "triu"};

MoveProblem problem_from(Fields fields) {
  MoveProblem p{};
  p.op = fields.take<std::string>("op");
  p.src = fields.take<std::vector<std::int64_t>>("src");
  p.order = fields.take<std::vector<std::int64_t>>("order");
  p.dst = fields.take<std::vector<std::int64_t>>("dst");
  fields.check_all_taken();
  if (std::find(std::begin(kTaken), std::end(kTaken), p.op) != std::end(kTaken)) {
    if (p.dst.empty()) p.dst = p.src;
    PYDLBENCH_CHECK(p.dst.size() == p.src.size(), "as many dimensions");
    return p;
  }
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

// The index of the source for each index of the result along a dimension.
std::vector<Index> taken(const MoveProblem& p, std::size_t axis) {
  const Index size = p.src[axis], before = (p.dst[axis] - size) / 2;
  const bool chosen = std::count(p.order.begin(), p.order.end(), axis) > 0;
  std::vector<Index> indices;
  for (Index i = 0; i < p.dst[axis]; ++i) {
    Index from = i % size;
    if (p.op == "flip" && chosen) from = size - 1 - i;
    if (p.op == "roll" && chosen) from = (i + size - size / 2) % size;
    if (p.op == "replicate") from = std::clamp<Index>(i - before, 0, size - 1);
    if (p.op == "reflect") {
      from = std::abs(i - before);
      if (from >= size) from = 2 * (size - 1) - from;
    }
    indices.push_back(from);
  }
  return indices;
}

// Neighbours of a row of the result that are neighbours in the source, too, perhaps in reverse.
struct Run {
  Index to, from, length, step;
};

std::vector<Run> runs_of(const std::vector<Index>& indices) {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const Index step = i == 0 ? 0 : indices[i] - indices[i - 1];
    if (!runs.empty() && (step == 1 || step == -1) &&
        (runs.back().length == 1 || step == runs.back().step)) {
      runs.back().step = step;
      ++runs.back().length;
    } else {
      runs.push_back({static_cast<Index>(i), indices[i], 1, 1});
    }
  }
  return runs;
}

template <typename T>
void reverse(const void* from, void* to, Index length) {
  const auto* source = static_cast<const T*>(from);
  auto* target = static_cast<T*>(to);
  for (Index i = 0; i < length; ++i) target[i] = source[-i];
}

void with_taken(PlanBuilder& builder, const MoveProblem& p) {
  const auto src = builder.vector("src", Use::input, p.src, builder.type);
  const auto dst = builder.vector("dst", Use::output, p.dst, builder.type);
  const auto item = memory::data_type_size(builder.type);
  const auto last = p.src.size() - 1;
  const bool lower = p.op == "tril", upper = p.op == "triu";
  const Index row = p.dst[last], height = last > 0 ? p.dst[last - 1] : 1;
  Index elements = 1;
  for (const auto size : p.dst) elements *= size;
  // Offsets of rows in the source by dimension, and the runs of a row.
  std::vector<std::vector<Index>> offsets;
  for (std::size_t axis = 0; axis < last; ++axis) {
    offsets.push_back(taken(p, axis));
    for (auto& index : offsets.back()) index *= src.desc.get_strides()[axis];
  }
  builder.add_streaming(
      "", {src, dst}, 0, [=, runs = runs_of(taken(p, last))](const Kernels& k, bool streaming) {
        return [=, &k](Pointers tensors, void*) {
          on_threads(elements, [&](Index thread, Index threads) {
            const Span span = share(elements / row, 1, thread, threads);
            for (Index r = span.begin; r < span.end; ++r) {
              Index offset = 0, left = r;
              for (std::size_t d = last; d-- > 0; left /= p.dst[d]) {
                offset += offsets[d][static_cast<std::size_t>(left % p.dst[d])];
              }
              if (lower || upper) {
                const Index border = std::min(row, r % height + (lower ? 1 : 0));
                const Index first = lower ? 0 : border, end = lower ? border : row;
                const Index zeros = lower ? border : 0;
                std::memset(at(tensors[1], r * row + zeros, item), 0,
                            static_cast<std::size_t>(row - (end - first)) * item);
                k.copy(at(tensors[0], offset + first, item), at(tensors[1], r * row + first, item),
                       end - first, streaming);
                continue;
              }
              for (const Run& run : runs) {
                const auto* from = at(tensors[0], offset + run.from, item);
                auto* to = at(tensors[1], r * row + run.to, item);
                if (run.step == 1) {
                  k.copy(from, to, run.length, streaming);
                } else if (item == sizeof(std::uint32_t)) {
                  reverse<std::uint32_t>(from, to, run.length);
                } else {
                  reverse<std::uint16_t>(from, to, run.length);
                }
              }
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
  if (!p.dst.empty()) {
    with_taken(builder, p);
    return candidates;
  }
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
