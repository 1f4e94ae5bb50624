"use strict";
// What the shuffle mixes, in words and as a picture: the part of the data that one window draws from.
const Shuffle = (() => {
  const WIDTH = 800, LEFT = 0;
  const NAME = "http://www.w3.org/2000/svg";

  function svg(tag, attributes, text) {
    const made = document.createElementNS(NAME, tag);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // A judgement of the variance of a batch's mean, relative to a random sample.
  function quality(variance) {
    if (variance < 1.1) return "as well as a random sample of the whole data";
    if (variance < 2) return "almost as well as a random sample";
    if (variance < 10) return "less well than a random sample, if the data are sorted";
    return "poorly, if the data are sorted";
  }

  function inWindows(windows, unit) {
    const rows = windows.rows === null ? "" : ` of about ${Words.plural(windows.rows, unit)}`;
    const what = unit === "row" ? "Rows" : "Documents";
    if (windows.windows === 1) return `${what} are permuted in one window${rows}: every order is equally likely. A batch is a random sample.`;
    const variance = windows.variance.toFixed(windows.variance < 10 ? 2 : 0);
    return (
      `${what} are permuted in windows${rows}, each from ${windows.open} of ${Words.plural(windows.of, "split")}: a batch mixes the data ` +
      `${quality(windows.variance)}. The variance of a batch's mean is up to ${variance} times that of a random sample ` +
      "(1 + B/k · (1 − k/S), for splits that hold a single value each)."
    );
  }

  function words(data, plan, values) {
    if (plan.windows && data.by_length) {
      return `The rows are in ${Words.plural(plan.windows.windows, "window")}. Those of a window are sorted by length and cut into batches, whose order is permuted.`;
    }
    if (plan.mix && plan.windows) return "The rows of each dataset are permuted in windows of its own, before they are mixed.";
    if (plan.windows) return inWindows(plan.windows, data.unit);
    if (values.shuffle === "splits") {
      return "Each epoch has the splits in another order; the rows of a split stay in file order. A batch holds neighbouring rows of one or two splits.";
    }
    return "Nothing is shuffled: each batch holds neighbouring rows in file order. If the data are sorted, a batch is no random sample; for training, use shuffle=True.";
  }

  // The pieces of the first worker with rows from which its first batches are drawn.
  function first(plan) {
    const worker = plan.ranks.flatMap((rank) => rank.workers).find((one) => one.pieces.length);
    const pieces = worker ? worker.pieces : [];
    const seen = new Set();
    const open = plan.windows ? plan.windows.open : 1;
    return pieces.filter((piece) => {
      const split = `${piece[0]} ${piece[1]}`;
      if (!seen.has(split) && seen.size >= open) return false;
      seen.add(split);
      return true;
    });
  }

  function picture(data, plan) {
    const sizes = data.files.map(([, rows], i) => Math.max(rows ?? data.file_bytes[i], 1));
    const total = sizes.reduce((sum, size) => sum + size, 0);
    const gap = sizes.length <= 60 ? 2 : 0, scale = (WIDTH - LEFT - gap * sizes.length) / total;
    const begin = [];
    sizes.reduce((x, size, i) => ((begin[i] = x), x + size * scale + gap), LEFT);
    const image = svg("svg", { viewBox: `0 0 ${WIDTH} 30`, role: "img", "aria-label": "Where the first window's rows lie in the data", preserveAspectRatio: "none" });
    image.style.height = "30px";
    const merged = gap ? sizes.map((size, i) => [begin[i], size * scale]) : [[LEFT, WIDTH]];
    merged.forEach(([x, width]) => image.append(svg("rect", { x, y: 2, width, height: 26, fill: "var(--empty)" })));
    const colour = Colours.palette(data.files.length);
    for (const piece of first(plan)) {
      const [file, start, stop] = piece;
      const [from, to] = start === null ? [0, sizes[file]] : [start, stop];
      const x = begin[file] + from * scale;
      image.append(svg("rect", { x, y: 2, width: Math.max((to - from) * scale, 1), height: 26, fill: colour(file) }));
    }
    return image;
  }

  function draw(data, plan, values) {
    document.getElementById("shuffle-words").textContent = words(data, plan, values);
    document.getElementById("shuffle-picture").replaceChildren(picture(data, plan));
    const count = first(plan).length;
    const what = plan.mix ? "what rank 0 reads first of its first dataset" : plan.windows ? `the first window of rank 0, from ${Words.plural(count, "split")}` : "the first split that rank 0 reads";
    document.getElementById("shuffle-caption").textContent = `The whole data in file order; in colour, ${what}.`;
  }

  return { draw };
})();
