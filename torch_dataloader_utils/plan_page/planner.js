// Plans in the browser: the same rows for each rank and worker as Python plans, which tests/plan_page compares.
// Mirrors planning/plan.py, rank_plan.py and workers.py. Needs the other scripts of planner_scripts.py before it.
//
//   Planner.supported(options, data) -> null, or why only Python can plan this, as the end of a sentence
//   Planner.plan(data, options) -> {
//     ranks: [{rows, steps, padded, dropped, workers: [{pieces, padding}]}], uneven: {min_steps, max_steps},
//     left_out: [piece, ...], sharding, windows }, or an Error with the message of Python's
//
// A piece is [file, start, stop], or [file, start, stop, step, block, phase] for those rows x with
// (x - phase) % step < block: ranks that take turns. Pieces are in the order before windows mix rows that are close.
// `padding` are repeated rows, and `left_out` rows that no rank delivers. What is known only after reading is null.
// Lists of pieces, and `windows`, are computed when they are first read.
"use strict";

const Planner = (() => {
  const { assign, transfers, takePieces, delivered, rows, steps, notDelivered } = PlannerSharing;
  const { windowOfBatches } = PlannerWindows;
  const size = PlannerOrder.rowsLength;
  const sum = (values) => values.reduce((a, b) => a + b, 0);

  // --- Workers (workers.py) -----------------------------------------------------------------------------------------

  // lpt: the worker of each load: the largest load first, to the least loaded worker; ties to the earlier and lower.
  function lpt(loads, numShards) {
    const given = new Array(numShards).fill(0);
    const owners = new Array(loads.length);
    const turns = loads.map((_, i) => i).sort((a, b) => loads[b] - loads[a] || a - b);
    for (const i of turns) {
      owners[i] = given.indexOf(Math.min(...given));
      given[owners[i]] += loads[i];
    }
    return owners;
  }

  // whole_batch_targets: whole batches for each worker, near its load, and a short one for a worker with the most.
  function wholeBatchTargets(loads, batchRows) {
    const total = sum(loads);
    const batches = loads.map((load) => Math.floor(load / batchRows));
    const spare = Math.floor(total / batchRows) - sum(batches);
    const byRest = loads.map((_, w) => w).sort((a, b) => (loads[b] % batchRows) - (loads[a] % batchRows) || a - b);
    for (const worker of byRest.slice(0, spare)) batches[worker] += 1;
    const targets = batches.map((count) => count * batchRows);
    const rest = (w) => loads[w] % batchRows;
    const most = loads.map((_, w) => w).sort((a, b) => batches[b] - batches[a] || rest(b) - rest(a) || a - b)[0];
    targets[most] += total % batchRows;
    return targets;
  }

  // last_to_deliver: the worker that delivers the last batch when workers take turns.
  function lastToDeliver(loads, batchRows) {
    const batches = loads.map((load) => Math.ceil(load / batchRows));
    return batches.lastIndexOf(Math.max(...batches));
  }

  function ownersOf(real, table, { numShards, assignment }) {
    if (numShards === 1) return real.map(() => 0);
    if (assignment === "turn") return real.map((_, i) => i % numShards);
    const known = real.every((piece) => piece.start !== null);
    return lpt(real.map((piece) => (known ? size(piece) : table.nbytes[piece.split])), numShards);
  }

  // worker_shards: the pieces of each worker, in plan order; whole batches for all workers but one if counts are exact.
  function workerShards(pieces, table, options, batchRows, exact) {
    const real = pieces.filter((piece) => !piece.pad);
    let shards = Array.from({ length: options.numShards }, () => []);
    ownersOf(real, table, options).forEach((owner, i) => shards[owner].push(real[i]));
    let loads = shards.map((shard) => sum(shard.map(size)));
    if (exact) {
      const targets = wholeBatchTargets(loads, batchRows);
      const moved = (_, w) =>
        transfers(loads, targets, w).flatMap(([donor, first, last]) => takePieces(shards[donor], first, last));
      shards = targets.every((target, w) => target === loads[w]) ? shards : shards.map(moved);
      loads = targets;
    }
    for (const shard of shards) shard.sort((a, b) => a.place - b.place || a.start - b.start);
    const last = lastToDeliver(loads, batchRows);
    return shards.map((shard, w) => (w === last ? [...shard, ...pieces.filter((piece) => piece.pad)] : shard));
  }

  // --- The plan (plan.py) -------------------------------------------------------------------------------------------

  function tableOf({ splits, files }, { shuffle }) {
    const table = shuffle ? splits.shuffled : splits.unshuffled;
    const unknown = table.rows.indexOf(null);
    return { ...table, uncounted: unknown < 0 ? null : files[table.file[unknown]][0] };
  }

  // A piece as the page knows it.
  function written(piece, table) {
    const rows = [table.file[piece.split], piece.start, piece.stop];
    return piece.step === 1 ? rows : [...rows, piece.step, piece.block, piece.phase];
  }

  // A function that computes its value once, when it is first called.
  function once(compute) {
    let value;
    return () => (value ??= { is: compute() }).is;
  }

  // The object with a property that is computed when it is first read.
  function lazy(object, name, compute) {
    return Object.defineProperty(object, name, { enumerable: true, get: once(compute) });
  }

  // The options with which rows are assigned: the reader applies last_batch if counts are unknown (Plan._assigned).
  function assigned(table, options, exact) {
    const even = options.steps_per_epoch === null ? options.even : "none";
    return assign(table, { ...options, even, last_batch: exact ? options.last_batch : "partial" }, options.epoch);
  }

  // RankPlan of each rank, without its workers.
  function countsOf(shares, exact) {
    const { options, targets, batchRows } = shares;
    const { steps_per_epoch: given, even, last_batch } = options;
    if (!exact) return targets.map(() => ({ rows: null, steps: given, padded: null, dropped: null }));
    const repeats = given !== null || even === "pad" || last_batch === "pad" || last_batch === "wrap";
    const counts = given === null ? steps(shares) : targets.map(() => given);
    return rows(shares).map((real, rank) => {
      const room = counts[rank] * batchRows;
      const padded = repeats ? Math.max(0, room - real) : 0;
      return { rows: real, steps: counts[rank], padded, dropped: targets[rank] - Math.min(real, room) };
    });
  }

  function writtenWorker(shard, table) {
    const all = (pad) => shard.filter((piece) => piece.pad === pad).map((piece) => written(piece, table));
    return { pieces: all(false), padding: all(true) };
  }

  function plan(data, given) {
    const options = PlannerOptions.settled(data, given);
    const table = tableOf(data, options);
    const exact = data.exact !== false && table.uncounted === null;
    const wrong = PlannerOptions.supported(given, data) ?? PlannerOptions.problem(data, table, options, exact);
    if (wrong) throw new Error(wrong);
    const shares = assigned(table, options, exact);
    const { batchRows } = shares;
    const shardsOf = (rank) => workerShards(delivered(shares, rank), table, options, batchRows, exact);
    const shards = shares.orders.map((_, rank) => once(() => shardsOf(rank)));
    const workers = (rank) => shards[rank]().map((shard) => writtenWorker(shard, table));
    const ranks = countsOf(shares, exact).map((counts, rank) => lazy(counts, "workers", () => workers(rank)));
    const counts = ranks.map((rank) => rank.steps);
    const uneven = counts.includes(null) ? null : { min_steps: Math.min(...counts), max_steps: Math.max(...counts) };
    const result = { sharding: shares.sharding, ranks, uneven };
    lazy(result, "left_out", () => notDelivered(shares).map((piece) => written(piece, table)));
    return lazy(result, "windows", () => windowOfBatches(shards[0](), table, options, { batchRows, exact }));
  }

  return { plan, supported: PlannerOptions.supported };
})();
