/* The frozen hashes of values. Compiled by hatch_build.py, called by hashes.py; hashing.py defines them.
 *
 * All offsets are those of Arrow arrays that were checked when they were read; nothing is checked here.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* SplitMix64's output function. */
static inline uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* Arrow's memory may begin at any byte, so all of it is read by this. */
static inline uint64_t word(const uint8_t *at) {
    uint64_t read;
    memcpy(&read, at, 8);
    return read;
}

/* The hash of `size` bytes at `at`, of which those up to `end` may be read. */
static inline uint64_t hash_bytes(const uint8_t *at, size_t size, const uint8_t *end) {
    uint64_t hash = mix(size + UINT64_C(0x9E3779B97F4A7C15)), last = 0;
    for (; size >= 8; size -= 8, at += 8) hash = mix(hash ^ word(at));
    if (size == 0) return hash;
    if (end - at >= 8)
        last = word(at) & (~UINT64_C(0) >> (64 - 8 * size));
    else
        memcpy(&last, at, size);
    return mix(hash ^ last);
}

static inline size_t offset(const uint8_t *offsets, size_t i, int wide) {
    uint32_t narrow;
    if (wide) return (size_t)word(offsets + 8 * i);
    memcpy(&narrow, offsets + 4 * i, 4);
    return narrow;
}

static inline void hash_all(uint64_t *restrict out, uint64_t *restrict longer, const uint8_t *data, size_t held,
                            const uint8_t *offsets, size_t rows, size_t longest, int wide) {
    uint64_t left_out = 0;
    size_t begin = offset(offsets, 0, wide);
    for (size_t i = 0; i < rows; i++) {
        size_t next = offset(offsets, i + 1, wide), size = next - begin;
        if (size > longest)
            left_out++;
        else
            out[i] = hash_bytes(data + begin, size, data + held);
        begin = next;
    }
    *longer = left_out;
}

/* out[i]: the hash of value i, which begins at offsets[i] of the `held` bytes of data. Those of more than `longest`
 * bytes are left out, and counted. */
void tdu_hash_bytes(uint64_t *restrict out, uint64_t *restrict longer, const uint8_t *data, const uint8_t *offsets,
                    size_t held, size_t rows, size_t longest, int wide) {
    if (wide)
        hash_all(out, longer, data, held, offsets, rows, longest, 1);
    else
        hash_all(out, longer, data, held, offsets, rows, longest, 0);
}

/* out[i]: the hash of the i-th of these numbers of 64 bits, to each of which `added` is added. */
void tdu_hash_ints(uint64_t *restrict out, const uint8_t *numbers, size_t rows, uint64_t added) {
    for (size_t i = 0; i < rows; i++) out[i] = mix(word(numbers + 8 * i) + added);
}

/* Puts those hashes of these numbers that are at most `most` into `out`, which has room for all, and their number into
 * `found`; of equal ones, mostly the first alone. `recent` has `places`, a power of two, which are all 0. */
void tdu_lesser_hashes(uint64_t *restrict out, uint64_t *restrict found, uint64_t *restrict recent, size_t places,
                       const uint8_t *numbers, size_t rows, uint64_t added, uint64_t most) {
    size_t kept = 0;
    recent[0] = 1; /* the hash that is not looked for there */
    for (size_t i = 0; i < rows; i++) {
        uint64_t hash = mix(word(numbers + 8 * i) + added);
        if (hash > most) continue;
        uint64_t *seen = recent + (hash & (places - 1));
        out[kept] = hash;
        kept += *seen != hash;
        *seen = hash;
    }
    *found = kept;
}
