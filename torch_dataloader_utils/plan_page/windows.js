// The window in which rows are shuffled, or cut into batches by length. Mirrors planning/windows.py, opened.py and
// packed_windows.py, and FileSegments of planning/tasks.py.
//
// Windows draw from whole segments: the column `segments` of splits has [[rows, bytes], ...] for each split, or null
// for a split of one segment. Without that column each split counts as one segment, and a window is not `exact`.
"use strict";

const PlannerWindows = (() => {
  const OPEN_SPLITS = 4;
  const MOST_BYTES = 2 ** 26; // _MOST_BYTES of packed_windows.py

  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const { mulDiv, rowsLength: length } = PlannerOrder;

  // PlanOptions.shuffles_rows
  const shuffles = ({ bufferRows, windowBytes }) => bufferRows !== null || windowBytes !== null;

  // Rows.clip: the rows whose numbers lie in [start, stop).
  function clipped(rows, start, stop) {
    return { ...rows, start: Math.max(rows.start, start), stop: Math.min(rows.stop, stop) };
  }

  // FileSegments.touched: the segments of the split that hold rows of the piece, as {start, stop, size}.
  function touched(piece, table) {
    const first = table.start[piece.split];
    const one = [[table.rows[piece.split], table.nbytes[piece.split]]];
    const found = [];
    let start = first;
    for (const [rows, size] of table.segments?.[piece.split] ?? one) {
      const segment = { start, stop: start + rows, size };
      start = segment.stop;
      if (piece.start === null || length(clipped(piece, segment.start, segment.stop)) > 0) found.push(segment);
    }
    return found;
  }

  // Opened: a piece from which runs of whole segments are taken, as {split, rows, size}; rows is null if unknown.
  class Opened {
    constructor(piece, table) {
      this.piece = piece;
      this.segments = touched(piece, table);
      this.at = 0;
      this.size = sum(this.segments.map((segment) => segment.size)); // of the segments not taken yet
    }

    get left() {
      return this.at < this.segments.length;
    }

    rowsIn({ start, stop }) {
      return this.piece.start === null ? null : length(clipped(this.piece, start, stop));
    }

    // Opened.run_of_rows
    runOfRows(quota, least = 0, most = Infinity) {
      const begin = this.at;
      for (let taken = 0, size = 0; this.left && (taken < quota || size < least) && size < most; this.at++) {
        taken += this.rowsIn(this.segments[this.at]) ?? quota;
        size += this.segments[this.at].size;
      }
      return this.run(begin);
    }

    // Opened.run_of_bytes
    runOfBytes(most) {
      const begin = this.at;
      for (let taken = 0; this.left && (this.at === begin || taken + this.segments[this.at].size <= most); this.at++) {
        taken += this.segments[this.at].size;
      }
      return this.run(begin);
    }

    run(begin) {
      const run = this.segments.slice(begin, this.at);
      const size = sum(run.map((segment) => segment.size));
      this.size -= size;
      const rows = this.piece.start === null ? null : sum(run.map((segment) => this.rowsIn(segment)));
      return { split: this.piece.split, rows, size };
    }
  }

  // _from_open: sets with one run from each open piece, at most `most` of them open.
  function fromOpen(opened, most, run) {
    const sets = [];
    let [going, next] = [[], 0];
    while (next < opened.length || going.length) {
      while (next < opened.length && going.length < most) going.push(opened[next++]);
      sets.push(going.map(run));
      going = going.filter((each) => each.left);
    }
    return sets;
  }

  // _fitting: sets of as many whole pieces as fit `size` bytes; if two do not fit, one run from each of two.
  function fitting(opened, size) {
    const sets = [];
    let [going, next] = [[], 0];
    while (next < opened.length || going.length) {
      let taken = sum(going.map((each) => each.size));
      while (next < opened.length && (going.length < 2 || taken + opened[next].size <= size)) {
        taken += opened[next].size;
        going.push(opened[next++]);
      }
      const most = taken <= size ? taken : Math.floor(size / going.length);
      sets.push(going.map((each) => each.runOfBytes(most)));
      going = going.filter((each) => each.left);
    }
    return sets;
  }

  // _runs of packed_windows.py: consecutive runs with at least so many rows and bytes together, or many bytes.
  function consecutive(opened, { rows, bytes }) {
    const sets = [];
    let [runs, found, size] = [[], 0, 0];
    for (const each of opened) {
      while (each.left) {
        const run = each.runOfRows(Math.max(1, rows - found), bytes - size, MOST_BYTES - size);
        runs.push({ ...run, rows: null }); // which rows a batch has is known only after reading
        found += run.rows ?? rows;
        size += run.size;
        if ((found >= rows && size >= bytes) || size >= MOST_BYTES) {
          sets.push(runs);
          [runs, found, size] = [[], 0, 0];
        }
      }
    }
    return runs.length ? [...sets, runs] : sets;
  }

  // _sets: the sets of runs that are decoded together, each with the number of windows that it is cut into.
  function setsOf(opened, options) {
    const { bufferRows: most, openSplits: given } = options;
    const size = Math.floor((options.windowBytes ?? 0) / options.numShards);
    if (!shuffles(options)) return consecutive(opened, options.byLength).map((runs) => [runs, 1]);
    if (most === null && given === null) return fitting(opened, size).map((runs) => [runs, 1]);
    const number = given === "all" ? opened.length : given || OPEN_SPLITS;
    if (most === null) {
      const all = Math.max(sum(opened.map((each) => each.size)), 1);
      const share = (each) => (given === "all" ? mulDiv(size, each.size, all) : Math.floor(size / number));
      const quotas = new Map(opened.map((each) => [each, share(each)]));
      const sets = fromOpen(opened, number, (each) => each.runOfBytes(quotas.get(each)));
      return sets.map((runs) => [runs, Math.ceil(sum(runs.map((run) => run.size)) / Math.max(size, 1))]);
    }
    const quota = Math.max(1, Math.floor(most / Math.max(number, 1)));
    const sets = fromOpen(opened, number, (each) => each.runOfRows(quota));
    return sets.map((runs) => [runs, Math.ceil(sum(runs.map((run) => run.rows ?? 0)) / most)]);
  }

  // _shares: `number` windows of a set, each as {rows, splits}; a single one if its rows are unknown.
  function shares(runs, number) {
    if (number < 2 || runs.some((run) => run.rows === null)) {
      const rows = sum(runs.map((run) => run.rows ?? 0));
      return [{ rows, splits: new Set(runs.map((run) => run.split)).size }];
    }
    const windows = Array.from({ length: number }, (_, j) => {
      const upTo = (rows, k) => mulDiv(k, rows, number);
      const parts = runs.map((run) => ({ split: run.split, rows: upTo(run.rows, j + 1) - upTo(run.rows, j) }));
      const some = parts.filter((part) => part.rows);
      return { rows: sum(some.map((part) => part.rows)), splits: new Set(some.map((part) => part.split)).size };
    });
    return windows.filter((window) => window.rows);
  }

  // _typical_window: the window of a shard with the median number of splits, without the last; null without a window.
  function typicalWindow(pieces, table, options) {
    const opened = pieces.map((piece) => new Opened(piece, table)).filter((each) => each.left);
    const windows = setsOf(opened, options).flatMap(([runs, number]) => shares(runs, number));
    if (!windows.length) return null;
    const some = windows.length > 1 ? windows.slice(0, -1) : windows;
    const median = some.sort((a, b) => a.splits - b.splits)[Math.floor((windows.length - 1) / 2)];
    return { ...median, windows: windows.length };
  }

  // window_of_batches, and ShuffleWindow.variance_ratio.
  function windowOfBatches(shards, table, options, { batchRows, exact }) {
    if (!shuffles(options) && options.byLength === null) return null;
    const real = shards.map((pieces) => pieces.filter((piece) => !piece.pad));
    const windows = real.map((pieces) => typicalWindow(pieces, table, options)).filter(Boolean);
    if (!windows.length) return null;
    const fewest = windows.reduce((least, window) => (window.splits < least.splits ? window : least));
    const open = fewest.splits;
    const of = new Set(real.flat().map((piece) => piece.split)).size;
    const variance = 1 + (batchRows / open) * (1 - open / of);
    const [rows, number] = [exact ? fewest.rows : null, sum(windows.map((window) => window.windows))];
    return { open, of, rows, windows: number, variance, exact: Boolean(table.segments) };
  }

  return { windowOfBatches };
})();
