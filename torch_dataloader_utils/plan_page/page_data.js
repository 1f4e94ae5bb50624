"use strict";
// Reads the page's data: the dataset's files, splits and options, as planner.js takes them.
const PageData = (() => {
  // Pairs [value, length] stand for runs; a column holds no other arrays.
  function unpacked(column) {
    const values = [];
    for (const entry of column) {
      if (!Array.isArray(entry)) values.push(entry);
      else for (let i = 0; i < entry[1]; i++) values.push(entry[0]);
    }
    return values;
  }

  function sums(steps) {
    let sum = 0;
    return steps.map((step) => (sum += step));
  }

  function starts(file, gaps, rows) {
    let next = 0;
    return gaps.map((gap, i) => {
      if (gap === null) return null;
      if (!i || file[i] !== file[i - 1]) next = 0;
      const start = next + gap;
      next = start + rows[i];
      return start;
    });
  }

  // For each split, its segments as [rows, bytes], or null.
  function segments(packed) {
    const rows = unpacked(packed.segment_rows), nbytes = unpacked(packed.segment_bytes);
    let at = 0;
    return unpacked(packed.segments).map((count) => {
      const first = at;
      at += count;
      return count ? Array.from({ length: count }, (_, i) => [rows[first + i], nbytes[first + i]]) : null;
    });
  }

  function splits(packed) {
    const file = sums(unpacked(packed.file));
    const rows = unpacked(packed.rows);
    const start = starts(file, unpacked(packed.gap), rows);
    return { file, start, rows, nbytes: unpacked(packed.nbytes), segments: segments(packed) };
  }

  // What all names end with, from a slash on: "/flights.parquet" in "month=1/flights.parquet".
  function commonEnd(names) {
    const end = names.length > 1 ? names[0].slice(names[0].lastIndexOf("/")) : "";
    return end.length > 1 && end[0] === "/" && names.every((name) => name.endsWith(end)) ? end : "";
  }

  function read(text) {
    const packed = JSON.parse(text);
    const { folder, names } = packed.files;
    const rows = unpacked(packed.files.rows);
    const unshuffled = splits(packed.splits.unshuffled);
    const end = commonEnd(names);
    return {
      ...packed,
      folder,
      names,
      short: names.map((name) => name.slice(0, name.length - end.length)),
      files: names.map((name, i) => [folder + name, rows[i]]),
      file_bytes: unpacked(packed.file_bytes),
      file_parts: unpacked(packed.file_parts),
      splits: { unshuffled, shuffled: packed.splits.shuffled ? splits(packed.splits.shuffled) : unshuffled },
    };
  }

  return { read };
})();
