// Compiled once for each variant, with MH_VARIANT as its name and the flags for its instructions.
#include "decode.h"
#include "prefill.h"

#include "kernels.h"

namespace mh {
namespace MH_VARIANT {

int statistics(const mh_problem &p, const mh_wanted &wanted, const mh_found &found);  // variant_statistics.cpp
int64_t packed_bytes(const mh_problem &p);

namespace {

template <class E, class T>
int run(const mh_problem &p, const mh_tensor &out, float *lse) {
  return has_few_rows(p) ? decode<T>(p, out, lse) : prefill<E, T>(p, out, lse);
}

int forward(const mh_problem &p, const mh_tensor &out, float *lse) {
  switch (p.dtype) {
    case MH_F32:
      return run<Single, float>(p, out, lse);
    case MH_BF16:
      return run<std::conditional_t<HAS_PAIRS, Pairs, Single>, bf16>(p, out, lse);
    default:
      return run<Single, half>(p, out, lse);
  }
}

}  // namespace

const Kernels kernels = {forward, statistics, packed_bytes};

}  // namespace MH_VARIANT
}  // namespace mh
