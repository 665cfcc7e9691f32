// The view of this moment.

import { duration, element, fill, show, size } from "./elements.js";

const KEPT = 120; // points of the line
const EVERY_MS = 500; // between them: a minute in all
const AWAITED = {
  place: "a place in the full queue", engine: "its model", prompt: "its prompt", sequence: "a free sequence",
  turn: "its turn", reader: "its client to read",
};
const RULES = {
  env: "an environment variable", flag: "a flag", config: "the configuration", measured: "a measurement",
  memory: "free memory", ram_tiers: "the machine's memory", ram_per_8gb: "the machine's memory",
};
const speeds = [];
let drawn = 0;

const caller = (each) => [each.person, each.tenant, each.client].filter(Boolean).join(" / ") || "without a name";

export function draw({ status }) {
  const { capacity, memory, others } = status;
  const hidden = (others?.in_flight ?? 0) - (others?.sequences ?? 0);
  const waiting = status.waiting.reduce((sum, each) => sum + each.requests, 0);
  show("running-count", String(status.sequences.length + (others?.sequences ?? 0)));
  show("waiting-count", String(waiting + hidden));
  show("capacity", `${capacity.in_use} of ${capacity.capacity} used`);
  show("pressure", capacity.pressure, capacity.pressure !== "none");
  show("memory", `${size(memory.available)} of ${size(memory.total)}`);
  show("reason", why(capacity), capacity.state === "failed");
  drawSpeed(status.models.flatMap((each) => each.engines).reduce((sum, each) => sum + each.decode_tokens_per_s, 0));
  fill("running", status.sequences.map((each) => [
    caller(each), each.model, each.sequence, each.phase === "prefill" ? "reads" : "answers",
    each.phase === "prefill" ? `${each.done_tokens} of ${each.prompt_tokens}` : each.done_tokens, duration(each.age_ms),
  ]), "Nothing runs.");
  fill("waiting", status.waiting.map((each) => [
    each.position ?? "–", each.requests, caller(each), each.model, AWAITED[each.awaits] ?? each.awaits,
    duration(each.oldest_ms),
  ]), "Nothing waits.");
  show("others", others ? `Others: ${others.sequences} running, ${hidden} waiting.` : "");
}

function why(capacity) {
  if (capacity.reason) return `${capacity.model}: ${capacity.reason}`;
  if (capacity.declared == null) return `${capacity.model} is ${capacity.state}: one request at once until it is ready.`;
  const lowered = capacity.capacity < capacity.declared ? `; now ${capacity.capacity}, for memory or the machine's limit` : "";
  return `${capacity.model}: ${capacity.declared} at once, decided by ${RULES[capacity.policy] ?? capacity.policy}${lowered}.`;
}

function drawSpeed(speed) {
  show("speed", speed.toFixed(1));
  const now = performance.now();
  if (now - drawn < EVERY_MS) return;
  drawn = now;
  speeds.push(speed);
  if (speeds.length > KEPT) speeds.shift();
  const most = Math.max(1, ...speeds);
  const points = speeds.map((each, place) => `${KEPT - speeds.length + place},${(29 - (28 * each) / most).toFixed(1)}`);
  element("line").firstElementChild.setAttribute("points", points.join(" "));
}
