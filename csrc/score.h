// Tiles of scores in registers, and what may be done to them before they become weights: scale, softcap, bias.
#pragma once

#include "pack.h"
#include "sight.h"

namespace mh {
namespace MH_VARIANT {

// What is brought nearer while a product is made, so many bytes with each step of it. All at once would wait: a processor
// has room for some twenty lines that are on their way.
struct Ahead {
  const char *from;
  int64_t bytes;

  MH_INLINE void step(int64_t place) const {
    const char *here = from + place * bytes;
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(here + at, 0, 2);
  }
};

// acc[r][c] = products of MR queries with N vectors of keys; `k` points at the first of these keys within its panel.
template <class E, int N, bool FETCH = false>
MH_INLINE void multiply(const typename E::Word *q, const typename E::Word *k, int64_t words, vf (&acc)[MR][N],
                        [[maybe_unused]] Ahead ahead = {}) {
  each<MR>([&](auto r) __attribute__((always_inline)) {
    each<N>([&](auto c) __attribute__((always_inline)) { acc[r][c] = vf{}; });
  });
#pragma GCC unroll 2
  for (int64_t w = 0; w < words; w++) {
    if constexpr (FETCH) ahead.step(w);
    if constexpr (std::is_same_v<E, Single>) {
      vf key[N];
      each<N>([&](auto c) __attribute__((always_inline)) { key[c] = load(k + w * PANEL + c * W); });
      each<MR>([&](auto r) __attribute__((always_inline)) {
        const vf x = splat(q[w * MR + r]);
        each<N>([&](auto c) __attribute__((always_inline)) { acc[r][c] = fma(x, key[c], acc[r][c]); });
      });
    }
#if defined(__AVX512BF16__)
    else {
      __m512bh key[N];
      each<N>([&](auto c) __attribute__((always_inline)) {
        key[c] = (__m512bh)_mm512_loadu_si512(k + w * PANEL + c * W);
      });
      each<MR>([&](auto r) __attribute__((always_inline)) {
        const __m512bh x = (__m512bh)_mm512_set1_epi32(static_cast<int>(q[w * MR + r]));
        each<N>([&](auto c) __attribute__((always_inline)) { acc[r][c] = _mm512_dpbf16_ps(acc[r][c], x, key[c]); });
      });
    }
#endif
  }
}

// One number of the given dtype as float32.
MH_INLINE float number_at(const void *data, int32_t dtype, int64_t at) {
  if (dtype == MH_F32) return static_cast<const float *>(data)[at];
  if (dtype == MH_BF16) return to_float(static_cast<const bf16 *>(data)[at]);
  return to_float(static_cast<const half *>(data)[at]);
}

// Keys of a panel that a bias of -inf shuts.
MH_INLINE uint64_t shut_by(const float *bias) {
  int32_t bits[PANEL];
  std::memcpy(bits, bias, sizeof bits);
  return bits_of_equal(bits, static_cast<int32_t>(0xff800000u), PANEL);
}

// Softcap and bias of one batch row and head.
class Adjust {
 public:
  Adjust(const mh_problem &p, int64_t batch, int64_t head) : p_(p), head_(head) {
    dense_at_ = batch * p.bias.dense_batch + head * p.bias.dense_head;
  }

  static bool needed(const mh_problem &p) { return p.softcap > 0.f || has_bias(p); }
  static bool has_bias(const mh_problem &p) { return p.bias.slopes || p.bias.table || p.bias.dense; }

  // What is added to the scores of some queries and a panel of keys: (MR, PANEL), 0 beyond both.
  void fill(const Panel &panel, int64_t row, int rows, float *bias) const {
    std::memset(bias, 0, sizeof(float) * MR * PANEL);
    if (!has_bias(p_)) return;
    for (int r = 0; r < rows; r++) {
      float *line = bias + r * PANEL;
      const int64_t ahead = p_.q_offset + row + r - panel.first;  // distance to the panel's first key
      if (p_.bias.slopes) add_slope(p_.bias.slopes[head_], ahead, panel.keys, line);
      if (p_.bias.table) add_table(p_.bias.table + head_ * p_.bias.table_len, ahead, panel.keys, line);
      if (p_.bias.dense) add_dense(row + r, panel, line);
    }
  }

 private:
  const mh_problem &p_;
  int64_t head_, dense_at_;

  static void add_slope(float slope, int64_t ahead, int64_t keys, float *line) {
    for (int64_t j = 0; j < keys; j++) {
      const int64_t far = ahead - j;
      line[j] -= slope * static_cast<float>(far < 0 ? -far : far);
    }
  }

  void add_table(const float *table, int64_t ahead, int64_t keys, float *line) const {
    const int64_t from = ahead - p_.bias.table_first;
    for (int64_t j = 0; j < keys; j++) line[j] += table[at_least(0, at_most(from - j, p_.bias.table_len - 1))];
  }

  void add_dense(int64_t row, const Panel &panel, float *line) const {
    const mh_bias &bias = p_.bias;
    const int64_t at = dense_at_ + row * bias.dense_row + panel.first * bias.dense_col;
    if (bias.dense_dtype == MH_F32 && bias.dense_col == 1) {
      const float *from = static_cast<const float *>(bias.dense) + at;
      for (int64_t j = 0; j < panel.keys; j++) line[j] += from[j];
      return;
    }
    for (int64_t j = 0; j < panel.keys; j++) line[j] += number_at(bias.dense, bias.dense_dtype, at + j * bias.dense_col);
  }
};

// How products become scores, for the whole call. Plain: the scale alone, which is taken with the exponential.
struct Scoring {
  bool plain;
  float sign;         // goes into the queries
  float scale;        // of products, natural units
  float to_log2;      // from what `finish` leaves to powers of 2
  float to_shift;     // from there to the units of shifts: powers of 2 if plain, else natural ones
  float span;         // from those to powers of 2
  float softcap, inverse_cap;

  explicit Scoring(const mh_problem &p) {
    const float size = p.scale < 0.f ? -p.scale : p.scale;
    plain = !Adjust::needed(p);
    sign = p.scale < 0.f ? -1.f : p.scale > 0.f ? 1.f : 0.f;
    scale = size > 0.f ? size : 1.f;
    to_log2 = plain ? scale * LOG2E : LOG2E;
    to_shift = plain ? to_log2 : 1.f;
    span = plain ? 1.f : LOG2E;
    softcap = p.softcap;
    inverse_cap = p.softcap > 0.f ? 1.f / p.softcap : 0.f;
  }

  double natural(float shift) const { return shift * (plain ? 0.69314718055994530942 : 1.0); }

  // Scores in natural units; bias as `Adjust::fill` leaves it, from the tile's first key on.
  template <int N>
  MH_INLINE void finish(vf (&acc)[MR][N], const float *bias) const {
    const vf by = splat(scale), cap = splat(softcap), inverse = splat(inverse_cap);
    for (int r = 0; r < MR; r++) {
      for (int c = 0; c < N; c++) {
        vf s = acc[r][c] * by;
        if (softcap > 0.f) s = cap * tanhv(s * inverse);
        acc[r][c] = s + load(bias + r * PANEL + c * W);
      }
    }
  }
};

// Keys that may not be seen get -inf.
template <int N>
MH_INLINE void hide(vf (&acc)[MR][N], const uint64_t *words, int at) {
  each<MR>([&](auto r) __attribute__((always_inline)) {
    const uint64_t word = words[r] >> at;
    each<N>([&](auto c) __attribute__((always_inline)) {
      acc[r][c] = pick(static_cast<uint32_t>(word >> (c * W)), acc[r][c], splat(-INF));
    });
  });
}

}  // namespace MH_VARIANT
}  // namespace mh
