// Copies with conversion between number formats, and random values, for test_convert.py.
#include <cstddef>
#include <cstdint>

#include "cuda/convert.hpp"
#include "cuda/uniform.hpp"

namespace {

using namespace pydlbench::cuda;

TensorSpec spec_of(int type, int rank, const std::int64_t* dims, const std::int64_t* strides) {
  return {"src",
          static_cast<DataType>(type),
          {dims, dims + rank},
          {strides, strides + rank},
          Use::input};
}

}  // namespace

extern "C" void convert_to_storage(const float* dense, int type, int rank, const std::int64_t* dims,
                                   const std::int64_t* strides, void* storage,
                                   std::int64_t max_blocks) {
  to_storage(dense, spec_of(type, rank, dims, strides), storage, nullptr, max_blocks);
}

extern "C" void convert_to_dense(int type, int rank, const std::int64_t* dims,
                                 const std::int64_t* strides, const void* storage, float* dense,
                                 std::int64_t max_blocks) {
  to_dense(spec_of(type, rank, dims, strides), storage, dense, nullptr, max_blocks);
}

// A batch of matrices whose blocks of contiguous elements have scales: values and scales in memory.
extern "C" std::size_t convert_with_scales(const float* dense, int type, int block,
                                           const std::int64_t* dims, const std::int64_t* strides,
                                           void* storage, void* scales, std::int64_t max_blocks) {
  auto spec = spec_of(type, 3, dims, strides);
  spec.scale_block = block;
  if (scales != nullptr) {
    to_storage(dense, spec, storage, nullptr, max_blocks);
    to_scales(spec, scales, nullptr, max_blocks);
  }
  return scale_bytes(spec);
}

extern "C" void make_uniform(std::int64_t elements, std::uint64_t key0, std::uint64_t key1,
                             int bits, float spacing, float* dense, std::int64_t max_blocks) {
  fill_uniform({elements, {key0, key1}, bits, spacing}, dense, nullptr, max_blocks);
}
