"use strict";

const MOST = 500;  // lines that are shown at once

// The value of a compressed element of the page (RFC 1952): distinct pieces of its text, and which follow each other.
async function inflated(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (each) => each.charCodeAt(0));
  const content = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const [pieces, places] = await new Response(content).json();
  return JSON.parse(places.map((place) => pieces[place]).join(""));
}

// A technique's row names for each model its state, a reason and whether it is of older code; null: not tried.
function* chosen(data, wanted) {
  for (const [technique, row] of data.rows) {
    if (!technique.includes(wanted.technique)) continue;
    for (const [at, cell] of row.entries()) {
      const [model, baseline] = data.models[at];
      if (cell === null || !model.includes(wanted.model) || (wanted.baseline && baseline !== wanted.baseline)) continue;
      const [state, reason, stale] = cell;
      if ((wanted.state && data.states[state] !== wanted.state) || (wanted.stale && !stale)) continue;
      yield [technique, model, data.states[state] + (stale ? " †" : ""), data.reasons[reason]];
    }
  }
}

function show(data, form) {
  const values = Object.fromEntries(["technique", "model", "baseline", "state"].map((name) => [name, form[name].value]));
  const cells = [...chosen(data, { ...values, stale: form.stale.checked })];
  const lines = cells.slice(0, MOST).map((words) => {
    const line = document.createElement("tr");
    line.append(...words.map((each) => Object.assign(document.createElement("td"), { textContent: each })));
    line.cells[2].className = words[2].split(" ")[0];
    return line;
  });
  document.getElementById("cells").replaceChildren(...lines);
  const shown = cells.length > MOST ? `, the first ${MOST} shown` : "";
  document.getElementById("count").textContent = `${cells.length} cells${shown}`;
}

async function begin() {
  const data = await inflated("data"), form = document.getElementById("controls");
  const option = (value) => Object.assign(document.createElement("option"), { value, textContent: value });
  document.getElementById("techniques").append(...data.rows.map(([technique]) => option(technique)));
  document.getElementById("models").append(...data.models.map(([model]) => option(model)));
  form.baseline.append(...[...new Set(data.models.map(([, baseline]) => baseline))].map(option));
  form.state.append(...data.states.map(option));
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) if (form[name]) form[name].value = value;
  form.hidden = false;
  form.addEventListener("input", () => show(data, form));
  form.addEventListener("submit", (event) => event.preventDefault());
  show(data, form);
}

begin();
