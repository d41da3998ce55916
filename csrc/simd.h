// The vector type of this variant and what can be done with it. W floats lie in a vector; a tile of scores is MR rows by
// up to NV vectors of keys, which together with the operands fill the registers.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define MH_INLINE __attribute__((always_inline)) inline

namespace mh {
namespace MH_VARIANT {

#if defined(__AVX512F__)
constexpr int W = 16, MR = 6, NV = 4;
#elif defined(__AVX2__)
constexpr int W = 8, MR = 6, NV = 2;
#else
constexpr int W = 4, MR = 6, NV = 4;
#endif
constexpr int PANEL = 64;        // keys that are packed together
constexpr int STRIP = NV * W;    // keys of one tile in registers
#if defined(__AVX512BF16__)
constexpr bool HAS_PAIRS = true;  // products of pairs of bfloat16, summed in float32
#else
constexpr bool HAS_PAIRS = false;
#endif

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef uint32_t vu __attribute__((vector_size(4 * W)));
typedef float vf_unaligned __attribute__((vector_size(4 * W), aligned(2), may_alias));  // halves are loaded by it too
typedef uint16_t vh __attribute__((vector_size(2 * W)));
typedef uint16_t vh_unaligned __attribute__((vector_size(2 * W), aligned(2), may_alias));

struct bf16 {
  uint16_t bits;
};
struct half {
  uint16_t bits;
};

constexpr float INF = std::numeric_limits<float>::infinity();
constexpr float LOG2E = 1.44269504088896341f, LN2 = 0.69314718055994531f;

// Loops whose index is a constant, so that arrays of vectors stay in registers.
template <class F, int... I>
MH_INLINE void each_(F &&f, std::integer_sequence<int, I...>) {
  (f(std::integral_constant<int, I>{}), ...);
}
template <int N, class F>
MH_INLINE void each(F &&f) {
  each_(static_cast<F &&>(f), std::make_integer_sequence<int, N>{});
}

MH_INLINE vf splat(float x) { return x - vf{}; }
MH_INLINE vi splat_i(int32_t x) { return x - vi{}; }
MH_INLINE vf load(const float *p) { return *reinterpret_cast<const vf_unaligned *>(p); }
MH_INLINE void store(float *p, vf x) { *reinterpret_cast<vf_unaligned *>(p) = x; }
MH_INLINE vf as_float(vi x) { return (vf)x; }
MH_INLINE vi as_int(vf x) { return (vi)x; }

MH_INLINE vf iota() {
  vf r;
  for (int i = 0; i < W; i++) r[i] = static_cast<float>(i);
  return r;
}

MH_INLINE vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}
MH_INLINE vf fms(vf a, vf b, vf c) {  // a * b - c
#if defined(__AVX512F__)
  return _mm512_fmsub_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmsub_ps(a, b, c);
#else
  return fma(a, b, -c);
#endif
}

// The number as it is, rounded: what comes next is not joined with the product before it.
MH_INLINE vf rounded(vf x) {
#if defined(__x86_64__)
  asm("" : "+v"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#endif
  return x;
}

// The larger; the second where either is NaN, so a NaN in the second stays.
MH_INLINE vf vmax(vf a, vf b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

// Lane i of `yes` where bit i is set, else of `no`.
MH_INLINE vf pick(uint32_t bits, vf yes, vf no) {
#if defined(__AVX512F__)
  return _mm512_mask_blend_ps(static_cast<__mmask16>(bits), no, yes);
#else
  vi lane;
  for (int i = 0; i < W; i++) lane[i] = 1 << i;
  return ((splat_i(static_cast<int32_t>(bits)) & lane) != 0) ? yes : no;
#endif
}

// a + x in the lanes whose bit is set, a in the others.
MH_INLINE vf add_where(uint32_t bits, vf a, vf x) {
#if defined(__AVX512F__)
  return _mm512_mask_add_ps(a, static_cast<__mmask16>(bits), a, x);
#else
  return a + pick(bits, x, vf{});
#endif
}

// Whether any lane of a exceeds b; false for NaN.
MH_INLINE bool any_above(vf a, vf b) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
#elif defined(__aarch64__)
  return vmaxvq_u32(vcgtq_f32(a, b)) != 0;
#else
  vi over = a > b;
  int32_t found = 0;
  for (int i = 0; i < W; i++) found |= over[i];
  return found != 0;
#endif
}

MH_INLINE float sum_lanes(vf x) {  // in a fixed order: halves, quarters, ...
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(x);
#else
  float lane[W];
  std::memcpy(lane, &x, sizeof lane);
  for (int half_width = W / 2; half_width > 0; half_width /= 2)
    for (int i = 0; i < half_width; i++) lane[i] += lane[i + half_width];
  return lane[0];
#endif
}
MH_INLINE float max_lane(vf x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(x);
#else
  float most = x[0];
  for (int i = 1; i < W; i++) most = x[i] > most ? x[i] : most;
  return most;
#endif
}

// 2^t for t below 127, exactly 0 far below -126, NaN for NaN. Relative error 1e-7 (and 1 at 0) with FINE, 8e-5 without.
template <bool FINE>
MH_INLINE vf exp2v(vf t) {
#if defined(__AVX512F__)
  t = vmax(splat(-200.f), t);
  const vf n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const vf low = t;
  t = vmax(splat(-126.f), t);
  const vf magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to whole numbers
  const vf shifted = t + magic;
  const vf n = shifted - magic;
#endif
  const vf f = t - n;
  vf p;
  if constexpr (FINE) {
    p = fma(splat(1.3264727e-3f), f, splat(9.6715130e-3f));
    p = fma(p, f, splat(5.5507336e-2f));
    p = fma(p, f, splat(2.4022242e-1f));
    p = fma(p, f, splat(6.9314700e-1f));
    p = fma(p, f, splat(1.0f));
  } else {
    p = fma(splat(5.5171669e-2f), f, splat(2.4261113e-1f));
    p = fma(p, f, splat(6.9326097e-1f));
    p = fma(p, f, splat(9.9992806e-1f));
  }
#if defined(__AVX512F__)
  return _mm512_scalef_ps(p, n);
#else
  const vf power = as_float((as_int(shifted) + 127) << 23);
  return low < -126.f ? vf{} : p * power;
#endif
}

// tanh: by a series near 0, where the quotient of exponentials loses its digits.
MH_INLINE vf tanhv(vf x) {
  const vf size = x < 0.f ? -x : x;
  const vf e = exp2v<true>(vmax(splat(-40.f), size * (-2.f * LOG2E)));  // exp(-2|x|); NaN stays
  const vf large = (1.f - e) / (1.f + e);
  const vf s = x * x;
  vf p = fma(s, splat(0.021869488f), splat(-0.053968254f));
  p = fma(p, s, splat(0.13333333f));
  p = fma(p, s, splat(-0.33333333f));
  const vf small = fma(p * s, size, size);
  const vf magnitude = size < 0.3f ? small : large;
  return x < 0.f ? -magnitude : magnitude;
}

// ---- numbers of the three dtypes as float32

MH_INLINE vf load(const bf16 *p) {
#if defined(__AVX512F__)
  return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))), 16);
#elif defined(__AVX2__)
  return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))), 16);
#else
  const vh raw = *reinterpret_cast<const vh_unaligned *>(p);
  return (vf)(__builtin_convertvector(raw, vu) << 16);
#endif
}
MH_INLINE vf load(const half *p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
#elif defined(__AVX2__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
#elif defined(__aarch64__)
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t *>(p))));
#else
#error "no conversion of float16 is written for this processor"
#endif
}
template <class T>
MH_INLINE vf load_some(const T *p, int count) {  // the first `count` lanes, 0 in the others
  T lane[W] = {};
  std::memcpy(lane, p, sizeof(T) * static_cast<size_t>(count));
  return load(lane);
}

MH_INLINE void store(bf16 *p, vf x) {  // to the nearest, ties to even; NaN stays NaN
  const vu bits = (vu)x;
  const vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const vu kept = (x == x) ? rounded : ((bits >> 16) | 0x40u);
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm512_cvtepi32_epi16((__m512i)kept));
#else
  *reinterpret_cast<vh_unaligned *>(p) = __builtin_convertvector(kept, vh);
#endif
}
MH_INLINE void store(half *p, vf x) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
  vst1_u16(reinterpret_cast<uint16_t *>(p), vreinterpret_u16_f16(vcvt_f16_f32(x)));
#endif
}
template <class T>
MH_INLINE void store_some(T *p, vf x, int count) {
  T lane[W];
  store(lane, x);
  std::memcpy(p, lane, sizeof(T) * static_cast<size_t>(count));
}
template <class T>
MH_INLINE float to_float(T x) {
  return load_some(&x, 1)[0];
}

// ---- transposing W vectors: step by step blocks of S lanes change places

template <int S, int... I>
MH_INLINE void swap_blocks(vf &a, vf &b, std::integer_sequence<int, I...>) {
  const vi low = {((I & S) ? W + I - S : I)...}, high = {((I & S) ? W + I : I + S)...};
  const vf x = a, y = b;
  a = __builtin_shuffle(x, y, low);
  b = __builtin_shuffle(x, y, high);
}
template <int S>
MH_INLINE void transpose_step(vf *r) {
  each<W>([&](auto i) __attribute__((always_inline)) {
    if constexpr ((i & S) == 0) swap_blocks<S>(r[i], r[i + S], std::make_integer_sequence<int, W>{});
  });
  if constexpr (S > 1) transpose_step<S / 2>(r);
}
MH_INLINE void transpose(vf *r) { transpose_step<W / 2>(r); }

// Two vectors that follow one another as their even and their odd lanes, and back.
template <int... I>
MH_INLINE void part_lanes(vf &a, vf &b, std::integer_sequence<int, I...>) {
  const vi even = {2 * I...}, odd = {(2 * I + 1)...};
  const vf x = a, y = b;
  a = __builtin_shuffle(x, y, even);
  b = __builtin_shuffle(x, y, odd);
}
template <int... I>
MH_INLINE void join_lanes(vf &a, vf &b, std::integer_sequence<int, I...>) {
  const vi first = {(I / 2 + I % 2 * W)...}, second = {(W / 2 + I / 2 + I % 2 * W)...};
  const vf x = a, y = b;
  a = __builtin_shuffle(x, y, first);
  b = __builtin_shuffle(x, y, second);
}

}  // namespace MH_VARIANT
}  // namespace mh
