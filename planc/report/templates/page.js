"use strict";
/* Zoom of the timeline, and the search of a device's slices. The page is whole without it. */
(() => {
  const US = 1e6, $ = (id) => document.getElementById(id);
  const time = (s) => s >= 1 || s === 0 ? s.toFixed(2) + " s" : s >= 1e-3 ? (s * 1e3).toFixed(1) + " ms" : (s * 1e6).toFixed(0) + " us";
  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const NAMES = { forward: "compute of a forward", backward: "compute of a backward", weight: "compute of the weights' gradients", recompute: "recompute", exposed_comm: "exposed communication", optimizer: "optimizer", offload: "offload", overhead: "overhead", bubble: "bubble: the rank waits" };
  const COLOURS = { forward: "compute", backward: "backward", weight: "backward", recompute: "recompute", exposed_comm: "exposed", optimizer: "optimizer", offload: "buffers", overhead: "overhead" };
  const ACTIONS = { F: "forward", B: "backward", I: "backward of the inputs", W: "backward of the weights" };

  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }
  const sums = (steps) => { let at = 0; return steps.map((d) => (at += d)); };

  function pieces(data, letter, stage, length) {
    const c = data.costs[stage];
    if (letter === "F") return [["exposed_comm", c[4]], ["forward", length - c[4]]];
    if (letter === "W") return [["weight", length]];
    return [["recompute", c[3]], ["backward", length - c[3] - c[5]], ["exposed_comm", c[5]]];
  }
  function spans(data, row) {
    const [, letters, stage, microbatch, start, length, after] = row;
    const S = sums(stage), M = sums(microbatch), T = sums(start), found = [];
    for (let i = 0; i < letters.length; i++) {
      let at = T[i] / US;
      for (const [part, s] of pieces(data, letters[i], S[i], length[i] / US)) {
        if (s > 0) found.push([at, s, part, letters[i], S[i], M[i]]);
        at += s;
      }
    }
    let at = data.end;
    for (const part in after) { found.push([at, after[part], part, "", 0, 0]); at += after[part]; }
    return found;
  }

  function zoom(data) {
    const box = $("zoom"), canvas = box.querySelector("canvas"), tip = box.querySelector(".tip"), says = $("zoom-says");
    const rows = data.ranks.map((row) => ({ name: "rank " + row[0], rank: row[0], spans: spans(data, row) }));
    if (rows.length === 1) rows[0].name = "device";
    const end = Math.max(...rows.map((r) => { const last = r.spans[r.spans.length - 1]; return last ? last[0] + last[1] : 0; }));
    const left = 66, tall = rows.length > 24 ? 10 : rows.length > 8 ? 16 : 24, gap = rows.length > 24 ? 1 : 4, top = 4;
    // Of a step of many microbatches only the first ones can be told apart: it opens on them.
    const most = Math.max(...rows.map((r) => r.spans.length));
    let low = 0, high = most > 160 ? end * 80 / most : end, chosen = null;
    const height = top + rows.length * (tall + gap) + 26;
    const px = (t, w) => left + (t - low) / (high - low) * (w - left - 4);
    function draw() {
      const w = box.clientWidth, ratio = window.devicePixelRatio || 1;
      if (!w) return;
      canvas.width = w * ratio; canvas.height = height * ratio; canvas.style.height = height + "px";
      const g = canvas.getContext("2d");
      g.scale(ratio, ratio); g.clearRect(0, 0, w, height);
      const colours = {}; for (const k in COLOURS) colours[k] = ink(COLOURS[k]);
      const bubble = ink("bubble"), paper = ink("paper"), soft = ink("soft"), grid = ink("grid");
      g.font = "11px system-ui, sans-serif"; g.textBaseline = "middle";
      const step = nice((high - low) / Math.max(3, w / 140));
      g.fillStyle = soft; g.textAlign = "center";
      for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-6; t += step) {
        const x = px(t, w); g.fillStyle = grid; g.fillRect(x, top, 1, height - 24); g.fillStyle = soft;
        g.fillText(+(t.toPrecision(6)) + " s", Math.min(x, w - 16), height - 10);
      }
      rows.forEach((row, i) => {
        const y = top + i * (tall + gap);
        if (tall > 10 || i % 3 === 0) { g.fillStyle = row.rank === data.slowest && rows.length > 1 ? ink("ink") : soft; g.textAlign = "right"; g.fillText(row.name, left - 6, y + tall / 2); }
        g.fillStyle = bubble; g.fillRect(px(Math.max(0, low), w), y, px(Math.min(data.end, high), w) - px(Math.max(0, low), w), tall);
        for (const s of row.spans) {
          if (s[0] + s[1] < low || s[0] > high) continue;
          const x = Math.max(left, px(s[0], w)), x2 = Math.min(w - 4, px(s[0] + s[1], w));
          if (x2 <= left) continue;
          g.fillStyle = colours[s[2]]; g.fillRect(x, y, Math.max(x2 - x, 0.4), tall);
          if (x2 - x > 26 && tall > 12 && s[3] && s[2] !== "exposed_comm" && s[2] !== "recompute") { g.fillStyle = paper; g.textAlign = "center"; g.fillText(s[3] + s[5], (x + x2) / 2, y + tall / 2); }
          if (x2 - x > 5) { g.fillStyle = paper; g.fillRect(x2 - 0.5, y, 0.5, tall); }
        }
      });
      if (chosen) { const y = top + chosen.row * (tall + gap); g.strokeStyle = ink("ink"); g.lineWidth = 1.5; const x = Math.max(left, px(chosen.span[0], w)); g.strokeRect(x, y, Math.max(1, px(chosen.span[0] + chosen.span[1], w) - x), tall); }
    }
    const nice = (v) => { const p = 10 ** Math.floor(Math.log10(v)); return p * [1, 2, 5, 10].find((m) => m * p >= v); };
    function scale(by, at) {
      const mid = at ?? (low + high) / 2, wide = Math.min(end, Math.max(end / 1e5, (high - low) * by));
      low = Math.max(0, Math.min(end - wide, mid - (mid - low) / (high - low) * wide)); high = low + wide; draw();
    }
    function pan(by) { const d = Math.max(-low, Math.min(end - high, by * (high - low))); low += d; high += d; draw(); }
    function waitAt(row, t) {
      const from = row.spans.reduce((at, s) => { const e = s[0] + s[1]; return e <= t && e > at ? e : at; }, 0);
      return [from, row.spans.reduce((at, s) => s[0] > t && s[0] < at ? s[0] : at, data.end)];
    }
    function text(row, s, t) {
      if (!s) {
        const [from, to] = waitAt(row, t);
        return row.name + ": bubble, the rank waits " + time(to - from) + ", from " + time(from) + cause("bubble");
      }
      const what = s[3] ? ACTIONS[s[3]] + " of microbatch " + s[5] + ", stage " + s[4] + "; " : "after the last microbatch; ";
      return row.name + ": " + what + NAMES[s[2]] + ", " + time(s[1]) + ", from " + time(s[0]) + cause(s[2] === "forward" || s[2] === "backward" || s[2] === "weight" ? "compute" : s[2]);
    }
    const cause = (part) => data.causes[part] ? ". Line " + data.causes[part][0] + ": " + data.causes[part][1] : "";
    function hit(event) {
      const r = canvas.getBoundingClientRect(), x = event.clientX - r.left, y = event.clientY - r.top;
      const i = Math.floor((y - top) / (tall + gap));
      if (i < 0 || i >= rows.length || x < left) return null;
      const t = low + (x - left) / (r.width - left - 4) * (high - low);
      return { row: i, t, span: rows[i].spans.find((s) => s[0] <= t && t < s[0] + s[1]) };
    }
    canvas.addEventListener("pointermove", (e) => {
      if (drag) { pan((drag - e.clientX) / (canvas.clientWidth - left)); drag = e.clientX; return; }
      const h = hit(e); tip.hidden = !h;
      if (!h) return;
      tip.textContent = text(rows[h.row], h.span, h.t);
      tip.style.left = Math.min(e.offsetX + 12, Math.max(0, box.clientWidth - 304)) + "px"; tip.style.top = e.offsetY + 14 + "px";
    });
    let drag = 0;
    canvas.addEventListener("pointerdown", (e) => { drag = e.clientX; canvas.setPointerCapture(e.pointerId); tip.hidden = true; });
    canvas.addEventListener("pointerup", () => { drag = 0; });
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    canvas.addEventListener("wheel", (e) => { if (!e.ctrlKey && !e.shiftKey) return; e.preventDefault(); scale(e.deltaY > 0 ? 1.25 : 0.8, hit(e)?.t); }, { passive: false });
    canvas.addEventListener("dblclick", (e) => scale(0.4, hit(e)?.t));
    canvas.addEventListener("keydown", (e) => {
      const keys = { ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => scale(0.7), "=": () => scale(0.7), "-": () => scale(1.4), 0: () => { low = 0; high = end; draw(); }, ArrowDown: () => move(1, 0), ArrowUp: () => move(-1, 0), n: () => move(0, 1), p: () => move(0, -1) };
      if (keys[e.key] && !e.ctrlKey && !e.metaKey) { e.preventDefault(); keys[e.key](); }
    });
    function move(down, on) {
      const row = Math.max(0, Math.min(rows.length - 1, (chosen ? chosen.row : 0) + down)), list = rows[row].spans;
      const at = chosen ? list.findIndex((s) => s[0] >= chosen.span[0] - 1e-9) : 0;
      const span = list[Math.max(0, Math.min(list.length - 1, (at < 0 ? list.length - 1 : at) + on))];
      if (!span) return;
      chosen = { row, span };
      if (span[0] < low || span[0] > high) { const wide = high - low; low = Math.max(0, Math.min(end - wide, span[0] - wide / 2)); high = low + wide; }
      says.textContent = text(rows[row], span); draw();
    }
    for (const b of document.querySelectorAll("[data-zoom]")) b.addEventListener("click", () => ({ in: () => scale(0.5), out: () => scale(2), left: () => pan(-0.4), right: () => pan(0.4), all: () => { low = 0; high = end; draw(); } })[b.dataset.zoom]());
    for (const part of document.querySelectorAll("#timeline .static")) part.hidden = true;
    $("zoom-block").hidden = false;
    new ResizeObserver(draw).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    draw();
  }

  const length = (runs) => runs.reduce((n, [a, b]) => n + b - a, 0);
  function range(n, axes, device, places) {
    let a = 0, b = n;
    for (const name of axes) {
      const { size, stride } = places[name], each = Math.ceil((b - a) / size), at = Math.floor(device / stride) % size;
      [a, b] = [Math.min(b, a + each * at), Math.min(b, a + each * (at + 1))];
    }
    return [a, b];
  }
  function slice(tensor, device, places) {
    return tensor.cuts.map((cuts, dim) => {
      let runs = [[0, cuts.reduce((n, c) => n * c.length, 1)]];
      for (const c of cuts) if (c.axes.length) {
        const [a, b] = range(c.length, c.axes, device, places), found = [];
        if (a < b) for (const [from, to] of runs) for (let s = from; s < to; s += c.length * c.inside) found.push([s + a * c.inside, s + b * c.inside]);
        runs = found;
      }
      if (dim === tensor.stored_on && tensor.stored_over.length) {
        const [first, last] = range(length(runs), tensor.stored_over, device, places), found = []; let passed = 0;
        for (const [a, b] of runs) { const s = Math.max(first - passed, 0), e = Math.min(last - passed, b - a); if (s < e) found.push([a + s, a + e]); passed += b - a; }
        runs = found;
      }
      return runs.length ? runs.slice(0, 4).map(([a, b]) => a + ":" + b).join(" + ") + (runs.length > 4 ? " + …" : "") : "nothing";
    });
  }
  function devices(data) {
    const input = $("device"), cells = document.querySelectorAll("[data-tensor]");
    const show = () => {
      const device = Math.max(0, Math.min(data.devices - 1, Math.floor(+input.value) || 0));
      for (const cell of cells) cell.textContent = "[" + slice(data.tensors[+cell.dataset.tensor], device, data.axes).join(", ") + "]";
      for (const name of document.querySelectorAll("[data-device]")) name.textContent = device;
    };
    input.addEventListener("input", show);
    $("device-block").hidden = false;
  }
  document.addEventListener("DOMContentLoaded", () => {
    const packed = $("timeline-data"), map = $("shards-data");
    if (packed && $("zoom") && "DecompressionStream" in window) unpack(packed.textContent).then(zoom);
    if (map && $("device")) devices(JSON.parse(map.textContent));
  });
})();
