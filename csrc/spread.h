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
      : f_(f), b_(b), head_(head), floor_(LOWEST / f.to_log2), octaves_(f.found.octaves),
        splits_(f.found.distance_absolute) {
    const mh_found &x = f.found;
    const bool sums = x.entropy || x.left_entropy || x.squares || x.distance || x.distance_absolute;
    clean_ = f.together ? sums ? &Spread::clean<true, true> : &Spread::clean<true, false>
                        : sums ? &Spread::clean<false, true> : &Spread::clean<false, false>;
  }

  void begin(int64_t r) {
    Row &row = b_.row[r];
    row = Row{};
    row.peak = row.ref = row.limit = -INF;
    row.center = f_.centers[b_.first + r];
    row.segment = octaves_ ? 0 : BACK;
    while (edge_after(row, row.segment) <= b_.from * PANEL) row.segment++;
    row.edge = edge_after(row, row.segment);
  }

  // Some rows of a tile and a panel: which keys each may see, their scores and the largest of each lane.
  MH_INLINE void add(int64_t index, int64_t start, int rows, const uint64_t *allowed, const float *scores, const vf *most) {
    if (f_.kept[index] == ~uint64_t{0} && !f_.sunk[index])
      return (this->*clean_)(index, start, rows, allowed, scores, most);
    for (int r = 0; r < rows; r++) {
      Row &row = b_.row[start + r];
      row.sees += __builtin_popcountll(allowed[r] & f_.kept[index]);
      if (any_above(most[r], splat(row.peak))) meet_larger(index, start + r, allowed[r], scores + r * PANEL, most[r]);
      mixed(index, start + r, allowed[r], scores + r * PANEL);
    }
  }

  void end(int64_t r) {
    Row &row = b_.row[r];
    row.segments[row.segment] += sum_lanes(row.mass);
    float ahead = sum_lanes(row.reach);
    if (row.segment <= BACK) {
      row.back = ahead;
      ahead = 0.f;
    }
    settle(r, content_of(row), static_cast<double>(ahead));
  }

 private:
  const Facts &f_;
  Block<E> &b_;
  int64_t head_;
  float floor_;  // a score so far below the reference that its weight is nothing
  bool octaves_, splits_;  // what is asked for that tells segments apart
  void (Spread::*clean_)(int64_t, int64_t, int, const uint64_t *, const float *, const vf *);

  // The first key behind a segment; beyond all where nothing that is asked for tells the segments apart.
  int64_t edge_after(const Row &row, int segment) const {
    return octaves_ || (splits_ && segment == BACK) ? segment_start(row.center, segment + 1) : INT64_MAX;
  }

  // A weight but for the row's factor.
  MH_INLINE float weight_of(float kept) const { return f_.together ? kept * kept : kept; }

  static double content_of(const Row &row) {
    double sum = 0.0;
    for (int s = 0; s < SEGMENTS; s++) sum += static_cast<double>(row.segments[s]);
    return sum;
  }

  // A panel whose keys all count and none of which belongs to the sink. TOGETHER: roots are kept. SUMS: what follows from
  // levels, squares and distances is asked for.
  template <bool TOGETHER, bool SUMS>
  void clean(int64_t index, int64_t start, int rows, const uint64_t *allowed, const float *scores, const vf *most) {
    Row *row = b_.row + start;
    float *line = b_.line(f_, head_, index, start);
    const vf by = splat(f_.to_log2), floor = splat(floor_), lanes = iota();
    const int64_t key = index * PANEL, after = b_.next_tile(f_);
    for (int r = 0; r < rows; r++, row++, line += PANEL, scores += PANEL) {
      if constexpr (TOGETHER)
        for (int at = 0; at < PANEL; at += 16) __builtin_prefetch(line + after + at, 1, 2);
      row->sees += __builtin_popcountll(allowed[r]);
      if (__builtin_expect(any_above(most[r], splat(row->peak)), 0))
        meet_larger(index, start + r, allowed[r], scores, most[r]);
      if (__builtin_expect(row->ref == -INF, 0)) {
        nothing(line);
        continue;
      }
      const vf ref = splat(row->ref);
      vf below[VECTORS], p[VECTORS];
      each<VECTORS>([&](auto c) __attribute__((always_inline)) { below[c] = load(scores + c * W) - ref; });
      each<VECTORS>([&](auto c) __attribute__((always_inline)) { below[c] = vmax(below[c], floor); });
      powers_of(below, by, p);
      each<VECTORS>([&](auto c) __attribute__((always_inline)) {
        store(line + c * W, p[c]);
        if constexpr (TOGETHER) p[c] = p[c] * p[c];
      });
      if constexpr (SUMS) add_level(*row, below, p);
      if (__builtin_expect(row->edge < key + PANEL, 0)) {
        by_segment(index, *row, line);
        continue;
      }
      add_mass<SUMS>(*row, p, static_cast<float>(row->center - key), lanes);
    }
  }

  // Adds weights times how far their scores lie below the reference, and squares of weights.
  MH_INLINE static void add_level(Row &row, const vf *below, const vf *p) {
    vf level = row.level, square = row.square;
    each<VECTORS>([&](auto c) __attribute__((always_inline)) {
      level = fma(p[c], below[c], level);
      square = fma(p[c], p[c], square);
    });
    row.level = level;
    row.square = square;
  }

  // Adds weights, and with REACH weight times distance; the first key lies `ahead` of the row.
  template <bool REACH>
  MH_INLINE static void add_mass(Row &row, const vf *p, float ahead, vf lanes) {
    vf mass = row.mass, reach = row.reach;
    each<VECTORS / 4>([&](auto g) __attribute__((always_inline)) {
      const vf high = p[4 * g + 2] + p[4 * g + 3], all = (p[4 * g] + p[4 * g + 1]) + high;
      mass += all;
      if constexpr (REACH) {
        const vf steps = (p[4 * g + 1] + p[4 * g + 3]) + (high + high);
        reach = fma(all, splat(ahead - 4 * W * g) - lanes, reach);
        reach = fma(steps, splat(-static_cast<float>(W)), reach);
      }
    });
    row.mass = mass;
    if constexpr (REACH) row.reach = reach;
  }

  // A score exceeds all that the row has met; the first key with the largest one is found.
  __attribute__((noinline)) void meet_larger(int64_t index, int64_t r, uint64_t allowed, const float *scores, vf most) {
    Row &row = b_.row[r];
    const uint64_t visible = allowed & f_.kept[index];
    const vf counts = visible == allowed ? most : largest_of(scores, visible);
    if (any_above(counts, splat(row.peak))) {
      row.peak = max_lane(counts);
      const uint64_t there = keys_with(scores, row.peak) & visible;
      row.top_key = static_cast<int32_t>(index * PANEL + (there ? __builtin_ctzll(there) : PANEL - 1));
    }
    if (any_above(most, splat(row.limit))) raise(index, r, max_lane(most));
  }

  void raise(int64_t index, int64_t r, float ref) {
    Row &row = b_.row[r];
    const float before = row.ref;
    row.ref = ref;
    row.limit = ref + SLACK / (f_.unit * LOG2E);
    if (before == -INF) return;
    const float by = ref - before, kept = std::exp2((before - ref) * f_.to_log2), factor = weight_of(kept);
    row.level[0] -= by * (static_cast<float>(content_of(row)) + sum_lanes(row.mass));
    row.level = row.level * factor;
    row.mass = row.mass * factor;
    row.reach = row.reach * factor;
    row.square = row.square * factor * factor;
    for (float &segment : row.segments) segment *= factor;
    row.back *= factor;
    row.pad *= factor;
    row.sunk_level = (row.sunk_level - by * row.sunk) * factor;
    row.sunk *= factor;
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
  static void nothing(float *line) {
    for (int c = 0; c < VECTORS; c++) store(line + c * W, vf{});
  }

  // Any row and panel.
  __attribute__((noinline)) void mixed(int64_t index, int64_t r, uint64_t allowed, const float *scores) {
    Row &row = b_.row[r];
    row.sees_sunk += __builtin_popcountll(allowed & f_.sunk[index]);
    const uint64_t strange = allowed & ~f_.kept[index];
    if (strange && (!f_.q_kept || f_.q_kept[b_.first + r])) b_.leaks = true;
    float *line = b_.line(f_, head_, index, r);
    if (row.ref == -INF) return nothing(line);
    const vf ref = splat(row.ref), floor = splat(floor_), by = splat(f_.to_log2);
    vf p[VECTORS], below[VECTORS];
    alignas(64) float lies[PANEL];
    for (int c = 0; c < VECTORS; c++) {
      below[c] = vmax(load(scores + c * W) - ref, floor);
      store(lies + c * W, below[c]);
    }
    powers_of(below, by, p);
    for (int c = 0; c < VECTORS; c++) store(line + c * W, p[c]);
    set_apart(index, r, allowed, line, lies);
    weights_in(line, p);
    add_level(row, below, p);
    if (row.edge < (index + 1) * PANEL) return by_segment(index, row, line);
    add_mass<true>(row, p, static_cast<float>(row.center - index * PANEL), iota());
  }

  // Weights but for the row's factor.
  MH_INLINE void weights_in(const float *line, vf *p) const {
    each<VECTORS>([&](auto c) __attribute__((always_inline)) {
      p[c] = load(line + c * W);
      if (f_.together) p[c] = p[c] * p[c];
    });
  }

  // Takes keys of the sink and keys that are not kept out of a line.
  void set_apart(int64_t index, int64_t r, uint64_t allowed, float *line, const float *below) {
    Row &row = b_.row[r];
    const uint64_t sunk = f_.sunk[index], strange = allowed & ~f_.kept[index];
    int64_t place = f_.sunk_at[index];
    for (uint64_t rest = sunk | strange; rest; rest &= rest - 1) {
      const int j = __builtin_ctzll(rest);
      const bool visible = allowed >> j & 1;
      const float weight = visible ? weight_of(line[j]) : 0.f;
      line[j] = 0.f;
      if (strange >> j & 1) {
        row.pad += weight;
        continue;
      }
      row.sunk += weight;
      row.sunk_level += weight * below[j];
      *sunk_weight(place, r) = weight;
      if (f_.found.sunk_seen)
        f_.found.sunk_seen[(place * f_.p.heads + head_) * f_.wanted.row_count + b_.first + r] = visible;
      place++;
    }
  }

  // Adds the weights of a line to the segments their keys lie in, and to the distances back and ahead.
  __attribute__((noinline)) void by_segment(int64_t index, Row &row, const float *line) {
    const int64_t key = index * PANEL;
    int64_t from = 0, reached = 0;
    vf p[VECTORS];
    weights_in(line, p);
    while (row.edge < key + PANEL) {
      const int64_t to = row.edge - key;
      add_some_mass(row, p, bits_between(from, to - 1));
      if (row.segment == BACK) {
        add_some_reach(row, p, bits_between(reached, to - 1), key);
        reached = at_least(0, to);
      }
      flush(row);
      from = at_least(from, to);
    }
    add_some_mass(row, p, bits_between(from, PANEL - 1));
    add_some_reach(row, p, bits_between(reached, PANEL - 1), key);
  }

  static void add_some_mass(Row &row, const vf *p, uint64_t keys) {
    vf mass = row.mass;
    for (int c = 0; c < VECTORS; c++) mass = add_where(static_cast<uint32_t>(keys >> (c * W)), mass, p[c]);
    row.mass = mass;
  }

  static void add_some_reach(Row &row, const vf *p, uint64_t keys, int64_t key) {
    const vf mass = row.mass;
    vf some[VECTORS];
    for (int c = 0; c < VECTORS; c++) some[c] = pick(static_cast<uint32_t>(keys >> (c * W)), p[c], vf{});
    add_mass<true>(row, some, static_cast<float>(row.center - key), iota());
    row.mass = mass;
  }

  // The row leaves a segment.
  void flush(Row &row) {
    row.segments[row.segment] += sum_lanes(row.mass);
    row.mass = vf{};
    if (row.segment == BACK) {
      row.back = sum_lanes(row.reach);
      row.reach = vf{};
    }
    row.edge = edge_after(row, ++row.segment);
  }

  void settle(int64_t r, double left, double ahead) {
    Row &row = b_.row[r];
    const double unit = static_cast<double>(f_.unit), ref = static_cast<double>(row.ref) * unit;
    // A sink that is larger by more leaves nothing to any key.
    const double over = f_.p.sinks ? static_cast<double>(f_.p.sinks[head_]) - ref : 0.0;
    const double sink = f_.p.sinks ? std::exp(over < 600.0 ? over : 600.0) : 0.0;
    const double sunk = static_cast<double>(row.sunk), all = left + sunk + static_cast<double>(row.pad) + sink;
    const int64_t at = f_.at(head_, b_.first + r);
    const bool none = row.sees == 0, kept = !f_.q_kept || f_.q_kept[b_.first + r];
    const double share = none ? 0.0 : 1.0 / all, log_all = none ? 0.0 : std::log(all);
    row.scale = static_cast<float>(share);
    const bool counts = kept && row.sees >= f_.wanted.least;
    b_.factor[head_ * f_.block_rows + r] = counts ? static_cast<float>(f_.together ? std::sqrt(share) : share) : 0.f;
    const double level = static_cast<double>(sum_lanes(row.level)) * unit;
    const double sunk_level = static_cast<double>(row.sunk_level) * unit;
    const double of_left = (left * log_all - level) * share, of_sunk = (sunk * log_all - sunk_level) * share;
    const double peak = static_cast<double>(row.peak) * unit, rest = left * share, given = sink * share;
    const auto tell = [&](float *to, double x) {
      if (to) to[at] = static_cast<float>(none ? 0.0 : x);
    };
    const auto entropy_of = [](double x) { return x > 0.0 ? -x * std::log(x) : 0.0; };
    const auto positive = [](double x) { return x > 0.0 ? x : 0.0; };
    if (f_.found.sees) f_.found.sees[at] = row.sees;
    if (f_.found.sees_sunk) f_.found.sees_sunk[at] = row.sees_sunk;
    if (f_.found.top_key) f_.found.top_key[at] = row.top_key;
    if (f_.found.peak) f_.found.peak[at] = none ? UNSEEN : static_cast<float>(peak);
    tell(f_.found.top, std::exp(peak - ref) * share);
    tell(f_.found.entropy, positive(of_left + of_sunk + entropy_of(given)));
    tell(f_.found.sink, given);
    tell(f_.found.sunk, sunk * share);
    tell(f_.found.left, rest);
    tell(f_.found.left_entropy, positive(of_left - entropy_of(rest)));
    tell(f_.found.squares, static_cast<double>(sum_lanes(row.square)) * share * share);
    const double back = static_cast<double>(row.back);
    tell(f_.found.distance, (back + ahead) * share);
    tell(f_.found.distance_absolute, (back - ahead) * share);
    if (f_.found.lse) f_.found.lse[at] = none ? -INF : static_cast<float>(ref + log_all);
  }
};

}  // namespace MH_VARIANT
}  // namespace mh
