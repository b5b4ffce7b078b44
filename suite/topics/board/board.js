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

function sortBy(table, column) {
  const heads = [...table.tHead.rows[0].cells];
  const sorted = heads[column].getAttribute("aria-sort");
  const descending = sorted ? sorted === "ascending" : "largest" in heads[column].dataset;  // the best first
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const key = (row) => sortKey(row.cells[column]);
  body.append(...[...body.rows].sort((a, b) => compared(key(a), key(b), descending ? -1 : 1)));
}

// Whether an element's data, or a packed row's entry, is what the controls ask for; what it does not say, it does not
// contradict.
function passes(data, wanted) {
  return (data.name ?? "").toLowerCase().includes(wanted.name)
    && !(wanted.fresh && "unverified" in data)
    && Object.entries(wanted.values).every(([key, value]) =>
      data[key] === undefined || (key === "category" ? data[key].split(" ").includes(value) : data[key] === value));
}

const selects = () => [...document.querySelectorAll("select[data-filter]")];
const first = (select) => [...select.options].find((each) => each.defaultSelected)?.value ?? "";

// The filters stand in the address, so that a link keeps them.
function remember(wanted) {
  const asked = { name: wanted.name, fresh: wanted.fresh ? "1" : "" };
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
  }
}

// A name leaves its lines of the goals' tables alone, and opens what is folded below them.
function find() {
  const name = document.getElementById("find").value.trim().toLowerCase();
  for (const goal of document.querySelectorAll("section.goal")) {
    for (const row of goal.querySelectorAll("tbody tr")) row.hidden = !row.dataset.name.toLowerCase().includes(name);
    const folded = goal.querySelector("details");
    if (folded && name) folded.open = Boolean(folded.querySelector("tbody tr:not([hidden])"));
    goal.hidden = !goal.querySelector("tbody tr:not([hidden])");
  }
}

// What the controls ask for.
function asked() {
  const values = {};
  for (const select of selects()) {
    if (select.value) values[select.dataset.filter] = select.value;
  }
  return { name: document.getElementById("filter").value.trim().toLowerCase(), values,
    fresh: document.getElementById("fresh").checked };
}

// Hides what is filtered within a part of the page.
function filterPart(part, wanted) {
  const filtered = "section.board tbody tr, section.board li[data-name], .claims tr[data-category], article[data-name], .technique";
  for (const each of part.querySelectorAll(filtered)) each.hidden = !passes(each.dataset, wanted);
}

function filterPage() {
  const wanted = asked();
  const anyName = { name: "", values: wanted.values, fresh: false };
  remember(wanted);
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
    document.getElementById("find").value = "";
    find();
    for (const select of selects()) select.value = "";
    filterPage();
  }
  const inside = target.matches("section:not(.goal)") && target.querySelector(":scope > details");
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
  window.addEventListener("hashchange", reveal);
  const finder = document.getElementById("find");
  if (finder) {
    finder.hidden = false;
    finder.addEventListener("input", find);
  }
  const controls = document.getElementById("controls");
  if (controls) {
    controls.addEventListener("input", filterPage);
    controls.addEventListener("submit", (event) => event.preventDefault());
    document.getElementById("csv").addEventListener("click", async () => save("leantrain.csv", "text/csv", csv(await rows())));
    document.getElementById("json").addEventListener("click", async () => save("leantrain.json", "application/json", JSON.stringify(await rows())));
    document.getElementById("filters").hidden = false;
    recall();
    filterPage();
  }
  if (location.hash) reveal();
}
