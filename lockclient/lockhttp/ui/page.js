// The page works without this script; with it the tables follow the server and
// the times count. Cells are changed in place, so that the focus stays.
"use strict";

const live = document.getElementById("live");
const filter = document.getElementById("filter");
const everyMs = 2000;
let loadedAt = performance.now();
let failures = 0;

// clock writes seconds as the server does.
function clock(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  const two = (n) => String(n).padStart(2, "0");
  return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)}` : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
}

function tick() {
  const passed = (performance.now() - loadedAt) / 1000;
  for (const cell of live.querySelectorAll("[data-up]")) {
    cell.textContent = clock(Number(cell.dataset.up) + passed);
  }
  for (const cell of live.querySelectorAll("[data-down]")) {
    const left = Number(cell.dataset.down) - passed;
    cell.textContent = left > 0 ? clock(left) : "expired";
    cell.classList.toggle("soon", left < 5);
  }
}

function sameAttributes(from, to) {
  for (const { name } of [...to.attributes]) {
    if (!from.hasAttribute(name)) to.removeAttribute(name);
  }
  for (const { name, value } of from.attributes) {
    if (to.getAttribute(name) !== value) to.setAttribute(name, value);
  }
}

function patchRows(from, to) {
  const old = new Map([...to.children].map((row) => [row.dataset.key, row]));
  let before = to.firstElementChild;
  for (const row of [...from.children]) {
    const known = old.get(row.dataset.key);
    old.delete(row.dataset.key);
    if (!known || known.children.length !== row.children.length) {
      if (known === before && before) before = before.nextElementSibling;
      if (known) known.remove();
      to.insertBefore(row, before);
      continue;
    }
    sameAttributes(row, known);
    [...row.children].forEach((cell, n) => {
      const there = known.children[n];
      sameAttributes(cell, there);
      if (there.innerHTML !== cell.innerHTML) there.innerHTML = cell.innerHTML;
    });
    if (known === before) before = before.nextElementSibling;
    else to.insertBefore(known, before);
  }
  for (const row of old.values()) row.remove();
}

async function refresh() {
  const status = document.getElementById("status");
  try {
    const query = new URLSearchParams(new FormData(filter));
    const answer = await fetch(`${live.dataset.from}?${query}`, { credentials: "same-origin", redirect: "error" });
    if (answer.status === 401) {
      location.reload();
      return;
    }
    if (!answer.ok) throw new Error(`the server says ${answer.status}`);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    loadedAt = performance.now();
    failures = 0;
    const shown = [...live.querySelectorAll("[data-live-rows]")];
    fresh.querySelectorAll("[data-live-rows]").forEach((rows, n) => shown[n] && patchRows(rows, shown[n]));
    const now = fresh.getElementById("status").textContent;
    document.getElementById("more").innerHTML = fresh.getElementById("more").innerHTML;
    if (!fresh.querySelector(".problem")) live.querySelector(".problem")?.remove();
    if (status.textContent !== now) status.textContent = now; // a reader says it once
    tick();
  } catch (error) {
    failures += 1;
    if (failures === 2) status.textContent = `Not up to date: ${error.message}`;
  }
}

if (live && filter) {
  let typing;
  filter.addEventListener("submit", (event) => {
    event.preventDefault();
    refresh();
  });
  filter.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(refresh, 200);
  });
  setInterval(tick, 1000);
  setInterval(() => document.hidden || refresh(), everyMs);
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
  tick();
}
