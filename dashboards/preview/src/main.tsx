// The page: fetches what there is to draw, draws it, and says on <html data-drawn> when it stands still.

import 'uplot/dist/uPlot.min.css';

import { createTheme, type GrafanaTheme2, locationUtil, ThemeContext } from '@grafana/data';
import { GlobalStyles } from '@grafana/ui';
import { useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';

import { type Contents, fetchContents } from './contents';
import { DashboardPage, type Prepared } from './DashboardPage';
import { prepare } from './fields';

const STILL_MS = 400;
const FONTS = ['400 14px Inter', '500 14px Inter'];

async function prepareAll(contents: Contents, theme: GrafanaTheme2): Promise<Map<number, Prepared>> {
  const panels = contents.dashboard.panels.filter(({ type }) => type !== 'row');
  const prepared = panels.map(async (panel): Promise<[number, Prepared]> => {
    const { frames, refused } = contents.panels[panel.id];
    if (refused) {
      return [panel.id, new Error(refused)];
    }
    return [panel.id, await prepare(panel, frames, theme).catch((error: Error) => error)];
  });
  return new Map(await Promise.all(prepared));
}

/** Icons and tables come after the first drawing: waits until nothing has changed for a while. */
function whenStill(element: Element, then: () => void): () => void {
  let timer = window.setTimeout(then, STILL_MS);
  const observer = new MutationObserver(() => {
    window.clearTimeout(timer);
    timer = window.setTimeout(then, STILL_MS);
  });
  observer.observe(element, { subtree: true, childList: true, attributes: true });
  return () => {
    window.clearTimeout(timer);
    observer.disconnect();
  };
}

function Page({ contents, theme }: { contents: Contents; theme: GrafanaTheme2 }) {
  const [prepared, setPrepared] = useState<Map<number, Prepared>>();
  useEffect(() => {
    // Texts are measured when they are drawn, so the fonts come first; the styles name them.
    Promise.all([prepareAll(contents, theme), ...FONTS.map((font) => document.fonts.load(font))]).then(
      ([all]) => setPrepared(all),
    );
  }, [contents, theme]);
  useEffect(() => {
    if (prepared) {
      return whenStill(document.body, () => (document.documentElement.dataset.drawn = ''));
    }
    return undefined;
  }, [prepared]);
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      {prepared && <DashboardPage contents={contents} prepared={prepared} width={document.body.clientWidth} />}
    </ThemeContext.Provider>
  );
}

locationUtil.initialize({
  config: { appSubUrl: '' } as Parameters<typeof locationUtil.initialize>[0]['config'],
  getVariablesUrlParams: () => ({}),
  getTimeRangeForUrl: () => ({ from: '', to: '' }),
});
const contents = await fetchContents();
const theme = createTheme({ colors: { mode: contents.theme } });
createRoot(document.getElementById('root')!).render(<Page contents={contents} theme={theme} />);
