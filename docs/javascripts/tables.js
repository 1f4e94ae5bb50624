// On a phone site.css stacks the cells of a row, each after the heading of its column. Tables of numbers stay tables.
for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
  const headings = [...table.querySelectorAll("thead th")].map((heading) => heading.textContent);
  table.dataset.form = table.querySelector('td[style*="right"]') ? "columns" : "rows";
  for (const row of table.querySelectorAll("tbody tr")) {
    [...row.cells].slice(1).forEach((cell, place) => (cell.dataset.heading = headings[place + 1] ?? ""));
  }
}
