// A kernel that does nothing.
#pragma once

struct CUstream_st;

namespace pydlbench::cuda {

void launch_empty(CUstream_st* stream);

}  // namespace pydlbench::cuda
