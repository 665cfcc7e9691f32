// The page: signs in, keeps one stream of events while it is looked at, and shows the chosen view.

import { element, show } from "./elements.js";
import { call, events } from "./events.js";
import * as models from "./models.js";
import * as now from "./now.js";
import * as talk from "./talk.js";
import * as usage from "./usage.js";

const VIEWS = { now, models, usage, talk };
const AGAIN_MS = 1000; // after a lost door or daemon
// The tabs of a browser share one session: each begins anew when another tab has changed it.
const tabs = new BroadcastChannel("card");
let newest = null;
let looking = null; // ends the stream
let viewer; // the name of who is signed in, undefined until an event has said it

function shown() {
  const wanted = location.hash.slice(1);
  return Object.hasOwn(VIEWS, wanted) ? wanted : "now";
}

function route() {
  for (const name of Object.keys(VIEWS)) element(name).hidden = !newest || name !== shown();
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${shown()}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (newest) VIEWS[shown()].draw(newest);
}

async function look() {
  if (looking || document.hidden) return;
  const mine = (looking = new AbortController());
  try {
    const answer = await call("/card/events", { accept: "text/event-stream", signal: mine.signal });
    for await (const { name, data } of events(answer)) if (name === "status") take(data);
    lost("The door ended the connection.");
  } catch (error) {
    if (mine.signal.aborted) return;
    if (error.status === 401) ask();
    else lost(error.status ? error.message : "The door does not answer.");
  } finally {
    if (looking === mine) looking = null;
  }
}

function take(event) {
  if (viewer !== undefined && viewer !== event.you.name) return anew();
  viewer = event.you.name;
  const first = !newest;
  newest = event;
  element("sign-in").hidden = true;
  element("leave").hidden = !event.you.name;
  show("state", event.status.state === "serving" ? `Live${event.you.name && `, as ${event.you.name}`}` : "Draining", event.status.state !== "serving");
  if (first) route();
  else VIEWS[shown()].draw(event);
}

function lost(message) {
  show("state", message, true);
  setTimeout(look, AGAIN_MS);
}

// Nothing of this person stays for the next one: conversation, usage, requests.
function anew() {
  location.reload();
}

function ask() {
  if (viewer !== undefined) return anew();
  newest = null;
  element("leave").hidden = true;
  element("sign-in").hidden = false;
  show("state", "Not signed in");
  route();
  element("key").focus();
}

async function enter(key) {
  try {
    await call("/card/session", { body: {}, headers: { authorization: `Bearer ${key}` } });
  } catch (error) {
    show("refused", error.message, true);
    // A link may come to somebody who is signed in, and stays so.
    return look();
  }
  tabs.postMessage("signed in");
  if (viewer !== undefined) anew();
  show("refused", "");
  look();
}

// The link of `carctl page` has the key behind #, which a browser sends to no server.
function linked() {
  const key = new URLSearchParams(location.hash.slice(1)).get("key");
  if (!key) return false;
  history.replaceState(null, "", "/");
  enter(key);
  return true;
}

element("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = element("key").value.trim();
  element("key").value = "";
  enter(key);
});
element("leave").addEventListener("click", async () => {
  await call("/card/session", { method: "DELETE" }).catch(() => {});
  tabs.postMessage("signed out");
  anew();
});
tabs.addEventListener("message", anew);
addEventListener("hashchange", () => linked() || route());
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    looking?.abort();
    looking = null;
    show("state", "Paused");
  } else look();
});

talk.begin();
usage.begin();
route();
if (!linked()) look();
