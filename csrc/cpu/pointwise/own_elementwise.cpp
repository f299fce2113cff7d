// Our own elementwise loops: ReLU, addition, gated units, dropout, L2 terms and optimizers.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <vector>

#include "cpu/pointwise/plan_builder.hpp"
#include "cpu/pointwise/threads.hpp"

namespace pydlbench::cpu::pointwise {

namespace {

// A cache line of elements of either type, so that no two threads write to the same one.
constexpr Index kGrain = 64;
// Elements of a part that a thread processes at a time.
constexpr Index kPart = 2048;

void arithmetic(const Kernels& k, Arithmetic op, std::initializer_list<const void*> sources,
                void* dst, Index count, bool streaming) {
  constexpr bool whole[] = {true, true, true};
  k.arithmetic(op, sources.begin(), whole, dst, count, 1.0f, streaming);
}

void plan_dropout(PlanBuilder& builder) {
  const Image image = builder.image();
  const double keep = builder.number("keep");
  const double limit = std::floor(keep * 4294967296.0);  // elements with a smaller hash are kept
  // With a limit of zero, one hash value cannot be excluded; the factor is zero, too.
  const Kept kept{static_cast<std::uint32_t>(std::max(limit, 1.0) - 1.0),
                  limit < 1.0 ? 0.0f : static_cast<float>(1.0 / keep)};
  const auto item = memory::data_type_size(builder.type);
  const char* from = builder.forward() ? "src" : "dst";
  const char* to = builder.forward() ? "dst" : "src";
  builder.add_streaming(
      "", {builder.map(from, Use::input), builder.map(to, Use::output)}, 0,
      [=](const Kernels& k, bool streaming) -> std::function<void(Pointers, void*)> {
        // Elements are numbered in N, C, H, W order. In a layout with that order, one loop covers
        // several images.
        if (!image.channels_last || image.pixels == 1) {
          return [=, &k](Pointers p, void*) {
            on_threads(image.elements(), [&](Index thread, Index threads) {
              const Span span = share(image.elements(), kGrain, thread, threads);
              k.dropout(at(p[0], span.begin, item), at(p[1], span.begin, item), span.count(),
                        static_cast<std::uint64_t>(span.begin), 1, kept, streaming);
            });
          };
        }
        return [=, &k](Pointers p, void*) {
          on_threads(image.elements(), [&](Index thread, Index threads) {
            const Span span = share(image.batch * image.pixels, 1, thread, threads);
            for (Index place = span.begin; place < span.end; ++place) {
              const Index n = place / image.pixels, pixel = place % image.pixels;
              const Index number = n * image.channels * image.pixels + pixel;
              const Index first = place * image.channels;
              k.dropout(at(p[0], first, item), at(p[1], first, item), image.channels,
                        static_cast<std::uint64_t>(number),
                        static_cast<std::uint64_t>(image.pixels), kept, streaming);
            }
          });
        };
      });
}

}  // namespace

void plan_glu(PlanBuilder& builder) {
  const auto& p = builder.problem;
  const Index rows = p.batch * p.channels * p.height, width = p.width;
  const auto item = memory::data_type_size(builder.type);
  const auto halves = [&](Use use) {
    return builder.vector("src", use, {rows, 2 * width}, builder.type);
  };
  const auto row = [&](Use use) { return builder.vector("dst", use, {rows, width}, builder.type); };
  const bool forward = builder.forward();
  std::vector<Argument> arguments{halves(Use::input), row(forward ? Use::output : Use::input)};
  if (!forward) arguments.push_back(halves(Use::output));
  builder.add_streaming("", arguments, 0, [=](const Kernels& k, bool streaming) {
    return [=, &k](Pointers t, void*) {
      on_threads(rows * width, [&](Index thread, Index threads) {
        const Span span = share(rows * width, kGrain, thread, threads);
        for (Index i = span.begin; i < span.end;) {
          const Index n = std::min({kPart, span.end - i, width - i % width});
          const Index first = i / width * 2 * width + i % width;
          const auto half = [&](int tensor, Index at_half) {
            return at(t[tensor], first + at_half * width, item);
          };
          void *x = half(0, 0), *y = half(0, 1), *dst = at(t[1], i, item);
          if (forward) {
            arithmetic(k, Arithmetic::glu, {x, y}, dst, n, streaming);
          } else {
            arithmetic(k, Arithmetic::glu, {dst, y}, half(2, 0), n, streaming);
            arithmetic(k, Arithmetic::glu_gradient, {x, y, dst}, half(2, 1), n, streaming);
          }
          i += n;
        }
      });
    };
  });
}

void plan_elementwise(PlanBuilder& builder) {
  if (builder.problem.op == "dropout") return plan_dropout(builder);
  const Index count = builder.image().elements();
  const auto item = memory::data_type_size(builder.type);
  // Adds loops that are independent of the order of elements.
  const auto add = [&](const std::vector<Argument>& arguments, auto run) {
    builder.add_streaming("", arguments, 0, [=](const Kernels& k, bool streaming) {
      return [=, &k](Pointers p, void*) {
        on_threads(count, [&](Index thread, Index threads) {
          const Span span = share(count, kGrain, thread, threads);
          run(
              k, [&](int tensor) { return at(p[tensor], span.begin, item); }, span.count(),
              streaming);
        });
      };
    });
  };
  if (builder.problem.op == "add") {
    add({builder.map("src", Use::input), builder.map("src2", Use::input),
         builder.map("dst", Use::output)},
        [](const Kernels& k, auto&& p, Index n, bool streaming) {
          k.add(p(0), p(1), p(2), n, streaming);
        });
  } else if (builder.problem.op == "swiglu") {
    std::vector<Argument> arguments{builder.map("src", Use::input),
                                    builder.map("src2", Use::input)};
    if (builder.forward()) {
      arguments.push_back(builder.map("dst", Use::output));
      return add(arguments, [](const Kernels& k, auto&& p, Index n, bool streaming) {
        arithmetic(k, Arithmetic::swiglu, {p(0), p(1)}, p(2), n, streaming);
      });
    }
    for (const auto* role : {"src", "src2"}) arguments.push_back(builder.map(role, Use::output));
    arguments.insert(arguments.begin() + 2, builder.map("dst", Use::input));
    add(arguments, [item](const Kernels& k, auto&& p, Index n, bool streaming) {
      // In parts that stay in the nearest cache, because all are read twice.
      for (Index i = 0; i < n; i += kPart) {
        const Index length = std::min(kPart, n - i);
        const auto part = [&](int tensor) { return at(p(tensor), i, item); };
        const void *x = part(0), *y = part(1), *dy = part(2);
        arithmetic(k, Arithmetic::swiglu_gradient, {x, y, dy}, part(3), length, streaming);
        arithmetic(k, Arithmetic::swiglu, {x, dy}, part(4), length, streaming);
      }
    });
  } else if (builder.forward()) {
    add({builder.map("src", Use::input), builder.map("dst", Use::output)},
        [](const Kernels& k, auto&& p, Index n, bool streaming) {
          k.relu(p(0), p(1), n, streaming);
        });
  } else {
    add({builder.map("src", Use::input), builder.map("dst", Use::input),
         builder.map("src", Use::output)},
        [](const Kernels& k, auto&& p, Index n, bool streaming) {
          k.relu_gradient(p(0), p(1), p(2), n, streaming);
        });
  }
}

namespace {

// Number of elements of a partial sum in float32; partial sums are added in float64.
constexpr Index kBlock = 16384;

void plan_norm(PlanBuilder& builder) {
  const Index count = builder.problem.channels;
  const auto item = memory::data_type_size(builder.type);
  const auto bytes = static_cast<std::size_t>(thread_count()) * 64;  // a cache line per thread
  builder.add_own("",
                  {builder.vector("weights", Use::input, {count}, builder.type),
                   builder.vector("dst", Use::output, {1}, memory::data_type::f32)},
                  bytes, [=](const Kernels& k) {
                    return [=, &k](Pointers p, void* workspace) {
                      auto* partial = static_cast<double*>(workspace);
                      on_threads(count, [&](Index thread, Index threads) {
                        const Span span = share(count, kGrain, thread, threads);
                        double sum = 0.0;
                        for (Index i = span.begin; i < span.end; i += kBlock) {
                          sum += k.sum_squares(at(p[0], i, item), std::min(kBlock, span.end - i));
                        }
                        partial[thread * 8] = sum;
                        wait_for_all();
                        if (thread > 0) return;
                        double all = 0.0;
                        for (Index t = 0; t < threads; ++t) all += partial[t * 8];
                        *static_cast<float*>(p[1]) = static_cast<float>(all / 2);
                      });
                    };
                  });
}

}  // namespace

void plan_vectors(PlanBuilder& builder) {
  const auto& op = builder.problem.op;
  if (op == "l2" && builder.forward()) return plan_norm(builder);
  const Index count = builder.problem.channels;
  const auto item = memory::data_type_size(builder.type);
  const auto elements = [&](const char* role, Use use) {
    return builder.vector(role, use, {count}, builder.type);
  };
  if (op == "momentum") {
    const auto rate = static_cast<float>(builder.number("rate"));
    const auto mu = static_cast<float>(builder.number("mu"));
    builder.add_own("",
                    {elements("gradient", Use::input), elements("weights", Use::updated),
                     elements("velocity", Use::updated)},
                    0, [=](const Kernels& k) {
                      return [=, &k](Pointers p, void*) {
                        on_threads(count, [&](Index thread, Index threads) {
                          const Span span = share(count, kGrain, thread, threads);
                          k.momentum(at(p[1], span.begin, item), at(p[2], span.begin, item),
                                     at(p[0], span.begin, item), span.count(), rate, mu);
                        });
                      };
                    });
    return;
  }
  // Thousands of executions accumulate thousands of small steps, which do not overflow.
  const bool sgd = op == "sgd";
  const auto factor = static_cast<float>(sgd ? -builder.number("rate") : builder.number("decay"));
  const char* from = sgd ? "gradient" : "weights";
  const char* to = sgd ? "weights" : "gradient";
  builder.add_own("", {elements(from, Use::input), elements(to, Use::updated)}, 0,
                  [=](const Kernels& k) {
                    return [=, &k](Pointers p, void*) {
                      on_threads(count, [&](Index thread, Index threads) {
                        const Span span = share(count, kGrain, thread, threads);
                        k.add_scaled(at(p[1], span.begin, item), at(p[0], span.begin, item),
                                     span.count(), factor);
                      });
                    };
                  });
}

}  // namespace pydlbench::cpu::pointwise
