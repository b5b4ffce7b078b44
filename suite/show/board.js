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
  const sorted = heads[column].getAttribute("aria-sort");
  const descending = sorted ? sorted === "ascending" : "largest" in heads[column].dataset;  // the best first
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const key = (row) => row.cells[column].dataset.sort;
  body.append(...[...body.rows].sort((a, b) => compared(key(a), key(b), descending ? -1 : 1)));
}

// Whether what stands on an element is what the controls ask for; what it does not say, it does not contradict.
function passes(element, wanted) {
  const data = element.dataset;
  const name = data.name ?? element.cells?.[1]?.dataset.sort ?? "";
  return name.toLowerCase().includes(wanted.name)
    && !(wanted.fresh && "unverified" in data)
    && (!wanted.verdict || data.verdict === undefined || data.verdict.split(" ").includes(wanted.verdict))
    && Object.entries(wanted.values).every(([key, value]) =>
      data[key] === undefined || (key === "category" ? data[key].split(" ").includes(value) : data[key] === value));
}

const pressed = () => document.querySelector("#verdicts [aria-pressed=true]");

// The filters stand in the address, so that a link keeps them.
function remember(wanted) {
  const asked = { name: wanted.name, verdict: wanted.verdict, fresh: wanted.fresh ? "1" : "", ...wanted.values };
  const words = new URLSearchParams(Object.entries(asked).filter(([, value]) => value)).toString();
  history.replaceState(null, "", location.pathname + (words && `?${words}`) + location.hash);
}

function recall() {
  for (const [key, value] of new URLSearchParams(location.search)) {
    if (key === "name") document.getElementById("filter").value = value;
    if (key === "fresh") document.getElementById("fresh").checked = true;
    const select = [...document.querySelectorAll("select[data-filter]")].find((each) => each.dataset.filter === key);
    if (select) select.value = value;
    const verdict = [...document.querySelectorAll("#verdicts button")].find((each) => each.dataset.verdict === value);
    if (key === "verdict" && verdict) verdict.setAttribute("aria-pressed", "true");
  }
}

function press(button) {
  const before = pressed();
  before?.setAttribute("aria-pressed", "false");
  if (before !== button) button.setAttribute("aria-pressed", "true");
  filterPage();
}

function filterPage() {
  const values = {};
  for (const select of document.querySelectorAll("select[data-filter]")) {
    if (select.value) values[select.dataset.filter] = select.value;
  }
  const wanted = { name: document.getElementById("filter").value.trim().toLowerCase(), values,
    verdict: pressed()?.dataset.verdict, fresh: document.getElementById("fresh").checked };
  const anyName = { name: "", values, fresh: false };
  remember(wanted);
  for (const part of document.querySelectorAll("tr[data-category], article, figure[data-name], li[data-name]")) {
    part.hidden = !passes(part, wanted);
  }
  let shown = 0, total = 0;
  for (const board of document.querySelectorAll("section.board")) {
    const entries = [...board.querySelectorAll("tbody tr, li[data-name]")];
    const left = entries.filter((entry) => !entry.hidden).length;
    board.hidden = !left || !passes(board, anyName);
    total += entries.length;
    shown += board.hidden ? 0 : left;
    document.querySelector(`nav a[href="#${board.id}"]`).parentElement.hidden = board.hidden;
  }
  document.getElementById("count").textContent = `${shown} of ${total} rows`;
}

// A link must lead to something that can be seen: it takes the filters away where they hide its target.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target?.closest("[hidden]")) return;
  document.getElementById("controls").reset();
  pressed()?.setAttribute("aria-pressed", "false");
  filterPage();
  target.scrollIntoView();
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
  const lines = [[...conditions, "machine", "reference", "stack", "learned_on", "seeds", "timings", "unverified", "metric", "kind", "at_most", "ratio", "low", "high"]];
  for (const row of rows) {
    const shared = [...conditions.map((name) => row.conditions[name]), row.machine, row.reference, row.stack,
      row.learned_on, row.seeds.length, row.timings, row.unverified.join(" ")];
    for (const [metric, value] of Object.entries(row.metrics)) {
      lines.push([...shared, metric, value.kind, value.at_most, value.ratio, value.interval?.low, value.interval?.high]);
    }
  }
  return lines.map((line) => line.map(csvCell).join(",")).join("\n") + "\n";
}

if (typeof document !== "undefined") {
  for (const button of document.querySelectorAll("thead button")) {
    button.addEventListener("click", () => sortBy(button.closest("table"), button.closest("th").cellIndex));
  }
  const data = document.getElementById("data").textContent;
  const controls = document.getElementById("controls");
  controls.addEventListener("input", filterPage);
  controls.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("csv").addEventListener("click", () => save("leantrain.csv", "text/csv", csv(JSON.parse(data))));
  document.getElementById("json").addEventListener("click", () => save("leantrain.json", "application/json", data));
  window.addEventListener("hashchange", reveal);
  for (const button of document.querySelectorAll("#verdicts button")) {
    button.addEventListener("click", () => press(button));
  }
  controls.hidden = false;
  recall();
  filterPage();
}
