// Our own loops over rows: concatenation and its gradient, softmax with cross entropy, RMS
// normalisation, and cumulative sums.
#include <algorithm>

#include "cpu/pointwise/channels.hpp"
#include "cpu/pointwise/plan_builder.hpp"
#include "cpu/pointwise/threads.hpp"

namespace pydlbench::cpu::pointwise {

void plan_concat(PlanBuilder& builder) {
  const Image image = builder.image();
  const bool forward = builder.forward();
  const auto& sources = builder.problem.sources;
  const auto item = memory::data_type_size(builder.type);
  // The concatenated tensor consists of rows (images or pixels) with one piece of each source.
  const Index per_channel = image.channels_last ? 1 : image.pixels;
  const Index row = image.channels * per_channel;
  std::vector<Argument> parts;
  std::vector<Index> starts{0};  // of the pieces in a row
  for (std::size_t i = 0; i < sources.size(); ++i) {
    parts.push_back(builder.map(i == 0 ? "src" : "src" + std::to_string(i + 1),
                                forward ? Use::input : Use::output, kNoArgument, sources[i]));
    starts.push_back(starts.back() + sources[i] * per_channel);
  }
  PYDLBENCH_CHECK(starts.back() == row, "the sources have all channels");
  auto arguments = parts;
  const auto whole = builder.map("dst", forward ? Use::output : Use::input);
  arguments.insert(forward ? arguments.end() : arguments.begin(), whole);
  const std::size_t whole_at = forward ? parts.size() : 0, parts_at = forward ? 0 : 1;
  const Index elements = image.elements();
  builder.add_streaming("", arguments, 0, [=](const Kernels& k, bool streaming) {
    return [=, &k](Pointers p, void*) {
      on_threads(elements, [&](Index thread, Index threads) {
        const Span span = share(elements, 64, thread, threads);
        for (Index from = span.begin; from < span.end;) {
          const Index image_or_pixel = from / row, within = from % row;
          std::size_t part = 0;
          while (within >= starts[part + 1]) ++part;
          const Index length = std::min(span.end - from, starts[part + 1] - within);
          const Index width = starts[part + 1] - starts[part];
          void* joined = at(p[whole_at], from, item);
          void* piece =
              at(p[parts_at + part], image_or_pixel * width + within - starts[part], item);
          k.copy(forward ? piece : joined, forward ? joined : piece, length, streaming);
          from += length;
        }
      });
    };
  });
}

void plan_softmax(PlanBuilder& builder) {
  const Index rows = builder.problem.batch, classes = builder.problem.channels;
  const auto item = memory::data_type_size(builder.type);
  const auto labels = builder.vector("labels", Use::input, {rows}, memory::data_type::s32);
  if (!builder.forward()) {
    const float scale = 1.0f / static_cast<float>(rows);
    builder.add_own("", {builder.map("dst", Use::input), labels, builder.map("src", Use::output)},
                    0, [=](const Kernels& k) {
                      return [=, &k](Pointers p, void*) {
                        on_threads(rows * classes, [&](Index thread, Index threads) {
                          const Span span = share(rows, 1, thread, threads);
                          for (Index n = span.begin; n < span.end; ++n) {
                            k.softmax_gradient(at(p[0], n * classes, item),
                                               at(p[2], n * classes, item), classes,
                                               static_cast<const std::int32_t*>(p[1])[n], scale);
                          }
                        });
                      };
                    });
    return;
  }
  // A loss per row, then the exponentials of one row per thread, on separate cache lines.
  const Index lossy = (rows + 15) / 16 * 16, line = (classes + 31) / 16 * 16;
  const auto bytes = static_cast<std::size_t>(lossy + thread_count() * line) * sizeof(float);
  builder.add_own(
      "",
      {builder.map("src", Use::input), labels, builder.map("dst", Use::output),
       builder.vector("loss", Use::output, {1}, memory::data_type::f32)},
      bytes, [=](const Kernels& k) {
        return [=, &k](Pointers p, void* workspace) {
          auto* losses = static_cast<float*>(workspace);
          on_threads(rows * classes, [&](Index thread, Index threads) {
            float* buffer = losses + lossy + thread * line;
            const Span span = share(rows, 1, thread, threads);
            for (Index n = span.begin; n < span.end; ++n) {
              losses[n] = k.softmax(at(p[0], n * classes, item), at(p[2], n * classes, item),
                                    classes, static_cast<const std::int32_t*>(p[1])[n], buffer);
            }
            wait_for_all();
            if (thread > 0) return;
            double sum = 0.0;
            for (Index n = 0; n < rows; ++n) sum += losses[n];
            *static_cast<float*>(p[3]) = static_cast<float>(sum / static_cast<double>(rows));
          });
        };
      });
}

// The gradient of the weights is summed in float32 over blocks of rows, then in float64.
void plan_rmsnorm(PlanBuilder& builder) {
  constexpr Index kRows = 128;
  const auto& p = builder.problem;
  const Index rows = p.batch * p.channels * p.height, width = p.width;
  const auto epsilon = static_cast<float>(builder.number("epsilon"));
  const auto item = memory::data_type_size(builder.type);
  const auto images = [&](const char* role, Use use) {
    return builder.vector(role, use, {rows, width}, builder.type);
  };
  const auto weights = [&](Use use) {
    return builder.vector("weights", use, {width}, builder.type);
  };
  if (builder.forward()) {
    builder.add_own("",
                    {images("src", Use::input), weights(Use::input), images("dst", Use::output)}, 0,
                    [=](const Kernels& k) {
                      return [=, &k](Pointers t, void*) {
                        on_threads(rows * width, [&](Index thread, Index threads) {
                          const Span span = share(rows, 1, thread, threads);
                          for (Index row = span.begin; row < span.end; ++row) {
                            k.rmsnorm(at(t[0], row * width, item), t[1],
                                      at(t[2], row * width, item), width, epsilon);
                          }
                        });
                      };
                    });
    return;
  }
  // Per thread, a row of float32 sums and one of float64.
  const Index line = padded_floats(width);
  const Index room = 3 * line * static_cast<Index>(sizeof(float));
  builder.add_own("",
                  {images("src", Use::input), images("dst", Use::input), weights(Use::input),
                   images("src", Use::output), weights(Use::output)},
                  static_cast<std::size_t>(thread_count() * room), [=](const Kernels& k) {
                    return [=, &k](Pointers t, void* workspace) {
                      const auto sums_of = [&](Index thread) {
                        return static_cast<float*>(at(workspace, thread * room, 1));
                      };
                      const auto totals_of = [&](Index thread) {
                        return reinterpret_cast<double*>(sums_of(thread) + line);
                      };
                      on_threads(rows * width, [&](Index thread, Index threads) {
                        float* sums = sums_of(thread);
                        double* totals = totals_of(thread);
                        std::fill(totals, totals + width, 0.0);
                        const Span span = share(rows, 1, thread, threads);
                        for (Index first = span.begin; first < span.end; first += kRows) {
                          std::fill(sums, sums + width, 0.0f);
                          const Index last = std::min(span.end, first + kRows);
                          for (Index row = first; row < last; ++row) {
                            const Index start = row * width;
                            k.rmsnorm_gradient(at(t[0], start, item), at(t[1], start, item), t[2],
                                               at(t[3], start, item), sums, width, epsilon);
                          }
                          for (Index c = 0; c < width; ++c) totals[c] += double{sums[c]};
                        }
                        wait_for_all();
                        const Span columns = share(width, 16, thread, threads);
                        for (Index c = columns.begin; c < columns.end; ++c) {
                          double total = 0.0;
                          for (Index other = 0; other < threads; ++other)
                            total += totals_of(other)[c];
                          put(t[4], c, item, static_cast<float>(total));
                        }
                      });
                    };
                  });
}

void plan_cumsum(PlanBuilder& builder) {
  const auto images = builder.dims();
  const auto axis = static_cast<std::size_t>(builder.number("axis"));
  Index outer = 1, inner = 1;
  for (std::size_t i = 0; i < axis; ++i) outer *= images[i];
  for (std::size_t i = axis + 1; i < images.size(); ++i) inner *= images[i];
  const Index count = images[axis], pieces = (inner + kMaxColumns - 1) / kMaxColumns;
  const auto item = memory::data_type_size(builder.type);
  const bool from_end = !builder.forward();
  const auto tensor = [&](const char* role, Use use) {
    return builder.vector(role, use, images, builder.type);
  };
  const std::vector<Argument> arguments{tensor(from_end ? "dst" : "src", Use::input),
                                        tensor(from_end ? "src" : "dst", Use::output)};
  builder.add_own("", arguments, 0, [=](const Kernels& k) {
    return [=, &k](Pointers p, void*) {
      on_threads(outer * count * inner, [&](Index thread, Index threads) {
        if (inner == 1) {
          const Span rows = share(outer, 8, thread, threads);
          k.cumsum(at(p[0], rows.begin * count, item), at(p[1], rows.begin * count, item),
                   rows.count(), count, from_end);
          return;
        }
        const Span span = share(outer * pieces, 1, thread, threads);
        for (Index one = span.begin; one < span.end; ++one) {
          const Index column = one % pieces * kMaxColumns;
          const Index first = one / pieces * count * inner + column;
          k.cumsum_columns(at(p[0], first, item), at(p[1], first, item), count, inner,
                           std::min(kMaxColumns, inner - column), from_end);
        }
      });
    };
  });
}

}  // namespace pydlbench::cpu::pointwise
