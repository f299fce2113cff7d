#include "cuda/cudnn/shifted_copy.cuh"
#include "cuda/cudnn/shifted_copy.hpp"

namespace pydlbench::cuda::cudnn {

void pad(void* target, const void* source, const ExplicitPadding& padding, bool channels_last,
         std::size_t bytes_per_element, CUstream_st* stream) {
  launch_pad(target, source, padding, channels_last, static_cast<std::int64_t>(bytes_per_element),
             stream);
}

void crop(void* target, const void* source, const ExplicitPadding& padding, bool channels_last,
          std::size_t bytes_per_element, CUstream_st* stream) {
  launch_crop(target, source, padding, channels_last, static_cast<std::int64_t>(bytes_per_element),
              stream);
}

}  // namespace pydlbench::cuda::cudnn
