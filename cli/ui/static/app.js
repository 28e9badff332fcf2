// The page of `onceward ui`. What it shows is written as text, never as HTML.
"use strict";

const EVERY = 2000; // milliseconds between two looks
const OLD = 10; // seconds after which a waiting decision is worth a warning
const $ = (id) => document.getElementById(id);

let token = "";
let state = null;
const known = new Map(); // what the server has sent, by path: {version, parts}
let found = null; // what the targets showed: {at, rows, unanswered} or {error}
let looking = false;
let drawn = 0; // when
let stale = false; // whether `state` has changed since
let message = null; // what the last action did: {kind, text}
let chosenEpoch = null;
const checked = new Set();
const open = new Set();

// Small helpers

// Control characters, and those that turn the direction of text, are shown as the command line shows them: names, errors
// and addresses come from logs and targets, and "live" behind U+202E looks like "evil".
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;
const visible = (text) => text.replace(UNSEEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

function h(name, props, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : visible(String(value)));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== "")
    .map((child) => (typeof child === "string" ? visible(child) : child)));
  return node;
}

const many = (n, what) => `${number(n)} ${what}${n === 1 ? "" : "s"}`;
const number = (n) => (n === null || n === undefined ? "" : new Intl.NumberFormat("en").format(n));

function duration(ms) {
  if (ms === null || ms === undefined) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s.toFixed(s < 10 ? 2 : 1)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  return s < 129600 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} days`;
}

function bytes(n) {
  if (n === null || n === undefined) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; n >= 1024 && unit < 4; unit++) n /= 1024;
  return `${unit && n < 10 ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}

const age = (at) => (at ? Date.now() - new Date(at).getTime() : NaN);
const ago = (at) => {
  const seconds = Math.round(age(at) / 1000);
  if (Number.isNaN(seconds)) return "";
  if (seconds < 2) return "just now";
  return seconds < 90 ? `${seconds} s ago` : `${duration(age(at))} ago`;
};

function clock(at, full) {
  const when = new Date(at ?? "");
  if (Number.isNaN(when.getTime())) return at ?? "";
  const time = when.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: full ? 3 : undefined });
  const today = when.toDateString() === new Date().toDateString();
  return today ? time : `${when.toLocaleDateString("en-CA")} ${time}`;
}

const KINDS = {
  completed: "good", committed: "good", decided: "warn", "in doubt": "warn", "in progress": "", lingering: "warn",
  failed: "bad", declined: "bad", subsumed: "", "ahead of the log": "bad",
  running: "good", ended: "", silent: "warn", waiting: "bad", restarting: "bad", unreadable: "bad",
};
const pill = (text) => h("span", { class: `pill ${KINDS[text] ?? ""}` }, text);

// Talking to the server

async function ask(path, body) {
  const options = { headers: { "x-onceward-token": token }, cache: "no-store" };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    options.headers["content-type"] = "application/json";
  }
  const answer = await fetch(path, options);
  if (answer.status === 204) return null;
  const told = await answer.json();
  if (answer.ok) return told;
  const error = new Error(told.error);
  error.status = answer.status;
  throw error;
}

// Get what has changed of something; the server sends the parts that have.
async function update(path) {
  const before = known.get(path) ?? { version: 0, parts: {} };
  const told = await ask(`${path}?since=${before.version}`);
  const newest = known.get(path) ?? before; // another answer may have come meanwhile
  if (!told || told.version <= newest.version) return false;
  const parts = { ...newest.parts, ...told.parts };
  known.set(path, { version: told.version, parts: Object.fromEntries(["", ...parts[""].order].map((name) => [name, parts[name]])) });
  return true;
}

const shownOf = (one) => known.get(`/api/pipelines/${one.id}`);
const chosenPipeline = () => state.pipelines.find((one) => `#/${one.id}` === location.hash) ?? state.pipelines[0];

async function refresh() {
  try {
    let changed = await update("/api/state");
    const { parts } = known.get("/api/state");
    state = { ...parts[""], pipelines: parts[""].order.map((id) => parts[id]) };
    const current = chosenPipeline();
    if (current) changed = (await update(`/api/pipelines/${current.id}`)) || changed;
    live("live", "Connected");
    $("enter").hidden = true;
    stale ||= changed;
    // "3 s ago" grows old; but a text that somebody is selecting to copy stays.
    if ((stale || Date.now() - drawn > 10000) && getSelection().isCollapsed) render();
  } catch (error) {
    if (error.status === 401) {
      live("", "");
      askForToken(error.message);
      return;
    }
    live("lost", error.status ? error.message : "The server does not answer; retrying");
  }
}

// Read out by a screen reader: what is drawn anew is not.
function say(text) {
  $("said").textContent = visible(text);
}

function live(kind, text) {
  const line = $("live");
  text = visible(text);
  if (line.textContent !== text) line.textContent = text; // a status is read out when it changes
  line.dataset.state = kind;
}

async function loop() {
  for (;;) {
    if (token && !document.hidden && $("enter").hidden) await refresh();
    await new Promise((resolve) => setTimeout(resolve, EVERY));
  }
}

async function look() {
  looking = true;
  render();
  try {
    const { transactions, unanswered } = (await ask("/api/look", {})).done;
    found = { at: new Date().toISOString(), rows: transactions, unanswered };
  } catch (error) {
    found = { error: error.message };
  }
  looking = false;
  say(found.error ?? `Asked ${state.targets}: ${many(found.rows.length, "open, prepared or waiting transaction")}`);
  const held = new Set((found.rows ?? []).map((one) => one.exact));
  for (const name of checked) if (!held.has(name)) checked.delete(name);
  render();
}

async function act(path, body) {
  const { done } = await ask(path, body);
  message = { kind: "good", text: `${done}.` };
  say(message.text);
  await refresh();
  if (state?.targets) await look();
}

// The token

function askForToken(text) {
  $("refused").textContent = token ? visible(text) : "";
  token = "";
  known.clear(); // another server counts its versions anew
  sessionStorage.removeItem("onceward-token");
  $("content").replaceChildren();
  $("pipelines").replaceChildren();
  $("enter").hidden = false;
  $("token").focus();
}

function takeToken() {
  const given = /^#token=(.+)$/.exec(location.hash);
  if (given) {
    sessionStorage.setItem("onceward-token", decodeURIComponent(given[1]));
    history.replaceState(null, "", location.pathname); // so that it is in no bookmark or screenshot
  }
  token = sessionStorage.getItem("onceward-token") ?? "";
  known.clear();
}

// Rendering. All is drawn anew when something has changed; focus and scroll positions stay.

function render() {
  if (!state) return;
  drawn = Date.now();
  stale = false;
  const focused = document.activeElement?.dataset?.key;
  const scrolled = [...document.querySelectorAll("[data-scroll]")].map((node) => [node.dataset.scroll, node.scrollLeft]);
  const current = chosenPipeline();
  // The list is sorted by need: what is open stays open when another pipeline comes first.
  if (current && location.hash !== `#/${current.id}`) history.replaceState(null, "", `#/${current.id}`);
  const needy = state.pipelines.filter(needs).length + state.errors.length;
  document.title = current ? visible(`${needy ? `(${needy}) ` : ""}${current.name} ${current.status.state} · onceward`) : "onceward";
  const icon = needy ? "/static/icon-need.svg" : "/static/icon.svg";
  if ($("icon").getAttribute("href") !== icon) $("icon").setAttribute("href", icon);
  const told = needy ? `${many(needy, "pipeline")} of ${state.pipelines.length + state.errors.length} ${needy === 1 ? "needs" : "need"} somebody` : "";
  if ($("need").textContent !== told) $("need").textContent = told;
  $("need").dataset.state = needy ? "bad" : "";
  $("search").hidden = state.pipelines.length < MANY;
  $("pipelines").replaceChildren(...list(current));
  $("content").replaceChildren(
    ...state.errors.map((error) => h("p", { class: "note" }, error)),
    ...(current ? opened(current) : [nothing()]),
  );
  for (const [key, left] of scrolled) {
    const node = document.querySelector(`[data-scroll="${key}"]`);
    if (node) node.scrollLeft = left;
  }
  if (focused && !$("confirm").open) document.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

function nothing() {
  return h("section", { class: "card" }, h("h2", {}, "No pipeline yet"),
    h("p", { class: "soft" }, "There is no decision log in the given stores. A pipeline appears here when it starts for the first time."));
}

const MANY = 6; // pipelines from which on there is a search
const needs = (one) => !["running", "ended"].includes(one.status.state) && one.status.advice !== "";

function list(current) {
  const wanted = $("search").hidden ? "" : $("search").value.trim().toLowerCase();
  const shown = state.pipelines.filter((one) => one.name.toLowerCase().includes(wanted));
  const items = shown.map((one) => h("li", {},
    h("a", { href: `#/${one.id}`, "aria-current": one === current ? "page" : undefined, "data-key": `nav-${one.id}`, title: one.store },
      h("strong", {}, one.name),
      h("span", { class: "small soft" }, pill(one.status.state), ` ${summary(one)}`))));
  return [h("h2", {}, `Pipelines (${wanted ? `${items.length} of ` : ""}${state.pipelines.length})`), h("ul", { "data-scroll": "nav" }, items)];
}

function summary(one) {
  return one.epoch === null ? "no epoch yet" : `epoch ${one.epoch}, ${ago(one.newest)}`;
}

const waitingEpoch = (one) => (one.waiting === null ? undefined : one.epochs.find((row) => row.position === one.waiting && !row.completed));
const isStuck = (one) => age(waitingEpoch(one)?.decided) > OLD * 1000;

function opened(listed) {
  const shown = shownOf(listed);
  if (!shown) return []; // until the server has sent it
  const { pipeline: one, order } = shown.parts[""];
  return pipeline({ ...one, status: listed.status, epochs: order.map((epoch) => shown.parts[epoch]) });
}

function pipeline(one) {
  const newest = one.epochs[0];
  const last = one.epochs.find((row) => row.completed);
  const selected = one.epochs.find((row) => `${one.id}/${row.epoch}` === chosenEpoch) ?? newest;
  return [
    h("section", { class: `card ${needs(one) ? "bad" : ""}`, "aria-labelledby": "title" },
      h("div", { class: "head" }, h("h2", { id: "title" }, one.name), pill(one.status.state), h("span", { class: "small soft" }, one.driver)),
      ...advice(one.status),
      h("dl", { class: "facts" },
        fact("Newest epoch", newest ? number(newest.epoch) : "none", newest?.status),
        fact("Last commit", last ? ago(last.completed) : "none", last ? clock(last.completed) : ""),
        fact("Rows in it", last ? rowsOf(last) : "", last ? sinks(last) : ""),
        fact("Writer", `START ${one.generation}`, one.starts[0] ? `started ${ago(one.starts[0].at)}` : "")),
      h("p", { class: "small soft" }, `Decision log ${one.log} in `, h("code", {}, one.store))),
    one.error && one.read ? h("p", { class: "note warn" }, `What is shown below was read ${ago(one.read)}, and may have changed since.`) : null,
    doubt(one),
    epochs(one, selected),
    selected ? life(one, selected) : null,
    starts(one),
    givenUp(one),
  ].filter(Boolean);
}

// What is the matter, and what to do

function advice(status) {
  if (!needs({ status })) return [status.state === "running" ? null : h("p", {}, sentence(status.what))];
  const failed = status.error && !status.what.includes(status.error);
  return [
    h("p", { class: `note ${KINDS[status.state]}` }, sentence(status.what)),
    failed ? h("p", {}, `The last error: ${status.error}`) : null,
    status.error_at ? h("p", { class: "small soft" }, `Last error at ${clock(status.error_at)} (${ago(status.error_at)})`) : null,
    status.at_most ? h("p", { class: "small soft" }, "The time left is counted by the clocks of the driver and of the server of this page: ask the targets for theirs.") : null,
    status.since ? h("p", { class: "small soft" }, `Since ${clock(status.since)} (${ago(status.since)})`) : null,
    status.advice ? h("p", {}, `${sentence(status.advice)} `, h("a", { href: status.docs, target: "_blank", rel: "noreferrer" }, `What ${status.state} means`)) : null,
    status.command ? h("div", { class: "command" },
      h("pre", { tabindex: "0", "aria-label": "Command" }, status.command),
      h("button", { type: "button", class: "quiet", "data-key": "copy", onclick: () => copy(status.command) }, "Copy")) : null,
    status.fill_in ? h("p", { class: "small soft" }, sentence(status.fill_in)) : null,
  ];
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("The command is in the clipboard.");
  } catch {
    say("The browser does not give access to the clipboard: select the command, and copy it.");
  }
}

// How long there is: from what the targets said when they were asked

function deadline(one, epoch) {
  const times = expiringOf(one, epoch).map(expiry);
  return times.length ? Math.min(...times) : null;
}

const expiringOf = (one, epoch) => (found?.rows ?? []).filter((tx) => tx.pipeline === one.name && tx.epoch === epoch && tx.expires_in !== null);
const expiry = (tx) => new Date(found.at).getTime() + tx.expires_in * 1000;

function left(until) {
  const seconds = Math.max(0, Math.round((until - Date.now()) / 1000));
  const two = (n) => String(n).padStart(2, "0");
  if (seconds < 60) return `${seconds} s`;
  if (seconds >= 172800) return `${Math.floor(seconds / 86400)} days`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes}:${two(seconds % 60)} min` : `${Math.floor(minutes / 60)}:${two(minutes % 60)} h`;
}

setInterval(() => {
  for (const node of document.querySelectorAll("[data-until]")) node.textContent = left(Number(node.dataset.until));
}, 1000);

// Nobody wrote down the rows of an epoch that is older than all notes; a checkpoint without an epoch's note wrote none.
const rowsOf = (row) => row.rows !== null ? number(row.rows) : row.kind === "epoch" ? "not recorded" : number(0);

const fact = (name, value, note) => h("div", {}, h("dt", {}, name), h("dd", {}, value, note ? h("small", {}, note) : null));
const sinks = (row) => Object.entries(row.sinks).map(([name, rows]) => (rows === null ? name : `${name} ${number(rows)}`)).join(", ");

// Epochs and checkpoints

function epochs(one, selected) {
  const rows = one.epochs;
  if (!rows.length) return h("section", { class: "card" }, h("h3", {}, "Epochs"), h("p", { class: "soft" }, "No epoch is recorded yet."));
  const engine = rows.some((row) => row.subtasks !== null);
  const columns = [
    [engine ? "Checkpoint" : "Epoch", "", (row) => pick(one, row, selected)],
    ["Status", "", (row) => [pill(row.status), row.kind !== "epoch" && row.kind !== "checkpoint" ? ` ${row.kind}` : ""]],
    ["Ended", "", (row) => clock(row.completed ?? row.logged)],
    ["Duration", "number", (row) => duration(row.milliseconds)],
    ["Commit", "number", (row) => duration(row.commit_milliseconds)],
    ["Rows", "number", (row) => number(row.rows)],
    ["Transactions", "number", (row) => number(row.transactions)],
  ];
  if (engine) columns.push(
    ["State", "number minor", (row) => bytes(row.size)],
    ["Alignment", "number minor", (row) => (row.alignment === null ? "" : duration(row.alignment * 1000))],
    ["Acknowledged", "number minor", (row) => (row.subtasks ? `${row.acknowledged} of ${row.subtasks}` : "")],
  );
  const few = matchMedia("(max-width: 46rem)").matches ? 4 : 12; // on a phone, what comes after them is far below
  return h("section", { class: "card", "aria-labelledby": "epochs-title" },
    h("div", { class: "head" }, h("h3", { id: "epochs-title" }, engine ? "Checkpoints" : "Epochs"),
      h("span", { class: "small soft" }, `newest ${rows.length}`)),
    chart(rows, selected),
    table("epochs", columns, open.has("all") ? rows : rows.slice(0, few), (row) => (row === selected ? "chosen" : "")),
    rows.length > few ? h("button", { type: "button", class: "quiet", "data-key": "more", "aria-expanded": open.has("all"), onclick: () => toggle("all") },
      open.has("all") ? `Show the newest ${few}` : `Show all ${rows.length}`) : null);
}

function toggle(key) {
  open.has(key) ? open.delete(key) : open.add(key);
  render();
}

function pick(one, row, selected) {
  return h("button", { type: "button", class: "pick", "data-key": `pick-${row.epoch}`, "aria-pressed": row === selected, "aria-label": `Show the life of ${row.epoch}`,
    onclick: () => { chosenEpoch = `${one.id}/${row.epoch}`; render(); $("life")?.scrollIntoView({ block: "nearest" }); } }, String(row.epoch));
}

function table(key, columns, rows, className = () => "") {
  const head = h("tr", { role: "row" }, columns.map(([name, kind]) => h("th", { role: "columnheader", scope: "col", class: kind }, name)));
  const body = rows.map((row) => h("tr", { role: "row", class: className(row) }, columns.map(([name, kind, show]) => {
    const shown = [show(row)].flat();
    return h("td", { role: "cell", class: `${kind} ${shown.every((part) => part === "" || part === "none") ? "none" : ""}`, "data-label": name }, shown);
  })));
  return h("div", { class: "scroll", "data-scroll": key },
    h("table", { class: "cards", role: "table" }, h("thead", { role: "rowgroup" }, head), h("tbody", { role: "rowgroup" }, body)));
}

function chart(rows, selected) {
  const shown = rows.filter((row) => row.milliseconds !== null).slice(0, 40).reverse();
  if (shown.length < 2) return null;
  const most = Math.max(...shown.map((row) => row.milliseconds), 1);
  const bars = shown.map((row) => {
    const commit = h("i", {}), write = h("i", {});
    const part = Math.min(row.commit_milliseconds ?? 0, row.milliseconds);
    commit.style.height = `${(100 * part) / most}%`;
    write.style.height = `${(100 * (row.milliseconds - part)) / most}%`;
    const failed = row.status === "failed" || row.status === "declined";
    return h("div", { class: `${failed ? "failed" : ""} ${row === selected ? "chosen" : ""}`, title: `${row.epoch}: ${duration(row.milliseconds)}` }, commit, write);
  });
  return h("div", {},
    h("div", { class: "chart", role: "img", "aria-label": `Durations of the newest ${shown.length}; the longest took ${duration(most)}. The table below has the numbers.` }, bars),
    h("div", { class: "legend", "aria-hidden": "true" }, h("span", {}, h("b", {}), "write and prepare"), h("span", {}, h("b", { class: "commit" }), "decide and commit"), h("span", {}, `longest ${duration(most)}`)));
}

// The life of an epoch's transactions

function life(one, row) {
  const what = row.subtasks === null ? "Epoch" : "Checkpoint";
  let before = null;
  const steps = row.steps.map((step) => {
    const gap = step.at && before ? new Date(step.at) - new Date(before) : NaN;
    before = step.at ?? before;
    return h("li", { class: step.state },
      h("strong", {}, step.step),
      step.state === "done" ? null : h("span", {}, { waiting: "in progress", ahead: "not yet" }[step.state] ?? step.state),
      step.at ? h("span", {}, clock(step.at, true)) : null,
      gap > 0 ? h("span", {}, `+ ${duration(gap)}`) : null,
      step.detail ? h("span", {}, step.detail) : null);
  });
  const lost = new Set(one.given_up.filter((given) => given.epoch === row.epoch).map((given) => given.transaction));
  const status = (tx) => (lost.has(tx.transaction) ? "skipped" : row.completed ? "committed" : "decided");
  const columns = [
    ["Transaction", "wide", (tx) => h("span", { class: "name" }, tx.transaction)],
    ["Sink", "", (tx) => tx.sink],
    ["Subtask", "number", (tx) => String(tx.subtask)],
    ["Rows", "number", (tx) => number(tx.rows)],
    ["Status", "", (tx) => pill(status(tx))],
  ];
  const tasks = [
    ["Subtask", "wide", (task) => h("span", { class: "name" }, task.task)],
    ["Acknowledged after", "number", (task) => duration(task.acknowledged * 1000)],
    ["Alignment", "number", (task) => duration(task.alignment * 1000)],
    ["Snapshot", "number", (task) => duration((task.sync + task.asynchronous) * 1000)],
    ["Uploaded", "number", (task) => bytes(task.uploaded)],
    ["State", "number", (task) => bytes(task.state)],
    ["Rows in", "number", (task) => number(task.rows_in)],
    ["Rows out", "number", (task) => number(task.rows_out)],
    ["Busy", "number", (task) => duration(task.busy * 1000)],
    ["Blocked", "number", (task) => duration(task.blocked * 1000)],
    ["Timers", "number", (task) => number(task.timers)],
    ["Lag", "number", (task) => number(task.lag)],
  ];
  return h("section", { class: "card", id: "life", "aria-labelledby": "life-title" },
    h("div", { class: "head" }, h("h3", { id: "life-title" }, `${what} ${row.epoch}`), pill(row.status)),
    row.reason ? h("p", { class: "note" }, row.reason) : null,
    h("ol", { class: "life" }, steps),
    row.written.length ? table("transactions", columns, row.written) : null,
    !row.written.length && row.transactions ? h("p", { class: "small soft" }, `${many(row.transactions, "transaction")} (${sinks(row)}). The names were in the decision log, which has been pruned since.`) : null,
    row.written.length && row.transactions > row.written.length ? h("p", { class: "small soft" }, `${row.transactions - row.written.length} more are not shown.`) : null,
    row.tasks.length ? folded(`tasks-${row.epoch}`, `Subtasks (${row.tasks.length})`, () => table("tasks", tasks, row.tasks)) : null);
}

function folded(key, title, inside) {
  return h("details", { open: open.has(key), ontoggle: (event) => { event.target.open ? open.add(key) : open.delete(key); } },
    h("summary", { "data-key": `fold-${key}` }, title), inside());
}

// What is in doubt

function doubt(one) {
  const waits = waitingEpoch(one);
  const stuck = isStuck(one);
  const until = waits ? deadline(one, waits.epoch) : null;
  const expiring = waits ? expiringOf(one, waits.epoch).reduce((sum, tx) => sum + tx.rows, 0) : 0;
  const mine = (found?.rows ?? []).filter((tx) => tx.pipeline === one.name);
  const others = (found?.rows ?? []).filter((tx) => !state.pipelines.some((known) => known.name === tx.pipeline));
  const rows = [...mine, ...others];
  const chosen = mine.filter((tx) => checked.has(tx.exact) && mayAbort(tx)).map((tx) => tx.exact);
  return h("section", { class: `card ${stuck ? "warn" : ""}`, "aria-labelledby": "doubt-title" },
    h("div", { class: "head" }, h("h3", { id: "doubt-title" }, "In doubt"),
      state.targets ? h("button", { type: "button", class: "quiet", "data-key": "look", "aria-disabled": looking ? "true" : undefined, onclick: () => looking || look() }, looking ? "Asking the targets …" : "Ask the targets") : null),
    message ? h("p", { class: `note ${message.kind}` }, message.text) : null,
    waits
      ? h("p", { class: stuck ? "note warn" : "soft" }, `Epoch ${waits.epoch} was decided ${ago(waits.decided)} and is not completed: ${many(waits.transactions, "transaction")} (${sinks(waits)}). The pipeline commits it, or its next start does.`)
      : h("p", { class: "soft" }, "The decision log has no decision that waits for its commit."),
    waits && until && until > Date.now() ? h("p", {}, `${many(expiring, "row")} expire in `, h("span", { class: "clock", "data-until": until }, left(until)), " at the earliest: commit before that.") : null,
    waits && until && until <= Date.now() ? h("p", { class: "note warn" }, `The time to commit ${many(waits.rows, "row")} is over: ask the targets what has become of them.`) : null,
    waits && state.actions ? h("div", { class: "row" }, h("button", { type: "button", "data-key": "commit", onclick: () => confirmCommit(one, waits) }, `Commit epoch ${waits.epoch} …`)) : null,
    found?.error ? h("p", { class: "note", role: "alert" }, found.error) : null,
    Object.entries(found?.unanswered ?? {}).map(([target, error]) => h("p", { class: "note warn", role: "alert" }, `${target} did not answer, so its transactions are shown as the decision log knows them: ${error}`)),
    found?.rows ? h("p", { class: "small soft" }, `${rows.length ? "" : "No open, prepared or waiting transactions. "}Asked ${ago(found.at)}: ${state.targets}`) : null,
    rows.length ? h("ul", { class: "found" }, rows.map((tx) => transaction(one, tx))) : null,
    chosen.length && state.actions ? h("div", { class: "row" }, h("button", { type: "button", class: "danger", "data-key": "abort", onclick: () => confirmAbort(one, chosen) }, `Abort ${chosen.length} …`)) : null,
    state.targets ? null : h("p", { class: "small soft" }, "To see what is open in the targets, start onceward ui with --at or --sinks."));
}

const mayAbort = (tx) => tx.held && (tx.status === "in doubt" || tx.status === "lingering");

function transaction(one, tx) {
  const where = tx.target ? `${tx.state} in ${tx.target}` : "in none of the targets";
  const known = [`sink ${tx.sink} of ${tx.pipeline}`, tx.epoch === null ? "" : `epoch ${tx.epoch}, subtask ${tx.subtask}`, tx.rows ? `${number(tx.rows)} rows` : "", tx.expires_in === null ? "" : ["expires in ", h("span", { "data-until": expiry(tx) }, left(expiry(tx)))]];
  const box = h("input", { type: "checkbox", "aria-label": `Select ${tx.transaction}`, "data-key": `tx-${tx.exact}`,
    onchange: (event) => { event.target.checked ? checked.add(tx.exact) : checked.delete(tx.exact); render(); } });
  box.checked = checked.has(tx.exact);
  return h("li", {},
    h("div", {}, mayAbort(tx) && tx.pipeline === one.name && state.actions ? box : ""),
    h("div", {},
      h("div", { class: "row" }, pill(tx.status), h("span", { class: "name" }, tx.transaction)),
      h("span", { class: "small" }, [where, ...known].filter(Boolean).flatMap((part, at) => (at ? ["; ", part] : [part]).flat())),
      h("span", { class: "small soft" }, `→ ${tx.next}`),
      folded(`handle-${tx.transaction}`, "Inspect", () => h("pre", {}, JSON.stringify(tx, null, 2)))));
}

// Confirmation

function confirmCommit(one, row) {
  confirm(one, `Commit epoch ${row.epoch}`, [
    `Commits ${many(row.transactions, "decided transaction")} (${sinks(row)}) and records the epoch as completed, as the pipeline's next start would do.`,
    `The newest entry of this log was written ${ago(one.newest)}: ${state.warnings.copy}.`,
  ], "Commit", (name) => act("/api/commit", { pipeline: one.id, position: row.position, confirm: name }));
}

function confirmAbort(one, names) {
  confirm(one, `Abort ${many(names.length, "transaction")}`, [
    "Aborts what is listed here, which no decision names. What was decided in the meantime is left alone.",
    h("pre", {}, names.join("\n")),
    `The newest entry of this log was written ${ago(one.newest)}: ${state.warnings.copy}.`,
  ], "Abort", (name) => act("/api/abort", { pipeline: one.id, transactions: names, confirm: name }));
}

function confirm(one, title, text, verb, run) {
  const dialog = $("confirm"), typed = $("confirm-name"), button = $("confirm-do");
  $("confirm-title").textContent = title;
  $("confirm-text").replaceChildren(
    ...text.map((part) => (typeof part === "string" ? h("p", {}, part) : part)),
    h("p", { class: "note warn" }, `Careful: ${state.warnings.fences}.`));
  $("confirm-label").textContent = `To confirm, type the name of the pipeline: ${one.name}`;
  $("confirm-error").textContent = "";
  typed.value = "";
  button.textContent = verb;
  button.disabled = true;
  typed.oninput = () => { button.disabled = typed.value !== one.name; };
  $("confirm-cancel").onclick = () => dialog.close();
  const asked = document.activeElement?.dataset?.key;
  dialog.onclose = () => document.querySelector(`[data-key="${CSS.escape(asked ?? "")}"]`)?.focus();
  dialog.querySelector("form").onsubmit = async (event) => {
    event.preventDefault();
    if (typed.value !== one.name) return;
    button.disabled = true;
    button.textContent = "Working …";
    try {
      await run(typed.value);
      dialog.close();
    } catch (error) {
      $("confirm-error").textContent = visible(error.message);
      button.textContent = verb;
      button.disabled = false;
    }
  };
  dialog.showModal();
  typed.focus();
}

// Starts, and what was given up

function starts(one) {
  if (!one.starts.length) return null;
  const columns = [
    ["Started", "", (start) => clock(start.at)],
    ["Entry", "number", (start) => (start.position === null ? "" : String(start.position))],
    ["Took", "number", (start) => duration(start.milliseconds)],
    ["Committed for an earlier run", "wide", (start) => names(start.finished)],
    ["Swept", "wide", (start) => names(start.aborted)],
  ];
  return h("section", { class: "card", "aria-labelledby": "starts-title" }, h("h3", { id: "starts-title" }, "Starts"), table("starts", columns, one.starts));
}

const names = (list) => (list.length ? list.map((name) => h("div", { class: "name" }, name)) : "none");

function givenUp(one) {
  if (!one.given_up.length) return null;
  const columns = [
    ["Epoch", "", (given) => String(given.epoch)],
    ["Action", "", (given) => given.action],
    ["Transaction", "wide", (given) => h("span", { class: "name" }, given.transaction || "all of the epoch")],
    ["By", "", (given) => given.who],
    ["Reason", "wide", (given) => given.why],
    ["When", "", (given) => clock(given.at)],
  ];
  return h("section", { class: "card", "aria-labelledby": "given-title" }, h("h3", { id: "given-title" }, "Skipped or written again"), table("given", columns, one.given_up));
}

// Light and dark

const THEMES = ["system", "light", "dark"];

function showTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $("theme").textContent = `Theme: ${theme}`;
  localStorage.setItem("onceward-theme", theme);
}

$("theme").addEventListener("click", () => {
  const now = localStorage.getItem("onceward-theme") ?? "system";
  showTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});
$("search").addEventListener("input", () => render());
$("enter").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value.trim();
  $("token").value = "";
  sessionStorage.setItem("onceward-token", token);
  refresh();
});
addEventListener("hashchange", () => {
  message = null;
  if (location.hash.startsWith("#token=")) takeToken();
  render();
  refresh();
});

showTheme(THEMES.includes(localStorage.getItem("onceward-theme")) ? localStorage.getItem("onceward-theme") : "system");
takeToken();
if (token) refresh();
else askForToken("");
loop();
