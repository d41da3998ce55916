// Attention of few queries, as when text is written a token at a time: keys and values are read where they lie, once,
// and the time is that of reading them. The keys are split into chunks, each a task, and the parts are joined at the
// end through their sums (the same arithmetic as joining any disjoint sets of keys).
#pragma once

#include "parallel.h"
#include "score.h"
#include "settle.h"

namespace mh {
namespace MH_VARIANT {

constexpr int64_t FEW_ROWS = 8;         // queries that share keys, heads times positions, up to which this is faster
constexpr int64_t CHUNK = 16 * PANEL;   // keys of a task

MH_INLINE bool has_few_rows(const mh_problem &p) { return p.heads / p.kv_heads * p.q_len <= FEW_ROWS; }

// Lane l of the result is the sum of the lanes of r[l]; r is used up.
template <int S>
MH_INLINE vf sums_of_lanes(vf *r) {
  each<S>([&](auto i) __attribute__((always_inline)) {
    swap_blocks<S>(r[i], r[i + S], std::make_integer_sequence<int, W>{});
    r[i] = r[i] + r[i + S];
  });
  if constexpr (S > 1) return sums_of_lanes<S / 2>(r);
  else return r[0];
}

// One query as the products want it: float32, or pairs of bfloat16 where the processor multiplies those.
template <class T>
struct Query {
  static constexpr bool PAIRS = HAS_PAIRS && std::is_same_v<T, bf16>;
  static constexpr int STEP = PAIRS ? 2 * W : W;

  static MH_INLINE vf read(const T *from, int64_t count) {  // `count` numbers at most, 0 behind them
    if constexpr (PAIRS) {
      if (count >= STEP) return load(reinterpret_cast<const float *>(from));
      float lane[W] = {};
      std::memcpy(lane, from, sizeof(T) * static_cast<size_t>(count));
      return load(lane);
    } else {
      return count >= W ? load(from) : load_some(from, static_cast<int>(count));
    }
  }
  static MH_INLINE vf add_product(vf a, vf b, vf sum) {
#if defined(__AVX512BF16__)
    if constexpr (PAIRS) return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#endif
    return fma(a, b, sum);
  }
};

// Products of N queries, `steps` vectors each, with the keys of a panel: (N, PANEL). STEPS is their number where it is known
// to the compiler and every vector of a key is whole, else 0: the loop over so few costs as much as the products.
template <int N, int STEPS, class T>
inline void products(const vf *q, int64_t steps, const T *k, int64_t stride, int64_t keys, int64_t size, float *scores) {
  using Q = Query<T>;
  const int64_t whole = STEPS > 0 ? STEPS : size / Q::STEP;
  if (STEPS > 0) steps = STEPS;
  for (int64_t j = 0; j < PANEL; j += W) {
    vf sums[N][W];
    for (int64_t t = 0; t < W; t++) {
      vf sum[N] = {};
      const T *key = k + at_most(j + t, keys - 1) * stride;  // those beyond are computed and not used
      #pragma GCC unroll 4
      for (int64_t d = 0; d < whole; d++) {
        const vf x = Q::read(key + d * Q::STEP, Q::STEP);
        each<N>([&](auto i) __attribute__((always_inline)) { sum[i] = Q::add_product(x, q[i * steps + d], sum[i]); });
      }
      if (whole < steps) {
        const vf x = Q::read(key + whole * Q::STEP, size - whole * Q::STEP);
        each<N>([&](auto i) __attribute__((always_inline)) { sum[i] = Q::add_product(x, q[i * steps + whole], sum[i]); });
      }
      each<N>([&](auto i) __attribute__((always_inline)) { sums[i][t] = sum[i]; });
    }
    each<N>([&](auto i) __attribute__((always_inline)) { store(scores + i * PANEL + j, sums_of_lanes<W / 2>(sums[i])); });
    if (j + W >= keys) {
      for (int64_t rest = j + W; rest < PANEL; rest += W)
        each<N>([&](auto i) __attribute__((always_inline)) { store(scores + i * PANEL + rest, vf{}); });
      return;
    }
  }
}

// Four vectors of values of one key. Of bfloat16 the even and the odd numbers of a word are told apart by a shift and a
// mask, which is cheaper than to widen them in order: what they are added to is kept in that order meanwhile.
template <class T>
struct Values {
  static constexpr bool PARTED = std::is_same_v<T, bf16>;

  static MH_INLINE void begin(vf (&acc)[4]) {
    if constexpr (PARTED) {
      part_lanes(acc[0], acc[1], std::make_integer_sequence<int, W>{});
      part_lanes(acc[2], acc[3], std::make_integer_sequence<int, W>{});
    }
  }
  static MH_INLINE void end(vf (&acc)[4]) {
    if constexpr (PARTED) {
      join_lanes(acc[0], acc[1], std::make_integer_sequence<int, W>{});
      join_lanes(acc[2], acc[3], std::make_integer_sequence<int, W>{});
    }
  }
  static MH_INLINE void read(const T *line, vf (&value)[4]) {
    if constexpr (PARTED) {
      const vu first = (vu)load(reinterpret_cast<const float *>(line));
      const vu second = (vu)load(reinterpret_cast<const float *>(line + 2 * W));
      value[0] = (vf)(first << 16);
      value[1] = (vf)(first & 0xffff0000u);
      value[2] = (vf)(second << 16);
      value[3] = (vf)(second & 0xffff0000u);
    } else {
      each<4>([&](auto i) __attribute__((always_inline)) { value[i] = load(line + i * W); });
    }
  }
};

// out[r][c] = out[r][c] * grow[r] + sum over keys of weight times value, of N rows that see the same keys; others are
// not read.
template <int N, class T>
inline void mix_rows(const float *weights, uint64_t seen, const float *grow, const T *v, int64_t stride, int64_t size,
                     float *out, int64_t width) {
  int64_t c = 0;
  for (; c + 4 * W <= size; c += 4 * W) {
    vf acc[N][4];
    each<N>([&](auto r) __attribute__((always_inline)) {
      each<4>([&](auto i) __attribute__((always_inline)) { acc[r][i] = load(out + r * width + c + i * W) * grow[r]; });
      Values<T>::begin(acc[r]);
    });
    const auto add = [&](int64_t j) __attribute__((always_inline)) {
      vf value[4];
      Values<T>::read(v + j * stride + c, value);
      each<N>([&](auto r) __attribute__((always_inline)) {
        const vf p = splat(weights[r * PANEL + j]);
        each<4>([&](auto i) __attribute__((always_inline)) { acc[r][i] = fma(p, value[i], acc[r][i]); });
      });
    };
    if (seen == ~uint64_t{0}) {
#pragma GCC unroll 2
      for (int64_t j = 0; j < PANEL; j++) add(j);
    } else {
      for (uint64_t word = seen; word; word &= word - 1) add(__builtin_ctzll(word));
    }
    each<N>([&](auto r) __attribute__((always_inline)) {
      Values<T>::end(acc[r]);
      each<4>([&](auto i) __attribute__((always_inline)) { store(out + r * width + c + i * W, acc[r][i]); });
    });
  }
  for (; c < size; c += W) {
    const int some = static_cast<int>(at_most(size - c, W));
    for (int r = 0; r < N; r++) {
      vf acc = load(out + r * width + c) * grow[r];
      for (uint64_t word = seen; word; word &= word - 1) {
        const int64_t j = __builtin_ctzll(word);
        const T *line = v + j * stride + c;
        acc = fma(splat(weights[r * PANEL + j]), some == W ? load(line) : load_some(line, some), acc);
      }
      store(out + r * width + c, acc);
    }
  }
}

// What a chunk of keys leaves of a row.
struct Part {
  float shift, sum;
};

constexpr int TOGETHER = 4;  // rows for which a key is read once

template <class T>
class Chunk {
 public:
  Chunk(const mh_problem &p, const Scoring &scoring, char *scratch)
      : p_(p), scoring_(scoring), steps_((p.head_dim + Query<T>::STEP - 1) / Query<T>::STEP),
        group_(p.heads / p.kv_heads) {
    Cutter cutter(scratch);
    q_ = cutter.take<vf>(FEW_ROWS * steps_);
    bias_ = cutter.take<float>(MR * PANEL);
    scores_ = cutter.take<float>(TOGETHER * PANEL);
    bytes_ = cutter.used();
  }
  size_t bytes() const { return bytes_; }

  // Parts and outputs (rows, width) of the queries that share keys, head by head.
  void run(int64_t batch, int64_t kv_head, int64_t from, int64_t to, Part *parts, float *out, int64_t width) {
    const int64_t rows = group_ * p_.q_len;
    batch_ = batch, kv_head_ = kv_head, width_ = width;
    for (int64_t r = 0; r < rows; r++) {
      read_query(r, q_ + r * steps_);
      parts[r] = {-INF, 0.f};
    }
    std::memset(out, 0, sizeof(float) * static_cast<size_t>(rows * width));
    for (int64_t index = from / PANEL; index * PANEL < to; index++) {
      for (int64_t r = 0; r < rows; r += TOGETHER) {
        const int64_t some = at_most(TOGETHER, rows - r);
        if (some == 4) step<4>(index, r, parts + r, out + r * width);
        if (some == 3) step<3>(index, r, parts + r, out + r * width);
        if (some == 2) step<2>(index, r, parts + r, out + r * width);
        if (some == 1) step<1>(index, r, parts + r, out + r * width);
      }
    }
  }

 private:
  const mh_problem &p_;
  const Scoring &scoring_;
  int64_t steps_, group_, batch_ = 0, kv_head_ = 0, width_ = 0;
  vf *q_;
  float *bias_, *scores_;
  size_t bytes_;

  int64_t head(int64_t r) const { return kv_head_ * group_ + r / p_.q_len; }
  int64_t row(int64_t r) const { return r % p_.q_len; }

  void read_query(int64_t r, vf *q) const {
    const T *from = static_cast<const T *>(p_.q.data) + batch_ * p_.q.batch + head(r) * p_.q.head + row(r) * p_.q.row;
    for (int64_t d = 0; d < steps_; d++) q[d] = Query<T>::read(from + d * Query<T>::STEP, p_.head_dim - d * Query<T>::STEP);
  }

  // One panel for N rows.
  template <int N>
  void step(int64_t index, int64_t r, Part *parts, float *out) {
    uint64_t seen[N], any = 0;
    Panel panel{};
    for (int i = 0; i < N; i++) {
      const Sight sight(p_, batch_, head(r + i));
      if (i == 0) panel = sight.panel(index);
      uint64_t words[MR];
      const Seen found = sight.look(panel, row(r + i), 1, words);
      seen[i] = found == Seen::ALL ? ~uint64_t{0} : found == Seen::NOTHING ? 0 : words[0];
      any |= seen[i];
    }
    if (any == 0) return;
    const T *k = static_cast<const T *>(p_.k.data) + batch_ * p_.k.batch + kv_head_ * p_.k.head + panel.first * p_.k.row;
    const T *v = static_cast<const T *>(p_.v.data) + batch_ * p_.v.batch + kv_head_ * p_.v.head + panel.first * p_.v.row;
    const auto run = [&](auto steps) __attribute__((always_inline)) {
      products<N, steps>(q_ + r * steps_, steps_, k, p_.k.row, panel.keys, p_.head_dim, scores_);
    };
    if (p_.head_dim == 2 * Query<T>::STEP) run(std::integral_constant<int, 2>{});
    else if (p_.head_dim == 4 * Query<T>::STEP) run(std::integral_constant<int, 4>{});
    else run(std::integral_constant<int, 0>{});
    float grow[N];
    bool alike = true;
    for (int i = 0; i < N; i++) {
      if (!scoring_.plain) {
        finish(panel, r + i, scores_ + i * PANEL);
        seen[i] &= ~shut_by(bias_);
      }
      alike &= seen[i] == seen[0];
      grow[i] = weigh(seen[i], scores_ + i * PANEL, &parts[i]);
    }
    if (alike) {
      mix_rows<N>(scores_, seen[0], grow, v, p_.v.row, p_.v_head_dim, out, width_);
    } else {
      for (int i = 0; i < N; i++)
        if (seen[i]) mix_rows<1>(scores_ + i * PANEL, seen[i], grow + i, v, p_.v.row, p_.v_head_dim, out + i * width_, width_);
    }
  }

  void finish(const Panel &panel, int64_t r, float *scores) {
    Adjust(p_, batch_, head(r)).fill(panel, row(r), 1, bias_);
    for (int c = 0; c < PANEL; c += W) {
      vf s = load(scores + c) * (scoring_.scale * scoring_.sign);
      if (scoring_.softcap > 0.f) s = scoring_.softcap * tanhv(s * scoring_.inverse_cap);
      store(scores + c, s + load(bias_ + c));
    }
  }

  // Scores of a row become weights; returns the factor of what was summed before.
  float weigh(uint64_t seen, float *scores, Part *part) {
    if (seen == 0) return 1.f;
    const float by = scoring_.plain ? scoring_.to_log2 * scoring_.sign : 1.f;
    vf top = splat(-INF), sum = {};
    for (int c = 0; c < PANEL; c += W) {
      const vf s = pick(static_cast<uint32_t>(seen >> c), load(scores + c) * by, splat(-INF));
      store(scores + c, s);
      top = vmax(s, top);
    }
    const float before = part->shift, most = max_lane(top), after = most > before ? most : before;
    const float grow = before == -INF ? 0.f : std::exp2((before - after) * scoring_.span);
    const vf shift = splat(after == -INF ? 0.f : after);
    for (int c = 0; c < PANEL; c += W) {
      const vf e = exp2v<true>((load(scores + c) - shift) * scoring_.span);
      store(scores + c, e);
      sum += e;
    }
    part->shift = after;
    part->sum = part->sum * grow + sum_lanes(sum);
    return grow;
  }
};

// Joins the parts of one row: `stride` floats and parts lie between one chunk and the next.
inline void join(float span, int64_t chunks, int64_t part_stride, int64_t out_stride, Part *parts, float *out,
                 int64_t width) {
  float shift = -INF;
  for (int64_t n = 0; n < chunks; n++) {
    const float other = parts[n * part_stride].shift;
    shift = other > shift ? other : shift;
  }
  float sum = 0.f;
  for (int64_t n = 0; n < chunks; n++) {
    const Part part = parts[n * part_stride];
    const float factor = part.sum == 0.f ? 0.f : std::exp2((part.shift - shift) * span);
    sum += part.sum * factor;
    float *from = out + n * out_stride;
    for (int64_t c = 0; c < width; c += W) {
      const vf x = factor == 0.f ? vf{} : load(from + c) * factor;
      store(out + c, n == 0 ? x : load(out + c) + x);
    }
  }
  parts[0] = {shift, sum};
}

template <class T>
int decode(const mh_problem &p, const mh_tensor &out, float *lse) {
  const Scoring scoring(p);
  const int64_t width = round_up(p.v_head_dim, W), pairs = p.batch * p.kv_heads, group = p.heads / p.kv_heads;
  const int64_t rows = group * p.q_len, chunks = at_least(1, (p.kv_len + CHUNK - 1) / CHUNK);
  Cutter sizes(nullptr);
  sizes.take<Part>(chunks * pairs * rows);
  sizes.take<float>(chunks * pairs * rows * width);
  const Scratch held(sizes.used());
  if (!held) return MH_NO_MEMORY;
  Cutter cutter(held.data());
  Part *parts = cutter.take<Part>(chunks * pairs * rows);
  float *sums = cutter.take<float>(chunks * pairs * rows * width);
  const int status = run_tasks(pairs * chunks, p.threads, Chunk<T>(p, scoring, nullptr).bytes(),
                               [&](int64_t task, char *scratch) {
    const int64_t pair = task / chunks, chunk = task % chunks;
    Chunk<T>(p, scoring, scratch).run(pair / p.kv_heads, pair % p.kv_heads, chunk * CHUNK,
                                      at_most(p.kv_len, (chunk + 1) * CHUNK), parts + task * rows,
                                      sums + task * rows * width, width);
  });
  if (status != MH_OK) return status;
  for (int64_t at = 0; at < pairs * rows; at++) {
    const int64_t pair = at / rows, r = at % rows, first = pair * chunks * rows + r;
    if (chunks > 1) join(scoring.span, chunks, rows, rows * width, parts + first, sums + first * width, width);
    const int64_t batch = pair / p.kv_heads, head = pair % p.kv_heads * group + r / p.q_len, row = r % p.q_len;
    const Part part = parts[first];
    const Settled settled = settle(part.sum, part.sum, scoring.natural(part.shift), p.sinks ? &p.sinks[head] : nullptr);
    write_row(sums + first * width, settled.factor, p.v_head_dim,
              static_cast<T *>(out.data) + batch * out.batch + head * out.head + row * out.row);
    if (lse) lse[(batch * p.heads + head) * p.q_len + row] = settled.lse;
  }
  return MH_OK;
}

}  // namespace MH_VARIANT
}  // namespace mh
