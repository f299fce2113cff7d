// Padding and cropping on the emulated GPU, for test_padding.py. Includes the source, so that a
// launch that is too large for a test's memory can be checked.
#include "cuda/cudnn/padding.cu"

using namespace pydlbench::cuda::cudnn;

namespace {

// sizes: batch, channels, height and width without the padding; top, left, bottom, right.
ExplicitPadding padding_of(const long* sizes) {
  ExplicitPadding padding{{}, sizes[4], sizes[5], sizes[6], sizes[7]};
  auto& inner = padding.inner;
  inner.batch = sizes[0], inner.in_channels = sizes[1];
  inner.in_size[0] = sizes[2] + sizes[4] + sizes[6];
  inner.in_size[1] = sizes[3] + sizes[5] + sizes[7];
  return padding;
}

}  // namespace

extern "C" {

void pad_source(void* target, const void* source, const long* sizes, int channels_last,
                long bytes) {
  pad(target, source, padding_of(sizes), channels_last != 0, static_cast<std::size_t>(bytes),
      nullptr);
}

void crop_gradient(void* target, const void* source, const long* sizes, int channels_last,
                   long bytes) {
  crop(target, source, padding_of(sizes), channels_last != 0, static_cast<std::size_t>(bytes),
       nullptr);
}

// 1 where a launch of so many rows is refused.
int refuses_rows(long planes, long rows) {
  try {
    launch_shifted_copy(nullptr, {planes, rows, 1}, nullptr, {planes, rows, 1}, {0, 0}, 4, nullptr);
  } catch (const pydlbench::Unsupported&) {
    return 1;
  }
  return 0;
}
}
