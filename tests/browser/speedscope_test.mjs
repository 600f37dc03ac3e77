// Opens a trace of ours in speedscope and looks at what it made of it. Usage: speedscope_test.mjs MAKER
import { createServer } from "node:http";
import { existsSync, readFileSync } from "node:fs";
import { dirname, extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { equal, ok, skip, withBrowser } from "./browser.mjs";

const release = join(dirname(fileURLToPath(import.meta.url)), "node_modules/speedscope/dist/release");
if (!existsSync(join(release, "index.html"))) skip("no speedscope (tools/setup --tests installs it)");

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".json": "application/json" };

await withBrowser(process.argv[2], async (browser, folder) => {
  const server = createServer((request, response) => {
    const path = decodeURIComponent(new URL(request.url, "http://x").pathname);
    const file = path === "/trace.json" ? join(folder, "trace.json") : join(release, path === "/" ? "index.html" : path);
    if (!file.startsWith(release) && !file.startsWith(folder) || !existsSync(file)) {
      response.writeHead(404).end();
      return;
    }
    response.writeHead(200, { "content-type": TYPES[extname(file)] || "application/octet-stream" }).end(readFileSync(file));
  });
  await new Promise(done => server.listen(0, "127.0.0.1", done));
  try {
    const base = `http://127.0.0.1:${server.address().port}`;
    const page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
    const errors = [];
    page.on("pageerror", error => errors.push(String(error)));
    page.on("console", message => message.type() === "error" && errors.push(message.text()));
    await page.goto(`${base}/#profileURL=${encodeURIComponent(base + "/trace.json")}`);
    // The toolbar names the profile that is shown and how many there are: one a row, of two ranks with two lanes each.
    await page.waitForFunction(() => /rank 0/.test(document.body.innerText), null, { timeout: 30000 });
    const text = await page.evaluate(() => document.body.innerText);
    ok(/rank 0 \(pid 1\), compute \(tid 1\) \(1\/4\)/.test(text), "the first of four rows is shown by name: " + text.slice(0, 200));
    equal(errors, [], "errors of the page");
    // In the sandwich view every slice is listed with its time, its args behind its name.
    await page.keyboard.press("3");
    await page.waitForFunction(() => /MLP₁/.test(document.body.innerText), null, { timeout: 10000 });
    const table = await page.evaluate(() => document.body.innerText);
    for (const [name, op, ubatch] of [["MLP₁", "MLP", 1], ["MLP₀", "MLP", 0]]) {
      const at = table.indexOf(`${name} {"op":"${op}","ubatch":${ubatch},"layer":2,"rank":0,"lane":"compute"`);
      ok(at > 0, `${name} of layer 2 is listed: ` + table.slice(0, 400));
      ok(/80\.00µs/.test(table.slice(at - 40, at)), `${name} takes 80 us: ` + table.slice(at - 40, at));
    }
  } finally {
    server.close();
  }
});
