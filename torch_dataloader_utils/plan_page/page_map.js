"use strict";
// Draws the picture of the plan: the files with the ranges taken from them, and below, what each worker reads.
const PlanMap = (() => {
  const DEEPEST = 16000; // pixels of a canvas's height that browsers support
  const NAMES = ["page", "panel", "text", "faint", "line", "empty", "accent", "bad", "warn"];

  function context(canvas, width, height) {
    const ratio = Math.min(window.devicePixelRatio || 1, 2, DEEPEST / height);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.textBaseline = "middle";
    return pen;
  }

  const font = (pen, size, weight = 400) => (pen.font = `${weight} ${size}px system-ui, sans-serif`);

  function colourOf(view) {
    const byRank = view.values.colour === "rank";
    const of = Colours.palette(byRank ? view.values.num_ranks : view.layout.data.files.length);
    return (lane, file) => of(byRank ? lane.rank : file);
  }

  function fitted(pen, text, width) {
    if (pen.measureText(text).width <= width) return text;
    let keep = text.length;
    while (keep > 1 && pen.measureText(text.slice(-keep) + "…").width > width) keep--;
    return keep > 3 ? "…" + text.slice(-keep) : "";
  }

  function drawFileNames(pen, view) {
    const { layout, ink } = view;
    font(pen, 12);
    pen.fillStyle = ink.faint;
    const roomy = layout.files.filter((box) => box.width >= 58).length > layout.files.length / 2;
    const unit = layout.data.files.length === 1 ? "file" : "files";
    if (layout.files.some((box) => box.y !== layout.files[0].y) || !roomy) {
      const rest = layout.narrow ? "" : ", with the rows that are read";
      pen.fillText(`${Words.number(layout.files.length)} ${unit}, in order${rest}`, 0, layout.filesTop - 11);
      return;
    }
    layout.files.forEach((box, i) => pen.fillText(fitted(pen, layout.data.short[i], box.width - 4), box.x, box.y - 11));
  }

  function drawFiles(pen, view) {
    const { layout, ink } = view;
    pen.fillStyle = ink.empty;
    for (const box of layout.files) pen.fillRect(box.x, box.y, Math.max(box.width, 0.5), box.height);
    const colour = colourOf(view);
    const taken = new Map(); // pixel columns drawn already: one per line
    for (const lane of layout.lanes) for (const piece of lane.pieces) drawTaken(pen, layout, colour, lane, piece, taken);
    drawFileNames(pen, view);
  }

  function drawTaken(pen, layout, colour, lane, [file, start, stop], taken) {
    const box = layout.files[file];
    const from = start === null ? box.x : MapLayout.xOfRow(layout.data, box, file, start);
    const to = start === null ? box.x + box.width : MapLayout.xOfRow(layout.data, box, file, stop);
    if (to - from < 1) {
      const column = Math.floor(from) + box.y * 1e5;
      if (taken.has(column)) return;
      taken.set(column, true);
    }
    pen.fillStyle = colour(lane, file);
    pen.fillRect(from, box.y, Math.max(to - from - seam(to - from, box.height), 1), box.height);
  }

  // The line between neighbours, where it does not take most of their room.
  const seam = (width, height) => (width > 6 && width * height > 110 ? 1 : 0);

  function drawLane(pen, view, lane, colour, tail) {
    const { layout } = view;
    let from = layout.left, before = -1;
    for (let i = 0; i < lane.pieces.length; i++) {
      const to = layout.left + lane.ends[i] * layout.scale;
      const pixel = Math.floor(from * 2);
      if (to - from >= 0.5 || pixel !== before) {
        before = pixel;
        pen.fillStyle = colour(lane, lane.pieces[i][0]);
        pen.fillRect(from, lane.y, Math.max(to - from - seam(to - from, lane.height), 0.5), lane.height);
        if (lane.height >= 15 && Math.min(to, tail) - from > 24) drawNumber(pen, view, lane, lane.pieces[i][0], (from + Math.min(to, tail)) / 2);
      }
      from = to;
    }
  }

  function drawNumber(pen, view, lane, file, x) {
    font(pen, 11, 600);
    pen.textAlign = "center";
    pen.fillStyle = view.ink.page;
    pen.fillText(`${file + 1}`, x, lane.y + lane.height / 2 + 0.5);
    pen.textAlign = "left";
  }

  // Where a lane's rows begin that it delivers after the first rank has ended: that rank waits there, or all stop.
  function tailOf(view, lane) {
    const { layout, counts } = view;
    if (!counts || lane.worker === null || layout.plan.mix) return Infinity; // datasets take no turns
    const batches = view.batches[lane.rank];
    const given = MapLayout.delivered(batches, counts.least)[lane.worker];
    return given < batches[lane.worker] ? layout.left + Math.min(given * layout.batchRows, lane.total) * layout.scale : Infinity;
  }

  // A striped box: rows that repeat others, or that the other ranks do not wait for.
  function drawStripes(pen, lane, from, width, fill, stripe) {
    pen.save();
    pen.beginPath();
    pen.rect(from, lane.y, width, lane.height);
    pen.clip();
    pen.fillStyle = fill;
    pen.fillRect(from, lane.y, width, lane.height);
    pen.strokeStyle = stripe;
    pen.globalAlpha = 0.5;
    pen.lineWidth = 1.5;
    pen.beginPath();
    for (let x = from - lane.height; x < from + width; x += 7) {
      pen.moveTo(x, lane.y + lane.height);
      pen.lineTo(x + lane.height, lane.y);
    }
    pen.stroke();
    pen.restore();
  }

  function drawEnd(pen, view, lane, tail) {
    const { layout, ink } = view, end = layout.left + lane.total * layout.scale;
    if (lane.padding) drawStripes(pen, lane, end, Math.max(lane.padding * layout.scale, 2), ink.empty, ink.text);
    if (tail === Infinity) return;
    const stopped = view.values.even === "sync" || view.counts.least === view.counts.most; // not delivered, but no rank waits
    drawStripes(pen, lane, tail, Math.max(end - tail, 3), stopped ? ink.warn : ink.bad, ink.panel);
  }

  function drawLabels(pen, view) {
    const { layout, ink } = view;
    font(pen, layout.lanes[0] && layout.lanes[0].height >= 15 ? 12 : 11);
    let last = -1, free = 0;
    for (const lane of layout.lanes) {
      const first = lane.rank !== last;
      last = lane.rank;
      const middle = lane.y + lane.height / 2;
      if (middle < free) continue;
      if (!first && lane.height < 15) continue;
      free = middle + 12;
      pen.fillStyle = first ? ink.text : ink.faint;
      pen.fillText(labelOf(layout, lane, first), 0, middle + 0.5);
    }
  }

  function labelOf(layout, lane, first) {
    const alone = lane.worker === null || layout.plan.ranks[lane.rank].workers.length === 1;
    if (layout.narrow) return alone ? `${lane.rank}` : `${lane.rank} · ${lane.worker}`;
    if (alone || lane.height < 15) return `rank ${lane.rank}`;
    const name = Words.laneName(layout.data, layout.plan, lane.worker);
    return first ? `rank ${lane.rank}, ${name}` : `            ${name}`;
  }

  function drawHeading(pen, view) {
    const { layout, ink } = view;
    font(pen, 12);
    pen.fillStyle = ink.faint;
    const what = layout.lanes.some((lane) => lane.worker !== null) && !layout.plan.mix ? "each worker" : "each rank";
    const numbers = layout.narrow || layout.lanes[0]?.height < 15 ? "" : "; the number is that of the file";
    const rest = numbers + (layout.lanes.some((lane) => lane.padding) ? "; repeats are striped" : "");
    const title = layout.narrow ? "In reading order" : `What ${what} reads, in its order`;
    pen.fillText(title + rest, 0, layout.lanesTop - 13);
    if (layout.hidden) pen.fillText(`and ${Words.plural(layout.hidden, "more rank")}`, 0, layout.height - 10);
  }

  // The number of batches of each worker, for each rank.
  function batchesOf(layout) {
    const batches = layout.plan.ranks.map(() => []);
    for (const lane of layout.lanes) {
      if (lane.worker !== null) batches[lane.rank][lane.worker] = Math.ceil(lane.total / layout.batchRows);
    }
    return batches;
  }

  function draw(canvas, data, plan, values) {
    const width = canvas.parentElement.clientWidth;
    const layout = MapLayout.layout(data, plan, values, width);
    const ink = Colours.named(...NAMES);
    const canonical = values.canonical_ranks !== null; // workers then share each batch, and take no turns
    const view = { layout, values, ink, counts: canonical ? null : Words.stepsOf(plan), batches: batchesOf(layout) };
    const pen = context(canvas, width, layout.height);
    drawFiles(pen, view);
    drawHeading(pen, view);
    const colour = colourOf(view);
    for (const lane of layout.lanes) {
      const tail = tailOf(view, lane);
      drawLane(pen, view, lane, colour, tail);
      drawEnd(pen, view, lane, tail);
    }
    drawLabels(pen, view);
    return view;
  }

  return { draw, context };
})();
