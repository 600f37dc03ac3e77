"use strict";
// Draws two traces one above the other on one time axis. Only what is visible is drawn: rows are sorted, so a binary
// search finds the first visible op, and ops narrower than a pixel are merged.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const FIELDS = 9;  // rank, lane, kind, layer, ubatch, start, end, waited, name
  const ROW = 24, AXIS = 22, LABEL = 132, GAP = 3;
  const tip = document.getElementById("tip"), chosenText = document.getElementById("chosen");
  const rankSelect = document.getElementById("rank"), jump = document.getElementById("jump");
  const subscript = n => String(n).replace(/[0-9]/g, d => "₀₁₂₃₄₅₆₇₈₉"[d]);
  const us = ns => (ns / 1000).toFixed(ns < 100000 ? 3 : 1) + " µs";

  class Op {
    constructor(trace, index) { this.trace = trace; this.index = index; }
    get(field) { return this.trace.ops[this.index * FIELDS + field]; }
    get rank() { return this.get(0); }
    get lane() { return this.get(1); }
    get kind() { return this.get(2); }
    get layer() { return this.get(3); }
    get ubatch() { return this.get(4); }
    get start() { return this.get(5); }
    get end() { return this.get(6); }
    get waited() { return this.get(7); }
    get name() {
      const kind = data.kinds[this.kind];
      if (kind === "OTHER") return this.trace.names[this.get(8)] || kind;
      const dot = kind.indexOf(".");
      const sub = subscript(this.ubatch);
      return dot < 0 ? kind + sub : kind.slice(0, dot) + sub + kind.slice(dot);
    }
    get words() {
      const kind = data.kinds[this.kind];
      const what = kind === "OTHER" ? this.name : `${kind} of ubatch ${this.ubatch}`;
      return what + (this.layer >= 0 ? `, layer ${this.layer}` : "") + `, rank ${this.rank}`;
    }
    get key() { return this.keyOn(this.rank); }
    keyOn(rank) {
      const kind = data.kinds[this.kind];
      return [rank, this.kind, this.layer, this.ubatch, kind === "OTHER" ? this.name : ""].join("|");
    }
    get colour() { return data.colours[this.kind][this.ubatch % 2]; }
  }

  const traces = data.traces.map(raw => ({
    title: raw.title, lanes: raw.lanes, names: raw.names, ops: raw.ops, flows: raw.flows,
    count: raw.ops.length / FIELDS, canvas: null, rows: [], byKey: new Map(), rowOf: new Map()
  }));
  let end = 1;
  for (const trace of traces) {
    for (let i = 0; i < trace.count; ++i) {
      const op = new Op(trace, i);
      end = Math.max(end, op.end);
      if (!trace.byKey.has(op.key)) trace.byKey.set(op.key, op);
    }
  }
  const view = { from: 0, to: end, rank: null, chosen: null };

  /// The op of a trace that an op of either is joined with. A predicted rank may stand for several measured ones.
  const standsFor = rank => data.like[rank] === undefined ? rank : data.like[rank];
  function counterpart(trace, op) {
    if (op.trace === trace) return op;
    return trace.byKey.get(trace === traces[0] ? op.keyOn(standsFor(op.rank)) : op.key);
  }

  // ---------------------------------------------------------------- rows

  function makeRows(trace) {
    const rank = view.rank === null || trace !== traces[0] ? view.rank : standsFor(view.rank);
    const ops = [];
    for (let i = 0; i < trace.count; ++i) {
      const op = new Op(trace, i);
      if (rank === null || op.rank === rank) ops.push(op);
    }
    ops.sort((a, b) => a.rank - b.rank || a.lane - b.lane || a.start - b.start || a.index - b.index);
    trace.rows = [];
    trace.rowOf = new Map();
    let first = 0, last = null;
    for (const op of ops) {
      if (!last || last.rank !== op.rank || last.lane !== op.lane) first = trace.rows.length;
      let row = first;
      while (row < trace.rows.length && trace.rows[row].over > op.start) ++row;
      if (row === trace.rows.length) {
        const spill = row - first + 1;
        const lane = trace.lanes[op.lane] || `lane ${op.lane}`;
        const prefix = data.ranks.length > 1 ? `r${op.rank} ` : "";
        trace.rows.push({ label: prefix + lane + (spill > 1 ? ` (${spill})` : ""), ops: [], over: 0 });
      }
      trace.rows[row].ops.push(op);
      trace.rows[row].over = op.end;
      trace.rowOf.set(op.index, row);
      last = op;
    }
  }

  // ---------------------------------------------------------------- drawing

  const width = trace => trace.canvas.clientWidth - LABEL - 8;
  const xOf = (trace, time) => LABEL + (time - view.from) / (view.to - view.from) * width(trace);
  const timeOf = (trace, x) => view.from + (x - LABEL) / width(trace) * (view.to - view.from);

  function firstVisible(ops) {
    let low = 0, high = ops.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ops[middle].end <= view.from) low = middle + 1; else high = middle;
    }
    return low;
  }

  function draw(trace) {
    const canvas = trace.canvas, ratio = Math.max(window.devicePixelRatio || 1, 2);
    const height = trace.rows.length * (ROW + GAP) + AXIS + GAP;
    canvas.style.height = height + "px";
    canvas.width = Math.round(canvas.clientWidth * ratio);
    canvas.height = Math.round(height * ratio);
    const g = canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, canvas.clientWidth, height);
    g.font = "12px 'DejaVu Sans', Helvetica, Arial, sans-serif";
    g.textBaseline = "middle";
    let drawn = 0;
    trace.rows.forEach((row, r) => {
      const y = GAP + r * (ROW + GAP);
      g.fillStyle = "#f3f4f6";
      g.fillRect(LABEL, y, width(trace), ROW);
      g.fillStyle = "#1b1f24";
      g.textAlign = "left";
      g.fillText(row.label, 6, y + ROW / 2, LABEL - 12);
      let merged = -1;  // up to where a narrow op would draw over one just drawn
      for (let i = firstVisible(row.ops); i < row.ops.length && row.ops[i].start < view.to; ++i) {
        const op = row.ops[i];
        const left = Math.max(LABEL, xOf(trace, op.start)), right = Math.min(LABEL + width(trace), xOf(trace, op.end));
        if (right - left < 1 && left < merged) continue;
        g.fillStyle = op.colour;
        g.fillRect(left, y, Math.max(0.5, right - left), ROW);
        merged = left + 0.5;
        ++drawn;
        if (right - left > 26) {
          g.fillStyle = "#1b1f24";
          g.textAlign = "center";
          const text = op.name;
          if (g.measureText(text).width < right - left - 4) g.fillText(text, (left + right) / 2, y + ROW / 2);
        }
      }
    });
    axis(trace, g, height);
    marks(trace, g);
    canvas.dataset.drawn = drawn;
  }

  function axis(trace, g, height) {
    const span = view.to - view.from;
    let step = 1;
    for (let decade = 1, i = 0; span / step > 12; ++i) {
      step = decade * [2, 5, 10][i % 3];
      if (i % 3 === 2) decade *= 10;
    }
    g.strokeStyle = "#8c959f";
    g.fillStyle = "#57606a";
    g.textAlign = "center";
    g.lineWidth = 0.5;
    for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) {
      const x = xOf(trace, t);
      g.setLineDash([2, 3]);
      g.beginPath();
      g.moveTo(x, 0);
      g.lineTo(x, height - AXIS);
      g.stroke();
      const text = step >= 1e6 ? (t / 1e6) + " ms" : step >= 1000 ? (t / 1000) + " µs" : (t / 1000).toFixed(3) + " µs";
      if (x > LABEL + 20) g.fillText(text, x, height - AXIS / 2);
    }
    g.setLineDash([]);
  }

  function place(trace, op) {
    const row = trace.rowOf.get(op.index);
    return row === undefined ? null : { row, y: GAP + row * (ROW + GAP), left: xOf(trace, op.start), right: xOf(trace, op.end) };
  }

  /// The chosen op, its counterpart in the other trace, and the arrows that end at either.
  function marks(trace, g) {
    if (!view.chosen) return;
    const op = counterpart(trace, view.chosen);
    const at = op && place(trace, op);
    if (!at) return;
    g.strokeStyle = "#0550ae";
    g.lineWidth = 2.5;
    g.strokeRect(at.left - 1, at.y, Math.max(3, at.right - at.left + 2), ROW);
    let links = 0;
    for (let f = 0; f < trace.flows.length; f += 3) {
      if (trace.flows[f + 1] !== op.index && trace.flows[f + 2] !== op.index) continue;
      const from = place(trace, new Op(trace, trace.flows[f + 1])), to = place(trace, new Op(trace, trace.flows[f + 2]));
      if (!from || !to) continue;
      ++links;
      g.strokeStyle = trace.flows[f] ? "#b42318" : "#1a7f37";
      g.lineWidth = 1.5;
      g.beginPath();
      const x0 = from.right, y0 = from.y + ROW / 2, x1 = Math.max(to.left, Math.min(to.right, x0)), y1 = to.y + ROW / 2;
      g.moveTo(x0, y0);
      g.bezierCurveTo(x0 + 24, y0, x1 - 24, y1, x1, y1);
      g.stroke();
      g.beginPath();
      g.arc(x1, y1, 3, 0, 7);
      g.fillStyle = g.strokeStyle;
      g.fill();
    }
    trace.canvas.dataset.links = links;
  }

  let pending = false;
  function redraw() {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      traces.forEach(draw);
    });
  }

  // ---------------------------------------------------------------- moving about

  function setView(from, to) {
    const least = 50;
    let span = Math.min(Math.max(to - from, least), end);
    from = Math.min(Math.max(0, from), end - span);
    view.from = from;
    view.to = from + span;
    redraw();
  }
  function zoom(factor, centre) {
    const at = centre === undefined ? (view.from + view.to) / 2 : centre;
    setView(at - (at - view.from) * factor, at + (view.to - at) * factor);
  }

  function describe(op) {
    let text = `${op.trace.title}: ${op.words}: ${us(op.end - op.start)} from ${us(op.start)}`;
    if (op.waited > 0) text += `, waited ${us(op.waited)}`;
    const other = traces[op.trace === traces[0] ? 1 : 0];
    const match = other && counterpart(other, op);
    if (match) {
      const length = op.end - op.start, there = match.end - match.start;
      const predicted = op.trace === traces[0] ? length : there, measured = op.trace === traces[0] ? there : length;
      text += `; ${other.title} ${us(there)} from ${us(match.start)}`;
      if (predicted > 0) text += `, measured ${(measured / predicted * 100 - 100).toFixed(1)} % against predicted`;
    }
    return text;
  }

  function choose(op, show) {
    view.chosen = op;
    chosenText.textContent = op ? describe(op) : "";
    if (op && (show || op.end < view.from || op.start > view.to)) {
      const span = show ? Math.max((op.end - op.start) * 6, 200) : view.to - view.from;
      const middle = (op.start + op.end) / 2;
      setView(middle - span / 2, middle + span / 2);
    }
    redraw();
  }

  function opAt(trace, x, y) {
    const row = trace.rows[Math.floor((y - GAP) / (ROW + GAP))];
    if (!row || x < LABEL) return null;
    const time = timeOf(trace, x), reach = (view.to - view.from) / width(trace) * 2;
    let best = null;
    for (let i = firstVisible(row.ops); i < row.ops.length && row.ops[i].start < view.to; ++i) {
      const op = row.ops[i];
      if (op.start > time + reach) break;
      if (op.start <= time && time < op.end) return op;
      if (op.end > time - reach) best = op;
    }
    return best;
  }

  function neighbour(trace, op, step) {
    const row = trace.rows[trace.rowOf.get(op.index)];
    const at = row.ops.findIndex(other => other.index === op.index);
    return row.ops[at + step] || null;
  }

  function overRow(trace, op, step) {
    const row = trace.rows[trace.rowOf.get(op.index) + step];
    if (!row) return null;
    const middle = (op.start + op.end) / 2;
    return row.ops.reduce((best, o) => !best || Math.abs((o.start + o.end) / 2 - middle) < Math.abs((best.start + best.end) / 2 - middle) ? o : best, null);
  }

  function onKey(trace, event) {
    const span = view.to - view.from;
    const mine = view.chosen && view.chosen.trace === trace && trace.rowOf.has(view.chosen.index) ? view.chosen : null;
    const start = () => trace.rows.length ? trace.rows[0].ops[firstVisible(trace.rows[0].ops)] || trace.rows[0].ops[0] : null;
    const actions = {
      ArrowRight: () => choose(mine ? neighbour(trace, mine, 1) || mine : start()),
      ArrowLeft: () => choose(mine ? neighbour(trace, mine, -1) || mine : start()),
      ArrowDown: () => choose(mine ? overRow(trace, mine, 1) || mine : start()),
      ArrowUp: () => choose(mine ? overRow(trace, mine, -1) || mine : start()),
      Enter: () => mine && choose(mine, true),
      Escape: () => choose(null),
      Home: () => setView(0, end),
      "+": () => zoom(0.5, mine ? (mine.start + mine.end) / 2 : undefined),
      "=": () => zoom(0.5, mine ? (mine.start + mine.end) / 2 : undefined),
      "-": () => zoom(2),
      PageDown: () => setView(view.from + span * 0.8, view.to + span * 0.8),
      PageUp: () => setView(view.from - span * 0.8, view.to - span * 0.8)
    };
    if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
  }

  function attach(trace, canvas) {
    trace.canvas = canvas;
    let drag = null;
    canvas.addEventListener("wheel", event => {
      if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaY) > Math.abs(event.deltaX) && event.altKey) return;
      event.preventDefault();
      const x = event.offsetX;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const by = (event.deltaX || event.deltaY) / width(trace) * (view.to - view.from);
        setView(view.from + by, view.to + by);
      } else {
        zoom(Math.pow(1.0015, event.deltaY), timeOf(trace, Math.max(x, LABEL)));
      }
    }, { passive: false });
    canvas.addEventListener("pointerdown", event => {
      drag = { x: event.offsetX, from: view.from, to: view.to, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", event => {
      if (drag) {
        const by = (event.offsetX - drag.x) / width(trace) * (drag.to - drag.from);
        if (Math.abs(event.offsetX - drag.x) > 3) drag.moved = true;
        if (drag.moved) setView(drag.from - by, drag.to - by);
        return;
      }
      const op = opAt(trace, event.offsetX, event.offsetY);
      tip.style.display = op ? "block" : "none";
      if (!op) return;
      tip.textContent = describe(op).replace("; ", "\n");
      tip.style.left = Math.min(event.clientX + 14, window.innerWidth - 470) + "px";
      tip.style.top = event.clientY + 16 + "px";
    });
    canvas.addEventListener("pointerup", event => {
      if (drag && !drag.moved) choose(opAt(trace, event.offsetX, event.offsetY));
      drag = null;
    });
    canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
    canvas.addEventListener("dblclick", event => {
      const op = opAt(trace, event.offsetX, event.offsetY);
      if (op) choose(op, true);
    });
    canvas.addEventListener("keydown", event => onKey(trace, event));
  }

  /// "A1 ubatch 0 layer 3", "D.send 1 L3 r2": all words must be in an op's words; the next match from the chosen on.
  function jumpTo(text) {
    const words = text.toLowerCase().trim().split(/\s+/).filter(Boolean)
      .map(w => w.replace(/^l(\d+)$/, "layer $1").replace(/^r(\d+)$/, "rank $1").replace(/^u(b?)(\d+)$/, "ubatch $2"));
    if (!words.length) return;
    const has = (haystack, needle) => new RegExp("(^|[ ,])" + needle.replace(/[.*+?^${}()|[\]\\]/g, "\\$&") + "($|[ ,])").test(haystack);
    const phrase = op => (op.words + " ").toLowerCase();
    const joined = [];
    for (let i = 0; i < words.length; ++i) {
      if (["layer", "rank", "ubatch"].includes(words[i]) && /^\d+$/.test(words[i + 1] || "")) joined.push(words[i] + " " + words[++i]);
      else joined.push(words[i]);
    }
    const trace = view.chosen ? view.chosen.trace : traces[0];
    const all = trace.rows.flatMap(row => row.ops).sort((a, b) => a.start - b.start || a.index - b.index);
    const found = all.filter(op => joined.every(w => has(phrase(op), w)));
    if (!found.length) {
      chosenText.textContent = `no op matches "${text}"`;
      return;
    }
    const now = view.chosen ? found.findIndex(op => op.index === view.chosen.index) : -1;
    choose(found[(now + 1) % found.length], true);
    chosenText.textContent += ` (${(now + 1) % found.length + 1} of ${found.length})`;
  }

  document.querySelectorAll(".timeline canvas").forEach((canvas, i) => attach(traces[i], canvas));
  rankSelect.addEventListener("change", () => {
    view.rank = rankSelect.value === "" ? null : Number(rankSelect.value);
    traces.forEach(makeRows);
    redraw();
  });
  document.getElementById("zoom-in").addEventListener("click", () => zoom(0.5));
  document.getElementById("zoom-out").addEventListener("click", () => zoom(2));
  document.getElementById("zoom-all").addEventListener("click", () => setView(0, end));
  document.getElementById("zoom-layer").addEventListener("click", () => data.steady && setView(data.steady[0], data.steady[1]));
  jump.addEventListener("keydown", event => { if (event.key === "Enter") jumpTo(jump.value); });
  document.getElementById("jump-go").addEventListener("click", () => jumpTo(jump.value));
  document.querySelectorAll("button[data-jump]").forEach(button => button.addEventListener("click", () => {
    jumpTo(button.dataset.jump);
    document.getElementById("timelines").scrollIntoView();
  }));
  window.addEventListener("resize", redraw);
  window.addEventListener("beforeprint", () => traces.forEach(draw));

  if (data.ranks.length > 4) view.rank = data.ranks[0];
  rankSelect.value = view.rank === null ? "" : String(view.rank);
  traces.forEach(makeRows);
  traces.forEach(draw);
  document.documentElement.dataset.ready = "yes";
})();
