// Copies planes with a shift by rows and elements, and zeros around them: padding if the target is
// larger, cropping if it is smaller (a negative shift). Memory-bound: each element is read and
// written once, in the widest packets for which all rows are aligned.
#include "cuda/cudnn/padding.hpp"

#include <cstddef>
#include <cstdint>

#include "core/error.hpp"
#include "cuda/simt.hpp"

namespace pydlbench::cuda::cudnn {

struct alignas(16) Packet16 {
  std::uint32_t words[4];
};

struct Shift {
  std::int64_t down, right;  // of the source inside the target, in rows and elements
};

// A block processes `blockDim.y` rows at a time, with threads along them.
template <typename T>
__global__ void shifted_copy(T* target, Planes to, const T* source, Planes from, Shift shift) {
  const auto rows = static_cast<std::uint32_t>(to.count * to.rows);
  const auto rows_per_plane = static_cast<std::uint32_t>(to.rows);
  for (std::uint32_t row = blockIdx.x * blockDim.y + threadIdx.y; row < rows;
       row += gridDim.x * blockDim.y) {
    const std::uint32_t plane = row / rows_per_plane;
    const std::int64_t y = static_cast<std::int64_t>(row - plane * rows_per_plane) - shift.down;
    const bool inside = y >= 0 && y < from.rows;
    const T* const read = source + (static_cast<std::int64_t>(plane) * from.rows + y) * from.row;
    T* const write = target + static_cast<std::int64_t>(row) * to.row;
    for (std::int64_t x = threadIdx.x; x < to.row; x += blockDim.x) {
      const std::int64_t at = x - shift.right;
      write[x] = inside && at >= 0 && at < from.row ? read[at] : T{};
    }
  }
}

// Converts units to packets of `elements` elements.
inline Planes in_packets(Planes planes, std::int64_t elements) {
  return {planes.count, planes.rows, planes.row / elements};
}

template <typename T>
void launch_shifted_copy_as(void* target, Planes to, const void* source, Planes from, Shift shift,
                            std::int64_t elements, cudaStream_t stream) {
  const Planes wide_to = in_packets(to, elements), wide_from = in_packets(from, elements);
  constexpr unsigned kThreads = 256;
  unsigned along = 8;  // threads of a row: a power of two, so that rows share warps evenly
  while (along < kThreads && static_cast<std::int64_t>(along) < wide_to.row) along *= 2;
  const unsigned down = kThreads / along;
  const auto rows = to.count * to.rows;
  const auto blocks = (rows + down - 1) / down;
  const auto grid = static_cast<unsigned>(blocks < 65536 ? blocks : 65536);
  launch(shifted_copy<T>, dim3(grid), dim3(along, down), 0, stream, static_cast<T*>(target),
         wide_to, static_cast<const T*>(source), wide_from,
         Shift{shift.down, shift.right / elements});
}

// `bytes` per element is 2 or 4; memory is aligned to 16 bytes.
inline void launch_shifted_copy(void* target, Planes to, const void* source, Planes from,
                                Shift shift, std::int64_t bytes, cudaStream_t stream) {
  PYDLBENCH_CHECK(bytes == 2 || bytes == 4, "elements of 2 or 4 bytes");
  PYDLBENCH_CHECK(to.count == from.count, "as many planes here as there");
  // Row numbers, and one step of all blocks beyond the last, fit into 32 bits.
  if (to.count * to.rows >= std::int64_t{1} << 31) {
    throw Unsupported("explicit padding of 2^31 rows and more");
  }
  const auto fits = [&](std::int64_t packet) {
    return to.row * bytes % packet == 0 && from.row * bytes % packet == 0 &&
           shift.right * bytes % packet == 0;
  };
  if (fits(16)) {
    launch_shifted_copy_as<Packet16>(target, to, source, from, shift, 16 / bytes, stream);
  } else if (fits(8)) {
    launch_shifted_copy_as<std::uint64_t>(target, to, source, from, shift, 8 / bytes, stream);
  } else if (fits(4)) {
    launch_shifted_copy_as<std::uint32_t>(target, to, source, from, shift, 4 / bytes, stream);
  } else {
    launch_shifted_copy_as<std::uint16_t>(target, to, source, from, shift, 1, stream);
  }
}

// The source of a convolution with and without its padding.
struct PaddingPlanes {
  Planes larger, smaller;
  Shift shift;  // of the smaller inside the larger
};

inline PaddingPlanes padding_planes(const ExplicitPadding& padding, bool channels_last) {
  const auto& inner = padding.inner;
  const auto planes = [&](std::int64_t height, std::int64_t width) {
    return planes_of(inner.batch, inner.in_channels, height, width, channels_last);
  };
  return {planes(inner.in_size[0], inner.in_size[1]),
          planes(inner.in_size[0] - padding.top - padding.bottom,
                 inner.in_size[1] - padding.left - padding.right),
          {padding.top, padding.left * (channels_last ? inner.in_channels : 1)}};
}

void pad(void* target, const void* source, const ExplicitPadding& padding, bool channels_last,
         std::size_t bytes_per_element, CUstream_st* stream) {
  const auto [larger, smaller, shift] = padding_planes(padding, channels_last);
  launch_shifted_copy(target, larger, source, smaller, shift,
                      static_cast<std::int64_t>(bytes_per_element), stream);
}

void crop(void* target, const void* source, const ExplicitPadding& padding, bool channels_last,
          std::size_t bytes_per_element, CUstream_st* stream) {
  const auto [larger, smaller, shift] = padding_planes(padding, channels_last);
  launch_shifted_copy(target, smaller, source, larger, {-shift.down, -shift.right},
                      static_cast<std::int64_t>(bytes_per_element), stream);
}

}  // namespace pydlbench::cuda::cudnn
