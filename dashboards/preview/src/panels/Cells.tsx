// Coloured cells over time, in rows: what heatmaps and state timelines have in common.

import { type GrafanaTheme2, type TimeRange } from '@grafana/data';
import { AxisPlacement, ScaleDirection, ScaleOrientation } from '@grafana/schema';
import { measureText, UPLOT_AXIS_FONT_SIZE, UPlotChart, UPlotConfigBuilder, useTheme2 } from '@grafana/ui';
import { useMemo } from 'react';
import type uPlot from 'uplot';

import type { Event } from '../contents';
import { TIME_ZONE } from '../fields';
import { drawEvents, PADDING } from './drawing';

export interface Cell {
  row: number;
  from: number;
  to: number;
  fill: string;
  text?: string;
}

interface Props {
  /** What stands beside each row, from the bottom. */
  labels: string[];
  /** Where a label stands: at its row's middle, or at the edge above it. */
  labelsAt: 'middle' | 'edge';
  cells: Cell[];
  /** How much of its row a cell fills. */
  fullness: number;
  /** Pixels between neighbours. */
  gap: number;
  events: Event[];
  timeRange: TimeRange;
  width: number;
  height: number;
}

const LEAST_LABEL_HEIGHT = 15;
const LABEL_MARGIN = 20;

export function Cells(props: Props) {
  const theme = useTheme2();
  const { labels, cells, timeRange, width, height } = props;
  const config = useMemo(() => configured(props, theme), [props, theme]);
  return (
    <div data-chart aria-label={labels.map((label, row) => `${label}: ${told(cells.filter((cell) => cell.row === row))}`).join('\n')}>
      <UPlotChart
        config={config}
        data={[[timeRange.from.valueOf(), timeRange.to.valueOf()], [null, null]]}
        width={width}
        height={height}
      />
    </div>
  );
}

/** What there is in a row: a canvas tells nobody. */
function told(cells: Cell[]): string {
  const texts = new Set(cells.flatMap(({ text }) => text || []));
  return texts.size > 0 ? [...texts].join(', ') : `${cells.length} cells`;
}

function configured(props: Props, theme: GrafanaTheme2): UPlotConfigBuilder {
  const { labels, labelsAt, timeRange, height, events } = props;
  const builder = new UPlotConfigBuilder(TIME_ZONE);
  builder.addScale({
    scaleKey: 'x',
    isTime: true,
    orientation: ScaleOrientation.Horizontal,
    direction: ScaleDirection.Right,
    range: () => [timeRange.from.valueOf(), timeRange.to.valueOf()],
  });
  builder.addScale({
    scaleKey: 'y',
    orientation: ScaleOrientation.Vertical,
    direction: ScaleDirection.Up,
    range: () => [0, labels.length],
  });
  builder.addAxis({
    scaleKey: 'x',
    isTime: true,
    placement: AxisPlacement.Bottom,
    timeZone: TIME_ZONE,
    theme,
    grid: { show: true },
  });
  const every = Math.ceil((LEAST_LABEL_HEIGHT * labels.length) / height);
  const shown = [...labels.keys()].filter((row) => row % every === 0);
  const widest = Math.max(...labels.map((label) => measureText(label, UPLOT_AXIS_FONT_SIZE).width));
  builder.addAxis({
    scaleKey: 'y',
    size: widest + LABEL_MARGIN,
    placement: AxisPlacement.Left,
    theme,
    grid: { show: false },
    splits: () => shown.map((row) => row + (labelsAt === 'edge' ? 1 : 0.5)),
    values: () => shown.map((row) => labels[row]),
  });
  builder.setPadding(PADDING);
  builder.addSeries({ scaleKey: 'y', theme, pathBuilder: () => null, pointsBuilder: () => undefined });
  builder.addHook('draw', (plot) => drawCells(plot, props, theme));
  builder.addHook('draw', (plot) => drawEvents(plot, events, theme));
  return builder;
}

function drawCells(plot: uPlot, { cells, fullness, gap }: Props, theme: GrafanaTheme2): void {
  const { ctx, bbox } = plot;
  const margin = (1 - fullness) / 2;
  const inset = gap * devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.font = `${theme.typography.fontSize * devicePixelRatio}px ${theme.typography.fontFamily}`;
  ctx.textBaseline = 'middle';
  ctx.textAlign = 'left';
  for (const cell of cells) {
    const left = Math.max(bbox.left, Math.round(plot.valToPos(cell.from, 'x', true)));
    const right = Math.round(plot.valToPos(cell.to, 'x', true));
    const top = Math.round(plot.valToPos(cell.row + 1 - margin, 'y', true));
    const bottom = Math.round(plot.valToPos(cell.row + margin, 'y', true));
    ctx.fillStyle = cell.fill;
    ctx.fillRect(left, top, right - left - inset, bottom - top - inset);
    const padding = 4 * devicePixelRatio;
    if (cell.text && ctx.measureText(cell.text).width < right - left - 2 * padding) {
      ctx.fillStyle = theme.colors.getContrastText(cell.fill);
      ctx.fillText(cell.text, left + padding, (top + bottom) / 2);
    }
  }
  ctx.restore();
}
