// The kernels of the CuPy backend on the CPU, for the tests in tests/backends/cupy.
#include "cuda/simt.hpp"

using T = float;
#include "columns.cu"

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
}
