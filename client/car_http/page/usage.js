// The view of usage: the ledger's sums by day, person, app or model, the viewer's own or for administrators of all.

import { duration, element, make, show } from "./elements.js";
import { call } from "./events.js";

const AGAIN_MS = 60_000;
const AMOUNTS = ["completed", "failed", "cancelled", "rejected"];
let read = { by: "", at: -Infinity }; // the report that is shown, or comes

export function begin() {
  element("usage-by").addEventListener("change", draw);
}

export function draw() {
  const by = element("usage-by").value;
  if (by === read.by && performance.now() - read.at < AGAIN_MS) return;
  const mine = (read = { by, at: performance.now() });
  call(`/card/usage?by=${by}`)
    .then((answer) => answer.json())
    .then((report) => { if (read === mine) draw_report(report, by); })
    .catch((error) => { if (read === mine) show("usage-state", error.message, true); });
}

function draw_report(report, by) {
  const shown = [...report.rows];
  // Days in their order, the newest first; all else by tokens.
  if (by === "day") shown.reverse();
  const most = Math.max(1, ...shown.map(tokens));
  element("usage-rows").replaceChildren(...shown.map((row) => line(row, by, most)), line(report.total, "", 0));
  const left = report.left_out ? `; ${report.left_out} rows left out` : "";
  show("usage-state", report.why ?? `${report.since} to ${report.until}${left}`, Boolean(report.why));
}

const tokens = (row) => (row.computed_tokens ?? 0) + (row.completion_tokens ?? 0);

function line(row, by, most) {
  const root = make("tr");
  const name = make("th", by ? named(row, by) : "Total", { scope: "row" });
  const requests = AMOUNTS.reduce((sum, each) => sum + (row[each] ?? 0), 0);
  const texts = [requests, row.cached_tokens ?? 0, tokens(row)].map((each) => each.toLocaleString("en"));
  const bar = make("td");
  if (most) {
    const meter = make("meter", "", { max: most, value: tokens(row) });
    meter.setAttribute("aria-label", `Tokens of ${name.textContent}`);
    bar.append(meter);
  }
  root.append(name, ...[...texts, duration(1000 * (row.device_s ?? 0))].map((each) => make("td", each)), bar);
  return root;
}

function named(row, by) {
  return by === "person" ? row.person ?? `uid ${row.uid}` : row[by] || "without a name";
}
