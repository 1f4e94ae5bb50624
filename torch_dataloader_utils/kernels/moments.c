/* Exact sums of float64 values and of their squares: whole numbers are added, by the exponent of their value.
 *
 * There is no floating-point operation in it, so that no flag of a compiler (-ffast-math, -ffp-contract) and no mode of
 * a processor (subnormal values flushed to zero) changes a result. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(__SIZEOF_INT128__)
#error "products of 128 bits are needed"
#endif

enum { FRACTION = 52, NOT_FINITE = 2047, DIGITS = 68 };

/* Of the values with one sign and exponent: their significands, added, and the squares of these; the low 64 bits first.
 * A significand is below 2**53, so that this holds 2**22 squares. */
typedef struct { uint64_t sum[2], square[2]; } bin;

/* Of all values; `least` and `greatest` are bits of a float64, and set if one is finite. */
typedef struct { uint64_t missing, infinite, least, greatest; } facts;

/* Integers in the order of the values that have these bits, of which -0.0 is less than 0.0; its own inverse. */
static int64_t ordered(uint64_t bits) { return (int64_t)(bits ^ -(bits >> 63) >> 1); }

/* Adds at most 2**22 values to the 4,096 bins, which begin as zeros: bin i is for those that begin with the 12 bits i. */
void tdu_power_sums(bin *restrict bins, facts *restrict found, const uint64_t *restrict values, size_t number) {
    int64_t least = INT64_MAX, greatest = INT64_MIN;
    uint64_t missing = 0, infinite = 0;
    for (size_t i = 0; i < number; i++) {
        uint64_t bits = values[i], exponent = bits >> FRACTION & NOT_FINITE;
        uint64_t significand = bits & (((uint64_t)1 << FRACTION) - 1);
        if (exponent == NOT_FINITE) {
            missing += significand != 0;
            infinite += significand == 0;
            continue;
        }
        significand |= (uint64_t)(exponent != 0) << FRACTION;
        unsigned __int128 square = (unsigned __int128)significand * significand;
        uint64_t low = (uint64_t)square, high = (uint64_t)(square >> 64);
        bin *to = bins + (bits >> FRACTION);
        to->sum[0] += significand;
        to->sum[1] += to->sum[0] < significand;
        to->square[0] += low;
        to->square[1] += high + (to->square[0] < low);
        int64_t place = ordered(bits);
        least = place < least ? place : least;
        greatest = place > greatest ? place : greatest;
    }
    found->missing = missing;
    found->infinite = infinite;
    found->least = (uint64_t)ordered((uint64_t)least);
    found->greatest = (uint64_t)ordered((uint64_t)greatest);
}

/* Adds a number of 128 bits, times 2**by, to one of `DIGITS` digits of 64 bits, the lowest first. */
static void add_shifted(uint64_t *restrict digits, const uint64_t number[2], size_t by) {
    unsigned __int128 rest = (unsigned __int128)number[1] << 64 | number[0];
    uint64_t *at = digits + by / 64, low = (uint64_t)(rest << by % 64);
    rest = by % 64 ? rest >> (64 - by % 64) : rest >> 64;
    for (uint64_t carry = 0;; low = (uint64_t)rest, rest >>= 64) {
        unsigned __int128 sum = (unsigned __int128)*at + low + carry;
        *at++ = (uint64_t)sum;
        carry = (uint64_t)(sum >> 64);
        if (!rest && !carry) return;
    }
}

/* What the bins hold: of positive and of negative values the sum, in units of 2**-1074, and the sum of all squares, in
 * units of 2**-2148. */
void tdu_joined_sums(uint64_t sums[3][DIGITS], const bin *restrict bins) {
    memset(sums, 0, 3 * sizeof *sums);
    for (size_t i = 0; i < 4096; i++) {
        size_t exponent = i & NOT_FINITE, by = exponent ? exponent - 1 : 0; /* subnormal values have the unit of 1, too */
        if (!(bins[i].sum[0] | bins[i].sum[1])) continue;
        add_shifted(sums[i >> 11], bins[i].sum, by);
        add_shifted(sums[2], bins[i].square, 2 * by);
    }
}
