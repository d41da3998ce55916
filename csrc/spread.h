// From scores to weights and their sums over each row.
//
// What is kept is exp(score - ref), a weight but for the row's factor: divided by Z, the sum over the row, it is the
// weight. Where heads are compared its root is kept. The reference is the largest score met so far, give or take 2^8; where
// it is raised all that was summed and kept is scaled. Sums run over keys in their order; where a row passes from one
// octave of distances into the next, what was summed so far goes to the octave behind it, if octaves are asked for. What
// happens in a row depends on that row alone.
#pragma once

#include "power.h"
#include "stash.h"

namespace mh {
namespace MH_VARIANT {

constexpr float SLACK = 8.f;           // powers of 2 by which a weight may exceed the reference
constexpr float UNSEEN = -1e30f;       // largest score of a row that sees no key
constexpr int BACK = MH_OCTAVES;       // the segment of distances 0 to 15, the next one is that of -1 to -15

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
  Spread(const Facts &f, Block<E> &b, int64_t head)
      : f_(f), b_(b), head_(head), floor_(LOWEST / f.to_log2), levels_(f.found.entropy || f.found.left_entropy),
        squares_(f.found.squares), reaches_(f.found.distance || f.found.distance_absolute),
        splits_(f.found.distance_absolute), octaves_(f.found.octaves) {}

  void begin(int64_t r) {
    b_.peak[r] = b_.ref[r] = b_.limit[r] = -INF;
    b_.top_key[r] = b_.sees[r] = b_.sees_sunk[r] = 0;
    b_.mass[r] = b_.level[r] = b_.square[r] = b_.reach[r] = vf{};
    b_.pad[r] = b_.sunk[r] = b_.sunk_level[r] = b_.back[r] = 0.f;
    std::memset(b_.segments + r * SEGMENTS, 0, sizeof(float) * SEGMENTS);
    int segment = octaves_ ? 0 : BACK;
    while (edge_after(r, segment) <= b_.from * PANEL) segment++;
    b_.segment[r] = segment;
    b_.edge[r] = edge_after(r, segment);
  }

  // A row and a panel: which keys it may see, their scores and the largest of each lane.
  MH_INLINE void add(int64_t index, int64_t r, uint64_t allowed, const float *scores, vf most) {
    const uint64_t kept = f_.kept[index], sunk = f_.sunk[index], strange = allowed & ~kept;
    b_.sees[r] += __builtin_popcountll(allowed & kept);
    if (__builtin_expect(any_above(most, splat(b_.peak[r])), 0)) meet_larger(index, r, allowed, scores, most);
    if (__builtin_expect((strange | sunk) != 0, 0)) return mixed(index, r, allowed, scores);
    if (__builtin_expect(b_.ref[r] == -INF, 0)) return nothing(index, r);
    plain(index, r, scores);
  }

  void end(int64_t r) {
    const int segment = b_.segment[r];
    float *segments = b_.segments + r * SEGMENTS;
    segments[segment] += sum_lanes(b_.mass[r]);
    float ahead = sum_lanes(b_.reach[r]);
    if (segment <= BACK) {
      b_.back[r] = ahead;
      ahead = 0.f;
    }
    settle(r, content_of(r), static_cast<double>(ahead));
  }

 private:
  const Facts &f_;
  Block<E> &b_;
  int64_t head_;

  float floor_;  // a score so far below the reference that its weight is nothing
  bool levels_, squares_, reaches_, splits_, octaves_;  // what is asked for

  // The first key behind a segment; beyond all where nothing that is asked for tells the segments apart.
  int64_t edge_after(int64_t r, int segment) const {
    return octaves_ || (splits_ && segment == BACK) ? segment_start(center(r), segment + 1) : INT64_MAX;
  }

  // A weight but for the row's factor.
  MH_INLINE float weight_of(float kept) const { return f_.together ? kept * kept : kept; }

  int64_t center(int64_t r) const { return f_.centers[b_.first + r]; }
  float logit() const { return f_.p.sinks ? f_.p.sinks[head_] : -INF; }

  double content_of(int64_t r) const {
    double sum = 0.0;
    for (int s = 0; s < SEGMENTS; s++) sum += static_cast<double>(b_.segments[r * SEGMENTS + s]);
    return sum;
  }

  // A score exceeds all that the row has met; the first key with the largest one is found.
  __attribute__((noinline)) void meet_larger(int64_t index, int64_t r, uint64_t allowed, const float *scores, vf most) {
    const uint64_t visible = allowed & f_.kept[index];
    const vf counts = visible == allowed ? most : largest_of(scores, visible);
    if (any_above(counts, splat(b_.peak[r]))) {
      b_.peak[r] = max_lane(counts);
      const uint64_t there = keys_with(scores, b_.peak[r]) & visible;
      b_.top_key[r] = static_cast<int32_t>(index * PANEL + (there ? __builtin_ctzll(there) : PANEL - 1));
    }
    if (any_above(most, splat(b_.limit[r]))) raise(index, r, max_lane(most));
  }

  void raise(int64_t index, int64_t r, float ref) {
    const float before = b_.ref[r];
    b_.ref[r] = ref;
    b_.limit[r] = ref + SLACK / (f_.unit * LOG2E);
    if (before == -INF) return;
    const float by = ref - before, kept = std::exp2((before - ref) * f_.to_log2), factor = weight_of(kept);
    const float content = static_cast<float>(content_of(r)) + sum_lanes(b_.mass[r]);
    b_.level[r][0] -= by * content;
    b_.level[r] = b_.level[r] * factor;
    b_.mass[r] = b_.mass[r] * factor;
    b_.reach[r] = b_.reach[r] * factor;
    b_.square[r] = b_.square[r] * factor * factor;
    for (int s = 0; s < SEGMENTS; s++) b_.segments[r * SEGMENTS + s] *= factor;
    b_.back[r] *= factor;
    b_.pad[r] *= factor;
    b_.sunk_level[r] = (b_.sunk_level[r] - by * b_.sunk[r]) * factor;
    b_.sunk[r] *= factor;
    for (int64_t place = f_.sunk_at[0]; place < f_.sunk_at[index]; place++) *sunk_weight(place, r) *= factor;
    for (int64_t panel = b_.from; panel < index; panel++) {
      if (!b_.kind(f_, head_, panel, r / MR)) continue;
      float *line = b_.line(f_, head_, panel, r);
      for (int c = 0; c < VECTORS; c++) store(line + c * W, load(line + c * W) * kept);
    }
  }

  float *sunk_weight(int64_t place, int64_t r) const {
    return f_.found.sunk_weights + (place * f_.p.heads + head_) * f_.wanted.row_count + b_.first + r;
  }

  // A row that has met no key yet.
  void nothing(int64_t index, int64_t r) {
    float *line = b_.line(f_, head_, index, r);
    for (int c = 0; c < VECTORS; c++) store(line + c * W, vf{});
  }

  // Adds weight times distance; `p` points at VECTORS, the first key lies `ahead` of the row.
  MH_INLINE void add_reach(const vf *p, float ahead, vf &reach) const {
    each<VECTORS / 4>([&](auto g) __attribute__((always_inline)) {
      const vf high = p[4 * g + 2] + p[4 * g + 3], steps = (p[4 * g + 1] + p[4 * g + 3]) + (high + high);
      const vf all = (p[4 * g] + p[4 * g + 1]) + high;
      reach = fma(all, splat(ahead - 4 * W * g) - iota(), reach);
      reach = fma(steps, splat(-static_cast<float>(W)), reach);
    });
  }

  MH_INLINE vf sum_of(const vf *p) const {
    vf all = {};
    each<VECTORS / 4>([&](auto g) __attribute__((always_inline)) {
      all += (p[4 * g] + p[4 * g + 1]) + (p[4 * g + 2] + p[4 * g + 3]);
    });
    return all;
  }

  // Weights of a row and a panel from how far their scores lie below the reference, kept and made ready for sums.
  MH_INLINE void keep(float *line, const vf *below, vf *p) const {
    const vf by = splat(f_.to_log2);
    each<VECTORS>([&](auto c) __attribute__((always_inline)) {
      p[c] = power_of(below[c], by);
      store(line + c * W, p[c]);
    });
  }

  // Adds up the weights of a row and a panel.
  MH_INLINE void sum_up(int64_t index, int64_t r, const vf *below, vf *p) {
    if (f_.together) each<VECTORS>([&](auto c) __attribute__((always_inline)) { p[c] = p[c] * p[c]; });
    if (levels_) {
      vf level = b_.level[r];
      each<VECTORS>([&](auto c) __attribute__((always_inline)) { level = fma(p[c], below[c], level); });
      b_.level[r] = level;
    }
    if (squares_) {
      vf square = b_.square[r];
      each<VECTORS>([&](auto c) __attribute__((always_inline)) { square = fma(p[c], p[c], square); });
      b_.square[r] = square;
    }
    if (__builtin_expect(b_.edge[r] < (index + 1) * PANEL, 0)) return by_segment(index, r, p);
    b_.mass[r] += sum_of(p);
    if (reaches_) add_reach(p, static_cast<float>(center(r) - index * PANEL), b_.reach[r]);
  }

  // A row and a panel that holds content alone.
  MH_INLINE void plain(int64_t index, int64_t r, const float *scores) {
    const vf ref = splat(b_.ref[r]), floor = splat(floor_);
    vf below[VECTORS], p[VECTORS];
    each<VECTORS>([&](auto c) __attribute__((always_inline)) { below[c] = vmax(load(scores + c * W) - ref, floor); });
    keep(b_.line(f_, head_, index, r), below, p);
    sum_up(index, r, below, p);
  }

  // Any row and panel.
  __attribute__((noinline)) void mixed(int64_t index, int64_t r, uint64_t allowed, const float *scores) {
    if (f_.sunk[index]) b_.sees_sunk[r] += __builtin_popcountll(allowed & f_.sunk[index]);
    const uint64_t strange = allowed & ~f_.kept[index];
    if (strange && (!f_.q_kept || f_.q_kept[b_.first + r])) b_.leaks = true;
    if (b_.ref[r] == -INF) return nothing(index, r);
    float *line = b_.line(f_, head_, index, r);
    const vf ref = splat(b_.ref[r]), floor = splat(floor_);
    vf p[VECTORS], below[VECTORS];
    alignas(64) float lies[PANEL];
    for (int c = 0; c < VECTORS; c++) {
      below[c] = vmax(load(scores + c * W) - ref, floor);
      store(lies + c * W, below[c]);
    }
    keep(line, below, p);
    set_apart(index, r, allowed, line, lies);
    for (int c = 0; c < VECTORS; c++) p[c] = load(line + c * W);
    sum_up(index, r, below, p);
  }

  // Takes keys of the sink and keys that are not kept out of a line.
  void set_apart(int64_t index, int64_t r, uint64_t allowed, float *line, const float *below) {
    const uint64_t sunk = f_.sunk[index], strange = allowed & ~f_.kept[index];
    int64_t place = f_.sunk_at[index];
    for (uint64_t rest = sunk | strange; rest; rest &= rest - 1) {
      const int j = __builtin_ctzll(rest);
      const bool visible = allowed >> j & 1;
      const float weight = visible ? weight_of(line[j]) : 0.f;
      line[j] = 0.f;
      if (strange >> j & 1) {
        b_.pad[r] += weight;
        continue;
      }
      b_.sunk[r] += weight;
      b_.sunk_level[r] += weight * below[j];
      *sunk_weight(place, r) = weight;
      if (f_.found.sunk_seen)
        f_.found.sunk_seen[(place * f_.p.heads + head_) * f_.wanted.row_count + b_.first + r] = visible;
      place++;
    }
  }

  // Adds weights to the segments their keys lie in, and to the distances back and ahead.
  __attribute__((noinline)) void by_segment(int64_t index, int64_t r, const vf *p) {
    const int64_t key = index * PANEL;
    const float ahead = static_cast<float>(center(r) - key);
    int64_t from = 0, reached = 0;
    while (b_.edge[r] < key + PANEL) {
      const int64_t to = b_.edge[r] - key;
      add_mass(p, bits_between(from, to - 1), r);
      if (reaches_ && b_.segment[r] == BACK) {
        add_some_reach(p, bits_between(reached, to - 1), ahead, r);
        reached = at_least(0, to);
      }
      flush(r);
      from = at_least(from, to);
    }
    add_mass(p, bits_between(from, PANEL - 1), r);
    if (reaches_) add_some_reach(p, bits_between(reached, PANEL - 1), ahead, r);
  }

  void add_mass(const vf *p, uint64_t keys, int64_t r) {
    vf mass = b_.mass[r];
    for (int c = 0; c < VECTORS; c++) mass += pick(static_cast<uint32_t>(keys >> (c * W)), p[c], vf{});
    b_.mass[r] = mass;
  }

  void add_some_reach(const vf *p, uint64_t keys, float ahead, int64_t r) {
    if (keys == ~uint64_t{0}) return add_reach(p, ahead, b_.reach[r]);
    vf some[VECTORS];
    for (int c = 0; c < VECTORS; c++) some[c] = pick(static_cast<uint32_t>(keys >> (c * W)), p[c], vf{});
    add_reach(some, ahead, b_.reach[r]);
  }

  // The row leaves a segment.
  void flush(int64_t r) {
    const int segment = b_.segment[r];
    b_.segments[r * SEGMENTS + segment] += sum_lanes(b_.mass[r]);
    b_.mass[r] = vf{};
    if (segment == BACK) {
      b_.back[r] = sum_lanes(b_.reach[r]);
      b_.reach[r] = vf{};
    }
    b_.segment[r] = segment + 1;
    b_.edge[r] = edge_after(r, segment + 1);
  }

  void settle(int64_t r, double left, double ahead) {
    const double unit = static_cast<double>(f_.unit), ref = static_cast<double>(b_.ref[r]) * unit;
    // A sink that is larger by more leaves nothing to any key.
    const double over = f_.p.sinks ? static_cast<double>(logit()) - ref : 0.0;
    const double sink = f_.p.sinks ? std::exp(over < 600.0 ? over : 600.0) : 0.0;
    const double sunk = static_cast<double>(b_.sunk[r]), all = left + sunk + static_cast<double>(b_.pad[r]) + sink;
    const int64_t at = f_.at(head_, b_.first + r);
    const bool none = b_.sees[r] == 0, kept = !f_.q_kept || f_.q_kept[b_.first + r];
    const double share = none ? 0.0 : 1.0 / all, log_all = none ? 0.0 : std::log(all);
    b_.scale[r] = static_cast<float>(share);
    const bool counts = kept && b_.sees[r] >= f_.wanted.least;
    b_.factor[head_ * f_.block_rows + r] = counts ? static_cast<float>(f_.together ? std::sqrt(share) : share) : 0.f;
    const double level = static_cast<double>(sum_lanes(b_.level[r])) * unit;
    const double sunk_level = static_cast<double>(b_.sunk_level[r]) * unit;
    const double of_left = (left * log_all - level) * share, of_sunk = (sunk * log_all - sunk_level) * share;
    const double peak = static_cast<double>(b_.peak[r]) * unit, rest = left * share, given = sink * share;
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
    tell(f_.found.squares, static_cast<double>(sum_lanes(b_.square[r])) * share * share);
    const double back = static_cast<double>(b_.back[r]);
    tell(f_.found.distance, (back + ahead) * share);
    tell(f_.found.distance_absolute, (back - ahead) * share);
    if (f_.found.lse) f_.found.lse[at] = none ? -INF : static_cast<float>(ref + log_all);
  }
};

}  // namespace MH_VARIANT
}  // namespace mh
