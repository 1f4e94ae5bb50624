/* Changes column chunks and their pages at random, and decodes them: `fuzz_pages SECONDS SEED FILE...`.
 *
 * Built with the address and undefined-behaviour sanitizers (test_fuzz_pages.py), which end the program at the first
 * access that is not allowed. They see nothing inside one allocation, so each chunk, page, dictionary and output has its
 * own, of its exact size. Pages are also changed after decompression, else most changes would only spoil that.
 *
 * A file holds the numbers of a chunk (the struct of pages.c), then its bytes. Prints the number of chunks that were
 * decoded, of those that were refused by each check, and the longest time of one.
 */
#define TDU_FUZZ
#include "pages.c"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t seed;

static uint64_t drawn(uint64_t below) { /* splitmix64 */
    uint64_t z = seed += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return below ? (z ^ z >> 31) % below : 0;
}

static uint8_t *held[1 << 16];
static size_t holding;

static uint8_t *exact(size_t size) {
    if (holding == sizeof held / sizeof *held || size > 1 << 26) return NULL;
    void *found = NULL;
    if (posix_memalign(&found, 64, size ? size : 1)) abort();
    if (!size) return held[holding++] = found; /* one byte, which nobody may count on */
    memset(found, 0xa5, size);
    return held[holding++] = found;
}

uint8_t *fuzz_memory(size_t size) { return exact(size); }

static uint8_t *cleared(size_t size) {
    uint8_t *found = exact(size);
    return found ? memset(found, 0, size) : NULL;
}

static void changed(uint8_t *bytes, size_t size) {
    static const uint8_t telling[] = {0, 1, 2, 3, 7, 8, 15, 16, 24, 31, 32, 33, 63, 64, 0x7f, 0x80, 0xfe, 0xff};
    for (uint64_t left = 1 + drawn(3); left && size; left--) {
        size_t at = drawn(2) ? drawn(size) : drawn(size < 24 ? size : 24); /* headers and lengths come first */
        switch (drawn(4)) {
        case 0: bytes[at] ^= (uint8_t)(1u << drawn(8)); break;
        case 1: bytes[at] = telling[drawn(sizeof telling)]; break;
        case 2: bytes[at] = (uint8_t)drawn(256); break;
        default: /* a stretch of one byte */
            for (uint64_t n = drawn(12); n && at < size; n--) bytes[at++] = telling[drawn(2) ? 17 : 0];
        }
    }
}

static int change_pages;

void fuzz_page(Input *page) {
    size_t size = left_in(page);
    if (change_pages && size && !drawn(8)) size -= 1 + drawn(size < 16 ? size : 16); /* cut short */
    uint8_t *copy = exact(size);
    if (!copy) return;
    memcpy(copy, page->at, size);
    if (change_pages && drawn(2)) changed(copy, size);
    page->at = copy;
    page->end = copy + size;
}

static struct {
    const uint8_t *bytes;
    size_t size;
} file;

/* Like `pread`: as many bytes as there are, or fewer. */
ssize_t fuzz_read(int number, void *out, size_t size, off_t start) {
    size_t at = (size_t)start, left = at < file.size ? file.size - at : 0;
    if (size > left) size = left;
    if (size > 1 && !drawn(64)) size = 1 + drawn(size - 1);
    memcpy(out, file.bytes + at, size);
    return number == 7 ? (ssize_t)size : -1;
}

/* Draws which rows of a chunk are decoded, mostly ranges that fit; returns how many rows these are. */
static size_t pick(Chunk *chunk) {
    static const uint64_t far[] = {2, 9, 70, 3000};
    size_t most = 1 + drawn(40), rows = 0;
    int64_t *ranges = (int64_t *)(void *)exact(most * 16), at = 0;
    uint64_t gap = far[drawn(4)], size = far[drawn(4)];
    for (chunk->picked = 0; (size_t)chunk->picked < most; chunk->picked++) {
        int64_t first = at + (int64_t)drawn(gap), last = first + 1 + (int64_t)drawn(size);
        if (last > chunk->rows) last = chunk->rows;
        if (first >= last) break;
        ranges[2 * chunk->picked] = first;
        ranges[2 * chunk->picked + 1] = at = last;
    }
    if (chunk->picked && !drawn(32)) ranges[drawn(2 * (uint64_t)chunk->picked)] += drawn(2) ? 1 : -1; /* may not fit */
    chunk->ranges = (int64_t)(intptr_t)ranges;
    for (int64_t i = 0; i < chunk->picked; i++)
        if (ranges[2 * i] < ranges[2 * i + 1]) rows += (size_t)(ranges[2 * i + 1] - ranges[2 * i]);
    return chunk->picked ? rows : (size_t)chunk->rows;
}

int main(int count, char **arguments) {
    double seconds = atof(arguments[1]), longest = 0;
    uint64_t runs = 0, failed[64] = {0};
    seed = strtoull(arguments[2], NULL, 10);
    tdu_prepare();
    int seeds = count - 3;
    Chunk *chunks = calloc((size_t)seeds, sizeof *chunks);
    uint8_t **bytes = calloc((size_t)seeds, sizeof *bytes);
    for (int i = 0; i < seeds; i++) {
        FILE *file = fopen(arguments[3 + i], "rb");
        if (!file || fread(&chunks[i], sizeof *chunks, 1, file) != 1) return 2;
        bytes[i] = malloc((size_t)chunks[i].length);
        if (fread(bytes[i], 1, (size_t)chunks[i].length, file) != (size_t)chunks[i].length) return 2;
        fclose(file);
    }
    State *state = malloc(sizeof *state);
    struct timespec begun, before, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (double spent = 0; spent < seconds; runs++) {
        size_t which = drawn((uint64_t)seeds);
        Chunk chunk = chunks[which];
        size_t length = (size_t)chunk.length;
        int how = (int)drawn(4); /* as it is (rarely), the chunk, its pages, or both */
        if (!how && drawn(16)) how = 3;
        if (how & 1 && !drawn(8)) length -= drawn(length);
        uint8_t *in = exact(length);
        memcpy(in, bytes[which], length);
        if (how & 1) changed(in, length);
        change_pages = how >> 1;
        if (!drawn(16)) chunk.rows += (int64_t)drawn(3) - 1;
        if (!drawn(16)) chunk.entries = chunk.entry ? chunk.entries + (int64_t)drawn(3) - 1 : chunk.rows;
        if (!drawn(32) && !chunk.entry) chunk.most ^= 1;
        if (!drawn(16) && chunk.fixed) chunk.fixed += (int64_t)drawn(3) - 1;
        if (!drawn(8)) chunk.room = (int64_t)drawn((uint64_t)chunk.room + 1);
        if (!chunk.entry) chunk.entries = chunk.rows;
        size_t rows = (size_t)chunk.rows, entries = (size_t)chunk.entries;
        if (!chunk.entry && drawn(2)) rows = entries = pick(&chunk);
        if (chunk.type == BOOLEAN) chunk.width = (int64_t)drawn(2); /* bits, or bytes */
        if (!drawn(4)) chunk.blank = (int64_t)drawn((uint64_t)INT64_MAX);
        if (is_text(&chunk) && !drawn(4)) chunk.base = (int64_t)drawn((uint64_t)chunk.room + 1);
        if (chunk.coded && !drawn(4)) chunk.coded = 1 + (int64_t)drawn((uint64_t)chunk.coded);
        size_t size = is_text(&chunk) ? (size_t)chunk.room : entries * (size_t)chunk.width;
        if (chunk.type == BOOLEAN && !chunk.width) size = (entries + 7) / 8;
        chunk.values = (int64_t)(intptr_t)cleared(size);
        chunk.valid = chunk.most > chunk.entry ? (int64_t)(intptr_t)cleared((entries + 7) / 8) : 0;
        size_t ends = (chunk.coded ? (size_t)chunk.coded : rows) + 1;
        int any_size = chunk.type == BYTES || (chunk.entry && !chunk.fixed);
        chunk.offsets = any_size ? (int64_t)(intptr_t)exact((chunk.wide ? 8 : 4) * ends) : 0;
        chunk.text = chunk.coded ? (int64_t)(intptr_t)exact((size_t)chunk.room) : 0;
        chunk.lists = chunk.entry > 1 ? (int64_t)(intptr_t)cleared((rows + 7) / 8) : 0;
        memset(state, 0xa5, sizeof *state);
        state->dense = (uint8_t *)state->spare;
        Room any = {in, in};
        file.bytes = in;
        file.size = length - (drawn(64) ? 0 : drawn(length + 1)); /* rarely, of a file that was cut off meanwhile */
        chunk.file = 7;
        chunk.start = 0;
        chunk.length = (int64_t)length;
        clock_gettime(CLOCK_MONOTONIC, &before);
        int check = chunk_rows(&chunk, any, NULL, NULL, state);
        clock_gettime(CLOCK_MONOTONIC, &now);
        failed[check]++;
        double took = (double)(now.tv_sec - before.tv_sec) + 1e-9 * (double)(now.tv_nsec - before.tv_nsec);
        if (took > longest) longest = took;
        while (holding) free(held[--holding]);
        spent = (double)(now.tv_sec - begun.tv_sec) + 1e-9 * (double)(now.tv_nsec - begun.tv_nsec);
    }
    printf("%llu chunks, %llu whole, longest %.1f ms, refused by check:", (unsigned long long)runs,
           (unsigned long long)failed[0], longest * 1e3);
    for (int i = 1; i < 64; i++)
        if (failed[i]) printf(" %d: %llu", i, (unsigned long long)failed[i]);
    printf("\n");
    for (int i = 0; i < seeds; i++) free(bytes[i]);
    free(bytes);
    free(chunks);
    free(state);
    return 0;
}
