// Powers of 2 of numbers below 127, to about 2e-7 of the result. 2^LOWEST is exactly 0; smaller numbers are raised to it
// beforehand.
#pragma once

#include "simd.h"

namespace mh {
namespace MH_VARIANT {

#if defined(__AVX512F__)

constexpr float LOWEST = -127.f;  // the exponent of 0

// 2^(i/32) as bits, less i at bit 18, where the number of 32nds is added along with the exponent.
alignas(64) constexpr uint32_t POWERS[32] = {
    0x3f800000u, 0x3f7ecd87u, 0x3f7daac3u, 0x3f7c980fu, 0x3f7b95c2u, 0x3f7aa43au, 0x3f79c3d3u, 0x3f78f4f0u,
    0x3f7837f0u, 0x3f778d3au, 0x3f76f532u, 0x3f767043u, 0x3f75fed7u, 0x3f75a15bu, 0x3f75583fu, 0x3f7523f6u,
    0x3f7504f3u, 0x3f74fbafu, 0x3f7508a4u, 0x3f752c4du, 0x3f75672au, 0x3f75b9beu, 0x3f76248cu, 0x3f76a81eu,
    0x3f7744fdu, 0x3f77fbb8u, 0x3f78ccdfu, 0x3f79b907u, 0x3f7ac0c7u, 0x3f7be4bau, 0x3f7d257du, 0x3f7e83b3u};

// p[c] = 2^(x[c] * by), x at least LOWEST / by. A table of 32nds leaves so little that two terms are enough. Step by step
// for all vectors: the processor looks only so far ahead for what it can do meanwhile.
template <int N>
MH_INLINE void powers_of(const vf (&x)[N], vf by, vf (&p)[N]) {
  const vf magic = splat(393216.f);  // 1.5 * 2^18: adding it rounds to 32nds
  const __m512i low = _mm512_load_si512(POWERS), high = _mm512_load_si512(POWERS + 16);
  vf shifted[N], rest[N], term[N];
  each<N>([&](auto c) __attribute__((always_inline)) { shifted[c] = fma(x[c], by, magic); });
  each<N>([&](auto c) __attribute__((always_inline)) { rest[c] = shifted[c] - magic; });
  each<N>([&](auto c) __attribute__((always_inline)) {
    p[c] = (vf)_mm512_permutex2var_epi32(low, (__m512i)shifted[c], high);
  });
  each<N>([&](auto c) __attribute__((always_inline)) { rest[c] = fms(x[c], by, rest[c]); });
  each<N>([&](auto c) __attribute__((always_inline)) {
    p[c] = (vf)_mm512_add_epi32((__m512i)p[c], _mm512_slli_epi32((__m512i)shifted[c], 18));
  });
  each<N>([&](auto c) __attribute__((always_inline)) { term[c] = fma(rest[c], splat(0.240226507f), splat(0.693157344f)); });
  each<N>([&](auto c) __attribute__((always_inline)) { rest[c] = p[c] * rest[c]; });
  each<N>([&](auto c) __attribute__((always_inline)) { p[c] = fma(rest[c], term[c], p[c]); });
}

#else

constexpr float LOWEST = -240.f;  // the root of its power is squared, which is too small for float32

template <int N>
MH_INLINE void powers_of(const vf (&x)[N], vf by, vf (&p)[N]) {
  const vf magic = splat(12582912.f), half = by * 0.5f;  // 1.5 * 2^23: adding it rounds to whole numbers
  each<N>([&](auto c) __attribute__((always_inline)) {
    const vf shifted = fma(x[c], half, magic), f = fms(x[c], half, shifted - magic);
    vf e = fma(splat(1.3264727e-3f), f, splat(9.6715130e-3f));
    e = fma(e, f, splat(5.5507336e-2f));
    e = fma(e, f, splat(2.4022242e-1f));
    e = fma(e, f, splat(6.9314700e-1f));
    e = fma(e, f, splat(1.0f));
    e = as_float(as_int(e) + (as_int(shifted) << 23));
    p[c] = e * e;
  });
}

#endif

}  // namespace MH_VARIANT
}  // namespace mh
