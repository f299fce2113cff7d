// The kernels of columns.cu and pooling.cu on the CPU, behind C functions.
#include "cuda/simt/host.hpp"

using T = float;
#include "columns.cu"
#undef FOR_EACH
#include "pooling.cu"

namespace {
// Fewer threads than elements, so that each kernel's loop goes round.
const dim3 kGrid(2), kBlock(32);
template <typename... Parameters, typename... Arguments>
void run(void (*kernel)(Parameters...), Arguments... arguments) {
  pydlbench::cuda::launch(kernel, kGrid, kBlock, 0, nullptr, arguments...);
}
}  // namespace

extern "C" {
void run_im2col(const T* a, T* b, const Convolution* c, long long n) { run(im2col, a, b, c, n); }
void run_im2row(const T* a, T* b, const Convolution* c, long long n) { run(im2row, a, b, c, n); }
void run_col2im(const T* a, T* b, const Convolution* c, long long n) { run(col2im, a, b, c, n); }
void run_maximum(const T* a, T* b, int* w, const Pooling* p, long long n) {
  run(maximum, a, b, w, p, n);
}
void run_maximum_backward(const T* a, const int* w, T* b, const Pooling* p, long long n) {
  run(maximum_backward, a, w, b, p, n);
}
void run_average(const T* a, T* b, const Pooling* p, long long n) { run(average, a, b, p, n); }
void run_average_backward(const T* a, T* b, const Pooling* p, long long n) {
  run(average_backward, a, b, p, n);
}
}
