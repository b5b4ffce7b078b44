"use strict";

// Ascending order of two data-sort values: numbers as numbers, words as words, what is missing always last.
function compared(a, b, direction) {
  if (a === "" || b === "") return (a === "") - (b === "");
  const x = Number(a), y = Number(b);
  const order = Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  return direction * order;
}

// The matrix has its groups in the order that the page begins with; sorted by a column, its techniques stand alone.
function sortBy(table, column) {
  const heads = [...table.tHead.rows[0].cells];
  const sorted = heads[column].getAttribute("aria-sort");
  const descending = sorted ? sorted === "ascending" : "largest" in heads[column].dataset;  // the best first
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const grouped = column === heads.length - 1 && !descending;
  const key = (row) => (grouped && row.dataset.position) || row.cells[column]?.dataset.sort || "";
  body.append(...[...body.rows].sort((a, b) => compared(key(a), key(b), descending ? -1 : 1)));
  headGroups(table);
}

// A group's heading stands where the table is in its groups and a technique of the group is left.
function headGroups(table) {
  const grouped = table.tHead.rows[0].lastElementChild.ariaSort === "ascending";
  let heading = null;
  for (const row of table.tBodies[0].rows) {
    if (row.classList.contains("group")) {
      heading = row;
      row.hidden = true;
    } else if (!row.hidden && heading) {
      heading.hidden = !grouped;
    }
  }
}

// Whether what stands on an element is what the controls ask for; what it does not say, it does not contradict.
function passes(element, wanted) {
  const data = element.dataset;
  const name = data.name ?? element.cells?.[1]?.dataset.sort ?? "";
  return name.toLowerCase().includes(wanted.name)
    && !(wanted.fresh && "unverified" in data)
    && Object.entries(wanted.values).every(([key, value]) =>
      data[key] === undefined || (key === "category" ? data[key].split(" ").includes(value) : data[key] === value));
}

// What the columns that are shown say of a technique: better or worse surely, else why it is not known.
function verdictsOf(row) {
  const said = new Set([...row.querySelectorAll("td[data-verdict]:not([hidden])")].map((each) => each.dataset.verdict));
  const sure = ["better", "worse"].filter((each) => said.has(each));
  return sure.length ? sure : [said.size === 1 && said.has("failed") ? "failed" : "undecided"];
}

const pressed = () => document.querySelector("#verdicts [aria-pressed=true]");
const selects = () => [...document.querySelectorAll("select[data-filter]")];
const first = (select) => [...select.options].find((each) => each.defaultSelected)?.value ?? "";

// The filters stand in the address, so that a link keeps them.
function remember(wanted) {
  const asked = { name: wanted.name, verdict: wanted.verdict, fresh: wanted.fresh ? "1" : "" };
  for (const each of selects()) asked[each.dataset.filter] = each.value === first(each) ? "" : each.value || "all";
  const words = new URLSearchParams(Object.entries(asked).filter(([, value]) => value)).toString();
  history.replaceState(null, "", location.pathname + (words && `?${words}`) + location.hash);
}

function recall() {
  for (const [key, value] of new URLSearchParams(location.search)) {
    if (key === "name") document.getElementById("filter").value = value;
    if (key === "fresh") document.getElementById("fresh").checked = true;
    const select = selects().find((each) => each.dataset.filter === key);
    if (select) select.value = value === "all" ? "" : value;
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

function filterMatrix(part, wanted, counts) {
  const { baseline } = wanted.values;
  for (const cell of part.querySelectorAll("[data-baseline]")) {
    cell.hidden = Boolean(baseline) && cell.dataset.baseline !== baseline;
  }
  for (const row of part.querySelectorAll("tbody tr[data-name]")) {
    const verdicts = verdictsOf(row);
    const asked = passes(row, wanted);
    if (asked && !part.hidden) verdicts.forEach((each) => { counts[each] = (counts[each] ?? 0) + 1; });
    row.hidden = !asked || (Boolean(wanted.verdict) && !verdicts.includes(wanted.verdict));
  }
  headGroups(part.querySelector("table"));
}

function filterPage() {
  const values = {};
  for (const select of selects()) {
    if (select.value) values[select.dataset.filter] = select.value;
  }
  const wanted = { name: document.getElementById("filter").value.trim().toLowerCase(), values,
    verdict: pressed()?.dataset.verdict, fresh: document.getElementById("fresh").checked };
  const anyName = { name: "", values, fresh: false };
  const counts = {};
  remember(wanted);
  for (const part of document.querySelectorAll(".part")) {
    part.hidden = !passes(part, anyName);
    filterMatrix(part, wanted, counts);
  }
  for (const button of document.querySelectorAll("#verdicts button")) {
    button.firstElementChild.textContent = counts[button.dataset.verdict] ?? 0;
  }
  const others = "section.board tbody tr, section.board li[data-name], .claims tr[data-category], article, .technique";
  for (const part of document.querySelectorAll(others)) part.hidden = !passes(part, wanted);
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

// A link must lead to something that can be seen: it opens what is folded, and takes the filters away where they hide
// its target.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (target.closest("[hidden]")) {
    document.getElementById("controls").reset();
    for (const select of selects()) select.value = "";
    pressed()?.setAttribute("aria-pressed", "false");
    filterPage();
  }
  const inside = target.matches("section") && target.querySelector(":scope > details");
  if (inside) inside.open = true;
  for (let each = target.closest("details"); each; each = each.parentElement.closest("details")) each.open = true;
  target.scrollIntoView();
}

// All rows with all metrics, which the page keeps compressed.
async function rows() {
  const packed = Uint8Array.from(atob(document.getElementById("data").textContent), (each) => each.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
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
  const conditions = ["baseline", "baseline_version", "recipe", "size", "task"];
  const lines = [[...conditions, "machine", "reference", "stack", "learned_on", "seeds", "timings", "unverified", "newer_version", "metric", "kind", "at_most", "ratio", "low", "high"]];
  for (const row of rows) {
    const shared = [...conditions.map((name) => row.conditions[name]), row.machine, row.reference, row.stack,
      row.learned_on, row.seeds.length, row.timings, row.unverified.join(" "), row.newer_version];
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
  const controls = document.getElementById("controls");
  controls.addEventListener("input", filterPage);
  controls.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("csv").addEventListener("click", async () => save("leantrain.csv", "text/csv", csv(await rows())));
  document.getElementById("json").addEventListener("click", async () => save("leantrain.json", "application/json", JSON.stringify(await rows())));
  window.addEventListener("hashchange", reveal);
  for (const button of document.querySelectorAll("#verdicts button")) {
    button.addEventListener("click", () => press(button));
  }
  const filters = document.getElementById("filters");
  filters.open = !matchMedia("(max-width: 40rem)").matches;  // a small screen is for the answer
  for (const each of [filters, ...document.querySelectorAll("#verdicts")]) each.hidden = false;
  recall();
  filterPage();
  if (location.hash) reveal();
}
