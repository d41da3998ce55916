// Compiled once for each variant, with MH_VARIANT as its name and the flags for its instructions.
#include "prefill.h"

#include "kernels.h"

namespace mh {
namespace MH_VARIANT {
namespace {

int forward(const mh_problem &p, const mh_tensor &out, float *lse) {
  switch (p.dtype) {
    case MH_F32:
      return prefill<Single, float>(p, out, lse);
    case MH_BF16:
      return prefill<std::conditional_t<HAS_PAIRS, Pairs, Single>, bf16>(p, out, lse);
    default:
      return prefill<Single, half>(p, out, lse);
  }
}

}  // namespace

const Kernels kernels = {forward};

}  // namespace MH_VARIANT
}  // namespace mh
