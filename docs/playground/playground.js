// The page: texts go to the worker, answers come back as text. What a plan says is never markup here.
const at = (id) => document.getElementById(id);
const worker = new Worker("worker.js", { type: "module" });
let number = 0;

const packed = async (text) => {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const data = new Uint8Array(await new Response(stream).arrayBuffer());
  return btoa(Array.from(data, (byte) => String.fromCharCode(byte)).join(""))
    .replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
};

const MOST_TEXT = 200_000;

const unpacked = async (word) => {
  const data = Uint8Array.from(atob(word.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
  const reader = new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    text += decoder.decode(part.value, { stream: true });
    if (text.length > MOST_TEXT) throw new Error("the link's plan is too long");
  }
  return text;
};

const link = async () => {
  const words = { plan: at("plan").value, other: at("other").value };
  const parts = [];
  for (const [name, text] of Object.entries(words)) if (text.trim()) parts.push(`${name}=${await packed(text)}`);
  history.replaceState(null, "", `#${parts.join("&")}`);
};

const columns = () => {
  const measure = document.createElement("canvas").getContext("2d");
  measure.font = getComputedStyle(at("answer")).font;
  return Math.floor((at("answer").clientWidth - 20) / measure.measureText("0").width);
};

const ask = async (command) => {
  document.body.dataset.state = "busy";
  at("says").textContent = `${command} ...`;
  at("second").hidden = command !== "diff" && !at("other").value;
  number += 1;
  worker.postMessage({ command, plan: at("plan").value, other: at("other").value, columns: columns(), number });
  await link();
};

worker.onmessage = ({ data }) => {
  if (data.failed) {
    at("says").textContent = `planc could not be loaded: ${data.failed}`;
    document.body.dataset.state = "failed";
    return;
  }
  if (data.ready) {
    at("version").textContent = `planc ${data.version}`;
    for (const [name, text] of Object.entries(data.plans)) {
      const option = document.createElement("option");
      option.textContent = name;
      option.value = text;
      at("example").append(option);
    }
    for (const button of document.querySelectorAll("button")) button.disabled = false;
    if (!at("plan").value) at("plan").value = data.plans.tiny;
    document.body.dataset.loaded = "yes";
    ask("check");
    return;
  }
  if (data.number !== number) return;
  at("answer").textContent = data.text;
  if (data.plan !== undefined) at("plan").value = data.plan;
  at("page").hidden = data.page === undefined;
  if (data.page !== undefined) at("page").srcdoc = data.page;
  at("says").textContent = `${data.command}: status ${data.status}, ${data.seconds.toFixed(2)} s`;
  Object.assign(document.body.dataset, { state: "done", status: data.status, command: data.command, seconds: data.seconds });
};

for (const button of document.querySelectorAll("button")) button.onclick = () => ask(button.id);
at("example").onchange = () => {
  if (at("example").value) at("plan").value = at("example").value;
  ask("check");
};
at("plan").onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask("check");
};

for (const part of location.hash.slice(1).split("&")) {
  const [name, word] = part.split("=");
  if (["plan", "other"].includes(name) && word) {
    unpacked(word).then((text) => { at(name).value = text; }, () => { at("says").textContent = "the link is damaged"; });
  }
}
