/* Counts float64 values by cells: those whose ordered bits agree above a shift. Compiled by hatch_build.py, called by
 * grid.py.
 *
 * The cells lie in a hash table with open addressing, of 2**bits slots, of which some are always empty. A cell is known
 * by any of its values. Functions stop at the first value whose cell is new when `room` cells are used, and say how many
 * were done: what then happens, a larger table or a larger shift, is Python's.
 *
 * All memory was made by this package, and all values are finite; nothing is checked here.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t least, greatest; /* ordered bits */
    uint64_t count;           /* of values; 0: the slot is empty */
} Slot;

typedef struct {
    uint64_t bits, shift, used, room, done;
} State;

enum { CHUNK = 64 }; /* values whose slots are on their way from memory together */

#if defined(__GNUC__)
#define FETCH(slot) __builtin_prefetch(slot, 1)
#else
#define FETCH(slot) (void)(slot)
#endif

/* The bits of a value, so that unsigned numbers order as the values do. */
static uint64_t ordered(double value) {
    uint64_t bits;
    value += 0.0; /* -0.0 becomes 0.0 */
    memcpy(&bits, &value, 8);
    return bits ^ (-(bits >> 63) | (uint64_t)1 << 63);
}

/* Where to look for a cell first: by the upper bits of a product, as the lower ones of round numbers are all zero. */
static size_t first_slot(uint64_t cell, uint64_t bits) {
    return (size_t)(cell * UINT64_C(0x9E3779B97F4A7C15) >> (64 - bits));
}

/* The slot of the cell of a value: its own, or the empty one that it may take. */
static Slot *find(Slot *table, size_t mask, size_t at, uint64_t value, uint64_t shift) {
    while (table[at].count && (table[at].least ^ value) >> shift) at = (at + 1) & mask;
    return table + at;
}

/* Adds `count` values from `least` to `greatest`; returns 0 if there is no room for their cell. */
static int put(Slot *slot, State *state, uint64_t least, uint64_t greatest, uint64_t count) {
    if (!slot->count) {
        if (state->used == state->room) return 0;
        state->used++;
        slot->least = least, slot->greatest = greatest;
    }
    slot->count += count;
    if (least < slot->least) slot->least = least;
    if (greatest > slot->greatest) slot->greatest = greatest;
    return 1;
}

void tdu_grid_add(Slot *table, State *state, const double *values, size_t n) {
    const uint64_t bits = state->bits, shift = state->shift;
    const size_t mask = ((size_t)1 << bits) - 1;
    for (size_t i = 0; i < n; i += CHUNK) {
        uint64_t keys[CHUNK];
        size_t slots[CHUNK], size = n - i < CHUNK ? n - i : CHUNK;
        for (size_t j = 0; j < size; j++) {
            keys[j] = ordered(values[i + j]);
            slots[j] = first_slot(keys[j] >> shift, bits);
            FETCH(table + slots[j]);
        }
        for (size_t j = 0; j < size; j++) {
            Slot *slot = find(table, mask, slots[j], keys[j], shift);
            if (!put(slot, state, keys[j], keys[j], 1)) {
                state->done = i + j;
                return;
            }
        }
    }
    state->done = n;
}

/* Adds the values of cells of this shift or a lesser one. */
void tdu_grid_merge(Slot *table, State *state, const uint64_t *least, const uint64_t *greatest, const uint64_t *counts,
                    size_t n) {
    const size_t mask = ((size_t)1 << state->bits) - 1;
    for (state->done = 0; state->done < n; state->done++) {
        size_t i = state->done, at = first_slot(least[i] >> state->shift, state->bits);
        Slot *slot = find(table, mask, at, least[i], state->shift);
        if (!put(slot, state, least[i], greatest[i], counts[i])) return;
    }
}

/* Puts the cells of a table of `slots` slots into another one, which has room for all of them, and this shift or a
 * larger one. */
void tdu_grid_move(Slot *table, State *state, const Slot *from, size_t slots) {
    const size_t mask = ((size_t)1 << state->bits) - 1;
    for (size_t i = 0; i < slots; i += CHUNK) {
        size_t at[CHUNK], size = slots - i < CHUNK ? slots - i : CHUNK;
        for (size_t j = 0; j < size; j++) {
            at[j] = first_slot(from[i + j].least >> state->shift, state->bits);
            if (from[i + j].count) FETCH(table + at[j]);
        }
        for (size_t j = 0; j < size; j++) {
            const Slot *cell = from + i + j;
            if (!cell->count) continue;
            put(find(table, mask, at[j], cell->least, state->shift), state, cell->least, cell->greatest, cell->count);
        }
    }
}

/* Puts those of `n` values that lie in one of `number` ranges into `out`, which has room for all, and says how many. Ranges
 * are pairs of ordered bits, disjoint and ascending. NaN and infinities are in none. */
void tdu_grid_pick(double *restrict out, uint64_t *restrict picked, const double *values, size_t n,
                   const uint64_t *ranges, size_t number) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t key = ordered(values[i]);
        const uint64_t *at = ranges; /* the last range that begins no later, or the first */
        for (size_t left = number; left > 1; left -= left / 2) at += at[left / 2 * 2] <= key ? left / 2 * 2 : 0;
        out[kept] = values[i];
        kept += at[0] <= key && key <= at[1];
    }
    *picked = kept;
}
