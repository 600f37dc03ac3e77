// Drives report.html: content, zoom, hover, jump, arrows, keyboard, offline, print, size. Usage: report_test.mjs MAKER
import { statSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { equal, ok, withBrowser } from "./browser.mjs";

async function open(browser, path) {
  const page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
  const errors = [], requests = [];
  page.on("pageerror", error => errors.push(String(error)));
  page.on("console", message => message.type() === "error" && errors.push(message.text()));
  page.on("request", request => requests.push(request.url()));
  await page.goto(pathToFileURL(path).href);
  await page.waitForFunction(() => document.documentElement.dataset.ready === "yes");
  return { page, errors, requests };
}

const row = (page, table, name) =>
  page.$$eval(`#${table} tbody tr`, (rows, wanted) =>
    rows.filter(r => r.cells[0].textContent === wanted).map(r => [...r.cells].map(c => c.textContent)), name);

const chosen = page => page.textContent("#chosen");
const settled = page => page.evaluate(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))));
const drawn = page => page.$eval("#predicted", canvas => Number(canvas.dataset.drawn));

async function content(page) {
  equal(await page.title(), "Low latency, worked example", "title");
  equal(await page.textContent("#verdict"), "outside tolerance", "verdict");
  const windows = await page.$$eval("#window-table tbody th", cells => cells.map(c => c.textContent));
  equal(windows, ["D[0]|A[1]", "D[1]|MLP[0]", "C[0]|S[0]+MLP[1]", "C[1]|S[1]+A[0]'", "C[1]|S[1]"], "windows");
  const first = (await row(page, "window-table", "D[0]|A[1]"))[0];
  equal(first.slice(1, 5), ["12", "12", "100.0 %", "100.0 %"], "first window");
  const mlp = (await row(page, "error-table", "MLP"))[0];
  equal(mlp.slice(1, 6), ["in overlap", "24", "80.0", "120.0", "+50.0 %"], "errors of MLP");
  equal(await page.getAttribute("#error-table svg.bar >> nth=0", "role"), "img", "bars have a text alternative");
  ok((await page.textContent("main")).includes("Durations are stated, not worked out."), "assumptions");
  equal((await row(page, "bubble-table", "predicted: wire"))[0][1], "50.0", "bubble by cause");
  ok((await page.textContent("dl.facts")).includes("measured </script><b>&\"x\".json"), "file names are shown as they are");
  equal(await page.$$eval("b", all => all.filter(b => b.textContent.includes("x")).length), 0, "and are no markup");
  ok((await page.$$eval("th[scope=row], th[scope=col]", all => all.length)) > 40, "tables have row and column headers");
}

async function jumpsAndArrows(page) {
  await page.fill("#jump", "A1 u1 L3 r1");
  await page.press("#jump", "Enter");
  await settled(page);
  ok((await chosen(page)).startsWith("predicted: A1 of ubatch 1, layer 3, rank 1: 60.000 µs from"), "jump: " + (await chosen(page)));
  await page.fill("#jump", "D.send ubatch 0 layer 2 rank 0");
  await page.click("#jump-go");
  await settled(page);
  ok((await chosen(page)).includes("D.send of ubatch 0, layer 2, rank 0: 2.000 µs"), "jump to a send");
  ok(Number(await page.$eval("#predicted", canvas => canvas.dataset.links)) >= 1, "a send has an arrow");
  await page.fill("#jump", "no such op");
  await page.press("#jump", "Enter");
  equal(await chosen(page), 'no op matches "no such op"', "a jump that finds nothing says so");
  await page.click("#error-table button >> nth=0");
  await settled(page);
  ok(/rank \d/.test(await chosen(page)), "the worst op is a link into the timeline");
}

async function keyboard(page) {
  await page.focus("#measured");
  await page.keyboard.press("Escape");
  await page.keyboard.press("Home");
  await settled(page);
  const all = await drawn(page);
  await page.keyboard.press("ArrowRight");
  const first = await chosen(page);
  ok(first.startsWith("measured: A0 of ubatch 0, layer 0, rank 0: 40.000 µs from 0.000 µs"), "first op by keyboard: " + first);
  await page.keyboard.press("ArrowRight");
  ok((await chosen(page)).startsWith("measured: A1 of ubatch 0, layer 0, rank 0"), "next op by keyboard");
  await page.keyboard.press("ArrowDown");
  ok(!(await chosen(page)).includes("A1 of ubatch 0, layer 0, rank 0"), "other lane by keyboard");
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("Enter");
  await settled(page);
  ok((await drawn(page)) * 2 < all, `Enter zooms to the op (${await drawn(page)} of ${all} drawn)`);
  equal(await page.getAttribute("#measured", "aria-label"), "measured timeline", "timelines have names");
  equal(await page.getAttribute("#chosen", "aria-live"), "polite", "the chosen op is announced");
}

async function zoomAndHover(page) {
  await page.click("#zoom-all");
  await settled(page);
  const all = await drawn(page);
  await page.click("#zoom-layer");
  await settled(page);
  const layer = await drawn(page);
  ok(layer * 3 < all, `one layer draws fewer ops than the step (${layer} of ${all})`);
  await page.click("#zoom-all");
  const box = await (await page.$("#predicted")).boundingBox();
  await page.mouse.move(box.x + 140, box.y + 12);
  ok((await page.textContent("#tip")).startsWith("predicted: A0 of ubatch 0, layer 0, rank 0"), "hover: " + (await page.textContent("#tip")));
  await page.mouse.wheel(0, -600);
  await settled(page);
  ok((await drawn(page)) < all, "the wheel zooms");
  const before = await page.evaluate(() => document.getElementById("predicted").toDataURL());
  await page.mouse.move(box.x + 700, box.y + 12);
  await page.mouse.down();
  await page.mouse.move(box.x + 400, box.y + 12, { steps: 4 });
  await page.mouse.up();
  await settled(page);
  ok(before !== (await page.evaluate(() => document.getElementById("predicted").toDataURL())), "dragging moves");
  await page.selectOption("#rank", "1");
  await settled(page);
  ok(true, "a rank can be chosen");
  await page.selectOption("#rank", "");
}

async function largeStaysSmooth(browser, folder) {
  const { page, errors } = await open(browser, `${folder}/large.html`);
  const ops = await page.evaluate(() => JSON.parse(document.getElementById("data").textContent).traces[0].ops.length / 9);
  ok(ops > 10000, `the large report has ${ops} ops`);
  // What keeps it smooth: ops narrower than a pixel are merged, so that a redraw costs pixels, not ops.
  const [count, pixels] = await page.$eval("#predicted", canvas => [Number(canvas.dataset.drawn), canvas.clientWidth]);
  const rows = 4;  // two ranks with a compute and a wire lane
  ok(count < 2 * rows * pixels && count < ops, `the whole step draws ${count} of ${ops} ops on ${pixels} pixels`);
  for (let i = 0; i < 8; ++i) await page.click("#zoom-in");
  await settled(page);
  ok((await drawn(page)) * 50 < ops, "zoomed in, only what is visible is drawn");
  equal(errors, [], "errors of the large page");
}

await withBrowser(process.argv[2], async (browser, folder) => {
  const { page, errors, requests } = await open(browser, `${folder}/report.html`);
  await content(page);
  await jumpsAndArrows(page);
  await keyboard(page);
  await zoomAndHover(page);
  const pdf = await page.pdf({ path: `${folder}/report.pdf`, printBackground: true, landscape: true });
  ok(pdf.length > 20000, "it prints");
  await page.emulateMedia({ media: "print" });
  equal(await page.isVisible(".controls"), false, "controls are not printed");
  ok(await page.isVisible("#predicted"), "timelines are printed");
  equal(requests.filter(url => !url.startsWith("file:")), [], "the page asks for nothing else");
  equal(errors, [], "errors of the page");
  ok(statSync(`${folder}/report.html`).size < 400000, "a small report is a small file");
  await largeStaysSmooth(browser, folder);
});
