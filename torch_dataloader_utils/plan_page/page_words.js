"use strict";
// Numbers and sentences in English.
const Words = (() => {
  const format = new Intl.NumberFormat("en-US");
  const number = (value) => format.format(value);
  const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

  function bytes(size) {
    const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let place = 0;
    for (; size >= 1024 && place < units.length - 1; place++) size /= 1024;
    return place ? `${size.toFixed(size < 10 ? 1 : 0)} ${units[place]}` : `${size} bytes`;
  }

  function share(part, whole) {
    const percent = whole ? (100 * part) / whole : 0;
    return percent >= 10 || Number.isInteger(percent) ? `${percent.toFixed(0)} %` : `${percent.toPrecision(2)} %`;
  }

  // "0 to 3, 7": a few runs of numbers.
  function ranges(numbers, most = 6) {
    const runs = [];
    for (const one of numbers) {
      const last = runs[runs.length - 1];
      if (last && one === last[1] + 1) last[1] = one;
      else runs.push([one, one]);
    }
    const shown = runs.slice(0, most).map(([from, to]) => (from === to ? `${from}` : `${from}${to === from + 1 ? ", " : " to "}${to}`));
    return shown.join(", ") + (runs.length > most ? ", …" : "");
  }

  const batchRows = (values) => (values.unit === "split_batch" ? values.batch_size / values.num_ranks : values.batch_size);

  // The rows that all ranks deliver, without repeats; null if known only after reading.
  function delivered(plan, values) {
    const rows = plan.ranks.map((rank) => (rank.rows === null ? null : Math.min(rank.rows, rank.steps * batchRows(values))));
    return rows.includes(null) ? null : rows.reduce((sum, count) => sum + count, 0);
  }

  function stepsOf(plan) {
    const steps = plan.ranks.map((rank) => rank.steps);
    if (steps.some((count) => count === null || count === undefined)) return null;
    return { steps, least: Math.min(...steps), most: Math.max(...steps) };
  }

  const capitalised = (sentence) => sentence[0].toUpperCase() + sentence.slice(1);

  // What a lane of a rank holds: a worker's rows; in a mix those of a dataset, or repeats, which come last.
  function laneName(data, plan, number) {
    if (!plan.mix) return `worker ${number}`;
    return number > Math.max(...data.file_parts) ? "repeats" : `dataset ${number}`;
  }

  // In Python's words: which remedy there is depends on options that the page does not change.
  function unknown(values, { one_rank, ranks }) {
    if (values.even === "sync") {
      const text = "even=\"sync\" stops all ranks together, after the smallest rank's last batch.";
      return { kind: "warn", title: "Steps are known only after reading", text };
    }
    if (values.num_ranks === 1) return { kind: "", title: "One rank reads everything; its steps are known only after reading", text: one_rank };
    return { kind: "bad", title: "Steps are known only after reading", text: capitalised(ranks) };
  }

  function uneven(values, { steps, least, most }) {
    const ahead = steps.flatMap((count, rank) => (count > least ? [rank] : []));
    const title = `Uneven: ${number(least)} to ${plural(most, "step")}`;
    const who = `Rank${ahead.length > 1 ? "s" : ""} ${ranges(ahead)} still ha${ahead.length > 1 ? "ve" : "s"} batches after step ${number(least)}`;
    if (values.even === "sync") {
      return { kind: "warn", title, text: `${who}; even="sync" stops all ranks there, and reports the surplus as not delivered.` };
    }
    const remedy = "even=\"drop\" leaves out less than one global batch; even=\"pad\" repeats rows under a mask.";
    return { kind: "bad", title: `${title}. DDP would hang`, text: `${who}, and wait${ahead.length > 1 ? "" : "s"} for ranks that have none. ${remedy}` };
  }

  function idle(plan) {
    const ranks = plan.ranks.flatMap((rank, place) => (rank.rows === 0 ? [place] : []));
    return ranks.length ? `Rank${ranks.length > 1 ? "s" : ""} ${ranges(ranks)} ha${ranks.length > 1 ? "ve" : "s"} no rows. ` : "";
  }

  function equal(values, plan, { least }, total) {
    const ranks = values.num_ranks === 1 ? "One rank takes" : `All ${number(values.num_ranks)} ranks take`;
    return { kind: "", title: `${ranks} ${plural(least, "step")}`, text: idle(plan) + accounted(values, plan, total) };
  }

  // Where every row went: read, left out, repeated.
  function accounted(values, plan, total) {
    const rows = delivered(plan, values);
    const padded = plan.ranks.reduce((sum, rank) => sum + (rank.padded ?? 0), 0);
    if (rows === null) return "Which rows these are is known only after reading.";
    const all = plan.mix ? plan.total : total; // an epoch of a mix may repeat rows, or have a part of them
    const left = all === null ? 0 : all - rows;
    if (plan.mix) return `${capitalised(plan.mix)}.${left > 0 ? ` ${leftOut(values, left, all)}` : ""}${repeats(padded, rows)}`;
    const once = left > 0 ? leftOut(values, left, total) : "Every row is delivered exactly once.";
    return once + repeats(padded, rows);
  }

  function repeats(padded, rows) {
    return padded ? ` ${plural(padded, "row")} (${share(padded, rows)}) are repeats, marked False in the mask.` : "";
  }

  function leftOut(values, left, total) {
    const amount = `${plural(left, "row")} of ${number(total)} (${share(left, total)})`;
    if (values.total_shards !== null && values.total_shards > values.num_ranks) return `${amount} belong to the shards of other epochs.`;
    const others = PlannerOptions.permutes(values) && values.even === "drop" ? "; the next epoch leaves out others" : "";
    return `${amount} are left out in this epoch${others}.`;
  }

  // The verdict on a plan: its kind ("", "warn", "bad"), a title, and a sentence.
  function verdict(values, plan, total, data) {
    const counts = stepsOf(plan);
    if (!plan.ranks.some((rank) => rank.workers.some((worker) => worker.pieces.length))) {
      return { kind: "warn", title: "There is nothing to read", text: "Check the filter, the table, or the batch size." };
    }
    if (counts === null) return unknown(values, data.unknown);
    if (counts.most > counts.least) {
      const found = uneven(values, counts);
      return plan.mix ? { ...found, text: `${found.text} ${capitalised(plan.mix)}.` } : found;
    }
    return equal(values, plan, counts, total);
  }

  return { number, plural, capitalised, bytes, share, ranges, batchRows, stepsOf, laneName, verdict };
})();
