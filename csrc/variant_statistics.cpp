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

}  // namespace MH_VARIANT
}  // namespace mh
