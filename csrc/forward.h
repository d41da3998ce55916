// Attention of many queries: softmax as it goes along, panel by panel of keys, MR queries at a time.
//
// Every row holds the largest score it has met, give or take 2^8: it is raised only where a score exceeds it by more
// (Dao 2023, FlashAttention-2, raises it always), since to raise it costs sums over lanes. What happens in a row depends
// on that row alone, so that neither its neighbours nor the number of threads move a bit of it.
#pragma once

#include "parallel.h"
#include "score.h"
#include "settle.h"

namespace mh {
namespace MH_VARIANT {

// Powers of 2 by which a score may exceed the row's shift. None where weights are rounded: the largest weight of a row is
// then 1, without an error, and in peaked rows it is most of the answer.
template <class E>
constexpr float SLACK = std::is_same_v<E, Single> ? 8.f : 0.f;

constexpr float NEAR = 65536.f;  // shifts below it are exact to 2^-9, and the products taken off them as well

// The running state of MR rows.
struct Rows {
  float *limit;  // a score above it raises the shift
  float *shift;  // what is taken off the scores, in units of Scoring; -inf before the first
  vf *sum;       // of weights, by lane
  vf *rounded;   // of weights as they are multiplied with values (Pairs)
  float *out;    // (MR, width)
};

template <class E>
struct Tile {
  const typename E::Word *q, *k, *v;
  int64_t words, width;
  const uint64_t *allowed;  // nullptr: every key
  const float *bias;
  int first, keys;          // keys before the first (a multiple of 16) and from `keys` on are seen by no row
};

// Weights of MR rows for one panel, as they are multiplied with values: (MR, PANEL) float32 or bfloat16.
template <class E>
struct Weights {
  alignas(64) std::conditional_t<std::is_same_v<E, Single>, float, uint16_t> p[MR * PANEL];
  float grow[MR];  // factor of what was summed before
  bool raised;
};

// Rows whose scores exceed their limit get a new shift.
template <class E, int N>
__attribute__((noinline)) void raise(const vf (&most)[MR], const Scoring &scoring, int at, Rows &rows,
                                     Weights<E> &weights) {
  if (!weights.raised) {
    for (int r = 0; r < MR; r++) weights.grow[r] = 1.f;
    weights.raised = true;
  }
  for (int r = 0; r < MR; r++) {
    if (!any_above(most[r], splat(rows.limit[r]))) continue;
    const float top = max_lane(most[r]);
    const float before = rows.shift[r], after = top * scoring.to_shift;
    const float factor = exp2v<true>(splat((before - after) * scoring.span))[0];  // 0 at first
    rows.limit[r] = top + SLACK<E> / scoring.to_log2;
    rows.shift[r] = after;
    rows.sum[r] = rows.sum[r] * factor;
    weights.grow[r] *= factor;
    if constexpr (std::is_same_v<E, Single>) {
      for (int j = 0; j < at; j++) weights.p[r * PANEL + j] *= factor;  // strips of this panel before
    } else {
      rows.rounded[r] = rows.rounded[r] * factor;
    }
  }
}

// Scores of N vectors of keys from key `at` of the panel on, and from them weights.
template <class E, int N, bool PLAIN>
MH_INLINE void weigh(const Tile<E> &tile, const Scoring &scoring, int at, Rows &rows, Weights<E> &weights) {
  vf acc[MR][N];
  multiply<E, N>(tile.q, tile.k + at, tile.words, acc);
  if constexpr (!PLAIN) scoring.finish<N>(acc, tile.bias + at);
  if (__builtin_expect(tile.allowed != nullptr, 0)) hide<N>(acc, tile.allowed, at);
  vf most[MR];
  bool above = false;
  each<MR>([&](auto r) __attribute__((always_inline)) {
    vf top = acc[r][0];
    each<N>([&](auto c) __attribute__((always_inline)) {
      if constexpr (c > 0) top = vmax(top, acc[r][c]);
    });
    most[r] = top;
    above |= any_above(top, splat(rows.limit[r]));
  });
  if (__builtin_expect(above, 0)) raise<E, N>(most, scoring, at, rows, weights);
  const vf to_log2 = splat(scoring.to_log2);
  each<MR>([&](auto r) __attribute__((always_inline)) {
    const float held = rows.shift[r] == -INF ? 0.f : rows.shift[r];
    const vf shift = splat(held);
    // A shift is a rounded product: of huge scores the unrounded one may be far from it.
    const bool near = __builtin_expect(PLAIN && held < NEAR && held > -NEAR, PLAIN);
    vf sum = rows.sum[r], e[N];
    each<N>([&](auto c) __attribute__((always_inline)) {
      // With a bias the shift comes off first: scores may be so low that to_log2 times them is no number any more.
      vf t;
      if (near) t = fms(acc[r][c], to_log2, shift);
      else if (PLAIN) t = rounded(acc[r][c] * to_log2) - shift;
      else t = (acc[r][c] - shift) * to_log2;
      e[c] = exp2v<std::is_same_v<E, Single>>(t);
      sum += e[c];
    });
    rows.sum[r] = sum;
    if constexpr (std::is_same_v<E, Single>) {
      each<N>([&](auto c) __attribute__((always_inline)) { store(weights.p + r * PANEL + at + c * W, e[c]); });
    }
#if defined(__AVX512BF16__)
    else {
      vf rounded = rows.rounded[r];
      each<N / 2>([&](auto c) __attribute__((always_inline)) {
        const __m512bh two = _mm512_cvtne2ps_pbh(e[2 * c + 1], e[2 * c]);
        _mm512_storeu_si512(weights.p + r * PANEL + at + c * 2 * W, (__m512i)two);
        rounded = _mm512_dpbf16_ps(rounded, two, (__m512bh)_mm512_set1_epi32(0x3f803f80));
      });
      rows.rounded[r] = rounded;
    }
#endif
  });
}

// out[r][c] = out[r][c] * grow[r] + sum over keys of weight times value, for N vectors of columns from `col` on.
template <class E, int N>
MH_INLINE void mix(const Weights<E> &weights, const typename E::Word *v, int64_t width, int first, int keys, float *out) {
  vf acc[MR][N];
  each<MR>([&](auto r) __attribute__((always_inline)) {
    each<N>([&](auto c) __attribute__((always_inline)) { acc[r][c] = load(out + r * width + c * W); });
  });
  if (__builtin_expect(weights.raised, 0)) {
    each<MR>([&](auto r) __attribute__((always_inline)) {
      each<N>([&](auto c) __attribute__((always_inline)) { acc[r][c] = acc[r][c] * weights.grow[r]; });
    });
  }
  const int steps = (keys + E::PER_WORD - 1) / E::PER_WORD;
#pragma GCC unroll 2
  for (int j = first / E::PER_WORD; j < steps; j++) {
    if constexpr (std::is_same_v<E, Single>) {
      vf value[N];
      each<N>([&](auto c) __attribute__((always_inline)) { value[c] = load(v + j * width + c * W); });
      each<MR>([&](auto r) __attribute__((always_inline)) {
        const vf x = splat(weights.p[r * PANEL + j]);
        each<N>([&](auto c) __attribute__((always_inline)) { acc[r][c] = fma(x, value[c], acc[r][c]); });
      });
    }
#if defined(__AVX512BF16__)
    else {
      __m512bh value[N];
      each<N>([&](auto c) __attribute__((always_inline)) {
        value[c] = (__m512bh)_mm512_loadu_si512(v + j * width + c * W);
      });
      each<MR>([&](auto r) __attribute__((always_inline)) {
        int word;
        std::memcpy(&word, weights.p + r * PANEL + 2 * j, sizeof word);
        const __m512bh x = (__m512bh)_mm512_set1_epi32(word);
        each<N>([&](auto c) __attribute__((always_inline)) { acc[r][c] = _mm512_dpbf16_ps(acc[r][c], x, value[c]); });
      });
    }
#endif
  }
  each<MR>([&](auto r) __attribute__((always_inline)) {
    each<N>([&](auto c) __attribute__((always_inline)) { store(out + r * width + c * W, acc[r][c]); });
  });
}

// All columns, cut into parts as equal as can be: few vectors in a part leave the multipliers waiting.
template <class E>
MH_INLINE void mix_all(const Weights<E> &weights, const typename E::Word *v, int64_t width, int first, int keys,
                       float *out) {
  const int vectors = static_cast<int>(width / W), parts = (vectors + NV - 1) / NV;
  for (int part = 0, at = 0; part < parts; part++) {
    const int count = (vectors - at + parts - part - 1) / (parts - part), col = at * W;
    if constexpr (NV >= 4) {
      if (count == 4) mix<E, 4>(weights, v + col, width, first, keys, out + col);
      if (count == 3) mix<E, 3>(weights, v + col, width, first, keys, out + col);
    }
    if (count == 2) mix<E, 2>(weights, v + col, width, first, keys, out + col);
    if (count == 1) mix<E, 1>(weights, v + col, width, first, keys, out + col);
    at += count;
  }
}

// Words that `mix_seen` works in.
template <class E>
MH_INLINE int64_t words_to_mix_seen(int64_t width) {
  return (PANEL / E::PER_WORD + MR) * width;
}

// The same where a value is infinite or NaN: such a value times a weight of 0 is NaN, so each row gets the values
// without those it may not see.
template <class E>
__attribute__((noinline)) void mix_seen(const Weights<E> &weights, const Tile<E> &tile, float *out,
                                        typename E::Word *room) {
  const int64_t width = tile.width, lines = PANEL / E::PER_WORD;
  float *held = reinterpret_cast<float *>(room + lines * width);
  for (int r = 0; r < MR; r++) {
    const uint64_t word = tile.allowed[r];
    for (int64_t at = 0; at < lines * width; at++) {
      const int64_t key = at / width * E::PER_WORD;
      if constexpr (std::is_same_v<E, Single>) {
        room[at] = word >> key & 1 ? tile.v[at] : 0.f;
      } else {
        room[at] = tile.v[at] & ((word >> key & 1 ? 0x0000ffffu : 0u) | (word >> key & 2 ? 0xffff0000u : 0u));
      }
    }
    Weights<E> alone{};  // this row, and empty ones
    std::memcpy(alone.p, weights.p + r * PANEL, sizeof weights.p[0] * PANEL);
    alone.raised = weights.raised;
    alone.grow[0] = weights.raised ? weights.grow[r] : 1.f;
    std::memset(held, 0, sizeof(float) * MR * static_cast<size_t>(width));
    std::memcpy(held, out + r * width, sizeof(float) * static_cast<size_t>(width));
    mix_all<E>(alone, room, width, tile.first, tile.keys, held);
    std::memcpy(out + r * width, held, sizeof(float) * static_cast<size_t>(width));
  }
}

template <class E, bool PLAIN>
__attribute__((noinline)) void attend_tile(const Tile<E> &tile, const Scoring &scoring, Rows &rows,
                                           typename E::Word *strange) {
  Weights<E> weights;
  weights.raised = false;
  if constexpr (STRIP == PANEL) {
    constexpr bool ONE_BY_ONE = std::is_same_v<E, Single>;  // pairs take two vectors at a time
    const int first = ONE_BY_ONE ? tile.first : tile.first & ~31, count = tile.keys - first;
    if (count > 48) weigh<E, 4, PLAIN>(tile, scoring, first, rows, weights);
    else if (count > 32) weigh<E, ONE_BY_ONE ? 3 : 4, PLAIN>(tile, scoring, first, rows, weights);
    else if (count > 16) weigh<E, 2, PLAIN>(tile, scoring, first, rows, weights);
    else weigh<E, ONE_BY_ONE ? 1 : 2, PLAIN>(tile, scoring, first, rows, weights);
  } else {
    for (int at = tile.first / STRIP * STRIP; at < tile.keys; at += STRIP) weigh<E, NV, PLAIN>(tile, scoring, at, rows, weights);
  }
  // Values that are infinite or NaN, and keys that not every row may see.
  if (__builtin_expect(strange != nullptr, 0)) mix_seen<E>(weights, tile, rows.out, strange);
  else mix_all<E>(weights, tile.v, tile.width, tile.first, tile.keys, rows.out);
}

}  // namespace MH_VARIANT
}  // namespace mh
