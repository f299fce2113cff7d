// Lowering of convolution to a matrix product, and its reverse.
//
// Compiled by NVRTC for the element type T, and by a C++ compiler for tests. Images are (image,
// channel, row, column); indices are 64 bits wide, since the columns of a batch pass 2^31 elements.
#define FOR_EACH(index, count)                                                              \
  for (long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x; index < (count); \
       index += (long long)gridDim.x * blockDim.x)

struct Convolution {
  int channels, height, width, out_height, out_width, kernel_height, kernel_width;
  int stride_height, stride_width, pad_top, pad_left, dilation_height, dilation_width, groups;
};

// The element of an image that a tap of an output reads, or zero on padding.
__device__ __forceinline__ T tapped(const T* plane, const Convolution& c, int tap, int pixel) {
  const int row =
      pixel / c.out_width * c.stride_height + tap / c.kernel_width * c.dilation_height - c.pad_top;
  const int column =
      pixel % c.out_width * c.stride_width + tap % c.kernel_width * c.dilation_width - c.pad_left;
  if (row < 0 || row >= c.height || column < 0 || column >= c.width) return (T)0.0f;
  return plane[(long long)row * c.width + column];
}

// columns[image][channel, tap][pixel]; a thread has an element, neighbours have neighbouring
// pixels.
extern "C" __global__ void im2col(const T* images, T* columns, const Convolution* sizes,
                                  long long count) {
  const Convolution c = *sizes;
  const int taps = c.kernel_height * c.kernel_width;
  const int pixels = c.out_height * c.out_width;
  const long long size = (long long)c.height * c.width;
  FOR_EACH(i, count) {
    const int pixel = (int)(i % pixels);
    const long long filter = i / pixels;  // image, channel and tap
    columns[i] = tapped(images + filter / taps * size, c, (int)(filter % taps), pixel);
  }
}

// rows[image][group][pixel][channel of the group, tap]: what backward-weights sums over is a row.
extern "C" __global__ void im2row(const T* images, T* rows, const Convolution* sizes,
                                  long long count) {
  const Convolution c = *sizes;
  const int taps = c.kernel_height * c.kernel_width;
  const int pixels = c.out_height * c.out_width;
  const int channels = c.channels / c.groups;
  const long long size = (long long)c.height * c.width;
  FOR_EACH(i, count) {
    const int tap = (int)(i % taps);
    const int channel = (int)(i / taps % channels);
    const long long place = i / taps / channels;
    const int pixel = (int)(place % pixels);
    const long long plane = place / pixels * channels + channel;  // image and group before channel
    rows[i] = tapped(images + plane * size, c, tap, pixel);
  }
}

// The reverse of im2col: each element of an image gathers what its columns hold.
extern "C" __global__ void col2im(const T* columns, T* images, const Convolution* sizes,
                                  long long count) {
  const Convolution c = *sizes;
  const int taps = c.kernel_height * c.kernel_width;
  const long long pixels = (long long)c.out_height * c.out_width;
  FOR_EACH(i, count) {
    const int column = (int)(i % c.width);
    const int row = (int)(i / c.width % c.height);
    const T* filters = columns + i / c.width / c.height * taps * pixels;
    float total = 0.0f;
    for (int tap = 0; tap < taps; ++tap) {
      const int down = row + c.pad_top - tap / c.kernel_width * c.dilation_height;
      const int across = column + c.pad_left - tap % c.kernel_width * c.dilation_width;
      if (down < 0 || across < 0 || down % c.stride_height || across % c.stride_width) continue;
      const int out_row = down / c.stride_height, out_column = across / c.stride_width;
      if (out_row >= c.out_height || out_column >= c.out_width) continue;
      total += (float)filters[tap * pixels + (long long)out_row * c.out_width + out_column];
    }
    images[i] = (T)total;
  }
}
