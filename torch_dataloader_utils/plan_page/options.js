// The options of a plan, and the errors that Python raises for the same ones. Mirrors options/sharding.py, clashes.py
// and shuffle.py, plan_options of planner.py, and planning/options.py and requirements.py.
"use strict";

const PlannerOptions = (() => {
  const DEFAULTS = {
    num_ranks: 1, num_workers: null, epoch: 0, batch_size: 1024, sharding: "interleave", even: "none", shuffle: false,
    last_batch: "partial", stick_to_shard: false, full_rotation: false, total_shards: null, unit: "row",
    steps_per_epoch: null, window_bytes: 128 * 2 ** 20, window_rows: null,
    open_splits: null, assignment: "lpt", canonical_ranks: null,
  };
  const CHOICES = {
    sharding: ["auto", ...Object.keys(PlannerSharing.POLICIES)],
    even: ["none", "drop", "pad", "sync"],
    shuffle: [false, true, "splits", "all", "nearby"],
    last_batch: ["partial", "drop", "pad", "wrap"],
    assignment: ["lpt", "turn"],
  };
  const AT_LEAST_ONE = [
    "num_ranks", "batch_size", "total_shards", "steps_per_epoch", "window_bytes", "window_rows",
    "open_splits",
  ];

  const MOST_PIECES = 2 ** 20; // more would take seconds to plan, and more memory than a tab has

  // A value as Python writes it.
  function shown(value) {
    if (typeof value === "string") return `'${value}'`;
    return { true: "True", false: "False", null: "None" }[value] ?? String(value);
  }

  // ShuffleOptions.permutes: whether more than neighbouring rows have another order in each epoch.
  const permutes = ({ shuffle }) => shuffle !== false && shuffle !== "nearby";

  // All options of a plan with their defaults, and what follows from them (planner.plan_options).
  function settled(data, options) {
    const all = { ...DEFAULTS, ...data.options, ...options };
    const mixes = all.shuffle !== false && all.shuffle !== "splits";
    const byLength = data.by_length ?? null; // the least rows and bytes of a window; a batch counts as one row
    return {
      ...all,
      batch_size: byLength === null ? all.batch_size : 1,
      byLength,
      seed: data.seed,
      numShards: Math.max(all.num_workers ?? 1, 1),
      shuffle: permutes(all),
      bufferRows: mixes ? all.window_rows : null,
      windowBytes: mixes && all.window_rows === null ? all.window_bytes : null,
      openSplits: all.shuffle === "all" ? "all" : all.open_splits,
    };
  }

  // Why these options cannot be planned here, or the data cannot; null if they can.
  function supported(options, data = null) {
    const all = { ...DEFAULTS, ...data?.options, ...options };
    const unknown = Object.keys(CHOICES).find((name) => !CHOICES[name].includes(all[name]));
    if (unknown) return `${unknown}=${shown(all[unknown])} is a rule that only Python has`;
    if (all.canonical_ranks !== null) return "canonical_ranks shards for virtual ranks";
    if (data === null) return null;
    if (data.fixed) return data.fixed.reason;
    if (!Number.isSafeInteger(data.seed)) return "the seed is too large for JavaScript's numbers";
    const splits = Math.max(data.splits.shuffled.rows.length, data.splits.unshuffled.rows.length);
    if (splits > PlannerHash.MOST) return `there are more than ${PlannerHash.MOST} splits`;
    return tooManyPieces(data, all);
  }

  // Ranks that take rows in turn have a part of almost every split; and rows repeat until a batch is full.
  function tooManyPieces({ splits }, options) {
    const { num_ranks, sharding, even, last_batch } = options;
    const { rows } = permutes(options) ? splits.shuffled : splits.unshuffled;
    const batchRows = Math.max(1, PlannerSharing.batchRowsOf(options));
    const block = options.unit === "row" ? 1 : batchRows;
    const total = rows.reduce((sum, count) => sum + count, 0);
    const parts = (count) => (sharding === "strided" ? Math.min(num_ranks, Math.ceil(count / block) + 1) : 1);
    const repeats = [even, last_batch].some((word) => word === "pad" || word === "wrap");
    const laps = repeats && total ? Math.ceil((num_ranks * batchRows) / total) : 1;
    if (sharding !== "strided" && laps === 1) return null;
    const pieces = Math.max(num_ranks, rows.reduce((sum, count) => sum + parts(count), 0)) * laps;
    if (!(pieces > MOST_PIECES)) return null;
    const remedy = laps > 1 ? "fewer ranks, or a smaller batch_size" : "fewer ranks, or larger splits";
    return `${num_ranks} ranks read more than ${MOST_PIECES} parts of ${rows.length} splits, too many for a page: use ${remedy}`;
  }

  // PlanOptions.check_ranks
  function problemOfRanks({ num_ranks, batch_size, total_shards, unit }) {
    if (total_shards !== null && total_shards % num_ranks)
      return (
        `total_shards=${total_shards} with num_ranks=${num_ranks}: total_shards must be a multiple of num_ranks, so ` +
        "that each rank gets one shard per epoch."
      );
    if (unit === "split_batch" && batch_size % num_ranks)
      return (
        `sharding=Strided('split_batch') with batch_size=${batch_size} and num_ranks=${num_ranks}: batch_size must ` +
        "be a multiple of num_ranks."
      );
    return null;
  }

  // The table in options/clashes.py
  function problemOfSteps({ steps_per_epoch: steps, even, last_batch: last }) {
    if (steps !== null && even !== "none")
      return (
        `steps_per_epoch=${steps} with even=${shown(even)}: exactly n steps on each rank are already even. Leave ` +
        "out even, or leave out steps_per_epoch."
      );
    if (last !== "partial" && steps !== null)
      return (
        `last_batch=${shown(last)} with steps_per_epoch=${steps}: its batches are all full. Leave out last_batch.`
      );
    if (last !== "partial" && even !== "none" && even !== last)
      return (
        `last_batch=${shown(last)} with even=${shown(even)}: even decides about the last batch. Leave out ` +
        "last_batch, or leave out even."
      );
    return null;
  }

  // _uncounted, of that table
  function waysUncounted(even, last, counted) {
    const needing = last === "partial" ? [] : ["last_batch"];
    if (even === "sync") return `Leave out ${needing.join(" and ")}.`;
    const without = (names) => (names.length ? ` without ${names.join(" and ")}` : "");
    const steps = without(even === "none" ? needing : [...needing, "even"]);
    const first = counted.map((way) => `${way}, `).join("");
    return (
      `Use ${first}steps_per_epoch=n${steps} (exactly n steps), or even='sync'${without(needing)} (all ranks stop with the ` +
      "first)."
    );
  }

  // The same about batch_tokens, and what is known only after reading, even with count_rows
  function problemOfUncounted({ uncounted, counted_by: ways, batch_tokens: tokens }, { even, last_batch: last, unit }) {
    if (tokens && unit === "split_batch")
      return (
        `sharding=Strided('split_batch') with batch_tokens=${tokens}: batch_tokens is the budget of a batch of one ` +
        "rank. Use sharding=Strided('batch'), or leave out sharding."
      );
    const counted = even === "drop" || even === "pad" ? `even=${shown(even)}` : last === "wrap" ? "last_batch='wrap'" : "";
    if (uncounted && counted)
      return `${counted} needs counts before reading, but ${uncounted}. ${waysUncounted(even, last, ways)}`;
    if (tokens && last !== "partial")
      return (
        `last_batch=${shown(last)} with batch_tokens=${tokens}: batches differ in their rows, so none is short. Leave ` +
        "out last_batch."
      );
    return null;
  }

  function problemOfNumbers(options) {
    const isWrong = (value) => value !== null && !(Number.isInteger(value) && value > 0);
    const wrong = AT_LEAST_ONE.find((name) => isWrong(options[name]));
    return wrong ? `${wrong}=${shown(options[wrong])}: expected a whole number of at least 1.` : null;
  }

  // SHARDS_UNKNOWN, EVEN_UNKNOWN and WRAP_UNKNOWN of options/late_clashes.py
  function problemOfUnknown({ uncounted }, { sharding, even, last_batch }) {
    if (uncounted !== null && sharding !== "interleave" && sharding !== "auto")
      return (
        `The row count of ${shown(uncounted)} is unknown, but this sharding cuts rows by number. Use ` +
        "count_rows=True (counts once), or sharding='interleave' (assigns whole splits)."
      );
    if (even === "drop" || even === "pad")
      return (
        `even=${shown(even)} needs the number of rows that will be delivered, known only after reading. Use ` +
        "count_rows=True (counts once), steps_per_epoch=n without even (exactly n steps), or even='sync' (all ranks " +
        "stop with the first)."
      );
    if (last_batch === "wrap")
      return (
        "last_batch='wrap' takes rows of the next ranks, whose number is known only after reading. Use " +
        "count_rows=True (counts once), or last_batch='pad'."
      );
    return null;
  }

  // check_even_rows
  function problemOfRows(table, options) {
    const { even, num_ranks, total_shards } = options;
    if (even !== "drop" && even !== "pad") return null;
    const total = table.rows.reduce((a, b) => a + b, 0);
    const rows = fewestRows(total, total_shards === null ? 1 : total_shards / num_ranks);
    const batch = PlannerSharing.batchRowsOf(options);
    const share = Math.floor(rows / num_ranks);
    const smaller = share ? `, or batch_size=${options.unit === "split_batch" ? share * num_ranks : share}` : "";
    if (!rows)
      return (
        `even=${shown(even)}: an epoch has no row to deliver (N=${total} rows, R=${num_ranks} ranks); check path ` +
        "and filters."
      );
    if (even === "drop" && rows < num_ranks * batch)
      return (
        `even='drop' with N=${rows} rows in an epoch, R=${num_ranks} ranks and batches of B=${batch}: one step of all ` +
        `ranks needs R*B=${num_ranks * batch} rows. Use even='pad' (repeats rows)${smaller}.`
      );
    return null;
  }

  // The rows of the smallest of the `laps` epochs that together read all shards once.
  function fewestRows(total, laps) {
    const upTo = (lap) => PlannerOrder.mulDiv(lap, total, laps);
    return Math.min(...Array.from({ length: laps }, (_, lap) => upTo(lap + 1) - upTo(lap)));
  }

  // What Python would raise, or why nothing can be planned here; null if all is well.
  function problem(data, table, options, exact) {
    const uncounted = (given) => (data.unknown ? problemOfUncounted(data.unknown, given) : null);
    const checks = [problemOfNumbers, problemOfRanks, uncounted, problemOfSteps];
    const found = checks.map((check) => check(options)).find((text) => text !== null);
    if (found) return found;
    if (data.files.length && data.files.every(([, rows]) => rows === 0))
      return `None of the ${data.files.length} files holds a row: check the path.`;
    return exact ? problemOfRows(table, options) : problemOfUnknown(table, options);
  }

  return { settled, supported, problem, permutes };
})();
