// Keys, values and queries in the order in which the tiles read them.
//
// Two ways to multiply: Single has float32 numbers, whatever dtype they came in; Pairs has two bfloat16 numbers in a
// 32-bit word, for the instructions that multiply such pairs and add both products to a float32.
#pragma once

#include "simd.h"

namespace mh {
namespace MH_VARIANT {

struct Single {
  using Word = float;
  static constexpr int PER_WORD = 1;
};
struct Pairs {
  using Word = uint32_t;
  static constexpr int PER_WORD = 2;
};

// Words that hold `size` numbers.
template <class E>
MH_INLINE int64_t words_of(int64_t size) {
  return (size + E::PER_WORD - 1) / E::PER_WORD;
}
MH_INLINE int64_t round_up(int64_t size, int64_t step) { return (size + step - 1) / step * step; }

// Up to W words of one row, from number `at` on; the rest is 0.
template <class E, class T>
MH_INLINE vf read_words(const T *row, int64_t at, int64_t size) {
  if constexpr (std::is_same_v<E, Single>) {
    return size - at >= W ? load(row + at) : load_some(row + at, static_cast<int>(size - at));
  } else {
    if (size - at >= 2 * W) return load(reinterpret_cast<const float *>(row + at));
    float lane[W] = {};
    std::memcpy(lane, row + at, sizeof(T) * static_cast<size_t>(size - at));
    return load(lane);
  }
}

// A panel of keys: word w of key j at [w * PANEL + j], 0 from key `keys` on.
template <class E, class T>
inline void pack_keys(const T *k, int64_t stride, int64_t keys, int64_t size, typename E::Word *packed) {
  float *out = reinterpret_cast<float *>(packed);
  const int64_t words = words_of<E>(size);
  for (int64_t j = 0; j < PANEL; j += W) {
    if (j >= keys) {
      for (int64_t w = 0; w < words; w++) store(out + w * PANEL + j, vf{});
      continue;
    }
    for (int64_t w = 0; w < words; w += W) {
      vf r[W];
      for (int t = 0; t < W; t++) r[t] = j + t < keys ? read_words<E>(k + (j + t) * stride, w * E::PER_WORD, size) : vf{};
      transpose(r);
      const int64_t some = words - w < W ? words - w : W;
      for (int64_t t = 0; t < some; t++) store(out + (w + t) * PANEL + j, r[t]);
    }
  }
}

MH_INLINE vi not_finite(vf x) { return (as_int(x) & 0x7f800000) == 0x7f800000; }

// A panel of values: Single at [j * width + c]; Pairs the words (value of key 2j, of key 2j + 1) at [j * width + c].
// `width` is the size rounded up to W. What lies beyond is 0. Returns whether any number is infinite or NaN.
template <class E, class T>
inline bool pack_values(const T *v, int64_t stride, int64_t keys, int64_t size, typename E::Word *packed) {
  float *out = reinterpret_cast<float *>(packed);
  const int64_t width = round_up(size, W);
  vi strange = {};
  for (int64_t j = 0; j < PANEL / E::PER_WORD; j++) {
    for (int64_t c = 0; c < width; c += W) {
      const int some = static_cast<int>(size - c < W ? size - c : W);
      const auto read = [&](int64_t key) {
        if (key >= keys) return vf{};
        return some == W ? load(v + key * stride + c) : load_some(v + key * stride + c, some);
      };
      if constexpr (std::is_same_v<E, Single>) {
        const vf x = read(j);
        strange |= not_finite(x);
        store(out + j * width + c, x);
      } else {
        const vf even = read(2 * j), odd = read(2 * j + 1);
        strange |= not_finite(even) | not_finite(odd);
        store(out + j * width + c, (vf)(((vu)even >> 16) | (vu)odd));
      }
    }
  }
  int32_t found = 0;
  for (int i = 0; i < W; i++) found |= strange[i];
  return found != 0;
}

// Two bfloat16 numbers, each times 0: 0, or NaN for what is infinite or NaN.
MH_INLINE vu pairs_times_zero(vu x) {
  const vu high = x & 0xffff0000u, low = x << 16;
  return ((vu)((vf)high * 0.f) & 0xffff0000u) | ((vu)((vf)low * 0.f) >> 16);
}

// MR queries: word w of row r at [w * MR + r], 0 from row `rows` on. The sign of the scale goes into them, so that what
// multiplies the scores later is positive; with a scale of 0 they become 0 (and NaN stays NaN).
template <class E, class T>
inline void pack_queries(const T *q, int64_t stride, int64_t rows, int64_t size, float sign, typename E::Word *packed) {
  float *out = reinterpret_cast<float *>(packed);
  const int64_t words = words_of<E>(size);
  for (int64_t w = 0; w < words; w += W) {
    const int some = static_cast<int>(words - w < W ? words - w : W);
    for (int r = 0; r < MR; r++) {
      vf x = r < rows ? read_words<E>(q + r * stride, w * E::PER_WORD, size) : vf{};
      if constexpr (std::is_same_v<E, Single>) {
        if (sign != 1.f) x = x * sign;
      } else {
        if (sign == -1.f) x = (vf)((vu)x ^ 0x80008000u);
        if (sign == 0.f) x = (vf)(pairs_times_zero((vu)x));
      }
      for (int t = 0; t < some; t++) out[(w + t) * MR + r] = x[t];
    }
  }
}

}  // namespace MH_VARIANT
}  // namespace mh
