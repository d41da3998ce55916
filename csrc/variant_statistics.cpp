// Compiled once for each variant, like variant.cpp.
#include "statistics.h"

namespace mh {
namespace MH_VARIANT {

int statistics(const mh_problem &p, const mh_wanted &wanted, const mh_found &found) {
  switch (p.dtype) {
    case MH_F32:
      return measure<Single, float>(p, wanted, found);
    case MH_BF16:
      return measure<std::conditional_t<HAS_PAIRS, Pairs, Single>, bf16>(p, wanted, found);
    default:
      return measure<Single, half>(p, wanted, found);
  }
}

int64_t packed_bytes(const mh_problem &p) {
  const bool pairs = HAS_PAIRS && p.dtype == MH_BF16;
  const int64_t words = pairs ? words_of<Pairs>(p.head_dim) : words_of<Single>(p.head_dim);
  return p.batch * p.kv_heads * ((p.kv_len + PANEL - 1) / PANEL) * words * PANEL * 4;
}

}  // namespace MH_VARIANT
}  // namespace mh
