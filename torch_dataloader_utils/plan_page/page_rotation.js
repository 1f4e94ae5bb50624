"use strict";
// A matrix of epochs and ranks: which part of the data each rank reads in each epoch.
const Rotation = (() => {
  const EPOCHS = 8, RANKS = 64, BINS = 24;
  const { element } = Controls;
  let pending = 0; // counts the drawings: a later one ends an earlier one
  let cells = [];
  let place = [0, 0];

  // The number of the shard that a rank reads; null unless shards rotate.
  function shardOf(values, epoch, rank) {
    if (values.sharding !== "rotate") return null;
    const ranks = values.num_ranks, total = values.total_shards ?? ranks;
    if (values.total_shards === null) return (rank + (values.stick_to_shard ? 0 : epoch)) % ranks;
    const turned = values.full_rotation ? (rank + Math.floor(epoch / (total / ranks))) % ranks : rank;
    return (epoch * ranks + turned) % total;
  }

  const isLabelled = (values) => values.sharding === "rotate" && values.num_ranks <= 32;

  // The rows that a rank reads in each of a few equal bins of the data, as a share of the bin.
  function coverage(data, bins, rank) {
    const shares = new Float64Array(bins.count);
    for (const worker of rank.workers) for (const piece of worker.pieces) {
      const [file, start, stop] = piece;
      const rows = MapLayout.size(data, piece);
      const from = bins.begin[file] + (start ?? 0), to = start === null ? bins.begin[file + 1] : bins.begin[file] + stop;
      spread(shares, bins, from, Math.max(to, from + 1e-9), rows);
    }
    return shares;
  }

  function spread(shares, bins, from, to, rows) {
    const density = rows / (to - from);
    for (let bin = Math.floor(from / bins.width); bin < bins.count && bin * bins.width < to; bin++) {
      const overlap = Math.min(to, (bin + 1) * bins.width) - Math.max(from, bin * bins.width);
      shares[bin] += Math.max(0, overlap) * density / bins.width;
    }
  }

  function binsOf(data) {
    const begin = [0];
    data.files.forEach(([, rows], i) => begin.push(begin[i] + Math.max(rows ?? data.file_bytes[i], 1)));
    const width = begin[begin.length - 1] / BINS;
    let file = 0;
    const files = Array.from({ length: BINS }, (_, bin) => {
      while (begin[file + 1] <= (bin + 0.5) * width) file++;
      return file;
    });
    return { begin, count: BINS, width, files };
  }

  // Each bin in the colour of the file at its middle, fainter if the rank reads less of it.
  function background(shares, most, bins) {
    const of = Colours.palette(bins.begin.length - 1), colour = (bin) => of(bins.files[bin]);
    const stops = [...shares].map((share, bin) => {
      const alpha = Math.round(255 * Math.min(1, share / most)).toString(16).padStart(2, "0");
      return `${colour(bin)}${alpha} ${(100 * bin) / BINS}% ${(100 * (bin + 1)) / BINS}%`;
    });
    return `linear-gradient(to right, ${stops.join(", ")})`;
  }

  function filesOf(data, rank) {
    const files = [...new Set(rank.workers.flatMap((worker) => worker.pieces.map((piece) => piece[0])))].sort((a, b) => a - b);
    const shown = files.slice(0, 3).map((file) => data.short[file]).join(", ");
    return files.length > 3 ? `${shown} and ${Words.plural(files.length - 3, "more file")}` : shown || "nothing";
  }

  function cell(data, values, epoch, number, rank, picture) {
    const shard = shardOf(values, epoch, number);
    const box = element("td", { tabIndex: -1 });
    box.setAttribute("role", "gridcell");
    box.style.backgroundImage = picture;
    if (isLabelled(values)) box.append(values.num_ranks <= 8 && innerWidth > 600 ? `shard ${shard}` : `${shard}`);
    const words = {
      title: `Epoch ${epoch}, rank ${number}`,
      lines: [...(shard === null ? [] : [`shard ${shard}`]), filesOf(data, rank), ...(rank.rows === null ? [] : [Words.plural(rank.rows, "row")])],
    };
    box.setAttribute("aria-label", [words.title, ...words.lines].join(", "));
    box.addEventListener("pointerenter", (event) => Tip.show(words, event.clientX, event.clientY));
    box.addEventListener("pointerleave", () => Tip.hide());
    box.addEventListener("focus", () => showAt(box, words));
    box.addEventListener("blur", () => Tip.hide());
    return box;
  }

  function showAt(box, words) {
    const frame = box.getBoundingClientRect();
    Tip.show(words, frame.left, frame.bottom - 10);
  }

  function header(ranks) {
    const corner = element("th", { scope: "col" }, element("span", { className: "unseen", textContent: "epoch" }));
    const names = Array.from({ length: ranks }, (_, rank) => {
      const name = element("th", { scope: "col" }, element("span", { className: "unit", textContent: ranks <= 8 ? "rank " : "" }));
      if (ranks <= 32 || rank % 8 === 0) name.append(String(rank));
      return name;
    });
    return element("tr", {}, corner, ...names);
  }

  function line(data, values, bins, epoch, plan) {
    const name = element("th", { scope: "row" }, element("span", { className: "unit", textContent: "epoch " }), String(epoch));
    const ranks = plan.ranks.slice(0, RANKS);
    const shares = ranks.map((rank) => coverage(data, bins, rank));
    const most = Math.max(1e-9, ...shares.flatMap((one) => [...one]));
    const boxes = ranks.map((rank, number) => cell(data, values, epoch, number, rank, background(shares[number], most, bins)));
    cells.push(boxes);
    return element("tr", { className: epoch === values.epoch ? "shown" : "" }, name, ...boxes);
  }

  function words(values) {
    const first = "Each box is the whole data in file order; what the rank reads in the epoch is coloured. ";
    const some = values.num_ranks > RANKS ? `The first ${RANKS} ranks are shown. ` : "";
    return first + some + rule(values);
  }

  function rule(values) {
    const ranks = values.num_ranks, total = values.total_shards;
    if (values.mix) return "Each epoch goes on where the one before it ended in each dataset, unless it has every row once.";
    if (values.sharding === "rotate" && total !== null) {
      const met = values.full_rotation ? `every rank meets every shard in ${Words.plural(total, "epoch")}` : `rank r meets only the shards r, r + ${ranks}, …`;
      return `Shard (epoch × ${ranks} + rank) mod ${total}: all data is read in ${Words.plural(total / ranks, "epoch")}, and ${met}.`;
    }
    if (values.sharding === "rotate" && values.stick_to_shard) return "Each rank keeps its shard in all epochs.";
    if (values.sharding === "rotate") return `Shard (rank + epoch) mod ${ranks}: every rank meets every shard in ${Words.plural(ranks, "epoch")}.`;
    if (PlannerOptions.permutes(values)) return "The splits are permuted in each epoch, so the ranks' shares change.";
    return "Without a shuffle, a rank reads the same rows in each epoch.";
  }

  // Draws line by line, so that the page stays responsive; `planOf` returns the plan of an epoch or null.
  function draw(table, data, values, planOf) {
    const run = ++pending, bins = binsOf(data);
    const first = Math.floor(values.epoch / EPOCHS) * EPOCHS;
    const body = element("tbody");
    cells = [];
    document.getElementById("rotation-words").textContent = words(values);
    const later = (epoch) => {
      if (run !== pending) return;
      const plan = epoch < first + EPOCHS ? planOf(epoch) : null;
      if (epoch < first + EPOCHS && plan) {
        body.append(line(data, values, bins, epoch, plan));
        setTimeout(later, 0, epoch + 1);
        return;
      }
      table.replaceChildren(element("thead", {}, header(Math.min(values.num_ranks, RANKS))), body);
      table.classList.toggle("labelled", isLabelled(values));
      table.classList.toggle("roomy", values.num_ranks <= 16);
      settle();
    };
    setTimeout(later, 60, first);
  }

  function settle() {
    if (!cells.length) return;
    place = [Math.min(place[0], cells.length - 1), Math.min(place[1], cells[0].length - 1)];
    cells[place[0]][place[1]].tabIndex = 0;
  }

  function onKey(event) {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move || !cells.length) return;
    event.preventDefault();
    cells[place[0]][place[1]].tabIndex = -1;
    place = [
      Math.min(Math.max(place[0] + move[0], 0), cells.length - 1), Math.min(Math.max(place[1] + move[1], 0), cells[0].length - 1),
    ];
    const box = cells[place[0]][place[1]];
    box.tabIndex = 0;
    box.focus();
  }

  return { draw, onKey };
})();
