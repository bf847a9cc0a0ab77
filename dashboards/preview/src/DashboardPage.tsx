import { type DataFrame, dateTime, type TimeRange } from '@grafana/data';
import { ErrorBoundary, Icon, PanelChrome, useTheme2 } from '@grafana/ui';
import type { ComponentType, ReactNode } from 'react';

import type { Contents, Panel } from './contents';
import type { Drawing } from './panels/drawing';
import { HeatmapPanel } from './panels/HeatmapPanel';
import { StateTimelinePanel } from './panels/StateTimelinePanel';
import { StatPanel } from './panels/StatPanel';
import { TablePanel } from './panels/TablePanel';
import { TimeSeriesPanel } from './panels/TimeSeriesPanel';

// Grafana's grid.
const COLUMNS = 24;
const CELL = 30;
const GAP = 8;
const MARGIN = 16;

const KINDS: Record<string, ComponentType<Drawing>> = {
  heatmap: HeatmapPanel,
  stat: StatPanel,
  'state-timeline': StateTimelinePanel,
  table: TablePanel,
  timeseries: TimeSeriesPanel,
};

/** What a panel shows: its frames, or why there are none. */
export type Prepared = DataFrame[] | Error;

interface Props {
  contents: Contents;
  prepared: Map<number, Prepared>;
  width: number;
}

export function DashboardPage({ contents, prepared, width }: Props) {
  const theme = useTheme2();
  const { panels } = contents.dashboard;
  const column = (width - 2 * MARGIN + GAP) / COLUMNS;
  const rows = Math.max(...panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  const timeRange = rangeOf(contents);
  return (
    <div style={{ width, overflow: 'hidden', padding: MARGIN, background: theme.colors.background.canvas, color: theme.colors.text.primary }}>
      <Header contents={contents} />
      <div style={{ position: 'relative', height: rows * (CELL + GAP) - GAP }}>
        {panels.map((panel) => {
          const { x, y, w, h } = panel.gridPos;
          const size = { width: w * column - GAP, height: h * (CELL + GAP) - GAP };
          const place = { position: 'absolute', left: x * column, top: y * (CELL + GAP), ...size } as const;
          return (
            <div key={panel.id} style={place}>
              {panel.type === 'row' ? (
                <div style={{ ...theme.typography.h5, lineHeight: `${CELL}px` }}>{panel.title}</div>
              ) : (
                <Framed panel={panel} prepared={prepared.get(panel.id)!} contents={contents} timeRange={timeRange} {...size} />
              )}
            </div>
          );
        })}
      </div>
    </div>
  );
}

function Header({ contents }: { contents: Contents }) {
  const theme = useTheme2();
  const chip = { padding: '4px 8px', border: `1px solid ${theme.colors.border.medium}`, borderRadius: 2 };
  const moment = (ms: number) => new Date(ms).toISOString().slice(0, 19).replace('T', ' ');
  return (
    <div style={{ marginBottom: MARGIN }}>
      <div style={{ display: 'flex', justifyContent: 'space-between', alignItems: 'baseline' }}>
        <h3 style={{ margin: 0 }}>{contents.dashboard.title}</h3>
        <span>
          {moment(contents.from)} to {moment(contents.to)} UTC
        </span>
      </div>
      <div style={{ color: theme.colors.text.secondary, margin: '4px 0 8px' }}>{contents.dashboard.description}</div>
      <div style={{ display: 'flex', gap: GAP }}>
        {Object.entries(contents.choices).map(([name, values]) => (
          <span key={name} style={chip}>
            <span style={{ color: theme.colors.text.secondary }}>{name}</span> {values.join(' + ') || 'All'}
          </span>
        ))}
      </div>
    </div>
  );
}

interface FramedProps {
  panel: Panel;
  prepared: Prepared;
  contents: Contents;
  timeRange: TimeRange;
  width: number;
  height: number;
}

function Framed({ panel, prepared, contents, timeRange, width, height }: FramedProps) {
  const links = panel.links?.length ? (
    <PanelChrome.TitleItem title="Links">
      <Icon name="external-link-alt" size="md" />
    </PanelChrome.TitleItem>
  ) : undefined;
  return (
    <section data-panel={panel.title}>
      <PanelChrome
        title={panel.title}
        description={panel.description}
        titleItems={links}
        padding={panel.type === 'table' ? 'none' : 'md'}
        width={width}
        height={height}
      >
        {(innerWidth, innerHeight) => (
          <ErrorBoundary>
            {({ error }) =>
              error ? (
                <Problem>{error.message}</Problem>
              ) : (
                <Shown panel={panel} prepared={prepared} events={contents.events} timeRange={timeRange} width={innerWidth} height={innerHeight} />
              )
            }
          </ErrorBoundary>
        )}
      </PanelChrome>
    </section>
  );
}

function Shown({ panel, prepared, ...rest }: Omit<Drawing, 'frames'> & { prepared: Prepared }) {
  if (prepared instanceof Error) {
    return <Problem>{prepared.message}</Problem>;
  }
  const Kind = KINDS[panel.type];
  if (!Kind) {
    return <Problem>the preview cannot draw a panel of the type {panel.type}</Problem>;
  }
  // A stat says by itself that there is nothing.
  if (panel.type !== 'stat' && !prepared.some((frame) => frame.length > 0)) {
    return <Centred>{panel.fieldConfig.defaults.noValue ?? 'No data'}</Centred>;
  }
  return <Kind panel={panel} frames={prepared} {...rest} />;
}

function Problem({ children }: { children: ReactNode }) {
  const theme = useTheme2();
  return (
    <div data-error style={{ color: theme.colors.error.text, padding: GAP }}>
      {children}
    </div>
  );
}

function Centred({ children }: { children: ReactNode }) {
  return <div style={{ height: '100%', display: 'grid', placeItems: 'center' }}>{children}</div>;
}

function rangeOf({ from, to }: Contents): TimeRange {
  const range = { from: dateTime(from), to: dateTime(to) };
  return { ...range, raw: range };
}
