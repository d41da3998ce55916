/* What a file of problems may say: a job, field by field. */
#pragma once

#include <stddef.h>

#include "multihead_statistics.h"

/* What mh_statistics finds, and the type of its elements. */
#define EACH_FOUND(X)                                                                                              \
  X(sees, WHOLE) X(sees_sunk, WHOLE) X(top_key, WHOLE) X(peak, REAL) X(top, REAL) X(entropy, REAL) X(sink, REAL)   \
  X(sunk, REAL) X(left, REAL) X(left_entropy, REAL) X(squares, REAL) X(distance, REAL) X(distance_absolute, REAL)  \
  X(lse, REAL) X(offsets, REAL) X(octaves, REAL) X(sunk_weights, REAL) X(sunk_seen, BYTE) X(columns, DOUBLE)       \
  X(pooled, DOUBLE) X(pooled_content, DOUBLE) X(gram, DOUBLE) X(pair_weight, REAL) X(pair_sunk, REAL)              \
  X(pair_seen, WHOLE) X(pair_seen_sunk, WHOLE) X(pair_top, BYTE) X(link_keys, WHOLE) X(link_weights, REAL)         \
  X(leaks, BYTE)

enum element { WHOLE, REAL, DOUBLE, BYTE };
#define PLACE(name, element) AT_##name,
enum { EACH_FOUND(PLACE) N_FOUND };
#undef PLACE

/* One problem with what is expected of it. Expected numbers are contiguous float32. Their bounds are one for each row of
 * a forward pass; of statistics one for each number, and where NaN is expected any number will do. */
typedef struct job {
  mh_problem problem;
  mh_tensor out;
  float *lse;
  const float *out_expected, *out_bound, *lse_expected, *lse_bound;
  mh_wanted wanted;
  mh_pairs pairs[64];
  int64_t pair; /* the set that fields of pairs are about, from here on */
  mh_found found;
  const float *want[N_FOUND], *bound[N_FOUND];
  int64_t status;
  const char *label;
} job;

enum kind { I32, I64, F32, INPUT, OUTPUT, PLAIN };

typedef struct field {
  const char *name;
  size_t at;
  enum kind kind;
} field;

#define OF(name, kind) {#name, offsetof(job, problem.name), kind}
#define TENSOR(name) OF(name.data, INPUT), OF(name.batch, I64), OF(name.head, I64), OF(name.row, I64)
#define OWN(name, kind) {#name, offsetof(job, name), kind}
#define LINE(name) OWN(wanted.name, INPUT), OWN(wanted.name##_batch, I64)
#define PAIRS(name, kind) {"pairs." #name, offsetof(job, pairs[0].name), kind}
#define FOUND(name, element)                                                                         \
  {"found." #name, offsetof(job, found.name), OUTPUT}, {"want." #name, offsetof(job, want[AT_##name]), PLAIN}, \
      {"bound." #name, offsetof(job, bound[AT_##name]), PLAIN},

static const field FIELDS[] = {
    OF(dtype, I32), OF(batch, I64), OF(heads, I64), OF(kv_heads, I64), OF(q_len, I64), OF(kv_len, I64),
    OF(head_dim, I64), OF(v_head_dim, I64), TENSOR(q), TENSOR(k), TENSOR(v), OF(scale, F32), OF(softcap, F32),
    OF(q_offset, I64), OF(sinks, INPUT),
    OF(mask.window, INPUT), OF(mask.window_batch, I64), OF(mask.window_head, I64),
    OF(mask.q_ids, INPUT), OF(mask.k_ids, INPUT), OF(mask.q_ids_batch, I64), OF(mask.k_ids_batch, I64),
    OF(mask.keep, INPUT), OF(mask.keep_batch, I64),
    OF(mask.dense, INPUT), OF(mask.dense_batch, I64), OF(mask.dense_head, I64), OF(mask.dense_row, I64),
    OF(mask.dense_col, I64),
    OF(mask.tile_class, INPUT), OF(mask.tile_index, INPUT), OF(mask.tile_bits, INPUT), OF(mask.tile_batch, I64),
    OF(mask.tile_head, I64), OF(mask.q_tiles, I64), OF(mask.k_tiles, I64), OF(mask.tile_count, I64),
    OF(bias.slopes, INPUT), OF(bias.table, INPUT), OF(bias.table_first, I64), OF(bias.table_len, I64),
    OF(bias.dense, INPUT), OF(bias.dense_dtype, I32), OF(bias.dense_batch, I64), OF(bias.dense_head, I64),
    OF(bias.dense_row, I64), OF(bias.dense_col, I64),
    OWN(out.data, OUTPUT), OWN(out.batch, I64), OWN(out.head, I64), OWN(out.row, I64), OWN(lse, OUTPUT),
    {"out.expected", offsetof(job, out_expected), PLAIN}, {"out.bound", offsetof(job, out_bound), PLAIN},
    {"lse.expected", offsetof(job, lse_expected), PLAIN}, {"lse.bound", offsetof(job, lse_bound), PLAIN},
    OWN(wanted.bins, I32), OWN(wanted.row_first, I64), OWN(wanted.row_count, I64), OWN(wanted.rows, INPUT),
    LINE(centers), LINE(q_kept), LINE(k_kept), LINE(sunk), OWN(wanted.sunk_keys, I64), LINE(q_bins), LINE(k_bins),
    OWN(wanted.pair_sets, I64), OWN(wanted.least, I64),
    OWN(wanted.link_rows, INPUT), OWN(wanted.link_count, I64), OWN(wanted.links, I64),
    OWN(pair, I64), PAIRS(low, I64), PAIRS(high, I64), PAIRS(without, I64), PAIRS(q_ids, INPUT), PAIRS(k_ids, INPUT),
    PAIRS(q_ids_batch, I64), PAIRS(k_ids_batch, I64), PAIRS(dense, INPUT), PAIRS(dense_batch, I64),
    PAIRS(dense_head, I64), PAIRS(dense_row, I64), PAIRS(dense_first, I64), PAIRS(dense_keys, I64),
    EACH_FOUND(FOUND)
    OWN(status, I64), OWN(label, PLAIN),
};
enum { N_FIELDS = sizeof FIELDS / sizeof *FIELDS };
