/* Statistics of attention weights in one pass: every weight is looked at once and none is kept.
 *
 * A = softmax of the scores of a problem, as mh_forward has it; values are not read. "Content" is all keys but those of
 * the sink. A row counts if its query is kept and it sees `least` keys that are kept. Keys that are not kept get weight
 * where the mask lets them, and count nowhere.
 *
 * Which statistic of the library follows from what:
 *   entropy, entropy share, entropy by position    entropy, left_entropy, left, sees, sees_sunk
 *   largest weight, its place, largest score       top, top_key, peak
 *   weight on the sink, first token, special       sunk, sink, sunk_weights, sunk_seen, top_key
 *   participation                                  squares, left, sunk, sink, sunk_weights
 *   distance, distance histogram, 90 % span        distance, distance_absolute, offsets, octaves; the sink's keys are
 *                                                  added from sunk_weights, since their distances are known
 *   mean map                                       pooled, pooled_content
 *   weight received, classes of tokens             columns: what is linear in the weights and summed over rows is a
 *                                                  small product with them
 *   sets of pairs (targets, same token, induction) pair_*
 *   heads alike                                    gram; what the sink's keys add follows from sunk_weights
 *   strongest links                                link_keys, link_weights
 */
#ifndef MULTIHEAD_STATISTICS_H
#define MULTIHEAD_STATISTICS_H

#include "multihead.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MH_STATISTICS_ABI 2

enum {
  MH_FARTHEST = 16,               /* distances that are told one by one */
  MH_OFFSETS = 2 * MH_FARTHEST + 1,
  MH_OCTAVES = 11                 /* bins beyond: 16 to 31, ..., 2^13 to 2^14 - 1, and all from 2^14 on */
};

/* A set of pairs: those that every part that is given allows. */
typedef struct mh_pairs {
  int64_t low, high;           /* bounds of center - key; INT64_MIN and INT64_MAX for none */
  int64_t without;             /* a value of center - key that is left out; INT64_MIN for none */
  const int32_t *q_ids, *k_ids; /* (row_count) and (kv_len), equal, or NULL */
  int64_t q_ids_batch, k_ids_batch;
  const uint8_t *dense;        /* 0 or 1 for each row looked at and `dense_keys` keys from `dense_first` on, or NULL */
  int64_t dense_batch, dense_head, dense_row;
  int64_t dense_first, dense_keys;
} mh_pairs;

/* Strides of batch rows are 0 where all are alike. */
typedef struct mh_wanted {
  int32_t abi;                 /* MH_STATISTICS_ABI */
  int32_t bins;                /* of queries and of keys, for the mean map */
  int64_t row_first, row_count;
  const int64_t *rows;         /* (row_count) the queries to look at; NULL: row_first and those after it */
  const int64_t *centers;      /* (row_count) for each row the key at its own position; it may lie outside */
  int64_t centers_batch;
  const uint8_t *q_kept;       /* (row_count) or NULL: all */
  int64_t q_kept_batch;
  const uint8_t *k_kept;       /* (kv_len) or NULL: all */
  int64_t k_kept_batch;
  const uint8_t *sunk;         /* (kv_len) keys of the sink, or NULL: none; all are kept */
  int64_t sunk_batch;
  int64_t sunk_keys;           /* how many keys of the sink there are in all batch rows: the room of sunk_weights */
  const int32_t *q_bins;       /* (row_count) from 0 to bins - 1; NULL: 0 */
  int64_t q_bins_batch;
  const int32_t *k_bins;       /* (kv_len) from 0 to bins - 1, never falling, or -1: in no bin */
  int64_t k_bins_batch;
  const mh_pairs *pairs;
  int64_t pair_sets;           /* at most 64 */
  int64_t least;
  const int64_t *link_rows;    /* (link_count) places among the rows looked at, rising; NULL: the first ones */
  int64_t link_count;
  int64_t links;               /* strongest links that are told of each of them, at most 64 */
  void *packed;                /* memory for keys as the kernel reads them, or NULL */
  int64_t packed_size;         /* its bytes, at least mh_packed_bytes */
  int32_t packed_ready;        /* 1: an earlier call with the same keys and variant has filled it */
  int32_t reserved;
} mh_wanted;

/* Each may be NULL: then it is not told. All are contiguous; "rows" are those looked at. */
typedef struct mh_found {
  /* (batch, heads, rows) */
  int32_t *sees, *sees_sunk, *top_key;
  float *peak, *top, *entropy, *sink, *sunk, *left, *left_entropy;
  float *squares;              /* sum of squares of the weights on content */
  float *distance, *distance_absolute; /* sum over content of weight times (center - key), and its size */
  float *lse;
  float *offsets;              /* (batch, heads, rows, MH_OFFSETS): content at center - key = -16 .. 16 */
  float *octaves;              /* (batch, heads, rows, 2 * MH_OCTAVES): content ahead, farthest first; back, nearest first */
  /* Each key of the sink, in the order of batch rows and keys: (keys, heads, rows). */
  float *sunk_weights;
  uint8_t *sunk_seen;
  /* Over the rows that count. */
  double *columns;             /* (batch, heads, kv_len): weight on each key, the sink's too */
  double *pooled, *pooled_content; /* (batch, heads, bins, bins): bin of the query, bin of the key */
  double *gram;                /* (batch, heads, heads): sum over content of the root of the product of two heads' weights */
  /* (pair_sets, batch, heads, rows): weight on pairs outside and inside of the sink, pairs seen, whether the top is one. */
  float *pair_weight, *pair_sunk;
  int32_t *pair_seen, *pair_seen_sunk;
  uint8_t *pair_top;
  /* (batch, heads, link_count, links): the visible keys that are kept, the sink's too, of largest score, the lower of
   * equal ones first, and their weights; -1 and 0 where a row sees no more. Rows need not count. */
  int32_t *link_keys;
  float *link_weights;
  uint8_t *leaks;              /* (batch): whether a key that is not kept gets weight from a query that is */
} mh_found;

MH_API int mh_statistics(const mh_problem *problem, const mh_wanted *wanted, const mh_found *found);
/* Bytes of `packed`, at a multiple of 64; -1 where the problem is refused. Calls for other rows then need not pack again. */
MH_API int64_t mh_packed_bytes(const mh_problem *problem);
MH_API int mh_statistics_abi(void);

#ifdef __cplusplus
}
#endif
#endif
