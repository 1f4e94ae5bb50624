// The ordered rows of an epoch, in columns. Mirrors planning/order.py and planning/runs.py, and rows.py for patterns.
//
// An order is {table, source, place, first, last, picked}: units (runs of rows of one split) one after another, and
// which of these rows are selected, counted over all units; null means all. Units themselves are contiguous here.
"use strict";

const PlannerOrder = (() => {
  const clip = (value, low, high) => Math.min(Math.max(value, low), high);

  // a * b // c: JavaScript's numbers are exact only up to 2**53.
  function mulDiv(a, b, c) {
    const product = a * b;
    return product <= Number.MAX_SAFE_INTEGER ? Math.floor(product / c) : Number((BigInt(a) * BigInt(b)) / BigInt(c));
  }

  // --- Rows (rows.py): the numbers x in [start, stop) with (x - phase) % step < block -------------------------------

  // Rows._before: how many selected places are below `row`, counted from `phase`.
  function before({ step, block, phase }, row) {
    const turn = Math.floor((row - phase) / step);
    return turn * block + Math.min(row - phase - turn * step, block);
  }

  // Rows.row, for a place that is counted from `phase`.
  function rowAt({ step, block, phase }, place) {
    const turn = Math.floor(place / block);
    return phase + turn * step + (place - turn * block);
  }

  function rowsLength(rows) {
    if (rows.start === null) return 0;
    if (rows.step === 1) return Math.max(0, rows.stop - rows.start);
    return Math.max(0, before(rows, rows.stop) - before(rows, rows.start));
  }

  // Rows.slice, for 0 <= first < last <= length: the same object with other ends (a piece stays a piece).
  function cut(rows, first, last) {
    if (rows.step === 1) return { ...rows, start: rows.start + first, stop: rows.start + last };
    const lower = before(rows, rows.start);
    return { ...rows, start: rowAt(rows, lower + first), stop: rowAt(rows, lower + last - 1) + 1 };
  }

  // --- Order (order.py, runs.py) ------------------------------------------------------------------------------------

  // SplitTable.order: the rows of all splits, permuted by `key`, or in file order if it is null.
  function fresh(table, key) {
    const n = table.rows.length;
    const place = Int32Array.from({ length: n }, (_, i) => i);
    const source = key === null ? place : PlannerHash.permutation(n, key);
    const last = Float64Array.from(source, (split) => table.rows[split] ?? 0);
    return { table, source, place, first: new Float64Array(n), last, picked: null };
  }

  // Runs.ends: the number of rows up to the end of each unit; computed once per order.
  function ends(order) {
    if (!order.ends) {
      let total = 0;
      order.ends = order.last.map((last, i) => (total += last - order.first[i]));
    }
    return order.ends;
  }

  const total = (order) => (order.source.length ? ends(order)[order.source.length - 1] : 0);
  const length = (order) => (order.picked ? rowsLength(order.picked) : total(order));

  // Runs.select: the units at these places.
  function select(order, places) {
    const column = (values) => values.constructor.from(places, (place) => values[place]);
    return {
      table: order.table, source: column(order.source), place: column(order.place),
      first: column(order.first), last: column(order.last), picked: null,
    };
  }

  // Order.units
  function units(order, first, last) {
    return {
      table: order.table, source: order.source.slice(first, last), place: order.place.slice(first, last),
      first: order.first.slice(first, last), last: order.last.slice(first, last), picked: null,
    };
  }

  // Order.every: the units turn, turn + turns, ...
  function every(order, turn, turns) {
    const n = Math.max(0, Math.ceil((order.source.length - turn) / turns));
    return select(order, Int32Array.from({ length: n }, (_, i) => turn + i * turns));
  }

  // The first place whose value is above `bound` (np.searchsorted, side "right"); values are ascending.
  function firstAbove(values, bound) {
    let low = 0;
    for (let high = values.length; low < high; ) {
      const middle = (low + high) >> 1;
      if (values[middle] > bound) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  // Runs.take, for 0 <= first < last <= total.
  function takeUnits(order, first, last) {
    const upTo = ends(order);
    const low = firstAbove(upTo, first);
    const high = firstAbove(upTo, last - 1);
    const taken = units(order, low, high + 1);
    taken.last[high - low] = order.last[high] - (upTo[high] - last);
    taken.first[0] = order.last[low] - (upTo[low] - first);
    return taken;
  }

  // Order.take: the rows [first, last) of this sequence.
  function take(order, first, last) {
    [first, last] = [Math.max(first, 0), Math.min(last, length(order))];
    if (first === 0 && last === length(order)) return order;
    if (first >= last) return units(order, 0, 0);
    if (!order.picked) return takeUnits(order, first, last);
    const picked = cut(order.picked, first, last);
    const at = picked.start;
    const moved = { ...picked, start: 0, stop: picked.stop - at, phase: picked.phase - at };
    return { ...takeUnits(order, at, picked.stop), picked: moved };
  }

  // Order.part: the rows [floor(number * N / parts), floor((number + 1) * N / parts)).
  function part(order, number, parts) {
    const n = length(order);
    return take(order, mulDiv(number, n, parts), mulDiv(number + 1, n, parts));
  }

  // Order.deal: row g is selected if floor(g / block) % turns == turn.
  function deal(order, turn, turns, block) {
    if (turns === 1) return order;
    const picked = { start: 0, stop: total(order), step: turns * block, block, phase: turn * block };
    const n = rowsLength(picked);
    return { ...order, picked: n ? cut(picked, 0, n) : { ...picked, stop: 0, step: 1 } };
  }

  // Order.shuffled: the same units in an order drawn by `key`, renumbered.
  function shuffled(order, key) {
    const drawn = select(order, PlannerHash.permutation(order.source.length, key));
    return { ...drawn, place: Int32Array.from(drawn.place, (_, i) => i) };
  }

  // concatenated
  function joined(orders) {
    const column = (name) => {
      const parts = orders.map((order) => order[name]);
      const whole = new parts[0].constructor(parts.reduce((sum, values) => sum + values.length, 0));
      parts.reduce((at, values) => (whole.set(values, at), at + values.length), 0);
      return whole;
    };
    const [source, place, first, last] = ["source", "place", "first", "last"].map(column);
    return { table: orders[0].table, source, place, first, last, picked: null };
  }

  // Order.in_file_order
  function inFileOrder(order) {
    const places = Int32Array.from(order.source, (_, i) => i);
    const { source, first } = order;
    return select(order, places.sort((a, b) => source[a] - source[b] || first[a] - first[b] || a - b));
  }

  // Order._reach: how far a unit lies before that row in file order, within [first, last].
  function reach(order, i, source, row) {
    if (order.source[i] !== source) return order.source[i] < source ? order.last[i] : order.first[i];
    return clip(row, order.first[i], order.last[i]);
  }

  // Order.without: the rows that are not in `run`, which holds consecutive rows in file order and is not empty.
  function without(order, run) {
    const n = run.source.length;
    const [low, high] = [run.source[0], run.source[n - 1]];
    if (!order.source.some((source) => source >= low && source <= high)) return order;
    const [kept, firsts, lasts] = [[], [], []];
    for (let i = 0; i < order.source.length; i++) {
      const left = [order.first[i], reach(order, i, low, run.first[0])];
      const right = [reach(order, i, high, run.last[n - 1]), order.last[i]];
      for (const [first, last] of [left, right]) {
        if (first < last) [kept, firsts, lasts].forEach((column, j) => column.push([i, first, last][j]));
      }
    }
    return { ...select(order, kept), first: Float64Array.from(firsts), last: Float64Array.from(lasts) };
  }

  // --- Pieces (model.Piece): a split's rows, with its place in the epoch's order ------------------------------------

  // Spelt out, since a plan makes up to a million pieces.
  function newPiece(order, i, start, stop, step, block, phase) {
    return { split: order.source[i], place: order.place[i], start, stop, step, block, phase, pad: false };
  }

  function wholePiece(order, i) {
    const { source, first, last, table } = order;
    if (table.rows[source[i]] === null) return newPiece(order, i, null, null, 1, 1, 0);
    const start = table.start[source[i]];
    return first[i] < last[i] ? newPiece(order, i, first[i] + start, last[i] + start, 1, 1, 0) : null;
  }

  // The selected rows of a unit whose rows end at `end`, counted over all units; null if there are none.
  function pickedPiece(order, i, end) {
    const { picked, table } = order;
    const begin = end - order.last[i] + order.first[i];
    const lower = before(picked, clip(picked.start, begin, end));
    const count = before(picked, clip(picked.stop, begin, end)) - lower;
    if (count <= 0) return null;
    const moved = table.start[order.source[i]] + order.last[i] - end; // from rows of all units to rows of the file
    const [start, stop] = [rowAt(picked, lower) + moved, rowAt(picked, lower + count - 1) + 1 + moved];
    if (stop - start === count) return newPiece(order, i, start, stop, 1, 1, 0);
    return newPiece(order, i, start, stop, picked.step, picked.block, picked.phase + moved);
  }

  // Runs.pieces
  function pieces(order) {
    const upTo = order.picked ? ends(order) : null;
    const found = [];
    for (let i = 0; i < order.source.length; i++) {
      const piece = upTo ? pickedPiece(order, i, upTo[i]) : wholePiece(order, i);
      if (piece) found.push(piece);
    }
    return found;
  }

  return {
    mulDiv, rowsLength, cut, fresh, length, every, take, part, deal, shuffled, joined, inFileOrder, without, pieces,
  };
})();
