// The view of models: their states, and for administrators buttons that load and unload.

import { element, make, show, size } from "./elements.js";
import { call, events } from "./events.js";

const items = new Map(); // by name
const loading = new Map(); // the share that is loaded, by name
const faults = new Map(); // messages, by name

export function draw({ you, status }) {
  const list = element("model-list");
  for (const [name, item] of items) {
    if (status.models.some((each) => each.name === name)) continue;
    item.root.remove();
    items.delete(name);
  }
  for (const model of status.models) {
    const item = items.get(model.name) ?? added(list, model.name);
    Object.assign(item, { model, administers: you.administers });
    refresh(item);
  }
}

function added(list, name) {
  const item = {
    root: make("li"), title: make("h3", name), facts: make("p"), fault: make("p", "", { className: "bad" }),
    bar: make("progress", "", { max: 1, hidden: true }), button: make("button", "", { type: "button" }), act: null,
  };
  item.fault.setAttribute("role", "alert");
  item.bar.setAttribute("aria-label", `Loading ${name}`);
  item.button.addEventListener("click", () => item.act());
  item.root.append(item.title, item.facts, item.fault, item.bar, item.button);
  list.append(item.root);
  items.set(name, item);
  return item;
}

function refresh(item) {
  const { model, administers } = item;
  const resident = model.engines.reduce((sum, each) => sum + each.rss_bytes, 0);
  const facts = [
    model.state + (model.default ? ", the default" : ""), `file ${size(model.size_bytes)}`,
    resident ? `in memory ${size(resident)}` : "", model.device, model.context_tokens ? `${model.context_tokens} tokens` : "",
    model.can.join(", "),
  ];
  set(item.facts, facts.filter(Boolean).join(" · "));
  set(item.fault, faults.get(model.name) ?? model.reason ?? "");
  const share = loading.get(model.name);
  item.bar.hidden = share === undefined && model.state !== "loading";
  if (share === undefined) item.bar.removeAttribute("value");
  else item.bar.value = share;
  const loads = model.state === "unloaded" || model.state === "failed";
  item.button.hidden = !administers;
  item.button.disabled = share !== undefined || !(loads || model.state === "ready");
  set(item.button, loads ? "Load" : "Unload");
  item.button.setAttribute("aria-label", `${loads ? "Load" : "Unload"} ${model.name}`);
  item.act = () => change(model.name, loads);
}

function set(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

async function change(name, loads) {
  faults.delete(name);
  progressed(name, 0);
  show("state", `${loads ? "Loading" : "Unloading"} ${name} …`);
  try {
    const accept = loads ? "text/event-stream" : "application/json";
    const answer = await call(`/models/${loads ? "load" : "unload"}`, { body: { model: name }, accept });
    if (!loads) return;
    for await (const { name: kind, data } of events(answer)) {
      if (kind === "progress" && data.total) progressed(name, data.done / data.total);
    }
  } catch (error) {
    faults.set(name, error.message);
  } finally {
    loading.delete(name);
    if (items.has(name)) refresh(items.get(name));
  }
}

function progressed(name, share) {
  loading.set(name, share);
  if (items.has(name)) refresh(items.get(name));
}
