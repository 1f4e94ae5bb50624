/* Moves rows of a shuffle window into the order of delivery. Compiled by hatch_build.py, called by rows.py.
 *
 * A window is larger than the caches, and its output is read much later, batch by batch. So the output is written by
 * non-temporal stores where the processor has them: an ordinary store first reads the cache line that it overwrites, and
 * evicts the values that are about to be gathered.
 *
 * All places and offsets were made by this package; nothing is checked here.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { AHEAD = 8, LINE = 64, FETCHED = 512, STREAM = 1024 }; /* rows, bytes of a line, of a row, of a stretch */

#if defined(__SSE2__)
#include <emmintrin.h>
#define LANES(name, type, lanes, loaded)                                                              \
    static void name(type *restrict out, const type *restrict source, const uint32_t *restrict places, size_t rows) { \
        size_t i = 0;                                                                                 \
        for (; i < rows && ((uintptr_t)(out + i) & 15); i++) out[i] = source[places[i]];              \
        for (; i + lanes <= rows; i += lanes) {                                                       \
            const uint32_t *p = places + i;                                                           \
            _mm_stream_si128((__m128i *)(out + i), loaded);                                           \
        }                                                                                             \
        for (; i < rows; i++) out[i] = source[places[i]];                                             \
        _mm_sfence();                                                                                 \
    }
#define AT(j) source[p[j]]
LANES(take_4, uint32_t, 4, _mm_set_epi32(AT(3), AT(2), AT(1), AT(0)))
LANES(take_8, uint64_t, 2, _mm_set_epi64x(AT(1), AT(0)))
#else
#define PLAIN(name, type)                                                                             \
    static void name(type *restrict out, const type *restrict source, const uint32_t *restrict places, size_t rows) { \
        for (size_t i = 0; i < rows; i++) out[i] = source[places[i]];                                 \
    }
PLAIN(take_4, uint32_t)
PLAIN(take_8, uint64_t)
#endif

/* out[i] = source[places[i]], rows of `width` bytes. */
void tdu_take(uint8_t *restrict out, const uint8_t *restrict source, const uint32_t *restrict places, size_t rows,
              size_t width) {
    switch (width) {
    case 1:
        for (size_t i = 0; i < rows; i++) out[i] = source[places[i]];
        return;
    case 2:
        for (size_t i = 0; i < rows; i++) memcpy(out + 2 * i, source + 2 * (size_t)places[i], 2);
        return;
    case 4:
        take_4((uint32_t *)out, (const uint32_t *)source, places, rows);
        return;
    case 8:
        take_8((uint64_t *)out, (const uint64_t *)source, places, rows);
        return;
    case 16:
        for (size_t i = 0; i < rows; i++) memcpy(out + 16 * i, source + 16 * (size_t)places[i], 16);
        return;
    default:
        for (size_t i = 0; i < rows; i++) memcpy(out + width * i, source + width * places[i], width);
    }
}

/* out[targets[i]] = rows[i], rows of `width` bytes; a row whose target is negative is left out. */
void tdu_put(uint8_t *restrict out, const uint8_t *restrict source, const int64_t *restrict targets, size_t rows,
             size_t width) {
    for (size_t i = 0; i < rows; i++) {
        if (targets[i] < 0) continue;
        uint8_t *to = out + width * (size_t)targets[i];
        const uint8_t *from = source + width * i;
        size_t byte = 0;
#if defined(__SSE2__)
        if (((uintptr_t)to & 15) == 0)
            for (; byte + 16 <= width; byte += 16)
                _mm_stream_si128((__m128i *)(to + byte), _mm_loadu_si128((const __m128i *)(from + byte)));
#endif
        memcpy(to + byte, from + byte, width - byte);
    }
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

/* sizes[b] = the rows of bucket b; `wide` buckets are uint16, others uint8. */
void tdu_count(uint32_t *restrict sizes, const void *restrict buckets, size_t rows, size_t number, int wide) {
    memset(sizes, 0, number * sizeof *sizes);
    if (wide)
        for (size_t i = 0; i < rows; i++) sizes[((const uint16_t *)buckets)[i]]++;
    else
        for (size_t i = 0; i < rows; i++) sizes[((const uint8_t *)buckets)[i]]++;
}

/* The `rows` numbers below `rows` of (factor * base[i] + shift) modulo `size`, a power of two, in their order. */
void tdu_select(uint16_t *restrict out, const uint16_t *restrict base, size_t rows, size_t size, uint32_t factor,
                uint32_t shift) {
    for (size_t i = 0, end = 0; end < rows; i++) {
        uint32_t number = (factor * base[i] + shift) & (uint32_t)(size - 1);
        out[end] = (uint16_t)number;
        end += number < rows;
    }
}

/* out[next[b]++] = row i of the source, for the bucket b = buckets[i]. What is written next in the bucket is fetched one
 * line ahead: stores are made in order, so that each would wait for the line of the one before it. */
#if defined(__GNUC__)
#define FETCH_LINE(type) __builtin_prefetch((type *)out + to + LINE / sizeof(type), 1)
#else
#define FETCH_LINE(type)
#endif
#define INTO(bucket, copy)                                                                                        \
    for (size_t i = 0; i < rows; i++) {                                                                           \
        size_t to = next[((const bucket *)buckets)[i]]++;                                                         \
        copy;                                                                                                     \
    }                                                                                                             \
    return
#define VALUE(type) ((type *)out)[to] = ((const type *)source)[i]; FETCH_LINE(type)
#define INTO_BUCKETS(bucket)                                                                                      \
    switch (width) {                                                                                              \
    case 1: INTO(bucket, VALUE(uint8_t));                                                                \
    case 2: INTO(bucket, VALUE(uint16_t));                                                              \
    case 4: INTO(bucket, VALUE(uint32_t));                                                              \
    case 8: INTO(bucket, VALUE(uint64_t));                                                              \
    case 16: INTO(bucket, memcpy(out + 16 * to, source + 16 * i, 16));                                   \
    default: INTO(bucket, memcpy(out + width * to, source + width * i, width));                          \
    }
void tdu_into_buckets(uint8_t *restrict out, uint32_t *restrict next, const uint8_t *restrict source,
                      const void *restrict buckets, size_t rows, size_t width, int wide) {
    if (wide) INTO_BUCKETS(uint16_t)
    else INTO_BUCKETS(uint8_t)
}

/* Permutes each bucket: its row i becomes its row local[i]. Bucket b is the rows ends[b - 1] .. ends[b] of `out`; `spare`
 * has room for one. */
#define WITHIN(copy)                                                                                              \
    for (size_t i = begin; i < end; i++) {                                                                        \
        FETCH(next, i);                                                                                           \
        copy;                                                                                                     \
    }                                                                                                             \
    break
#define OF_BUCKET(type) ((type *)out)[i] = ((const type *)spare)[local[i]]
#if defined(__GNUC__) /* the next bucket is on its way from memory while this one is permuted */
#define FETCH(next, i) if (((i) & 7) == 0) __builtin_prefetch(next), next += step
#else
#define FETCH(next, i) (void)next, (void)step
#endif
void tdu_within_buckets(uint8_t *restrict out, uint8_t *restrict spare, const uint16_t *restrict local,
                        const uint32_t *restrict ends, size_t number, size_t width) {
    for (size_t b = 0, begin = 0; b < number; b++) {
        size_t end = ends[b];
        const uint8_t *next = out + width * end;
        size_t step = 8 * width;
        memcpy(spare, out + width * begin, width * (end - begin));
        switch (width) {
        case 1: WITHIN(OF_BUCKET(uint8_t));
        case 2: WITHIN(OF_BUCKET(uint16_t));
        case 4: WITHIN(OF_BUCKET(uint32_t));
        case 8: WITHIN(OF_BUCKET(uint64_t));
        case 16: WITHIN(memcpy(out + 16 * i, spare + 16 * local[i], 16));
        default: WITHIN(memcpy(out + width * i, spare + width * local[i], width));
        }
        begin = end;
    }
}

/* Copies bytes to memory that is not read soon. */
static void stream(uint8_t *restrict out, const uint8_t *restrict source, size_t size) {
    size_t byte = 0;
#if defined(__SSE2__)
    if (size >= LINE) {
        byte = -(uintptr_t)out & 15;
        memcpy(out, source, byte);
        for (; byte + LINE <= size; byte += LINE) {
            _mm_prefetch((const char *)source + byte + STREAM, _MM_HINT_T0);
            for (size_t lane = byte; lane < byte + LINE; lane += 16)
                _mm_stream_si128((__m128i *)(out + lane), _mm_loadu_si128((const __m128i *)(source + lane)));
        }
    }
#endif
    memcpy(out + byte, source + byte, size - byte);
}

/* For each column, batch by batch, the next quotas[batch * parts + part] rows of each part, which begin at the
 * addresses sources[column * parts + part]; these are moved on. */
void tdu_interleave(const uint64_t *outs, uint64_t *sources, const uint64_t *widths, size_t columns,
                    const uint64_t *quotas, size_t batches, size_t parts) {
    for (size_t column = 0; column < columns; column++, sources += parts) {
        uint8_t *out = (uint8_t *)(uintptr_t)outs[column];
        for (size_t i = 0; i < batches * parts; i++) {
            size_t part = i % parts, size = (size_t)(quotas[i] * widths[column]);
            stream(out, (const uint8_t *)(uintptr_t)sources[part], size);
            out += size;
            sources[part] += size;
        }
    }
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

/* starts[i] = the address of row places[i], offsets[i + 1] = the bytes of the rows places[0..i]; offsets[0] = 0. Rows
 * have an address and a number of bytes each, side by side: one line of memory instead of two. */
void tdu_ranges(int64_t *restrict offsets, uint64_t *restrict starts, const uint64_t *restrict ranges,
                const uint32_t *restrict places, size_t rows) {
    int64_t end = 0;
    offsets[0] = 0;
    for (size_t i = 0; i < rows; i++) {
        const uint64_t *range = ranges + 2 * (size_t)places[i];
        starts[i] = range[0];
        offsets[i + 1] = end += (int64_t)range[1];
    }
}

/* Copies a few bytes by two copies of one size, which may overlap: a call of memcpy takes longer. */
#define TWICE(width)                                                                                              \
    do {                                                                                                          \
        uint8_t first[width], last[width];                                                                        \
        memcpy(first, source, width);                                                                             \
        memcpy(last, source + size - width, width);                                                               \
        memcpy(out, first, width);                                                                                \
        memcpy(out + size - width, last, width);                                                                  \
    } while (0)
static void copy(uint8_t *restrict out, const uint8_t *restrict source, size_t size) {
    if (size > 32) memcpy(out, source, size);
    else if (size > 15) TWICE(16);
    else if (size > 7) TWICE(8);
    else if (size > 3) TWICE(4);
    else if (size > 1) TWICE(2);
    else if (size) *out = *source;
}

/* Copies each row, from the address starts[i], to out[offsets[i] .. offsets[i + 1]). */
void tdu_take_ranges(uint8_t *restrict out, const int64_t *restrict offsets, const uint64_t *restrict starts,
                     size_t rows) {
    for (size_t i = 0; i < rows; i++) {
#if defined(__GNUC__)
        if (i + AHEAD < rows) { /* its lines are on their way from memory while the rows before it are copied */
            const char *next = (const char *)(uintptr_t)starts[i + AHEAD];
            int64_t size = offsets[i + AHEAD + 1] - offsets[i + AHEAD];
            for (int64_t byte = 0; byte < size && byte < FETCHED; byte += LINE) __builtin_prefetch(next + byte);
        }
#endif
        copy(out + offsets[i], (const uint8_t *)(uintptr_t)starts[i], (size_t)(offsets[i + 1] - offsets[i]));
    }
}

/* Puts columns of values of `width` bytes, at these addresses, side by side: row by row. Tiles are turned in memory of
 * their own: columns, like rows, often lie a multiple of 4 KiB apart, which the first level of the cache holds few of. */
enum { TILE_ROWS = 64, TILE_BYTES = 256 };
#define SIDE_BY_SIDE(type)                                                                                        \
    for (size_t row = 0; row < rows; row += TILE_ROWS) {                                                          \
        size_t high = rows - row < TILE_ROWS ? rows - row : TILE_ROWS, most = TILE_BYTES / sizeof(type);          \
        for (size_t column = 0; column < columns; column += most) {                                               \
            size_t wide = columns - column < most ? columns - column : most;                                      \
            type tile[TILE_ROWS * TILE_BYTES / sizeof(type)];                                                     \
            for (size_t j = 0; j < wide; j++) {                                                                   \
                const type *from = (const type *)(uintptr_t)sources[column + j] + row;                            \
                for (size_t i = 0; i < high; i++) tile[i * most + j] = from[i];                                   \
            }                                                                                                     \
            for (size_t i = 0; i < high; i++)                                                                     \
                memcpy((type *)out + (row + i) * columns + column, tile + i * most, wide * sizeof(type));         \
        }                                                                                                         \
    }                                                                                                             \
    break
void tdu_stack(uint8_t *restrict out, const uint64_t *restrict sources, size_t rows, size_t columns, size_t width) {
    switch (width) {
    case 1: SIDE_BY_SIDE(uint8_t);
    case 2: SIDE_BY_SIDE(uint16_t);
    case 4: SIDE_BY_SIDE(uint32_t);
    case 8: SIDE_BY_SIDE(uint64_t);
    }
}
