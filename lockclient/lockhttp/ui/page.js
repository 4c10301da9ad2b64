// The operators' page is a client of the server's API, which /openapi.json describes.
// Whatever it shows of a response is text, never HTML.
"use strict";

const everyMs = 2000;
const shownMost = 200;
const problemPrefix = "tag:fencepost-go.github.io,2026:problem/";
const tokenKey = "fencepost-token";

const byId = (id) => document.getElementById(id);
const filter = byId("filter");
let loadedAt = 0; // when the tables were loaded
let turn = 0; // of the last refresh: a slower one that is overtaken shows nothing
let operator = true; // until the server says otherwise
let cutting = null; // the request that the form of a force unlock sends; what belongs to another is late

// show shows one view, with a problem if there is one.
function show(view, problem = "") {
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.id !== view;
  const line = document.querySelector(`#${view} > .problem`);
  if (line) {
    line.textContent = problem;
    line.hidden = problem === "";
  }
  byId("sign-out").hidden = !sessionStorage.getItem(tokenKey);
}

// call sends a request. word is that of the problem, if the response is one of the
// server's; without a response that is JSON it throws.
async function call(method, path, body) {
  const headers = {};
  const token = sessionStorage.getItem(tokenKey);
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body) headers["Content-Type"] = "application/json";
  const response = await fetch(path, { method, headers, body: body && JSON.stringify(body), redirect: "error", cache: "no-store" });
  const answer = await response.json();
  const type = String(answer.type ?? "");
  return { ok: response.ok, status: response.status, answer, word: type.startsWith(problemPrefix) ? type.slice(problemPrefix.length) : "" };
}

function refused(response) {
  return new Error(response.answer.detail ?? `the server says ${response.status}`);
}

function clock(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  const two = (n) => String(n).padStart(2, "0");
  return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)}` : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
}

// tick lets the times in the table run between two refreshes.
function tick() {
  const passed = (performance.now() - loadedAt) / 1000;
  for (const cell of document.querySelectorAll("[data-up]")) cell.textContent = clock(Number(cell.dataset.up) + passed);
  for (const cell of document.querySelectorAll("[data-down]")) {
    const left = Number(cell.dataset.down) - passed;
    cell.textContent = left > 0 ? clock(left) : "expired";
    cell.classList.toggle("soon", left < 5);
  }
}

// fill shows rows in a table: each has a key and a list of cells. Rows and cells that stay
// are changed in place, so that the focus stays too.
function fill(body, rows, empty) {
  const keys = new Set(rows.map((row) => row.key));
  const old = new Map();
  for (const row of [...body.rows]) {
    if (keys.has(row.dataset.key)) old.set(row.dataset.key, row);
    else row.remove();
  }
  const titles = [...body.parentElement.tHead.rows[0].cells].map((cell) => cell.textContent);
  rows.forEach(({ key, state, cells, lock }, n) => {
    const row = old.get(key) ?? newRow(key, titles);
    row.className = state ?? "";
    row.lock = lock;
    cells.forEach((value, column) => fillCell(row.cells[column], value));
    if (body.rows[n] !== row) body.insertBefore(row, body.rows[n] ?? null);
  });
  if (rows.length === 0) {
    const row = body.insertRow();
    row.dataset.key = "\n"; // of no resource
    row.insertCell().textContent = empty;
    row.cells[0].colSpan = titles.length;
    row.cells[0].className = "faint";
  }
}

function newRow(key, titles) {
  const row = document.createElement("tr");
  row.dataset.key = key;
  row.setAttribute("role", "row");
  titles.forEach((title, column) => {
    const cell = row.appendChild(document.createElement(column === 0 ? "th" : "td"));
    if (column === 0) cell.scope = "row";
    cell.setAttribute("role", column === 0 ? "rowheader" : "cell");
    cell.dataset.label = title === "Action" ? "" : title;
  });
  return row;
}

// fillCell shows a text, or what one of its members says.
function fillCell(cell, value) {
  const { text = "", up, down, number = false, faint = false, cut } = typeof value === "string" ? { text: value } : value;
  cell.classList.toggle("number", number);
  cell.classList.toggle("faint", faint);
  for (const [name, seconds] of [["up", up], ["down", down]]) {
    if (seconds === undefined) delete cell.dataset[name];
    else cell.dataset[name] = seconds;
  }
  if (cut !== undefined) {
    if (!cell.firstChild) {
      const button = cell.appendChild(document.createElement("button"));
      button.append("Force-unlock…");
      button.setAttribute("aria-label", `Force-unlock ${cut}`);
    }
  } else if (up === undefined && down === undefined && cell.textContent !== text) {
    cell.textContent = text;
  }
}

function lockRow(l) {
  const held = l.state === "held";
  return {
    key: l.resource, state: l.state, lock: l,
    cells: [
      l.resource,
      l.state === "free" ? { text: "free", faint: true } : l.ownerId,
      l.metadata ?? "",
      l.token ? { text: l.token, number: true } : { text: "hidden", faint: true },
      held ? { up: l.heldForSeconds, number: true } : "",
      held ? { down: l.remainingSeconds, number: true } : l.state === "expired" ? "expired" : "",
      { text: String(l.waiting), number: true },
      operator && l.state !== "free" ? { cut: l.resource } : "",
    ],
  };
}

function recordRow(r) {
  const when = `${r.createdAt.slice(0, 19).replace("T", " ")} UTC`;
  const holder = r.cut.state === "held" ? r.cut.ownerId : { text: "nobody held it", faint: true };
  return { key: String(r.id), cells: [r.resource, when, r.action, r.actorId, r.reason, holder, { text: r.token, number: true }] };
}

// list is a page of the locks. A filter that is the beginning of names finds them on later
// pages too.
async function list(words, state) {
  const page = async (prefix) => {
    const query = new URLSearchParams({ limit: shownMost, prefix, ...(state !== "all" && { state }) });
    return call("GET", `v1/locks?${query}`);
  };
  const first = await page("");
  if (first.ok && first.answer.next && words) {
    const narrow = await page(words);
    if (!narrow.ok && narrow.status !== 400) return narrow;
    if (narrow.ok && narrow.answer.locks.length > 0) return narrow;
  }
  return first;
}

// refresh loads what the tables show. What could not be loaded is not shown as "no lock":
// the tables stay as they are.
async function refresh() {
  const mine = ++turn;
  const words = filter.elements.filter.value;
  let problem = "";
  try {
    const [locks, audit] = await Promise.all([list(words, filter.elements.state.value), operator ? call("GET", "v1/audit?limit=20") : null]);
    if (mine !== turn) return;
    if (locks.status === 401) {
      signedOut("You are no longer signed in.");
      return;
    }
    if (!locks.ok) throw refused(locks);
    if (audit?.status === 403) operator = false;
    else if (audit && !audit.ok) throw refused(audit);
    loadedAt = performance.now();
    const has = (l) => `${l.resource}\n${l.ownerId}\n${l.metadata ?? ""}`.toLowerCase().includes(words.toLowerCase());
    const shown = locks.answer.locks.filter(has);
    fill(byId("lock-rows"), shown.map(lockRow), "No lock is shown.");
    byId("audit").hidden = !operator;
    if (operator) fill(byId("audit-rows"), audit.answer.records.map(recordRow), "Nothing was force-unlocked.");
    byId("more").hidden = !locks.answer.next;
    const count = shown.length === 1 ? "1 lock shown" : `${shown.length} locks shown`;
    if (byId("status").textContent !== count) byId("status").textContent = count; // a reader says it once
    tick();
  } catch (error) {
    problem = `Not up to date: ${error.message}`;
  }
  if (mine === turn && !byId("locks").hidden) show("locks", problem);
}

function look() {
  show("locks");
  return refresh();
}

function signedOut(problem) {
  const had = sessionStorage.getItem(tokenKey);
  sessionStorage.removeItem(tokenKey);
  // Nothing of this person's is left for the next one, and what is in flight is late.
  turn++;
  cutting = null;
  for (const id of ["lock-rows", "audit-rows", "status", "chosen", "typed-hint", "result", "invalidated"]) byId(id).replaceChildren();
  for (const form of document.forms) form.reset();
  show("sign-in", had ? problem : "");
  byId("token").focus();
}

async function signIn() {
  sessionStorage.setItem(tokenKey, byId("token").value.trim());
  let status = 0;
  try {
    ({ status } = await call("GET", "v1/time"));
  } catch {
    // There is no response, so nobody knows.
  }
  if (status === 401) signedOut("This token is not accepted.");
  else if (status !== 200) signedOut("Your identity could not be verified. Try again.");
  else {
    operator = true;
    await look();
  }
}

function describe(list, facts) {
  list.replaceChildren(...Object.entries(facts).flatMap(([name, value]) => {
    const term = document.createElement("dt");
    const description = document.createElement("dd");
    term.textContent = name;
    description.textContent = value;
    return value ? [term, description] : [];
  }));
}

// choose looks again at the lease that is about to be cut, and asks.
async function choose(chosen) {
  const mine = {};
  cutting = mine;
  let now;
  let problem = "";
  try {
    const response = await call("GET", `v1/resources/${encodeURIComponent(chosen.resource)}`);
    if (!response.ok) throw refused(response);
    now = response.answer;
  } catch (error) {
    if (mine === cutting) show("locks", `The lease could not be read: ${error.message}`);
    return;
  }
  if (mine !== cutting) return;
  if (now.state === "free") problem = "Nobody has the lease any more: there is nothing to cut.";
  else if (!now.leaseId) problem = "The server does not show you the lease's ID, without which another one could be cut.";
  else if (now.leaseId !== chosen.leaseId) problem = "The lease is another one than you chose: look again before you cut it.";
  const requestId = [...crypto.getRandomValues(new Uint32Array(4))].map((n) => n.toString(16)).join("-");
  Object.assign(mine, { resource: now.resource, leaseId: now.leaseId, requestId, doubtful: false });
  describe(byId("chosen"), { Resource: now.resource, State: now.state, Owner: now.ownerId, Metadata: now.metadata, Token: now.token, "Lease ID": now.leaseId });
  byId("cutting").hidden = now.state === "free" || !now.leaseId;
  byId("typed").value = "";
  byId("typed-hint").textContent = now.resource;
  show("confirm", problem);
  byId("main").focus();
}

// cut sends the force unlock: of the lease that was shown and of no other, and under one
// request ID however often it is sent, so that it is carried out once. After an attempt
// that may have been carried out, no refusal of a later one says that nothing was done.
async function cut() {
  const mine = cutting;
  const notDone = (why) => show("confirm", mine.doubtful ? `It is not known whether it was done. Send the form again: it is carried out once. Now: ${why}` : `Nothing was done: ${why}`);
  if (byId("typed").value !== mine.resource) {
    notDone("what you typed is not the resource's name.");
    return;
  }
  let response = { ok: false, answer: {}, word: "" };
  try {
    response = await call("POST", `v1/resources/${encodeURIComponent(mine.resource)}/force-unlock`, {
      actorId: byId("actor").value, reason: byId("reason").value.trim().replace(/\s+/g, " "), leaseId: mine.leaseId, requestId: mine.requestId,
    });
  } catch {
    // There is no response of the server, so nobody knows.
  }
  if (mine !== cutting) return; // the audit says what became of it
  const { ok, status, answer, word } = response;
  if (ok && answer.resource === mine.resource && answer.invalidated?.token) done(answer);
  else if (word === "lease_changed") show("confirm", "Nothing was done: the lease is another one by now. Look again before you cut it.");
  else if (word && (status < 500 || ["setup", "unavailable", "unsupported"].includes(word))) notDone(answer.detail);
  else {
    mine.doubtful = true;
    show("confirm", "It is not known whether it was done. Send the form again: it is carried out once.");
  }
}

function done(unlocked) {
  byId("result").textContent = unlocked.raised
    ? `The lease on ${unlocked.resource} is over, and the resource's mark is at least ${unlocked.invalidated.token}: the cut holder's writes are refused.`
    : `The lease on ${unlocked.resource} is over. The cut holder can still write until this claim is raised at the resource.`;
  describe(byId("invalidated"), { "Invalidated token": unlocked.invalidated.token, "Its lease ID": unlocked.invalidated.leaseId, "Audit record": unlocked.auditId });
  byId("raise").hidden = unlocked.raised;
  byId("reason").value = "";
  show("done");
}

function onSubmit(form, run) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
}

onSubmit(document.querySelector("#sign-in form"), signIn);
onSubmit(document.querySelector("#confirm form"), cut);
onSubmit(filter, refresh);
let typing;
filter.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(refresh, 200);
});
byId("lock-rows").addEventListener("click", (event) => {
  if (event.target.closest("button")) choose(event.target.closest("tr").lock);
});
byId("sign-out").addEventListener("click", () => signedOut(""));
for (const link of document.querySelectorAll('a[href="ui"]')) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    if (byId("sign-in").hidden) look();
  });
}
const again = () => document.hidden || byId("locks").hidden || refresh();
setInterval(tick, 1000);
setInterval(again, everyMs);
document.addEventListener("visibilitychange", again);
look();
