// One parallel region over tasks, without a barrier inside; memory to work in, one piece a thread.
//
// What a task computes must not depend on the thread that runs it, nor on their number: then neither does the result.
#pragma once

#include <cstdlib>
#include <cstdint>
#if defined(_OPENMP)
#include <omp.h>
#endif
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "multihead.h"

namespace mh {
namespace MH_VARIANT {

// Memory at a multiple of 64 bytes, freed with its owner.
class Scratch {
 public:
  explicit Scratch(size_t bytes) {
    if (posix_memalign(&data_, 64, bytes ? bytes : 64) != 0) data_ = nullptr;
  }
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch &) = delete;
  Scratch &operator=(const Scratch &) = delete;
  explicit operator bool() const { return data_ != nullptr; }
  char *data() const { return static_cast<char *>(data_); }

 private:
  void *data_ = nullptr;
};

// Cuts memory into arrays, each at a multiple of 64 bytes; with nullptr it only counts.
class Cutter {
 public:
  explicit Cutter(char *from) : from_(from) {}
  template <class T>
  T *take(int64_t count) {
    char *here = from_ ? from_ + used_ : nullptr;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T *>(here);
  }
  size_t used() const { return used_; }

 private:
  char *from_;
  size_t used_ = 0;
};

// Numbers too small to be normal become 0 meanwhile: they cost a hundred times as much on some processors.
class FlushToZero {
 public:
#if defined(__SSE2__)
  FlushToZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8000u); }
  ~FlushToZero() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#else
  FlushToZero() {}
#endif
};

// Calls run(task, scratch) for every task.
template <class F>
int run_tasks(int64_t tasks, int threads, size_t bytes, const F &run) {
  int status = MH_OK;
  if (threads > tasks) threads = static_cast<int>(tasks);
#if defined(_OPENMP)
  if (threads > 1) {
#pragma omp parallel num_threads(threads)
    {
      const Scratch scratch(bytes);
      const FlushToZero flush;
#pragma omp for schedule(dynamic, 1) nowait
      for (int64_t task = 0; task < tasks; task++) {
        if (scratch) run(task, scratch.data());
      }
      if (!scratch) {
#pragma omp atomic write
        status = MH_NO_MEMORY;
      }
    }
    return status;
  }
#endif
  const Scratch scratch(bytes);
  if (!scratch) return MH_NO_MEMORY;
  const FlushToZero flush;
  for (int64_t task = 0; task < tasks; task++) run(task, scratch.data());
  return status;
}

}  // namespace MH_VARIANT
}  // namespace mh
