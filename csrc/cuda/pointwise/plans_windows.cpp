// Plans of local response normalisation: windows in registers, in shared memory, or read again.
#include <string>

#include "core/error.hpp"
#include "cuda/pointwise/draft.hpp"

namespace pydlbench::cuda::pointwise {

void draft_lrn(Draft& draft) {
  const double size = draft.parameters.take("local_size");
  PYDLBENCH_CHECK(
      size >= 1 && size < 1e9 && static_cast<int>(size) % 2 == 1 && size == static_cast<int>(size),
      "local_size is an odd number");
  const LrnParameters parameters{static_cast<int>(size),
                                 static_cast<float>(draft.parameters.take("alpha")),
                                 static_cast<float>(draft.parameters.take("beta")),
                                 static_cast<float>(draft.parameters.take("k"))};
  const auto type = draft.type;
  const auto image = draft.image();
  const bool forward = draft.is_forward();
  std::vector<TensorSpec> tensors{draft.map("src", Use::input)};
  if (!forward) tensors.push_back(draft.map("dst", Use::input));
  tensors.push_back(draft.map(forward ? "dst" : "src", Use::output));

  const auto add = [&](const std::string& name, LrnKernel kernel, std::int64_t chunk) {
    draft.add(name, tensors, 0, [=](const Pointers& p, void*, CUstream_st* stream) {
      if (forward) {
        lrn_forward(type, kernel, chunk, image, parameters, p[0], p[1], stream);
      } else {
        lrn_backward(type, kernel, chunk, image, parameters, p[0], p[1], p[2], stream);
      }
    });
  };

  add("element per thread", LrnKernel::elements, 0);
  if (image.channels_last && image.channels <= kLrnSharedChannels) {
    add("pixels in shared memory", LrnKernel::shared, 0);
  }
  if (!image.channels_last && lrn_in_registers(parameters.local_size)) {
    // Short runs of channels keep more threads busy; long ones read fewer channels twice.
    for (const std::int64_t chunk : {16, 32, 96}) {
      const bool whole = chunk >= image.channels;
      add(whole ? "window in registers, all channels"
                : "window in registers, " + std::to_string(chunk) + " channels",
          LrnKernel::registers, whole ? image.channels : chunk);
      if (whole) break;
    }
  }
}

}  // namespace pydlbench::cuda::pointwise
