// planc in Pyodide, beside the page: it loads once, then answers commands one by one.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const bytes = async (name) => {
  const found = await fetch(name);
  if (!found.ok) throw new Error(`${name}: ${found.status}`);
  return new Uint8Array(await found.arrayBuffer());
};

const loading = (async () => {
  const names = ["planc.zip", "pydantic_core.whl", "run.py"];
  const [python, packages, core, code] = await Promise.all([loadPyodide(), ...names.map(bytes)]);
  const site = python.runPython("import sysconfig; sysconfig.get_path('purelib')");
  python.unpackArchive(packages, "zip", { extractDir: site });
  python.unpackArchive(core, "wheel", { extractDir: site });
  python.FS.writeFile(`${site}/playground_run.py`, code);
  python.runPython("from playground_run import run; import planc");
  const text = python.runPython("from pathlib import Path; (Path(planc.__file__).parent / 'plans/tiny.plan').read_text()");
  const run = python.globals.get("run");
  run("check", text, "");
  const plans = python.runPython(
    "import json; json.dumps({p.stem: p.read_text() for f in ('plans', 'plans/field', 'plans/search')" +
      " for p in sorted((Path(planc.__file__).parent / f).glob('*.plan'))})",
  );
  return { run, plans: JSON.parse(plans), version: python.runPython("planc.__version__") };
})();

loading.then(
  ({ plans, version }) => postMessage({ ready: true, plans, version }),
  (error) => postMessage({ failed: String(error) }),
);

onmessage = async ({ data }) => {
  const { run } = await loading;
  try {
    postMessage({ ...JSON.parse(run(data.command, data.plan, data.other, data.columns)), command: data.command, number: data.number });
  } catch (error) {
    postMessage({ status: 3, text: String(error), seconds: 0, command: data.command, number: data.number });
  }
};
