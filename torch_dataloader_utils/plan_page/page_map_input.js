"use strict";
// Pointing at the picture of the plan, and walking through it by keyboard.
const MapInput = (() => {
  let view = null; // what is drawn
  let at = null; // the piece in focus: {lane, index}
  let ofFile = null; // for each file, its pieces as [start, stop, lane, index], made when first needed

  const over = () => document.getElementById("map-over");
  const map = () => document.getElementById("map");

  function shown(newView) {
    view = newView;
    ofFile = null;
    at = null;
    Tip.hide();
    clear();
  }

  function clear() {
    return PlanMap.context(over(), view.layout.width, view.layout.height);
  }

  function piecesOf(file) {
    if (!ofFile) {
      ofFile = view.layout.data.files.map(() => []);
      view.layout.lanes.forEach((lane, l) => lane.pieces.forEach((piece, i) => ofFile[piece[0]].push([piece[1], piece[2], l, i])));
    }
    return ofFile[file];
  }

  function hitLane(x, y) {
    const l = view.layout.lanes.findIndex((lane) => y >= lane.y && y < lane.y + lane.height + 1);
    if (l < 0) return null;
    const lane = view.layout.lanes[l], rows = (x - view.layout.left) / view.layout.scale;
    const index = MapLayout.lowerBound(lane.ends, rows);
    return rows >= 0 && index < lane.pieces.length ? { lane: l, index } : null;
  }

  function hitFile(x, y) {
    const { files } = view.layout;
    const file = files.findIndex((box) => y >= box.y && y < box.y + box.height && x >= box.x && x < box.x + box.width + 1);
    if (file < 0) return null;
    const row = ((x - files[file].x) / files[file].width) * files[file].rows;
    const piece = piecesOf(file).find(([start, stop]) => start !== null && start <= row && row < stop);
    return piece ? { lane: piece[2], index: piece[3], file } : { file };
  }

  // Steps of the rank in which the rows [first, last) of a worker are delivered, as words.
  function steps(lane, first, last) {
    const batches = view.batches[lane.rank];
    if (!view.counts || lane.worker === null || !batches.length || view.layout.plan.mix) return "";
    const [from, to] = [first, Math.max(first, last - 1)].map((row) =>
      MapLayout.stepOf(batches, lane.worker, Math.min(Math.floor(row / view.layout.batchRows), batches[lane.worker] - 1)));
    const mixed = view.values.shuffle !== false && view.values.shuffle !== "splits";
    const about = mixed ? "about " : "";
    return from === to ? `${about}step ${Words.number(from)}` : `${about}steps ${Words.number(from)} to ${Words.number(to)}`;
  }

  function rowsIn(data, piece) {
    const [, start, stop, step, block] = piece;
    if (start === null) return "row count known only after reading";
    const range = `rows ${Words.number(start)} to ${Words.number(stop - 1)}`;
    const turns = step === undefined ? "" : `, ${Words.number(block)} of every ${Words.number(step)}`;
    return `${range} (${Words.number(MapLayout.size(data, piece))}${turns})`;
  }

  function nameOf(file) {
    const { names, file_parts: parts } = view.layout.data;
    return parts.some((part) => part !== parts[0]) ? `${names[file]} (dataset ${parts[file]})` : names[file];
  }

  function ofPiece({ lane: l, index }) {
    const { data, lanes } = view.layout, lane = lanes[l], piece = lane.pieces[index];
    const first = index ? lane.ends[index - 1] : 0;
    const name = lane.worker === null ? "" : `, ${Words.laneName(data, view.layout.plan, lane.worker)}`;
    const who = `rank ${lane.rank}${name}`;
    const when = steps(lane, first, lane.ends[index]);
    return { title: nameOf(piece[0]), lines: [rowsIn(data, piece), `${who}${when ? `, ${when}` : ""}`], number: piece[0] + 1 };
  }

  function ofWholeFile(file) {
    const { data, lanes } = view.layout;
    const ranks = [...new Set(piecesOf(file).map(([, , l]) => lanes[l].rank))].sort((one, other) => one - other);
    const rows = data.files[file][1];
    const amount = `${rows === null ? "row count unknown" : Words.plural(rows, "row")}, ${Words.bytes(data.file_bytes[file])}`;
    const who = ranks.length ? `read by rank${ranks.length > 1 ? "s" : ""} ${Words.ranges(ranks)}` : "not read in this epoch";
    return { title: nameOf(file), lines: [amount, who], number: file + 1 };
  }

  function outline(pen, x, y, width, height) {
    pen.lineWidth = 2;
    pen.strokeStyle = view.ink.page;
    pen.strokeRect(x - 1, y - 1, width + 2, height + 2);
    pen.strokeStyle = view.ink.text;
    pen.strokeRect(x - 2, y - 2, width + 4, height + 4);
  }

  // Outlines a piece in its lane and in its file, and joins the two.
  function mark(pen, l, index, strong) {
    const { layout, ink } = view, lane = layout.lanes[l], [file, start, stop] = lane.pieces[index];
    const box = layout.files[file];
    const from = layout.left + (index ? lane.ends[index - 1] : 0) * layout.scale, to = layout.left + lane.ends[index] * layout.scale;
    const [a, b] = start === null ? [box.x, box.x + box.width] : [start, stop].map((row) => MapLayout.xOfRow(layout.data, box, file, row));
    const bottom = box.y + box.height, bend = (lane.y - bottom) / 2;
    pen.strokeStyle = ink.text;
    pen.globalAlpha = strong ? 1 : 0.35;
    pen.lineWidth = strong ? 2 : 1;
    pen.beginPath();
    pen.moveTo((a + b) / 2, bottom);
    pen.bezierCurveTo((a + b) / 2, bottom + bend, (from + to) / 2, lane.y - bend, (from + to) / 2, lane.y);
    pen.stroke();
    pen.globalAlpha = 1;
    if (!strong) return;
    outline(pen, a, box.y, Math.max(b - a, 1), box.height);
    outline(pen, from, lane.y, Math.max(to - from, 1), lane.height);
  }

  function highlight(hit) {
    const pen = clear();
    if (!hit) return;
    if (hit.lane !== undefined) mark(pen, hit.lane, hit.index, true);
    else piecesOf(hit.file).slice(0, 400).forEach(([, , l, index]) => mark(pen, l, index, false));
  }

  const described = (hit) => (hit.lane === undefined ? ofWholeFile(hit.file) : ofPiece(hit));

  function onMove(event) {
    if (!view) return;
    const frame = map().getBoundingClientRect();
    const x = event.clientX - frame.left, y = event.clientY - frame.top + map().scrollTop;
    const hit = hitLane(x, y) ?? hitFile(x, y);
    highlight(hit);
    if (hit) Tip.show(described(hit), event.clientX, event.clientY);
    else Tip.hide();
  }

  function next(key) {
    const { lanes } = view.layout;
    if (!at) return { lane: lanes.findIndex((lane) => lane.pieces.length), index: 0 };
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[key];
    const count = lanes[at.lane].pieces.length;
    if (key === "Home" || key === "End") return { lane: at.lane, index: key === "Home" ? 0 : count - 1 };
    if (move[1]) return { lane: at.lane, index: Math.min(Math.max(at.index + move[1], 0), count - 1) };
    for (let lane = at.lane + move[0]; lane >= 0 && lane < lanes.length; lane += move[0]) {
      if (lanes[lane].pieces.length) return { lane, index: Math.min(at.index, lanes[lane].pieces.length - 1) };
    }
    return at;
  }

  function focus(hit) {
    at = hit;
    highlight(hit);
    const lane = view.layout.lanes[hit.lane], frame = map();
    if (lane.y < frame.scrollTop || lane.y + lane.height > frame.scrollTop + frame.clientHeight) frame.scrollTop = lane.y - 60;
    const corner = frame.getBoundingClientRect();
    const x = view.layout.left + (hit.index ? lane.ends[hit.index - 1] : 0) * view.layout.scale;
    const words = described(hit);
    Tip.show(words, corner.left + x, corner.top + lane.y + lane.height - frame.scrollTop);
    Tip.say(words);
  }

  function onKey(event) {
    if (!view || !view.layout.lanes.length || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Escape") {
      leave();
      return;
    }
    if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    const hit = next(event.key);
    if (hit.lane >= 0) focus(hit);
  }

  function leave() {
    at = null;
    if (view) clear();
    Tip.hide();
  }

  function listen() {
    map().addEventListener("pointermove", onMove);
    map().addEventListener("pointerdown", onMove);
    map().addEventListener("pointerleave", leave);
    map().addEventListener("keydown", onKey);
    map().addEventListener("blur", leave);
    map().addEventListener("scroll", () => Tip.hide());
  }

  return { listen, shown };
})();

// The box with facts beside the pointer, and the same words for screen readers.
const Tip = (() => {
  const tip = () => document.getElementById("tip");

  function show({ title, lines, number }, x, y) {
    const box = tip();
    const name = Controls.element("b", { textContent: number === undefined ? title : `${number}  ${title}` });
    box.replaceChildren(name, ...lines.map((line) => Controls.element("div", { textContent: line })));
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    box.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
    box.style.top = `${y + 18 + height > innerHeight ? Math.max(8, y - height - 12) : y + 18}px`;
  }

  const hide = () => (tip().hidden = true);
  const say = ({ title, lines }) => (document.getElementById("spoken").textContent = [title, ...lines].join(", "));

  return { show, hide, say };
})();
