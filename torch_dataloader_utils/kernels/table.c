/* Places of keys in an open-addressing table. Compiled by hatch_build.py, called by table.py.
 *
 * A slot holds the lower half of a key's hash above the key's place + 1; 0 is an empty slot. The upper half of the hash
 * says where probing begins; at least half of the slots are empty. Keys stay where they are. In a large table every
 * step of a search waits for memory, so each step is done for a batch of keys, and fetches what the next one reads.
 *
 * Results do not depend on the hash, which is that of one machine: it reads words in their byte order.
 * All places and offsets were made by this package or by Arrow; nothing is checked here.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { BATCH = 64 }; /* keys whose memory is fetched at a time */

#if defined(__GNUC__)
#define FETCH(address) __builtin_prefetch(address)
#define INLINE static inline __attribute__((always_inline)) /* so that there is a copy for each width */
#else
#define FETCH(address) (void)(address)
#define INLINE static inline
#endif

/* Keys are int64 (width 0), or bytes between offsets of `width` bytes. */
typedef struct {
    const uint8_t *data;
    const uint8_t *offsets;
    int width;
} Keys;

INLINE uint64_t word(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

INLINE uint64_t half(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}

/* Offset `i`. */
INLINE size_t offset(Keys keys, size_t i) {
    return keys.width == 8 ? (size_t)word(keys.offsets + 8 * i) : (size_t)half(keys.offsets + 4 * i);
}

#define FACTOR UINT64_C(0xd6e8feb86659fd93)

/* A bijection after which every bit depends on all bits. */
INLINE uint64_t mixed(uint64_t h) {
    h = (h ^ (h >> 32)) * FACTOR;
    h = (h ^ (h >> 32)) * FACTOR;
    return h ^ (h >> 32);
}

INLINE uint64_t joined(uint64_t h, uint64_t value) {
    h = (h ^ value) * FACTOR;
    return h ^ (h >> 32);
}

INLINE uint64_t hash_of_bytes(const uint8_t *at, size_t size) {
    uint64_t h = size * FACTOR;
    if (size >= 8) {
        for (; size > 8; size -= 8, at += 8) h = joined(h, word(at));
        h = joined(h, word(at + size - 8)); /* overlaps the word before it */
    } else if (size >= 4) {
        h = joined(h, half(at) | half(at + size - 4) << 32);
    } else if (size) {
        h = joined(h, at[0] | (uint64_t)at[size / 2] << 8 | (uint64_t)at[size - 1] << 16);
    }
    return mixed(h);
}

INLINE uint64_t hash_of(Keys keys, size_t i) {
    if (!keys.width) return mixed(word(keys.data + 8 * i));
    size_t begin = offset(keys, i);
    return hash_of_bytes(keys.data + begin, offset(keys, i + 1) - begin);
}

INLINE int same(Keys one, size_t i, Keys other, size_t j) {
    if (!one.width) return word(one.data + 8 * i) == word(other.data + 8 * j);
    size_t begin = offset(one, i), size = offset(one, i + 1) - begin, at = offset(other, j);
    return offset(other, j + 1) - at == size && !memcmp(one.data + begin, other.data + at, size);
}

INLINE uint64_t begin_of(uint64_t hash, uint64_t size) { return (hash >> 32) * size >> 32; }

INLINE uint64_t after(uint64_t at, uint64_t size) { return at + 1 == size ? 0 : at + 1; }

/* The place + 1 of the key of a slot; 0 if it is empty. */
INLINE size_t place(uint64_t slot) { return (size_t)(slot & 0xffffffff); }

/* The first slot from `at` on that is empty or holds the hash's lower half. */
INLINE uint64_t candidate(const uint64_t *slots, uint64_t size, uint64_t at, uint64_t hash) {
    while (slots[at] && slots[at] >> 32 != (hash & 0xffffffff)) at = after(at, size);
    return at;
}

INLINE void build(uint64_t *restrict slots, uint64_t size, Keys keys, size_t count, int64_t *duplicate) {
    uint64_t hashes[BATCH];
    for (size_t first = 0; first < count; first += BATCH) {
        size_t batch = count - first < BATCH ? count - first : BATCH;
        for (size_t i = 0; i < batch; i++) {
            hashes[i] = hash_of(keys, first + i);
            FETCH(slots + begin_of(hashes[i], size));
        }
        for (size_t i = 0; i < batch; i++) {
            uint64_t at = candidate(slots, size, begin_of(hashes[i], size), hashes[i]);
            for (; slots[at]; at = candidate(slots, size, after(at, size), hashes[i])) {
                if (same(keys, first + i, keys, place(slots[at]) - 1)) {
                    *duplicate = (int64_t)(first + i);
                    return;
                }
            }
            slots[at] = hashes[i] << 32 | (first + i + 1);
        }
    }
}

INLINE void find(int64_t *restrict out, Keys queries, size_t count, const uint64_t *restrict slots, uint64_t size,
                 Keys keys) {
    uint64_t hashes[BATCH], found[BATCH];
    for (size_t first = 0; first < count; first += BATCH) {
        size_t batch = count - first < BATCH ? count - first : BATCH;
        for (size_t i = 0; i < batch; i++) {
            hashes[i] = hash_of(queries, first + i);
            found[i] = begin_of(hashes[i], size);
            FETCH(slots + found[i]);
        }
        for (size_t i = 0; i < batch; i++) {
            found[i] = candidate(slots, size, found[i], hashes[i]);
            size_t key = place(slots[found[i]]);
            if (key) FETCH(keys.width ? keys.offsets + keys.width * (key - 1) : keys.data + 8 * (key - 1));
        }
        if (keys.width)
            for (size_t i = 0; i < batch; i++) {
                size_t key = place(slots[found[i]]);
                if (key) FETCH(keys.data + offset(keys, key - 1));
            }
        for (size_t i = 0; i < batch; i++) {
            uint64_t at = found[i];
            while (slots[at] && !same(queries, first + i, keys, place(slots[at]) - 1))
                at = candidate(slots, size, after(at, size), hashes[i]);
            out[first + i] = (int64_t)place(slots[at]) - 1;
        }
    }
}

/* Fills `size` empty slots, more than 2 * count, with the places of keys. Ends at the first key that is equal to one
 * before it, and sets *duplicate to its place. */
void tdu_build(uint64_t *slots, uint64_t size, const uint8_t *data, const uint8_t *offsets, int width, size_t count,
               int64_t *duplicate) {
    if (!width) build(slots, size, (Keys){data, offsets, 0}, count, duplicate);
    else if (width == 4) build(slots, size, (Keys){data, offsets, 4}, count, duplicate);
    else build(slots, size, (Keys){data, offsets, 8}, count, duplicate);
}

/* out[i] = the place of the key that query i is equal to, or -1. */
void tdu_find(int64_t *out, const uint8_t *queries, const uint8_t *ends, int wide, size_t count, const uint64_t *slots,
              uint64_t size, const uint8_t *data, const uint8_t *offsets, int width) {
#define FIND(of_query, of_key) \
    find(out, (Keys){queries, ends, of_query}, count, slots, size, (Keys){data, offsets, of_key})
    if (!width) FIND(0, 0);
    else if (width == 4 && wide == 4) FIND(4, 4);
    else if (width == 4) FIND(8, 4);
    else if (wide == 4) FIND(4, 8);
    else FIND(8, 8);
}
