/* Decodes column chunks of Parquet files into given memory. Compiled by hatch_build.py, called by pages.py.
 *
 * Files come from anywhere, so every length, level, index and offset is checked before it is used. What does not fit, and
 * every form that is not decoded here, is refused: pyarrow then reads that column, and says what is wrong with it. The
 * format: https://github.com/apache/parquet-format (README.md, Encodings.md, parquet.thrift).
 *
 * A chunk is read and decoded while its bytes are in the processor's cache, in blocks of values that stay in the first
 * level of it. If only some of its rows are wanted, pages without any are not read, and other rows are passed.
 */
#if defined(_WIN32) || (defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__)
#define TDU_NO_PAGES /* no pread; the loads below are of little-endian numbers */
#endif
#define _XOPEN_SOURCE 600 /* pread, which -std=c99 hides */
#define _FILE_OFFSET_BITS 64

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A column chunk to decode, as a row of int64 in pages.py (`_FIELDS`): the same order, the same names. */
typedef struct {
    int64_t file;       /* descriptor; or -1, if the bytes are in memory */
    int64_t start;      /* of the chunk in the file, or its address */
    int64_t length;     /* bytes of the chunk */
    int64_t codec;      /* as in the footer: 0 none, 1 snappy, 6 zstd */
    int64_t type;       /* physical: 0 boolean, 1 int32, 2 int64, 4 float, 5 double, 6 bytes, 7 fixed length */
    int64_t stored;     /* bytes of a value in PLAIN; 0 for booleans and bytes */
    int64_t width;      /* bytes of a value in `values`: fewer than stored, if it is a smaller whole number; booleans may
                           become bytes (1), not bits (0) */
    int64_t blank;      /* of numbers of up to 8 bytes: the bits that stand at nulls */
    int64_t decimal;    /* whether values are decimals, of 16 bytes; those of fixed length are stored big-endian */
    int64_t most;       /* the greatest definition level: that of a value that is not null */
    int64_t entry;      /* of lists: the level from which on there is an entry; 0: the column has no lists */
    int64_t fixed;      /* the entries of each list, if they are as many; else 0 */
    int64_t rows;       /* of the chunk */
    int64_t entries;    /* of the chunk: levels, or rows */
    int64_t room;       /* of bytes: for how many of them there is room in `values` */
    int64_t checked;    /* whether checksums are verified */
    int64_t values;     /* address of the values */
    int64_t valid;      /* address of the bits of values that are not null, if they may be null; they are 0 */
    int64_t first;      /* the place of the chunk's first value in both */
    int64_t base;       /* of bytes: those in `values` before the first of the chunk */
    int64_t offsets;    /* address of int32 [rows + 1]: of bytes, or of lists that are not fixed */
    int64_t wide;       /* whether they become int64, for which there is room, and count from before the chunk on */
    int64_t lists;      /* address of the bits of lists that are not null, if they may be null; they are 0 */
    int64_t coded;      /* of bytes: 0, or the words for which there is room, whose numbers become the values: int32 */
    int64_t text;       /* of words: address of their bytes, of which there is `room`; `offsets` are theirs */
    int64_t ranges;     /* address of int64 [picked, 2]: the rows to decode, `[first, last)`, ascending; not of lists */
    int64_t picked;     /* the number of ranges; 0: all rows are decoded */
    int64_t used;       /* result: the bytes of the chunk that were read */
    int64_t nulls;      /* result: the values that are null */
    int64_t null_lists; /* result: the lists that are null */
    int64_t found;      /* result: the values, words, or bytes, of which there may be more than room for */
    int64_t refused;    /* result: 0, or which of the checks below failed */
} Chunk;

/* A column to decode to where it is delivered, as a row of int64 in pages.py, likewise. */
typedef struct {
    int64_t chunks;  /* address of its chunks, which write to `source` */
    int64_t count;   /* of them */
    int64_t source;  /* address of the values, in the order of the chunks */
    int64_t places;  /* address of uint32 [rows]: which of them is delivered first, second, ... */
    int64_t rows;    /* delivered in another order than that of the chunks; 0: `source` is where they are delivered */
    int64_t width;   /* bytes of a value */
    int64_t out;     /* address of the values that are delivered */
    int64_t fills;   /* whether nulls may be delivered as `blank` */
    int64_t ragged;  /* whether rows are bytes, or lists: then they stay in their order, and no null is delivered */
    int64_t found;   /* result: of these, the bytes or entries of all rows; of bytes there may be more than room for */
    int64_t refused; /* result: whether the column was not decoded, or has nulls that may not be delivered */
} Straight;

/* That of rows.c: out[i] = source[places[i]]. */
typedef void Take(uint8_t *out, const uint8_t *source, const uint32_t *places, size_t rows, size_t width);

/* zstd's functions, if its library was found. */
typedef struct {
    void *(*create)(void);
    size_t (*release)(void *context);
    size_t (*decompress)(void *context, void *out, size_t room, const void *in, size_t size);
} Zstd;

#ifndef TDU_NO_PAGES
#include <errno.h>
#include <unistd.h>

enum { NONE = 0, SNAPPY = 1, ZSTD = 6 };
enum { BOOLEAN = 0, INT32 = 1, INT64 = 2, BYTES = 6, FIXED = 7 };
enum { PLAIN = 0, PLAIN_DICTIONARY = 2, RLE = 3, DELTA = 5, DELTA_LENGTH = 6, RLE_DICTIONARY = 8, SPLIT = 9 };
enum { DATA = 0, DICTIONARY = 2, DATA_V2 = 3 };
enum { BLOCK = 1024, LONG_RUN = 256, SLACK = 64, DEEPEST = 32 };
enum { LEAST_READ = 4096, LEAST_HEADER = 128 };

/* Bytes that are left to read. */
typedef struct {
    const uint8_t *at, *end;
} Input;

static size_t left_in(const Input *in) { return (size_t)(in->end - in->at); }

/* ---------------------------------------------------------------------------------------------------- page headers */

/* A page header; what it lacks is ABSENT. */
typedef struct {
    int64_t type, size, stored, crc, values, encoding, levels, repeats, rows, nulls, level_bytes, repeat_bytes, compressed;
} Header;

#define ABSENT INT64_MIN

static int varint(Input *in, uint64_t *value) {
    uint64_t found = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (in->at == in->end) return 0;
        uint8_t byte = *in->at++;
        if (shift == 63 && byte > 1) return 0;
        found |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *value = found;
            return 1;
        }
    }
    return 0;
}

static int number(Input *in, int64_t *value) {
    uint64_t coded;
    if (!varint(in, &coded)) return 0;
    *value = (int64_t)(coded >> 1) ^ -(int64_t)(coded & 1);
    return 1;
}

/* Passes a value of the compact protocol; booleans of a field have no bytes, those of a list one. */
static int pass(Input *in, unsigned kind, int in_list, int depth) {
    uint64_t count;
    if (depth > DEEPEST) return 0;
    switch (kind) {
    case 1: case 2: /* booleans */
        if (!in_list) return 1;
        /* fall through */
    case 3: /* a byte */
        if (!left_in(in)) return 0;
        in->at++;
        return 1;
    case 4: case 5: case 6: return varint(in, &count);
    case 7: /* a double */
        if (left_in(in) < 8) return 0;
        in->at += 8;
        return 1;
    case 8: /* bytes */
        if (!varint(in, &count) || count > left_in(in)) return 0;
        in->at += count;
        return 1;
    case 9: case 10: { /* a list or set */
        if (!left_in(in)) return 0;
        uint8_t head = *in->at++;
        count = head >> 4;
        if (count == 15 && !varint(in, &count)) return 0;
        if (count > left_in(in)) return 0; /* each item has at least a byte */
        while (count--)
            if (!pass(in, head & 15, 1, depth + 1)) return 0;
        return 1;
    }
    case 12: /* a struct */
        for (;;) {
            if (!left_in(in)) return 0;
            uint8_t head = *in->at++;
            if (!head) return 1;
            int64_t id;
            if (!(head >> 4) && !number(in, &id)) return 0;
            if (!pass(in, head & 15, 0, depth + 1)) return 0;
        }
    default: return 0; /* maps do not occur in page headers */
    }
}

/* Reads the fields of a struct whose numbers are at most `most` into `fields` (a pointer for each; NULL passes it). */
static int fields_of(Input *in, int64_t **fields, int most, int depth, int (*inner)(Input *, int, Header *), Header *to) {
    int64_t id = 0;
    for (;;) {
        if (!left_in(in)) return 0;
        uint8_t head = *in->at++;
        unsigned kind = head & 15;
        if (!head) return 1;
        if (head >> 4) id += head >> 4;
        else if (!number(in, &id)) return 0;
        if (id < 0 || id > 32767) return 0;
        int64_t *field = id <= most ? fields[id] : NULL;
        if (field && kind >= 3 && kind <= 6) {
            if (kind == 3) {
                if (!left_in(in)) return 0;
                *field = (int8_t)*in->at++;
            } else if (!number(in, field)) return 0;
        } else if (field && (kind == 1 || kind == 2)) {
            *field = kind == 1;
        } else if (inner && kind == 12 && (id == 5 || id == 7 || id == 8)) {
            if (!inner(in, (int)id, to)) return 0;
        } else if (!pass(in, kind, 0, depth)) return 0;
    }
}

static int page_kind(Input *in, int id, Header *to) {
    if (id == 8) {
        int64_t *v2[] = {NULL, &to->values, &to->nulls, &to->rows, &to->encoding, &to->level_bytes, &to->repeat_bytes, &to->compressed};
        return fields_of(in, v2, 7, 2, NULL, NULL);
    }
    int64_t *v1[] = {NULL, &to->values, &to->encoding, &to->levels, &to->repeats};
    return fields_of(in, v1, id == 5 ? 4 : 2, 2, NULL, NULL); /* a dictionary has no levels */
}

static int header_of(Input *in, Header *to) {
    int64_t *all = &to->type;
    for (size_t i = 0; i < sizeof *to / sizeof *all; i++) all[i] = ABSENT;
    to->compressed = 1;
    int64_t *fields[] = {NULL, &to->type, &to->size, &to->stored, &to->crc};
    return fields_of(in, fields, 4, 1, page_kind, to);
}

/* ---------------------------------------------------------------------------------------------------------- checksums */

static uint32_t crc_tables[8][256];

/* To be called once, before any other function. */
void tdu_prepare(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t sum = i;
        for (int bit = 0; bit < 8; bit++) sum = sum >> 1 ^ (sum & 1 ? 0xedb88320u : 0);
        crc_tables[0][i] = sum;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++)
            crc_tables[k][i] = crc_tables[k - 1][i] >> 8 ^ crc_tables[0][crc_tables[k - 1][i] & 0xff];
}

static uint32_t crc_of(const uint8_t *in, size_t size) {
    uint32_t sum = ~0u;
    for (; size >= 8; size -= 8, in += 8) {
        uint32_t low, high;
        memcpy(&low, in, 4);
        memcpy(&high, in + 4, 4);
        low ^= sum;
        sum = crc_tables[7][low & 0xff] ^ crc_tables[6][low >> 8 & 0xff] ^ crc_tables[5][low >> 16 & 0xff] ^
              crc_tables[4][low >> 24] ^ crc_tables[3][high & 0xff] ^ crc_tables[2][high >> 8 & 0xff] ^
              crc_tables[1][high >> 16 & 0xff] ^ crc_tables[0][high >> 24];
    }
    while (size--) sum = sum >> 8 ^ crc_tables[0][(sum ^ *in++) & 0xff];
    return ~sum;
}

/* ------------------------------------------------------------------------------------------------------------- snappy */

/* Decompresses exactly `size` bytes; `out` has SLACK bytes more, which may be overwritten. */
static int unsnappy(Input in, uint8_t *out, size_t size) {
    uint64_t declared;
    uint8_t *at = out, *end = out + size;
    if (!varint(&in, &declared) || declared != size) return 0;
    while (left_in(&in)) {
        uint8_t tag = *in.at++;
        size_t length, offset;
        if (!(tag & 3)) { /* bytes as they are */
            length = tag >> 2;
            if (length >= 60) {
                size_t bytes = length - 59;
                if (left_in(&in) < bytes) return 0;
                uint32_t more = 0;
                memcpy(&more, in.at, bytes);
                in.at += bytes;
                length = more;
            }
            length++;
            if (length > left_in(&in) || length > (size_t)(end - at)) return 0;
            if (length <= 16 && left_in(&in) >= 16) memcpy(at, in.at, 16);
            else memcpy(at, in.at, length);
            in.at += length;
            at += length;
            continue;
        }
        if ((tag & 3) == 1) {
            if (!left_in(&in)) return 0;
            length = 4 + (tag >> 2 & 7);
            offset = (size_t)(tag >> 5) << 8 | *in.at++;
        } else {
            size_t bytes = (tag & 3) == 2 ? 2 : 4;
            uint32_t far = 0;
            if (left_in(&in) < bytes) return 0;
            memcpy(&far, in.at, bytes);
            in.at += bytes;
            length = 1 + (size_t)(tag >> 2);
            offset = far;
        }
        if (!offset || offset > (size_t)(at - out) || length > (size_t)(end - at)) return 0;
        const uint8_t *from = at - offset;
        uint8_t *stop = at + length; /* at most 64 bytes */
        if (offset >= 16) {
            for (; at < stop; at += 16, from += 16) memcpy(at, from, 16);
        } else if (offset >= 8) {
            for (; at < stop; at += 8, from += 8) memcpy(at, from, 8);
        } else {
            while (at < stop) *at++ = *from++;
        }
        at = stop;
    }
    return at == end;
}

/* ------------------------------------------------------------------------------------------ runs and packed numbers */

/* Numbers of `width` bits, in runs: one number repeated, or packed numbers. */
typedef struct {
    Input in;
    unsigned width;
    uint64_t repeated, packed; /* numbers left in the run at hand: only one of both is not 0 */
    uint32_t value;            /* of the repeated */
    uint32_t held[8];          /* packed numbers that were read together, and which of them is next; 8: none */
    unsigned next;
} Runs;

static uint64_t word_at(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

#define ONE(i, w) out[i] = (uint32_t)(word_at(in + (i) * (w) / 8) >> ((i) * (w) % 8)) & mask;
#define WIDTH(w)                                                                                     \
    case w: {                                                                                        \
        const uint32_t mask = (uint32_t)((1ull << (w)) - 1);                                         \
        for (; groups; groups--, in += (w), out += 8) {                                              \
            ONE(0, w) ONE(1, w) ONE(2, w) ONE(3, w) ONE(4, w) ONE(5, w) ONE(6, w) ONE(7, w)          \
        }                                                                                            \
        return;                                                                                      \
    }

/* Unpacks groups of 8 numbers; reads up to 8 bytes beyond them. */
static void unpack(const uint8_t *in, unsigned width, uint32_t *restrict out, size_t groups) {
    switch (width) {
        WIDTH(1) WIDTH(2) WIDTH(3) WIDTH(4) WIDTH(5) WIDTH(6) WIDTH(7) WIDTH(8)
        WIDTH(9) WIDTH(10) WIDTH(11) WIDTH(12) WIDTH(13) WIDTH(14) WIDTH(15) WIDTH(16)
        WIDTH(17) WIDTH(18) WIDTH(19) WIDTH(20) WIDTH(21) WIDTH(22) WIDTH(23) WIDTH(24)
        WIDTH(25) WIDTH(26) WIDTH(27) WIDTH(28) WIDTH(29) WIDTH(30) WIDTH(31) WIDTH(32)
    default: memset(out, 0, groups * 32); /* width 0 has no bytes */
    }
}

static int runs_in(Runs *runs, const uint8_t *at, const uint8_t *end, unsigned width) {
    memset(runs, 0, sizeof *runs);
    runs->in.at = at;
    runs->in.end = end;
    runs->width = width;
    runs->next = 8;
    return width <= 32;
}

/* Makes sure that there are numbers in the run at hand. */
static int begin_run(Runs *runs) {
    while (!runs->repeated && !runs->packed) {
        uint64_t head;
        if (!varint(&runs->in, &head)) return 0;
        if (head & 1) {
            /* A last run whose bytes are cut short is left to pyarrow. */
            if (head >> 1 > UINT32_MAX || (head >> 1) * runs->width > left_in(&runs->in)) return 0;
            runs->packed = (head >> 1) * 8;
        } else {
            size_t bytes = (runs->width + 7) / 8;
            if (left_in(&runs->in) < bytes) return 0;
            runs->value = 0;
            memcpy(&runs->value, runs->in.at, bytes);
            if (runs->width < 32 && runs->value >> runs->width) return 0;
            runs->in.at += bytes;
            runs->repeated = head >> 1;
        }
    }
    return 1;
}

/* Reads one group of packed numbers, of a run that has one. */
static int hold_group(Runs *runs) {
    uint8_t bytes[48] = {0}; /* `unpack` reads beyond the group */
    if (left_in(&runs->in) < runs->width) return 0;
    memcpy(bytes, runs->in.at, runs->width);
    unpack(bytes, runs->width, runs->held, 1);
    runs->in.at += runs->width;
    runs->next = 0;
    return 1;
}

/* The next `count` numbers. */
static int numbers(Runs *runs, uint32_t *out, size_t count) {
    while (count) {
        if (!begin_run(runs)) return 0;
        if (runs->repeated) {
            size_t taken = runs->repeated < count ? (size_t)runs->repeated : count;
            for (size_t i = 0; i < taken; i++) out[i] = runs->value;
            runs->repeated -= taken;
            out += taken;
            count -= taken;
            continue;
        }
        if (runs->next == 8) {
            size_t whole = (runs->packed < count ? (size_t)runs->packed : count) / 8;
            size_t safe = left_in(&runs->in) >= 24 && runs->width ? (left_in(&runs->in) - 24) / runs->width : 0;
            if (!runs->width) safe = whole;
            if (safe < whole) whole = safe;
            if (whole) {
                unpack(runs->in.at, runs->width, out, whole);
                runs->in.at += whole * runs->width;
                runs->packed -= whole * 8;
                out += whole * 8;
                count -= whole * 8;
                continue;
            }
            if (!hold_group(runs)) return 0;
        }
        while (runs->next < 8 && count && runs->packed) {
            *out++ = runs->held[runs->next++];
            runs->packed--;
            count--;
        }
        if (!runs->packed) runs->next = 8;
    }
    return 1;
}

/* Passes the next `count` numbers: whole groups of packed ones unseen. */
static int skip_numbers(Runs *runs, size_t count) {
    while (count) {
        size_t part;
        if (!begin_run(runs)) return 0;
        if (runs->repeated) {
            part = runs->repeated < count ? (size_t)runs->repeated : count;
            runs->repeated -= part;
        } else if (runs->next == 8 && (part = (runs->packed < count ? (size_t)runs->packed : count) / 8)) {
            if (part * runs->width > left_in(&runs->in)) return 0;
            runs->in.at += part * runs->width;
            part *= 8;
            runs->packed -= part;
        } else {
            if (runs->next == 8 && !hold_group(runs)) return 0;
            part = 8 - runs->next;
            if (part > runs->packed) part = (size_t)runs->packed;
            if (part > count) part = count;
            runs->next += (unsigned)part;
            runs->packed -= part;
            if (!runs->packed) runs->next = 8;
        }
        count -= part;
    }
    return 1;
}

static size_t ones_in(uint64_t word) { /* no `popcnt`: without -mpopcnt that is a call */
    word -= word >> 1 & 0x5555555555555555ull;
    word = (word & 0x3333333333333333ull) + (word >> 2 & 0x3333333333333333ull);
    return (size_t)(((word + (word >> 4)) & 0x0f0f0f0f0f0f0f0full) * 0x0101010101010101ull >> 56);
}

/* Passes the next `count` numbers, of 1 bit; `ones` is how many of them are 1. */
static int skip_bits(Runs *runs, size_t count, size_t *ones) {
    *ones = 0;
    while (count) {
        size_t part;
        uint32_t bit;
        if (!begin_run(runs)) return 0;
        if (runs->repeated) {
            part = runs->repeated < count ? (size_t)runs->repeated : count;
            runs->repeated -= part;
            if (runs->value) *ones += part;
        } else if (runs->next == 8 && (part = (runs->packed < count ? (size_t)runs->packed : count) / 8)) {
            const uint8_t *at = runs->in.at, *end = at + part;
            if (part > left_in(&runs->in)) return 0;
            for (; end - at >= 8; at += 8) *ones += ones_in(word_at(at));
            for (; at < end; at++) *ones += ones_in(*at);
            runs->in.at = end;
            part *= 8;
            runs->packed -= part;
        } else {
            if (!numbers(runs, &bit, 1)) return 0;
            *ones += bit;
            part = 1;
        }
        count -= part;
    }
    return 1;
}

/* ------------------------------------------------------------------------------------------------------------- deltas */

/* Whole numbers as differences, in blocks of packed ones; computed in 64 bits, of which the lower ones are the numbers:
 * DuckDB stores differences of 33 bits in columns of 32. */
typedef struct {
    Input in;
    uint64_t left;        /* numbers that were not taken */
    uint64_t value;       /* the next one */
    uint64_t least;       /* of the differences of the block at hand */
    const uint8_t *widths; /* of the packed parts of that block that are left */
    uint64_t parts, part; /* parts of a block, and those left */
    uint64_t size, held;  /* numbers of a part, and those left */
    const uint8_t *bits;  /* of the part at hand */
    uint64_t bit;
} Deltas;

static int signed_number(Input *in, uint64_t *value) {
    int64_t found;
    if (!number(in, &found)) return 0;
    *value = (uint64_t)found;
    return 1;
}

/* Begins numbers; `count` is how many there are. */
static int begin_deltas(Deltas *deltas, Input in) {
    uint64_t block;
    memset(deltas, 0, sizeof *deltas);
    deltas->in = in;
    if (!varint(&deltas->in, &block) || !varint(&deltas->in, &deltas->parts) || !varint(&deltas->in, &deltas->left)) return 0;
    if (!signed_number(&deltas->in, &deltas->value)) return 0;
    if (!deltas->parts || deltas->parts > 1 << 16 || block > 1 << 24 || block % deltas->parts) return 0;
    deltas->size = block / deltas->parts;
    return deltas->size && deltas->size % 8 == 0 && deltas->left <= INT32_MAX;
}

/* Begins the next part of packed differences, and its block if it is the first. Those after the last are not stored. */
static int begin_part(Deltas *deltas) {
    Input *in = &deltas->in;
    if (!deltas->part) {
        if (!signed_number(in, &deltas->least) || left_in(in) < deltas->parts) return 0;
        deltas->widths = in->at;
        in->at += deltas->parts;
        deltas->part = deltas->parts;
    }
    unsigned width = *deltas->widths;
    if (width > 64 || left_in(in) < deltas->size / 8 * width) return 0;
    deltas->bits = in->at;
    deltas->bit = 0;
    in->at += deltas->size / 8 * width;
    deltas->held = deltas->size;
    return 1;
}

/* The next `count` numbers. */
static int delta_numbers(Deltas *deltas, uint64_t *out, size_t count) {
    if (count > deltas->left) return 0;
    for (; count; count--) {
        *out++ = deltas->value;
        if (!--deltas->left) return count == 1;
        if (!deltas->held && !begin_part(deltas)) return 0;
        unsigned width = *deltas->widths, shift = deltas->bit % 8;
        uint64_t difference = 0;
        if (width) {
            uint8_t bytes[16] = {0};
            const uint8_t *at = deltas->bits + deltas->bit / 8;
            size_t safe = (size_t)(deltas->in.end - at);
            memcpy(bytes, at, safe < 9 ? safe : 9);
            difference = word_at(bytes) >> shift;
            if (shift) difference |= (uint64_t)bytes[8] << (64 - shift);
            if (width < 64) difference &= (1ull << width) - 1;
            deltas->bit += width;
        }
        deltas->value += deltas->least + difference;
        if (!--deltas->held) {
            deltas->part--;
            deltas->widths++;
        }
    }
    return 1;
}

/* Where the bytes after all numbers begin; NULL if there is no such place. */
static const uint8_t *after_deltas(Deltas deltas) {
    if (deltas.left) deltas.left--; /* the first is stored before the blocks */
    while (deltas.left) {
        if (!begin_part(&deltas)) return NULL;
        deltas.left -= deltas.left < deltas.size ? deltas.left : deltas.size;
        deltas.part--;
        deltas.widths++;
    }
    return deltas.in.at;
}

/* --------------------------------------------------------------------------------------------------------------- bits */

/* Sets `count` bits from place `first` on. */
static void set_bits(uint8_t *bits, size_t first, size_t count) {
    for (; count && first % 8; first++, count--) bits[first / 8] |= (uint8_t)(1u << first % 8);
    memset(bits + first / 8, 0xff, count / 8);
    for (first += count / 8 * 8, count %= 8; count; first++, count--) bits[first / 8] |= (uint8_t)(1u << first % 8);
}

/* Sets the bits, which are 0, from place `first` on, where `from` is 1, not 0. */
static void put_bits(uint8_t *bits, size_t first, const uint8_t *from, size_t count) {
    size_t i = 0;
    unsigned shift = first % 8;
    uint8_t *at = bits + first / 8;
    for (; i + 8 <= count; i += 8, at++) { /* 8 bytes of 0 or 1 to 8 bits, by one multiplication */
        unsigned byte = (unsigned)((word_at(from + i) * 0x0102040810204080ull) >> 56);
        at[0] |= (uint8_t)(byte << shift);
        if (shift) at[1] |= (uint8_t)(byte >> (8 - shift)); /* of a place that is among those to set */
    }
    for (; i < count; i++) bits[(first + i) / 8] |= (uint8_t)(from[i] << (first + i) % 8);
}

/* ------------------------------------------------------------------------------------------------------------- values */

/* Whether values are bytes of any length, not numbers of words. */
static int is_text(const Chunk *chunk) { return chunk->type == BYTES && !chunk->coded; }

/* A word of a dictionary of bytes. */
typedef struct {
    const uint8_t *at;
    uint32_t size;
} Word;

/* What a chunk is decoded with. */
typedef struct {
    const Chunk *chunk;
    const uint8_t *words;   /* the dictionary: values of `width` bytes, or a Word for each; of codes, its page */
    const uint8_t *text;    /* where the bytes of words end */
    uint32_t known;         /* its values */
    int64_t read;           /* levels, or rows, that were read */
    int64_t done;           /* values that were decoded, with nulls */
    int64_t rows;           /* rows that were begun */
    int64_t begun;          /* of lists: the first entry of the last row */
    int64_t bytes;          /* of all values */
    int64_t range;          /* the number of the range that the next row to decode is in, if only some are decoded */
    const uint8_t *bytes_read; /* those of the chunk */
    uint8_t *read_to;       /* where they are read to, if they are in a file */
    size_t first_read, last_read; /* which of them were read last, `[first, last)` */
    int64_t used;           /* how many were read */
    int64_t nulls, null_lists;
    uint32_t codes[BLOCK], repeats[BLOCK];
    uint64_t spare[BLOCK + 2]; /* values that are not null */
    uint64_t words_of_deltas[BLOCK];
    uint8_t levels[BLOCK + 8], *dense;
} State;

/* The values of a page: those that are left. */
typedef struct {
    int encoding; /* PLAIN, RLE for a dictionary, too, DELTA, DELTA_LENGTH or SPLIT */
    Input in;     /* of PLAIN, and the bytes of DELTA_LENGTH */
    Runs runs;
    Deltas deltas;
    unsigned bit;              /* of booleans */
    const uint8_t *split;      /* the first byte of the next value; its others follow at equal distances */
    size_t stride, left_split; /* the distance, and the values left */
} Values;

/* Copies stored values as the column has them. */
static void copied(const Chunk *chunk, uint8_t *restrict out, const uint8_t *restrict in, size_t count) {
    size_t width = (size_t)chunk->width, stored = (size_t)chunk->stored;
    if (chunk->decimal && chunk->type == FIXED) {
        for (size_t i = 0; i < count; i++, in += stored, out += 16) {
            memset(out, in[0] & 0x80 ? 0xff : 0, 16);
            for (size_t k = 0; k < stored; k++) out[k] = in[stored - 1 - k];
        }
    } else if (chunk->decimal) {
        for (size_t i = 0; i < count; i++, in += stored, out += 16) {
            memset(out, in[stored - 1] & 0x80 ? 0xff : 0, 16);
            memcpy(out, in, stored);
        }
    } else if (width == stored) {
        memcpy(out, in, count * width);
    } else if (width == 1) {
        for (size_t i = 0; i < count; i++) out[i] = in[4 * i];
    } else {
        for (size_t i = 0; i < count; i++) memcpy(out + 2 * i, in + 4 * i, 2);
    }
}

#define LOOK_UP(type)                                                                             \
    {                                                                                             \
        const type *words = (const type *)state->words;                                           \
        type *to = (type *)(void *)out;                                                           \
        for (size_t i = 0; i < part; i++) to[i] = words[codes[i]];                                \
        break;                                                                                    \
    }

/* Decodes `count` values, which are not null; booleans to bytes. `out` is aligned to `width`. */
static int decoded(State *state, Values *values, uint8_t *out, size_t count) {
    const Chunk *chunk = state->chunk;
    size_t width = (size_t)chunk->width, stored = (size_t)chunk->stored;
    if (chunk->coded && values->encoding != RLE) return 0;
    if (chunk->type == BOOLEAN && values->encoding == PLAIN) {
        if (count > left_in(&values->in) * 8 - values->bit) return 0;
        for (size_t i = 0; i < count; i++) {
            out[i] = *values->in.at >> values->bit & 1;
            if (++values->bit == 8) values->bit = 0, values->in.at++;
        }
        return 1;
    }
    if (values->encoding == PLAIN) {
        if (count > left_in(&values->in) / stored) return 0;
        copied(chunk, out, values->in.at, count);
        values->in.at += count * stored;
        return 1;
    }
    if (values->encoding == SPLIT) {
        if (count > values->left_split) return 0;
        for (; count; count--, values->left_split--, values->split++, out += width) {
            uint8_t value[64];
            for (size_t k = 0; k < stored; k++) value[k] = values->split[k * values->stride];
            copied(chunk, out, value, 1);
        }
        return 1;
    }
    while (values->encoding == DELTA) {
        uint64_t *words = state->words_of_deltas;
        size_t part = count < BLOCK ? count : BLOCK;
        if (!delta_numbers(&values->deltas, words, part)) return 0;
        if (stored == 4)
            for (size_t i = 0; i < part; i++) memcpy((uint8_t *)words + 4 * i, words + i, 4);
        copied(chunk, out, (const uint8_t *)words, part);
        out += part * width;
        count -= part;
        if (!count) return 1;
    }
    const uint32_t *codes = state->codes;
    while (count) {
        size_t part = count < BLOCK ? count : BLOCK;
        if (!numbers(&values->runs, state->codes, part)) return 0;
        if (chunk->type == BOOLEAN) {
            for (size_t i = 0; i < part; i++) out[i] = (uint8_t)codes[i];
        } else {
            if (!state->known) return 0;
            if (values->runs.width > 31 || 1u << values->runs.width > state->known) {
                uint32_t bad = 0, last = state->known - 1; /* below 2^31 */
                for (size_t i = 0; i < part; i++) bad |= codes[i] | (last - codes[i]);
                if (bad >> 31) return 0;
            }
            if (chunk->coded) memcpy(out, codes, part * sizeof *codes);
            else switch (width) {
            case 1: LOOK_UP(uint8_t)
            case 2: LOOK_UP(uint16_t)
            case 4: LOOK_UP(uint32_t)
            case 8: LOOK_UP(uint64_t)
            default:
                for (size_t i = 0; i < part; i++) memcpy(out + i * width, state->words + codes[i] * width, width);
            }
        }
        out += part * (chunk->type == BOOLEAN ? 1 : width);
        count -= part;
    }
    return 1;
}

/* out[i] = dense[k] for the k-th place that is not null, `blank` elsewhere; without a branch, which 50 % nulls would
 * double. */
#define SPREAD(type)                                                                              \
    {                                                                                             \
        const type *from = (const type *)(const void *)state->dense;                              \
        type *to = (type *)(void *)out;                                                           \
        for (size_t i = 0; i < count; i++) {                                                      \
            type keep = (type)(0 - (type)valid[i]);                                               \
            to[i] = (from[k] & keep) | ((type)blank & (type)~keep);                               \
            k += valid[i];                                                                        \
        }                                                                                         \
        return;                                                                                   \
    }

static void spread(const State *state, uint8_t *out, size_t count, size_t width) {
    const uint8_t *valid = state->levels;
    const uint64_t blank = (uint64_t)state->chunk->blank;
    size_t k = 0;
    switch (width) {
    case 1: SPREAD(uint8_t)
    case 2: SPREAD(uint16_t)
    case 4: SPREAD(uint32_t)
    default: SPREAD(uint64_t)
    }
}

/* Writes `count` nulls. */
static void blanks(const Chunk *chunk, uint8_t *out, size_t count, size_t width) {
    if (!chunk->blank) memset(out, 0, count * width);
    else
        for (size_t i = 0; i < count; i++) memcpy(out + i * width, &chunk->blank, width);
}

/* Appends bytes, or only counts them where there is no room: the caller is told how many there are. */
static int append(State *state, const uint8_t *at, const uint8_t *end, uint32_t size) {
    const Chunk *chunk = state->chunk;
    int64_t place = chunk->base + state->bytes;
    state->bytes += size;
    if (state->bytes > INT32_MAX) return 0;
    if (place + size <= chunk->room) {
        uint8_t *out = (uint8_t *)(intptr_t)chunk->values + place;
        if (size <= 16 && end - at >= 16 && chunk->room - place >= 16) memcpy(out, at, 16);
        else memcpy(out, at, size);
    }
    return 1;
}

/* Decodes `count` values of bytes, and where each ends. */
static int texts(State *state, Values *values, int32_t *ends, size_t count) {
    if (values->encoding != RLE) {
        for (size_t i = 0; i < count; i++) {
            uint32_t size;
            if (values->encoding == DELTA_LENGTH) {
                uint64_t length;
                if (!delta_numbers(&values->deltas, &length, 1) || length > INT32_MAX) return 0;
                size = (uint32_t)length;
            } else {
                if (left_in(&values->in) < 4) return 0;
                memcpy(&size, values->in.at, 4);
                values->in.at += 4;
            }
            if (size > left_in(&values->in) || !append(state, values->in.at, values->in.end, size)) return 0;
            values->in.at += size;
            ends[i] = (int32_t)state->bytes;
        }
        return 1;
    }
    const Word *words = (const Word *)(const void *)state->words;
    while (count) {
        size_t part = count < BLOCK ? count : BLOCK;
        if (!numbers(&values->runs, state->codes, part)) return 0;
        for (size_t i = 0; i < part; i++) {
            if (state->codes[i] >= state->known) return 0;
            Word word = words[state->codes[i]];
            if (!append(state, word.at, state->text, word.size)) return 0;
            ends[i] = (int32_t)state->bytes;
        }
        ends += part;
        count -= part;
    }
    return 1;
}

/* Writes `count` values, of which `present` are not null: all, none, or those of `state->levels`. */
static int written(State *state, Values *values, size_t count, size_t present) {
    const Chunk *chunk = state->chunk;
    int is_bits = chunk->type == BOOLEAN && !chunk->width;
    size_t width = is_bits ? 1 : (size_t)chunk->width, place = (size_t)(chunk->first + state->done);
    uint8_t bytes[BLOCK + 8];
    uint8_t *out = is_bits ? bytes : (uint8_t *)(intptr_t)chunk->values + place * width;
    if (is_text(chunk)) {
        int32_t *ends = (int32_t *)(intptr_t)chunk->offsets + place + 1;
        if (present == count) {
            if (!texts(state, values, ends, count)) return 0;
        } else {
            for (size_t i = 0; i < count; i++)
                if (!present || !state->levels[i]) ends[i] = (int32_t)state->bytes;
                else if (!texts(state, values, ends + i, 1)) return 0;
        }
    } else if (present == count) {
        if (!decoded(state, values, out, count)) return 0;
    } else if (!present) {
        blanks(chunk, out, count, width);
    } else if (width > 8 || (width & (width - 1))) { /* of another width than numbers have: one by one */
        for (size_t i = 0; i < count; i++)
            if (!state->levels[i]) memset(out + i * width, 0, width);
            else if (!decoded(state, values, out + i * width, 1)) return 0;
    } else {
        if (!decoded(state, values, state->dense, present)) return 0;
        memset(state->dense + present * width, 0, 8); /* `spread` reads one more */
        spread(state, out, count, width);
    }
    if (is_bits) put_bits((uint8_t *)(intptr_t)chunk->values, place, bytes, count);
    if (chunk->valid) {
        uint8_t *valid = (uint8_t *)(intptr_t)chunk->valid;
        if (present == count) set_bits(valid, place, count);
        else if (present) put_bits(valid, place, state->levels, count);
    }
    state->nulls += (int64_t)(count - present);
    state->done += (int64_t)count;
    return 1;
}

/* The greatest number of levels that are all the same, of which so many are left in a page; 0: they are few. */
static size_t alike(Runs *levels, size_t left) {
    if (levels->repeated < (left < LONG_RUN ? left : LONG_RUN)) return 0;
    return left < levels->repeated ? left : (size_t)levels->repeated;
}

/* Writes the values of a page's rows. */
static int page_rows(State *state, Values *values, Runs *levels, size_t rows) {
    int is_bits = state->chunk->type == BOOLEAN;
    while (rows) {
        size_t count = is_bits && rows > BLOCK ? BLOCK : rows, present = count;
        if (levels) {
            if (!begin_run(levels)) return 0;
            size_t same = alike(levels, count);
            if (same) {
                count = same;
                levels->repeated -= count;
                present = levels->value ? count : 0;
            } else {
                if (count > BLOCK) count = BLOCK;
                if (!numbers(levels, state->codes, count)) return 0;
                present = 0;
                for (size_t i = 0; i < count; i++) {
                    state->levels[i] = (uint8_t)state->codes[i];
                    present += state->codes[i];
                }
            }
        }
        if (!written(state, values, count, present)) return 0;
        rows -= count;
    }
    return 1;
}

/* Passes `count` bytes of any length: their lengths have to be seen. */
static int skip_texts(Values *values, size_t count) {
    Input *in = &values->in;
    for (; count; count--) {
        uint64_t length;
        if (values->encoding == DELTA_LENGTH) {
            if (!delta_numbers(&values->deltas, &length, 1)) return 0;
        } else {
            uint32_t size;
            if (left_in(in) < 4) return 0;
            memcpy(&size, in->at, 4);
            in->at += 4;
            length = size;
        }
        if (length > left_in(in)) return 0;
        in->at += length;
    }
    return 1;
}

/* Passes `count` values, which are not null. */
static int skip_values(State *state, Values *values, size_t count) {
    const Chunk *chunk = state->chunk;
    if (values->encoding == RLE) return skip_numbers(&values->runs, count);
    if (chunk->type == BYTES) return skip_texts(values, count);
    if (values->encoding == PLAIN && chunk->type == BOOLEAN) {
        if (count > left_in(&values->in) * 8 - values->bit) return 0;
        values->in.at += (values->bit + count) / 8;
        values->bit = (unsigned)((values->bit + count) % 8);
    } else if (values->encoding == PLAIN) {
        if (count > left_in(&values->in) / (size_t)chunk->stored) return 0;
        values->in.at += count * (size_t)chunk->stored;
    } else if (values->encoding == SPLIT) {
        if (count > values->left_split) return 0;
        values->left_split -= count;
        values->split += count;
    } else {
        for (size_t part; count; count -= part) {
            part = count < BLOCK ? count : BLOCK;
            if (!delta_numbers(&values->deltas, state->words_of_deltas, part)) return 0;
        }
    }
    return 1;
}

/* Whether the ranges of rows to decode are ascending, and rows of the chunk. */
static int ranges_fit(const Chunk *chunk) {
    const int64_t *ranges = (const int64_t *)(intptr_t)chunk->ranges;
    int64_t before = 0;
    for (int64_t i = 0; i < chunk->picked; i++) {
        int64_t first = ranges[2 * i], last = ranges[2 * i + 1];
        if (first < before || last <= first || last > chunk->rows) return 0;
        before = last;
    }
    return 1;
}

/* The first row to decode that has not been; INT64_MAX: all have been. */
static int64_t next_row(const State *state) {
    const Chunk *chunk = state->chunk;
    if (!chunk->picked) return state->read;
    return state->range < chunk->picked ? ((const int64_t *)(intptr_t)chunk->ranges)[2 * state->range] : INT64_MAX;
}

/* Writes the values of those of a page's rows that are to be decoded. */
static int picked_rows(State *state, Values *values, Runs *levels, size_t rows) {
    const Chunk *chunk = state->chunk;
    const int64_t *ranges = (const int64_t *)(intptr_t)chunk->ranges;
    int64_t at = state->read, end = at + (int64_t)rows;
    if (!chunk->picked) return page_rows(state, values, levels, rows);
    while (state->range < chunk->picked && ranges[2 * state->range] < end) {
        int64_t first = ranges[2 * state->range], last = ranges[2 * state->range + 1];
        if (first > at) { /* else the range began in an earlier page */
            size_t present = (size_t)(first - at);
            if (levels && !skip_bits(levels, (size_t)(first - at), &present)) return 0;
            if (!skip_values(state, values, present)) return 0;
            at = first;
        }
        int64_t stop = last < end ? last : end;
        if (!page_rows(state, values, levels, (size_t)(stop - at))) return 0;
        at = stop;
        if (last > end) return 1;
        state->range++;
    }
    return 1;
}

/* Begins a row of lists, whose first entry is this one. */
static int begin_row(State *state, int64_t entry) {
    const Chunk *chunk = state->chunk;
    if (state->rows == chunk->rows) return 0;
    if (chunk->fixed) {
        if (state->rows && entry - state->begun != chunk->fixed) return 0;
        state->begun = entry;
    } else {
        ((int32_t *)(intptr_t)chunk->offsets)[state->rows] = (int32_t)entry;
    }
    state->rows++;
    return 1;
}

/* Begins the rows of `count` entries, each of which is one: only where they begin has to be seen. */
static int begin_rows(State *state, Runs *repeats, size_t count) {
    int64_t entry = state->done, end = entry + (int64_t)count, before = state->rows;
    while (entry < end) {
        if (!begin_run(repeats)) return 0;
        if (repeats->repeated) {
            int64_t part = (int64_t)repeats->repeated < end - entry ? (int64_t)repeats->repeated : end - entry;
            if (repeats->repeated > INT64_MAX) part = end - entry;
            repeats->repeated -= (uint64_t)part;
            if (repeats->value) entry += part;
            else
                for (; part; part--, entry++)
                    if (!begin_row(state, entry)) return 0;
        } else if (repeats->next == 8 && end - entry >= 8) {
            if (!left_in(&repeats->in)) return 0;
            unsigned ones = *repeats->in.at++;
            repeats->packed -= 8;
            for (unsigned place = 0; ones != 0xff; ones |= 1u << place) { /* the zeros, from the lowest on */
                while (ones >> place & 1) place++;
                if (!begin_row(state, entry + place)) return 0;
            }
            entry += 8;
        } else {
            uint32_t repeat;
            if (!numbers(repeats, &repeat, 1)) return 0;
            if (!repeat && !begin_row(state, entry)) return 0;
            entry++;
        }
        if (!state->rows) return 0; /* the first entry continues no row */
    }
    if (state->chunk->lists) set_bits((uint8_t *)(intptr_t)state->chunk->lists, (size_t)before, (size_t)(state->rows - before));
    return 1;
}

/* Writes the lists of a page, of which there are so many levels. */
static int page_lists(State *state, Values *values, Runs *levels, Runs *repeats, size_t left) {
    const Chunk *chunk = state->chunk;
    uint8_t *lists = (uint8_t *)(intptr_t)chunk->lists;
    while (left) {
        if (!begin_run(levels)) return 0;
        size_t count = levels->value == chunk->most ? alike(levels, left) : 0, present = count, entries = count;
        if (count) {
            levels->repeated -= count;
            if (!begin_rows(state, repeats, count)) return 0;
        } else {
            count = left < BLOCK ? left : BLOCK;
            if (!numbers(levels, state->codes, count) || !numbers(repeats, state->repeats, count)) return 0;
            for (size_t i = 0; i < count; i++) {
                int64_t level = state->codes[i];
                if (level > chunk->most) return 0;
                if (!state->repeats[i]) {
                    if (!begin_row(state, state->done + (int64_t)entries)) return 0;
                    size_t row = (size_t)(state->rows - 1);
                    if (level < chunk->entry - 1) state->null_lists++;
                    else if (lists) lists[row / 8] |= (uint8_t)(1u << row % 8);
                } else if (!state->rows) return 0; /* the first entry continues no row */
                if (level >= chunk->entry) {
                    state->levels[entries++] = level == chunk->most;
                    present += level == chunk->most;
                } else if (state->repeats[i]) return 0; /* an empty list has one level */
            }
        }
        if (entries && !written(state, values, entries, present)) return 0;
        left -= count;
    }
    return 1;
}

/* --------------------------------------------------------------------------------------------------------------- chunks */

/* Memory that a call may use; what is taken is at a place of 64 bytes, and may be followed by bytes to write over. */
typedef struct {
    uint8_t *at, *end;
} Room;

#ifdef TDU_FUZZ /* tests/kernels/fuzz_pages.c: memory of the exact size, and pages changed after decompression */
uint8_t *fuzz_memory(size_t size);
void fuzz_page(Input *page);
ssize_t fuzz_read(int file, void *out, size_t size, off_t start);
#define pread fuzz_read
#else
#define fuzz_page(page)
#endif

static uint8_t *taken(Room *room, size_t size, size_t slack) {
#ifdef TDU_FUZZ
    if (room->at) return fuzz_memory(size + slack);
#endif
    size_t whole = (size + slack + 63) / 64 * 64;
    if (whole > (size_t)(room->end - room->at)) return NULL;
    uint8_t *found = room->at;
    room->at += whole;
    return found;
}

static int read_whole(int file, int64_t start, uint8_t *out, size_t size) {
    while (size) {
        ssize_t found = pread(file, out, size, (off_t)start);
        if (found < 0 && errno == EINTR) continue;
        if (found <= 0) return 0;
        out += found;
        start += found;
        size -= (size_t)found;
    }
    return 1;
}

/* Makes sure that the bytes `[from, to)` of the chunk were read. */
static int at_hand(State *state, size_t from, size_t to) {
    const Chunk *chunk = state->chunk;
    size_t length = (size_t)chunk->length;
    if (from > to || to > length) return 0;
    if (from < state->first_read || from > state->last_read) state->first_read = state->last_read = from;
    size_t begun = state->last_read, least = length - begun < LEAST_READ ? length : begun + LEAST_READ;
    if (to <= begun) return 1;
    if (to < least) to = least;
    if (!read_whole((int)chunk->file, chunk->start + (int64_t)begun, state->read_to + begun, to - begun)) return 0;
    state->used += (int64_t)(to - begun);
    state->last_read = to;
    return 1;
}

/* Reads the header of the page at `at`, where the page's bytes then begin. Only trying shows how long a header is. */
static int next_header(State *state, size_t *at, Header *head) {
    size_t length = (size_t)state->chunk->length;
    for (size_t size = LEAST_HEADER;; size *= 8) {
        if (!at_hand(state, *at, length - *at < size ? length : *at + size)) return 0;
        Input in = {state->bytes_read + *at, state->bytes_read + state->last_read};
        if (header_of(&in, head)) {
            *at = (size_t)(in.at - state->bytes_read);
            return 1;
        }
        if (state->last_read == length) return 0;
    }
}

/* The bytes of a page, decompressed: at the given ones, or in `out`, which has SLACK bytes more. */
static int plain_bytes(const Chunk *chunk, const Zstd *zstd, void *context, Input *page, uint8_t *out, size_t size) {
    if (chunk->codec == NONE) {
        if (left_in(page) != size) return 0;
    } else {
        if (chunk->codec == SNAPPY) {
            if (!unsnappy(*page, out, size)) return 0;
        } else if (zstd->decompress(context, out, size, page->at, left_in(page)) != size) return 0;
        page->at = out;
        page->end = out + size;
    }
    fuzz_page(page);
    return 1;
}

#define CHECK(number, condition)                                                                  \
    do {                                                                                          \
        if (!(condition)) return number;                                                          \
    } while (0)

/* Levels of v1 pages: their length, and runs of numbers below 4. */
static int levels_of(Input *page, Runs *levels, int64_t encoding, unsigned width) {
    uint32_t length;
    if (encoding != RLE || left_in(page) < 4) return 0;
    memcpy(&length, page->at, 4);
    page->at += 4;
    if (length > left_in(page)) return 0;
    page->at += length;
    return runs_in(levels, page->at - length, page->at, width);
}

/* The words of a dictionary page of bytes. */
static int words_of(Input page, Word *words, size_t known) {
    for (size_t i = 0; i < known; i++) {
        if (left_in(&page) < 4) return 0;
        memcpy(&words[i].size, page.at, 4);
        page.at += 4;
        words[i].at = page.at;
        if (words[i].size > left_in(&page)) return 0;
        page.at += words[i].size;
    }
    return 1;
}

/* Copies the words of a dictionary page of bytes, and where each ends. */
static int copied_words(const Chunk *chunk, Input page, size_t known) {
    int32_t *ends = (int32_t *)(intptr_t)chunk->offsets;
    uint8_t *text = (uint8_t *)(intptr_t)chunk->text;
    int64_t bytes = 0;
    if (known > (size_t)chunk->coded) return 0;
    *ends++ = 0;
    while (known--) {
        uint32_t size;
        if (left_in(&page) < 4) return 0;
        memcpy(&size, page.at, 4);
        page.at += 4;
        if (size > left_in(&page) || bytes + size > chunk->room || bytes + size > INT32_MAX) return 0;
        memcpy(text + bytes, page.at, size);
        page.at += size;
        bytes += size;
        *ends++ = (int32_t)bytes;
    }
    return 1;
}

/* Decodes a chunk; returns 0, or the number of the check that failed. */
static int chunk_rows(const Chunk *chunk, Room room, const Zstd *zstd, void *context, State *state) {
    memset(state, 0, offsetof(State, codes));
    state->chunk = chunk;
    CHECK(1, chunk->codec == NONE || chunk->codec == SNAPPY || (chunk->codec == ZSTD && context));
    CHECK(2, chunk->length > 0 && chunk->start >= 0 && chunk->rows >= 0 && chunk->entries >= 0 && chunk->base >= 0);
    size_t length = (size_t)chunk->length, at = 0; /* where the next page begins */
    unsigned width = chunk->most > 1 ? 2 : 1;      /* of definition levels */
    int pages = 0, of_lists = chunk->entry > 0;
    CHECK(46, !chunk->picked || (chunk->picked > 0 && !of_lists && ranges_fit(chunk)));
    if (chunk->file < 0) { /* all are at hand */
        state->bytes_read = (const uint8_t *)(intptr_t)chunk->start;
        state->last_read = length;
    } else {
        state->bytes_read = state->read_to = taken(&room, length, 0);
        CHECK(3, state->read_to);
    }
    if (chunk->file >= 0 && !chunk->picked) CHECK(4, at_hand(state, 0, length)); /* all at once */
    if (is_text(chunk)) *(int32_t *)(intptr_t)chunk->offsets = 0;
    while (state->read < chunk->entries && next_row(state) != INT64_MAX) {
        Header head;
        CHECK(5, at < length);
        CHECK(6, next_header(state, &at, &head));
        CHECK(7, head.stored >= 0 && (uint64_t)head.stored <= length - at && head.size >= 0 && head.size <= INT32_MAX);
        size_t begun = at;
        at += (size_t)head.stored;
        if (head.type != DICTIONARY) {
            CHECK(15, head.type == DATA || head.type == DATA_V2);
            CHECK(16, head.values > 0 && head.values <= chunk->entries - state->read);
            pages++;
            if (next_row(state) >= state->read + head.values) { /* none of its rows is to be decoded */
                state->read += head.values;
                continue;
            }
        }
        CHECK(47, at_hand(state, begun, at));
        Input page = {state->bytes_read + begun, state->bytes_read + at};
        if (chunk->checked && head.crc != ABSENT)
            CHECK(8, crc_of(page.at, left_in(&page)) == (uint32_t)head.crc);
        size_t size = (size_t)head.size;
        if (head.type == DICTIONARY) {
            CHECK(9, !pages && !state->words && chunk->type != BOOLEAN);
            CHECK(10, head.encoding == PLAIN || head.encoding == PLAIN_DICTIONARY);
            CHECK(11, head.values >= 0 && head.values < INT32_MAX);
            size_t known = (size_t)head.values, each = is_text(chunk) ? sizeof(Word) : (size_t)chunk->width;
            uint8_t *out = taken(&room, size, SLACK);
            CHECK(12, out && plain_bytes(chunk, zstd, context, &page, out, size));
            CHECK(13, known <= left_in(&page) / (chunk->type == BYTES ? 4 : (size_t)chunk->stored));
            int as_stored = chunk->type != BYTES && chunk->width == chunk->stored && !chunk->decimal;
            if (as_stored && !((uintptr_t)page.at % 8)) {
                state->words = page.at;
            } else {
                uint8_t *words = chunk->coded ? out : taken(&room, known * each, 0);
                CHECK(14, words);
                if (chunk->coded) CHECK(48, copied_words(chunk, page, known));
                else if (is_text(chunk)) CHECK(34, words_of(page, (Word *)(void *)words, known));
                else copied(chunk, words, page.at, known);
                state->words = words;
            }
            state->text = page.end;
            state->known = (uint32_t)known;
            continue;
        }
        Room spare = room;
        Runs levels, repeats;
        memset(&levels, 0, sizeof levels);
        memset(&repeats, 0, sizeof repeats);
        size_t count = (size_t)head.values;
        if (head.type == DATA_V2) {
            CHECK(17, head.rows >= 0 && head.nulls >= 0 && head.level_bytes >= 0 && head.repeat_bytes >= 0);
            CHECK(35, of_lists ? head.repeat_bytes > 0 : !head.repeat_bytes && head.rows == head.values);
            CHECK(18, head.level_bytes <= INT32_MAX && head.repeat_bytes <= INT32_MAX);
            size_t both = (size_t)(head.level_bytes + head.repeat_bytes);
            CHECK(19, both <= left_in(&page) && both <= size && (chunk->most ? head.level_bytes > 0 : !head.level_bytes));
            const uint8_t *at = page.at + head.repeat_bytes;
            CHECK(20, runs_in(&repeats, page.at, at, 1) && runs_in(&levels, at, at + head.level_bytes, width));
            page.at += both;
            size -= both;
            uint8_t *out = taken(&spare, size, SLACK);
            CHECK(21, out);
            if (!head.compressed || !left_in(&page)) {
                CHECK(22, left_in(&page) == size);
            } else {
                CHECK(23, plain_bytes(chunk, zstd, context, &page, out, size));
            }
        } else {
            uint8_t *out = taken(&spare, size, SLACK);
            CHECK(24, out && plain_bytes(chunk, zstd, context, &page, out, size));
            CHECK(33, head.levels != ABSENT && head.repeats != ABSENT);
            if (of_lists) CHECK(26, levels_of(&page, &repeats, head.repeats, 1));
            if (chunk->most) CHECK(25, levels_of(&page, &levels, head.levels, width));
        }
        Values values;
        memset(&values, 0, sizeof values);
        values.in = page;
        if (head.encoding == RLE_DICTIONARY || head.encoding == PLAIN_DICTIONARY) {
            CHECK(27, state->words);
            unsigned bits = left_in(&page) ? *page.at : 0; /* a page of nulls may have no bytes at all */
            const uint8_t *at = left_in(&page) ? page.at + 1 : page.at;
            CHECK(28, runs_in(&values.runs, at, page.end, bits));
            values.encoding = RLE;
        } else if (head.encoding == RLE) {
            uint32_t length = 0;
            CHECK(29, chunk->type == BOOLEAN && (left_in(&page) >= 4 || !left_in(&page)));
            if (left_in(&page)) memcpy(&length, page.at, 4), page.at += 4;
            CHECK(30, length <= left_in(&page) && runs_in(&values.runs, page.at, page.at + length, 1));
            values.encoding = RLE;
        } else if (head.encoding == DELTA) {
            CHECK(40, (chunk->type == INT32 || chunk->type == INT64) && begin_deltas(&values.deltas, page));
            values.encoding = DELTA;
        } else if (head.encoding == DELTA_LENGTH) {
            CHECK(41, chunk->type == BYTES && begin_deltas(&values.deltas, page));
            values.in.at = after_deltas(values.deltas);
            CHECK(42, values.in.at);
            values.encoding = DELTA_LENGTH;
        } else if (head.encoding == SPLIT) {
            CHECK(43, chunk->type != BOOLEAN && chunk->type != BYTES && chunk->stored <= 64);
            values.split = page.at;
            values.stride = values.left_split = left_in(&page) / (size_t)chunk->stored;
            CHECK(44, values.stride * (size_t)chunk->stored == left_in(&page));
            values.encoding = SPLIT;
        } else CHECK(31, head.encoding == PLAIN);
        if (of_lists) CHECK(36, page_lists(state, &values, &levels, &repeats, count));
        else CHECK(32, picked_rows(state, &values, chunk->most ? &levels : NULL, count));
        /* Other numbers of values than levels say, unless what is left was not looked at. */
        CHECK(45, chunk->picked || (!values.deltas.left && !values.left_split));
        state->read += (int64_t)count;
    }
    if (of_lists) {
        CHECK(37, state->rows == chunk->rows);
        if (chunk->fixed) CHECK(38, !state->null_lists && state->done - state->begun == (chunk->rows ? chunk->fixed : 0));
        else CHECK(39, state->done <= INT32_MAX);
        if (!chunk->fixed) ((int32_t *)(intptr_t)chunk->offsets)[chunk->rows] = (int32_t)state->done;
    }
    if (chunk->wide) { /* from the last on, because the first lie among the others */
        uint8_t *offsets = (uint8_t *)(intptr_t)chunk->offsets;
        int64_t before = is_text(chunk) ? chunk->base : chunk->first;
        for (size_t i = (size_t)(of_lists ? chunk->rows : state->done) + 1; i--;) {
            int32_t narrow;
            memcpy(&narrow, offsets + 4 * i, 4);
            int64_t offset = before + narrow;
            memcpy(offsets + 8 * i, &offset, 8);
        }
    }
    return 0;
}

/* Decodes chunks one after another; `context` is zstd's, once it was needed. */
static void decode(Chunk *chunks, size_t count, uint8_t *room, size_t size, const Zstd *zstd, void **context) {
    State state;
    state.dense = (uint8_t *)state.spare;
    size_t skip = (64 - (uintptr_t)room % 64) % 64;
    Room whole = {room + (skip < size ? skip : size), room + size};
    for (Chunk *chunk = chunks; chunk < chunks + count; chunk++) {
        if (chunk->codec == ZSTD && zstd && !*context) *context = zstd->create();
        chunk->refused = chunk_rows(chunk, whole, zstd, *context, &state);
        chunk->used = state.used;
        chunk->nulls = state.nulls;
        chunk->null_lists = state.null_lists;
        chunk->found = chunk->coded ? state.known : is_text(chunk) ? state.bytes : state.done;
    }
}

/* Decodes chunks one after another.
 *
 * room, size: memory for this call alone. zstd: its functions, or NULL.
 */
void tdu_decode(Chunk *chunks, size_t count, uint8_t *room, size_t size, const Zstd *zstd) {
    void *context = NULL;
    decode(chunks, count, room, size, zstd, &context);
    if (context) zstd->release(context);
}

/* Decodes columns to where they are delivered, each while it is in the processor's cache.
 *
 * columns: as above. take: that of rows.c.
 */
void tdu_deliver(Straight *columns, size_t count, uint8_t *room, size_t size, const Zstd *zstd, Take *take) {
    void *context = NULL;
    for (Straight *column = columns; column < columns + count; column++) {
        Chunk *chunks = (Chunk *)(intptr_t)column->chunks;
        if (!column->ragged) decode(chunks, (size_t)column->count, room, size, zstd, &context);
        for (int64_t i = 0; column->ragged && i < column->count && !column->refused; i++) {
            if (is_text(&chunks[i])) chunks[i].base = column->found;
            else chunks[i].first = column->found;
            decode(chunks + i, 1, room, size, zstd, &context);
            column->found += chunks[i].found;
            if (chunks[i].refused || chunks[i].nulls || chunks[i].null_lists) column->refused = 1;
        }
        for (int64_t i = 0; i < column->count; i++)
            if (chunks[i].refused || (chunks[i].nulls && !column->fills)) column->refused = 1;
        if (column->refused || !column->rows) continue;
        take((uint8_t *)(intptr_t)column->out, (const uint8_t *)(intptr_t)column->source,
             (const uint32_t *)(intptr_t)column->places, (size_t)column->rows, (size_t)column->width);
    }
    if (context) zstd->release(context);
}
#endif
