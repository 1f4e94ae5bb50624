/* The bucket of each number among bounds. Compiled by hatch_build.py, called by buckets.py, which checks all sizes. */
#include <stddef.h>
#include <stdint.h>

enum { FEW = 16, AT_ONCE = 256, LANES = 16 }; /* bounds that are compared one by one; numbers taken together */

/* out[i] = 1 + the number of bounds that are not greater than values[i], or 0 for NaN; bounds ascend. */
void tdu_buckets(const double *restrict values, size_t n, const double *restrict bounds, size_t k,
                 int64_t *restrict out) {
    if (k <= FEW) {
        for (size_t first = 0; first < n; first += AT_ONCE) {
            size_t rows = n - first < AT_ONCE ? n - first : AT_ONCE;
            const double *x = values + first;
            int64_t *found = out + first;
            for (size_t i = 0; i < rows; i++) found[i] = x[i] == x[i];
            for (size_t j = 0; j < k; j++)
                for (size_t i = 0; i < rows; i++) found[i] += x[i] >= bounds[j]; /* never true of NaN */
        }
        return;
    }
    for (size_t first = 0; first < n; first += LANES) {
        size_t rows = n - first < LANES ? n - first : LANES, low[LANES] = {0}; /* all before it are not greater */
        const double *x = values + first;
        for (size_t left = k; left > 1;) { /* the same steps for all: their waits for memory overlap */
            size_t half = left / 2;
            for (size_t i = 0; i < rows; i++) low[i] += half & -(size_t)(x[i] >= bounds[low[i] + half - 1]);
            left -= half;
        }
        for (size_t i = 0; i < rows; i++)
            out[first + i] = x[i] == x[i] ? (int64_t)(1 + low[i] + (x[i] >= bounds[low[i]])) : 0;
    }
}
