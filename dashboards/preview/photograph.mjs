// Has Chromium draw pages and takes their pictures.
//
// Standard input: {executable, width, timeout (ms), pictures: [{url, path}]} as JSON.
// Standard output: for each picture a line of JSON, the panels as {title, text, error}.

import { text } from 'node:stream/consumers';
import { chromium } from 'playwright-core';

const FLAGS = [
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

const { executable, width, timeout, pictures } = JSON.parse(await text(process.stdin));
const browser = await chromium.launch({
  executablePath: executable,
  args: FLAGS,
  // Root may not use Chromium's sandbox; it shows nothing but our own page.
  chromiumSandbox: process.getuid() !== 0,
  timeout,
});
try {
  for (const { url, path } of pictures) {
    const page = await browser.newPage({ viewport: { width, height: 900 } });
    page.setDefaultTimeout(timeout);
    const thrown = [];
    page.on('pageerror', (error) => thrown.push(error.message));
    await page.goto(url, { waitUntil: 'networkidle' });
    await page
      .waitForSelector('html[data-drawn]', { state: 'attached' })
      .catch((late) => {
        throw new Error(thrown[0] ?? late.message);
      });
    await page.screenshot({ path, fullPage: true, animations: 'disabled' });
    const panels = await page.$$eval('[data-panel]', (all) =>
      all.map((panel) => ({
        title: panel.dataset.panel,
        text: [
          panel.innerText,
          ...[...panel.querySelectorAll('[data-chart]')].map((chart) => chart.ariaLabel),
        ].join('\n'),
        error: panel.querySelector('[data-error]')?.textContent ?? '',
      })),
    );
    console.log(JSON.stringify(panels));
    await page.close();
  }
} finally {
  await browser.close();
}
