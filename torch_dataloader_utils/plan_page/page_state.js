"use strict";
// The options that the page shows, and their place in the URL's fragment.
const State = (() => {
  const ROTATE = { stick_to_shard: false, full_rotation: false, total_shards: null };
  const STRIDED = { unit: "row" };
  const WINDOWS = { window_bytes: 128 * 2 ** 20, window_rows: null, open_splits: null };
  const WORDS = {
    sharding: ["interleave", "contiguous", "rotate", "strided", "auto"],
    unit: ["row", "batch", "split_batch"],
    even: ["none", "drop", "pad", "sync"],
    last_batch: ["partial", "drop", "pad", "wrap"],
    shuffle: [false, "nearby", "splits", true, "all"],
    colour: ["file", "rank"],
  };
  const LEAST = {
    num_ranks: 1, num_workers: 0, epoch: 0, batch_size: 1, total_shards: 1, steps_per_epoch: 1,
    window_bytes: 1, window_rows: 1, open_splits: 1,
  };
  const MOST = { num_ranks: 4096, num_workers: 256, epoch: 1e6, batch_size: 1e7, total_shards: 1e5 };
  const FLAGS = ["stick_to_shard", "full_rotation"];
  const OPTIONAL = ["num_workers", "total_shards", "steps_per_epoch", "window_rows", "open_splits"];

  // Options that exclude each other: the one that depends on the other yields, as the errors of Python advise.
  function settled(values) {
    const fixed = { ...values };
    if (fixed.sharding !== "rotate") Object.assign(fixed, ROTATE);
    if (fixed.sharding !== "strided") Object.assign(fixed, STRIDED);
    if (fixed.total_shards === null) fixed.full_rotation = false;
    else fixed.stick_to_shard = false;
    if (fixed.even !== "none" && fixed.last_batch !== fixed.even) fixed.last_batch = "partial";
    if (fixed.steps_per_epoch !== null) Object.assign(fixed, { even: "none", last_batch: "partial" });
    if (fixed.shuffle === false || fixed.shuffle === "splits") Object.assign(fixed, WINDOWS);
    if (fixed.shuffle === "all") fixed.open_splits = null;
    if (fixed.window_rows !== null) fixed.window_bytes = WINDOWS.window_bytes;
    return fixed;
  }

  // The choices after one more; an option that would be ignored beside the new one is switched off.
  function chosen(choices, key, value) {
    return { ...choices, [key]: value };
  }

  function bounded(key, number) {
    return Math.min(Math.max(Math.round(number), LEAST[key]), MOST[key] ?? Number.MAX_SAFE_INTEGER);
  }

  // The value that a text stands for; undefined if it stands for none.
  function parsed(key, text) {
    if (Object.hasOwn(WORDS, key)) return WORDS[key].find((word) => String(word) === text);
    if (FLAGS.includes(key)) return { true: true, false: false }[text];
    if (!Object.hasOwn(LEAST, key)) return undefined;
    if (text === "none" && OPTIONAL.includes(key)) return null;
    const number = Number(text);
    return text.trim() === "" || !Number.isFinite(number) ? undefined : bounded(key, number);
  }

  function fromFragment(fragment, initial) {
    const values = { ...initial };
    for (const [key, text] of new URLSearchParams(fragment.replace(/^#/, ""))) {
      const value = Object.hasOwn(initial, key) ? parsed(key, text) : undefined;
      if (value !== undefined) values[key] = value;
    }
    return values;
  }

  function toFragment(values, initial) {
    const changed = Object.entries(values).filter(([key, value]) => value !== initial[key]);
    const text = new URLSearchParams(changed.map(([key, value]) => [key, value === null ? "none" : String(value)]));
    return text.toString();
  }

  return { WORDS, LEAST, MOST, OPTIONAL, settled, chosen, bounded, fromFragment, toFragment };
})();
