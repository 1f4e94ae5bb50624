"use strict";
// The table of the ranks' steps and rows, with the steps that others lack in red.
const Steps = (() => {
  const SHOWN = 128; // ranks
  const { element } = Controls, { batchRows } = Words;
  const known = (value) => (value === null || value === undefined ? "unknown" : Words.number(value));

  function bar(rank, counts, values) {
    const line = element("span", { className: "steps-bar" });
    line.setAttribute("aria-hidden", "true");
    const add = (kind, steps) => {
      if (steps <= 0) return;
      const piece = element("i", { className: kind });
      piece.style.width = `${(100 * steps) / Math.max(counts.most, 1)}%`;
      line.append(piece);
    };
    const padding = rank.padded ? Math.min(rank.steps, rank.padded / batchRows(values)) : 0;
    add("", Math.min(rank.steps, counts.least) - padding);
    add("padding", padding);
    add(values.even === "sync" ? "cut" : "tail", rank.steps - counts.least);
    return line;
  }

  function row(rank, number, counts, values, padded) {
    const line = element("tr", {}, element("th", { scope: "row", textContent: `rank ${number}` }));
    const steps = element("td", { textContent: known(rank.steps) });
    const more = counts ? rank.steps - counts.least : 0;
    if (more > 0) {
      steps.append(element("span", { className: "surplus", textContent: ` (+${Words.number(more)})` }));
    }
    line.append(steps, element("td", { textContent: known(rank.rows) }));
    if (padded) line.append(element("td", { textContent: known(rank.padded) }));
    if (counts) line.append(element("td", { className: "bars" }, bar(rank, counts, values)));
    return line;
  }

  function head(counts, padded) {
    const names = ["rank", "steps", "rows", ...(padded ? ["repeats"] : [])];
    const cells = names.map((name) => element("th", { scope: "col", textContent: name }));
    if (counts) cells.push(element("th", { scope: "col" }, element("span", { className: "unseen", textContent: "bar" })));
    cells[0].style.textAlign = "left";
    return element("thead", {}, element("tr", {}, ...cells));
  }

  function words(plan, values, counts, unit) {
    if (!counts) return "Row counts are known only after reading.";
    const more = plan.ranks.length > SHOWN ? ` The first ${SHOWN} of ${Words.number(plan.ranks.length)} ranks are shown.` : "";
    const rows = Words.plural(batchRows(values), unit);
    const tail = counts.most > counts.least
      ? ` In ${values.even === "sync" ? "stripes: steps that are not taken" : "red: steps that other ranks do not have"}.`
      : "";
    return `Batches of ${rows} per rank, ${Words.number(batchRows(values) * plan.ranks.length)} over all ranks.${tail}${more}`;
  }

  function draw(table, plan, values, unit) {
    const counts = Words.stepsOf(plan);
    const padded = plan.ranks.some((rank) => rank.padded);
    document.getElementById("steps-words").textContent = words(plan, values, counts, unit);
    const lines = plan.ranks.slice(0, SHOWN).map((rank, number) => row(rank, number, counts, values, padded));
    table.replaceChildren(head(counts, padded), element("tbody", {}, ...lines));
  }

  return { draw };
})();
