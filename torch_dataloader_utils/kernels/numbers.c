/* Numbers of any type as float64, through the steps of a chain, rounded once more at its end. Compiled by
 * hatch_build.py, called by numbers.py, which checks all sizes.
 *
 * The bits are those of numpy and of Python's floats: each operation is rounded by itself, to float64. So none may be
 * joined with the next one (-ffp-contract=off, which hatch_build.py gives), reordered, or rounded to more bits. */
#include <float.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD != 0
#error "each operation has to be rounded to float64"
#endif

enum { AT_ONCE = 512 }; /* numbers that go through all steps together: they stay in the first cache */

#define NOT_A_NUMBER ((uint64_t)0x7ff8 << 48)
#define MINUS_INFINITY ((uint64_t)0xfff << 52)

/* The order of `_STEPS` in numbers.py. */
enum { FILL, PART, ONTO, CLIP, LOG1P, SIGNED_LOG1P };

/* The order of `_TYPES` in numbers.py. */
enum { INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, SINGLE, DOUBLE };

typedef struct { int64_t kind; double at[4]; } Step;

/* Numbers, and which of them are not null: bit `first_bit` + i of a bitmap that is NULL if all are. */
typedef struct { const void *values; int64_t type; const uint8_t *bitmap; uint64_t first_bit; } Column;

static uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return bits;
}

static double double_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

/* One of two numbers, without a branch. */
static double chosen(int first, double one, double other) {
    uint64_t mask = -(uint64_t)first;
    return double_of((bits_of(one) & mask) | (bits_of(other) & ~mask));
}

#define FROM(type)                                                     \
    do {                                                               \
        const type *from = (const type *)column->values + first;       \
        for (size_t i = 0; i < n; i++) x[i] = (double)from[i];         \
    } while (0)

static void load(double *restrict x, const Column *column, size_t first, size_t n) {
    switch (column->type) {
    case INT8: FROM(int8_t); break;
    case INT16: FROM(int16_t); break;
    case INT32: FROM(int32_t); break;
    case INT64: FROM(int64_t); break;
    case UINT8: FROM(uint8_t); break;
    case UINT16: FROM(uint16_t); break;
    case UINT32: FROM(uint32_t); break;
    case UINT64: FROM(uint64_t); break;
    case SINGLE: FROM(float); break;
    case DOUBLE: FROM(double); break;
    }
    const double nan = double_of(NOT_A_NUMBER);
    if (column->bitmap)
        for (size_t i = 0; i < n; i++) {
            uint64_t bit = column->first_bit + first + i;
            x[i] = chosen(column->bitmap[bit >> 3] >> (bit & 7) & 1, x[i], nan);
        }
    for (size_t i = 0; i < n; i++) x[i] += 0.0; /* no -0.0 */
}

/* log(1 + x), operation by operation that of log1p.py. */
static double log1p_of(double x) {
    const double root_half = 0.70710678118654757;
    double u = 1.0 + x;
    uint64_t bits = bits_of(u);
    double fraction = double_of((bits & (((uint64_t)1 << 52) - 1)) | (uint64_t)1022 << 52); /* from 1/2 to 1 */
    double exponent = double_of((bits >> 52) | (uint64_t)0x433 << 52) - 4503599627370496.0 - 1022.0;
    int low = fraction < root_half, near = (x > root_half - 1.0) & (x < 2.0 * root_half - 1.0);
    fraction = chosen(low, fraction + fraction, fraction);
    exponent = chosen(low, exponent - 1.0, exponent);
    double rest = chosen(u >= 2.0, 1.0 - (u - x), x - (u - 1.0)) / u;
    double f = chosen(near, x, fraction - 1.0), k = chosen(near, 0.0, exponent);
    rest = chosen(near, 0.0, rest);
    double half = 0.5 * f * f, s = f / (2.0 + f), z = s * s, p = 1.479819860511658591e-01;
    p = p * z + 1.531383769920937332e-01;
    p = p * z + 1.818357216161805012e-01;
    p = p * z + 2.222219843214978396e-01;
    p = p * z + 2.857142874366239149e-01;
    p = p * z + 3.999999999940941908e-01;
    p = p * z + 6.666666666666735130e-01;
    double found = k * 6.93147180369123816490e-01 -
                   ((half - (s * (half + p * z) + (k * 1.90821492927058770002e-10 + rest))) - f);
    found = chosen(x > DBL_MAX, x, found);
    found = chosen(x == -1.0, double_of(MINUS_INFINITY), found);
    return chosen(x >= -1.0, found, double_of(NOT_A_NUMBER));
}

static void apply(const Step *step, double *restrict x, uint8_t *restrict missing, size_t n) {
    const double a = step->at[0], b = step->at[1], c = step->at[2], d = step->at[3];
    switch (step->kind) {
    case FILL:
        if (missing && b != 0.0)
            for (size_t i = 0; i < n; i++) missing[i] = x[i] != x[i];
        for (size_t i = 0; i < n; i++) x[i] = x[i] != x[i] ? a : x[i];
        break;
    case PART:
        for (size_t i = 0; i < n; i++) x[i] = (x[i] * c - a) / b;
        break;
    case CLIP:
        for (size_t i = 0; i < n; i++) {
            double above = x[i] < a ? a : x[i];
            x[i] = (above > b ? b : above) + 0.0;
        }
        break;
    case ONTO:
        for (size_t i = 0; i < n; i++) {
            double from_low = x[i] * a + b, from_high = c - a * (1.0 - x[i]);
            x[i] = x[i] >= d ? from_high : from_low;
        }
        break;
    case LOG1P:
        for (size_t i = 0; i < n; i++) x[i] = log1p_of(x[i]);
        break;
    case SIGNED_LOG1P:
        for (size_t i = 0; i < n; i++) {
            double found = log1p_of(x[i] < 0.0 ? -x[i] : x[i]);
            x[i] = x[i] < 0.0 ? -found : found;
        }
        break;
    }
}

/* Writes n numbers of a column to `out`, of float32 (`wide` is 0) or float64: what the steps make of each, one after
 * another. FILL writes to `missing`, if that is not NULL and its second number is not 0, which numbers were NaN.
 * *infinite is how many become infinite. */
void tdu_numbers(void *out, int wide, const Column *column, size_t n, const Step *steps, size_t count, uint8_t *missing,
                 uint64_t *infinite) {
    double x[AT_ONCE];
    uint64_t beyond = 0;
    for (size_t first = 0; first < n; first += AT_ONCE) {
        size_t rows = n - first < AT_ONCE ? n - first : AT_ONCE;
        load(x, column, first, rows);
        for (size_t i = 0; i < count; i++) apply(steps + i, x, missing ? missing + first : missing, rows);
        if (wide) {
            double *to = (double *)out + first;
            for (size_t i = 0; i < rows; i++) to[i] = x[i] + 0.0; /* no -0.0 */
            for (size_t i = 0; i < rows; i++) beyond += (to[i] > DBL_MAX) | (to[i] < -DBL_MAX);
        } else {
            float *to = (float *)out + first;
            for (size_t i = 0; i < rows; i++) to[i] = (float)(x[i] + 0.0);
            for (size_t i = 0; i < rows; i++) beyond += (to[i] > FLT_MAX) | (to[i] < -FLT_MAX);
        }
    }
    *infinite = beyond;
}
