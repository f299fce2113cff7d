// Padding and cropping of convolution sources on the device; see shifted_copy.cuh.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/cudnn/padding.hpp"

struct CUstream_st;

namespace pydlbench::cuda::cudnn {

// Lays `source` into `target` with zeros around it.
void pad(void* target, const void* source, const ExplicitPadding& padding, bool channels_last,
         std::size_t bytes_per_element, CUstream_st* stream);

// The other way round: takes what lies inside the padding.
void crop(void* target, const void* source, const ExplicitPadding& padding, bool channels_last,
          std::size_t bytes_per_element, CUstream_st* stream);

}  // namespace pydlbench::cuda::cudnn
