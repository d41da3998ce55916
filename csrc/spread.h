// From scores to weights and their sums over each row.
//
// Kept scores become roots of weights, relative to the row's largest score: e = 2^((score - ref) / 2) log2(e), e * e / Z
// is the weight and Z the sum over the row. Sums run over keys in their order; where a row passes from one octave of
// distances into the next, what was summed so far goes to the octave behind it.
#pragma once

#include "stash.h"

namespace mh {
namespace MH_VARIANT {

constexpr float LOWEST = -120.f;       // 2^LOWEST is 0 once it is squared
constexpr float UNSEEN = -1e30f;       // largest score of a row that sees no key
constexpr int BACK = MH_OCTAVES;       // the segment of distances 0 to 15, the next one is that of -1 to -15

// 2^x for x from LOWEST to 127.
MH_INLINE vf exp2_near(vf nearest_to, vf f) {
  vf p = fma(splat(1.3264727e-3f), f, splat(9.6715130e-3f));
  p = fma(p, f, splat(5.5507336e-2f));
  p = fma(p, f, splat(2.4022242e-1f));
  p = fma(p, f, splat(6.9314700e-1f));
  p = fma(p, f, splat(1.0f));
  return as_float(as_int(p) + (as_int(nearest_to) << 23));
}

// Root of a weight from how far its score lies below the reference (at least `floor`).
MH_INLINE vf root_of(vf below, vf half_log2) {
  const vf magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to whole numbers
  const vf shifted = fma(below, half_log2, magic);
  return exp2_near(shifted, fms(below, half_log2, shifted - magic));
}

MH_INLINE float sum_of(vf x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(x);
#else
  return sum_lanes(x);
#endif
}

// First key of a segment of a row: segments rise with the keys, from far back to far ahead.
MH_INLINE int64_t segment_start(int64_t center, int segment) {
  if (segment <= 0) return INT64_MIN;
  if (segment >= SEGMENTS) return INT64_MAX;
  if (segment <= BACK) return center + 1 - (int64_t{1} << (MH_OCTAVES + 4 - segment));
  return segment == BACK + 1 ? center + 1 : center + (int64_t{1} << (segment - BACK + 2));
}

template <class E>
class Spread {
 public:
  Spread(const Facts &f, Block<E> &b, int64_t head) : f_(f), b_(b), head_(head) {}

  void run() {
    for (int64_t r = 0; r < b_.rows; r++) begin(r);
    for (int64_t index = b_.from; index < b_.to; index++) {
      for (int64_t tile = 0; tile < f_.tiles; tile++) {
        if (!b_.kind(f_, head_, index, tile)) continue;
        const int64_t end = at_most((tile + 1) * MR, b_.rows);
        for (int64_t r = tile * MR; r < end; r++) {
          const uint64_t strange = b_.allowed[index * f_.block_rows + r] & ~f_.kept[index];
          if ((strange | f_.sunk[index]) != 0) mixed(index, r, strange);
          else plain(index, r);
        }
      }
    }
    for (int64_t r = 0; r < b_.rows; r++) end(r);
  }

 private:
  const Facts &f_;
  Block<E> &b_;
  int64_t head_;

  int64_t center(int64_t r) const { return f_.centers[b_.first + r]; }
  float logit() const { return f_.p.sinks ? f_.p.sinks[head_] : -INF; }

  // The reference is the largest of all that takes part; the first key with the largest score is found.
  void begin(int64_t r) {
    const float peak = max_lane(b_.top[r]), sink = logit() / f_.unit;
    float ref = peak > b_.pad_top[r] ? peak : b_.pad_top[r];
    ref = sink > ref ? sink : ref;
    b_.ref[r] = ref == -INF ? 0.f : ref;
    b_.top_key[r] = peak == -INF ? 0 : first_key(r, peak);
    b_.mass[r] = b_.level[r] = b_.square[r] = b_.reach[r] = vf{};
    b_.pad[r] = b_.sunk[r] = b_.sunk_level[r] = b_.back[r] = 0.f;
    std::memset(b_.segments + r * SEGMENTS, 0, sizeof(float) * SEGMENTS);
    int segment = 0;
    while (segment_start(center(r), segment + 1) <= b_.from * PANEL) segment++;
    b_.segment[r] = segment;
    b_.edge[r] = segment_start(center(r), segment + 1);
  }

  int32_t first_key(int64_t r, float peak) const {
    int32_t panel = INT32_MAX;
    for (int i = 0; i < W; i++)
      if (b_.top[r][i] == peak && b_.top_panel[r][i] < panel) panel = b_.top_panel[r][i];
    const uint64_t visible = b_.allowed[panel * f_.block_rows + r] & f_.kept[panel];
    const float *line = b_.line(f_, head_, panel, r);
    int j = 0;
    while (j < PANEL - 1 && !(line[j] == peak && (visible >> j & 1))) j++;
    return panel * PANEL + j;
  }

  // Adds weights to the sums of the row's current segment: their mass, and mass times distance. `p` points at VECTORS.
  MH_INLINE void add_reach(const vf *p, float ahead, vf &mass, vf &reach) const {
    each<VECTORS / 4>([&](auto g) __attribute__((always_inline)) {
      const vf odd = p[4 * g + 1] + p[4 * g + 3], high = p[4 * g + 2] + p[4 * g + 3];
      const vf all = (p[4 * g] + p[4 * g + 1]) + high;
      mass += all;
      reach = fma(all, splat(ahead - 4 * W * g) - iota(), reach);
      reach = fma(odd, splat(-static_cast<float>(W)), reach);
      reach = fma(high, splat(-static_cast<float>(2 * W)), reach);
    });
  }

  // A row and a panel that holds content alone.
  MH_INLINE void plain(int64_t index, int64_t r) {
    float *line = b_.line(f_, head_, index, r);
    const vf ref = splat(b_.ref[r]), half_log2 = splat(f_.half_log2), floor = splat(LOWEST / f_.half_log2);
    vf level = b_.level[r], square = b_.square[r], p[VECTORS];
    each<VECTORS>([&](auto c) __attribute__((always_inline)) {
      const vf below = vmax(load(line + c * W) - ref, floor);
      const vf e = root_of(below, half_log2);
      store(line + c * W, e);
      p[c] = e * e;
      level = fma(p[c], below, level);
      square = fma(p[c], p[c], square);
    });
    b_.level[r] = level;
    b_.square[r] = square;
    if (__builtin_expect(b_.edge[r] < (index + 1) * PANEL, 0)) by_segment(index, r, p);
    else add_reach(p, static_cast<float>(center(r) - index * PANEL), b_.mass[r], b_.reach[r]);
  }

  // Any row and panel.
  __attribute__((noinline)) void mixed(int64_t index, int64_t r, uint64_t strange) {
    float *line = b_.line(f_, head_, index, r);
    const vf ref = splat(b_.ref[r]), half_log2 = splat(f_.half_log2), floor = splat(LOWEST / f_.half_log2);
    vf p[VECTORS], level = b_.level[r], square = b_.square[r];
    alignas(64) float below[PANEL];
    for (int c = 0; c < VECTORS; c++) {
      const vf x = vmax(load(line + c * W) - ref, floor);
      store(below + c * W, x);
      store(line + c * W, root_of(x, half_log2));
    }
    set_apart(index, r, strange, line, below);
    for (int c = 0; c < VECTORS; c++) {
      const vf e = load(line + c * W);
      p[c] = e * e;
      level = fma(p[c], load(below + c * W), level);
      square = fma(p[c], p[c], square);
    }
    b_.level[r] = level;
    b_.square[r] = square;
    by_segment(index, r, p);
  }

  // Takes keys of the sink and keys that are not kept out of a line.
  void set_apart(int64_t index, int64_t r, uint64_t strange, float *line, const float *below) {
    const uint64_t sunk = f_.sunk[index], allowed = b_.allowed[index * f_.block_rows + r];
    int64_t place = f_.sunk_at[index];
    for (uint64_t rest = sunk | strange; rest; rest &= rest - 1) {
      const int j = __builtin_ctzll(rest);
      const bool visible = allowed >> j & 1;
      const float weight = visible ? line[j] * line[j] : 0.f;
      line[j] = 0.f;
      if (strange >> j & 1) {
        b_.pad[r] += weight;
        continue;
      }
      b_.sunk[r] += weight;
      b_.sunk_level[r] += weight * below[j];
      const int64_t at = (place * f_.p.heads + head_) * f_.wanted.row_count + b_.first + r;
      if (f_.found.sunk_weights) f_.found.sunk_weights[at] = weight;
      if (f_.found.sunk_seen) f_.found.sunk_seen[at] = visible;
      place++;
    }
  }

  // Adds weights to the segments their keys lie in.
  __attribute__((noinline)) void by_segment(int64_t index, int64_t r, const vf *p) {
    const int64_t key = index * PANEL;
    const float ahead = static_cast<float>(center(r) - key);
    int64_t from = 0;
    while (b_.edge[r] < key + PANEL) {
      const int64_t to = b_.edge[r] - key;
      if (to > from) add_some(p, bits_between(from, to - 1), ahead, r);
      flush(r);
      from = at_least(from, to);
    }
    add_some(p, bits_between(from, PANEL - 1), ahead, r);
  }

  void add_some(const vf *p, uint64_t keys, float ahead, int64_t r) {
    if (keys == ~uint64_t{0}) return add_reach(p, ahead, b_.mass[r], b_.reach[r]);
    vf some[VECTORS];
    for (int c = 0; c < VECTORS; c++) some[c] = pick(static_cast<uint32_t>(keys >> (c * W)), p[c], vf{});
    add_reach(some, ahead, b_.mass[r], b_.reach[r]);
  }

  // The row leaves a segment.
  void flush(int64_t r) {
    const int segment = b_.segment[r];
    b_.segments[r * SEGMENTS + segment] += sum_of(b_.mass[r]);
    b_.mass[r] = vf{};
    if (segment == BACK) {
      b_.back[r] = sum_of(b_.reach[r]);
      b_.reach[r] = vf{};
    }
    b_.segment[r] = segment + 1;
    b_.edge[r] = segment_start(center(r), segment + 2);
  }

  void end(int64_t r) {
    const int segment = b_.segment[r];
    float *segments = b_.segments + r * SEGMENTS;
    segments[segment] += sum_of(b_.mass[r]);
    float ahead = sum_of(b_.reach[r]);
    if (segment <= BACK) {
      b_.back[r] = ahead;
      ahead = 0.f;
    }
    double left = 0.0;
    for (int s = 0; s < SEGMENTS; s++) left += static_cast<double>(segments[s]);
    settle(r, left, static_cast<double>(ahead));
  }

  void settle(int64_t r, double left, double ahead) {
    const double unit = static_cast<double>(f_.unit), ref = static_cast<double>(b_.ref[r]) * unit;
    const double sink = f_.p.sinks ? std::exp(static_cast<double>(logit()) - ref) : 0.0;
    const double sunk = static_cast<double>(b_.sunk[r]), all = left + sunk + static_cast<double>(b_.pad[r]) + sink;
    const int64_t at = f_.at(head_, b_.first + r);
    const bool none = b_.sees[r] == 0, kept = !f_.q_kept || f_.q_kept[b_.first + r];
    const double share = none ? 0.0 : 1.0 / all, log_all = none ? 0.0 : std::log(all);
    b_.scale[r] = static_cast<float>(share);
    const bool counts = kept && b_.sees[r] >= f_.wanted.least;
    b_.factor[head_ * f_.block_rows + r] = counts ? static_cast<float>(std::sqrt(share)) : 0.f;
    const double level = static_cast<double>(sum_of(b_.level[r])) * unit;
    const double sunk_level = static_cast<double>(b_.sunk_level[r]) * unit;
    const double of_left = (left * log_all - level) * share, of_sunk = (sunk * log_all - sunk_level) * share;
    const double peak = static_cast<double>(max_lane(b_.top[r])) * unit, rest = left * share, given = sink * share;
    const auto tell = [&](float *to, double x) {
      if (to) to[at] = static_cast<float>(none ? 0.0 : x);
    };
    const auto entropy_of = [](double x) { return x > 0.0 ? -x * std::log(x) : 0.0; };
    const auto positive = [](double x) { return x > 0.0 ? x : 0.0; };
    if (f_.found.sees) f_.found.sees[at] = b_.sees[r];
    if (f_.found.sees_sunk) f_.found.sees_sunk[at] = b_.sees_sunk[r];
    if (f_.found.top_key) f_.found.top_key[at] = b_.top_key[r];
    if (f_.found.peak) f_.found.peak[at] = none ? UNSEEN : static_cast<float>(peak);
    tell(f_.found.top, std::exp(peak - ref) * share);
    tell(f_.found.entropy, positive(of_left + of_sunk + entropy_of(given)));
    tell(f_.found.sink, given);
    tell(f_.found.sunk, sunk * share);
    tell(f_.found.left, rest);
    tell(f_.found.left_entropy, positive(of_left - entropy_of(rest)));
    tell(f_.found.squares, static_cast<double>(sum_of(b_.square[r])) * share * share);
    const double back = static_cast<double>(b_.back[r]);
    tell(f_.found.distance, (back + ahead) * share);
    tell(f_.found.distance_absolute, (back - ahead) * share);
    if (f_.found.lse) f_.found.lse[at] = none ? -INF : static_cast<float>(ref + log_all);
  }
};

}  // namespace MH_VARIANT
}  // namespace mh
