// The threads of oneDNN's pool, and the division of work among them.
#pragma once

#include <algorithm>
#include <cstddef>

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "cpu/pointwise/kernels.hpp"

namespace pydlbench::cpu::pointwise {

// Fewer elements are processed before a second thread has started.
constexpr Index kMinSharedElements = 8192;

inline Index thread_count() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

// Makes streaming stores visible to later reads.
inline void store_fence() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

// Calls `work(thread, threads)` on all threads, or on one if there are few elements.
template <typename Work>
void on_threads(Index elements, Work&& work) {
#ifdef _OPENMP
#pragma omp parallel if (elements >= kMinSharedElements)
  {
    work(Index{omp_get_thread_num()}, Index{omp_get_num_threads()});
    store_fence();
  }
#else
  (void)elements;
  work(Index{0}, Index{1});
  store_fence();
#endif
}

// Within `work`: waits for the other threads.
inline void wait_for_all() {
#ifdef _OPENMP
#pragma omp barrier
#endif
}

struct Span {
  Index begin, end;
  Index count() const { return end - begin; }
};

// One thread's share of `count`, in multiples of `grain`.
inline Span share(Index count, Index grain, Index thread, Index threads) {
  const Index grains = (count + grain - 1) / grain;
  const Index each = grains / threads, more = grains % threads;
  const Index begin = thread * each + std::min(thread, more);
  const Index end = begin + each + (thread < more ? 1 : 0);
  return {std::min(count, begin * grain), std::min(count, end * grain)};
}

// Pointers into a tensor with elements of `item` bytes.
inline const void* at(const void* tensor, Index index, std::size_t item) {
  return static_cast<const char*>(tensor) + static_cast<std::size_t>(index) * item;
}
inline void* at(void* tensor, Index index, std::size_t item) {
  return static_cast<char*>(tensor) + static_cast<std::size_t>(index) * item;
}

}  // namespace pydlbench::cpu::pointwise
