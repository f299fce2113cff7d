// Concatenation along channels, and its inverse: copies between rows of one tensor and of several,
// in the widest unit that divides all of them.
#include <algorithm>
#include <cstddef>

#include "cuda/pointwise/elementwise.cuh"

namespace pydlbench::cuda::pointwise {

namespace {

constexpr int kMaxPieces = 64;  // per launch; kernel parameters are at most 4 KB

// In units of U: piece p has columns start[p] .. start[p + 1] - 1 of the concatenated rows.
template <typename U>
struct Pieces {
  U* data[kMaxPieces];
  std::int64_t start[kMaxPieces + 1];
  int count;
  U* joined;
  std::int64_t row_units;  // of the concatenated tensor
};

template <typename U, int kUnroll, bool kJoin>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    concat_kernel(const Pieces<U> pieces, std::int64_t units, Divider by_width) {
  constexpr std::int64_t per_tile = std::int64_t{kThreads} * kUnroll;
  const std::int64_t origin = pieces.start[0];
  for (std::int64_t start = blockIdx.x * per_tile; start < units; start += gridDim.x * per_tile) {
    U values[kUnroll];
    U *from[kUnroll], *to[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::int64_t wanted = start + u * kThreads + threadIdx.x;
      const std::int64_t unit = wanted < units ? wanted : units - 1;
      const std::int64_t row = by_width.quotient(unit);
      const std::int64_t column = origin + unit - row * by_width.divisor();
      int p = 0;
      while (column >= pieces.start[p + 1]) ++p;
      const std::int64_t width = pieces.start[p + 1] - pieces.start[p];
      U* const piece = pieces.data[p] + row * width + (column - pieces.start[p]);
      U* const joined = pieces.joined + row * pieces.row_units + column;
      from[u] = kJoin ? piece : joined;
      to[u] = kJoin ? joined : piece;
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) values[u] = *from[u];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (start + u * kThreads + threadIdx.x < units) *to[u] = values[u];
    }
  }
}

template <typename U>
void launch_concat(Concat direction, const Tiling& tiling, std::int64_t rows,
                   const std::vector<Piece>& all, std::int64_t row_bytes, const void* joined,
                   CUstream_st* stream) {
  constexpr std::int64_t bytes = sizeof(U);
  std::int64_t start = 0;
  for (std::size_t done = 0; done < all.size(); done += kMaxPieces) {
    Pieces<U> pieces{};
    pieces.count = static_cast<int>(std::min<std::size_t>(kMaxPieces, all.size() - done));
    pieces.joined = static_cast<U*>(const_cast<void*>(joined));
    pieces.row_units = row_bytes / bytes;
    pieces.start[0] = start;
    for (int p = 0; p < pieces.count; ++p) {
      const Piece& piece = all[done + static_cast<std::size_t>(p)];
      pieces.data[p] = static_cast<U*>(const_cast<void*>(piece.data));
      pieces.start[p + 1] = start += piece.row_bytes / bytes;
    }
    const std::int64_t width = start - pieces.start[0], units = rows * width;
    const std::int64_t per_tile = std::int64_t{kThreads} * (tiling.unrolled ? 4 : 1);
    const auto blocks =
        static_cast<unsigned>(std::min((units + per_tile - 1) / per_tile, tiling.max_blocks));
    const Divider by_width(width, units);
    const auto go = [&](auto kernel) {
      launch(kernel, dim3(blocks), dim3(kThreads), 0, stream, pieces, units, by_width);
    };
    if (direction == Concat::join) {
      tiling.unrolled ? go(concat_kernel<U, 4, true>) : go(concat_kernel<U, 1, true>);
    } else {
      tiling.unrolled ? go(concat_kernel<U, 4, false>) : go(concat_kernel<U, 1, false>);
    }
  }
}

}  // namespace

void concat(Concat direction, const Tiling& tiling, std::int64_t rows,
            const std::vector<Piece>& pieces, const void* joined, CUstream_st* stream) {
  auto fits = reinterpret_cast<std::uintptr_t>(joined);
  std::int64_t row_bytes = 0;
  for (const Piece& piece : pieces) {
    fits |= reinterpret_cast<std::uintptr_t>(piece.data);
    fits |= static_cast<std::uintptr_t>(piece.row_bytes);
    row_bytes += piece.row_bytes;
  }
  const auto go = [&](auto unit) {
    launch_concat<decltype(unit)>(direction, tiling, rows, pieces, row_bytes, joined, stream);
  };
  if (fits % 16 == 0) {
    go(Bits16{});
  } else if (fits % 8 == 0) {
    go(std::uint64_t{});
  } else if (fits % 4 == 0) {
    go(std::uint32_t{});
  } else {
    go(std::uint16_t{});
  }
}

}  // namespace pydlbench::cuda::pointwise
