"use strict";
// Where the files and the lanes of the workers lie in the picture of the plan. Pure: numbers in, numbers out.
const MapLayout = (() => {
  const LANES_MOST = 512; // beyond it, a rank is one lane, and then only the first ranks are drawn
  const FILE_GAP = 2, LINE_GAP = 5;

  // The number of rows of a piece. Those of [file, start, stop, step, block, phase] have (row - phase) % step < block.
  function size(data, [file, start, stop, step, block, phase]) {
    if (start === null) return guessed(data, file);
    if (step === undefined) return stop - start;
    const before = (row) => Math.floor((row - phase) / step) * block + Math.min((((row - phase) % step) + step) % step, block);
    return before(stop) - before(start);
  }

  // Without row counts, splits count by their share of the file's bytes.
  function guessed(data, file) {
    return Math.max(1, data.file_bytes[file] / (data.splits_of_file?.[file] ?? 1));
  }

  function laneOf(data, rank, workers, pieces, repeated) {
    const ends = new Float64Array(pieces.length);
    let sum = 0;
    for (let i = 0; i < pieces.length; i++) ends[i] = sum += size(data, pieces[i]);
    const padding = repeated.reduce((rows, piece) => rows + size(data, piece), 0);
    return { rank, worker: workers.length === 1 ? workers[0] : null, pieces, ends, total: sum, padding };
  }

  function lanesOf(data, plan) {
    const count = plan.ranks.reduce((sum, rank) => sum + rank.workers.length, 0);
    const lanes = plan.ranks.slice(0, LANES_MOST).flatMap((rank, r) => {
      if (count <= LANES_MOST) return rank.workers.map((worker, w) => laneOf(data, r, [w], worker.pieces, worker.padding ?? []));
      const all = (name) => rank.workers.flatMap((worker) => worker[name] ?? []);
      return [laneOf(data, r, rank.workers.map((_, w) => w), all("pieces"), all("padding"))];
    });
    return { lanes, hidden: plan.ranks.length - Math.min(plan.ranks.length, LANES_MOST) };
  }

  const laneHeight = (count) => (count <= 8 ? 30 : count <= 16 ? 22 : count <= 32 ? 15 : count <= 80 ? 9 : 6);

  // Lanes one below another; ranks are a little apart if there is room.
  function placeLanes(lanes, top) {
    const height = laneHeight(lanes.length), gap = height >= 9 ? 2 : 1;
    let y = top;
    lanes.forEach((lane, i) => {
      if (i && lane.rank !== lanes[i - 1].rank && lanes[i - 1].worker !== null && height >= 9) y += 5;
      lane.y = y;
      lane.height = height;
      y += height + gap;
    });
    return y;
  }

  const linesFor = (files, width) => Math.max(1, Math.min(6, Math.ceil((files * 26) / width)));

  // The files side by side, in lines of about equal rows; a file is never split between lines.
  function placeFiles(data, width, top) {
    const sizes = data.files.map(([, rows], i) => Math.max(rows ?? data.file_bytes[i], 1));
    const total = sizes.reduce((sum, value) => sum + value, 0);
    const lines = linesFor(sizes.length, width);
    const height = lines === 1 ? 30 : lines < 4 ? 20 : 14;
    const perLine = total / lines;
    const line = [], begin = [];
    let sum = 0, inLine = 0, at = 0;
    const longest = [0];
    sizes.forEach((value, i) => {
      if (inLine && at < lines - 1 && sum + value / 2 > perLine * (at + 1)) { at++; inLine = 0; longest[at] = 0; }
      line[i] = at;
      begin[i] = inLine;
      inLine += value;
      sum += value;
      longest[at] = inLine;
    });
    const gap = data.files.length <= 60 ? FILE_GAP : 0;
    const counts = longest.map((_, l) => line.filter((number) => number === l).length);
    const scale = Math.min(...longest.map((rows, l) => (width - gap * counts[l]) / rows));
    const first = counts.map((_, l) => counts.slice(0, l).reduce((a, b) => a + b, 0));
    const boxes = sizes.map((value, i) => ({
      x: begin[i] * scale + gap * (i - first[line[i]]),
      y: top + line[i] * (height + LINE_GAP),
      width: value * scale,
      height,
      rows: value,
    }));
    return { boxes, bottom: top + longest.length * (height + LINE_GAP), lines };
  }

  // Place of a row of a file, as x.
  function xOfRow(data, box, file, row) {
    return box.x + (box.width * row) / box.rows;
  }

  // How many batches each worker has delivered after `steps` of its rank: they take turns, one batch each.
  function delivered(batches, steps) {
    const given = batches.map(() => 0);
    let left = steps, level = 0;
    for (;;) {
      const going = batches.flatMap((count, worker) => (count > level ? [worker] : []));
      if (!going.length || left <= 0) return given;
      const rounds = Math.min(Math.min(...going.map((worker) => batches[worker])) - level, Math.floor(left / going.length));
      if (!rounds) {
        going.slice(0, left).forEach((worker) => given[worker]++);
        return given;
      }
      going.forEach((worker) => (given[worker] += rounds));
      level += rounds;
      left -= rounds * going.length;
    }
  }

  // The rank's step in which a worker delivers its batch with this index.
  function stepOf(batches, worker, index) {
    return batches.reduce((sum, count, other) => sum + Math.min(count, index + (other < worker ? 1 : 0)), 0);
  }

  function lowerBound(values, wanted) {
    let low = 0, high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] > wanted) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  // The width of the lanes' labels.
  function leftOf(lanes, narrow) {
    const several = lanes.some((lane, i) => i && lane.rank === lanes[i - 1].rank);
    if (narrow) return several ? 38 : 26;
    return several && lanes[0].height >= 15 ? 118 : 58;
  }

  function layout(data, plan, values, width) {
    const narrow = width < 560;
    const filesTop = 22;
    const files = placeFiles(data, width, filesTop);
    const { lanes, hidden } = lanesOf(data, plan);
    const lanesTop = files.bottom + 40;
    const bottom = placeLanes(lanes, lanesTop);
    const left = leftOf(lanes, narrow);
    const longest = Math.max(1, ...lanes.map((lane) => lane.total + lane.padding));
    return {
      data, plan, files: files.boxes, filesTop, lanes, hidden, lanesTop, left, width, narrow, batchRows: Words.batchRows(values),
      scale: (width - left - 2) / longest, height: bottom + (hidden ? 22 : 2),
    };
  }

  return { layout, size, delivered, stepOf, lowerBound, xOfRow };
})();
