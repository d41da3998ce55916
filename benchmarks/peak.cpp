/* What one core of this machine can do at most, for `kernel.py` to hold the kernel against.
 *
 * Every loop keeps more independent accumulators than the processor needs to hide the latency of an instruction (4 cycles
 * times 2 units), all in registers, and touches no memory; `peak_read` does the opposite. They are timed by who calls them.
 */
#include <cstddef>
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default"), noinline))

#if defined(__x86_64__)
#include <immintrin.h>

EXPORT int peak_has(const char *name) {
  __builtin_cpu_init();
  switch (name[0]) {
    case '2': return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case '5': return __builtin_cpu_supports("avx512f") != 0;
    case 'b': return __builtin_cpu_supports("avx512bf16") != 0;
  }
  return 0;
}

/* 12 of 16 registers. */
EXPORT __attribute__((target("avx2,fma"))) double peak_avx2(int64_t loops, float x) {
  __m256 sums[12], a = _mm256_set1_ps(x), b = _mm256_set1_ps(1e-9f);
  for (auto &sum : sums) sum = a;
  for (int64_t i = 0; i < loops; i++) {
#pragma GCC unroll 12
    for (auto &sum : sums) sum = _mm256_fmadd_ps(a, b, sum);
    asm volatile("" : "+x"(a), "+x"(b));
  }
  for (auto &sum : sums) a = _mm256_add_ps(a, sum);
  return (double)_mm256_cvtss_f32(a);
}

/* 24 of 32 registers. */
EXPORT __attribute__((target("avx512f"))) double peak_avx512(int64_t loops, float x) {
  __m512 sums[24], a = _mm512_set1_ps(x), b = _mm512_set1_ps(1e-9f);
  for (auto &sum : sums) sum = a;
  for (int64_t i = 0; i < loops; i++) {
#pragma GCC unroll 24
    for (auto &sum : sums) sum = _mm512_fmadd_ps(a, b, sum);
    asm volatile("" : "+v"(a), "+v"(b));
  }
  for (auto &sum : sums) a = _mm512_add_ps(a, sum);
  return (double)_mm512_cvtss_f32(a);
}

EXPORT __attribute__((target("avx512f,avx512bf16"))) double peak_bf16(int64_t loops, float x) {
  __m512 sums[24], sum_of = _mm512_set1_ps(x);
  __m512i a = _mm512_set1_epi32(0x3f803f80), b = _mm512_set1_epi32(0x30803080);
  for (auto &sum : sums) sum = sum_of;
  for (int64_t i = 0; i < loops; i++) {
#pragma GCC unroll 24
    for (auto &sum : sums) sum = _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
    asm volatile("" : "+v"(a), "+v"(b));
  }
  for (auto &sum : sums) sum_of = _mm512_add_ps(sum_of, sum);
  return (double)_mm512_cvtss_f32(sum_of);
}

/* Bytes are a multiple of 512. */
EXPORT __attribute__((target("avx2"))) double peak_read(const float *from, int64_t bytes) {
  __m256i sums[8] = {};
  const char *at = reinterpret_cast<const char *>(from);
  for (const char *end = at + bytes; at < end; at += 512) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
      sums[i % 8] = _mm256_or_si256(sums[i % 8], _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at) + i));
  }
  for (auto &sum : sums) sums[0] = _mm256_or_si256(sums[0], sum);
  return (double)_mm256_extract_epi32(sums[0], 0);
}

#elif defined(__aarch64__)
#include <arm_neon.h>

EXPORT int peak_has(const char *name) { return name[0] == 'n'; }

EXPORT double peak_neon(int64_t loops, float x) {
  float32x4_t sums[24], a = vdupq_n_f32(x), b = vdupq_n_f32(1e-9f);
  for (auto &sum : sums) sum = a;
  for (int64_t i = 0; i < loops; i++) {
#pragma GCC unroll 24
    for (auto &sum : sums) sum = vfmaq_f32(sum, a, b);
    asm volatile("" : "+w"(a), "+w"(b));
  }
  for (auto &sum : sums) a = vaddq_f32(a, sum);
  return (double)vgetq_lane_f32(a, 0);
}

EXPORT double peak_read(const float *from, int64_t bytes) {
  float32x4_t sums[8] = {};
  for (const float *end = from + bytes / 4; from < end; from += 32)
    for (int i = 0; i < 8; i++) sums[i] = vaddq_f32(sums[i], vld1q_f32(from + 4 * i));
  for (auto &sum : sums) sums[0] = vaddq_f32(sums[0], sum);
  return (double)vgetq_lane_f32(sums[0], 0);
}
#endif
