// Plans in the browser: the same rows for each rank and worker as Python plans, which tests/plan_page compares.
// Mirrors planning/plan.py, rank_plan.py and workers.py. Needs the scripts of planner_scripts.py before it; touches no page.
//
//   Planner.supported(options, data) -> null, or why only Python can plan this, as the end of a sentence
//   Planner.plan(data, options) -> {
//     ranks: [{rows, steps, padded, dropped, workers: [{pieces, padding}]}], uneven: {min_steps, max_steps},
//     left_out: [piece, ...], sharding, windows }, or an Error with the message of Python's
//
// A piece is [file, start, stop], or [file, start, stop, step, block, phase] for those rows x with
// (x - phase) % step < block: ranks that take turns. Pieces are in reading order; windows mix rows that are close in it.
// `padding` are repeated rows, and `left_out` rows that no rank delivers. What is known only after reading is null.
// The lists of pieces are computed when they are first read, since most pages show few of them.
"use strict";

const Planner = (() => {
  const { assign, batchRowsOf, transfers, takePieces, delivered, rows, steps, notDelivered } = PlannerSharing;
  const size = PlannerOrder.rowsLength;
  const sum = (values) => values.reduce((a, b) => a + b, 0);

  // --- Workers (workers.py) ----------------------------------------------------------------------------------------------

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
    shards[lastToDeliver(loads, batchRows)].push(...pieces.filter((piece) => piece.pad));
    return shards;
  }

  // --- The plan (plan.py) ------------------------------------------------------------------------------------------------

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

  // The value of `compute()`, computed when it is first read.
  function lazy(object, name, compute) {
    let value;
    return Object.defineProperty(object, name, { enumerable: true, get: () => (value ??= compute()) });
  }

  // The options with which rows are assigned: the reader applies last_batch if counts are unknown (Plan._assigned).
  function assigned(table, options, exact) {
    const even = options.steps_per_epoch === null ? options.even : "none";
    return assign(table, { ...options, even, last_batch: exact ? options.last_batch : "partial" }, options.epoch);
  }

  function rankOf(number, shares, shards, exact) {
    const { table, options, batchRows } = shares;
    if (!exact) return withWorkers({ rows: null, steps: options.steps_per_epoch, padded: null, dropped: null }, shards, table);
    const real = rows(shares)[number];
    const count = options.steps_per_epoch ?? steps(shares)[number];
    const fills = options.steps_per_epoch !== null || [options.even, options.last_batch].some((word) => word === "pad" || word === "wrap");
    const padded = fills ? Math.max(0, count * batchRows - real) : 0;
    const dropped = shares.targets[number] - Math.min(real, count * batchRows);
    return withWorkers({ rows: real, steps: count, padded, dropped }, shards, table);
  }

  function withWorkers(rank, shards, table) {
    const lists = (shard) => [shard.filter((piece) => !piece.pad), shard.filter((piece) => piece.pad)];
    const writtenAll = (list) => list.map((piece) => written(piece, table));
    const worker = ([pieces, padding]) => ({ pieces: writtenAll(pieces), padding: writtenAll(padding) });
    return lazy(rank, "workers", () => shards().map(lists).map(worker));
  }

  function plan(data, given) {
    const options = PlannerOptions.settled(data, given);
    const table = tableOf(data, options);
    const exact = data.exact !== false && table.uncounted === null;
    const wrong = PlannerOptions.supported(given, data) ?? PlannerOptions.problem(data, table, options, exact);
    if (wrong) throw new Error(wrong);
    const shares = assigned(table, options, exact);
    const batchRows = batchRowsOf(options);
    const shards = (rank) => workerShards(delivered(shares, rank), table, shares.options, batchRows, exact);
    const ranks = shares.orders.map((_, rank) => rankOf(rank, shares, () => shards(rank), exact));
    const counts = ranks.map((rank) => rank.steps);
    const uneven = counts.includes(null) ? null : { min_steps: Math.min(...counts), max_steps: Math.max(...counts) };
    const result = { sharding: shares.sharding, ranks, uneven };
    lazy(result, "left_out", () => notDelivered(shares).map((piece) => written(piece, table)));
    return lazy(result, "windows", () => PlannerWindows.windowOfBatches(shards(0), table, options, { batchRows, exact }));
  }

  return { plan, supported: PlannerOptions.supported };
})();
