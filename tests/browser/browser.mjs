// What the browser tests share: finding a browser and its driver, and saying why not.
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { execFileSync } from "node:child_process";

const SKIP = 77;

/// Ends the test as skipped, with the reason.
export function skip(reason) {
  console.log(`skipped: ${reason}`);
  process.exit(SKIP);
}

/// Runs `body(browser, folder)` with the files that the program `maker` writes, and exits with 0 or 1.
export async function withBrowser(maker, body) {
  let playwright;
  try {
    playwright = await import("playwright-core");
  } catch {
    skip("no playwright-core (tools/setup --tests installs it)");
  }
  const path = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
  if (!path) skip("no Chromium");
  const folder = mkdtempSync(join(tmpdir(), "dbo-browser-"));
  let browser;
  try {
    execFileSync(maker, [folder]);
    // Without a sandbox: tests run in containers, on pages of their own.
    browser = await playwright.chromium.launch({ executablePath: path, args: ["--no-sandbox", "--disable-gpu"] });
    await body(browser, folder);
    console.log(`${checks} checks passed`);
  } catch (error) {
    console.error(error);
    process.exitCode = 1;
  } finally {
    if (browser) await browser.close();
    rmSync(folder, { recursive: true, force: true });
  }
}

let checks = 0;

export function equal(actual, expected, what) {
  ++checks;
  if (JSON.stringify(actual) !== JSON.stringify(expected))
    throw new Error(`${what}: expected ${JSON.stringify(expected)}, is ${JSON.stringify(actual)}`);
}

export function ok(condition, what) {
  ++checks;
  if (!condition) throw new Error(what);
}
