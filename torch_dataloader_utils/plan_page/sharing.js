// The rows of each rank in one epoch. Mirrors planning/sharding.py (policies), planning/even.py and planning/shares.py.
"use strict";

const PlannerSharing = (() => {
  const { mulDiv, rowsLength, cut, fresh, length, every, take, part, deal } = PlannerOrder;
  const { shuffled, joined, inFileOrder, without, pieces } = PlannerOrder;
  const { deriveKey, randomBelow } = PlannerHash;
  const sum = (values) => values.reduce((a, b) => a + b, 0);

  // --- Policies (sharding.py): from the ordered rows and a shape {rank, numRanks, epoch, options} to a rank's rows --

  const interleave = (order, { rank, numRanks }) => every(order, rank, numRanks);

  const contiguous = (order, { rank, numRanks }) => part(order, rank, numRanks);

  function rotate(order, shape) {
    const moved = shape.options.stick_to_shard ? 0 : shape.epoch;
    const number = (shape.rank + moved) % shape.numRanks;
    return innerOrder(part(order, number, shape.numRanks), shape, number);
  }

  // rotate with total_shards
  function rotateShards(order, shape) {
    const number = shardNumber(shape);
    return innerOrder(part(order, number, shape.options.total_shards), shape, number);
  }

  function strided(order, { rank, numRanks, options }) {
    return deal(order, rank, numRanks, options.unit === "row" ? 1 : batchRowsOf(options));
  }

  // shard_number
  function shardNumber({ rank, numRanks, epoch, options }) {
    const total = options.total_shards;
    const moved = options.full_rotation ? (rank + Math.floor(epoch / (total / numRanks))) % numRanks : rank;
    return (epoch * numRanks + moved) % total;
  }

  // inner_order
  function innerOrder(shard, { epoch, options }, number) {
    return options.shuffle ? shuffled(shard, deriveKey("shard", options.seed, epoch, number)) : shard;
  }

  const POLICIES = {
    interleave: { share: interleave, dealsKept: false, fixedOrder: false, complete: true },
    contiguous: { share: contiguous, dealsKept: true, fixedOrder: false, complete: true },
    rotate: { share: rotate, dealsKept: true, fixedOrder: true, complete: true },
    strided: { share: strided, dealsKept: true, fixedOrder: false, complete: true },
  };
  const ROTATE_SHARDS = { share: rotateShards, dealsKept: false, fixedOrder: true, complete: false };

  // resolve_auto and find_policy
  function findPolicy(table, options) {
    if (options.sharding === "rotate" && options.total_shards !== null) return ROTATE_SHARDS;
    if (options.sharding !== "auto") return POLICIES[options.sharding];
    const many = table.rows.length >= 2 * options.num_ranks * options.numShards;
    return POLICIES[many || table.uncounted !== null ? "interleave" : "contiguous"];
  }

  // Plan.sharding: what "auto" chose.
  const nameOf = (policy) => Object.keys(POLICIES).find((name) => POLICIES[name] === policy) ?? "rotate";

  // PlanOptions.batch_rows: rows per batch of one rank.
  function batchRowsOf({ batch_size, num_ranks, unit }) {
    return unit === "split_batch" ? Math.floor(batch_size / num_ranks) : batch_size;
  }

  // --- Equal steps (even.py) ----------------------------------------------------------------------------------------

  // transfers: the rows of list `number` after levelling, as [list, first, last] of the old lists.
  function transfers(counts, targets, number) {
    const kept = counts.map((count, i) => Math.min(count, targets[i]));
    const parts = kept[number] ? [[number, 0, kept[number]]] : [];
    let start = sum(targets.slice(0, number)) - sum(kept.slice(0, number));
    const stop = start + targets[number] - kept[number];
    let pool = 0;
    for (let donor = 0; start < stop; donor++) {
      pool += counts[donor] - kept[donor];
      const end = Math.min(stop, pool);
      const shift = counts[donor] - pool;
      if (start < end) parts.push([donor, start + shift, end + shift]);
      start = Math.max(start, end);
    }
    return parts;
  }

  // even_targets: the real rows of each rank after levelling.
  function evenTargets(even, counts, batchRows, dealsEvenly) {
    const [total, ranks] = [sum(counts), counts.length];
    if (even === "drop") return counts.map(() => Math.floor(total / ranks));
    const padded = Math.ceil(total / (ranks * batchRows)) * batchRows;
    if (even === "pad" && !(dealsEvenly && Math.max(...counts) <= padded)) {
      const upTo = (rank) => mulDiv(rank, total, ranks);
      return counts.map((_, rank) => upTo(rank + 1) - upTo(rank));
    }
    return counts;
  }

  // left_out_runs: the `count` rows that even="drop" leaves out, as one run in file order, or two.
  function leftOutRuns(order, count, seed, lap) {
    if (!count) return [];
    const total = length(order);
    const drawn = () => (randomBelow(total, deriveKey("left_out", seed)) + lap * count) % total;
    const at = seed === null ? total - count : drawn();
    const rows = inFileOrder(order);
    return [take(rows, at, at + count), take(rows, 0, at + count - total)].filter((run) => length(run));
  }

  // take (of pieces): the rows [first, last) of these pieces.
  function takePieces(found, first, last) {
    const out = [];
    let at = 0;
    for (const piece of found) {
      if (at >= last) break;
      const size = rowsLength(piece);
      const [low, high] = [Math.max(first - at, 0), Math.min(last - at, size)];
      if (low < high) out.push(high - low === size ? piece : cut(piece, low, high));
      at += size;
    }
    return out;
  }

  // --- All ranks (shares.py) ----------------------------------------------------------------------------------------

  // DatasetShare.order: all rows of the epoch, in the order that the policy divides.
  function wholeOrder(table, policy, { shuffle, seed }, epoch) {
    if (!shuffle) return fresh(table, null);
    return fresh(table, policy.fixedOrder ? deriveKey("order", seed) : deriveKey("order", seed, epoch));
  }

  const withoutAll = (order, runs) => runs.reduce(without, order);

  // assign: {table, orders, leftOut, counts, targets} of all ranks in an epoch.
  function assign(table, options, epoch) {
    const policy = findPolicy(table, options);
    const numRanks = options.num_ranks;
    const batchRows = batchRowsOf(options);
    const whole = wholeOrder(table, policy, options, epoch);
    const shared = (order) =>
      Array.from({ length: numRanks }, (_, rank) => policy.share(order, { rank, numRanks, epoch, options }));
    let leftOut = [];
    if (options.even === "drop") {
      const laps = options.total_shards === null ? 1 : options.total_shards / numRanks;
      const rows = policy.complete ? whole : joined(shared(whole));
      const seed = options.shuffle ? options.seed : null;
      leftOut = leftOutRuns(rows, length(rows) % (numRanks * batchRows), seed, Math.floor(epoch / laps));
    }
    const orders = policy.dealsKept
      ? shared(withoutAll(whole, leftOut))
      : shared(whole).map((order) => withoutAll(order, leftOut));
    const counts = orders.map(length);
    const targets = evenTargets(options.even, counts, batchRows, policy.fixedOrder || orders.some((order) => order.picked));
    return { table, sharding: nameOf(policy), orders, leftOut, counts, targets, options, batchRows };
  }

  // Shares.pieces: the pieces of a rank after levelling, from a number of rows on.
  function piecesOf({ table, orders, counts, targets }, rank) {
    if (table.uncounted !== null) return pieces(orders[rank]);
    return transfers(counts, targets, rank).flatMap(([donor, first, last]) => pieces(take(orders[donor], first, last)));
  }

  // Shares.following: the pieces of the ranks after `rank`, and finally its own, one after another as they are needed.
  function* following(shares, rank) {
    const ranks = shares.orders.length;
    for (let step = 1; step <= ranks; step++) yield* piecesOf(shares, (rank + step) % ranks);
  }

  // last_batch.padding: `count` rows of padding: the first of these pieces, repeated as often as needed.
  function padding(found, count) {
    const first = takePieces(found, 0, count).map((piece) => ({ ...piece, pad: true }));
    const size = sum(first.map(rowsLength));
    const laps = [];
    for (let missing = count; missing > 0; missing -= size) laps.push(takePieces(first, 0, missing));
    return laps.flat();
  }

  // last_batch.end_with
  function endWith(found, batchRows, lastBatch, next) {
    const total = sum(found.map(rowsLength));
    const short = total % batchRows;
    if (!short || lastBatch === "partial") return found;
    if (lastBatch === "drop") return takePieces(found, 0, total - short);
    return [...found, ...padding(lastBatch === "pad" ? found : next, batchRows - short)];
  }

  // Shares._padded_steps
  const paddedSteps = ({ targets, batchRows }) => Math.ceil(sum(targets) / (targets.length * batchRows));

  // Shares.delivered: a rank's pieces, in order: real ones, then padding.
  function delivered(shares, rank) {
    const { options, batchRows, targets, orders } = shares;
    const found = piecesOf(shares, rank);
    if (options.even === "none") return endWith(found, batchRows, options.last_batch, following(shares, rank));
    if (options.even !== "pad") return found;
    const missing = paddedSteps(shares) * batchRows - targets[rank];
    // A rank without rows of its own repeats the epoch's first rows.
    return [...found, ...padding(found.length ? found : following(shares, orders.length - 1), missing)];
  }

  const dropsLast = ({ options }) => options.even === "none" && options.last_batch === "drop";

  // Shares.rows: the number of real rows of each rank.
  function rows(shares) {
    return shares.targets.map((count) => (dropsLast(shares) ? count - (count % shares.batchRows) : count));
  }

  // Shares.steps: the number of batches of each rank.
  function steps(shares) {
    if (shares.options.even === "pad") return shares.targets.map(() => paddedSteps(shares));
    return rows(shares).map((count) => Math.ceil(count / shares.batchRows));
  }

  // Shares.not_delivered: the rows that no rank delivers because `even` or `last_batch` is "drop".
  function notDelivered(shares) {
    const tail = ([kept, rank]) => takePieces(piecesOf(shares, rank), kept, shares.targets[rank]);
    const tails = dropsLast(shares) ? rows(shares).map((kept, rank) => tail([kept, rank])) : [];
    return [...shares.leftOut.map(pieces), ...tails].flat();
  }

  return { POLICIES, assign, batchRowsOf, transfers, takePieces, delivered, rows, steps, notDelivered };
})();
