// The end of a row: the sum of its weights becomes a factor and a log-sum-exp.
#pragma once

#include "simd.h"

namespace mh {
namespace MH_VARIANT {

struct Settled {
  float factor, lse;
};

// `sum` of exp(score - shift), `over` the same of the weights as they were multiplied with values. Without
// a key: 0, and -inf or what the sink gives. A sink is a key more, whose value is 0.
inline Settled settle(float sum, float over, double shift, const float *sink) {
  if (!sink) {
    if (sum == 0.f) return {0.f, -INF};
    return {1.f / over, static_cast<float>(shift + std::log(static_cast<double>(sum)))};
  }
  const double logit = static_cast<double>(*sink);
  if (sum == 0.f || logit == INF) return {0.f, *sink};
  const double keys = shift + std::log(static_cast<double>(sum));
  const double top = keys > logit ? keys : logit;
  const double lse = top == -INF ? top : top + std::log(std::exp(keys - top) + std::exp(logit - top));
  return {static_cast<float>(std::exp(keys - lse) / over), static_cast<float>(lse)};
}

// A row of the output; the memory behind it is not touched.
template <class T>
inline void write_row(const float *held, float factor, int64_t size, T *out) {
  for (int64_t c = 0; c < size; c += W) {
    // A row without a key is 0, whatever the sums hold.
    const vf x = factor == 0.f ? vf{} : load(held + c) * factor;
    if (size - c >= W) store(out + c, x);
    else store_some(out + c, x, static_cast<int>(size - c));
  }
}

}  // namespace MH_VARIANT
}  // namespace mh
