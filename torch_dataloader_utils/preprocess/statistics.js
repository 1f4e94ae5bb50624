"use strict";
const body = document.querySelector("#columns tbody");
const pairs = [...body.querySelectorAll("tr.column")].map((row) => [row, row.nextElementSibling]);

for (const [row, details] of pairs) {
  const more = row.querySelector(".more");
  more.addEventListener("click", () => {
    details.hidden = !details.hidden;
    more.setAttribute("aria-expanded", String(!details.hidden));
  });
}

function compared(one, other) {
  const [a, b] = [Number(one), Number(other)];
  return Number.isNaN(a) || Number.isNaN(b) ? one.localeCompare(other) : a - b;
}

for (const button of document.querySelectorAll("[data-sort]")) {
  button.addEventListener("click", () => {
    const head = button.closest("th");
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of document.querySelectorAll("th[aria-sort]")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = ([row]) => row.cells[Number(button.dataset.sort)].dataset.value;
    const sorted = [...pairs].sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      if (!a || !b) return (a ? 0 : 1) - (b ? 0 : 1); // what is not known comes last
      return up ? compared(a, b) : compared(b, a);
    });
    body.append(...sorted.flat());
  });
}

document.getElementById("find").addEventListener("input", (event) => {
  const wanted = event.target.value.toLowerCase();
  for (const [row, details] of pairs) {
    row.hidden = !row.dataset.name.includes(wanted);
    if (row.hidden) {
      details.hidden = true;
      row.querySelector(".more").setAttribute("aria-expanded", "false");
    }
  }
});

for (const link of document.querySelectorAll(".remarks a")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    const [row, details] = pairs.find(([one]) => one.id === link.hash.slice(1));
    if (details.hidden) row.querySelector(".more").click();
    row.scrollIntoView({ block: "center" });
    row.querySelector(".more").focus({ preventScroll: true });
  });
}

for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    const code = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(code.textContent);
      document.getElementById("spoken").textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code); // a page from a disk may not write to the clipboard
    }
  });
}

const themes = ["system", "light", "dark"];
const theme = document.getElementById("theme");
theme.addEventListener("click", () => {
  const next = themes[(themes.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % themes.length];
  if (next === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  theme.textContent = `Theme: ${next}`;
});
