// The public entries: check, choose the variant, run. Compiled for any processor of the architecture.
#include "check.h"
#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace {

using mh::Kernels;

// nullptr where it was not compiled in or the processor cannot run it.
const Kernels *kernels_of(int variant) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (variant == MH_AVX2 && avx2) return &mh::avx2::kernels;
  if (variant == MH_AVX512 && avx512) return &mh::avx512::kernels;
  if (variant == MH_AVX512_BF16 && avx512 && __builtin_cpu_supports("avx512bf16")) return &mh::avx512_bf16::kernels;
#elif defined(__aarch64__)
  if (variant == MH_NEON) return &mh::neon::kernels;
#endif
  return nullptr;
}

const Kernels *kernels_for(int variant) { return kernels_of(variant == MH_AUTO ? mh_best_variant() : variant); }

// A call that has nothing to compute.
bool writes_nothing(const mh_problem &p) { return p.batch == 0 || p.heads == 0 || p.q_len == 0; }

}  // namespace

extern "C" {

int mh_forward(const mh_problem *problem, const mh_tensor *out, float *lse) {
  if (int status = mh::check_problem(problem)) return status;
  if (int status = mh::check_output(*problem, out, lse)) return status;
  const Kernels *kernels = kernels_for(problem->variant);
  if (!kernels) return MH_NO_VARIANT;
  return writes_nothing(*problem) ? MH_OK : kernels->forward(*problem, *out, lse);
}

int mh_statistics(const mh_problem *problem, const mh_wanted *wanted, const mh_found *found) {
  if (int status = mh::check_problem(problem)) return status;
  if (int status = mh::check_wanted(*problem, wanted, found)) return status;
  const Kernels *kernels = kernels_for(problem->variant);
  if (!kernels) return MH_NO_VARIANT;
  if (wanted->packed && wanted->packed_size < kernels->packed_bytes(*problem)) return MH_BAD_SIZE;
  if (writes_nothing(*problem) || problem->kv_len == 0 || wanted->row_count == 0) return MH_OK;
  return kernels->statistics(*problem, *wanted, *found);
}

int64_t mh_packed_bytes(const mh_problem *problem) {
  if (mh::check_problem(problem) != MH_OK) return -1;
  const Kernels *kernels = kernels_for(problem->variant);
  return kernels ? kernels->packed_bytes(*problem) : -1;
}

int mh_variants(void) {
  int found = 0;
  for (int variant = MH_AVX2; variant <= MH_NEON; variant++)
    if (kernels_of(variant)) found |= 1 << variant;
  return found;
}

int mh_best_variant(void) {
  for (int variant = MH_NEON; variant > MH_AUTO; variant--) {
    // Intel's processors multiply pairs of bfloat16 more slowly than float32 made from them: 0.6 of the speed, measured
    // on one with AMX.
    if (variant == MH_AVX512_BF16 && mh_is_intel()) continue;
    if (kernels_of(variant)) return variant;
  }
  return MH_AUTO;
}

int mh_has_amx(void) {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) return (d >> 22 & 1) && (d >> 24 & 1);  // AMX-BF16 and AMX-TILE
#endif
  return 0;
}

int mh_is_intel(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("intel") != 0;
#else
  return 0;
#endif
}

int mh_has_threads(void) {
#if defined(_OPENMP)
  return 1;
#else
  return 0;
#endif
}

const char *mh_variant_name(int variant) {
  static const char *const names[] = {"auto", "avx2", "avx512", "avx512_bf16", "neon"};
  return variant >= MH_AUTO && variant <= MH_NEON ? names[variant] : "unknown";
}

const char *mh_status_text(int status) {
  static const char *const texts[] = {
      "ok",
      "a size is negative, too large, or does not divide",
      "a dtype that is none of float32, bfloat16, float16",
      "a negative stride, or an output whose elements overlap",
      "a pointer that is null where there is something to read or write, or not aligned",
      "a mask that contradicts itself or the sizes",
      "a scale, softcap or offset that is not finite or out of range, or another version of the interface",
      "an output that overlaps another tensor",
      "a variant that was not compiled in or that this processor cannot run",
      "not enough memory to work in",
  };
  return status >= MH_OK && status <= MH_NO_MEMORY ? texts[status] : "unknown";
}

int mh_abi(void) { return MH_ABI; }

int mh_statistics_abi(void) { return MH_STATISTICS_ABI; }

}  // extern "C"
