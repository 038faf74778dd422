// The page: one list of leases that is asked for again and again, one chosen lease, and the events of one of its commands.
import { Screen } from "./screen.js";

const $ = (id) => document.getElementById(id);
const screen = new Screen($("output"));
const refreshTime = 3000; // ms

// The token comes in the fragment of the address, which no server sees, or from the form. It stays in this tab.
if (location.hash.length > 1) {
  sessionStorage.token = decodeURIComponent(location.hash.slice(1));
  history.replaceState(null, "", location.pathname);
}

let leases = [];
let chosen = null; // id of a lease
let watched = null; // the command whose events are shown: { id, abort }

// call asks the service. What comes back when its asker has signed out is nobody's: it ends as stale.
async function call(method, path, body, options = {}) {
  const token = sessionStorage.token;
  const stale = () => sessionStorage.token !== token;
  const headers = { Authorization: `Bearer ${token}`, ...options.headers };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  // Without the cache: there, one request for an address would wait for another one.
  const response = await fetch(path, { ...options, method, headers, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body) });
  if (response.ok && !stale()) return response;
  if (response.status === 401 && !stale()) signOut("The token was not accepted.");
  if (stale()) {
    response.body?.cancel();
    throw signedOut();
  }
  const problem = await response.json().catch(() => ({}));
  throw Object.assign(new Error(problem.detail ?? `The service answered ${response.status}.`), { status: response.status, stale: stale() });
}

const signedOut = () => Object.assign(new Error("Signed out."), { stale: true });

// ask is call for an answer that is JSON, and whole.
async function ask(method, path, body) {
  const token = sessionStorage.token;
  const answer = await (await call(method, path, body)).json();
  if (sessionStorage.token !== token) throw signedOut();
  return answer;
}

// attempt does what the user asked for, and says so if it fails.
async function attempt(what, button) {
  $("notice").textContent = "";
  if (button) button.disabled = true;
  try {
    return await what();
  } catch (error) {
    if (!error.stale) $("notice").textContent = error.message;
  } finally {
    if (button) button.disabled = false;
    await refresh();
  }
}

function signOut(why = "") {
  $("notice").textContent = why;
  delete sessionStorage.token;
  watch(null);
  chosen = null;
  $("main").hidden = $("sign-out").hidden = $("idle").hidden = true;
  $("sign-in").hidden = false;
  $("token").focus();
}

async function refresh() {
  if (!sessionStorage.token) return signOut($("notice").textContent);
  try {
    const [list, report] = await Promise.all([ask("GET", "/v1/leases"), ask("GET", "/v1/idle")]);
    leases = list.leases;
    $("idle").textContent = report.idle ? "idle" : `${report.active.length} active`;
  } catch (error) {
    if (sessionStorage.token && !error.stale) $("notice").textContent = error.status ? error.message : "The service does not answer.";
    return;
  }
  $("sign-in").hidden = true;
  $("main").hidden = $("sign-out").hidden = $("idle").hidden = false;
  show();
}

const name = (lease) => `${lease.environment} / ${lease.run}`;

function show() {
  const list = $("leases");
  const items = new Map([...list.children].map((item) => [item.dataset.id, item]));
  for (const lease of leases) {
    let item = items.get(lease.id);
    items.delete(lease.id);
    if (!item) {
      item = document.createElement("li");
      item.dataset.id = lease.id;
      const button = document.createElement("button");
      button.type = "button";
      for (const part of ["name", "state", "more"]) button.append(Object.assign(document.createElement("span"), { className: part }));
      button.addEventListener("click", () => attempt(() => choose(lease.id)));
      item.append(button);
      list.append(item);
    }
    const button = item.firstElementChild;
    const [title, state, more] = button.children;
    set(title, name(lease));
    set(state, lease.state);
    state.dataset.state = lease.state;
    set(more, lease.running ? `${lease.running} running` : `since ${new Date(lease.createdAt).toLocaleTimeString()}`);
    button.setAttribute("aria-current", String(lease.id === chosen));
  }
  for (const item of items.values()) item.remove();
  $("no-leases").hidden = leases.length > 0;

  const lease = leases.find((l) => l.id === chosen);
  $("detail").hidden = !lease;
  $("nothing").hidden = !!lease;
  if (!lease) return watch(null);
  set($("lease-title"), name(lease));
  set($("lease-state"), lease.state);
  $("lease-state").dataset.state = lease.state;
  set($("lease-detail"), lease.detail ?? "");
  $("lease-detail").hidden = !lease.detail;
  const facts = { Sandbox: lease.sandbox, Workspace: lease.workspace };
  if (lease.expiresAt) facts.Expires = new Date(lease.expiresAt).toLocaleString();
  if ($("facts").dataset.of !== JSON.stringify(facts)) {
    $("facts").dataset.of = JSON.stringify(facts);
    $("facts").replaceChildren(...Object.entries(facts).flatMap(([term, value]) => [
      Object.assign(document.createElement("dt"), { textContent: term }),
      Object.assign(document.createElement("dd"), { textContent: value }),
    ]));
  }
  $("resume").hidden = !["stopped", "unverified"].includes(lease.state);
  $("keep").hidden = lease.state !== "active";
  $("destroy").disabled = ["resuming", "ending"].includes(lease.state);
  $("command").disabled = $("run").querySelector("[type=submit]").disabled = lease.state !== "active";
}

// set leaves alone what is right already, so that nothing is announced twice.
function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

async function choose(id) {
  watch(null);
  chosen = id;
  show();
  $("history").replaceChildren();
  if (!$("command").disabled) $("command").focus();
  const { commands } = await ask("GET", `/v1/leases/${id}/commands`);
  if (chosen !== id) return;
  for (const command of commands) remember(command);
  if (commands.length) watch(commands.at(-1).id);
}

function remember(command) {
  const text = command.script ?? command.args.join(" ");
  $("history").append(new Option(text, command.id));
}

// watch shows a command's output from its beginning, and goes on behind the last event whenever the connection ends.
function watch(id) {
  if (watched) watched.abort.abort();
  watched = null;
  $("interrupt").disabled = true;
  set($("command-state"), "");
  screen.clear();
  if (!id) return;
  const mine = (watched = { id, abort: new AbortController() });
  $("history").value = id;
  $("interrupt").disabled = false;
  set($("command-state"), "running");
  follow(mine, `/v1/leases/${chosen}/commands/${id}/events`);
}

async function follow(mine, path) {
  let last = "";
  while (watched === mine) {
    try {
      const response = await call("GET", path, undefined, { headers: last ? { "Last-Event-ID": last } : {}, signal: mine.abort.signal });
      if (watched !== mine) return;
      set($("command-state"), "running");
      for await (const event of events(response.body)) {
        if (watched !== mine) return;
        last = event.id;
        if (event.event === "end") return ended(JSON.parse(event.data));
        screen.write(event.event, Uint8Array.from(atob(event.data), (c) => c.charCodeAt(0)));
      }
    } catch (error) {
      if (watched !== mine) return;
      if (error.status === 404) return watch(null);
    }
    set($("command-state"), "connecting again");
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

function ended(command) {
  screen.write("stdout");
  screen.write("stderr");
  $("interrupt").disabled = true;
  const result = command.result;
  let text = command.state === "exited" ? `exit ${result.exitCode}` : command.state;
  if (result.timedOut) text += ", out of time";
  if (result.error) text += `: ${result.error}`;
  else if (!result.complete) text += ", output incomplete";
  set($("command-state"), `${text} · ${(result.durationMs / 1000).toFixed(1)} s`);
  refresh();
}

// events parses a body of server-sent events.
async function* events(body) {
  let buffer = "";
  for await (const text of body.pipeThrough(new TextDecoderStream())) {
    buffer += text;
    for (let end; (end = buffer.indexOf("\n\n")) >= 0; buffer = buffer.slice(end + 2)) {
      const event = {};
      for (const line of buffer.slice(0, end).split("\n")) {
        const colon = line.indexOf(": ");
        if (colon > 0) event[line.slice(0, colon)] = line.slice(colon + 2);
      }
      if (event.event) yield event;
    }
  }
}

$("sign-in").addEventListener("submit", (e) => {
  e.preventDefault();
  sessionStorage.token = $("token").value;
  $("token").value = "";
  attempt(async () => {});
});
$("sign-out").addEventListener("click", () => signOut());
$("create").addEventListener("click", () => attempt(async () => {
  const lease = await ask("POST", "/v1/leases", {});
  await refresh();
  await choose(lease.id);
}, $("create")));
$("resume").addEventListener("click", () => attempt(() => call("POST", `/v1/leases/${chosen}/resume`), $("resume")));
$("keep").addEventListener("click", () => attempt(() => call("POST", `/v1/leases/${chosen}/release`, { keep: true }), $("keep")));
$("destroy").addEventListener("click", () => $("confirm").showModal());
$("confirm").addEventListener("close", () => {
  if ($("confirm").returnValue === "yes") attempt(() => call("DELETE", `/v1/leases/${chosen}`));
  $("confirm").returnValue = "";
});
$("history").addEventListener("change", () => watch($("history").value));
$("run").addEventListener("submit", (e) => {
  e.preventDefault();
  const script = $("command").value;
  attempt(async () => {
    // The id is ours: if the answer is lost, asking again starts nothing twice.
    const request = { id: crypto.randomUUID(), script };
    const path = `/v1/leases/${chosen}/commands`;
    const command = await ask("POST", path, request).catch((error) => {
      if (error.status || error.stale) throw error;
      return ask("POST", path, request);
    });
    remember(command);
    watch(command.id);
    $("command").select();
  });
});
$("interrupt").addEventListener("click", () => attempt(() => call("POST", `/v1/leases/${chosen}/commands/${watched.id}/signal`, { signal: "INT" })));

refresh();
setInterval(() => document.hidden || refresh(), refreshTime);
