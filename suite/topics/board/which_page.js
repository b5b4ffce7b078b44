"use strict";

// The value of a compressed element of the page (RFC 1952): distinct pieces of its text, and which follow each other.
async function inflated(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (each) => each.charCodeAt(0));
  const content = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const [pieces, places] = await new Response(content).json();
  return JSON.parse(places.map((place) => pieces[place]).join(""));
}

const gigabytes = (billions, bytes) => (billions * bytes).toPrecision(3).replace(/\.?0+$/, "");

// A technique's cells for what was chosen; each is its words and how it is coloured.
function cells(row, data, wanted) {
  const [, stack, does, verdict, why, quality, plain, own, activations, steps, trials] = row;
  const states = own === null ? "" : `${gigabytes(wanted.parameters, plain)} → ${gigabytes(wanted.parameters, own)}`;
  const step = steps[wanted.gpu];
  const ratio = !step ? "" : step[1] === step[2] ? "the same" : `×${step[0].toFixed(2)} [${step[1].toFixed(2)}, ${step[2].toFixed(2)}]`;
  const trial = wanted.model === "" ? null : trials[data.models.indexOf(wanted.model)];
  return [
    [`${stack}: ${does}`, ""],
    [why ? `${verdict}: ${why}` : verdict, verdict === "helps" || verdict === "costs" ? verdict : ""],
    [states, own !== null && own * wanted.parameters > wanted.memory ? "over" : ""],
    [activations === null ? "" : `${Math.round(100 * activations)} %`, ""],
    [ratio, ""],
    [quality, ""],
    [trial === null || trial === undefined ? "" : data.states[trial], ""],
  ];
}

function show(data, form) {
  const wanted = { goal: form.goal.value, model: form.model.value, gpu: form.gpu.value };
  wanted.parameters = Number(form.parameters.value), wanted.memory = Number(form.memory.value);
  const rows = data.rows.filter(([goal]) => goal === wanted.goal);
  const lines = rows.map((row) => {
    const line = document.createElement("tr");
    line.append(...cells(row, data, wanted).map(([textContent, className]) => Object.assign(document.createElement("td"), { textContent, className })));
    return line;
  });
  document.getElementById("techniques").replaceChildren(...lines);
  const helping = rows.filter((row) => row[3] === "helps").length;
  document.getElementById("count").textContent = `${rows.length} techniques, ${helping} help`;
  const goal = { memory: "memory", robustness: "quality" }[wanted.goal] || "time";
  const task = wanted.goal === "trained" ? " --task adapt" : "";
  document.getElementById("command").textContent = `leantrain recommend --model MY_FOLDER --memory ${wanted.memory}GB --goal ${goal}${wanted.gpu && ` --gpu ${wanted.gpu}`}${task}`;
}

async function begin() {
  const data = await inflated("data"), form = document.getElementById("controls");
  const option = (value) => Object.assign(document.createElement("option"), { value, textContent: value });
  form.model.append(...data.models.map(option));
  form.gpu.append(...data.gpus.map(([gpu]) => option(gpu)));
  const memory = Object.fromEntries(data.gpus);
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) if (form[name]) form[name].value = value;
  form.hidden = false;
  form.gpu.addEventListener("change", () => { if (memory[form.gpu.value]) form.memory.value = memory[form.gpu.value]; });
  form.addEventListener("input", () => show(data, form));
  form.addEventListener("change", () => show(data, form));
  form.addEventListener("submit", (event) => event.preventDefault());
  show(data, form);
}

begin();
