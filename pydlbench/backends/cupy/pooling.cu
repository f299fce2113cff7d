// Pooling: a thread for each element of the result, which gathers what belongs to it.
//
// Compiled by NVRTC for the element type T, and by a C++ compiler for tests. Images are (plane,
// row, column); the place of a maximum is its index in its plane.
#define FOR_EACH(index, count)                                                              \
  for (long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x; index < (count); \
       index += (long long)gridDim.x * blockDim.x)

struct Pooling {
  int height, width, out_height, out_width, kernel_height, kernel_width;
  int stride_height, stride_width, pad_top, pad_left;
  int whole;  // an average divides by the whole window, padding included
};

// What of a window is on the input, along one axis.
struct Span {
  int first, last;
};
__device__ __forceinline__ Span inside(int output, int stride, int pad, int kernel, int size) {
  const int first = output * stride - pad;
  return {first > 0 ? first : 0, first + kernel < size ? first + kernel : size};
}
// The outputs whose windows hold an element of the input, along one axis.
__device__ __forceinline__ Span covering(int input, int stride, int pad, int kernel, int outputs) {
  const int last = (input + pad) / stride + 1, before = input + pad - kernel;
  return {before < 0 ? 0 : before / stride + 1, last < outputs ? last : outputs};
}
__device__ __forceinline__ float share(const Pooling& p, const Span& rows, const Span& columns) {
  const int taps = (rows.last - rows.first) * (columns.last - columns.first);
  return (float)(p.whole ? p.kernel_height * p.kernel_width : taps);
}

// The places are not kept where `places` is null.
extern "C" __global__ void maximum(const T* images, T* results, int* places, const Pooling* sizes,
                                   long long count) {
  const Pooling p = *sizes;
  FOR_EACH(i, count) {
    const long long plane = i / p.out_width / p.out_height;
    const int out_row = (int)(i / p.out_width % p.out_height);
    const int out_column = (int)(i % p.out_width);
    const Span rows = inside(out_row, p.stride_height, p.pad_top, p.kernel_height, p.height);
    const Span columns = inside(out_column, p.stride_width, p.pad_left, p.kernel_width, p.width);
    const T* image = images + plane * p.height * p.width;
    int place = rows.first * p.width + columns.first;
    float best = (float)image[place];
    for (int row = rows.first; row < rows.last; ++row) {
      for (int column = columns.first; column < columns.last; ++column) {
        const float value = (float)image[row * p.width + column];
        if (value > best) {
          best = value;
          place = row * p.width + column;
        }
      }
    }
    results[i] = (T)best;
    if (places) places[i] = place;
  }
}

extern "C" __global__ void maximum_backward(const T* gradients, const int* places, T* images,
                                            const Pooling* sizes, long long count) {
  const Pooling p = *sizes;
  FOR_EACH(i, count) {
    const long long plane = i / p.width / p.height;
    const int row = (int)(i / p.width % p.height), column = (int)(i % p.width);
    const Span rows = covering(row, p.stride_height, p.pad_top, p.kernel_height, p.out_height);
    const Span columns = covering(column, p.stride_width, p.pad_left, p.kernel_width, p.out_width);
    float total = 0.0f;
    for (int out_row = rows.first; out_row < rows.last; ++out_row) {
      for (int out_column = columns.first; out_column < columns.last; ++out_column) {
        const long long at = (plane * p.out_height + out_row) * p.out_width + out_column;
        if (places[at] == row * p.width + column) total += (float)gradients[at];
      }
    }
    images[i] = (T)total;
  }
}

extern "C" __global__ void average(const T* images, T* results, const Pooling* sizes,
                                   long long count) {
  const Pooling p = *sizes;
  FOR_EACH(i, count) {
    const long long plane = i / p.out_width / p.out_height;
    const int out_row = (int)(i / p.out_width % p.out_height);
    const int out_column = (int)(i % p.out_width);
    const Span rows = inside(out_row, p.stride_height, p.pad_top, p.kernel_height, p.height);
    const Span columns = inside(out_column, p.stride_width, p.pad_left, p.kernel_width, p.width);
    const T* image = images + plane * p.height * p.width;
    float total = 0.0f;
    for (int row = rows.first; row < rows.last; ++row) {
      for (int column = columns.first; column < columns.last; ++column) {
        total += (float)image[row * p.width + column];
      }
    }
    results[i] = (T)(total / share(p, rows, columns));
  }
}

extern "C" __global__ void average_backward(const T* gradients, T* images, const Pooling* sizes,
                                            long long count) {
  const Pooling p = *sizes;
  FOR_EACH(i, count) {
    const long long plane = i / p.width / p.height;
    const int row = (int)(i / p.width % p.height), column = (int)(i % p.width);
    const Span over = covering(row, p.stride_height, p.pad_top, p.kernel_height, p.out_height);
    const Span across = covering(column, p.stride_width, p.pad_left, p.kernel_width, p.out_width);
    float total = 0.0f;
    for (int out_row = over.first; out_row < over.last; ++out_row) {
      const Span rows = inside(out_row, p.stride_height, p.pad_top, p.kernel_height, p.height);
      for (int out_column = across.first; out_column < across.last; ++out_column) {
        const Span columns =
            inside(out_column, p.stride_width, p.pad_left, p.kernel_width, p.width);
        const long long at = (plane * p.out_height + out_row) * p.out_width + out_column;
        total += (float)gradients[at] / share(p, rows, columns);
      }
    }
    images[i] = (T)total;
  }
}
