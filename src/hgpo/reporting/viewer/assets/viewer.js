// The viewer. Texts of models and environments only ever become text nodes.
"use strict";

const { h, render } = preact;
const { useState, useEffect, useMemo, useRef, useCallback } = preactHooks;
const html = htm.bind(h);

const ROW_HEIGHT = 52;

// ---- data: scripts that call hgpoData(name, body), loaded once each ----

const waiting = new Map();
const loaded = new Map();

function hgpoData(name, body) {
  waiting.get(name)?.(body);
}

function load(name) {
  if (!loaded.has(name)) {
    loaded.set(name, new Promise((resolve, reject) => {
      const script = document.createElement("script");
      waiting.set(name, resolve);
      script.onerror = () => { loaded.delete(name); reject(new Error(`data/${name}.js cannot be loaded`)); };
      script.onload = () => script.remove();
      script.src = `data/${name}.js`;
      document.head.append(script);
    }));
  }
  return loaded.get(name);
}

function useData(name) {
  const [state, set] = useState({});
  useEffect(() => {
    let current = true;
    if (name) load(name).then((body) => current && set({ name, body }), (error) => current && set({ name, error }));
    return () => { current = false; };
  }, [name]);
  return state.name === name ? state : {};
}

// ---- place: #episode=…&step=… so that links and the back button work ----

function readPlace() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const number = (key) => (/^\d+$/.test(parts.get(key) ?? "") ? Number(parts.get(key)) : null);
  return { episode: number("episode"), step: number("step") ?? 0 };
}

function go(episode, step = 0) {
  location.hash = episode === null ? "" : `episode=${episode}&step=${step}`;
}

function usePlace() {
  const [place, set] = useState(readPlace);
  useEffect(() => {
    const listen = () => set(readPlace());
    addEventListener("hashchange", listen);
    return () => removeEventListener("hashchange", listen);
  }, []);
  return place;
}

// ---- filters ----

const FIELDS = [
  ["kind", "from", (index, i) => index.sources[index.episodes.source[i]][0]],
  ["model", "model", (index, i) => index.sources[index.episodes.source[i]][1]],
  ["environment", "environment", (index, i) => index.sources[index.episodes.source[i]][2]],
  ["method", "method", (index, i) => index.sources[index.episodes.source[i]][3]],
  ["history", "K", (index, i) => String(index.sources[index.episodes.source[i]][4])],
  ["seed", "training seed", (index, i) => String(index.sources[index.episodes.source[i]][5])],
  ["place", "split or iteration", (index, i) => index.sources[index.episodes.source[i]][6]],
  ["type", "task type", (index, i) => index.types[index.episodes.type[i]]],
  ["won", "outcome", (index, i) => (index.episodes.won[i] ? "won" : "lost")],
];

const collator = new Intl.Collator("en", { numeric: true });

function choices(index) {
  const all = index.episodes.source.map((_, i) => i);
  return Object.fromEntries(FIELDS.map(([key, , value]) => [
    key, [...new Set(all.map((i) => value(index, i)))].sort(collator.compare),
  ]));
}

function select(index, filters, words) {
  const active = FIELDS.filter(([key]) => filters[key]);
  const sought = words.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (text) => sought.every((word) => text.includes(word));
  const byTask = new Map();
  const matches = (i) => {
    const key = `${index.episodes.task[i]} ${index.episodes.goal[i]}`;
    if (!byTask.has(key)) {
      byTask.set(key, fits(`${index.tasks[index.episodes.task[i]]} ${index.goals[index.episodes.goal[i]]}`.toLowerCase()));
    }
    return byTask.get(key);
  };
  const found = [];
  for (let i = 0; i < index.episodes.source.length; i += 1) {
    if (active.every(([key, , value]) => value(index, i) === filters[key]) && (!sought.length || matches(i))) found.push(i);
  }
  return found;
}

function Filters({ options, filters, setFilters, words, setWords }) {
  return html`<form class="filters" onSubmit=${(event) => event.preventDefault()}>
    <label class="wide">task <input type="search" name="words" value=${words} placeholder="words of task or goal"
      onInput=${(event) => setWords(event.target.value)} /></label>
    ${FIELDS.filter(([key]) => options[key].length > 1).map(([key, label]) => html`<label key=${key}>${label}
      <select name=${key} value=${filters[key] ?? ""} onChange=${(event) => setFilters({ ...filters, [key]: event.target.value })}>
        <option value="">all</option>
        ${options[key].map((value) => html`<option key=${value} value=${value}>${value}</option>`)}
      </select></label>`)}
  </form>`;
}

// ---- list: only the rows in sight exist ----

function EpisodeList({ index, rows, chosen }) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const measure = useCallback(() => setView({ top: box.current.scrollTop, height: box.current.clientHeight }), []);
  useEffect(() => {
    measure();
    addEventListener("resize", measure);
    return () => removeEventListener("resize", measure);
  }, []);
  useEffect(() => {
    const at = rows.indexOf(chosen) * ROW_HEIGHT;
    const { scrollTop, clientHeight } = box.current;
    if (at >= 0 && (at < scrollTop || at + ROW_HEIGHT > scrollTop + clientHeight)) box.current.scrollTop = at - clientHeight / 2;
    else if (scrollTop > rows.length * ROW_HEIGHT) box.current.scrollTop = 0;
    measure();
  }, [rows, chosen]);
  const first = Math.max(0, Math.floor(view.top / ROW_HEIGHT) - 5);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW_HEIGHT) + 5);
  const move = (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const next = rows[Math.min(rows.length - 1, Math.max(0, rows.indexOf(chosen) + by))];
    if (next !== undefined) go(next);
  };
  return html`<div class="list" ref=${box} onScroll=${measure} onKeyDown=${move} tabindex="0" role="listbox"
      aria-label="episodes">
    <div style=${{ height: `${rows.length * ROW_HEIGHT}px` }}>
      <div style=${{ transform: `translateY(${first * ROW_HEIGHT}px)` }}>
        ${rows.slice(first, last).map((i) => html`<${Row} key=${i} index=${index} i=${i} chosen=${i === chosen} />`)}
      </div>
    </div>
  </div>`;
}

function Row({ index, i, chosen }) {
  const e = index.episodes;
  const [kind, , environment, method, history, seed, place] = index.sources[e.source[i]];
  return html`<div class=${`row${chosen ? " chosen" : ""}`} role="option" aria-selected=${chosen} onClick=${() => go(i)}>
    <span class="goal">${index.goals[e.goal[i]] || index.tasks[e.task[i]]}</span>
    <${Outcome} won=${e.won[i]} score=${e.score[i]} />
    <span class="meta">${method} K=${history} · ${place}${kind === "training" ? ` · rollout ${e.rollout[i]}` : ""} · ${environment} · training seed ${seed}</span>
    <span class="meta">${trials(index, i) > 1 ? `${trials(index, i)} trials, ` : ""}${count(e.steps[i], "step")}</span>
  </div>`;
}

const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

// An evaluation may try a task several times: its episode is then all of the trials, one after the other.
const trials = (index, i) => (index.sources[index.episodes.source[i]][0] === "training" ? 1 : index.episodes.rollout[i] + 1);

function placeOf(found, at) {
  let first = 0;
  for (const [trial, length] of found.trials.entries()) {
    if (at < first + length) return { trial, step: at - first, last: length - 1 };
    first += length;
  }
  return { trial: 0, step: 0, last: 0 };
}

function Outcome({ won, score }) {
  const part = score > 0 && score < 1 ? ` ${score.toFixed(2)}` : "";
  return html`<span class=${won ? "badge good" : "badge bad"}>${won ? "won" : "lost"}${part}</span>`;
}

// ---- one episode ----

const number = (value, digits = 3) => (value === null || value === undefined ? "–" : (value < 0 ? "−" : "") + Math.abs(value).toFixed(digits));

function Episode({ index, episode, step }) {
  const e = index.episodes;
  const source = e.source[episode];
  const { body, error } = useData(`${source}-${e.block[episode]}`);
  const base = useMemo(() => e.source.indexOf(source), [index, source]); // rows of a source follow each other
  const found = body?.episodes.find((one) => one.row === episode - base);
  const steps = found?.steps ?? [];
  const at = Math.min(step, Math.max(0, steps.length - 1));
  useEffect(() => {
    const listen = (event) => {
      if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
      const by = { j: 1, k: -1, ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by && at + by >= 0 && at + by < steps.length) go(episode, at + by);
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, [episode, at, steps.length]);
  const [kind, model, environment, method, history, seed, place] = index.sources[source];
  const [goal, ...told] = index.goals[e.goal[episode]].split("\n"); // told: what the agent noted in earlier trials
  return html`<article class="episode">
    <header>
      <button class="back" onClick=${() => go(null)}>← episodes</button>
      <h2>${goal || index.tasks[e.task[episode]]}</h2>
      <p><${Outcome} won=${e.won[episode]} score=${e.score[episode]} /> ${trials(index, episode) > 1 ? `${trials(index, episode)} trials, ` : ""}${count(e.steps[episode], "step")},
        reward ${number(e.reward[episode], 2)}, ${count(e.invalid[episode], "invalid action")}</p>
      <p class="meta">${kind}: ${model}, ${environment}, ${method}, K=${history}, training seed ${seed}, ${place}${" · "}<span class="name">${index.types[e.type[episode]]}</span>${" · "}<span class="name">${index.tasks[e.task[episode]]}</span></p>
      ${e.failed[episode] && html`<p class="badge bad">environment lost: ${e.failed[episode]}</p>`}
      ${told.length > 0 && html`<div class="text told">${told.join("\n")}</div>`}
    </header>
    ${error ? html`<p class="empty">${error.message}</p>`
      : !body ? html`<p class="empty">Loading …</p>`
      : !steps.length ? html`<p class="empty">The steps of this episode were not kept.</p>`
      : html`<div class="steps">
          <${Timeline} texts=${body.texts} found=${found} at=${at} episode=${episode} />
          <${StepCard} body=${body} found=${found} at=${at} episode=${episode} base=${base} />
        </div>`}
  </article>`;
}

function Timeline({ texts, found, at, episode }) {
  const chosen = useRef(null);
  useEffect(() => chosen.current?.scrollIntoView({ block: "nearest" }), [at, episode]);
  return html`<ol class="timeline" aria-label="steps">${found.steps.map((step, i) => {
    const place = placeOf(found, i);
    return html`<li key=${i}>
    ${found.trials.length > 1 && place.step === 0 && html`<h3>trial ${place.trial + 1} of ${found.trials.length}</h3>`}
    <button ref=${i === at ? chosen : null} class=${i === at ? "chosen" : ""} aria-current=${i === at ? "step" : null}
      onClick=${() => go(episode, i)}>
      <span class="count">${place.step}</span><span class="action">${texts[step.action]}</span>
      ${step.invalid && html`<span class="badge bad">invalid</span>`}
      ${step.reward !== 0 && html`<span class="badge good">${number(step.reward, 1)}</span>`}
    </button></li>`;
  })}</ol>`;
}

function StepCard({ body, found, at, episode, base }) {
  const { texts } = body;
  const step = found.steps[at];
  const place = placeOf(found, at);
  return html`<section class="card">
    <nav>
      <button disabled=${at === 0} onClick=${() => go(episode, at - 1)}>‹ previous</button>
      <span>${found.trials.length > 1 && `trial ${place.trial + 1}, `}<strong>step ${place.step}</strong> of ${place.last}</span>
      <button disabled=${at + 1 === found.steps.length} onClick=${() => go(episode, at + 1)}>next ›</button>
    </nav>
    <h3>observation</h3><div class="text observation">${texts[step.observation]}</div>
    <h3>think</h3><div class="text think">${texts[step.think] || "–"}</div>
    <h3>action ${step.invalid && html`<span class="badge bad">invalid</span>`}</h3>
    <div class="text said">${texts[step.action]}</div>
    <dl>
      <div><dt>reward</dt><dd>${number(step.reward)}</dd></div>
      <div><dt>return</dt><dd>${number(step.return)}</dd></div>
      <div><dt>tokens read, written</dt><dd>${step.tokens[0]}, ${step.tokens[1]}</dd></div>
      <div><dt>ended by</dt><dd>${texts[step.finish]}</dd></div>
    </dl>
    ${step.levels && html`<${Groups} body=${body} found=${found} at=${at} base=${base} />`}
    <details><summary>${step.admissible.length} admissible actions</summary>
      <ul class="chips">${step.admissible.map((a, i) => html`<li key=${i} class=${a === step.action ? "taken" : ""}>${texts[a]}</li>`)}</ul></details>
    <details><summary>complete reply</summary><div class="text">${texts[step.completion]}</div></details>
    <details><summary>state compared</summary><div class="text">${texts[step.state]}</div></details>
  </section>`;
}

// ---- groups: who is compared with whom ----

function sameGroup(body, found, k, code) {
  const members = [];
  for (const other of body.episodes) {
    other.steps.forEach((step, i) => {
      if (step.levels?.[k]?.[0] === code) members.push({ other, step, i, own: other === found });
    });
  }
  return members;
}

function Groups({ body, found, at, base }) {
  const step = found.steps[at];
  const { history, context } = body.groups;
  const levels = [...Array(history + 1).keys()];
  const deepest = levels.filter((k) => step.levels[k]).at(-1);
  const [open, setOpen] = useState(null);
  const shown = open !== null && step.levels[open] ? open : deepest;
  return html`<section class="groups" aria-label="groups">
    <h3>groups</h3>
    <p class="meta">Steps of this task's rollouts with the same last k states${context === "states_and_actions" ? " and the actions between them" : ""} and the same present one.</p>
    <table>
      <thead><tr><th>level k</th><th>steps</th><th>advantage</th><th>weight</th><th></th></tr></thead>
      <tbody>${levels.map((k) => {
        const level = step.levels[k];
        const size = level ? sameGroup(body, found, k, level[0]).length : 0;
        return html`<tr key=${k} class=${k === shown ? "chosen" : ""}>
          <td>${k}</td>
          ${level ? html`<td>${size}</td><td>${number(level[1])}</td><td>${number(level[2], 2)}</td>
            <td><button aria-expanded=${k === shown} onClick=${() => setOpen(k)}>who</button></td>`
          : html`<td colspan="4" class="meta">${at < k ? "no history that long" : "no other step"}</td>`}
        </tr>`;
      })}</tbody>
    </table>
    <table class="results">
      <thead><tr><th>HGPO</th><th>GiGPO</th><th>GRPO</th><th>used in training</th></tr></thead>
      <tbody><tr><td>${number(step.hgpo)}</td><td>${number(step.gigpo)}</td><td>${number(step.grpo)}</td><td>${number(step.used)}</td></tr></tbody>
    </table>
    ${shown !== undefined && html`<h3>level ${shown}: who is in it</h3>
      <table class="members">
        <thead><tr><th>rollout, step</th><th>action</th><th>return</th><th>level ${shown}</th><th>HGPO</th></tr></thead>
        <tbody>${sameGroup(body, found, shown, step.levels[shown][0]).map((member) => html`
          <tr key=${`${member.other.row}-${member.i}`} class=${member.own && member.i === at ? "chosen" : ""}>
            <td><a href=${`#episode=${base + member.other.row}&step=${member.i}`}>${member.other.rollout}, ${member.i}</a></td>
            <td class="action">${body.texts[member.step.action]}</td>
            <td>${number(member.step.return)}</td><td>${number(member.step.levels[shown][1])}</td><td>${number(member.step.hgpo)}</td>
          </tr>`)}</tbody>
      </table>`}
  </section>`;
}

// ---- page ----

function App() {
  const { body: index, error } = useData("index");
  const place = usePlace();
  const [filters, setFilters] = useState({});
  const [words, setWords] = useState("");
  const options = useMemo(() => index && choices(index), [index]);
  const rows = useMemo(() => (index ? select(index, filters, words) : []), [index, filters, words]);
  useEffect(() => { if (index) document.title = `${index.title} – episodes`; }, [index]);
  if (error) return html`<p class="empty">${error.message}</p>`;
  if (!index) return html`<p class="empty">Loading …</p>`;
  const episode = place.episode !== null && place.episode < index.episodes.source.length ? place.episode : null;
  const won = rows.reduce((sum, i) => sum + index.episodes.won[i], 0);
  return html`<div class=${`page${episode === null ? "" : " reading"}`}>
    <aside>
      <h1>${index.title}</h1>
      <${Filters} options=${options} filters=${filters} setFilters=${setFilters} words=${words} setWords=${setWords} />
      <p class="count" role="status">${rows.length} of ${index.episodes.source.length} episodes${rows.length ? `, ${won} won (${((100 * won) / rows.length).toFixed(1)} %)` : ""}</p>
      <${EpisodeList} index=${index} rows=${rows} chosen=${episode} />
    </aside>
    <main>${episode === null ? html`<p class="empty">Choose an episode.</p>`
      : html`<${Episode} index=${index} episode=${episode} step=${place.step} />`}</main>
  </div>`;
}

render(html`<${App} />`, document.getElementById("app"));
