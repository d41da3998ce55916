/* Replays problems from a file and compares what the kernel answers with what the file expects, with no Python about:
 * on other processors, under an emulator, under sanitizers.
 *
 *   multihead_replay FILE [all | VARIANT | VARIANT,VARIANT] [THREADS | THREADS,THREADS]
 *
 * A file is "MHREPLAY", the int64 1, then chunks: a name (24 bytes), the size of an element (int32), 0 (int32), the
 * bytes that follow (int64), those bytes, and zeros up to a multiple of 8. A chunk is one field of the job below: an
 * int64, a double, or the memory of a tensor. A chunk `run`, with the name of an entry, runs what was given since the
 * last one. To replay another entry, add its fields to the job (replay_job.h) and the entry to ENTRIES.
 *
 * Every tensor is placed against the end of what the process may touch, or against its beginning, and inputs cannot be
 * written to. Answers must be the same, bit for bit, for each number of threads. The exit status is 0 when all agree, 1
 * when some do not, 2 for a file or a command that makes no sense, 3 when memory was touched that is not the kernel's.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "replay_job.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

enum { MOST = 8, LABEL = 200, MOST_PLACES = 400, MOST_OUTPUTS = 2 + N_FOUND };

/* Memory that ends, or begins, where the process may touch nothing more. */
typedef struct place {
  char *block, *data;
  const char *given; /* what the file holds for it */
  size_t block_len, len;
  enum kind kind;
  int unit;
} place;

typedef struct answer { /* outputs of the first number of threads, as they lie in memory */
  char *bytes[MOST_OUTPUTS];
} answer;

static job now;
static place places[MOST_PLACES];
static int n_places, failures, problems;
static double worst;
static char label[LABEL] = "nothing yet";

static void stop(const char *why) {
  fprintf(stderr, "multihead_replay: %s (problem %d: %s)\n", why, problems, label);
  exit(2);
}

static void fail(const char *variant, int threads, const char *what) {
  if (failures++ < 20) printf("FAIL %s [%s, %d threads]: %s\n", label, variant, threads, what);
}

#if defined(__SANITIZE_ADDRESS__)

static void last_words(void) { fprintf(stderr, "while replaying problem %d: %s\n", problems, label); }

static void listen(void) { __sanitizer_set_death_callback(last_words); }

/* The sanitizer sees every byte beyond a block of malloc. Every second block begins where only one element fits. */
static void claim(place *p) {
  size_t before = problems % 2 ? (size_t)p->unit : 0;
  p->block = malloc(p->len + before + (p->len + before == 0));
  if (!p->block) stop("no memory");
  p->data = p->block + before;
  memcpy(p->data, p->given, p->len);
}

static void release(place *p) { free(p->block); }

#else

static void on_fault(int signal) {
  const char *why = signal == SIGILL ? "FAIL an instruction this processor does not know: "
                                     : "FAIL memory touched that is not the kernel's: ";
  if (write(STDOUT_FILENO, why, strlen(why)) < 0 || write(STDOUT_FILENO, label, strlen(label)) < 0) _exit(4);
  _exit(write(STDOUT_FILENO, "\n", 1) < 0 ? 4 : 3);
}

static void listen(void) {
  signal(SIGSEGV, on_fault);
  signal(SIGBUS, on_fault);
  signal(SIGILL, on_fault);
}

static void claim(place *p) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (p->len + page) / page * page;
  p->block_len = room + 2 * page;
  p->block = mmap(NULL, p->block_len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p->block == MAP_FAILED || mprotect(p->block + page, room, PROT_READ | PROT_WRITE)) stop("no memory");
  p->data = p->block + page + (problems % 2 ? 0 : room - p->len);
  memcpy(p->data, p->given, p->len);
  if (p->kind == INPUT && mprotect(p->block + page, room, PROT_READ)) stop("no guard pages");
}

static void release(place *p) { munmap(p->block, p->block_len); }

#endif

static const void *put(const field *f, const char *given, size_t len, int unit) {
  if (n_places == MOST_PLACES) stop("too many tensors");
  place *p = &places[n_places++];
  *p = (place){.given = given, .len = len, .kind = f->kind, .unit = unit};
  claim(p);
  return p->data;
}

static void set(const char *name, int unit, const char *given, size_t len) {
  const field *f = FIELDS;
  while (f < FIELDS + N_FIELDS && strcmp(f->name, name)) f++;
  if (f == FIELDS + N_FIELDS) {
    fprintf(stderr, "multihead_replay: no field '%s'\n", name);
    stop("a chunk that is none of the job");
  }
  char *to = (char *)&now + f->at;
  if (f->at >= offsetof(job, pairs) && f->at < offsetof(job, pair)) {
    if (now.pair < 0 || now.pair > 63) stop("too many sets of pairs");
    to += (size_t)now.pair * sizeof *now.pairs;
  }
  if (f->kind < INPUT && len != 8) stop("a number that is not 8 bytes");
  if (f->kind >= INPUT && (unit < 1 || len % (size_t)unit)) stop("a tensor of half an element");
  int64_t whole = 0;
  double real = 0;
  if (f->kind == F32) memcpy(&real, given, 8);
  if (f->kind < F32) memcpy(&whole, given, 8);
  if (f->kind == I32) *(int32_t *)to = (int32_t)whole;
  if (f->kind == I64) *(int64_t *)to = whole;
  if (f->kind == F32) *(float *)to = (float)real;
  if (f->kind == PLAIN) *(const void **)to = given;
  if (f->kind == INPUT || f->kind == OUTPUT) *(const void **)to = put(f, given, len, unit);
  if (!strcmp(name, "label")) snprintf(label, sizeof label, "%.*s", (int)len, given);
}

static float half_to_float(uint16_t h) {
  int exponent = h >> 10 & 31, fraction = h & 1023;
  float size = exponent == 31 ? (fraction ? NAN : INFINITY)
               : exponent     ? ldexpf((float)(fraction | 1024), exponent - 25)
                              : ldexpf((float)fraction, -24);
  return h >> 15 ? -size : size;
}

static float element(const void *data, int dtype, int64_t at) {
  if (dtype == MH_F32) return ((const float *)data)[at];
  uint16_t bits = ((const uint16_t *)data)[at];
  if (dtype == MH_F16) return half_to_float(bits);
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

/* Whether two numbers agree: NaN with NaN, infinities exactly, others within the bound. */
static int agrees(float got, float want, float bound) {
  if (isnan(want) || isnan(got)) return isnan(want) && isnan(got);
  if (isinf(want) || isinf(got)) return got == want;
  double far = fabs((double)got - want);
  if (bound > 0 && far / bound > worst) worst = far / bound;
  return far <= bound;
}

/* Compares one tensor of rows, all of them, and says the first that differs. Returns the number of wrong elements. */
static int64_t compare(const char *name, const mh_tensor *t, int dtype, int64_t cols, const float *want,
                       const float *bound, char *said, size_t room) {
  const mh_problem *p = &now.problem;
  int64_t wrong = 0, row = 0;
  for (int64_t b = 0; b < p->batch; b++)
    for (int64_t h = 0; h < p->heads; h++)
      for (int64_t i = 0; i < p->q_len; i++, row++)
        for (int64_t c = 0; c < cols; c++) {
          float got = element(t->data, dtype, b * t->batch + h * t->head + i * t->row + c), due = want[row * cols + c];
          if (agrees(got, due, bound[row]) || wrong++) continue;
          snprintf(said, room, "%s[%d,%d,%d,%d] is %.9g, not %.9g within %.3g", name, (int)b, (int)h, (int)i, (int)c,
                   (double)got, (double)due, (double)bound[row]);
        }
  return wrong;
}

/* Whether anything but the elements of the output was written to. */
static int strayed(const place *p, const mh_tensor *t, int64_t size, int64_t cols) {
  const mh_problem *m = &now.problem;
  char *due = malloc(p->len + 1);
  if (!due) stop("no memory");
  memcpy(due, p->given, p->len);
  for (int64_t b = 0; b < m->batch; b++)
    for (int64_t h = 0; h < m->heads; h++)
      for (int64_t i = 0; i < m->q_len; i++) {
        int64_t at = (b * t->batch + h * t->head + i * t->row) * size;
        memcpy(due + at, p->data + at, (size_t)(cols * size));
      }
  int differs = memcmp(due, p->data, p->len) != 0;
  free(due);
  return differs;
}

static void check_forward(const char *variant, int threads) {
  const mh_problem *p = &now.problem;
  char said[200] = "", more[260];
  int64_t wrong = 0;
  if (now.out_expected && now.out_bound)
    wrong += compare("out", &now.out, p->dtype, p->v_head_dim, now.out_expected, now.out_bound, said, sizeof said);
  mh_tensor lse = {now.lse, p->heads * p->q_len, p->q_len, 1};
  if (now.lse && now.lse_expected && now.lse_bound && !wrong)
    wrong += compare("lse", &lse, MH_F32, 1, now.lse_expected, now.lse_bound, said, sizeof said);
  snprintf(more, sizeof more, "%s (%lld wrong)", said, (long long)wrong);
  if (wrong) fail(variant, threads, more);
  for (int i = 0; i < n_places; i++)
    if (places[i].data == now.out.data && places[i].len &&
        strayed(&places[i], &now.out, p->dtype == MH_F32 ? 4 : 2, p->v_head_dim))
      fail(variant, threads, "something beside the output was written to");
}

static double number(const void *data, enum element element, size_t at) {
  if (element == WHOLE) return ((const int32_t *)data)[at];
  if (element == REAL) return ((const float *)data)[at];
  return element == DOUBLE ? ((const double *)data)[at] : ((const uint8_t *)data)[at];
}

/* Compares one of the things found, if it was asked for, and says the first number that differs. */
static void check_found(const char *name, int which, const void *data, enum element element, const char *variant,
                        int threads) {
  const float *want = now.want[which], *bound = now.bound[which];
  if (!data || !want || !bound) return;
  const place *p = places;
  while (p < places + n_places && p->data != data) p++;
  if (p == places + n_places) stop("an output that lies nowhere");
  size_t count = p->len / (size_t)p->unit, wrong = 0, first = 0;
  for (size_t i = 0; i < count; i++)
    if (!isnan(want[i]) && !agrees((float)number(data, element, i), want[i], bound[i]) && !wrong++) first = i;
  if (!wrong) return;
  char said[200];
  snprintf(said, sizeof said, "%s[%d] is %.9g, not %.9g within %.3g (%d of %d wrong)", name, (int)first,
           number(data, element, first), (double)want[first], (double)bound[first], (int)wrong, (int)count);
  fail(variant, threads, said);
}

static void check_statistics(const char *variant, int threads) {
#define CHECK(name, element) check_found(#name, AT_##name, now.found.name, element, variant, threads);
  EACH_FOUND(CHECK)
#undef CHECK
}

static int run_statistics(void) {
  now.wanted.abi = MH_STATISTICS_ABI;
  now.wanted.pairs = now.pairs;
  return mh_statistics(&now.problem, &now.wanted, &now.found);
}

static int run_forward(void) { return mh_forward(&now.problem, &now.out, now.lse); }

static const struct entry {
  const char *name;
  int (*run)(void);
  void (*check)(const char *variant, int threads);
} ENTRIES[] = {{"forward", run_forward, check_forward}, {"statistics", run_statistics, check_statistics}};

/* A refused problem must have left its outputs alone. */
static void check_untouched(const char *variant, int threads) {
  for (int i = 0; i < n_places; i++)
    if (memcmp(places[i].data, places[i].given, places[i].len)) fail(variant, threads, "refused, yet written to");
}

static void check_same(answer *first, const char *variant, int threads) {
  for (int i = 0, n = 0; i < n_places; i++) {
    if (places[i].kind != OUTPUT || n == MOST_OUTPUTS) continue;
    char **kept = &first->bytes[n++];
    if (*kept && memcmp(*kept, places[i].data, places[i].len)) fail(variant, threads, "not what other threads gave");
    if (*kept) continue;
    *kept = malloc(places[i].len + 1);
    if (!*kept) stop("no memory");
    memcpy(*kept, places[i].data, places[i].len);
  }
}

static void replay(const struct entry *e, int variant, const int *threads, int n_threads) {
  answer first = {{0}};
  const char *name = mh_variant_name(variant);
  for (int t = 0; t < n_threads; t++) {
    for (int i = 0; i < n_places; i++)
      if (places[i].kind == OUTPUT) memcpy(places[i].data, places[i].given, places[i].len);
    now.problem.abi = MH_ABI;
    now.problem.variant = variant;
    now.problem.threads = threads[t];
    int status = e->run();
    if (status != now.status) {
      char said[160];
      snprintf(said, sizeof said, "status %d (%s), not %d (%s)", status, mh_status_text(status), (int)now.status,
               mh_status_text((int)now.status));
      fail(name, threads[t], said);
    } else if (status != MH_OK) {
      check_untouched(name, threads[t]);
    } else {
      e->check(name, threads[t]);
      check_same(&first, name, threads[t]);
    }
  }
  for (int i = 0; i < MOST_OUTPUTS; i++) free(first.bytes[i]);
}

static void run(const char *name, size_t len, int variants, const int *threads, int n_threads) {
  const struct entry *e = NULL;
  for (size_t i = 0; i < sizeof ENTRIES / sizeof *ENTRIES; i++)
    if (strlen(ENTRIES[i].name) == len && !memcmp(ENTRIES[i].name, name, len)) e = &ENTRIES[i];
  if (!e) stop("an entry that is not known");
  for (int v = 0; v < 31; v++)
    if (variants >> v & 1) replay(e, v, threads, n_threads);
  while (n_places) release(&places[--n_places]);
  memset(&now, 0, sizeof now);
  problems++;
}

static char *read_file(const char *path, size_t *len) {
  FILE *f = fopen(path, "rb");
  if (!f || fseek(f, 0, SEEK_END)) stop("no such file");
  long size = ftell(f);
  rewind(f);
  char *bytes = malloc((size_t)size + 1);
  if (!bytes || fread(bytes, 1, (size_t)size, f) != (size_t)size) stop("the file cannot be read");
  fclose(f);
  *len = (size_t)size;
  return bytes;
}

static void read_problems(const char *bytes, size_t len, int variants, const int *threads, int n_threads) {
  int64_t version;
  if (len < 16 || memcmp(bytes, "MHREPLAY", 8)) stop("not a file of problems");
  memcpy(&version, bytes + 8, 8);
  if (version != 1) stop("a file of another version");
  for (size_t at = 16; at < len;) {
    char name[25] = "";
    int32_t unit;
    int64_t size;
    if (len - at < 40) stop("a file that ends within a chunk");
    memcpy(name, bytes + at, 24);
    memcpy(&unit, bytes + at + 24, 4);
    memcpy(&size, bytes + at + 32, 8);
    at += 40;
    if (size < 0 || (size_t)size > len - at) stop("a file that ends within a chunk");
    if (strcmp(name, "run")) set(name, unit, bytes + at, (size_t)size);
    else run(bytes + at, (size_t)size, variants, threads, n_threads);
    at += ((size_t)size + 7) / 8 * 8;
  }
  if (n_places) stop("a file that ends within a problem");
}

static int chosen_variants(const char *asked) {
  int here = mh_variants(), chosen = 0;
  if (!strcmp(asked, "all")) return here;
  for (int v = 0; v < 31; v++) {
    const char *name = mh_variant_name(v), *found = name ? strstr(asked, name) : NULL;
    for (; found; found = strstr(found + 1, name)) {
      char after = found[strlen(name)];
      if ((found == asked || found[-1] == ',') && (!after || after == ',')) chosen |= 1 << v;
    }
  }
  if (!chosen || chosen & ~(here | 1 << MH_AUTO)) stop("a variant that does not run here");
  return chosen;
}

int main(int argc, char **argv) {
  int threads[MOST] = {1}, n_threads = 1;
  if (argc < 2 || argc > 4) stop("usage: multihead_replay FILE [all | VARIANT,...] [THREADS,...]");
  int variants = chosen_variants(argc > 2 ? argv[2] : "all");
  if (argc > 3) {
    char *rest = argv[3];
    for (n_threads = 0; *rest && n_threads < MOST; rest += *rest == ',') threads[n_threads++] = (int)strtol(rest, &rest, 10);
  }
  listen();
  size_t len;
  char *bytes = read_file(argv[1], &len);
  read_problems(bytes, len, variants, threads, n_threads);
  free(bytes);
  printf("%d problems, %d failures, largest error %.3f of its bound; variants", problems, failures, worst);
  for (int v = 0; v < 31; v++)
    if (variants >> v & 1) printf(" %s", mh_variant_name(v));
  printf("; threads");
  for (int t = 0; t < n_threads; t++) printf(" %d", threads[t]);
  printf("\n");
  return failures > 0;
}
