// What a variant offers: the same functions, compiled for other instructions. Arguments were checked by the entries.
#pragma once

#include "multihead_statistics.h"

namespace mh {

struct Kernels {
  int (*forward)(const mh_problem &problem, const mh_tensor &out, float *lse);
  int (*statistics)(const mh_problem &problem, const mh_wanted &wanted, const mh_found &found);
  int64_t (*packed_bytes)(const mh_problem &problem);
};

// Weak: the address is null where a variant was not compiled in.
#if defined(__x86_64__)
namespace avx2 { extern const Kernels kernels __attribute__((weak)); }
namespace avx512 { extern const Kernels kernels __attribute__((weak)); }
namespace avx512_bf16 { extern const Kernels kernels __attribute__((weak)); }
#elif defined(__aarch64__)
namespace neon { extern const Kernels kernels __attribute__((weak)); }
#endif

}  // namespace mh
