"use strict";

// Ascending order of two data-sort values: numbers as numbers, words as words, what is missing always last.
function compared(a, b, direction) {
  if (a === "" || b === "") return (a === "") - (b === "");
  const x = Number(a), y = Number(b);
  const order = Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  return direction * order;
}

function sortBy(table, column) {
  const heads = [...table.tHead.rows[0].cells];
  const descending = heads[column].getAttribute("aria-sort") === "ascending";
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const key = (row) => row.cells[column].dataset.sort;
  body.append(...[...body.rows].sort((a, b) => compared(key(a), key(b), descending ? -1 : 1)));
}

function filterRows() {
  const wanted = document.getElementById("filter").value.trim().toLowerCase();
  const fresh = document.getElementById("fresh").checked;
  const rows = [...document.querySelectorAll("table:not(.matrix) tbody tr")];
  for (const row of rows) {
    const name = row.cells[1].dataset.sort.toLowerCase();
    row.hidden = !name.includes(wanted) || (fresh && "stale" in row.dataset);
  }
  document.getElementById("count").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
}

function save(name, type, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// A cell of a spreadsheet: quoted, and never taken for a formula.
function csvCell(value) {
  let words = value === null || value === undefined ? "" : String(value);
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(words)) words = "'" + words;
  return /[",\n\r]/.test(words) ? `"${words.replaceAll('"', '""')}"` : words;
}

// One line for each row and metric.
function csv(rows) {
  const conditions = ["baseline", "recipe", "size", "task"];
  const lines = [[...conditions, "machine", "reference", "stack", "seeds", "stale", "metric", "kind", "ratio", "low", "high"]];
  for (const row of rows) {
    const shared = [...conditions.map((name) => row.conditions[name]), row.machine, row.reference, row.stack,
      row.seeds.length, row.stale.join("; ")];
    for (const [metric, value] of Object.entries(row.metrics)) {
      lines.push([...shared, metric, value.kind, value.ratio, value.interval?.low, value.interval?.high]);
    }
  }
  return lines.map((line) => line.map(csvCell).join(",")).join("\n") + "\n";
}

if (typeof document !== "undefined") {
  for (const table of document.querySelectorAll("table:not(.matrix)")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => sortBy(table, column));
    });
  }
  const data = document.getElementById("data").textContent;
  document.getElementById("filter").addEventListener("input", filterRows);
  document.getElementById("fresh").addEventListener("change", filterRows);
  document.getElementById("controls").addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("csv").addEventListener("click", () => save("leantrain.csv", "text/csv", csv(JSON.parse(data))));
  document.getElementById("json").addEventListener("click", () => save("leantrain.json", "application/json", data));
  document.getElementById("controls").hidden = false;
  filterRows();
}
