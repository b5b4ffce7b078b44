"use strict";

// Ascending order of two data-sort values: numbers as numbers, words as words, what is missing always last.
function compared(a, b, direction) {
  if (a === "" || b === "") return (a === "") - (b === "");
  const x = Number(a), y = Number(b);
  const order = Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  return direction * order;
}

// What a cell is sorted by: what it says, where it does not name anything else.
const sortKey = (cell) => cell?.dataset.sort ?? cell?.textContent ?? "";

// The matrix has its groups in the order that the page begins with; sorted by a column, its techniques stand alone.
function sortBy(table, column) {
  const heads = [...table.tHead.rows[0].cells];
  const sorted = heads[column].getAttribute("aria-sort");
  const descending = sorted ? sorted === "ascending" : "largest" in heads[column].dataset;  // the best first
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const grouped = column === heads.length - 1 && !descending;
  const key = (row) => (grouped && row.dataset.position) || sortKey(row.cells[column]);
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

// Whether an element's data, or a packed row's entry, is what the controls ask for; what it does not say, it does not
// contradict.
function passes(data, wanted) {
  return (data.name ?? "").toLowerCase().includes(wanted.name)
    && !(wanted.fresh && "unverified" in data)
    && Object.entries(wanted.values).every(([key, value]) =>
      data[key] === undefined || (key === "category" ? data[key].split(" ").includes(value) : data[key] === value));
}

// What the columns that are shown say of what a technique sells: better somewhere and worse nowhere, or the other way,
// or both; else why it is not known. What was not measured has no verdict.
function verdictsOf(row) {
  if ("unmeasured" in row.dataset) return [];
  const said = new Set([...row.querySelectorAll("td[data-verdict]:not([hidden])")].map((each) => each.dataset.verdict));
  if (said.has("better") && said.has("worse")) return ["mixed"];
  const sure = ["better", "worse", "sooner on more hardware"].find((each) => said.has(each));
  return [sure ?? (said.size === 1 ? [...said][0] : "undecided")];
}

const pressed = (group = "verdicts") => document.querySelector(`#${group} [aria-pressed=true]`);
const selects = () => [...document.querySelectorAll("select[data-filter]")];
const first = (select) => [...select.options].find((each) => each.defaultSelected)?.value ?? "";

// The filters stand in the address, so that a link keeps them.
function remember(wanted) {
  const asked = { name: wanted.name, verdict: wanted.verdict, goal: wanted.goal, fresh: wanted.fresh ? "1" : "" };
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
    const goal = [...document.querySelectorAll("#goals button")].find((each) => each.dataset.goal === value);
    if (key === "goal" && goal) goal.setAttribute("aria-pressed", "true");
  }
}

function press(button) {
  const before = pressed(button.parentElement.id);
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
    const asked = passes(row.dataset, wanted);
    if (asked && !part.hidden) verdicts.forEach((each) => { counts[each] = (counts[each] ?? 0) + 1; });
    row.hidden = !asked || (Boolean(wanted.verdict) && !verdicts.includes(wanted.verdict))
      || (Boolean(wanted.goal) && goalOf(row, wanted.goal) === undefined);
  }
  const table = part.querySelector("table");
  orderBy(table, wanted.goal);
  headGroups(table);
}

// The cost by which a line serves a goal; undefined where it surely does not, or nobody knows.
const goalOf = (row, goal) => row.dataset[`goal${goal[0].toUpperCase()}${goal.slice(1)}`];

// A goal puts what serves it best first; without one the groups stand as the page begins.
function orderBy(table, goal) {
  if ((table.dataset.goal ?? "") === (goal ?? "")) return;
  table.dataset.goal = goal ?? "";
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  if (!goal) heads.at(-1).setAttribute("aria-sort", "ascending");
  const key = (row) => (goal ? (goalOf(row, goal) ?? "") : row.dataset.position);
  table.tBodies[0].append(...[...table.tBodies[0].rows].sort((a, b) => compared(key(a), key(b), 1)));
}

// What the controls ask for.
function asked() {
  const values = {};
  for (const select of selects()) {
    if (select.value) values[select.dataset.filter] = select.value;
  }
  return { name: document.getElementById("filter").value.trim().toLowerCase(), values,
    verdict: pressed()?.dataset.verdict, goal: pressed("goals")?.dataset.goal, fresh: document.getElementById("fresh").checked };
}

// Hides what is filtered within a part of the page.
function filterPart(part, wanted) {
  const filtered = "section.board tbody tr, section.board li[data-name], .claims tr[data-category], article[data-name], .technique";
  for (const each of part.querySelectorAll(filtered)) each.hidden = !passes(each.dataset, wanted);
}

function filterPage() {
  const wanted = asked();
  const anyName = { name: "", values: wanted.values, fresh: false };
  const counts = {};
  remember(wanted);
  for (const part of document.querySelectorAll(".part")) {
    part.hidden = !passes(part.dataset, anyName);
    filterMatrix(part, wanted, counts);
  }
  for (const button of document.querySelectorAll("#verdicts button")) {
    button.firstElementChild.textContent = counts[button.dataset.verdict] ?? 0;
  }
  filterPart(document, wanted);
  const entries = JSON.parse(document.getElementById("entries").textContent);
  let shown = 0, total = 0;
  for (const board of document.querySelectorAll("section.board")) {
    const left = entries[board.id].filter((entry) => passes(entry, wanted)).length;
    board.hidden = !left || !passes(board.dataset, anyName);
    total += entries[board.id].length;
    shown += board.hidden ? 0 : left;
    document.querySelector(`nav a[href="#${board.id}"]`).parentElement.hidden = board.hidden;
  }
  document.getElementById("count").textContent = `${shown} of ${total} rows`;
}

// The value of a compressed element of the page (RFC 1952): distinct pieces of its text, and which follow each other.
// A page from a file may not fetch, so nothing is fetched.
async function inflated(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (each) => each.charCodeAt(0));
  const content = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const [pieces, places] = await new Response(content).json();
  return JSON.parse(places.map((place) => pieces[place]).join(""));
}

// All rows with all metrics.
const rows = () => inflated("data");

// What the page's folded parts hold, read when the first of them is opened.
let parts = null;
const packedParts = () => (parts ??= inflated("parts"));

// Puts packed parts in their places, as they are filtered now.
async function unpack(places) {
  if (!places.length) return;
  let known;
  try {
    known = await packedParts();
  } catch (error) {
    for (const place of places) place.textContent = `This browser cannot unpack this part: ${error.message}`;
    return;
  }
  for (const place of places) {
    if (!place.isConnected) continue;  // another call was quicker
    const part = document.createElement("template");
    part.innerHTML = known[place.dataset.part];
    const home = place.parentElement;
    place.replaceWith(part.content);
    filterPart(home.closest("section") ?? home, asked());
  }
}

// A link must lead to something that can be seen: it unpacks and opens what is folded, and takes the filters away where
// they hide its target.
async function reveal() {
  const id = decodeURIComponent(location.hash.slice(1));
  if (!id) return;
  if (!document.getElementById(id)) {
    const known = await packedParts();
    await unpack([...document.querySelectorAll(".packed")].filter((place) =>
      known[place.dataset.part].includes(` id="${id}"`)));
  }
  const target = document.getElementById(id);
  if (!target) return;
  if (target.closest("[hidden]")) {
    document.getElementById("controls").reset();
    for (const select of selects()) select.value = "";
    for (const group of ["verdicts", "goals"]) pressed(group)?.setAttribute("aria-pressed", "false");
    filterPage();
  }
  const inside = target.matches("section") && target.querySelector(":scope > details");
  if (inside) inside.open = true;
  for (let each = target.closest("details"); each; each = each.parentElement.closest("details")) each.open = true;
  await unpack([...target.querySelectorAll(":scope > .packed, :scope > details > .packed")]);
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
  document.addEventListener("click", (event) => {
    const button = event.target.closest("thead button");
    if (button) sortBy(button.closest("table"), button.closest("th").cellIndex);
  });
  document.addEventListener("toggle", ({ target }) => {
    if (target.open) unpack([...target.querySelectorAll(":scope > .packed")]);
  }, true);
  const controls = document.getElementById("controls");
  controls.addEventListener("input", filterPage);
  controls.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("csv").addEventListener("click", async () => save("leantrain.csv", "text/csv", csv(await rows())));
  document.getElementById("json").addEventListener("click", async () => save("leantrain.json", "application/json", JSON.stringify(await rows())));
  window.addEventListener("hashchange", reveal);
  for (const button of document.querySelectorAll("#verdicts button, #goals button")) {
    button.addEventListener("click", () => press(button));
  }
  const filters = document.getElementById("filters");
  filters.open = !matchMedia("(max-width: 40rem)").matches;  // a small screen is for the answer
  for (const each of [filters, ...document.querySelectorAll("#verdicts, #goals")]) each.hidden = false;
  recall();
  filterPage();
  if (location.hash) reveal();
}
